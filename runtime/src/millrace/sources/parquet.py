"""Parquet files: a record is a row, a file never grows.

Of a locator these are ``{"row": first row, "size": bytes, "d": digest of the footer}``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from millrace.protocol.types import RootRange
from millrace.sources.arrow_types import type_name
from millrace.sources.base import ReadBatch
from millrace.sources.content import Mark
from millrace.sources.formats import FileFormat, Opened, Scan
from millrace.sources.lines import BadFileError

BATCH_ROWS = 1 << 16

WHOLE_FILE = (
    "replace it by a whole file or take it away; while a file is written, give it a name that "
    "begins with _ or . and rename it at the end"
)
ONE_SCHEMA = "put files with other columns into another folder, with a source of their own"

_MAGIC = b"PAR1"
_TAIL_BYTES = 8


class ParquetFormat(FileFormat):
    """Rows of Parquet files that all have one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def scan(self, file: Opened, mark: Mark, limit: int, final: bool) -> Scan:
        footer = _footer(file.descriptor, file.size)
        if mark.position and footer != mark.digest:
            raise BadFileError(f"was replaced after {mark.position} of its rows were read")
        with _opened(file.path) as parquet:
            rows = parquet.metadata.num_rows
            _check_schema(parquet.schema_arrow, self.schema)
        count = min(limit, rows - mark.position)
        locator = {"row": mark.position, "size": file.size, "d": footer.hex()}
        end = mark.position + count
        return Scan(Mark(end, footer, b""), count, locator, more=end < rows, unread=rows - end)

    def begins(self, file: Opened, marks: Sequence[tuple[Mark, bool]]) -> list[bool]:
        try:
            footer = _footer(file.descriptor, file.size)
        except BadFileError:
            return [False] * len(marks)
        return [mark.digest == footer for mark, _ in marks]

    def learn(self, file: Opened, mark: Mark) -> Mark:
        return mark

    def names(self, mark: Mark) -> dict[str, Any]:
        return {}

    def fits(self, file: Opened, locator: Any) -> bool:
        try:
            return _is_meant(file, locator)
        except BadFileError:
            return False

    def trim(self, locator: Any, skip: int, count: int) -> dict[str, Any]:
        return {**locator, "row": int(locator["row"]) + skip}

    def read(self, file: Opened, piece: RootRange) -> Iterator[ReadBatch]:
        locator = piece.locator
        first, left = int(locator["row"]), piece.count
        if not _is_meant(file, locator):
            raise BadFileError("was replaced after its rows were planned")
        with _opened(file.path) as parquet:
            groups, before = _groups(parquet.metadata, first, left)
            skip = first - before
            try:
                for batch in parquet.iter_batches(BATCH_ROWS, row_groups=groups):
                    part = batch.slice(skip, left)
                    skip = max(0, skip - batch.num_rows)
                    left -= part.num_rows
                    if part.num_rows:
                        yield ReadBatch(self._conform(part))
                    if not left:
                        return
            except (pa.ArrowException, OSError) as error:
                raise BadFileError(
                    f"cannot be read behind its row {first} ({error})", WHOLE_FILE
                ) from error
        raise BadFileError(f"has {left} rows less than its footer says", WHOLE_FILE)

    def raw(self, file: Opened, piece: RootRange) -> bytes:
        rows = [r for b in self.read(file, replace(piece, count=1)) for r in b.data.to_pylist()]
        return json.dumps(rows[0], default=str, ensure_ascii=False).encode()

    def place(self, file: Opened, piece: RootRange) -> str:
        return f"row {int(piece.locator['row']) + 1}"

    def _conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [batch.column(field.name) for field in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def parquet_schema(path: Path) -> pa.Schema:
    """Columns of a file. Raises ``BadFileError`` where it is no whole Parquet file."""
    with path.open("rb") as file:
        _footer(file.fileno(), os.fstat(file.fileno()).st_size)
    with _opened(path) as parquet:
        return parquet.schema_arrow.remove_metadata()


def _opened(path: str | Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise BadFileError(f"has a footer that cannot be read ({error})", WHOLE_FILE) from error


def _footer(descriptor: int, size: int) -> bytes:
    """Digest of size and footer, which names every column chunk and where it lies."""
    tail = os.pread(descriptor, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    if size < 2 * len(_MAGIC) + 4 or tail[4:] != _MAGIC:
        raise BadFileError("is no whole Parquet file: its footer is missing", WHOLE_FILE)
    length = int.from_bytes(tail[:4], "little")
    if length > size - _TAIL_BYTES:
        raise BadFileError("is no whole Parquet file: it is shorter than it says", WHOLE_FILE)
    footer = os.pread(descriptor, length, size - _TAIL_BYTES - length)
    return xxhash.xxh3_64_digest(size.to_bytes(8, "little") + footer)


def _is_meant(file: Opened, locator: Any) -> bool:
    size = int(locator["size"])
    return file.size == size and _footer(file.descriptor, size).hex() == locator["d"]


def _groups(metadata: pq.FileMetaData, first: int, count: int) -> tuple[list[int], int]:
    """Row groups that hold the rows, and how many rows lie before the first of them."""
    groups: list[int] = []
    begin = before = 0
    for number in range(metadata.num_row_groups):
        end = begin + metadata.row_group(number).num_rows
        if end > first and begin < first + count:
            if not groups:
                before = begin
            groups.append(number)
        begin = end
    return groups, before


def _check_schema(found: pa.Schema, wanted: pa.Schema) -> None:
    for field in wanted:
        if field.name not in found.names:
            raise BadFileError(
                f"lacks the column {field.name!r}, which the first file has", ONE_SCHEMA
            )
        if found.field(field.name).type != field.type:
            raise BadFileError(
                f"has {type_name(found.field(field.name).type)} in the column {field.name!r}, "
                f"the first file has {type_name(field.type)}",
                ONE_SCHEMA,
            )
