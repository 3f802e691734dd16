"""The kind ``lookup`` of processors: columns added from a small table, without code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from pydantic import Field

from millrace.ddl import SIMPLE_TYPES
from millrace.topology.declared import (
    declared_columns,
    unfit_key,
    unfit_name,
    unsound_schema,
)
from millrace.topology.edges import no_column
from millrace.topology.kinds.base import (
    COMPILED,
    Columns,
    Effect,
    FieldEdit,
    Incoming,
    ProcessorKind,
)
from millrace.topology.parts import OnMissing, Part
from millrace.topology.problems import NOTHING, Problem, did_you_mean, format_path
from millrace.topology.scalars import Text

if TYPE_CHECKING:
    from millrace.topology.checks.facts import Facts
    from millrace.topology.graph import Component


class TableFormat(str, Enum):
    """How a table is read."""

    CSV = "csv"
    JSON_LINES = "jsonLines"
    PARQUET = "parquet"
    ARROW = "arrow"


ENDINGS: Mapping[str, TableFormat] = {
    ".csv": TableFormat.CSV,
    ".jsonl": TableFormat.JSON_LINES,
    ".ndjson": TableFormat.JSON_LINES,
    ".parquet": TableFormat.PARQUET,
    ".arrow": TableFormat.ARROW,
    ".feather": TableFormat.ARROW,
}
"""Ends of names that say what a file is."""

_UNTYPED = (TableFormat.CSV, TableFormat.JSON_LINES)
"""Formats that do not say which types their columns have."""

_WHOLE = frozenset({"long", "int"})


class LookupTable(Part):
    """A small table: at most 64 MiB and 1,000,000 rows."""

    path: Text = Field(
        description="File. A relative path starts at this file's folder, on a cluster at /data. "
        "The driver reads it at its start, and nobody else does."
    )
    format: TableFormat | None = Field(
        None,
        description="csv (with a header), jsonLines, parquet, or arrow (Arrow IPC, Feather). "
        "Default: what the path ends with: .csv, .jsonl, .ndjson, .parquet, .arrow, .feather.",
    )
    columns: Text | None = Field(
        None,
        alias="schema",
        description='Columns of jsonLines and csv, e.g. "id string, city string". Types: those of '
        "a files source.",
    )

    @property
    def read_as(self) -> TableFormat | None:
        """How it is read; None where neither the format nor the path says it."""
        return self.format or ENDINGS.get(PurePosixPath(self.path).suffix.lower())


class LookupKey(Part):
    """A column whose values are looked up."""

    column: Text = Field(description="Column of the tuple.")
    of: Text | None = Field(
        None, description="Column of the table that has the same value. Default: of the same name."
    )

    @property
    def table_column(self) -> str:
        """The column of the table."""
        return self.of or self.column


class LookupColumn(Part):
    """A column of the table that is added to the tuple."""

    name: Text = Field(description="Name of the column.")
    of: Text | None = Field(
        None, description="Column of the table. Default: the one of the same name."
    )

    @property
    def table_column(self) -> str:
        """The column of the table."""
        return self.of or self.name


class LookupSettings(Part):
    """Columns of the one row of a table that has the tuple's key, added to the tuple."""

    table: LookupTable = Field(description="The table.")
    key: tuple[LookupKey, ...] = Field(
        min_length=1,
        description="What the tuple and its row of the table have in common. No two rows of the "
        "table have the same key; what has no value is equal to nothing.",
    )
    columns: tuple[LookupColumn, ...] = Field(
        (), description="Columns that are added, behind those of the tuple."
    )
    missing: OnMissing = Field(
        OnMissing.KEEP,
        description="A tuple of which the table has no row. Keep: it goes on without values in "
        "what would be added. Drop: it is left out. Fail: it fails for good.",
    )

    @property
    def read(self) -> tuple[str, ...]:
        """The columns of the table that are read, each once, those of the key first."""
        names = [part.table_column for part in self.key]
        return tuple(dict.fromkeys([*names, *(column.table_column for column in self.columns)]))


class LookupProcessorKind(ProcessorKind[LookupSettings]):
    """Rows of a table that every worker has in memory, found by compiled code."""

    name = "lookup"
    meaning = "Columns of a small table, a file, added to the tuples whose key it has."
    settings = LookupSettings
    fillers = {"table": {"path": "unnamed.csv", "schema": "unnamed string"}}
    compiler = "millrace.engine.program.kinds:lookup"
    step = "millrace.engine.task.steps.making:lookup"
    beside = True
    looks = "millrace.engine.program.tables:look"
    edits = (
        FieldEdit("table", Effect.RESTART, "the driver reads the table at its start"),
        FieldEdit("", Effect.RESTART, COMPILED),
    )

    def summary(self, settings: LookupSettings) -> str:
        key = ", ".join(part.column for part in settings.key)
        added = ", ".join(column.name for column in settings.columns)
        adds = f" for {added}" if added else ""
        missing = settings.missing.value
        return f"lookup {key} in {settings.table.path}{adds} (missing: {missing})"

    def on_disk(self, settings: LookupSettings) -> Mapping[str, str]:
        return {"table.path": settings.table.path}

    def columns(self, settings: LookupSettings, incoming: Incoming) -> Columns | None:
        """Those of the input, and those that are added; their types where the schema has them."""
        if incoming.columns is None:
            return None
        declared = declared_columns(settings.table.columns)
        return with_added(settings, incoming.columns, declared or ())

    def check(
        self, settings: LookupSettings, component: Component, facts: Facts
    ) -> Iterator[Problem]:
        """A format with its schema, key columns that can be compared, and distinct names of
        columns that there are."""
        path = format_path((*component.path, "lookup"))
        yield from _sound_table(f"{path}.table", settings.table)
        if not settings.columns and settings.missing is OnMissing.KEEP:
            message = "is missing: every tuple would come out as it went in"
            remedy = "name columns of the table, or set missing: Drop to leave tuples out"
            yield Problem(f"{path}.columns", NOTHING, message, remedy)
        seen: set[tuple[str, str]] = set()
        for i, part in enumerate(settings.key):
            pair = part.column, part.table_column
            if pair in seen:
                message = "stands twice in the key"
                yield Problem(f"{path}.key[{i}].column", part.column, message, "remove one")
            seen.add(pair)
        names: set[str] = set()
        for i, column in enumerate(settings.columns):
            where = f"{path}.columns[{i}].name"
            yield from unfit_name(where, column.name, names, "of for the column of the table")
        declared = declared_columns(settings.table.columns)
        if declared is not None:
            yield from lacking(settings, path, declared)
        for edge in facts.edges_of(component):
            incoming = facts.columns_on(edge)
            if incoming is not None:
                yield from unfit(settings, path, declared or (), incoming, edge.producer)


def with_added(settings: LookupSettings, incoming: Columns, table: Columns) -> Columns:
    """The columns that come out; the type of one that the table does not tell is not known."""
    types = dict(table)
    return (*incoming, *((c.name, types.get(c.table_column)) for c in settings.columns))


def lacking(settings: LookupSettings, path: str, table: Columns) -> Iterator[Problem]:
    """Columns that a table does not have, or that cannot be a key; ``path`` is the settings'."""
    types = dict(table)
    named = [
        *(
            (f"key[{i}]", "column", part.of, part.table_column)
            for i, part in enumerate(settings.key)
        ),
        *(
            (f"columns[{i}]", "name", column.of, column.table_column)
            for i, column in enumerate(settings.columns)
        ),
    ]
    for part, own, of, name in named:
        where = f"{path}.{part}.{own if of is None else 'of'}"
        if name not in types:
            remedy = did_you_mean(name, types)
            yield Problem(where, name, f"is no column of {settings.table.path}", remedy)
        elif own == "column":
            yield from unfit_key(where, name, types[name])


def unfit(
    settings: LookupSettings, path: str, table: Columns, incoming: Columns, producer: str
) -> Iterator[Problem]:
    """What does not go with the columns that come in from a producer: key columns that are not
    there or of another type than the table's, as far as types are known, and names that are
    taken."""
    types, others = dict(incoming), dict(table)
    for i, part in enumerate(settings.key):
        where, name = f"{path}.key[{i}].column", part.column
        if name not in types:
            yield no_column(where, name, producer, incoming)
            continue
        mine, other = types[name], others.get(part.table_column)
        no_key = [*unfit_key(where, name, mine)]
        yield from no_key
        simple = not no_key and other in SIMPLE_TYPES
        if simple and mine is not None and not _comparable(mine, other):
            message = f"is of the type {mine}, and {part.table_column!r} of the table {other}"
            if settings.table.columns is not None:
                remedy = f"write {mine} in table.schema, or give the column another type in front"
            else:
                remedy = "give one of the two the type of the other"
            yield Problem(where, name, message, remedy)
    for i, column in enumerate(settings.columns):
        if column.name in types:
            message = f"is a column of {producer!r} already"
            remedy = f'give it another name, with of: "{column.table_column}"'
            yield Problem(f"{path}.columns[{i}].name", column.name, message, remedy)


def _comparable(mine: str, other: str | None) -> bool:
    return mine == other or {mine, other} <= _WHOLE


def _sound_table(path: str, table: LookupTable) -> Iterator[Problem]:
    if table.read_as is None:
        message = f"is missing; {table.path!r} does not end as any format does"
        remedy = f"write one of {', '.join(f.value for f in TableFormat)}"
        yield Problem(f"{path}.format", NOTHING, message, remedy)
        return
    form, where = table.read_as, f"{path}.schema"
    if table.columns is None:
        if form in _UNTYPED:
            message = f"is missing; {form.value} does not say which types its columns have"
            yield Problem(where, NOTHING, message, 'add it, e.g. schema: "id string, n long"')
    elif form not in _UNTYPED:
        message = f"does not apply: {form.value} has its own columns"
        yield Problem(where, table.columns, message, "remove it")
    else:
        yield from unsound_schema(where, table.columns)


LOOKUP = LookupProcessorKind()
