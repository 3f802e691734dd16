"""Identities: numbers that must not be confused, and the hashes that name tuples.

``mix`` is nonlinear because the numbers that go in are dense: under a linear mixer the XOR of
neighbouring ids would cancel and a lost pair of tuples would look complete. ``mixers`` and
``tracking.ids`` hold the same functions over arrays; a test keeps them equal.

Source: splitmix64 and its finaliser (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number
generators").
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import NewType

WindowNumber = NewType("WindowNumber", int)
WindowAttempt = NewType("WindowAttempt", int)
Execution = NewType("Execution", int)
Epoch = NewType("Epoch", int)
Seq = NewType("Seq", int)
Timeline = NewType("Timeline", int)

NO_WINDOW = WindowNumber(0)

BLOCK_ROOTS = 256
"""Consecutive roots in one tracking block."""

TRACKING_PARTITIONS = 4
"""Slices of the ack log that the blocks of a window attempt with many roots are striped over, at
the least."""

DEFAULT_KEY_GROUPS = 128

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15

_KNOWN = 4096
"""Names whose identity is kept: tasks ask for those of their edges with every batch."""


def mix64(x: int) -> int:
    """Bijective, nonlinear scrambling of one 64-bit number."""
    x &= _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def mix(a: int, b: int) -> int:
    """64-bit hash of an ordered pair: ``mix64(a xor mix64(b + golden))``."""
    return mix64((a ^ mix64((b + _GOLDEN) & _MASK)) & _MASK)


@lru_cache(_KNOWN)
def name_id(name: str) -> int:
    """64-bit identity of a name (a source, an edge), equal in every process."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def root_id(source: int, partition: int, offset: int) -> int:
    """Identity of one source record; ``source`` is ``name_id`` of the source's name."""
    return mix(mix(source, partition), offset)


def tracking_id(root: int, replay: int) -> int:
    """Identity of the tree of the ``replay``-th processing of a root (0 the first time)."""
    return mix(root, replay)


def tuple_id(parent: int, ordinal: int, edge: int) -> int:
    """Identity of the ``ordinal``-th child of ``parent`` on an edge.

    A parent's children are what splitmix64 gives from ``parent + edge`` on. ``edge`` is
    ``edge_id``; with it inside, copies sent to two consumers do not cancel.
    """
    return mix64(parent + edge + (ordinal + 1) * _GOLDEN)


@lru_cache(_KNOWN)
def edge_id(producer: str, consumer: str) -> int:
    """64-bit identity of the edge between two components, already scrambled."""
    return mix64(name_id(f"{producer}>{consumer}"))


def block_of(sequence: int) -> int:
    """Tracking block of a root sequence number."""
    return sequence // BLOCK_ROOTS


def tracking_partition(window: int, block: int, slices: int) -> int:
    """Slice of the ack log that holds a block; windows start at different slices."""
    return (window + block) % slices
