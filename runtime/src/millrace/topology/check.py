"""What must hold between the fields of a topology. Every problem is reported, none stops another.

Rules are generators over ``Facts``, one for each kind of mistake: ``check_graph`` (names, edges,
cycles, reach), ``check_parts`` (what a single part declares), ``check_flow`` (keys and columns
along the edges).
"""

from __future__ import annotations

from pathlib import Path

from millrace.topology import check_flow, check_graph, check_parts
from millrace.topology.facts import Facts, gather
from millrace.topology.model import StreamTopology
from millrace.topology.problems import Problem

RULES = (*check_graph.RULES, *check_parts.RULES, *check_flow.RULES)


def check(topology: StreamTopology, folder: Path | None = None) -> list[Problem]:
    """Every problem of a topology whose single fields are valid.

    ``folder`` is what paths in the topology are relative to; without it user code is not looked
    at, and what depends on it is taken to be right.
    """
    return problems_of(gather(topology, folder))


def problems_of(facts: Facts) -> list[Problem]:
    """Every problem that the facts show."""
    problems = [problem for rule in RULES for problem in rule(facts)]
    return [*problems, *facts.code_problems]
