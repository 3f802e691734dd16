"""The columns that each component puts out, as far as they are known before anything runs."""

from __future__ import annotations

import re
from collections.abc import Mapping

from millrace.ddl import parse_schema
from millrace.errors import TopologyError
from millrace.functions import FunctionKind, FunctionSpec
from millrace.topology.graph import Edge, Graph, Role
from millrace.topology.model import (
    Aggregate,
    AggregateFunction,
    FilesSource,
    Processor,
    Source,
    SourceFormat,
    Sql,
    StreamTopology,
)

Columns = tuple[tuple[str, str | None], ...]
"""Names and types of ``millrace.ddl``; a type that only Spark can tell is ``None``."""

TEXT_COLUMNS: Columns = (("value", "string"),)
GENERATOR_COLUMNS: Columns = (("id", "long"), ("key", "string"), ("value", "double"))
NUMERIC_TYPES = ("long", "int", "double", "float")
ORDERED_TYPES = (*NUMERIC_TYPES, "string", "date", "timestamp", "boolean")

_PLAIN = re.compile(r"^`?([A-Za-z_]\w*)`?$")
_RENAMED = re.compile(r"^.+\sas\s+`?([A-Za-z_]\w*)`?$", re.IGNORECASE | re.DOTALL)


def columns_of(
    topology: StreamTopology,
    graph: Graph,
    functions: Mapping[str, FunctionSpec],
    found: Mapping[str, Columns],
) -> dict[str, Columns | None]:
    """Output columns of every source and processor; ``None`` where they cannot be known.

    ``functions`` holds the user code of processors, by processor name, as far as it could be
    imported; ``found`` holds what Spark and the sources say. The graph must be
    acyclic. Wrong declarations count as unknown; they are reported elsewhere.
    """
    known: dict[str, Columns | None] = {}
    for component in graph.order():
        name = component.name
        if name in found:
            known[name] = found[name]
        elif component.role is Role.SOURCE:
            known[name] = source_columns(topology.spec.sources[component.index])
        elif component.role is Role.PROCESSOR:
            edges = graph.inputs(name)
            incoming = columns_on(edges[0], known.get(edges[0].producer)) if edges else None
            processor = topology.spec.processors[component.index]
            known[name] = _processor_columns(processor, incoming, functions.get(name))
    return known


def columns_on(edge: Edge, columns: Columns | None) -> Columns | None:
    """What a consumer sees of its producer's columns."""
    if not edge.columns:
        return columns
    types = dict(columns or ())
    return tuple((name, types.get(of)) for name, of in edge.columns)


def source_columns(source: Source) -> Columns | None:
    """Columns of a source; ``None`` for Parquet and custom sources, which tell when opened."""
    if source.generator is not None:
        return GENERATOR_COLUMNS
    if source.files is not None:
        return _files_columns(source.files)
    return None


def _files_columns(files: FilesSource) -> Columns | None:
    if files.format is SourceFormat.TEXT:
        return TEXT_COLUMNS
    if files.columns is None or files.format is SourceFormat.PARQUET:
        return None
    try:
        return tuple(parse_schema(files.columns))
    except TopologyError:
        return None


def _processor_columns(
    processor: Processor, incoming: Columns | None, function: FunctionSpec | None
) -> Columns | None:
    if processor.function is not None:
        if function is None:
            return None
        return incoming if function.kind is FunctionKind.WHERE else function.output
    if processor.sql is not None:
        return _sql_columns(processor.sql, incoming)
    if processor.aggregate is not None and processor.inputs:
        return _aggregate_columns(processor.aggregate, processor.inputs[0].key, incoming)
    return None


def _sql_columns(sql: Sql, incoming: Columns | None) -> Columns | None:
    """Names where every expression shows its own; types only of columns taken over."""
    types = dict(incoming or ())
    columns: list[tuple[str, str | None]] = []
    for expression in sql.select:
        text = expression.strip()
        if text == "*":
            if incoming is None:
                return None
            columns += incoming
        elif plain := _PLAIN.match(text):
            columns.append((plain[1], types.get(plain[1])))
        elif renamed := _RENAMED.match(text):
            columns.append((renamed[1], None))
        else:
            return None
    return tuple(columns)


def _aggregate_columns(
    aggregate: Aggregate, key: tuple[str, ...], incoming: Columns | None
) -> Columns:
    types = dict(incoming or ())
    return (
        *((name, types.get(name)) for name in key),
        *(
            (column.name, result_type(column.function, types.get(column.of or "")))
            for column in aggregate.columns
        ),
    )


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
