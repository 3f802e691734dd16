"""Declared aggregates, their partial forms, and the arrays that accumulate them.

The partial form of an aggregate is one column under its own name (count: int64; sum: int64 or
double; min, max: the input's type; null: nothing yet), and for avg two: ``name.sum`` (double) and
``name.count`` (int64). Partial forms of the same key can be merged in any grouping.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import MillraceError, TopologyError
from millrace.state.keyed import kernels
from millrace.state.keyed.keybytes import Array

_ONE = np.ones(1, np.int64)
_ALL_VALID = np.empty(0, np.uint8)
for _constant in (_ONE, _ALL_VALID):
    _constant.setflags(write=False)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One declared result: ``function`` is count, sum, min, max or avg, of a column.

    ``count`` without a column counts rows.
    """

    name: str
    function: str
    of: str | None = None


class AggregateOverflowError(MillraceError):
    """A sum left the range of 64-bit integers; ``group`` is the key group of its key, ``hashed``
    the key's hash."""

    def __init__(self, aggregate: str, key: str, group: int, hashed: int) -> None:
        super().__init__(
            f"sum {aggregate} of key {key} leaves the range of 64-bit integers; sum a column of "
            "type double, or of smaller numbers"
        )
        self.aggregate, self.key, self.group, self.hashed = aggregate, key, group, hashed

    def __reduce__(self) -> tuple[type[AggregateOverflowError], tuple[str, str, int, int]]:
        return AggregateOverflowError, (self.aggregate, self.key, self.group, self.hashed)


@dataclass(frozen=True, slots=True)
class PartialColumn:
    """One partial column: how it merges (sum, min or max) and its Arrow type."""

    name: str
    merge: str
    kind: pa.DataType
    nullable: bool


def partial_columns(aggregate: Aggregate, inputs: pa.Schema) -> list[PartialColumn]:
    """The partial columns of an aggregate over rows of a schema.

    Raises ``TopologyError`` for an unknown function or column, or a type it cannot take.
    """
    name = aggregate.name
    if aggregate.function == "count":
        if aggregate.of is not None:
            _input_type(aggregate, inputs)
        return [PartialColumn(name, "sum", pa.int64(), False)]
    kind = _input_type(aggregate, inputs)
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    ordered = number or pa.types.is_temporal(kind) or kind in (pa.bool_(), pa.string())
    if aggregate.function == "sum" and number and kind != pa.uint64():
        total = pa.int64() if pa.types.is_integer(kind) else pa.float64()
        return [PartialColumn(name, "sum", total, True)]
    if aggregate.function in ("min", "max") and ordered and kind != pa.uint64():
        return [PartialColumn(name, aggregate.function, kind, True)]
    if aggregate.function == "avg" and number:
        total = PartialColumn(f"{name}.sum", "sum", pa.float64(), False)
        return [total, PartialColumn(f"{name}.count", "sum", pa.int64(), False)]
    decimal = pa.types.is_decimal(kind)
    in_front = f"; in SQL in front of it, CAST(... AS double) AS {aggregate.of}" if decimal else ""
    raise TopologyError(
        f"aggregate {name}: {aggregate.function} cannot be taken of column {aggregate.of} of type "
        f"{kind}; functions are count (anything), sum and avg (numbers), min and max (numbers, "
        f"booleans, dates, timestamps, strings){in_front}"
    )


def partials(aggregate: Aggregate, rows: pa.RecordBatch) -> list[pa.Array]:
    """Partial columns of single rows, one for each of ``partial_columns``."""
    if aggregate.of is None:
        return [pa.array(np.ones(rows.num_rows, np.int64))]
    column = rows.column(aggregate.of)
    if aggregate.function == "count":
        return [column.is_valid().cast(pa.int64())]
    if aggregate.function == "avg":
        # Not safe: a whole number beyond 2**53 that no double is becomes the nearest one.
        total = pc.fill_null(column.cast(pa.float64(), safe=False), 0.0)
        return [total, column.is_valid().cast(pa.int64())]
    if aggregate.function == "sum":
        integer = pa.types.is_integer(column.type)
        return [column.cast(pa.int64() if integer else pa.float64())]
    return [column]


def final(aggregate: Aggregate, columns: Sequence[pa.Array]) -> pa.Array:
    """The declared result from its partial columns."""
    if aggregate.function != "avg":
        return columns[0]
    total, count = columns
    return pc.if_else(pc.greater(count, 0), pc.divide(total, count.cast(pa.float64())), None)


def accumulator_of(part: PartialColumn) -> Accumulator | TextAccumulator:
    """An empty accumulator for one partial column."""
    return TextAccumulator(part) if part.kind == pa.string() else Accumulator(part)


class NumberColumn:
    """Growing arrays behind one column of numbers, booleans or instants: the value of each row, and
    whether it has one."""

    def __init__(self, kind: pa.DataType, nullable: bool = True) -> None:
        self.kind = kind
        self._nullable = nullable
        self._dtype: Any = np.float64 if pa.types.is_floating(kind) else np.int64
        self._held: Array = np.zeros(16, self._dtype)
        self._seen: Array = np.zeros(16, np.uint8)

    @property
    def size_bytes(self) -> int:
        return self._held.nbytes + self._seen.nbytes

    def reserve(self, first: int, rows: int) -> None:
        """Have room for ``rows`` rows; those from ``first`` on start anew."""
        if rows > len(self._held):
            size = max(rows, 2 * len(self._held))
            held, seen = np.zeros(size, self._dtype), np.zeros(size, np.uint8)
            held[:first], seen[:first] = self._held[:first], self._seen[:first]
            self._held, self._seen = held, seen
        self._held[first:rows] = 0
        self._seen[first:rows] = 0

    def replace(self, rows: Array, column: pa.Array) -> None:
        """Set rows to the values of a column; raises as ``converted``, with nothing changed."""
        self.restore(rows, self.converted(column))

    def converted(self, column: pa.Array) -> tuple[Array, ...]:
        """The values of a column as ``save`` gives them; raises ``pa.ArrowException``,
        ``ValueError`` or ``OverflowError`` for one that cannot be held."""
        values, valid = self._arrays(column)
        if not len(valid):
            return values, np.ones(len(column), np.uint8)
        return np.where(valid, values, 0), valid

    def save(self, rows: Array) -> tuple[Array, ...]:
        """What rows hold now, for ``restore``."""
        return self._held[rows], self._seen[rows]

    def restore(self, rows: Array, saved: tuple[Array, ...]) -> None:
        self._held[rows], self._seen[rows] = saved

    def clear(self, rows: Array) -> None:
        """Let rows start anew."""
        self._held[rows] = 0
        self._seen[rows] = 0

    def present(self, saved: tuple[Array, ...]) -> Array:
        """Mask of the rows that had a value when they were saved."""
        found: Array = saved[1] != 0
        return found

    def differs(self, rows: Array, saved: tuple[Array, ...]) -> Array:
        """Mask of the rows that do not hold what was saved, bit for bit."""
        held, seen = self._held[rows].view(np.int64), self._seen[rows]
        found: Array = (held != saved[0].view(np.int64)) | (seen != saved[1])
        return found

    def column(self, rows: Array) -> pa.Array:
        """The values of rows."""
        held, seen = self._held[rows], self._seen[rows]
        mask = None if not self._nullable or seen.all() else seen == 0
        if self._dtype is np.float64:
            return pa.array(held, pa.float64(), mask=mask).cast(self.kind)
        array = pa.array(held, pa.int64(), mask=mask)
        if pa.types.is_date32(self.kind) or pa.types.is_time32(self.kind):
            return array.cast(pa.int32()).view(self.kind)
        return array.view(self.kind) if pa.types.is_temporal(self.kind) else array.cast(self.kind)

    def _arrays(self, column: pa.Array) -> tuple[Array, Array]:
        """Values (int64 or float64) and flags, read-only like those of keys."""
        if pa.types.is_date32(column.type) or pa.types.is_time32(column.type):
            column = column.view(pa.int32())
        elif pa.types.is_temporal(column.type):
            column = column.view(pa.int64())
        column = column.cast(pa.float64() if self._dtype is np.float64 else pa.int64())
        valid = _ALL_VALID
        if column.null_count:
            valid = column.is_valid().to_numpy(zero_copy_only=False).view(np.uint8)
        buffer = column.buffers()[1]
        if buffer is None or len(column) == 0:
            values = np.empty(0, self._dtype)
        else:
            values = np.frombuffer(buffer, self._dtype)
            values = values[column.offset : column.offset + len(column)]
        values = np.require(values, requirements=("C", "ALIGNED"))
        values.setflags(write=False)
        valid.setflags(write=False)
        return values, valid


class Accumulator(NumberColumn):
    """A partial column of numbers, with what is merged into it."""

    def __init__(self, part: PartialColumn) -> None:
        super().__init__(part.kind, part.nullable)
        self.part = part

    def merge(self, rows: Array, column: pa.Array) -> int:
        """Merge partial values into rows; an item that overflowed, or -1."""
        values, valid = self._arrays(column)
        if self.part.merge != "sum":
            largest = self.part.merge == "max"
            kernels.keep_extremes(self._held, self._seen, rows, values, valid, largest)
        elif self._dtype is np.float64:
            kernels.add_floats(self._held, self._seen, rows, values, valid)
        else:
            return int(kernels.add_integers(self._held, self._seen, rows, values, valid))
        return -1

    def count(self, rows: Array) -> None:
        """Add one to each row, as often as it is named."""
        kernels.add_integers(self._held, self._seen, rows, _ONE, _ALL_VALID)


class ObjectColumn:
    """A growing array of Python objects behind one column of texts, bytes or lists; as
    ``NumberColumn``."""

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind
        self._held: Array = np.full(16, None, object)
        self._size_bytes = 0
        self._floats = _has_floats(kind)

    @property
    def size_bytes(self) -> int:
        return self._held.nbytes + self._size_bytes

    def reserve(self, first: int, rows: int) -> None:
        """Have room for ``rows`` rows; those from ``first`` on start anew."""
        if rows > len(self._held):
            held = np.full(max(rows, 2 * len(self._held)), None, object)
            held[:first] = self._held[:first]
            self._held = held
        self._set(slice(first, rows), [None] * (rows - first))

    def replace(self, rows: Array, column: pa.Array) -> None:
        """Set rows to the values of a column; raises as ``converted``, with nothing changed."""
        self.restore(rows, self.converted(column))

    def converted(self, column: pa.Array) -> tuple[Array, ...]:
        """The values of a column as ``save`` gives them; raises as that of ``NumberColumn``, also
        for a text that is not UTF-8 and an instant that Python has not."""
        return (_objects(column.to_pylist()),)

    def save(self, rows: Array) -> tuple[Array, ...]:
        """What rows hold now, for ``restore``."""
        return (self._held[rows],)

    def restore(self, rows: Array, saved: tuple[Array, ...]) -> None:
        self._set(rows, saved[0].tolist())

    def clear(self, rows: Array) -> None:
        """Let rows start anew."""
        self._set(rows, [None] * len(rows))

    def present(self, saved: tuple[Array, ...]) -> Array:
        """Mask of the rows that had a value when they were saved."""
        return np.array([one is not None for one in saved[0].tolist()], bool)

    def differs(self, rows: Array, saved: tuple[Array, ...]) -> Array:
        """Mask of the rows that do not hold what was saved, numbers in lists bit for bit."""
        pairs = zip(self._held[rows].tolist(), saved[0].tolist(), strict=True)
        if self._floats:
            return np.array([_bits(now) != _bits(before) for now, before in pairs], bool)
        return np.array([now != before for now, before in pairs], bool)

    def column(self, rows: Array) -> pa.Array:
        """The values of rows."""
        return pa.array(self._held[rows].tolist(), self.kind)

    def _set(self, rows: Array | slice, values: list[Any]) -> None:
        self._size_bytes -= _bytes_in(self._held[rows].tolist())
        self._size_bytes += _bytes_in(values)
        self._held[rows] = _objects(values)


class TextAccumulator(ObjectColumn):
    """The first or last text of each row, in the order of code points, as an ``Accumulator``."""

    def __init__(self, part: PartialColumn) -> None:
        super().__init__(part.kind)
        self.part = part

    def merge(self, rows: Array, column: pa.Array) -> int:
        """Merge partial values into rows; there is none that overflows."""
        table = pa.table({"row": rows, "text": column})
        found = table.group_by("row", use_threads=False).aggregate([("text", self.part.merge)])
        first = self.part.merge == "min"
        merged, texts = found["row"].to_numpy(), found[f"text_{self.part.merge}"].to_pylist()
        held = self._held[merged].tolist()
        for at, text in enumerate(texts):
            if text is not None and (held[at] is None or (text < held[at]) == first):
                held[at] = text
        self._set(merged, held)
        return -1


def column_of(kind: pa.DataType) -> NumberColumn | ObjectColumn:
    """An empty column of a declared type."""
    plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return NumberColumn(kind) if plain or pa.types.is_temporal(kind) else ObjectColumn(kind)


def _objects(values: list[Any]) -> Array:
    # Without the text numpy would make a matrix of lists that are equally long.
    return np.array([*values, ""], object)[:-1]


def _has_floats(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        return _has_floats(kind.value_type)
    return bool(pa.types.is_floating(kind))


def _bits(value: Any) -> Any:
    """A form of a float, or of lists of them, that equals that of the same bits alone: 0.0 == -0.0,
    and what is not a number equals nothing."""
    if isinstance(value, float):
        return struct.pack("d", value)
    if not isinstance(value, list):
        return value
    try:
        return array("d", value).tobytes()
    except TypeError:  # None or a list is among them
        return [_bits(one) for one in value]


def _bytes_in(values: Iterable[Any]) -> int:
    """Memory of texts, bytes and lists, as CPython has it for ASCII ones, about."""
    size = 0
    for value in values:
        if isinstance(value, str | bytes):
            size += 49 + len(value)
        elif isinstance(value, list):
            size += 56 + 8 * len(value) + _bytes_in(value)
        elif value is not None:
            size += 32
    return size


def _input_type(aggregate: Aggregate, inputs: pa.Schema) -> pa.DataType:
    if aggregate.of is None or aggregate.of not in inputs.names:
        raise TopologyError(
            f"aggregate {aggregate.name}: {aggregate.function} is of column {aggregate.of!r}, "
            f"which its input has not; it has {', '.join(inputs.names)}"
        )
    return inputs.field(aggregate.of).type
