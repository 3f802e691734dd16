"""The hashes of ``millrace.ids`` over numpy arrays; ``tracking.kernels`` has compiled twins.

All ids are uint64. Results are new arrays; inputs may be read-only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millrace import ids
from millrace.ids import BLOCK_ROOTS, TRACKING_PARTITIONS

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1


def _mix64_into(x: U64) -> U64:
    """Scramble an array in place."""
    x ^= x >> np.uint64(30)
    x *= _FIRST
    x ^= x >> np.uint64(27)
    x *= _SECOND
    x ^= x >> np.uint64(31)
    return x


def mix64(x: U64) -> U64:
    """``ids.mix64`` of each element."""
    return _mix64_into(x.copy())


def mix(a: U64 | int, b: U64 | int) -> U64:
    """``ids.mix`` of each pair; one side may be a single number.

    Raises ``TypeError`` when both are single numbers: that is what ``ids.mix`` is for.
    """
    if isinstance(b, int):
        if isinstance(a, int):
            raise TypeError("tracking.ids.mix wants an array; use millrace.ids.mix for two ints")
        return _mix64_into(a ^ np.uint64(scrambled(b)))
    inner = _mix64_into(b + _GOLDEN)
    inner ^= np.uint64(a & _MASK) if isinstance(a, int) else a
    return _mix64_into(inner)


def scrambled(b: int) -> int:
    """What ``mix(a, b)`` makes of ``b`` before it meets ``a``: ``mix64(b + golden)``."""
    return ids.mix64((b + int(_GOLDEN)) & _MASK)


def root_ids(source: int, partition: int, offsets: U64) -> U64:
    """``ids.root_id`` of each offset; ``source`` is ``ids.name_id`` of the source's name."""
    return mix(ids.mix(source, partition), offsets)


def tracking_ids(roots: U64, replay: int) -> U64:
    """``ids.tracking_id`` of each root."""
    return mix(roots, replay)


def range_tracking_ids(source: int, partition: int, offsets: U64, replay: int = 0) -> U64:
    """Tracking ids (seeds) of the records at ``offsets`` of one source partition."""
    return tracking_ids(root_ids(source, partition, offsets), replay)


def sequences_at(
    window: int, partition: int, places: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Sequence numbers of the roots at these places of a slice: ``acklog.local_index`` undone."""
    column = (partition - window) % TRACKING_PARTITIONS
    block = places // BLOCK_ROOTS * TRACKING_PARTITIONS + column
    return block * BLOCK_ROOTS + places % BLOCK_ROOTS


def tuple_ids(parents: U64, ordinals: U64 | int, edge: int) -> U64:
    """``ids.tuple_id`` of each (parent, ordinal) on one edge."""
    return mix(parents ^ np.uint64(edge), ordinals)


def copy_ids(tuples: U64, partition: int, edge: int) -> U64:
    """Ids of the copies that a broadcast edge sends to one partition of the consumer."""
    return tuple_ids(tuples, partition, ids.mix64(edge))


def ordinals_within(parents: npt.NDArray[np.integer]) -> U64:
    """Ordinal of each child among those of its parent, in the order given."""
    order = np.argsort(parents, kind="stable")
    ordered = parents[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]][: len(ordered)])
    lengths = np.diff(np.r_[starts, len(ordered)])
    ordinals = np.empty(len(ordered), np.uint64)
    ordinals[order] = np.arange(len(ordered)) - np.repeat(starts, lengths)
    return ordinals


def child_ids(parent_ids: U64, parents: npt.NDArray[np.integer], edge: int) -> U64:
    """Ids of children; ``parents[i]`` is the index in ``parent_ids`` of child i's parent."""
    return tuple_ids(parent_ids[parents], ordinals_within(parents), edge)


def xor_into(acc: U64, roots: U32, values: U64) -> None:
    """``acc[roots[i]] ^= values[i]`` for every i, repeats included."""
    np.bitwise_xor.at(acc, roots, values)


def xor_all(values: U64) -> int:
    """XOR over an array; 0 for an empty one."""
    return int(np.bitwise_xor.reduce(values)) if len(values) else 0
