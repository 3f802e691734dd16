"""docs/conditions.md against the code: every reason and event that there is, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import millrace_operator
from millrace.errors import ExitCode
from millrace.homes.documents import SERVER_TROUBLES
from millrace.homes.restarts import FINAL_CODES
from millrace_operator.api.resources import ConditionType, Phase
from millrace_operator.reconcile import conditions
from millrace_operator.reconcile.observe import Resource
from millrace_operator.reconcile.troubles import REASONS

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "conditions.md").read_text()
REASON_OF = {"Announce": 0, "Trouble": 0, "Fact": 2, "_failed": 2}
"""Which argument is the reason."""

EVENTS = {"Announce", "_failed"}
SPELT_OUT = (ast.Constant, ast.Name, ast.IfExp)


def rows(heading: str) -> set[str]:
    section = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `(\w+)` \|", section, re.M))


def texts(tree: ast.Module, value: ast.expr, known: frozenset[str] = frozenset()) -> Iterator[str]:
    """All texts that an expression may come to, through names that are given one in this module."""
    for part in ast.walk(value):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value
        elif isinstance(part, ast.Name) and part.id not in known:
            for node in ast.walk(tree):
                plain = isinstance(node, ast.Assign) and isinstance(node.value, SPELT_OUT)
                if plain and ast.unparse(node.targets[0]) == part.id:
                    yield from texts(tree, node.value, known | {part.id})


def reasons() -> Iterator[tuple[str, str]]:
    """What is made, and with which reason, as far as the code spells it out."""
    for path in Path(millrace_operator.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            place = REASON_OF.get(node.func.id)
            if place is not None and len(node.args) > place:
                for text in texts(tree, node.args[place]):
                    yield node.func.id, text


def test_all_that_a_topology_can_tell_is_explained_and_nothing_else():
    found = list(reasons())
    events = {reason for made, reason in found if made in EVENTS}
    told = {reason for made, reason in found if made not in EVENTS} | set(REASONS.values())
    told |= SERVER_TROUBLES
    calm = conditions._ORDINARY | {"Paused"}
    assert rows("Nothing is wrong") == calm
    assert rows("Something is wrong") == told - calm
    assert rows("Events of the operator") == events - told
    assert len(events) > 5
    assert len(told - calm) > 10


def test_every_condition_is_explained():
    assert rows("Conditions") == {str(kind) for kind in ConditionType}


def test_every_phase_is_explained():
    assert rows("Phases") == {str(phase) for phase in Phase}
    assert "[Phases](conditions.md#phases)" in (DOCS / "metrics.md").read_text()


def test_the_annotation_that_pauses_is_the_one_that_is_told():
    (name, value) = re.findall(r"`kubectl annotate topo NAME (\S+?)=(\w+)`", TEXT)[0]
    assert f"`kubectl annotate topo NAME {name}-`" in TEXT
    for given, pauses in ((value, True), ("yes", False), ("", False)):
        document = {"metadata": {"annotations": {name: given}}}
        assert Resource("t", "n", "u", 1, document).paused is pauses


def test_state_servers_are_not_said_to_be_deleted_where_that_loses_state():
    (row,) = re.findall(r"^\| `StateServersKeepMemory` .*$", TEXT, re.M)
    assert "only with `spec.stateServers.copies` above 1" in row
    assert "raise `spec.stateServers.replicas` instead" in row
    (row,) = re.findall(r"^\| `PodsKeepSettings` .*$", TEXT, re.M)
    assert "state servers: as in the next row" in row
    assert re.search(r"^\| `PodsKeepSettings` .*\n\| `StateServersKeepMemory` ", TEXT, re.M)


def test_exit_codes_are_those_of_drivers_and_given_up_as_told():
    told = re.findall(r"^\| (\d+) \| ([a-z ]*?) ?\| ", TEXT, re.M)
    times = {1: "the first time", 2: "the second time", 5: "the fifth time"}
    given_up = {
        str(code.value): times[FINAL_CODES[code]] if code in FINAL_CODES else "never"
        for code in ExitCode
        # A driver tells of dead letters alone by their number.
        if code is not ExitCode.DEAD_LETTERS
    }
    assert dict(told) == {**given_up, "0": ""}
