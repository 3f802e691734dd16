"""Rows as bytes of a file format, without a Python loop over the rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from millrace.sinks.values import as_text, check_calendar, json_values, plain

Encoder = Callable[[Sequence[pa.RecordBatch]], Iterator[pa.Buffer]]

Rows = dict[int, str]

ENCODING_ERRORS = (pa.ArrowException, ValueError, TypeError, OverflowError)
"""What encoding rows may raise."""

BATCH_ROWS = 1 << 15
"""Rows that are encoded at once; more would not fit the processor's caches."""


def encode_json_lines(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.Buffer]:
    """One JSON object a line, fields in order of the columns, nulls written out."""
    for batch in batches:
        for at in range(0, batch.num_rows, BATCH_ROWS):
            yield _json_lines(batch.slice(at, BATCH_ROWS))


def encode_csv(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.Buffer]:
    """A header and a line for each row; quoted where needed, null is empty, "" is quoted, and so is
    null where it is all of its line: readers skip blank ones."""
    header = True
    for batch in batches:
        columns = [_csv_column(column) for column in batch.columns]
        if len(columns) == 1 and columns[0].null_count:
            columns = [pc.fill_null(as_text(columns[0]), "")]
        data = pa.BufferOutputStream()
        pcsv.write_csv(
            pa.RecordBatch.from_arrays(columns, names=batch.schema.names),
            data,
            pcsv.WriteOptions(include_header=header),
        )
        header = False
        yield data.getvalue()


def encode_parquet(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.Buffer]:
    """One Parquet file."""
    data = pa.BufferOutputStream()
    with pq.ParquetWriter(data, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    yield data.getvalue()


ENCODERS: Mapping[str, tuple[str, Encoder]] = {
    "jsonLines": ("jsonl", encode_json_lines),
    "csv": ("csv", encode_csv),
    "parquet": ("parquet", encode_parquet),
}
"""File name extension and encoder of each format."""


def misfits(encode: Callable[[pa.RecordBatch], object], batches: Sequence[pa.RecordBatch]) -> Rows:
    """The rows that ``encode`` cannot take, by their place among all rows, with what it says.

    Nothing where that is no matter of rows: then it cannot take a row of nulls either.
    """
    found: Rows = {}
    first = 0
    for batch in batches:
        _search(encode, batch, first, found)
        first += batch.num_rows
    if found:
        schema = batches[0].schema
        nulls = [pa.nulls(1, field.type) for field in schema]
        if _trouble(encode, pa.RecordBatch.from_arrays(nulls, names=schema.names)) is not None:
            return {}
    return found


def _search(
    encode: Callable[[pa.RecordBatch], object], batch: pa.RecordBatch, first: int, found: Rows
) -> None:
    trouble = _trouble(encode, batch) if batch.num_rows else None
    if trouble is None:
        return
    if batch.num_rows == 1:
        found[first] = trouble
        return
    half = batch.num_rows // 2
    _search(encode, batch.slice(0, half), first, found)
    _search(encode, batch.slice(half), first + half, found)


def _trouble(encode: Callable[[pa.RecordBatch], object], batch: pa.RecordBatch) -> str | None:
    try:
        encode(batch)
    except MemoryError:
        raise
    except ENCODING_ERRORS as error:
        return " ".join(str(error).split()) or type(error).__name__
    return None


def _json_lines(batch: pa.RecordBatch) -> pa.Buffer:
    if not batch.num_columns:
        return pa.py_buffer(b"{}\n" * batch.num_rows)
    parts: list[pa.Array | str] = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        key = json.dumps(name, ensure_ascii=False)
        parts += [f"{',' if parts else '{'}{key}:", json_values(column)]
    lines = pc.binary_join_element_wise(*parts, "}\n", "")
    offsets, data = lines.buffers()[1:]
    end = int.from_bytes(memoryview(offsets)[4 * len(lines) : 4 * len(lines) + 4], "little")
    return data.slice(0, end)


def _csv_column(column: pa.Array) -> pa.Array:
    column = plain(column)
    kind = column.type
    if pa.types.is_date(kind):
        check_calendar(column)
        return column
    simple = pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    return column if simple else as_text(column)
