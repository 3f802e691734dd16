"""Where a string or a number lies on the ring: named strategies, so that a better one can be
measured.

Measured: with 64 virtual nodes and 10 members the largest share of the ring is 1.18 to 1.22 times
the mean under either strategy (with 16: 1.4 to 1.5, with 256: 1.1). Strings of one character
cluster under ``PAPER`` (chi-square 218 over 64 equal arcs, where 92 is the 99 % limit) and not
under ``BLAKE2`` (77), which is therefore the default. ``MIX`` is as even and, for numbers, can be
computed over arrays (``millrace.ringarrays``), as ``PAPER`` can.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from enum import Enum

from millrace.ids import mix64, name_id

POSITIONS = 1 << 32
"""The ring has the positions 0 .. 2^32-1."""

_MASK = POSITIONS - 1


class Strategy(str, Enum):
    """How a string becomes a position."""

    PAPER = "paper"
    BLAKE2 = "blake2"
    MIX = "mix"


DEFAULT_STRATEGY = Strategy.BLAKE2


def paper_hash(text: str) -> int:
    """32-bit hash over the UTF-8 bytes of ``text``, from right to left.

    Source: the consistent hashing of the tuple tracking paper, after
    Jenkins' one-at-a-time; the order of steps is a reconstruction from the paper's formulas.
    """
    return _paper_hash(text.encode())


def _paper_hash(data: bytes) -> int:
    h = 0
    for byte in reversed(data):
        h = (h + byte) & _MASK
        h = (h + (h << 10)) & _MASK
        h ^= h >> 6
    h = (h + (h << 3)) & _MASK
    h ^= h >> 11
    return (h + (h << 15)) & _MASK


def blake2_hash(text: str) -> int:
    """First 32 bits of BLAKE2b over the UTF-8 bytes of ``text``."""
    return _blake2_hash(text.encode())


def _blake2_hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=4).digest(), "big")


def _bytes(number: int) -> bytes:
    return number.to_bytes(8, "big")


_FUNCTIONS: dict[Strategy, Callable[[str], int]] = {
    Strategy.PAPER: paper_hash,
    Strategy.BLAKE2: blake2_hash,
    Strategy.MIX: lambda text: mix64(name_id(text)) >> 32,
}
_OF_NUMBERS: dict[Strategy, Callable[[int], int]] = {
    Strategy.PAPER: lambda number: _paper_hash(_bytes(number)),
    Strategy.BLAKE2: lambda number: _blake2_hash(_bytes(number)),
    Strategy.MIX: lambda number: mix64(number) >> 32,
}


def position(text: str, strategy: Strategy = DEFAULT_STRATEGY) -> int:
    """Position of ``text``, 0 .. 2^32-1."""
    return _FUNCTIONS[strategy](text)


def number_position(number: int, strategy: Strategy = DEFAULT_STRATEGY) -> int:
    """Position of a number 0 .. 2^64-1 (a root id, a block): that of its eight bytes, the highest
    first, but scrambled whole under ``MIX``."""
    return _OF_NUMBERS[strategy](number)
