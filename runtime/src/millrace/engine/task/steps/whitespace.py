"""Where words lie in a text column: what stands between white space, as ``str.split()`` sees it.

The loop looks at 64 bytes at once: which are white space is a number of 64 bits, and so is where
words begin and end. Numba does not check bounds; nothing is read outside of the column's bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numba import types

from millrace.compiled.jit import jit, kernel, vector
from millrace.compiled.pointers import (
    bits_set,
    bytes_between,
    load8,
    load64,
    pointer,
    store8,
    trailing_zeros,
)
from millrace.engine.task.batch import Array

INLINE = 12
"""Bytes of a text that an Arrow string view holds itself."""

_BYTES_A_WORD = 4
"""Room that is made at first: words of natural text take more, with the space behind them."""

_U0, _U1 = np.uint64(0), np.uint64(1)
_SIX, _HALF, _TOP = np.uint64(6), np.uint64(32), np.uint64(63)
_NO = np.int64(0)
_ALL, _SPACE = np.uint64(0xFFFFFFFFFFFFFFFF), np.uint8(0x20)

_controls, _separators = bytes_between(0x09, 0x0D), bytes_between(0x1C, 0x20)
"""White space of one byte."""

_latin, _others = bytes_between(0xC2, 0xC2), bytes_between(0xE1, 0xE3)
"""What the UTF-8 of white space beyond ASCII begins with."""

_AT_ONCE = 1_024
"""Words whose beginnings and ends are known before the first is written: they stay in the cache."""

_ROOM = _AT_ONCE + 64
_KEPT = [(1 << 8 * count) - 1 for count in range(INLINE + 1)]
_KEPT_LOW = np.array([kept & 0xFFFFFFFFFFFFFFFF for kept in _KEPT], np.uint64)
_KEPT_HIGH = np.array([kept >> 64 for kept in _KEPT], np.uint64)
"""What of 16 bytes belongs to a word of so many."""

_MOST = 16
"""Beginnings, or ends, of 64 bytes that are noted without a look at how many they are: more are
rare, and what is too many is written over."""


@jit
def _wide_space(data: Any, at: Any, end: Any) -> int:
    """Bytes of the white space beyond ASCII at ``at``, 0 where there is none."""
    first = load8(data, at)
    if first == 0xC2:
        if at + 2 > end:
            return 0
        second = load8(data, at + 1)
        return 2 * int(second == 0x85 or second == 0xA0)
    if at + 3 > end:
        return 0
    second, third = load8(data, at + 1), load8(data, at + 2)
    if first == 0xE1:
        return 3 * int(second == 0x9A and third == 0x80)
    if first == 0xE3:
        return 3 * int(second == 0x80 and third == 0x80)
    if second == 0x80:
        return 3 * int(third <= 0x8A or third == 0xA8 or third == 0xA9 or third == 0xAF)
    return 3 * int(second == 0x81 and third == 0x9F)


@jit
def _with_wide(data: Any, at: Any, end: Any, leads: Any, white: Any) -> Any:
    """``white`` with the white space beyond ASCII that begins at one of ``leads``, and what of it
    is in the 64 bytes behind."""
    behind = _U0
    while leads != _U0:
        place = trailing_zeros(leads)
        leads &= leads - _U1
        size = np.uint64(_wide_space(data, at + np.int64(place), end))
        space = (_U1 << size) - _U1
        white |= space << place
        if place + size > np.uint64(64):
            behind = space >> (np.uint64(64) - place)
    return white, behind


@jit
def _note(bits: Any, at: Any, places: Any, count: Any) -> Any:
    """Write where bits are set, counted from ``at``; how many places there are then."""
    found = np.int64(bits_set(bits))
    for i in range(_MOST):
        places[count + i] = at + np.int64(trailing_zeros(bits))
        bits &= bits - _U1
    for i in range(_MOST, found):
        places[count + i] = at + np.int64(trailing_zeros(bits))
        bits &= bits - _U1
    return count + found


@jit
def _lowest(data: Any, at: Any, count: Any, size: int) -> Any:
    """A number of ``count`` bytes (at most 8), with zeros above."""
    if at + 8 <= size:
        # Two shifts, since one by all 64 bits is none; no branch, since lengths cannot be foretold.
        half = np.uint64(4 * count)
        return load64(data, at) & ~((_ALL << half) << half)
    number = np.uint64(0)
    for i in range(count):
        number |= load8(data, at + i) << np.uint64(8 * i)
    return number


@jit
def _write(
    data: Any, size: Any, offsets: Any, null: Any, begins: Any, ends: Any, words: Any, row: Any,
    views: Any, rows: Any, count: Any,
) -> Any:  # fmt: skip
    """Write the views of words, and the row of each, which is ``row`` or behind it; how many there
    are then, and the row of the last one."""
    for word in range(words):
        start = begins[word]
        length = ends[word] - start
        while np.int64(offsets[row + 1]) <= start:
            row += 1
        if null.size > 0 and null[row]:
            continue
        if start + 16 <= size:
            low, high = load64(data, start), load64(data, start + 8)
        else:
            low = _lowest(data, start, min(length, 8), size)
            high = _lowest(data, start + 8, min(max(length - 8, 0), 8), size)
        kept = np.uint64(min(length, INLINE))
        low &= _KEPT_LOW[kept]
        high &= _KEPT_HIGH[kept]
        views[count, 0] = np.uint64(length) | (low << _HALF)
        inline = (low >> _HALF) | (high << _HALF)
        views[count, 1] = inline if length <= INLINE else np.uint64(start) << _HALF
        rows[count] = row
        count += 1
    return count, row


@kernel(
    (
        vector(types.uint8),
        vector(types.int32),
        vector(types.boolean),
        types.Array(types.uint64, 2, "C"),
        vector(types.int64, writable=True),
        vector(types.uint8, writable=True),
    )
)
def _find(text: Any, offsets: Any, null: Any, views: Any, rows: Any, tail: Any) -> Any:
    """Write a view of each word and the row that it stands in; how many, or -1: no room. ``tail``
    is for the last bytes: 64 of them."""
    data, size = pointer(text), text.size
    first, end = np.int64(offsets[0]), np.int64(offsets[offsets.size - 1])
    breaks = np.zeros((end - first) // 64 + 1, np.uint64)
    for offset in offsets[:-1]:
        place = np.uint64(np.int64(offset) - first)
        breaks[place >> _SIX] |= _U1 << (place & _TOP)
    begins, ends = np.empty(_ROOM, np.int64), np.empty(_ROOM, np.int64)
    begun, ended, count, row = _NO, _NO, _NO, _NO
    before, ahead = _U1, _U0
    tail[:] = _SPACE
    last = pointer(tail)
    for block in range(breaks.size):
        at = first + 64 * block
        if at + 64 <= end:
            white = _controls(data, at) | _separators(data, at)
            leads = _latin(data, at) | _others(data, at)
        else:
            for i in range(end - at):
                store8(last, i, load8(data, at + i))
            white = _controls(last, 0) | _separators(last, 0)
            leads = _latin(last, 0) | _others(last, 0)
        white |= ahead
        ahead = _U0
        if leads != _U0:
            white, ahead = _with_wide(data, at, end, leads, white)
        behind = (white << _U1) | before
        before = white >> _TOP
        cut = breaks[block]
        begun = _note(~white & (behind | cut), at, begins, begun)
        ended = _note(~behind & (white | cut), at, ends, ended)
        if begun >= _AT_ONCE or block == breaks.size - 1:
            if count + ended > rows.size:
                return -1
            count, row = _write(
                data, size, offsets, null, begins, ends, ended, row, views, rows, count
            )
            if begun > ended:  # a word that does not end here
                begins[0] = begins[ended]
            begun -= ended
            ended = _NO
    return count


class Finder:
    """Finds words, in memory that it keeps: views hold until it is asked again."""

    def __init__(self) -> None:
        self._views = np.empty((0, 2), np.uint64)
        self._rows = np.empty(0, np.int64)
        self._tail = np.empty(64, np.uint8)

    def views(self, text: pa.Array) -> tuple[pa.Array, Array]:
        """The words of a string column as views, and the row (int64) of each."""
        _, offsets_buffer, bytes_buffer = text.buffers()
        if not len(text) or bytes_buffer is None or not bytes_buffer.size:
            return pa.array([], pa.string_view()), np.empty(0, np.int64)
        held = np.frombuffer(offsets_buffer, np.int32)
        offsets = held[text.offset : text.offset + len(text) + 1]
        data = np.frombuffer(bytes_buffer, np.uint8)
        null = np.zeros(0, bool)
        if text.null_count:
            null = text.is_null().to_numpy(zero_copy_only=False)
        self._reserve(int(offsets[-1] - offsets[0]) // _BYTES_A_WORD + len(text))
        while (count := self._find(data, offsets, null)) < 0:
            self._reserve(2 * len(self._rows))
        views = pa.py_buffer(self._views[:count])
        found = pa.Array.from_buffers(pa.string_view(), count, [None, views, bytes_buffer])
        return found, self._rows[:count]

    def _find(self, data: Array, offsets: Array, null: Array) -> int:
        return int(_find(data, offsets, null, self._views, self._rows, self._tail))

    def _reserve(self, words: int) -> None:
        if words > len(self._rows):
            self._views = np.empty((words, 2), np.uint64)
            self._rows = np.empty(words, np.int64)
