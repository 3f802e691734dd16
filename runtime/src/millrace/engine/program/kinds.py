"""What the kinds of processors become: one function a kind, named by its declaration.

Each gets the draft, the declared processor, the component that is common to all kinds and the
columns that come in (``None`` where Spark alone knows them), and answers the compiled component.
They raise ``TopologyError`` for what only shows here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from millrace.ddl import parse_type
from millrace.engine.program.aggregates import state_of
from millrace.engine.program.draft import (
    Draft,
    arriving,
    check_carried,
    check_keys,
    check_reserved,
    described,
)
from millrace.engine.program.program import Component, Cut, Decoding, Matching, SqlExpressions
from millrace.engine.program.schema import normal_schema
from millrace.engine.program.usercode import load_function
from millrace.errors import TopologyError
from millrace.functions import FunctionKind
from millrace.sources.arrow_types import arrow_schema, arrow_type, type_name
from millrace.state.keyed.aggregates import Aggregate
from millrace.topology.kinds.processor_lookup import LookupSettings, unfit
from millrace.topology.model import Processor
from millrace.topology.parts import Role

log = logging.getLogger("millrace.driver")


def function(
    draft: Draft, part: Processor, base: Component, incoming: pa.Schema | None
) -> Component:
    """User code; what it is its decorator says."""
    target: str = part.settings
    if len({i.key for i in part.inputs if i.key}) > 1:
        raise TopologyError(
            f"{part.name!r} merges inputs that are keyed by different columns; key all of them by "
            "the same ones"
        )
    spec = load_function(target, str(draft.options.code_path))
    output = arrow_schema(spec.output) if spec.output is not None else incoming
    check_keys(draft, part)
    if spec.keyed and not all(i.key for i in part.inputs):
        raise TopologyError(f"{part.name!r} keeps state and needs a key on each of its inputs")
    return replace(
        base,
        many=spec.kind is not FunctionKind.WHERE,
        order_sensitive=spec.kind in (FunctionKind.STATEFUL, FunctionKind.GROUPED)
        or (spec.kind is FunctionKind.CLASS and bool(base.keyed)),
        output=output,
        state=spec.state,
        function=target,
        key=part.inputs[0].key,
    )


def sql(draft: Draft, part: Processor, base: Component, incoming: pa.Schema | None) -> Component:
    """Expressions for the JVM, or for DuckDB."""
    evaluated = part.kind.evaluated(part.settings)
    step = SqlExpressions(evaluated.select, evaluated.where)
    if not part.kind.runs_in_jvm(part.settings):
        return _in_worker(draft, part, replace(base, settings=step), incoming)
    declared = part.inputs[0]
    producer = draft.components[declared.producer]
    if len(part.inputs) > 1 or declared.key or declared.broadcast or declared.columns:
        raise TopologyError(
            f"SQL step {part.name!r} must have exactly one input, without key, broadcast or "
            "columns: it runs in the JVM while the source is read; or set engine: duckdb"
        )
    if producer.role is not Role.SOURCE and not producer.in_jvm:
        raise TopologyError(
            f"SQL step {part.name!r} stands behind {producer.name!r}, which runs in Python; it "
            "runs in the JVM and must be directly behind a source or another step of Spark's "
            "SQL. Move it "
            "there, or set engine: duckdb"
        )
    output = None
    if draft.options.sql_schema is not None and incoming is not None:
        output = normal_schema(draft.options.sql_schema(part.name, step, incoming))
        check_reserved(part.name, output)
        path = f"spec.processors[{part.name}].{part.kind.name}.{part.kind.expressions}"
        check_carried(path, output, "CAST it to string or to a number")
    return replace(base, sql=step, output=output, in_jvm=True)


def _in_worker(
    draft: Draft, part: Processor, base: Component, incoming: pa.Schema | None
) -> Component:
    check_keys(draft, part)
    component = replace(base, key=part.inputs[0].key)
    if incoming is None:
        return component
    # Where there is no such step DuckDB is not needed, which takes memory.
    from millrace.engine.program.duck import DuckAnalyser

    assert isinstance(base.settings, SqlExpressions)
    output = normal_schema(DuckAnalyser()(part.name, base.settings, incoming))
    check_reserved(part.name, output)
    path = f"spec.processors[{part.name}].{part.kind.name}.{part.kind.expressions}"
    check_carried(path, output, "CAST it to varchar or to a number")
    return replace(component, output=output)


def split(draft: Draft, part: Processor, base: Component, incoming: pa.Schema | None) -> Component:
    """Pieces of a text column, and the columns that are kept beside them."""
    settings = part.settings
    cut = Cut(settings.column, settings.delimiter, settings.pattern, settings.drop_empty)
    check_keys(draft, part)
    component = replace(base, many=True, settings=cut, key=part.inputs[0].key)
    if cut.pattern is not None:
        _check_pattern(part.name, cut.pattern)
    if incoming is None:
        return component
    _check_named(part, (settings.column, *settings.keep), incoming)
    found = incoming.field(settings.column).type
    if found != pa.string():
        raise TopologyError(
            f"split {part.name!r}: column {settings.column!r} has the type {type_name(found)}; "
            "only text is cut"
        )
    kept = [incoming.field(name) for name in settings.keep]
    return replace(component, output=pa.schema([pa.field(settings.into, pa.string()), *kept]))


def json(draft: Draft, part: Processor, base: Component, incoming: pa.Schema | None) -> Component:
    """Columns read from objects of JSON, and those that are kept beside them."""
    settings = part.settings
    check_keys(draft, part)
    decoding = Decoding(
        settings.column,
        tuple((c.name, c.names) for c in settings.columns),
        frozenset(c.name for c in settings.columns if c.required),
    )
    component = replace(base, settings=decoding, key=part.inputs[0].key)
    if incoming is None:
        return component
    _check_named(part, (settings.column, *settings.keep), incoming)
    found = incoming.field(settings.column).type
    if found not in (pa.string(), pa.binary()):
        raise TopologyError(
            f"json {part.name!r}: column {settings.column!r} has the type {type_name(found)}; "
            "JSON is read from text or bytes; name one of type string or binary"
        )
    read = [pa.field(c.name, arrow_type(parse_type(c.type))) for c in settings.columns]
    return replace(component, output=pa.schema([*read, *map(incoming.field, settings.keep)]))


def lookup(draft: Draft, part: Processor, base: Component, incoming: pa.Schema | None) -> Component:
    """The tuple with columns of the row of a table that has its key; what the table holds goes
    with the program."""
    # Where there is no such step nobody waits for what reads files to be imported.
    from millrace.engine.program.tables import BadTableError, columns_of, read_table

    settings: LookupSettings = part.settings
    path = f"spec.processors[{part.name}].{part.kind.name}"
    check_keys(draft, part)
    try:
        content = read_table(settings, path, draft.options.base_path)
    except BadTableError as error:
        raise TopologyError(str(error.problem(path))) from None
    draft.tables[content.name] = content.data
    log.info(
        "%s: %s has %d rows with a key (%s)",
        part.name,
        settings.table.path,
        content.rows,
        content.name,
    )
    matching = Matching(
        content.name,
        settings.table.path,
        tuple((one.column, one.table_column) for one in settings.key),
        tuple(column.table_column for column in settings.columns),
        settings.missing,
    )
    component = replace(base, settings=matching, key=part.inputs[0].key)
    if incoming is None:
        return component
    known = columns_of(content.columns)
    producer = part.inputs[0].producer
    for problem in unfit(settings, path, known, columns_of(incoming), producer):
        raise TopologyError(str(problem))
    added = [content.columns.field(c.table_column).with_name(c.name) for c in settings.columns]
    return replace(component, output=pa.schema([*incoming, *added]))


def _check_named(part: Processor, names: Iterable[str], incoming: pa.Schema) -> None:
    """Raises ``TopologyError`` for a column that does not come in."""
    for name in names:
        if incoming.get_field_index(name) < 0:
            raise TopologyError(
                f"{part.kind.name} {part.name!r} names {name!r}, which is no column of its input; "
                f"there are {', '.join(incoming.names)}"
            )


_AROUND = ("", "a", " ", "\n")
"""All that an assertion of RE2 tells apart: an end, part of a word, none, the end of a line."""


def _check_pattern(name: str, pattern: str) -> None:
    """RE2 knows it, and it matches no empty text: cutting at one would go on for ever."""
    try:
        pc.match_substring_regex(pa.array([""]), pattern)
        empty = any(
            pc.match_substring_regex(pa.array([left + right]), rf"\A{left}(?:{pattern}){right}\z")[
                0
            ].as_py()
            for left in _AROUND
            for right in _AROUND
        )
    except pa.ArrowInvalid as error:
        raise TopologyError(f"split {name!r}: {pattern!r} is no pattern of RE2: {error}") from error
    if empty:
        raise TopologyError(
            f"split {name!r}: the pattern {pattern!r} matches where there is nothing, too, and a "
            "text is not cut at nothing; let it match at least one character, with + in place of "
            "*, for example"
        )


def aggregate(
    draft: Draft, part: Processor, base: Component, incoming: pa.Schema | None
) -> Component:
    """Totals that are combined before the exchange."""
    key = part.inputs[0].key
    if not key:
        raise TopologyError(f"aggregate {part.name!r} needs a key on each of its inputs")
    columns = tuple(Aggregate(c.name, c.function.value, c.of) for c in part.settings.columns)
    component = replace(
        base,
        columns=columns,
        key=key,
        emit_final=bool(part.kind.at_end(part.settings)),
    )
    if incoming is None:
        return component
    check_keys(draft, part)
    names = [*key, *dict.fromkeys(c.of for c in columns if c.of is not None and c.of not in key)]
    for declared in part.inputs:
        schema = arriving(draft, part, declared)
        assert schema is not None
        for name in names[len(key) :]:
            if schema.get_field_index(name) < 0 or schema.field(name) != incoming.field(name):
                raise TopologyError(
                    f"aggregate {part.name!r} computes over {name!r}, which is no column of "
                    f"{declared.producer!r}, or of another type; it has {described(schema)}"
                )
    component = replace(component, rows=pa.schema([incoming.field(name) for name in names]))
    # The state itself knows what its functions take and give.
    state = state_of(component, draft.topology.spec.key_groups)
    for schema, what in ((state.output_schema, "puts out"), (state.partial_schema, "keeps")):
        if len(set(schema.names)) < len(schema.names):
            listed = ", ".join(schema.names)
            raise TopologyError(f"aggregate {part.name!r} {what} a column twice: {listed}")
    return replace(component, output=state.output_schema)
