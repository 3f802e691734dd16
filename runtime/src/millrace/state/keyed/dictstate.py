"""State of a stateful Python function inside a worker: one dict for each key, typed by a schema.

Undo works as in ``AggregateState``: dicts are copied at their first touch. Not safe for use by
several threads.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from math import copysign
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.errors import MillraceError
from millrace.state.keyed.blobs import Blob
from millrace.state.keyed.keybytes import Array
from millrace.state.keyed.keys import shown_key
from millrace.state.keyed.migrations import NO_MIGRATIONS, Migrations, Row
from millrace.state.keyed.typedstate import TypedState, is_present

_ROW_BYTES = 300


class StateValueError(MillraceError):
    """A value that a function left in its state does not have the declared type."""

    def __init__(self, key: str, problem: str, group: int) -> None:
        super().__init__(
            f"state of key {key}: {problem}; store what the declared state says, or declare "
            "another type"
        )
        self.key, self.problem, self.group = key, problem, group

    def __reduce__(self) -> tuple[type[StateValueError], tuple[str, str, int]]:
        return StateValueError, (self.key, self.problem, self.group)


class DictState(TypedState):
    """Typed dicts by key.

    ``find`` gives table rows for keys; ``values[row]`` is the dict to hand to the function, which
    may change it in place. A function that cleared its dict gets ``empty`` back by ``revive``.
    """

    def __init__(
        self,
        keys: pa.Schema,
        values: pa.Schema,
        key_groups: int,
        ttl_ms: int = 0,
        migrations: Migrations = NO_MIGRATIONS,
    ) -> None:
        super().__init__(keys, values, key_groups, ttl_ms, migrations)
        self.values: list[Row] = []
        nested = any(pa.types.is_nested(field.type) for field in self._columns)
        self.copy: Callable[[Row], Row] = copy.deepcopy if nested else dict.copy
        floats = any(_has_floats(field.type) for field in self._columns)
        self._same: Callable[[Row, Row], bool] = _same_row if floats else operator.eq
        self._saved: dict[int, Row] = {}

    @property
    def size_bytes(self) -> int:
        ages = self._ages.size_bytes if self._ages is not None else 0
        return self._table.size_bytes + ages + _ROW_BYTES * len(self.values)

    # -- a window attempt

    def find(self, keys: Sequence[pa.Array]) -> Array:
        """Table row (int64) of each key, for ``values``; all of them count as touched."""
        self._changing = True
        touched, rows = self._table.touched_count, self._table.rows
        found = self._table.find_or_insert(keys)
        self._reserve(rows)
        fresh = self._table.touched(touched)
        values, duplicate, saved = self.values, self.copy, self._saved
        known = fresh[fresh < self._kept_rows]
        for row in known.tolist():
            saved[row] = duplicate(values[row])
        if self._ages is not None:
            self._ages.reserve(rows, self._table.rows)
            self._clear(known[self._ages.meet(known)])
        self._changing = False
        return found

    def updated(self, row: int, before: Row) -> None:
        """Note after a call that a key's dict was ``before`` ahead of it: one that the call has
        changed is as young as the window. To be asked where keys expire (``timed``)."""
        if self._ages is not None and not self._same(self.values[row], before):
            self._ages.update(row)

    def revive(self, row: int) -> None:
        """Give a dict that was cleared its columns back, all None."""
        if len(self.values[row]) < len(self.empty):
            self.values[row] = {**self.empty, **self.values[row]}

    def check(self, row: int) -> str | None:
        """What is wrong with the dict that a function left behind, or None.

        To be asked after each call: it also replaces values (such as numpy's numbers, or floats
        of a 32-bit column) by what will be read back, and Arrow stores 1.5 in an integer column
        as 1 without a word. ``problem_of`` does the same for a dict.
        """
        return self.problem_of(self.values[row])

    # -- blobs

    def delta(self) -> Blob | None:
        changed = []
        ages = self._ages
        times = ages.before() if ages is not None else {}
        for row in self._table.touched().tolist():
            before = self._saved.get(row, self.empty)
            now = self.values[row]
            young = ages is not None and ages.of(row) != times.get(row, 0)
            differs = not self._same(now, before)
            if (differs and is_present(before)) or ((differs or young) and is_present(now)):
                changed.append(row)
        rows = np.array(changed, np.int64)
        return self._blob(rows) if len(rows) else None

    # -- what rows hold

    def _forget_undo(self) -> None:
        self._saved = {}

    def _settle(self) -> None:
        for row in self._table.touched().tolist():
            held = is_present(self._saved.get(row, self.empty))
            present = is_present(self.values[row])
            if not present:
                self.values[row] = dict(self.empty)
            if row >= self._kept_rows:
                self._deleted += not present
            else:
                self._deleted += held - present

    def _restore(self) -> None:
        for row, saved in self._saved.items():
            self.values[row] = saved
        del self.values[self._kept_rows :]

    def _present(self, rows: Array) -> Array:
        return np.array([is_present(self.values[row]) for row in rows.tolist()], bool)

    def _clear(self, rows: Array) -> None:
        for row in rows.tolist():
            self.values[row] = dict(self.empty)

    def _reserve(self, known: int) -> None:
        self.values += [dict(self.empty) for _ in range(self._table.rows - known)]

    def _set(self, rows: Array, columns: list[pa.Array]) -> None:
        names = list(self.empty)
        held = zip(*(column.to_pylist() for column in columns), strict=True)
        for row, one in zip(rows.tolist(), held, strict=True):
            self.values[row] = dict(zip(names, one, strict=True))

    def _keep(self, rows: Array) -> None:
        self.values = [self.values[row] for row in rows.tolist()]

    def _arrays(self, rows: Array) -> list[pa.Array]:
        held = [self.values[row] for row in rows.tolist()]
        return [self._column(field, rows, held) for field in self._columns]

    def _column(self, field: pa.Field, rows: Array, held: list[Row]) -> pa.Array:
        try:
            return pa.array([one.get(field.name) for one in held], field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            for row in rows.tolist():
                problem = self.check(row)
                if problem is not None:
                    raise self._wrong(row, problem) from error
            raise self._wrong(int(rows[0]), f"column {field.name}: {error}") from error

    def _wrong(self, row: int, problem: str) -> StateValueError:
        where = np.array([row], np.int64)
        key = shown_key(self._table.keys(where))
        return StateValueError(key, problem, int(self.groups(where)[0]))


def _has_floats(kind: pa.DataType) -> bool:
    return pa.types.is_floating(kind) or any(
        _has_floats(kind.field(n).type) for n in range(kind.num_fields)
    )


def _same_row(row: Row, other: Row) -> bool:
    """Whether two dicts are stored alike: NaN is itself, and 0.0 is not -0.0."""
    if len(row) != len(other):
        return False
    for name, value in row.items():  # noqa: SIM110 - a generator takes five times as long
        if not _same_bits(value, other.get(name)):
            return False
    return True


def _same_bits(value: Any, other: Any) -> bool:
    """Whether two values are the same, as NaN is and 0.0 and -0.0 are not."""
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(_same_bits, value, other))
    if value != other:
        return bool(value != value and other != other)
    return value != 0 or copysign(1, value) == copysign(1, other)
