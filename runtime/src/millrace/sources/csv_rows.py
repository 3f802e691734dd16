"""CSV: a header, then one record a line, read into the declared columns.

Fields are separated by commas and may be quoted with double quotes, doubled inside a quoted field;
a quoted field cannot hold a newline, so that one bad quote spoils one record. Columns are found by
their names in the header. An empty field is null, in a string column the empty string. An array
is JSON, as in JSON lines. Empty lines are skipped.
"""

from __future__ import annotations

import csv
import io
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from millrace.sources.base import ReadBatch
from millrace.sources.decode import (
    BYTE_ORDER_MARK,
    Decoder,
    Errors,
    HeaderError,
    batch_with_errors,
    convert,
    shown,
)
from millrace.sources.json_lines import arrays_from_text
from millrace.sources.lines import Ints, Lines

_QUOTE, _COMMA, _NEWLINE, _RETURN = b'",\n\r'
_EXPECTED = re.compile(r"Expected (\d+) columns, got (\d+)")


class CsvDecoder(Decoder):
    """Splits with Arrow's parser, then converts column by column."""

    blanks = False
    keeps = True

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def preamble(self, head: bytes, complete: bool) -> tuple[int, Any] | None:
        end = head.find(b"\n") + 1
        if not end:
            if not complete:
                return None
            end = len(head)
        line = head[:end].removeprefix(BYTE_ORDER_MARK).rstrip(b"\r\n")
        try:
            names = next(csv.reader([line.decode()]), [])
        except (UnicodeDecodeError, csv.Error) as error:
            raise HeaderError(f"has a header that cannot be read ({error})") from None
        if not head.strip():
            return (len(head), None) if complete else None
        self._check(names)
        # Also where they are those of the schema, which may be edited before they are read.
        return end, names

    def _check(self, names: list[str]) -> None:
        for field in self.schema:
            if names.count(field.name) != 1:
                how = "twice" if field.name in names else "not"
                raise HeaderError(
                    f"has the declared column {field.name!r} {how} in its header "
                    f"({shown(','.join(names))})"
                )

    def decode(self, lines: Lines, kept: Any) -> ReadBatch:
        names = kept or self.schema.names
        # Its header was checked when it was planned, maybe against another schema than today's.
        self._check(names)
        errors: Errors = {}
        odd = np.union1d(_odd_lines(lines), _foreign_lines(lines))
        columns = self._columns(lines, 0, names, odd, errors)
        finished = []
        for field, column in zip(self.schema, columns, strict=True):
            array, bad = _finish(column, field)
            errors = {**bad, **errors}
            finished.append(array)
        return batch_with_errors(self.schema, finished, errors)

    def _columns(
        self, lines: Lines, first: int, names: list[str], odd: Ints, errors: Errors
    ) -> list[pa.Array]:
        """Declared columns as binary arrays; lines that do not split right are null. ``odd`` are
        those of these lines that must be split alone, in order."""
        wanted = len(lines)
        if not wanted:
            return [pa.array([], pa.binary()) for _ in self.schema]
        if wanted > 1 and odd.size:
            half = wanted // 2
            behind, rest = first + half, lines.take(half, wanted - half)
            cut = np.searchsorted(odd, behind)
            low = self._columns(lines.take(0, half), first, names, odd[:cut], errors)
            high = self._columns(rest, behind, names, odd[cut:], errors)
            return [pa.concat_arrays(pair) for pair in zip(low, high, strict=True)]
        bad: Errors = {}
        message = ""
        try:
            table = self._split(lines, names, bad)
            if table.num_rows + len(bad) == wanted and not _has_newline(table):
                errors.update({first + row: text for row, text in bad.items()})
                return _with_gaps(table, sorted(bad), wanted)
        except pa.ArrowInvalid as error:
            counts = _EXPECTED.search(str(error))
            message = str(error).removeprefix("CSV parse error: ")
            if counts is not None:
                message = f"the line has {counts[2]} fields, the header {counts[1]}"
        if wanted == 1:
            line = lines.record(0)
            errors[first] = f"{message or _no_one_row(line)}; the line is {shown(line)}"
            return [pa.nulls(1, pa.binary()) for _ in self.schema]
        # A quote swallowed a line end: halve until the line stands alone.
        return self._columns(lines, first, names, np.array([first + wanted // 2]), errors)

    def _split(self, lines: Lines, names: list[str], bad: Errors) -> pa.Table:
        data = lines.joined()
        # Arrow shows a row to the handler as text, which one that is not UTF-8 cannot become.
        text = len(lines) > 1 or _is_text(data)

        def note(row: pcsv.InvalidRow) -> str:
            bad[row.number - 1] = (
                f"the line has {row.actual_columns} fields, the header {row.expected_columns}"
            )
            return "skip"

        unique = [f"{i}" for i in range(len(names))]
        wanted = [unique[names.index(field.name)] for field in self.schema]
        return pcsv.read_csv(
            io.BytesIO(data),
            pcsv.ReadOptions(column_names=unique, use_threads=False, block_size=len(data) + 1),
            pcsv.ParseOptions(invalid_row_handler=note if text else None),
            pcsv.ConvertOptions(
                include_columns=wanted,
                column_types={name: pa.binary() for name in wanted},
                strings_can_be_null=False,
            ),
        )


def _no_one_row(line: bytes) -> str:
    """What is wrong with a line that Arrow's parser makes no row of, or several."""
    if b"\r" in line and line.count(b'"') % 2 == 0:
        return "a carriage return stands in the line outside of quotes"
    return "a quoted field is not closed"


def _foreign_lines(lines: Lines) -> Ints:
    """Rows that are not valid UTF-8."""
    if not len(lines) or lines.data.isascii() or _is_text(lines.joined()):
        return np.empty(0, np.int64)
    return np.flatnonzero([not _is_text(lines.record(row)) for row in range(len(lines))])


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _odd_lines(lines: Lines) -> Ints:
    """Rows that must be split alone, since they could swallow their line end: an odd number of
    quotes, of which one begins a field, or a carriage return inside."""
    array = np.frombuffer(lines.data, np.uint8)
    odd = np.zeros(len(lines), bool)
    if b'"' in lines.data:
        quotes = np.flatnonzero(array == _QUOTE)
        before = array[quotes - 1]
        begins = quotes[(quotes == 0) | (before == _COMMA) | (before == _NEWLINE)]
        odd |= (_counts(quotes, lines) % 2 == 1) & (_counts(begins, lines) > 0)
    if b"\r" in lines.data:
        odd |= _counts(np.flatnonzero(array == _RETURN), lines) > 0
    return np.flatnonzero(odd)


def _counts(places: Ints, lines: Lines) -> Ints:
    """How many of the places (rising) lie in each line."""
    return np.searchsorted(places, lines.ends) - np.searchsorted(places, lines.starts)


def _has_newline(table: pa.Table) -> bool:
    """Whether a field of the last row swallowed the end of its line."""
    last = table.slice(max(0, table.num_rows - 1))
    return any(b"\n" in value for column in last.columns for value in column.to_pylist())


def _with_gaps(table: pa.Table, missing: list[int], rows: int) -> list[pa.Array]:
    columns = [c.combine_chunks() if c.num_chunks else pa.array([], c.type) for c in table.columns]
    plain = [c.chunk(0) if isinstance(c, pa.ChunkedArray) else c for c in columns]
    if not missing:
        return plain
    index = np.zeros(rows, np.int64)
    present = np.ones(rows, bool)
    present[missing] = False
    index[present] = np.arange(rows - len(missing))
    take = pa.array(index, mask=~present)
    return [c.take(take) for c in plain]


def _finish(values: pa.Array, field: pa.Field) -> tuple[pa.Array, Errors]:
    def convert_all(part: pa.Array) -> pa.Array:
        return _from_text(part.cast(pa.string()), field.type)

    if pa.types.is_binary(field.type):
        return values, {}
    if not pa.types.is_string(field.type):
        values = pc.if_else(pc.equal(values, b""), pa.scalar(None, pa.binary()), values)
    return convert(values, field.type, convert_all, field.name)


def _from_text(values: pa.Array, to: pa.DataType) -> pa.Array:
    if pa.types.is_list(to):
        return arrays_from_text(values, to)
    if pa.types.is_timestamp(to):
        try:
            return values.cast(to)
        except pa.ArrowInvalid:
            return pc.assume_timezone(values.cast(pa.timestamp(to.unit)), to.tz)
    return values.cast(to)
