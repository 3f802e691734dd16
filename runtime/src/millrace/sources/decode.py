"""What turns lines into rows: one decoder for each line format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millrace.sources.arrow_types import plain_value, type_name
from millrace.sources.base import ReadBatch
from millrace.sources.lines import Lines

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

SHOWN_CHARACTERS = 80

Errors = dict[int, str]


class HeaderError(ValueError):
    """The preamble of a file does not fit what is declared; the text goes on behind its name."""


class Decoder(ABC):
    """Rows of one line format; ``blanks`` says whether an empty line is a record, ``keeps``
    whether what the preamble says is needed for every record.
    """

    blanks: bool
    keeps: bool = False
    schema: pa.Schema

    def preamble(self, head: bytes, complete: bool) -> tuple[int, Any] | None:
        """Bytes at the start of a file that are no record, and what of them the locator keeps.

        ``head`` is the file's beginning, ``complete`` whether more may come behind it. ``None``:
        the preamble is not complete yet. Raises ``HeaderError`` for a file that cannot be read.
        """
        return len(BYTE_ORDER_MARK) if head.startswith(BYTE_ORDER_MARK) else 0, None

    @abstractmethod
    def decode(self, lines: Lines, kept: Any) -> ReadBatch:
        """One row for each line; ``kept`` is what ``preamble`` gave the locator.

        Raises ``HeaderError`` where that does not fit the schema of today.
        """

    def decode_plain(self, data: bytes, records: int) -> pa.RecordBatch | None:
        """One row for each line of ``data``, which begins with one, at a stroke: the same rows as
        by ``decode``, without an error. ``records`` is how many there should be. None where that
        cannot be had."""
        return None


def batch_with_errors(schema: pa.Schema, columns: list[pa.Array], errors: Errors) -> ReadBatch:
    """A batch whose rows with errors are null in all columns."""
    rows = len(columns[0])
    if errors:
        mask = mask_of(rows, errors)
        columns = [pc.if_else(mask, pa.scalar(None, c.type), c) for c in columns]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    return ReadBatch(batch, tuple(sorted(errors.items())))


def mask_of(rows: int, wanted: Iterable[int]) -> pa.Array:
    """Boolean array that is true at the wanted rows."""
    mask = [False] * rows
    for row in wanted:
        mask[row] = True
    return pa.array(mask, pa.bool_())


def convert(
    values: pa.Array, to: pa.DataType, convert_all: Callable[[pa.Array], pa.Array], column: str
) -> tuple[pa.Array, Errors]:
    """Convert a column, halving it where it fails, so that only the bad rows become null.

    Returns the column and the messages of its bad rows.
    """
    errors: Errors = {}

    def part(low: int, high: int) -> list[pa.Array]:
        try:
            return [convert_all(values.slice(low, high - low))]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
            if high - low == 1:
                errors[low] = f"column {column!r}: {shown(values[low])} is no {type_name(to)}"
                return [pa.nulls(1, to)]
        middle = (low + high) // 2
        return [*part(low, middle), *part(middle, high)]

    pieces = part(0, len(values))
    return (pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)), errors


def shown(value: Any) -> str:
    """A value as messages show it, shortened."""
    plain = plain_value(value) if isinstance(value, pa.Scalar) else value
    if isinstance(plain, bytes):
        plain = plain.decode("utf-8", "backslashreplace")
    text = repr(plain)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
