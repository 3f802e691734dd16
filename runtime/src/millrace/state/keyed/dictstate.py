"""State of a stateful Python function inside a worker: one dict for each key, typed by a schema.

A key whose columns are all None is the same as a key without state: it is not stored, and was
deleted if it was there before. Undo works as in ``AggregateState``: dicts are copied at their
first touch. Not safe for use by several threads.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.errors import MillraceError
from millrace.state.errors import StateSchemaError
from millrace.state.keyed import blobs
from millrace.state.keyed.ages import Ages, bare, parted
from millrace.state.keyed.aggregatestate import order_by_group
from millrace.state.keyed.blobs import Blob
from millrace.state.keyed.keybytes import Array, check_key_type
from millrace.state.keyed.keys import groups_in
from millrace.state.keyed.keys import key_groups as group_of
from millrace.state.keyed.keytable import KeyTable
from millrace.state.keyed.migrations import NO_MIGRATIONS, Migration, Migrations

Row = dict[str, Any]

DELETED = "__deleted"
"""The column of a state object, behind those of the user, that marks a key as deleted. It is known
by its place: one of the user's may be called the same."""

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


class DictState:
    """Typed dicts by key. ``key_groups`` is K.

    ``find`` gives table rows for keys; ``values[row]`` is the dict to hand to the function, which
    may change it in place. A function that cleared its dict gets ``empty`` back by ``revive``.
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
        self.values: list[Row] = []
        self._keys = [field.remove_metadata() for field in keys]
        self._columns = [field.remove_metadata() for field in values]
        for field in self._keys:
            check_key_type(field.name, field.type)
        self.empty: Row = {field.name: None for field in self._columns}
        nested = any(pa.types.is_nested(field.type) for field in self._columns)
        self.copy: Callable[[Row], Row] = copy.deepcopy if nested else dict
        self.problem_of: Callable[[Row], str | None] = _checker(self._columns)
        self.columns = blobs.digest_of_columns(self.schema, self.kind)
        self._table = KeyTable([field.type for field in self._keys])
        self._kept_rows = 0
        self._saved: dict[int, Row] = {}
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
    def size_bytes(self) -> int:
        ages = self._ages.size_bytes if self._ages is not None else 0
        return self._table.size_bytes + ages + _ROW_BYTES * len(self.values)

    @property
    def broken(self) -> bool:
        """Whether a change was interrupted half-way, so that nothing can be undone."""
        return self._changing

    # -- a window attempt

    def begin(self, time_ms: int = 0) -> None:
        """Start an attempt of a window of this time: nothing is touched, and from here all can be
        undone."""
        self._time_ms = time_ms
        self._table.begin()
        self._kept_rows = self._table.rows
        self._saved = {}
        if self._ages is not None:
            self._ages.begin(time_ms)

    def commit(self) -> None:
        """Keep what the attempt changed; frees deleted and expired keys when they are many."""
        for row in self._table.touched().tolist():
            held = _present(self._saved.get(row, self.empty))
            present = _present(self.values[row])
            if not present:
                self.values[row] = dict(self.empty)
            if row >= self._kept_rows:
                self._deleted += not present
            else:
                self._deleted += held - present
        if self._ages is not None and self._ages.sweep_due():
            self._sweep(self._ages)
        if self._deleted > 1024 and 2 * self._deleted > self._table.rows:
            self._compact()
        self.begin(self._time_ms)

    def rollback(self) -> None:
        """Undo what the attempt changed."""
        for row, saved in self._saved.items():
            self.values[row] = saved
        del self.values[self._kept_rows :]
        self._table.truncate(self._kept_rows)
        if self._ages is not None:
            self._ages.rollback()
        self.begin(self._time_ms)

    def find(self, keys: Sequence[pa.Array]) -> Array:
        """Table row (int64) of each key, for ``values``; all of them count as touched."""
        self._changing = True
        touched, rows = self._table.touched_count, self._table.rows
        found = self._table.find_or_insert(keys)
        self.values += [dict(self.empty) for _ in range(self._table.rows - len(self.values))]
        fresh = self._table.touched(touched)
        values, duplicate, saved = self.values, self.copy, self._saved
        known = fresh[fresh < self._kept_rows]
        for row in known.tolist():
            saved[row] = duplicate(values[row])
        if self._ages is not None:
            self._ages.reserve(rows, self._table.rows)
            for row in known[self._ages.meet(known)].tolist():
                values[row] = dict(self.empty)
        self._changing = False
        return found

    def updated(self, row: int, before: Row) -> None:
        """Note after a call that a key's dict was ``before`` ahead of it: one that the call has
        changed is as young as the window. To be asked where keys expire (``timed``)."""
        if self._ages is not None and self.values[row] != before:
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

    def touched(self) -> Array:
        """Table rows (int64) that this attempt touched, each once, ascending."""
        return np.sort(self._table.touched())

    def groups(self, rows: Array) -> Array:
        """Key groups (int64) of table rows."""
        return group_of(self._table.hashes(rows), self.key_groups)

    # -- blobs

    def delta(self) -> Blob | None:
        """State object of the changed keys, deleted ones marked; None when nothing changed.

        Raises ``StateValueError`` when a value does not have its declared type.
        """
        changed = []
        ages = self._ages
        times = ages.before() if ages is not None else {}
        for row in self._table.touched().tolist():
            before = self._saved.get(row, self.empty)
            now = self.values[row]
            young = ages is not None and ages.of(row) != times.get(row, 0)
            if (now != before and _present(before)) or ((now != before or young) and _present(now)):
                changed.append(row)
        rows = np.array(changed, np.int64)
        return self._blob(rows) if len(rows) else None

    def base(self, groups: int = -1) -> Blob:
        """State object of all keys in key groups (mask; -1: all) that have state; raises as
        ``delta``."""
        rows = np.arange(len(self.values))
        if groups != -1:
            rows = rows[groups_in(self.groups(rows), groups)]
        present = [row for row in rows.tolist() if _present(self.values[row])]
        rows = np.array(present, np.int64)
        return self._blob(rows if self._ages is None else rows[~self._ages.expired(rows)])

    def check_columns(self, schema: pa.Schema) -> None:
        """Raises ``StateSchemaError`` unless rows of an object of this schema can be applied."""
        self._migration(schema)

    def apply(self, batch: pa.RecordBatch) -> Array:
        """Set keys to the dicts of a state object's rows; not within an attempt. Returns the table
        row (int64) of each."""
        migration = self._migration(batch.schema)
        batch, times = parted(batch)
        names = list(self.empty)
        if migration is None:
            columns = [column.to_pylist() for column in batch.columns[len(self._keys) : -1]]
        else:
            columns = self._migrated(migration, batch, names, times)
        self._changing = True
        self._table.begin()
        known = self._table.rows
        found = self._table.find_or_insert(batch.columns[: len(self._keys)])
        self._deleted += self._table.rows - known
        self.values += [dict(self.empty) for _ in range(self._table.rows - len(self.values))]
        if self._ages is not None:
            self._ages.reserve(known, self._table.rows)
            self._ages.load(found, times)
        for row, held in zip(found.tolist(), zip(*columns, strict=True), strict=True):
            self._deleted += _present(self.values[row])
            self.values[row] = dict(zip(names, held, strict=True))
            self._deleted -= _present(self.values[row])
        self.begin(self._time_ms)
        self._changing = False
        return found

    def forget(self, groups: int, but: Array) -> None:
        """Forget the keys of key groups (mask) but for some table rows (int64); not within an
        attempt."""
        goes = groups_in(self.groups(np.arange(self._table.rows)), groups)
        goes[but] = False
        for row in np.flatnonzero(goes).tolist():
            self._deleted += _present(self.values[row])
            self.values[row] = dict(self.empty)

    # -- helpers

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
                f"stored state has columns ({_shown(stored)}), the function now declares "
                f"({_shown(self.schema)}): say how to get from one to the other with @migrates, "
                "give the processor another name, or start over with --fresh"
            )
        return migration

    def _migrated(
        self, migration: Migration, batch: pa.RecordBatch, names: list[str], times: Array
    ) -> list[list[Any]]:
        """Columns of today from rows of other columns."""
        rows = []
        gone = np.zeros(len(times), bool) if self._ages is None else self._ages.past(times)
        old = pa.RecordBatch.from_arrays(
            batch.columns[len(self._keys) : -1], schema=pa.schema(migration.columns)
        )
        with self._migrations.watch() as progress:
            for at, held in enumerate(old.to_pylist()):
                if gone[at] or not _present(held):
                    rows.append(self.empty)  # user code never sees what has expired
                    continue

                def key(at: int = at) -> str:
                    return ", ".join(
                        str(column[at].as_py()) for column in batch.columns[: len(self._keys)]
                    )

                progress()
                rows.append(self._migrations.convert(migration, held, names, self.problem_of, key))
        return [[row[name] for row in rows] for name in names]

    def _sweep(self, ages: Ages) -> None:
        """Forget the dicts of expired keys."""
        rows = np.arange(self._table.rows)
        for row in rows[ages.expired(rows)].tolist():
            self._deleted += _present(self.values[row])
            self.values[row] = dict(self.empty)

    def _compact(self) -> None:
        """Build the table anew without the keys that have no state."""
        present = [row for row, held in enumerate(self.values) if _present(held)]
        rows = np.array(present, np.int64)
        keys = self._table.keys(rows)
        self._table = KeyTable([field.type for field in self._keys])
        self._table.find_or_insert(keys)
        if self._ages is not None:
            self._ages.load(np.arange(len(rows)), self._ages.of(rows))
        self.values = [self.values[row] for row in present]
        self._deleted = 0

    def _blob(self, rows: Array) -> Blob:
        order, starts = order_by_group(self._table.hashes(rows), self.key_groups)
        rows = rows[order]
        held = [self.values[row] for row in rows.tolist()]
        columns = [self._column(field, rows, held) for field in self._columns]
        deleted = pa.array([not _present(one) for one in held], pa.bool_())
        batch = pa.RecordBatch.from_arrays(
            [*self._table.keys(rows), *columns, deleted], schema=self.schema
        )
        times = None if self._ages is None else self._ages.of(rows)
        return blobs.write_sorted(batch, starts, self.kind, self._time_ms, times)

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
        key = ", ".join(str(column[0].as_py()) for column in self._table.keys(where))
        return StateValueError(key, problem, int(self.groups(where)[0]))


def _present(row: Row) -> bool:
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

    return check


def _as_stored(value: Any, kind: pa.DataType) -> Any:
    """The value as it will be read back; raises where Arrow would quietly store another one."""
    stored = pa.scalar(value, kind).as_py()
    if stored != value and value == value and not _rounds(kind):
        raise ValueError(f"it would become {stored!r}")
    return stored


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


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
