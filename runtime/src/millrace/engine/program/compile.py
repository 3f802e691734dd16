"""From the declared topology to passes.

The pass of a component is the longest way to it, counted in exchanges: an edge with a key or a
broadcast goes through an exchange, any other stays in its pass. An edge that skips passes is
relayed through those between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from millrace.engine.program.draft import (
    CompileOptions,
    Draft,
    arriving,
    channel_of,
    check_carried,
    check_reserved,
    described,
)
from millrace.engine.program.program import (
    Channel,
    Component,
    Pass,
    Program,
)
from millrace.engine.program.schema import normal_schema
from millrace.engine.program.usercode import load_object, use_path
from millrace.errors import MillraceError, TopologyError, error_text
from millrace.loading import LoadError, load_named
from millrace.protocol.types import Guarantee
from millrace.sinks import SinkSpec
from millrace.sources import SourceSpec, open_source
from millrace.state.errors import KeyTypeError
from millrace.state.keyed.keybytes import check_key_type
from millrace.topology.graph import graph_of
from millrace.topology.kinds.registry import PROCESSORS
from millrace.topology.model import (
    Processor,
    Sink,
    Source,
    StreamTopology,
)
from millrace.topology.parts import Input, Role

Compiler = Callable[[Draft, Processor, Component, pa.Schema | None], Component]
"""What a kind of processor names as its ``compiler``: see ``program.kinds``."""


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
    draft = Draft(topology, options, parts, declared.depths())
    for number, name in enumerate(c.name for c in declared.order()):
        component = _component(draft, parts[name], number)
        draft.components[name] = component
        draft.outputs[name] = component.output
    components = _with_outputs(_mark_order(draft.components))
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
        tables=draft.tables,
    )


def _source_schema(part: Source, options: CompileOptions) -> pa.Schema:
    use_path(str(options.code_path))
    return open_source(SourceSpec.of(part, options.base_path)).schema()


def inputs_of(part: Source | Processor | Sink) -> tuple[Input, ...]:
    """Declared inputs; none for a source."""
    return () if isinstance(part, Source) else part.inputs


def _component(draft: Draft, part: Source | Processor | Sink, number: int) -> Component:
    base = Component(
        name=part.name,
        role=Role.PROCESSOR,
        pass_no=draft.passes[part.name],
        inputs=tuple(channel_of(draft, part, i) for i in inputs_of(part)),
        number=number,
    )
    if isinstance(part, Source):
        output = normal_schema(_source_schema(part, draft.options))
        check_reserved(part.name, output)
        remedy = "write it as a number or a text"
        check_carried(f"spec.sources[{part.name}]", output, remedy)
        spec = SourceSpec.of(part, draft.options.base_path)
        ours = spec.target.startswith("millrace.")
        return replace(base, role=Role.SOURCE, output=output, connector=spec, beside=ours)
    incoming = _input_schema(draft, part)
    if isinstance(part, Sink):
        spec_of_sink = SinkSpec.of(part, draft.options.base_path)
        return replace(base, role=Role.SINK, connector=spec_of_sink, output=incoming)
    ttl_ms = part.ttl.milliseconds if part.ttl is not None else 0
    base = replace(
        base,
        step=part.kind.step,
        combines=part.kind.combines,
        beside=part.kind.beside and part.kind.name not in PROCESSORS.packages,
        ttl_ms=ttl_ms,
    )
    return _processor(draft, part, base, incoming)


def _processor(
    draft: Draft, part: Processor, base: Component, incoming: pa.Schema | None
) -> Component:
    """What the kind's own compiler makes of it; a package's fault names the package."""
    kind, package = part.kind, PROCESSORS.packages.get(part.kind.name)
    if package is None:
        compiler: Compiler = load_object(kind.compiler, "")
        return compiler(draft, part, base, incoming)
    what = f"processor {part.name!r}: {kind.name} of package {package}"
    remedy = f"mend, install or uninstall the package {package}"
    try:
        compiler, _ = load_named(kind.compiler), load_named(kind.step)
    except LoadError as error:
        raise TopologyError(f"{what} cannot be loaded: {error}; {remedy}") from error
    try:
        made = compiler(draft, part, base, incoming)
    except MillraceError:
        raise
    except Exception as error:
        # The boundary to another package, which may raise anything.
        raise TopologyError(f"{what} cannot be compiled: {error_text(error)}; {remedy}") from error
    if not isinstance(made, Component) or (made.output is None and incoming is not None):
        raise TopologyError(
            f"{what} is compiled by {kind.compiler!r} to {type(made).__name__}, which is no "
            f"component with columns to put out; {remedy}"
        )
    if made.output is not None:
        check_reserved(part.name, made.output)
        check_carried(f"spec.processors[{part.name}]", made.output, "give it another type")
    return made


def _input_schema(draft: Draft, part: Processor | Sink) -> pa.Schema | None:
    """The one schema of all inputs, or ``None`` where an SQL step hides it."""
    known: list[tuple[str, pa.Schema]] = []
    for declared in part.inputs:
        schema = arriving(draft, part, declared)
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
                f"{described(first)}, {name!r} has {described(schema)}; make them equal"
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
        if not component.combines:  # order ends where tuples are combined
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


def _typed(schema: pa.Schema) -> Iterable[tuple[str, Any]]:
    return ((f.name, f.type) for f in schema)
