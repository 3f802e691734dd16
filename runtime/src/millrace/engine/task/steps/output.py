"""Rows that user code puts out as dicts, gathered and turned into Arrow with a blame for each."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.clock import moment_of
from millrace.engine.program.schema import OutputError
from millrace.engine.task.batch import Array
from millrace.errors import UserCodeError
from millrace.sources.arrow_types import type_name

_MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError)

_INTEGERS = (int, np.integer, type(None))

_MOST = float(np.finfo(np.float32).max)


class RowBuffer:
    """Output rows of one batch, with the index of each row's parent.

    ``add`` checks names at once; values are checked together in ``build``, and one by one only
    where that fails.
    """

    def __init__(self, schema: pa.Schema, processor: str) -> None:
        self._schema = schema
        self._processor = processor
        self._names = schema.names
        self._width = len(self._names)
        self._pick = itemgetter(*self._names)  # of one name: the value itself, no tuple
        self._rows: list[Any] = []
        self.parents: list[int] = []

    def __len__(self) -> int:
        return len(self.parents)

    def add(self, values: Mapping[str, Any], parent: int) -> None:
        """One row. Raises ``OutputError`` for a column too many or too few."""
        try:
            found = self._pick(values)
        except KeyError as missing:
            raise self._missing(missing.args[0], values) from None
        except (TypeError, IndexError):
            raise self._no_row(values) from None
        if len(values) != self._width:
            raise self._extra(values)
        self._rows.append(found)
        self.parents.append(parent)

    def add_all(self, result: Any, parent: int) -> None:
        """What a function returned for one tuple: nothing, a dict or several of them.

        A generator runs here, so what it raises is raised here; rows it gave before are dropped.
        """
        if result is None:
            return
        if isinstance(result, dict):
            self.add(result, parent)
            return
        if not isinstance(result, Iterable) or isinstance(result, str | bytes):
            raise OutputError(
                f"processor {self._processor!r} returned {type(result).__name__}; return None, a "
                "dict or several dicts"
            )
        mark = len(self.parents)
        try:
            for values in result:
                self.add(values, parent)
        except BaseException:
            self.cut(mark)
            raise

    def adder(self) -> Callable[[Any, int], None]:
        """``add_all`` for a loop over many tuples; quick where the result is one row, and to be
        asked for anew after ``build``."""
        pick, width, add_all = self._pick, self._width, self.add_all
        add_row, add_parent = self._rows.append, self.parents.append

        def add(result: Any, parent: int) -> None:
            if result.__class__ is dict and len(result) == width:
                try:
                    row = pick(result)
                except KeyError:
                    add_all(result, parent)  # says what is missing
                else:
                    add_row(row)
                    add_parent(parent)
            else:
                add_all(result, parent)

        return add

    def cut(self, length: int) -> None:
        """Drop rows from ``length`` on."""
        del self.parents[length:]
        del self._rows[length:]

    def cut_parent(self, parent: int) -> None:
        """Drop the rows of a parent, if they are the last ones."""
        length = len(self.parents)
        while length and self.parents[length - 1] == parent:
            length -= 1
        self.cut(length)

    def build(self) -> tuple[pa.RecordBatch, Array, dict[int, OutputError]]:
        """Rows, their parents (int64), and the parents left out because a row does not fit."""
        bad: dict[int, OutputError] = {}
        columns = self._columns()
        try:
            arrays = self._arrays(columns, pa.array)
        except _MISFITS:
            bad = self._find_misfits(columns)
            self._drop(set(bad))
            columns = self._columns()
            # Values that fit alone may not fit together: a struct as a dict, and as a tuple.
            arrays = self._arrays(columns, _one_by_one)
        if cut := self._find_cut(columns, arrays):
            bad |= cut
            self._drop(set(cut))
            arrays = self._arrays(self._columns(), _one_by_one)
        data = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return data, np.array(self.parents, np.int64), bad

    def _columns(self) -> list[Any]:
        if self._width == 1:
            return [self._rows]
        return [[row[place] for row in self._rows] for place in range(self._width)]

    def _arrays(self, columns: list[Any], make: Callable[..., pa.Array]) -> list[pa.Array]:
        made = [make(c, field.type) for c, field in zip(columns, self._schema, strict=True)]
        for array, field in zip(made, self._schema, strict=True):
            if isinstance(array, pa.ChunkedArray):
                raise UserCodeError(
                    f"processor {self._processor!r} puts out {len(self.parents):,} rows in one "
                    f"task, and their column {field.name!r} is more than the 2 GiB that one can "
                    "hold; lower spec.window.maxRecords, raise spec.parallelism, or put out less"
                )
        return made

    def _find_misfits(self, columns: list[Any]) -> dict[int, OutputError]:
        bad: dict[int, OutputError] = {}
        for column, field in zip(columns, self._schema, strict=True):
            for value, parent in zip(column, self.parents, strict=True):
                try:
                    pa.array([value], field.type)
                except _MISFITS:
                    bad.setdefault(parent, self._misfit(field, value))
        return bad

    def _find_cut(self, columns: list[Any], arrays: list[pa.Array]) -> dict[int, OutputError]:
        """Parents of rows of which Arrow has stored another value without a word: a number cut to
        an integer, or infinite; a moment that was a number, or finer; a day that was a moment."""
        bad: dict[int, OutputError] = {}
        for column, field, array in zip(columns, self._schema, arrays, strict=True):
            if not _is_exact(column, field.type):
                for value, stored, parent in zip(column, array, self.parents, strict=True):
                    if _is_cut(value, stored):
                        bad.setdefault(parent, self._misfit(field, value))
        return bad

    def _drop(self, parents: set[int]) -> None:
        keep = [i for i, parent in enumerate(self.parents) if parent not in parents]
        self.parents = [self.parents[i] for i in keep]
        self._rows = [self._rows[i] for i in keep]

    # -- errors

    def _misfit(self, field: pa.Field, value: Any) -> OutputError:
        return OutputError(
            f"processor {self._processor!r}, column {field.name!r}: expected "
            f"{type_name(field.type)}, got {type(value).__name__} {value!r}"[:300]
        )

    def _missing(self, name: str, values: Mapping[str, Any]) -> OutputError:
        field = self._schema.field(name)
        return OutputError(
            f"processor {self._processor!r} did not put out its column {name!r} "
            f"({type_name(field.type)}), only {', '.join(map(str, values)) or 'nothing'}"
        )

    def _extra(self, values: Mapping[str, Any]) -> OutputError:
        extra = next(name for name in values if name not in self._names)
        return OutputError(
            f"processor {self._processor!r} put out the column {extra!r}, which it does not "
            f"declare; declared are {', '.join(self._names)}"
        )

    def _no_row(self, values: Any) -> OutputError:
        return OutputError(
            f"processor {self._processor!r} put out {type(values).__name__}, expected a dict"
        )


def _one_by_one(values: Sequence[Any], kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """In pieces where one array cannot hold as much."""
    arrays = [pa.array([], kind), *(pa.array([value], kind) for value in values)]
    try:
        return pa.concat_arrays(arrays)
    except pa.ArrowInvalid as error:
        if "offset overflow" not in str(error):
            raise
        return pa.chunked_array(arrays)


def _is_exact(values: Collection[Any], kind: pa.DataType) -> bool:
    """Whether Arrow surely stores these values as they are, as far as is seen at once."""
    if pa.types.is_integer(kind):
        return all(issubclass(one, _INTEGERS) for one in set(map(type, values)))
    if pa.types.is_timestamp(kind):
        return set(map(type, values)) <= {dt.datetime, type(None)}
    if pa.types.is_date(kind):
        return set(map(type, values)) <= {dt.date, type(None)}
    if pa.types.is_float32(kind):
        return not any(value is not None and abs(value) > _MOST for value in values)
    if not kind.num_fields or not _may_be_cut(kind):
        return True
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lists = (value for value in values if value is not None)
        return _is_exact(list(chain.from_iterable(lists)), kind.value_type)
    if pa.types.is_struct(kind):
        held = [value for value in values if value is not None]
        # As Arrow itself gives them: what a function hands on is quick.
        return set(map(type, held)) <= {dict} and all(
            _is_exact([value.get(field.name) for value in held], field.type) for field in kind
        )
    return False


def _may_be_cut(kind: pa.DataType) -> bool:
    inner = (kind.field(n).type for n in range(kind.num_fields))
    return _is_loose(kind) or any(map(_may_be_cut, inner))


def _is_loose(kind: pa.DataType) -> bool:
    """Whether Arrow makes values of such a type of others that are not equal to them."""
    tests = (pa.types.is_integer, pa.types.is_timestamp, pa.types.is_date, pa.types.is_float32)
    return any(test(kind) for test in tests)


def _is_moment(value: Any, stored: dt.datetime) -> bool:
    """Whether a moment is that which is stored."""
    if isinstance(value, dt.datetime):
        return moment_of(value) == stored
    return isinstance(value, dt.date)


def _is_day(value: Any, stored: dt.date) -> bool:
    """Whether a day, or the moment at which it begins in UTC, is that which is stored."""
    if isinstance(value, dt.datetime):
        return moment_of(value) == moment_of(stored)
    return isinstance(value, dt.date)


def _is_cut(value: Any, stored: pa.Scalar) -> bool:
    """Whether a value, or one deep in it, is stored as another one."""
    kind = stored.type
    if not stored.is_valid or not _may_be_cut(kind):
        return False
    if pa.types.is_float32(kind):
        return math.isinf(stored.as_py()) and not math.isinf(value)
    if pa.types.is_timestamp(kind):
        return not _is_moment(value, stored.as_py())
    if pa.types.is_date(kind):
        return not _is_day(value, stored.as_py())
    if pa.types.is_integer(kind):
        return bool(stored.as_py() != value)
    if pa.types.is_struct(kind):
        places = value.items() if isinstance(value, Mapping) else zip(stored, value, strict=False)
        return any(_is_cut(one, stored[name]) for name, one in places if name in stored)
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        held = zip(pairs, stored.values, strict=True)
        return any(_is_cut(one, entry[n]) for pair, entry in held for n, one in enumerate(pair))
    return any(_is_cut(one, held) for one, held in zip(value, stored.values, strict=True))
