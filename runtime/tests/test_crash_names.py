"""Every crash point that the code reaches is in a table, and every point of a table is reached.

Tests take the points that they kill at from these tables.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from millrace import crash

SOURCES = Path(crash.__file__).parent

TABLES = [table for name, table in vars(crash).items() if name.endswith("POINTS")]
NAMED = [point for table in TABLES for point in table]

PASSED_ON = {"engine/driver/process.py", "sinks/base.py"}
"""Where a point is reached whose name somebody else gives."""

NAME = re.compile(r"driver\.[a-z-]+")


def calls() -> Iterator[tuple[str, str, ast.Call]]:
    """(file, what is called, call), of all calls of the sources."""
    for path in sorted(SOURCES.rglob("*.py")):
        name = str(path.relative_to(SOURCES))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                yield name, ast.unparse(node.func), node


def texts(node: ast.expr) -> Iterator[str | None]:
    """The texts that an argument may be, of one that is put together its beginning; None for
    what is not written there."""
    if isinstance(node, ast.IfExp):
        yield from texts(node.body)
        yield from texts(node.orelse)
    elif isinstance(node, ast.JoinedStr):
        yield from texts(node.values[0])
    elif isinstance(node, ast.Constant):
        yield str(node.value)
    else:
        yield None


def reached() -> Iterator[tuple[str, str | None]]:
    """(file, point), None for a point that somebody else names."""
    for name, called, call in calls():
        if called == "crash.reached":
            found = list(texts(call.args[0]))
            # One that is put together is none of those that are written there.
            of_others = isinstance(call.args[0], ast.JoinedStr)
            yield from ((name, None if of_others else point) for point in found)
        elif called == "passed":
            for step in texts(call.args[1]):
                yield name, None if step is None else f"publish.{step.partition(':')[0]}"


def of_commits() -> set[str]:
    """Those that a committed record is, which the statistics tell from what it has changed."""
    tree = ast.parse((SOURCES / "engine/driver/statistics.py").read_text())
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {text for text in constants if isinstance(text, str) and NAME.fullmatch(text)}


def test_no_point_is_in_two_tables() -> None:
    assert len(TABLES) > 1
    assert len(set(NAMED)) == len(NAMED)


def test_every_point_that_is_reached_is_in_a_table_and_the_other_way_round() -> None:
    found = list(reached())
    assert {name for name, point in found if point is None} == PASSED_ON
    assert {point for _, point in found if point is not None} | of_commits() == set(NAMED)
