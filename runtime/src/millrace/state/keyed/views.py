"""Keys that are Arrow string views: most are found again without looking at a byte of them.

A view is 16 bytes: the length and up to 12 bytes of the text, or the length, 4 bytes and where the
text lies. For short texts these 16 bytes are the key itself. A *front* keeps rows of short keys of
this round by them: each has one of two places beside each other, the second where the first is
taken, from whatever other key is there. What it does not know is looked up in the table by its
bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numba import njit

from millrace.compiled.pointers import load8, load32, load64, pointer, store32, store64
from millrace.state.keyed import keybytes
from millrace.state.keyed.keybytes import Array, KeyBytes

_BLOCK, _FIRST_BLOCK = 16_384, 1_024
"""Keys looked up at a time, and at first: what one block brings to the front helps the next."""

_INLINE = np.uint64(12)
_FRONT_BITS = 14
_SHIFT = np.uint64(64 - _FRONT_BITS)
_BESIDE = np.uint64(1)
_LOW, _S32 = np.uint64(0xFFFFFFFF), np.uint64(32)
_M1, _M2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_NO_TEXT = np.zeros(1, np.uint8)
_NO_TEXT.setflags(write=False)


def views_of(column: pa.Array) -> tuple[Array, Array] | None:
    """The views (uint64, n by 2) of a column of string views and the bytes that they point to.

    None for any other column, and for one with nulls or several buffers of bytes.
    """
    if not isinstance(column, pa.Array) or not pa.types.is_string_view(column.type):
        return None
    buffers = column.buffers()
    if column.null_count or len(buffers) > 3:
        return None
    held = np.frombuffer(buffers[1], np.uint64).reshape(-1, 2)
    views = held[column.offset : column.offset + len(column)]
    views.setflags(write=False)
    if len(buffers) < 3 or not buffers[2].size:
        return views, _NO_TEXT
    text = np.frombuffer(buffers[2], np.uint8)
    text.setflags(write=False)
    return views, text


_SHARE_TO_KNOW = 4
"""A front that knows fewer than one key in so many costs more than it saves."""


class Front:
    """Rows of short keys by their views, for as long as no row is taken out of the table."""

    def __init__(self) -> None:
        # The two halves of a view, and row + 1; 32 bytes, two of which are about a cache line.
        self._places: Array = np.zeros((1 << _FRONT_BITS, 4), np.uint64)
        self._met = 0
        self._useful = True

    def find(self, keys: Array, text: Array, table: Callable[[KeyBytes], Array]) -> Array:
        """The row (int64) of each key; ``table`` finds those that are not known here.

        ``keys`` and ``text`` are those of ``views_of``.
        """
        found = np.empty(len(keys), np.int64)
        misses = np.empty(min(len(keys), _BLOCK), np.int64)
        at = 0
        while at < len(keys):
            size = min(_BLOCK, max(_FIRST_BLOCK, self._met))
            block, rows = keys[at : at + size], found[at : at + size]
            at += len(block)
            if not self._useful:
                rows[:] = table(_bytes_of(block, text, np.arange(len(block))))
                continue
            count = _look_up(self._places, block, rows, misses)
            if count:
                others = misses[:count]
                _learn(self._places, block, others, table(_bytes_of(block, text, others)), rows)
            self._judge(len(block), len(block) - count)
        return found

    def _judge(self, keys: int, known: int) -> None:
        """Give up where there are too many keys; the first block had all to learn."""
        if self._met >= _BLOCK:
            self._useful = _SHARE_TO_KNOW * known >= keys
        self._met += keys


def _bytes_of(views: Array, text: Array, places: Array) -> KeyBytes:
    """The keys at some places as bytes one behind the other."""
    offsets = np.zeros(len(places) + 1, np.int64)
    _measure(views, places, offsets)
    data = np.empty(int(offsets[-1]) + 12, np.uint8)
    _gather(views, text, places, offsets, data)
    for array in (data, offsets):
        array.setflags(write=False)
    return KeyBytes(data, offsets, keybytes.ALL_VALID)


@njit(cache=True, inline="always")
def _place(a, b):  # type: ignore[no-untyped-def]
    return ((a ^ (b * _M1)) * _M2) >> _SHIFT


@njit(cache=True, nogil=True)
def _look_up(front, views, rows, misses):  # type: ignore[no-untyped-def]
    """Write the row of each key that is known, and the places of the others; how many."""
    others = np.int64(0)
    for i in range(views.shape[0]):
        a, b = views[i, 0], views[i, 1]
        place = _place(a, b)
        row = front[place, 2]
        known = (front[place, 0] == a) & (front[place, 1] == b) & (row != 0)
        rows[i] = np.int64(row) - 1
        misses[others] = i
        others += 1 - np.int64(known)  # no branch: which are known is as good as random
    count = np.int64(0)
    for other in range(others):
        i = misses[other]
        a, b = views[i, 0], views[i, 1]
        place = _place(a, b) ^ _BESIDE
        row = front[place, 2]
        known = (front[place, 0] == a) & (front[place, 1] == b) & (row != 0)
        rows[i] = np.int64(row) - 1
        misses[count] = i
        count += 1 - np.int64(known)
    return count


@njit(cache=True, nogil=True)
def _measure(views, places, offsets):  # type: ignore[no-untyped-def]
    for i in range(places.size):
        offsets[i + 1] = offsets[i] + np.int64(views[places[i], 0] & _LOW)


@njit(cache=True, nogil=True)
def _gather(views, text, places, offsets, data):  # type: ignore[no-untyped-def]
    inline, outside, out = pointer(views), pointer(text), pointer(data)
    for i in range(places.size):
        place, at = places[i], offsets[i]
        length = offsets[i + 1] - at
        if length <= 12:
            # All 12 bytes; the next key is written over those that are none.
            store64(out, at, load64(inline, place * 16 + 4))
            store32(out, at + 8, load32(inline, place * 16 + 12))
        else:
            start = np.int64(views[place, 1] >> _S32)
            for k in range(length):
                data[at + k] = load8(outside, start + k)


@njit(cache=True, nogil=True)
def _learn(front, views, places, found, rows):  # type: ignore[no-untyped-def]
    """Write the rows that were found for the keys at some places, and keep those of short ones."""
    for i in range(places.size):
        at = places[i]
        rows[at] = found[i]
        a, b = views[at, 0], views[at, 1]
        if (a & _LOW) <= _INLINE:
            place = _place(a, b)
            if front[place, 2] != 0 and (front[place, 0] != a or front[place, 1] != b):
                place ^= _BESIDE
            front[place, 0], front[place, 1] = a, b
            front[place, 2] = np.uint64(found[i] + 1)
