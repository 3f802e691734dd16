"""Look-ups on the ring over arrays of numbers, equal to ``millrace.ring`` one by one.

Apart from the ring itself, which the base install has and which needs no arrays. A million
look-ups take about a hundredth of a second (``make bench NAME=balance``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.errors import ProtocolError
from millrace.mixers import mix64
from millrace.ring import Ring, Strategy

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
I32 = npt.NDArray[np.int32]

_BITS = 14
"""The circle is cut into 2^14 arcs: their table stays in a core's cache."""

_CHUNK = 1 << 15
"""Numbers that are worked on together, for the same reason."""


class RingLookup:
    """Owners of many numbers at once; immutable, safe for several threads.

    Raises ``ProtocolError`` for a ring without a member, and for a strategy that has no form over
    arrays.
    """

    def __init__(self, ring: Ring) -> None:
        if not ring.members:
            raise ProtocolError("ring: it has no member that could own anything; add a member")
        if ring.strategy is Strategy.BLAKE2:
            raise ProtocolError(
                "ring: positions under 'blake2' cannot be computed over arrays; use 'mix' or "
                "'paper'"
            )
        self.ring = ring
        number = {name: at for at, name in enumerate(ring.members)}
        points = ring.points
        # Past the last virtual node the circle goes on at the first one.
        self._points = np.array([at for at, _ in points] + [(1 << 32)], np.int64)
        self._owners = np.array([number[n] for _, n in [*points, points[0]]], np.int32)
        starts = np.arange(1 << _BITS, dtype=np.int64) << (32 - _BITS)
        self._first = np.searchsorted(self._points, starts, side="left")
        ends = np.append(self._first[1:], len(points))
        self._most = int((ends - self._first).max())

    def owners(self, numbers: U64) -> I32:
        """For each number (uint64) the place of its owner in ``ring.members``, int32.

        Equal to ``ring.owner_at(number_position(number, ring.strategy))``.
        """
        found = np.empty(len(numbers), np.int32)
        for start in range(0, len(numbers), _CHUNK):
            part = numbers[start : start + _CHUNK]
            found[start : start + len(part)] = self.owners_at(
                number_positions(part, self.ring.strategy)
            )
        return found

    def owners_at(self, positions: U32) -> I32:
        """The same for positions (uint32): ``ring.owner_at`` of each."""
        at = self._first[positions >> np.uint32(32 - _BITS)]
        wide = positions.astype(np.int64)
        # An arc holds few virtual nodes: step over those that lie before the position.
        for _ in range(self._most):
            at += self._points[at] < wide
        found: I32 = self._owners[at]
        return found


def number_positions(numbers: U64, strategy: Strategy) -> U32:
    """``ring.number_position`` of each number (uint64), as uint32; not for ``BLAKE2``."""
    if strategy is Strategy.MIX:
        mixed: U64 = mix64(numbers)
        return (mixed >> np.uint64(32)).astype(np.uint32)
    return _paper_positions(numbers)


def _paper_positions(numbers: U64) -> U32:
    h: Any = np.zeros(len(numbers), np.uint32)
    # From right to left: the lowest byte is the last of eight.
    for shift in range(0, 64, 8):
        h += (numbers >> np.uint64(shift)).astype(np.uint8)
        h += h << np.uint32(10)
        h ^= h >> np.uint32(6)
    h += h << np.uint32(3)
    h ^= h >> np.uint32(11)
    h += h << np.uint32(15)
    return h  # type: ignore[no-any-return]
