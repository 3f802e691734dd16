"""Where an edge's fields stand, and what is said of columns that it lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from millrace.topology.problems import Problem, did_you_mean, format_path

if TYPE_CHECKING:
    from millrace.topology.checks.facts import Facts
    from millrace.topology.graph import Component, Edge
    from millrace.topology.kinds.base import Columns


def input_path(component: Component, edge: Edge, field: str) -> str:
    """Path of a field of an edge: ``from``, ``key``, ``broadcast``."""
    return format_path((*component.path, "inputs", edge.index, field))


def no_column(path: str, column: str, producer: str, columns: Columns) -> Problem:
    """A column that the producer does not have."""
    names = [name for name, _ in columns]
    return Problem(path, column, f"is no column of {producer!r}", did_you_mean(column, names))


def missing_columns(
    facts: Facts, edge: Edge, path: str, column: str, keep: Sequence[str]
) -> Iterator[Problem]:
    """What a processor names and does not get over an edge: the column that it reads, in the field
    ``column``, and those that it passes on, in ``keep``."""
    columns = facts.columns_on(edge)
    if columns is None:
        return
    known = {name for name, _ in columns}
    named = [("column", column), *((f"keep[{i}]", name) for i, name in enumerate(keep))]
    for field, name in named:
        if name not in known:
            yield no_column(f"{path}.{field}", name, edge.producer, columns)
