"""Rows that user code puts out as dicts, gathered and turned into Arrow with a blame for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.engine.program.schema import OutputError
from millrace.engine.task.batch import Array
from millrace.sources.arrow_types import type_name

_MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError)


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
        arrays = self._arrays(columns)
        if arrays is None:
            bad = self._find_misfits(columns)
            self._drop(set(bad))
            arrays = self._arrays(self._columns())
            assert arrays is not None
        data = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return data, np.array(self.parents, np.int64), bad

    def _columns(self) -> list[Any]:
        if self._width == 1:
            return [self._rows]
        return [[row[place] for row in self._rows] for place in range(self._width)]

    def _arrays(self, columns: list[Any]) -> list[pa.Array] | None:
        try:
            return [
                pa.array(column, field.type)
                for column, field in zip(columns, self._schema, strict=True)
            ]
        except _MISFITS:
            return None

    def _find_misfits(self, columns: list[Any]) -> dict[int, OutputError]:
        bad: dict[int, OutputError] = {}
        for column, field in zip(columns, self._schema, strict=True):
            for value, parent in zip(column, self.parents, strict=True):
                try:
                    pa.array([value], field.type)
                except _MISFITS:
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
