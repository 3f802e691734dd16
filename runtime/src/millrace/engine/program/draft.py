"""A topology on its way to a program: what is known so far, and what its kinds ask of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from millrace.ddl import RESERVED_PREFIX
from millrace.engine.program.program import Channel, Component, Route, SqlExpressions
from millrace.engine.program.schema import is_carried
from millrace.errors import TopologyError
from millrace.sources.arrow_types import type_name
from millrace.topology.model import Processor, Sink, Source, StreamTopology
from millrace.topology.parts import Input

SqlSchema = Callable[[str, SqlExpressions, pa.Schema], pa.Schema]
"""Output schema of an SQL step (name, step, input schema); raises ``TopologyError``."""


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """What the topology does not say itself.

    ``base_path`` is where the topology file lies. Without ``sql_schema`` (no Spark at hand) what
    SQL steps put out stays unknown, and so does whatever follows from it.
    """

    uid: str
    base_path: Path
    code_path: Path
    sql_schema: SqlSchema | None = None


@dataclass
class Draft:
    """``outputs`` and ``components`` hold those that come before the one that is compiled;
    ``tables`` what these leave for ``Program.tables``."""

    topology: StreamTopology
    options: CompileOptions
    parts: dict[str, Source | Processor | Sink]
    passes: dict[str, int]
    outputs: dict[str, pa.Schema | None] = field(default_factory=dict)
    components: dict[str, Component] = field(default_factory=dict)
    tables: dict[str, bytes] = field(default_factory=dict)


def channel_of(draft: Draft, part: Source | Processor | Sink, declared: Input) -> Channel:
    """How an input reaches its consumer."""
    local = draft.passes[declared.producer] == draft.passes[part.name]
    if declared.broadcast:
        route = Route.BROADCAST
    elif declared.key:
        aggregate = isinstance(part, Processor) and part.kind.combines
        route = Route.COMBINED if aggregate else Route.KEYED
    else:
        route = Route.LOCAL if local else Route.FORWARD
    columns = tuple(declared.columns.items())
    return Channel(declared.producer, part.name, route, tuple(declared.key), columns=columns)


def arriving(draft: Draft, part: Source | Processor | Sink, declared: Input) -> pa.Schema | None:
    """The columns that an input brings, as its consumer sees them."""
    schema = draft.outputs[declared.producer]
    if schema is None:
        return None
    for of in declared.columns.values():
        if schema.get_field_index(of) < 0:
            raise TopologyError(
                f"{part.name!r}: input from {declared.producer!r} takes the column {of!r}, which "
                f"it does not have; there are {', '.join(schema.names)}"
            )
    return channel_of(draft, part, declared).seen(schema)


def check_keys(draft: Draft, part: Processor) -> None:
    """Keys of all inputs must have the same types, in this order."""
    found: list[pa.DataType] = []
    for declared in part.inputs:
        schema = arriving(draft, part, declared)
        if schema is None or not declared.key:
            continue
        types = [schema.field(c).type for c in declared.key]
        if found and types != found:
            raise TopologyError(
                f"{part.name!r}: the key of the input from {declared.producer!r} has the types "
                f"{', '.join(map(type_name, types))}, that of another input "
                f"{', '.join(map(type_name, found))}; make them equal"
            )
        found = types


def check_carried(path: str, schema: pa.Schema, remedy: str) -> None:
    """Raises ``TopologyError`` for a column that no file holds."""
    for column in schema:
        if not is_carried(column.type):
            raise TopologyError(
                f"{path}: column {column.name!r} has the type {type_name(column.type)}, which no "
                f"file holds; {remedy}"
            )


def check_reserved(name: str, schema: pa.Schema) -> None:
    """Raises ``TopologyError`` for a column whose name is reserved."""
    for column in schema.names:
        if column.startswith(RESERVED_PREFIX):
            raise TopologyError(
                f"{name!r} has the column {column!r}; names that begin with {RESERVED_PREFIX!r} "
                "are reserved, rename it"
            )


def described(schema: pa.Schema) -> str:
    """Columns and types for people."""
    return ", ".join(f"{f.name} {type_name(f.type)}" for f in schema)
