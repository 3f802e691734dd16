"""Where words lie in a text column: what stands between white space, as ``str.split()`` sees it.

The loop looks at eight bytes at once for one that may be white space: a byte up to the space, or
one above ASCII. Numba does not check bounds; nothing is read outside of the column's bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numba import types

from millrace.compiled.jit import jit, kernel, vector
from millrace.compiled.pointers import load8, load64, pointer, trailing_zeros
from millrace.engine.task.batch import Array

INLINE = 12
"""Bytes of a text that an Arrow string view holds itself."""

_BYTES_A_WORD = 4
"""Room that is made at first: words of natural text take more, with the space behind them."""

_ONE, _LEAD = 1, 2
_CLASS = np.zeros(256, np.uint8)
_CLASS[[0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x1C, 0x1D, 0x1E, 0x1F, 0x20]] = _ONE
_CLASS[[0xC2, 0xE1, 0xE2, 0xE3]] = _LEAD
"""What a byte may begin: white space of one byte, or the UTF-8 of white space beyond ASCII."""

_TOPS, _BEHIND_SPACE = np.uint64(0x8080808080808080), np.uint64(0x2121212121212121)
_ALL, _THREE = np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(3)


@jit
def _space(data: Any, at: Any, end: Any) -> int:
    """Length of the white space character at ``at``, 0 where there is none."""
    first = load8(data, at)
    kind = _CLASS[first]
    if kind != _LEAD:
        return int(kind)
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
def _word_end(data: Any, at: Any, end: Any, size: int) -> Any:
    """First place from ``at`` on that is white space, or ``end``."""
    while at < end:
        if at + 8 <= size:
            eight = load64(data, at)
            # The lowest bit that is set is right; above it a subtraction may have borrowed.
            found = (((eight - _BEHIND_SPACE) & ~eight) | eight) & _TOPS
            if found == 0:
                at += 8
                continue
            at += np.int64(trailing_zeros(found) >> _THREE)
            if at >= end:
                break
        if _space(data, at, end) > 0:
            return at
        at += 1
    return end


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


@kernel(
    (
        vector(types.uint8),
        vector(types.int32),
        vector(types.boolean),
        types.Array(types.uint64, 2, "C"),
        vector(types.int64, writable=True),
    )
)
def _find(text: Any, offsets: Any, null: Any, views: Any, rows: Any) -> int:
    """Write a view of each word and the row that it stands in; how many, or -1: no room."""
    data, size = pointer(text), text.size
    count, room = 0, rows.size
    for row in range(offsets.size - 1):
        if null.size > 0 and null[row]:
            continue
        at, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        while at < end:
            space = _space(data, at, end)
            if space == 1:  # a number that is known: the next step need not wait for the byte
                at += 1
                continue
            if space > 1:
                at += space
                continue
            start = at
            at = _word_end(data, at + 1, end, size)
            if count == room:
                return -1
            length = at - start
            first = _lowest(data, start, min(length, 4), size)
            views[count, 0] = np.uint64(length) | (first << np.uint64(32))
            if length <= INLINE:
                views[count, 1] = _lowest(data, start + 4, max(length - 4, 0), size)
            else:
                views[count, 1] = np.uint64(start) << np.uint64(32)
            rows[count] = row
            count += 1
    return count


class Finder:
    """Finds words, in memory that it keeps: views hold until it is asked again."""

    def __init__(self) -> None:
        self._views = np.empty((0, 2), np.uint64)
        self._rows = np.empty(0, np.int64)

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
        while (count := _find(data, offsets, null, self._views, self._rows)) < 0:
            self._reserve(2 * len(self._rows))
        views = pa.py_buffer(self._views[:count])
        found = pa.Array.from_buffers(pa.string_view(), count, [None, views, bytes_buffer])
        return found, self._rows[:count]

    def _reserve(self, words: int) -> None:
        if words > len(self._rows):
            self._views = np.empty((words, 2), np.uint64)
            self._rows = np.empty(words, np.int64)
