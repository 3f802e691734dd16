"""From the declared topology to passes.

The pass of a component is the longest way to it, counted in exchanges: an edge with a key or a
broadcast goes through an exchange, any other stays in its pass. An edge that skips passes is
relayed through those between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.ddl import RESERVED_PREFIX
from millrace.engine.program.aggregates import state_of
from millrace.engine.program.program import (
    Accumulation,
    Channel,
    Component,
    Kind,
    Pass,
    Program,
    Route,
    SqlExpressions,
)
from millrace.engine.program.schema import is_carried, normal_schema
from millrace.engine.program.usercode import load_function, use_path
from millrace.errors import TopologyError
from millrace.protocol.types import Guarantee
from millrace.sinks import SinkSpec
from millrace.sources import SourceSpec, open_source
from millrace.sources.arrow_types import arrow_schema, type_name
from millrace.state.errors import KeyTypeError
from millrace.state.keybytes import check_key_type
from millrace.topology.graph import graph_of
from millrace.topology.model import (
    Processor,
    Sink,
    Source,
    StreamTopology,
)
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
class _Graph:
    topology: StreamTopology
    options: CompileOptions
    parts: dict[str, Source | Processor | Sink]
    passes: dict[str, int]
    outputs: dict[str, pa.Schema | None] = field(default_factory=dict)
    components: dict[str, Component] = field(default_factory=dict)


def compile_topology(topology: StreamTopology, options: CompileOptions) -> Program:
    """Compile a topology that passed its own checks.

    Raises ``TopologyError`` for what only shows here: columns that do not exist or do not agree,
    SQL that Spark refuses or that stands where it cannot run.
    """
    spec = topology.spec
    parts: dict[str, Source | Processor | Sink] = {
        **{source.name: source for source in spec.sources},
        **{processor.name: processor for processor in spec.processors},
        **{sink.name: sink for sink in spec.sinks},
    }
    declared = graph_of(topology)
    graph = _Graph(topology, options, parts, declared.depths())
    for number, name in enumerate(c.name for c in declared.order()):
        component = _component(graph, parts[name], number)
        graph.components[name] = component
        graph.outputs[name] = component.output
    components = _with_outputs(_mark_order(graph.components))
    return Program(
        name=topology.metadata.name,
        uid=options.uid,
        guarantee=Guarantee(spec.guarantee.value),
        tracking=spec.tracked,
        parallelism=spec.parallelism,
        tuple_timeout_s=spec.tuple_timeout.seconds,
        code_path=str(options.code_path),
        base_path=str(options.base_path),
        components=components,
        passes=_passes(components),
        key_groups=spec.key_groups,
    )


def _source_schema(part: Source, options: CompileOptions) -> pa.Schema:
    use_path(str(options.code_path))
    return open_source(SourceSpec.of(part, options.base_path)).schema()


def inputs_of(part: Source | Processor | Sink) -> tuple[Input, ...]:
    """Declared inputs; none for a source."""
    return () if isinstance(part, Source) else part.inputs


def _component(graph: _Graph, part: Source | Processor | Sink, number: int) -> Component:
    base = Component(
        name=part.name,
        kind=Kind.SINK,
        pass_no=graph.passes[part.name],
        inputs=tuple(_edge(graph, part, i) for i in inputs_of(part)),
        number=number,
    )
    if isinstance(part, Source):
        output = normal_schema(_source_schema(part, graph.options))
        _check_reserved(part.name, output)
        remedy = "write it as a number or a text"
        _check_carried(f"spec.sources[{part.name}]", output, remedy)
        spec = SourceSpec.of(part, graph.options.base_path)
        return replace(base, kind=Kind.SOURCE, output=output, connector=spec)
    incoming = _input_schema(graph, part)
    if isinstance(part, Sink):
        return replace(base, connector=SinkSpec.of(part, graph.options.base_path), output=incoming)
    if part.kind.in_jvm:
        return _sql(graph, part, base, incoming)
    if part.kind.combines:
        return _aggregate(graph, part, base, incoming)
    return _function(graph, part, base, incoming)


def _edge(graph: _Graph, part: Source | Processor | Sink, declared: Input) -> Channel:
    local = graph.passes[declared.producer] == graph.passes[part.name]
    if declared.broadcast:
        route = Route.BROADCAST
    elif declared.key:
        aggregate = isinstance(part, Processor) and part.kind.combines
        route = Route.COMBINED if aggregate else Route.KEYED
    else:
        route = Route.LOCAL if local else Route.FORWARD
    columns = tuple(declared.columns.items())
    return Channel(declared.producer, part.name, route, tuple(declared.key), columns=columns)


def _arriving(graph: _Graph, part: Source | Processor | Sink, declared: Input) -> pa.Schema | None:
    """The columns that an input brings, as its consumer sees them."""
    schema = graph.outputs[declared.producer]
    if schema is None:
        return None
    for of in declared.columns.values():
        if schema.get_field_index(of) < 0:
            raise TopologyError(
                f"{part.name!r}: input from {declared.producer!r} takes the column {of!r}, which "
                f"it does not have; there are {', '.join(schema.names)}"
            )
    return _edge(graph, part, declared).seen(schema)


def _input_schema(graph: _Graph, part: Processor | Sink) -> pa.Schema | None:
    """The one schema of all inputs, or ``None`` where an SQL step hides it."""
    known: list[tuple[str, pa.Schema]] = []
    for declared in part.inputs:
        schema = _arriving(graph, part, declared)
        if schema is None:
            continue
        known.append((declared.producer, schema))
        for column in declared.key:
            if schema.get_field_index(column) < 0:
                raise TopologyError(
                    f"{part.name!r}: input from {declared.producer!r} is keyed by {column!r}, "
                    f"which is no column of it; there are {', '.join(schema.names)}"
                )
            _check_key_type(part, declared, schema.field(column))
    if len(known) < len(part.inputs):
        return None
    if isinstance(part, Processor) and part.kind.combines:
        return known[0][1]
    first_name, first = known[0]
    for name, schema in known[1:]:
        if dict(_typed(schema)) != dict(_typed(first)):
            raise TopologyError(
                f"{part.name!r} merges inputs of different columns: {first_name!r} has "
                f"{_describe(first)}, {name!r} has {_describe(schema)}; make them equal"
            )
    return first


def _check_key_type(part: Processor | Sink, declared: Input, column: pa.Field) -> None:
    try:
        check_key_type(column.name, column.type)
    except KeyTypeError as error:
        raise TopologyError(
            f"{part.name!r}: input from {declared.producer!r} is keyed by {column.name!r}: "
            f"{error}; put what tells the keys apart into a column of such a type and key by that"
        ) from None


def _check_carried(path: str, schema: pa.Schema, remedy: str) -> None:
    for column in schema:
        if not is_carried(column.type):
            raise TopologyError(
                f"{path}: column {column.name!r} has the type {type_name(column.type)}, which no "
                f"file holds; {remedy}"
            )


def _function(
    graph: _Graph, part: Processor, base: Component, incoming: pa.Schema | None
) -> Component:
    target: str = part.settings
    if len({i.key for i in part.inputs if i.key}) > 1:
        raise TopologyError(
            f"{part.name!r} merges inputs that are keyed by different columns; key all of them by "
            "the same ones"
        )
    spec = load_function(target, str(graph.options.code_path))
    output = arrow_schema(spec.output) if spec.output is not None else incoming
    _check_keys(graph, part)
    if spec.keyed and not all(i.key for i in part.inputs):
        raise TopologyError(f"{part.name!r} keeps state and needs a key on each of its inputs")
    return replace(
        base,
        kind=Kind.of(spec.kind),
        output=output,
        state=spec.state,
        function=target,
        key=part.inputs[0].key,
    )


def _check_keys(graph: _Graph, part: Processor) -> None:
    """Keys of all inputs must have the same types, in this order."""
    found: list[pa.DataType] = []
    for declared in part.inputs:
        schema = _arriving(graph, part, declared)
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


def _sql(graph: _Graph, part: Processor, base: Component, incoming: pa.Schema | None) -> Component:
    declared = part.inputs[0]
    producer = graph.components[declared.producer]
    if len(part.inputs) > 1 or declared.key or declared.broadcast or declared.columns:
        raise TopologyError(
            f"SQL step {part.name!r} must have exactly one input, without key, broadcast or "
            "columns: it runs in the JVM while the source is read"
        )
    if producer.kind not in (Kind.SOURCE, Kind.SQL):
        raise TopologyError(
            f"SQL step {part.name!r} stands behind {producer.name!r} ({producer.kind.value}); it "
            "runs in the JVM and must be directly behind a source or another SQL step. Move it "
            "there, or write it as a @row or @vectorized function"
        )
    step = SqlExpressions(tuple(part.settings.select), part.settings.where)
    output = None
    if graph.options.sql_schema is not None and incoming is not None:
        output = normal_schema(graph.options.sql_schema(part.name, step, incoming))
        _check_reserved(part.name, output)
        path = f"spec.processors[{part.name}].sql.select"
        _check_carried(path, output, "CAST it to string or to a number")
    return replace(base, kind=Kind.SQL, sql=step, output=output, in_jvm=True)


def _aggregate(
    graph: _Graph, part: Processor, base: Component, incoming: pa.Schema | None
) -> Component:
    key = part.inputs[0].key
    if not key:
        raise TopologyError(f"aggregate {part.name!r} needs a key on each of its inputs")
    columns = tuple(Accumulation(c.name, c.function.value, c.of) for c in part.settings.columns)
    component = replace(
        base,
        kind=Kind.AGGREGATE,
        columns=columns,
        key=key,
        emit_final=bool(part.kind.at_end(part.settings)),
    )
    if incoming is None:
        return component
    _check_keys(graph, part)
    names = [*key, *dict.fromkeys(c.of for c in columns if c.of is not None and c.of not in key)]
    for declared in part.inputs:
        schema = _arriving(graph, part, declared)
        assert schema is not None
        for name in names[len(key) :]:
            if schema.get_field_index(name) < 0 or schema.field(name) != incoming.field(name):
                raise TopologyError(
                    f"aggregate {part.name!r} computes over {name!r}, which is no column of "
                    f"{declared.producer!r}, or of another type; it has {_describe(schema)}"
                )
    component = replace(component, rows=pa.schema([incoming.field(name) for name in names]))
    # The state itself knows what its functions take and give.
    output = state_of(component, graph.topology.spec.key_groups).output_schema
    if len(set(output.names)) < len(output.names):
        listed = ", ".join(output.names)
        raise TopologyError(f"aggregate {part.name!r} puts out a column twice: {listed}")
    return replace(component, output=output)


def _mark_order(components: Mapping[str, Component]) -> dict[str, Component]:
    """Mark the edges from which a tuple can get to something that depends on order."""
    ordered: dict[str, bool] = {}
    marked: dict[str, Component] = {}
    consumers: dict[str, list[str]] = {}
    for component in components.values():
        for edge in component.inputs:
            consumers.setdefault(edge.producer, []).append(component.name)
    for name in reversed(list(components)):
        component = components[name]
        needs = component.order_sensitive
        if component.kind is not Kind.AGGREGATE:  # order ends where tuples are combined
            needs = needs or any(ordered[c] for c in consumers.get(name, ()))
        ordered[name] = needs
    for name, component in components.items():
        inputs = tuple(replace(e, ordered=ordered[name]) for e in component.inputs)
        marked[name] = replace(component, inputs=inputs)
    return marked


def _with_outputs(components: Mapping[str, Component]) -> dict[str, Component]:
    outputs: dict[str, list[Channel]] = {name: [] for name in components}
    for component in components.values():
        for edge in component.inputs:
            outputs[edge.producer].append(edge)
    return {n: replace(c, outputs=tuple(outputs[n])) for n, c in components.items()}


def _passes(components: Mapping[str, Component]) -> tuple[Pass, ...]:
    count = 1 + max(c.pass_no for c in components.values())
    passes = []
    for number in range(count):
        mine = tuple(c.name for c in components.values() if c.pass_no == number)
        relays = tuple(
            e.name
            for c in components.values()
            if c.pass_no > number
            for e in c.inputs
            if components[e.producer].pass_no < number
        )
        passes.append(Pass(number, mine, relays))
    return tuple(passes)


def _check_reserved(name: str, schema: pa.Schema) -> None:
    for column in schema.names:
        if column.startswith(RESERVED_PREFIX):
            raise TopologyError(
                f"{name!r} has the column {column!r}; names that begin with {RESERVED_PREFIX!r} "
                "are reserved, rename it"
            )


def _typed(schema: pa.Schema) -> Iterable[tuple[str, Any]]:
    return ((f.name, f.type) for f in schema)


def _describe(schema: pa.Schema) -> str:
    return ", ".join(f"{f.name} {type_name(f.type)}" for f in schema)
