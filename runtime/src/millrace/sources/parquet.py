"""Parquet files: a record is a row, a file never grows.

A footer says where the columns lie and between which values, not what they hold. So what was read
is known by the digest of its bytes, too: those of whole row groups, each of which a plan reads
once. Where size, inode and time of change are those that were seen, footer and last block will do.

Of a locator these are ``{"row": first row, "size": bytes, "d": digest of the footer, "s":
signature when the rows were planned, "x": [rows, chain, digest]}``, where "x" is what is known of
the bytes of the first so many rows. Older releases left out "s" and "x".
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from millrace.protocol.types import RootRange
from millrace.sources.arrow_types import type_name
from millrace.sources.base import ReadBatch, first_row
from millrace.sources.content import START, Mark, begins_with, read_mark
from millrace.sources.decode import Errors, batch_with_errors, shown
from millrace.sources.formats import FileFormat, Opened, Scan
from millrace.sources.lines import BadFileError
from millrace.sources.listing import FileStat

BATCH_ROWS = 1 << 16
BATCH_BYTES = 32 << 20
"""What a batch of rows takes in memory, by the first few of a piece."""

_FEW_ROWS = 256

WHOLE_FILE = (
    "replace it by a whole file or take it away; while a file is written, give it a name that "
    "begins with _ or . and rename it at the end"
)
ONE_SCHEMA = "put files with other columns into another folder, with a source of their own"

_MAGIC = b"PAR1"
_TAIL_BYTES = 8


class ParquetFormat(FileFormat):
    """Rows of Parquet files that all have the columns of one schema. Where that is ``None`` rows
    are read with all columns that their file has: what was planned has been looked at."""

    def __init__(self, schema: pa.Schema | None) -> None:
        self._schema = schema
        self._proven: tuple[FileStat, list[Any]] | None = None
        """A file all of whose bytes were found to be those of a locator, and its "x"."""

    @property
    def schema(self) -> pa.Schema:
        assert self._schema is not None
        return self._schema

    def scan(self, file: Opened, mark: Mark, limit: int, final: bool) -> Scan:
        footer = _footer(file.descriptor, file.size)
        with _opened(file.path) as parquet:
            metadata = parquet.metadata
            if mark.position and not _held(file, footer, metadata, [(mark, False)])[0]:
                raise BadFileError(f"was replaced after {mark.position} of its rows were read")
            _check_schema(parquet.schema_arrow, self.schema)
        rows = metadata.num_rows
        count = min(limit, rows - mark.position)
        locator = {
            "row": mark.position,
            "size": file.size,
            "d": footer.hex(),
            "s": FileStat.of(os.fstat(file.descriptor)).signature,
        }
        end = mark.position + count
        after = _mark_at(file, metadata, footer, end, mark) if count else mark
        return Scan(after, count, locator, more=end < rows, unread=rows - end)

    def begins(self, file: Opened, marks: Sequence[tuple[Mark, bool]]) -> list[bool]:
        try:
            footer = _footer(file.descriptor, file.size)
            if all(mark.digest != footer for mark, _ in marks):
                return [False] * len(marks)
            with _opened(file.path) as parquet:
                return _held(file, footer, parquet.metadata, marks)
        except BadFileError:
            return [False] * len(marks)

    def beginnings(self, file: Opened, lengths: Collection[int]) -> Mapping[int, bytes]:
        try:
            return dict.fromkeys(lengths, _footer(file.descriptor, file.size))
        except BadFileError:
            return {}

    def learn(self, file: Opened, mark: Mark) -> Mark:
        if mark.rows:
            return mark
        with _opened(file.path) as parquet:
            return _mark_at(file, parquet.metadata, mark.digest, mark.position)

    def names(self, mark: Mark) -> dict[str, Any]:
        return {"x": [mark.position, mark.chain.hex(), mark.head.hex()]}

    def fits(self, file: Opened, locator: Any) -> bool:
        return self._holds(file, locator, whole=False)

    def _holds(self, file: Opened, locator: Any, whole: bool) -> bool:
        """Whether a file holds a locator's rows; ``whole``: look at every byte."""
        position, chain, head = locator.get("x", (0, "", ""))
        mark = Mark(
            position,
            bytes.fromhex(locator["d"]),
            bytes.fromhex(chain),
            head=bytes.fromhex(head),
            rows="x" in locator,
        )
        return file.size == int(locator["size"]) and self.begins(file, [(mark, whole)])[0]

    def _is_meant(self, file: Opened, locator: Any) -> bool:
        stat = FileStat.of(os.fstat(file.descriptor))
        proof = stat, locator.get("x", [])
        same = stat.signature == locator.get("s") or proof == self._proven
        if not self._holds(file, locator, whole=not same):
            return False
        self._proven = proof
        return True

    def trim(self, locator: Any, skip: int, count: int) -> dict[str, Any]:
        return {**locator, "row": int(locator["row"]) + skip}

    def read(self, file: Opened, piece: RootRange) -> Iterator[ReadBatch]:
        for rows in self._rows(file, piece):
            yield batch_with_errors(rows.schema, rows.columns, _wrong_texts(rows))

    def _rows(self, file: Opened, piece: RootRange) -> Iterator[pa.RecordBatch]:
        locator = piece.locator
        first, left = int(locator["row"]), piece.count
        if not self._is_meant(file, locator):
            raise BadFileError("was replaced after its rows were planned")
        with _opened(file.path) as parquet:
            if self._schema is not None:
                _check_schema(parquet.schema_arrow, self._schema)
            groups, before = _groups(parquet.metadata, first, left)
            skip = first - before
            try:
                most = _rows_at_once(parquet, groups, skip + left)
                for batch in parquet.iter_batches(most, row_groups=groups):
                    part = batch.slice(skip, left)
                    skip = max(0, skip - batch.num_rows)
                    left -= part.num_rows
                    if part.num_rows:
                        yield self._conform(part)
                    if not left:
                        return
            except (pa.ArrowException, OSError) as error:
                if not _tells_of_content(error):
                    raise
                raise BadFileError(
                    f"cannot be read behind its row {first} ({error})", WHOLE_FILE
                ) from error
        raise BadFileError(f"has {left} rows less than its footer says", WHOLE_FILE)

    def raw(self, file: Opened, piece: RootRange) -> bytes:
        return first_row(next(self._rows(file, replace(piece, count=1))))

    def place(self, file: Opened, piece: RootRange) -> str:
        return f"row {int(piece.locator['row']) + 1}"

    def _conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._schema is None:
            return batch.replace_schema_metadata(None)
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
        found = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        if not _tells_of_content(error):
            raise
        raise BadFileError(f"has a footer that cannot be read ({error})", WHOLE_FILE) from error
    _check_counts(found.metadata)
    return found


def _tells_of_content(error: Exception) -> bool:
    """Whether it was raised for what is in a file: an ``OSError`` of Arrow's own has no number.

    One of the file system's, or a lack of memory, says nothing of it and may pass.
    """
    return not isinstance(error, MemoryError) and getattr(error, "errno", None) is None


def _check_counts(metadata: pq.FileMetaData) -> None:
    groups = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    if min(groups, default=0) < 0 or sum(groups) != metadata.num_rows:
        raise BadFileError(
            f"says in its footer that it has {metadata.num_rows} rows, and {sum(groups)} in its "
            "row groups",
            WHOLE_FILE,
        )


def _rows_at_once(parquet: pq.ParquetFile, groups: Sequence[int], wanted: int) -> int:
    """How many rows are decoded at a time, where so many are to be gone through."""
    if wanted <= _FEW_ROWS:
        return wanted
    few = next(parquet.iter_batches(_FEW_ROWS, row_groups=groups[:1]), None)
    if few is None or not few.num_rows:
        return wanted
    fitting: int = BATCH_BYTES * few.num_rows // max(1, few.nbytes)
    return max(1, min(BATCH_ROWS, wanted, fitting))


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


def _held(
    file: Opened, footer: bytes, metadata: pq.FileMetaData, marks: Sequence[tuple[Mark, bool]]
) -> list[bool]:
    """Whether a file has the footer of each mark, and its rows; True: look at every byte."""
    same = [mark.digest == footer for mark, _ in marks]
    data = [
        (_data_of(mark, metadata, file.size) if one else START, whole)
        for one, (mark, whole) in zip(same, marks, strict=True)
    ]
    held = begins_with(file.descriptor, file.size, data)
    return [one and other for one, other in zip(same, held, strict=True)]


def _mark_at(
    file: Opened, metadata: pq.FileMetaData, footer: bytes, rows: int, before: Mark = START
) -> Mark:
    """The mark behind so many rows; what is known from the mark ``before`` is not read again."""
    known, end = _data_of(before, metadata, file.size), _data_end(metadata, file.size, rows)
    # Row groups may lie in any order.
    found = read_mark(file.descriptor, end, known if known.position <= end else START)
    if found is None:
        raise BadFileError("is shorter than its footer says", WHOLE_FILE)
    return Mark(rows, footer, found.chain, head=found.digest, rows=True)


def _data_of(mark: Mark, metadata: pq.FileMetaData, size: int) -> Mark:
    """The mark of the bytes that hold a mark's rows; of an older release's nothing is known."""
    if not mark.rows:
        return START
    return Mark(_data_end(metadata, size, mark.position), mark.head, mark.chain)


def _data_end(metadata: pq.FileMetaData, size: int, rows: int) -> int:
    """Where the row group of the last of the first ``rows`` rows ends; the footer's start at most.

    Behind the last group all that lies before the footer counts.
    """
    footer: int = size - _TAIL_BYTES - metadata.serialized_size
    for number in range(metadata.num_row_groups - 1):
        group = metadata.row_group(number)
        rows -= group.num_rows
        if rows <= 0:
            chunks = (group.column(i) for i in range(group.num_columns))
            ends = (
                min(c.dictionary_page_offset or c.data_page_offset, c.data_page_offset)
                + c.total_compressed_size
                for c in chunks
            )
            return min(footer, max(ends, default=footer))
    return footer


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


def _wrong_texts(rows: pa.RecordBatch) -> Errors:
    """The rows with a text that is not UTF-8, which Parquet takes as it is written."""
    errors: Errors = {}
    for field, column in zip(rows.schema, rows.columns, strict=True):
        for row in _not_valid(column):
            told = f"column {field.name!r}: {shown(column[row])} is not valid UTF-8"
            errors.setdefault(row, told)
    return errors


def _not_valid(column: pa.Array, first: int = 0) -> list[int]:
    """The rows of a column, counted from ``first``, whose values are not what its type says."""
    try:
        column.validate(full=True)
        return []
    except pa.ArrowInvalid:
        if len(column) == 1:
            return [first]
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()  # every part has all of the entries
    half = len(column) // 2
    # Copies: in a slice of lists the values of the other rows are looked at, too.
    low, high = (column.take(pa.array(range(*ends))) for ends in ((0, half), (half, len(column))))
    return [*_not_valid(low, first), *_not_valid(high, first + half)]


def _check_schema(found: pa.Schema, wanted: pa.Schema) -> None:
    for field in wanted:
        if found.names.count(field.name) > 1:
            raise BadFileError(f"has the column {field.name!r} twice", ONE_SCHEMA)
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
