"""The stand-alone ack table: trees of roots that live without windows, 20 bytes each.

A record is (root id, check value, task id), kept in three arrays under open addressing with
linear probing. Its life: the first ``init`` or ``update`` makes it, ``init`` adds the seed and says
which task to tell, further updates XOR ids in, and the record leaves the table in the call that
makes a seeded one zero. An update may overtake its ``init``; a record that is zero but not
seeded is not complete, it is one that nothing is known about yet.

Source: the ack record and its life cycle of the tuple tracking paper; deletion
by backward shift after Knuth, The Art of Computer Programming 3, algorithm 6.4R, so that no
tombstones pile up. Slots are chosen by multiplication (Lemire 2016, "A fast alternative to the
modulo reduction"), so any capacity will do and memory follows the number of records closely.
"""

from __future__ import annotations

import numpy as np
from numba import types

from millrace.errors import ProtocolError
from millrace.tracking.ids import U32, U64
from millrace.tracking.jit import jit, kernel, vector
from millrace.tracking.kernels import mix64_compiled

RECORD_BYTES = 20
MAX_LOAD = 0.75
_GROWTH = 1.5

_EMPTY = np.uint32(0xFFFF_FFFF)
_UNSEEDED = np.uint32(0xFFFF_FFFE)
MAX_TASK = 0xFFFF_FFFD
"""Highest task id; the two above mark an empty slot and a record that waits for its seed."""

_MISSING = np.int64(-1)
_HALF = np.uint64(32)
_ROOTS, _CHECKS, _TASKS = (
    vector(types.uint64, writable=True),
    vector(types.uint64, writable=True),
    vector(types.uint32, writable=True),
)


@jit
def _home(root: np.uint64, capacity: int) -> np.int64:
    """Preferred slot: the upper half of the scrambled root, scaled to the capacity."""
    return np.int64(((mix64_compiled(root) >> _HALF) * np.uint64(capacity)) >> _HALF)


@jit
def _find(roots: U64, tasks: U32, root: np.uint64) -> np.int64:
    """Slot of a root, or minus one minus the empty slot where it would go."""
    capacity = roots.shape[0]
    slot = _home(root, capacity)
    while tasks[slot] != _EMPTY:
        if roots[slot] == root:
            return slot
        slot += 1
        if slot == capacity:
            slot = np.int64(0)
    return _MISSING - slot


@jit
def _remove(roots: U64, checks: U64, tasks: U32, slot: np.int64) -> None:
    """Empty a slot and move up what probing would no longer reach."""
    capacity = roots.shape[0]
    hole = slot
    probe = slot
    while True:
        probe += 1
        if probe == capacity:
            probe = np.int64(0)
        if tasks[probe] == _EMPTY:
            break
        # The record may fill the hole unless its home lies cyclically in (hole, probe].
        home = _home(roots[probe], capacity)
        behind = probe - home
        if behind < 0:
            behind += capacity
        reach = probe - hole
        if reach < 0:
            reach += capacity
        if behind >= reach:
            roots[hole] = roots[probe]
            checks[hole] = checks[probe]
            tasks[hole] = tasks[probe]
            hole = probe
    tasks[hole] = _EMPTY


@kernel(
    (
        _ROOTS,
        _CHECKS,
        _TASKS,
        vector(types.uint64),
        vector(types.uint64),
        vector(types.uint32),
        types.int64,
        types.int64,
        vector(types.uint64, writable=True),
        vector(types.uint32, writable=True),
    )
)
def _apply(
    roots: U64,
    checks: U64,
    tasks: U32,
    keys: U64,
    values: U64,
    owners: U32,
    start: int,
    room: int,
    done_roots: U64,
    done_tasks: U32,
) -> tuple[int, int, int]:
    """XOR values into records; ``owners`` gives the task of each, or "unseeded" for updates.

    Begins at ``start`` and stops before it would add more than ``room`` records. Returns (where
    it stopped, records added less removed, records completed).
    """
    change = 0
    done = 0
    for i in range(start, keys.shape[0]):
        slot = _find(roots, tasks, keys[i])
        if slot < 0:
            if change == room:
                return i, change, done
            slot = _MISSING - slot
            roots[slot] = keys[i]
            checks[slot] = values[i]
            tasks[slot] = owners[i]
            change += 1
        else:
            checks[slot] ^= values[i]
            if owners[i] != _UNSEEDED:
                tasks[slot] = owners[i]
        if checks[slot] == 0 and tasks[slot] != _UNSEEDED:
            done_roots[done] = roots[slot]
            done_tasks[done] = tasks[slot]
            done += 1
            change -= 1
            _remove(roots, checks, tasks, slot)
    return keys.shape[0], change, done


@kernel((_ROOTS, _CHECKS, _TASKS, vector(types.uint64)))
def _drop(roots: U64, checks: U64, tasks: U32, keys: U64) -> int:
    """Remove records; returns how many were there."""
    removed = 0
    for i in range(keys.shape[0]):
        slot = _find(roots, tasks, keys[i])
        if slot >= 0:
            _remove(roots, checks, tasks, slot)
            removed += 1
    return removed


@kernel(
    (
        _ROOTS,
        _CHECKS,
        _TASKS,
        vector(types.uint64),
        vector(types.uint64),
        vector(types.uint32),
    )
)
def _refill(
    roots: U64, checks: U64, tasks: U32, old_roots: U64, old_checks: U64, old_tasks: U32
) -> None:
    for i in range(old_roots.shape[0]):
        if old_tasks[i] != _EMPTY:
            slot = _MISSING - _find(roots, tasks, old_roots[i])
            roots[slot] = old_roots[i]
            checks[slot] = old_checks[i]
            tasks[slot] = old_tasks[i]


class AckTable:
    """Check values of roots by root id; grows by half when it is three quarters full.

    Not safe for several threads. Arrays: root ids and values uint64, task ids uint32.
    """

    def __init__(self, capacity: int = 1024) -> None:
        if not 1 <= capacity < 1 << 32:
            raise ProtocolError(f"ack table: capacity is {capacity}; it must be 1 to 2^32-1")
        self._count = 0
        self._allocate(capacity)

    def __len__(self) -> int:
        """Records held."""
        return self._count

    @property
    def size_bytes(self) -> int:
        """Bytes of all slots, empty ones included."""
        return RECORD_BYTES * len(self._roots)

    def init(self, roots: U64, seeds: U64, tasks: U32) -> tuple[U64, U32]:
        """Seed roots with their tracking ids and say which task is to be told.

        Returns (roots, tasks) of those that are complete by it. Raises ``ProtocolError`` for a
        task id above ``MAX_TASK``.
        """
        if len(tasks) and int(tasks.max()) > MAX_TASK:
            raise ProtocolError(f"ack table: task id {tasks.max()} is above {MAX_TASK}")
        return self._fold(roots, seeds, np.ascontiguousarray(tasks, np.uint32))

    def update(self, roots: U64, values: U64) -> tuple[U64, U32]:
        """XOR what tasks emitted and processed; returns (roots, tasks) of the complete ones."""
        return self._fold(roots, values, np.full(len(roots), _UNSEEDED, np.uint32))

    def fail(self, roots: U64) -> int:
        """Give roots up; returns how many were held."""
        removed = int(_drop(self._roots, self._checks, self._tasks, _u64(roots)))
        self._count -= removed
        return removed

    def get(self, root: int) -> tuple[int, int | None] | None:
        """(check value, task id or ``None`` if not seeded) of a root, ``None`` if not held."""
        slot = int(_find(self._roots, self._tasks, np.uint64(root)))
        if slot < 0:
            return None
        task = self._tasks[slot]
        return int(self._checks[slot]), None if task == _UNSEEDED else int(task)

    def _fold(self, roots: U64, values: U64, owners: U32) -> tuple[U64, U32]:
        if not len(roots) == len(values) == len(owners):
            raise ProtocolError(
                f"ack table: {len(roots)} roots came with {len(values)} values and "
                f"{len(owners)} tasks"
            )
        keys, values = _u64(roots), _u64(values)
        done_roots, done_tasks = np.empty(len(roots), np.uint64), np.empty(len(roots), np.uint32)
        at, found = 0, 0
        while at < len(keys):
            table = (self._roots, self._checks, self._tasks)
            room = self._limit() - self._count
            rest = (done_roots[found:], done_tasks[found:])
            at, change, done = _apply(*table, keys, values, owners, at, room, *rest)
            self._count += change
            found += done
            if at < len(keys):
                self._grow()
        return done_roots[:found], done_tasks[:found]

    def _limit(self) -> int:
        """Records that may be held; one slot at least stays empty, or probing would not end."""
        return min(int(len(self._roots) * MAX_LOAD), len(self._roots) - 1)

    def _grow(self) -> None:
        old = (self._roots, self._checks, self._tasks)
        self._allocate(int(len(self._roots) * _GROWTH) + 2)
        _refill(self._roots, self._checks, self._tasks, *old)

    def _allocate(self, capacity: int) -> None:
        self._roots = np.zeros(capacity, np.uint64)
        self._checks = np.zeros(capacity, np.uint64)
        self._tasks = np.full(capacity, _EMPTY, np.uint32)


def _u64(values: U64) -> U64:
    return np.ascontiguousarray(values, np.uint64)
