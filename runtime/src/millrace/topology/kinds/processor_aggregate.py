"""The kind ``aggregate`` of processors: totals of each key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING

from pydantic import Field

from millrace.functions import FunctionSpec
from millrace.topology.edges import no_column
from millrace.topology.kinds.base import (
    OTHER_PROCESSOR,
    Columns,
    Effect,
    FieldEdit,
    Incoming,
    ProcessorKind,
)
from millrace.topology.parts import Part, Role
from millrace.topology.problems import NOTHING, Problem, format_path
from millrace.topology.scalars import Text

if TYPE_CHECKING:
    from millrace.topology.checks.facts import Facts
    from millrace.topology.graph import Component, Edge

NUMERIC_TYPES = ("long", "int", "double", "float")
ORDERED_TYPES = (*NUMERIC_TYPES, "string", "date", "timestamp", "boolean")


class Emit(str, Enum):
    """When an aggregation emits."""

    CHANGES = "changes"
    FINAL = "final"


class AggregateFunction(str, Enum):
    """What an aggregation computes over the tuples of a key."""

    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    AVG = "avg"


ADDING = (AggregateFunction.COUNT, AggregateFunction.SUM, AggregateFunction.AVG)
"""Those for which it matters how often a row comes."""


class AggregateColumn(Part):
    """One computed column of an aggregation."""

    name: Text = Field(description="Name of the computed column.")
    function: AggregateFunction = Field(description="count, sum, min, max or avg.")
    of: Text | None = Field(
        None,
        description="Column that it is computed over: numbers; for min and max also strings, "
        "dates, timestamps and booleans; not for count.",
    )


class AggregateSettings(Part):
    """A keyed aggregation, combined before the exchange."""

    emit: Emit = Field(
        Emit.CHANGES,
        description="changes: totals of the keys that a window touched. final: every total each "
        "time that bounded sources are drained; the last window has the newest.",
    )
    columns: tuple[AggregateColumn, ...] = Field(
        min_length=1, description="What to compute. The key columns come out in front of them."
    )


class AggregateProcessorKind(ProcessorKind[AggregateSettings]):
    """Totals that are merged before tuples travel."""

    name = "aggregate"
    meaning = "A keyed aggregation."
    settings = AggregateSettings
    fillers = {"columns": [{"name": "unnamed", "function": "count"}], "function": "count"}
    compiler = "millrace.engine.program.kinds:aggregate"
    step = "millrace.engine.task.steps.making:aggregate"
    beside = True
    combines = True
    shows = "millrace.state.keyed.query:declared_results"
    totals = (
        FieldEdit(
            "columns",
            Effect.REFUSED,
            f"totals so far are not those of the new columns; {OTHER_PROCESSOR}",
        ),
    )

    def summary(self, settings: AggregateSettings) -> str:
        computed = ", ".join(
            f"{c.name} = {c.function.value}({c.of or '*'})" for c in settings.columns
        )
        return f"aggregate {computed}, {settings.emit.value}"

    def columns(self, settings: AggregateSettings, incoming: Incoming) -> Columns | None:
        if not incoming.inputs:
            return None
        types = dict(incoming.columns or ())
        return (
            *((name, types.get(name)) for name in incoming.inputs[0].key),
            *(
                (column.name, result_type(column.function, types.get(column.of or "")))
                for column in settings.columns
            ),
        )

    def keeps_state(self, settings: AggregateSettings, function: FunctionSpec | None) -> str:
        return "an aggregate"

    def at_end(self, settings: AggregateSettings) -> str:
        return "emit" if settings.emit is Emit.FINAL else ""

    def check(
        self, settings: AggregateSettings, component: Component, facts: Facts
    ) -> Iterator[Problem]:
        """Computed columns: distinct names, ``of`` where needed, of columns that fit."""
        edges = facts.edges_of(component)
        taken = set(edges[0].key) if edges else set()
        running = _running_totals(edges, facts)
        for i, column in enumerate(settings.columns):
            path = format_path((*component.path, "aggregate", "columns", i))
            if column.name in taken:
                yield Problem(
                    f"{path}.name", column.name, "is a column of the output already", "rename it"
                )
            taken.add(column.name)
            name = column.function.value
            if running and column.function in ADDING:
                yield Problem(
                    f"{path}.function",
                    name,
                    f"takes each total again whenever it changes: {running!r} in front of it emits "
                    "changes, so what comes out depends on how records fall into windows",
                    f"compute it from what {running!r} reads, or let that emit: final",
                )
            if column.function is AggregateFunction.COUNT:
                if column.of is not None:
                    message = "does not apply: count counts the tuples of a key"
                    yield Problem(f"{path}.of", column.of, message, "remove it")
            elif column.of is None:
                message = f"is missing; {name} is computed over a column"
                yield Problem(f"{path}.of", NOTHING, message, "add it, e.g. of: amount")
            else:
                yield from _fitting(facts, edges, f"{path}.of", column.of, column.function)


def _running_totals(edges: Iterable[Edge], facts: Facts) -> str:
    """The name of an aggregate in front that emits changes, with nothing but steps of single rows
    between; empty if there is none.

    Code with state of its own may well take differences, and code that is not at hand may have
    state.
    """
    ahead, seen = [edge.producer for edge in edges], set[str]()
    while ahead:
        name = ahead.pop(0)
        component = facts.graph.by_name.get(name)
        if name in seen or component is None or component.role is not Role.PROCESSOR:
            continue
        seen.add(name)
        function = facts.functions.get(name)
        for kind, settings in facts.topology.spec.processors[component.index].declared():
            if isinstance(settings, AggregateSettings):
                if settings.emit is Emit.CHANGES:
                    return name
            elif not kind.keeps_state(settings, function) and (
                function is not None or kind.user_code(settings) is None
            ):
                ahead += [edge.producer for edge in facts.edges_of(component)]
    return ""


def _fitting(
    facts: Facts, edges: tuple[Edge, ...], path: str, column: str, function: AggregateFunction
) -> Iterator[Problem]:
    fitting = computable_types(function)
    needed = "numbers" if fitting == NUMERIC_TYPES else "what has an order"
    for edge in edges:
        columns = facts.columns_on(edge)
        if columns is None:
            continue
        kind = dict(columns).get(column, NOTHING)
        if kind is NOTHING:
            yield no_column(path, column, edge.producer, columns)
        elif isinstance(kind, str) and kind not in fitting:
            yield Problem(
                path,
                column,
                f"is {kind} in what comes from {edge.producer!r}, and {function.value} needs "
                f"{needed}",
                f"use a column of type {', '.join(fitting)}{_in_front(column, kind)}",
            )


def _in_front(column: str, kind: str) -> str:
    """What makes a number of SQL's decimals, which a literal such as 1.2 brings in."""
    return f"; in SQL in front of it, CAST(... AS double) AS {column}" if "decimal" in kind else ""


def result_type(function: AggregateFunction, of: str | None) -> str | None:
    """Type of what a function computes over a column of a type; ``None`` is not known."""
    match function:
        case AggregateFunction.COUNT:
            return "long"
        case AggregateFunction.AVG:
            return "double"
        case AggregateFunction.MIN | AggregateFunction.MAX:
            return of
        case AggregateFunction.SUM:
            return {"double": "double", "float": "double", None: None}.get(of, "long")


def computable_types(function: AggregateFunction) -> tuple[str, ...]:
    """Types of the columns that a function other than count is computed over."""
    extremes = function in (AggregateFunction.MIN, AggregateFunction.MAX)
    return ORDERED_TYPES if extremes else NUMERIC_TYPES


AGGREGATE = AggregateProcessorKind()
