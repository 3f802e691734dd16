"""What must hold between the fields of a topology. Every problem is reported, none stops another.

Rules are generators over ``Facts``, one for each kind of mistake: ``check_graph`` (names, edges,
cycles, reach), ``check_parts`` (what a single part declares), ``check_pods`` (pods, volumes and
secrets), ``check_flow`` (keys and columns along the edges).
"""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path

from millrace.topology.checks import flow as check_flow
from millrace.topology.checks import graph as check_graph
from millrace.topology.checks import parts as check_parts
from millrace.topology.checks import pods as check_pods
from millrace.topology.checks.facts import Facts, gather
from millrace.topology.limits import MOST_PROBLEMS
from millrace.topology.model import StreamTopology
from millrace.topology.problems import Problem

RULES = (*check_graph.RULES, *check_parts.RULES, *check_pods.RULES, *check_flow.RULES)


def check(
    topology: StreamTopology, folder: Path | None = None, import_code: bool = True
) -> list[Problem]:
    """Every problem of a topology whose single fields are valid.

    ``folder`` is what paths in the topology are relative to; without it, and without
    ``import_code``, user code is not looked at, and what depends on it is taken to be right.
    """
    return problems_of(gather(topology, folder, import_code=import_code))


def problems_of(facts: Facts) -> list[Problem]:
    """Every problem that the facts show, up to ``MOST_PROBLEMS``."""
    problems = (problem for rule in RULES for problem in rule(facts))
    return list(islice(chain(problems, facts.code_problems), MOST_PROBLEMS))
