"""Lines of a text as Arrow's strings have them: bytes without the newlines, and where each begins.

The loop takes eight bytes at once, and writes eight too: what is too many of them lies behind the
line, where the next one is written, and never behind as many bytes as were read. Numba does not
check bounds; nothing is read outside of the text.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import types

from millrace.compiled.jit import kernel, vector
from millrace.compiled.pointers import load8, load64, pointer, store64, trailing_zeros

_NEWLINE, _RETURN = 0x0A, 0x0D
_ONES, _TOPS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_NEWLINES, _RETURNS = np.uint64(0x0A0A0A0A0A0A0A0A), np.uint64(0x0D0D0D0D0D0D0D0D)
_THREE = np.uint64(3)
_BEYOND_ASCII, _HAS_RETURNS = 1, 2


@kernel(
    (
        vector(types.uint8),
        vector(types.int32, writable=True),
        vector(types.uint8, writable=True),
    )
)
def _cut(text: Any, offsets: Any, packed: Any) -> Any:
    """How many lines there are and what is in them (flags); -1 lines: no room for so many."""
    data, size, out = pointer(text), text.size, pointer(packed)
    at, to, lines, most = np.int64(0), np.int64(0), np.int64(0), offsets.size - 1
    high, returns = np.uint64(0), np.uint64(0)
    offsets[0] = 0
    while at + 8 <= size:
        eight = load64(data, at)
        store64(out, to, eight)
        high |= eight
        other = eight ^ _RETURNS
        returns |= (other - _ONES) & ~other & _TOPS
        other = eight ^ _NEWLINES
        # The lowest bit that is set is right; above it a subtraction may have borrowed.
        found = (other - _ONES) & ~other & _TOPS
        if found == 0:
            at += 8
            to += 8
            continue
        if lines == most:
            return np.int64(-1), np.int64(0)
        length = np.int64(trailing_zeros(found) >> _THREE)
        at += length + 1
        to += length
        lines += 1
        offsets[lines] = to
    while at < size:
        byte = load8(data, at)
        at += 1
        high |= byte
        if byte == _RETURN:
            returns |= _TOPS
        if byte != _NEWLINE:
            packed[to] = byte
            to += 1
            continue
        if lines == most:
            return np.int64(-1), np.int64(0)
        lines += 1
        offsets[lines] = to
    if to > offsets[lines]:  # the last line has no newline
        if lines == most:
            return np.int64(-1), np.int64(0)
        lines += 1
        offsets[lines] = to
    flags = np.int64(0)
    if high & _TOPS != 0:
        flags |= _BEYOND_ASCII
    if returns != 0:
        flags |= _HAS_RETURNS
    return lines, flags


class Packed(NamedTuple):
    """Lines one behind the other: line i is ``packed[offsets[i]:offsets[i + 1]]``."""

    offsets: npt.NDArray[np.int32]
    packed: npt.NDArray[np.uint8]
    ascii: bool
    returns: bool
    """Whether a carriage return is anywhere in the text."""


def cut(text: bytes, lines: int) -> Packed:
    """A text of less than 2 GiB cut at its newlines; behind the last one comes a line only if
    there is something. ``lines`` is about how many there are."""
    data = np.frombuffer(text, np.uint8)
    packed = np.empty(len(data), np.uint8)
    while True:
        offsets = np.empty(lines + 1, np.int32)
        found, flags = _cut(data, offsets, packed)
        if found >= 0:
            break
        lines = text.count(b"\n") + 1
    ascii_only, returns = not flags & _BEYOND_ASCII, bool(flags & _HAS_RETURNS)
    return Packed(offsets[: found + 1], packed, ascii_only, returns)
