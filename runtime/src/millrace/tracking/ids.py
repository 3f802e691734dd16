"""The hashes of ``millrace.ids`` over numpy arrays; ``tracking.kernels`` has compiled twins.

All ids are uint64. Results are new arrays; inputs may be read-only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millrace import ids
from millrace.ids import BLOCK_ROOTS
from millrace.mixers import GOLDEN, mix64_into

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]

_MASK = (1 << 64) - 1


def mix64(x: U64) -> U64:
    """``ids.mix64`` of each element."""
    return mix64_into(x.copy())


def mix(a: U64 | int, b: U64 | int) -> U64:
    """``ids.mix`` of each pair; one side may be a single number.

    Raises ``TypeError`` when both are single numbers: that is what ``ids.mix`` is for.
    """
    if isinstance(b, int):
        if isinstance(a, int):
            raise TypeError("tracking.ids.mix wants an array; use millrace.ids.mix for two ints")
        return mix64_into(a ^ np.uint64(scrambled(b)))
    inner = mix64_into(b + GOLDEN)
    inner ^= np.uint64(a & _MASK) if isinstance(a, int) else a
    return mix64_into(inner)


def scrambled(b: int) -> int:
    """What ``mix(a, b)`` makes of ``b`` before it meets ``a``: ``mix64(b + golden)``."""
    return ids.mix64((b + int(GOLDEN)) & _MASK)


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
    window: int, partition: int, places: npt.NDArray[np.int64], slices: int
) -> npt.NDArray[np.int64]:
    """Sequence numbers of the roots at these places of a slice: ``acklog.local_index`` undone."""
    column = (partition - window) % slices
    block = places // BLOCK_ROOTS * slices + column
    return block * BLOCK_ROOTS + places % BLOCK_ROOTS
