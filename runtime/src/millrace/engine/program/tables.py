"""Small tables that tuples are looked up in (``lookup``): read once, by the driver at its start.

What a table holds is part of the program, as a file of its own (``tablefile``): whatever becomes of
the user's file meanwhile, every task of a window looks up in the same content. The next driver
reads the user's file anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.ddl import parse_schema
from millrace.engine.program.schema import check, fitting, is_carried, normal_schema
from millrace.engine.program.tablefile import name_of, written
from millrace.sources.arrow_types import arrow_schema, type_name
from millrace.sources.csv_rows import CsvDecoder
from millrace.sources.decode import Decoder, HeaderError, shown
from millrace.sources.formats import open_regular
from millrace.sources.json_lines import JsonDecoder
from millrace.sources.lines import find_lines
from millrace.topology.kinds.base import Columns
from millrace.topology.kinds.processor_lookup import (
    LookupSettings,
    TableFormat,
    lacking,
    unfit,
    with_added,
)
from millrace.topology.problems import Problem

MOST_BYTES = 64 << 20
"""Largest file, and most memory that the columns of it which are read may take."""

MOST_ROWS = 1_000_000

_READS = 5
"""How often a file is read that changes meanwhile."""

_GROUP_ROWS = 16_384
"""Rows decoded at once; the first such group with a mistake is the last that is looked at."""

_SMALLER = "a table is at most 64 MiB and 1,000,000 rows; join large ones by a keyed processor"

Place = Callable[[int], str]
"""Where a row stands in its file: ``line 3``, ``row 2``."""


class BadTableError(Exception):
    """A table that cannot be looked up in; ``field`` is below ``lookup``. ``absent``: there is no
    file that could be read."""

    def __init__(
        self, field: str, value: object, message: str, remedy: str, absent: bool = False
    ) -> None:
        super().__init__(message)
        self._said = field, value, message, remedy
        self.absent = absent

    def problem(self, path: str) -> Problem:
        """The same as a problem of the settings at ``path``."""
        field, value, message, remedy = self._said
        return Problem(f"{path}.{field}", value, message, remedy)


@dataclass(frozen=True, slots=True)
class LookupContent:
    """What a table holds, in the columns that are read of it, without rows that have a null in
    their key: ``data`` in Arrow's IPC file format, ``name`` with its digest, and its columns."""

    name: str
    data: bytes
    columns: pa.Schema
    rows: int


@dataclass(frozen=True, slots=True)
class Looked:
    """What was found out about the files of a processor: the columns that it puts out, problems of
    its settings, and whether a file is not there."""

    columns: Columns | None
    problems: tuple[Problem, ...] = ()
    absent: bool = False


Look = Callable[[Any, str, Path, Columns | None, str], Looked]
"""What a kind names as its ``looks``: see ``look``."""


def look(
    settings: LookupSettings, path: str, folder: Path, incoming: Columns | None, producer: str
) -> Looked:
    """Read the table and hold it against what comes in from a producer, as far as that is known;
    ``path`` is that of the settings."""
    try:
        content = read_table(settings, path, folder)
    except BadTableError as error:
        return Looked(None, (error.problem(path),), error.absent)
    if incoming is None:
        return Looked(None)
    found = columns_of(content.columns)
    return Looked(
        with_added(settings, incoming, found),
        tuple(unfit(settings, path, found, incoming, producer)),
    )


def columns_of(schema: pa.Schema) -> Columns:
    """Names and types as a topology has them."""
    return tuple((field.name, type_name(field.type)) for field in schema)


def read_table(settings: LookupSettings, path: str, folder: Path) -> LookupContent:
    """Read a table, whose path starts at ``folder``; ``path`` is that of the settings.

    Raises ``BadTableError`` for a file that is not there, too large or not what it is declared to
    be, for columns that it lacks and for a key that it has twice.
    """
    file = folder / settings.table.path
    data = _bytes_of(file, settings.table.path)
    form = settings.table.read_as
    assert form is not None, "its check refuses what no format is known of"
    try:
        rows, place = _READERS[form](settings, path, data)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(settings, f"cannot be read as {form.value} ({_line_of(error)})") from error
    kept, rows = _with_keys(settings, rows)
    _distinct(settings, rows, lambda row: place(int(kept[row])))
    content = written(rows, [part.table_column for part in settings.key])
    return LookupContent(name_of(content), content, rows.schema, rows.num_rows)


# -- the file


def _bytes_of(file: Path, named: str) -> bytes:
    """All of a file, as it was at one moment as far as its size and times tell."""
    for _ in range(_READS):
        try:
            descriptor, before = open_regular(file)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            message = f"cannot be read: {reason} ({file})"
            raise BadTableError(
                "table.path", named, message, "put the table there or correct the path", True
            ) from None
        with os.fdopen(descriptor, "rb") as opened:
            if before.st_size > MOST_BYTES:
                message = f"has {before.st_size:,} bytes"
                raise BadTableError("table.path", named, message, _SMALLER)
            try:
                data = opened.read(MOST_BYTES + 1)
            except OSError as error:
                message = f"cannot be read: {error.strerror} ({file})"
                remedy = "put the table there or correct the path"
                raise BadTableError("table.path", named, message, remedy, True) from None
            after = os.fstat(opened.fileno())
        if len(data) == before.st_size and _stamp(before) == _stamp(after):
            return data
    message = "is being written again and again while it is read"
    remedy = "write it under another name and rename it when it is whole"
    raise BadTableError("table.path", named, message, remedy)


def _stamp(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


# -- formats


def _lines(settings: LookupSettings, path: str, data: bytes) -> tuple[pa.RecordBatch, Place]:
    """The rows of a file of lines, and where each of them stands."""
    declared = parse_schema(settings.table.columns or "")
    _refuse(lacking(settings, path, tuple(declared)), path)
    schema = arrow_schema([c for c in declared if c[0] in settings.read])
    csv = settings.table.read_as is TableFormat.CSV
    decoder: Decoder = CsvDecoder(schema) if csv else JsonDecoder(schema)
    try:
        begin, kept = decoder.preamble(data, True) or (0, None)
    except HeaderError as error:
        raise BadTableError(
            "table.schema",
            settings.table.columns,
            f"does not fit {settings.table.path}, which {error}",
            "name the columns as its header does",
        ) from None
    if csv and kept is None:
        raise _damaged(settings, "is empty, and a csv begins with a header")
    lines = find_lines(data[begin:], decoder.blanks)
    _check_rows(settings, len(lines))

    def place(row: int) -> str:
        return f"line {data.count(10, 0, begin + int(lines.starts[row])) + 1}"

    parts = []
    for at in range(0, len(lines), _GROUP_ROWS):
        read = decoder.decode(lines.take(at, _GROUP_ROWS), kept)
        for row, said in read.errors:
            raise _damaged(settings, f"{place(at + row)}: {said}")
        parts.append(read.data)
    return _whole(settings, schema, iter(parts)), place


def _parquet(settings: LookupSettings, path: str, data: bytes) -> tuple[pa.RecordBatch, Place]:
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        schema = _chosen(settings, path, file.schema_arrow)
        _check_rows(settings, file.metadata.num_rows)
        batches = file.iter_batches(_GROUP_ROWS, columns=list(settings.read))
        return _whole(settings, schema, batches), _row


def _arrow(settings: LookupSettings, path: str, data: bytes) -> tuple[pa.RecordBatch, Place]:
    try:
        file = pa.ipc.open_file(pa.BufferReader(data))
    except pa.ArrowInvalid:
        stream = pa.ipc.open_stream(pa.BufferReader(data))
        schema = _chosen(settings, path, stream.schema)
        return _whole(settings, schema, iter(stream)), _row
    schema = _chosen(settings, path, file.schema)
    batches = (file.get_batch(number) for number in range(file.num_record_batches))
    return _whole(settings, schema, batches), _row


_READERS = {
    TableFormat.CSV: _lines,
    TableFormat.JSON_LINES: _lines,
    TableFormat.PARQUET: _parquet,
    TableFormat.ARROW: _arrow,
}


def _row(row: int) -> str:
    return f"row {row + 1}"


def _chosen(settings: LookupSettings, path: str, found: pa.Schema) -> pa.Schema:
    """The columns that are read, with canonical types. Raises ``BadTableError``."""
    schema = normal_schema(found)
    _refuse(lacking(settings, path, columns_of(schema)), path)
    for name in settings.read:
        if len(schema.get_all_field_indices(name)) > 1:
            raise _damaged(settings, f"has the column {name!r} twice")
        if not is_carried(schema.field(name).type):
            kind = type_name(schema.field(name).type)
            raise _damaged(settings, f"the type {kind} of its column {name!r} is not read")
    return pa.schema([schema.field(name) for name in settings.read])


def _whole(
    settings: LookupSettings, schema: pa.Schema, parts: Iterator[pa.RecordBatch]
) -> pa.RecordBatch:
    """All rows in the columns of a schema. Raises ``BadTableError`` where they are too many, take
    too much memory, or do not fit."""
    batches: list[pa.RecordBatch] = []
    rows = size = 0
    for part in _groups(settings, parts):
        chosen = part.select(schema.names)
        check(chosen)
        batch, errors = fitting(chosen, schema, settings.table.path)
        for row, said in errors.items():
            raise _damaged(settings, f"{_row(rows + row)}: {said}")
        rows += batch.num_rows
        size += batch.nbytes
        if size > MOST_BYTES:
            message = "takes more than 64 MiB of memory in the columns that are read"
            raise BadTableError("table.path", settings.table.path, message, _SMALLER)
        batches.append(batch)
    table = pa.Table.from_batches(batches, schema).combine_chunks()
    return (table.to_batches() or [pa.RecordBatch.from_pylist([], schema=schema)])[0]


def _groups(settings: LookupSettings, parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = 0
    for part in parts:
        rows += part.num_rows
        _check_rows(settings, rows)
        for at in range(0, part.num_rows, _GROUP_ROWS):
            yield part.slice(at, _GROUP_ROWS)


# -- what must hold


def _refuse(problems: Iterator[Problem], path: str) -> None:
    for one in problems:
        field = one.path.removeprefix(f"{path}.")
        raise BadTableError(field, one.value, one.message, one.remedy)


def _damaged(settings: LookupSettings, message: str) -> BadTableError:
    remedy = "mend the file, or correct what is said of it"
    return BadTableError("table.path", settings.table.path, message, remedy)


def _check_rows(settings: LookupSettings, rows: int) -> None:
    if rows > MOST_ROWS:
        message = f"has more than {MOST_ROWS:,} rows"
        raise BadTableError("table.path", settings.table.path, message, _SMALLER)


def _key_columns(settings: LookupSettings) -> list[str]:
    return list(dict.fromkeys(part.table_column for part in settings.key))


def _with_keys(
    settings: LookupSettings, rows: pa.RecordBatch
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], pa.RecordBatch]:
    """The rows that have a key, and the place (int64) that each had: a null is equal to nothing."""
    valid = np.ones(rows.num_rows, bool)
    for name in _key_columns(settings):
        column = rows.column(name)
        if column.null_count:
            valid &= column.is_valid().to_numpy(zero_copy_only=False)
    kept = np.flatnonzero(valid)
    return kept, rows if len(kept) == rows.num_rows else rows.take(pa.array(kept))


def _distinct(settings: LookupSettings, rows: pa.RecordBatch, place: Place) -> None:
    """Raises ``BadTableError`` for a key that comes twice."""
    # What compiles its loops takes a while to import, and what only names types does without.
    from millrace.state.keyed import keys

    names = _key_columns(settings)
    found = keys.distinct([rows.column(name) for name in names])
    again = np.flatnonzero(found.first[found.codes] != np.arange(rows.num_rows))
    if not again.size:
        return
    second = int(again[0])
    first = int(found.first[found.codes[second]])
    key = ", ".join(f"{name} = {shown(rows.column(name)[second])}" for name in names)
    message = f"has the key {key} twice, in {place(first)} and in {place(second)}"
    remedy = "keep one of the rows, or add a column to the key that tells them apart"
    raise BadTableError("table.path", settings.table.path, message, remedy)


def _line_of(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
