"""Hash table from keys to dense row numbers, with a cheap way back to an earlier state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from millrace.state.keyed import kernels, keybytes, views
from millrace.state.keyed.keybytes import Array, KeyBytes

_SPARSE_SLOTS = 1 << 16
"""Below, slots are quadrupled when half full, else doubled: small tables are sparse and fast."""


_SPARSE_SHARE = 32
"""Rows that are fewer than one in so many are sorted; of more a mask is sooner made and read."""

_ROOM_FROM = 1 << 12
"""A table of fewer keys has soon grown to its size."""


class Room(NamedTuple):
    """How many keys a table has, and how many bytes they take."""

    keys: int = 0
    key_bytes: int = 0


class KeyTable:
    """Rows 0, 1, 2, ... for the keys of columns of the given types, in order of insertion.

    Keys are compared by their bytes, never by their hash alone. ``begin`` starts a round;
    ``find_or_insert`` notes which rows a round touched first; ``truncate`` takes the newest
    rows out again. Not safe for use by several threads.
    """

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self.types = tuple(types)
        self._slots: Array = np.zeros(64, np.uint64)
        self._meta: Array = np.empty((16, 4), np.int64)
        self._arena: Array = np.empty(256, np.uint8)
        self._sizes: Array = np.zeros(3, np.int64)
        self._touched: Array = np.empty(16, np.int64)
        self._round = 0
        self._front: views.Front | None = None

    @property
    def rows(self) -> int:
        return int(self._sizes[0])

    @property
    def size_bytes(self) -> int:
        """Memory that the table holds."""
        held = (self._slots, self._meta, self._arena, self._touched)
        return sum(array.nbytes for array in held)

    @property
    def room(self) -> Room:
        """What its keys take now."""
        return Room(int(self._sizes[0]), int(self._sizes[1]))

    def make_room(self, room: Room) -> int:
        """Be as large at once as so many keys will need; for a table that is empty. Returns for how
        many keys.

        One that grows to a million keys looks up half a million of them once more, and copies all
        that it has time and again.
        """
        if self.rows or room.keys < _ROOM_FROM:
            return 0
        keys = room.keys + room.keys // 8
        slots = max(_SPARSE_SLOTS, 1 << (2 * keys).bit_length())
        self._slots = np.zeros(slots, np.uint64)
        self._meta = np.empty((keys, 4), np.int64)
        self._arena = np.empty(room.key_bytes + room.key_bytes // 8 + 1, np.uint8)
        self._touched = np.empty(keys, np.int64)
        return keys

    def begin(self) -> None:
        """Start a round: no row is touched yet."""
        self._round += 1
        self._sizes[2] = 0
        self._front = None

    @property
    def touched_count(self) -> int:
        """Number of rows touched in this round."""
        return int(self._sizes[2])

    def touched(self, since: int = 0) -> Array:
        """Copy of the rows (int64) touched in this round, in that order, without the first
        ``since``."""
        return self._touched[since : int(self._sizes[2])].copy()

    def touched_in_order(self) -> Array:
        """The rows (int64) touched in this round, ascending."""
        touched = self._touched[: self.touched_count]
        if len(touched) * _SPARSE_SHARE < self.rows:
            return np.sort(touched)
        mask = np.zeros(self.rows, bool)
        mask[touched] = True
        return np.flatnonzero(mask)

    def find_or_insert(self, columns: Sequence[pa.Array]) -> Array:
        """Row of each key (int64), new ones for new keys; marks the rows as touched."""
        found = views.views_of(columns[0]) if len(columns) == 1 else None
        if found is not None:
            return self._find_views(*found)
        return self.find_or_insert_bytes(keybytes.encode(columns))

    def find_or_insert_bytes(self, keys: KeyBytes) -> Array:
        """``find_or_insert`` for keys in their byte form."""
        found = np.empty(len(keys), np.int64)
        done = 0
        while True:
            done = kernels.find_or_insert(
                keys.data, keys.offsets, keys.valid, done, self._slots, self._meta, self._arena,
                self._sizes, self._round, found, self._touched,
            )  # fmt: skip
            if done == len(found):
                return found
            self._grow(int(keys.offsets[done + 1] - keys.offsets[done]))

    def keys(self, rows: Array) -> list[pa.Array]:
        """The key columns of some rows."""
        places = np.empty((len(rows), 2), np.int64)
        kernels.pick_places(self._meta, rows, places)
        return keybytes.decode(self._arena, places, self.types)

    def hashes(self, rows: Array | None = None) -> Array:
        """Hashes (uint64) of some rows, or of all."""
        held: Any = self._meta[: self.rows, kernels.HASH]
        return np.ascontiguousarray(held if rows is None else held[rows]).view(np.uint64)

    def truncate(self, rows: int) -> None:
        """Take out all rows from number ``rows`` on."""
        if rows >= self.rows:
            return
        kernels.remove_from(self._slots, self._meta, rows, self.rows)
        self._front = None
        self._sizes[1] = self._meta[rows, kernels.START]
        self._sizes[0] = rows

    def _find_views(self, keys: Array, text: Array) -> Array:
        """``find_or_insert`` for string views; what the front knows was touched in this round."""
        if self._front is None:
            self._front = views.Front()
        return self._front.find(keys, text, self.find_or_insert_bytes)

    def _grow(self, key_bytes: int) -> None:
        """Make room for at least one more key of this size."""
        rows, used, touched = (int(size) for size in self._sizes)
        if rows >= len(self._meta):
            self._meta = _enlarged(self._meta, rows, 2 * rows)
        if used + key_bytes > len(self._arena):
            self._arena = _enlarged(self._arena, used, 2 * used + key_bytes)
        if touched >= len(self._touched):
            self._touched = _enlarged(self._touched, touched, 2 * touched)
        if 2 * rows >= len(self._slots):
            factor = 4 if len(self._slots) < _SPARSE_SLOTS else 2
            self._slots = np.zeros(factor * len(self._slots), np.uint64)
            kernels.rebuild(self._slots, self._meta, rows)


def _enlarged(array: Array, used: int, size: int) -> Array:
    larger = np.empty((size, *array.shape[1:]), array.dtype)
    larger[:used] = array[:used]
    return larger
