"""What both forms of user state share: typed columns by key, and how state objects are read.

``DictState`` hands a dict for each key to a function, ``ColumnState`` an array of many keys for
each column. Their objects are the same, so a processor may go from one form to the other and finds
its state. A key whose columns are all null is the same as a key without state: it is not stored,
and was deleted if it was there before.
"""

from __future__ import annotations

import datetime as dt
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.clock import moment_of
from millrace.state.errors import StateSchemaError
from millrace.state.keyed import blobs
from millrace.state.keyed.ages import Ages, bare, parted
from millrace.state.keyed.blobs import Blob
from millrace.state.keyed.keybytes import Array, check_key_type
from millrace.state.keyed.keys import groups_in, order_by_group, shown_columns, shown_key
from millrace.state.keyed.keys import key_groups as group_of
from millrace.state.keyed.keytable import KeyTable
from millrace.state.keyed.migrations import NO_MIGRATIONS, Migration, Migrations, Row

DELETED = "__deleted"
"""The column of a state object, behind those of the user, that marks a key as deleted. It is known
by its place: one of the user's may be called the same."""


class TypedState(ABC):
    """State by key. ``key_groups`` is K.

    With ``ttl_ms`` a key that was not updated for so long has no state (``ages``). ``migrations``
    bring state of other columns into these.
    """

    kind = "dict"

    def __init__(
        self,
        keys: pa.Schema,
        values: pa.Schema,
        key_groups: int,
        ttl_ms: int = 0,
        migrations: Migrations = NO_MIGRATIONS,
    ) -> None:
        self._migrations = migrations
        self.key_groups = key_groups
        self._ages = Ages(ttl_ms) if ttl_ms else None
        self._time_ms = 0
        self._keys = [field.remove_metadata() for field in keys]
        self._columns = [field.remove_metadata() for field in values]
        for field in self._keys:
            check_key_type(field.name, field.type)
        self.empty: Row = {field.name: None for field in self._columns}
        self.problem_of: Callable[[Row], str | None] = _checker(self._columns)
        self.columns = blobs.digest_of_columns(self.schema, self.kind)
        self._table = KeyTable([field.type for field in self._keys])
        self._kept_rows = 0
        self._changing = False
        self._deleted = 0

    @property
    def schema(self) -> pa.Schema:
        """Columns of state objects: keys, values, and the mark of deleted keys."""
        return pa.schema([*self._keys, *self._columns, pa.field(DELETED, pa.bool_())])

    @property
    def timed(self) -> bool:
        """Whether keys expire."""
        return self._ages is not None

    @property
    def size(self) -> int:
        """Number of keys with state, as of the last commit or rollback, at most."""
        return self._table.rows - self._deleted

    @property
    def broken(self) -> bool:
        """Whether a change was interrupted half-way, so that nothing can be undone."""
        return self._changing

    def begin(self, time_ms: int = 0) -> None:
        """Start an attempt of a window of this time: nothing is touched, and from here all can be
        undone."""
        self._time_ms = time_ms
        self._table.begin()
        self._kept_rows = self._table.rows
        self._forget_undo()
        if self._ages is not None:
            self._ages.begin(time_ms)

    def commit(self) -> None:
        """Keep what the attempt changed; frees deleted and expired keys when they are many."""
        self._settle()
        if self._ages is not None and self._ages.sweep_due():
            rows = np.arange(self._table.rows)
            self._remove(rows[self._ages.expired(rows)])
        if self._deleted > 1024 and 2 * self._deleted > self._table.rows:
            self._compact()
        self.begin(self._time_ms)

    def rollback(self) -> None:
        """Undo what the attempt changed."""
        self._restore()
        self._table.truncate(self._kept_rows)
        if self._ages is not None:
            self._ages.rollback()
        self.begin(self._time_ms)

    def touched(self) -> Array:
        """Table rows (int64) that this attempt touched, each once, ascending."""
        return self._table.touched_in_order()

    def groups(self, rows: Array) -> Array:
        """Key groups (int64) of table rows."""
        return group_of(self._table.hashes(rows), self.key_groups)

    def check_columns(self, schema: pa.Schema) -> None:
        """Raises ``StateSchemaError`` unless rows of an object of this schema can be applied."""
        self._migration(schema)

    @abstractmethod
    def find(self, keys: Sequence[pa.Array]) -> Array:
        """Table row (int64) of each key; all of them count as touched."""

    # -- state objects

    def base(self, groups: int = -1) -> Blob:
        """State object of all keys in key groups (mask; -1: all) that have state; raises as
        ``delta``."""
        rows = np.arange(self._table.rows)
        if groups != -1:
            rows = rows[groups_in(self.groups(rows), groups)]
        rows = rows[self._present(rows)]
        return self._blob(rows if self._ages is None else rows[~self._ages.expired(rows)])

    @abstractmethod
    def delta(self) -> Blob | None:
        """State object of the changed keys, deleted ones marked; None when nothing changed. Raises
        ``StateValueError`` for a value that does not have its declared type."""

    def apply(self, batch: pa.RecordBatch) -> Array:
        """Set keys to what the rows of a state object hold, each key once; not within an attempt.
        Returns the table row (int64) of each."""
        keys, columns, times = self._read(batch)
        self._changing = True
        self._table.begin()
        known = self._table.rows
        found = self._table.find_or_insert(keys)
        self._reserve(known)
        self._deleted += self._table.rows - known + int(self._present(found).sum())
        self._set(found, columns)
        self._deleted -= int(self._present(found).sum())
        if self._ages is not None:
            self._ages.reserve(known, self._table.rows)
            self._ages.load(found, times)
        self.begin(self._time_ms)
        self._changing = False
        return found

    def forget(self, groups: int, but: Array) -> None:
        """Forget the keys of key groups (mask) but for some table rows (int64); not within an
        attempt."""
        goes = groups_in(self.groups(np.arange(self._table.rows)), groups)
        goes[but] = False
        self._remove(np.flatnonzero(goes))

    # -- what rows of the table hold, in the form of each

    @abstractmethod
    def _forget_undo(self) -> None:
        """What the last attempt changed stays."""

    @abstractmethod
    def _settle(self) -> None:
        """Count, of the rows that the attempt touched, those that lost their state or got it."""

    @abstractmethod
    def _restore(self) -> None:
        """Have rows that were there before the attempt hold what they held."""

    @abstractmethod
    def _present(self, rows: Array) -> Array:
        """Mask of the rows that have state."""

    @abstractmethod
    def _clear(self, rows: Array) -> None:
        """Let rows have no state."""

    @abstractmethod
    def _reserve(self, known: int) -> None:
        """Let the table's rows from ``known`` on have no state."""

    @abstractmethod
    def _set(self, rows: Array, columns: list[pa.Array]) -> None:
        """Let rows, each named once, hold those of arrays."""

    @abstractmethod
    def _keep(self, rows: Array) -> None:
        """Let row 0 hold what the first of these held, and so on; the others are no more."""

    @abstractmethod
    def _arrays(self, rows: Array) -> list[pa.Array]:
        """What rows hold, an array for each column. Raises ``StateValueError``."""

    def _remove(self, rows: Array) -> None:
        self._deleted += int(self._present(rows).sum())
        self._clear(rows)

    def _compact(self) -> None:
        """Build the table anew without the keys that have no state."""
        rows = np.arange(self._table.rows)
        rows = rows[self._present(rows)]
        keys = self._table.keys(rows)
        self._table = KeyTable([field.type for field in self._keys])
        self._table.find_or_insert(keys)
        self._keep(rows)
        if self._ages is not None:
            self._ages.load(np.arange(len(rows)), self._ages.of(rows))
        self._deleted = 0

    def _blob(self, rows: Array) -> Blob:
        order, starts = order_by_group(self._table.hashes(rows), self.key_groups)
        rows = rows[order]
        columns = [*self._table.keys(rows), *self._arrays(rows), pa.array(~self._present(rows))]
        batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        times = None if self._ages is None else self._ages.of(rows)
        return blobs.write_sorted(batch, starts, self.kind, self._time_ms, times)

    def _read(self, batch: pa.RecordBatch) -> tuple[list[pa.Array], list[pa.Array], Array]:
        """Keys and today's columns of an object's rows, and the times (int64) of these."""
        migration = self._migration(batch.schema)
        batch, times = parted(batch)
        keys, columns = batch.columns[: len(self._keys)], batch.columns[len(self._keys) : -1]
        if migration is not None:
            columns = self._migrated(migration, keys, columns, times)
        return keys, columns, times

    def _migration(self, schema: pa.Schema) -> Migration | None:
        """What rows of an object of this schema need, None: nothing. Raises ``StateSchemaError``
        where they cannot be read."""
        stored = bare(schema).remove_metadata()
        if stored == self.schema:
            return None
        fields = list(stored)
        others = fields[len(self._keys) : -1]
        same = fields[: len(self._keys)] == self._keys and fields[-1].name == DELETED
        migration = self._migrations.find(others) if same else None
        if migration is None:
            raise StateSchemaError(
                f"stored state has columns ({shown_columns(stored)}), the function now declares "
                f"({shown_columns(self.schema)}): say how to get from one to the other with "
                "@migrates, give the processor another name, or start over with --fresh"
            )
        return migration

    def _migrated(
        self,
        migration: Migration,
        keys: Sequence[pa.Array],
        columns: Sequence[pa.Array],
        times: Array,
    ) -> list[pa.Array]:
        """Columns of today from rows of other columns."""
        rows = []
        names = list(self.empty)
        gone = np.zeros(len(times), bool) if self._ages is None else self._ages.past(times)
        old = pa.RecordBatch.from_arrays(list(columns), schema=pa.schema(migration.columns))
        with self._migrations.watch() as progress:
            for at, held in enumerate(old.to_pylist()):
                if gone[at] or not is_present(held):
                    rows.append(self.empty)  # user code never sees what has expired
                    continue

                def key(at: int = at) -> str:
                    return shown_key(keys, at)

                progress()
                rows.append(self._migrations.convert(migration, held, names, self.problem_of, key))
        return [pa.array([row[f.name] for row in rows], f.type) for f in self._columns]


def is_present(row: Row) -> bool:
    """Whether a key with such a dict has state."""
    for value in row.values():  # noqa: SIM110 - a generator takes five times as long
        if value is not None:
            return True
    return False


def _checker(columns: Sequence[pa.Field]) -> Callable[[Row], str | None]:
    """Function that says what is wrong with a dict; quick for the usual types."""
    kinds = {field.name: field.type for field in columns}
    quick = {field.name: _exact_type(field.type) for field in columns}

    def slow(row: Row, name: str) -> str | None:
        if name not in kinds:
            return f"it has no column {name}; its columns are {', '.join(kinds)}"
        try:
            if row[name] is not None:
                row[name] = _as_stored(row[name], kinds[name])
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            return f"column {name} of type {kinds[name]} cannot hold {row[name]!r} ({error})"
        return None

    def check(row: Row) -> str | None:
        for name, value in row.items():
            exact: Any = quick.get(name)
            if type(value) is exact:
                if exact is int:
                    if -_SMALL <= value < _SMALL:
                        continue
                elif exact is not str or value.isascii():
                    continue
            if (problem := slow(row, name)) is not None:
                return problem
        return None

    if len(columns) != 1 or not quick[columns[0].name]:
        return check
    only = columns[0].name
    exact: Any = quick[only]

    def check_one(row: Row) -> str | None:
        """The same for one column, in half the time: a count or a total of each key."""
        value: Any = row.get(only)
        if type(value) is exact and len(row) == 1:
            if exact is int:
                if -_SMALL <= value < _SMALL:
                    return None
            elif exact is not str or value.isascii():
                return None
        return check(row)

    return check_one


def _as_stored(value: Any, kind: pa.DataType) -> Any:
    """The value as it will be read back; raises where Arrow would quietly store another one."""
    stored = pa.scalar(value, kind).as_py()
    if not (_only_rounded(stored, value) if _rounds(kind) else _equal(stored, value)):
        raise ValueError(f"it would become {stored!r}")
    return stored


def _equal(stored: Any, value: Any) -> bool:
    """Whether two values are equal, as NaN is to itself and 0.0 to -0.0, and a moment without a
    zone to that in UTC."""
    if isinstance(stored, list) and isinstance(value, Sequence) and len(stored) == len(value):
        return all(map(_equal, stored, value))
    if isinstance(stored, dt.date) and isinstance(value, dt.date):
        return moment_of(stored) == moment_of(value)
    return bool(stored == value or (stored != stored and value != value))


def _only_rounded(stored: Any, value: Any) -> bool:
    """Whether no number has become infinite."""
    if isinstance(stored, list):
        return all(map(_only_rounded, stored, value))
    return not isinstance(stored, float) or not math.isinf(stored) or math.isinf(value)


def _rounds(kind: pa.DataType) -> bool:
    """Whether values of a type are rounded on purpose: floats of less than 64 bits."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _rounds(kind.value_type)
    return kind in (pa.float16(), pa.float32())


_SMALL = 1 << 31


def _exact_type(kind: pa.DataType) -> type | None:
    """The Python type whose values surely fit (ints of 32 bits, strings of ASCII), if any."""
    if kind in (pa.int64(), pa.int32()):
        return int
    if kind == pa.float64():
        return float
    if kind == pa.bool_():
        return bool
    if kind == pa.binary():
        return bytes
    if kind == pa.string():
        return str
    return None
