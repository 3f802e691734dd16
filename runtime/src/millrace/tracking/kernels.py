"""Compiled loops over tuples: child ids and the XOR of ids into their roots.

Each wrapper checks its arguments, brings arrays into the form the compiled code takes (without a
copy where they have it already) and turns a bad index into an error: compiled code does not look
at bounds by itself, and a wild index would kill the worker.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import types

from millrace import ids as scalar
from millrace.errors import ProtocolError
from millrace.mixers import GOLDEN, mix64
from millrace.tracking.ids import U64, scrambled
from millrace.tracking.jit import jit, kernel, vector

Index = npt.NDArray[np.integer]

_BLOCK = 256
"""Children hashed at once; their parents' ids and ordinals stay in the first-level cache."""

_U64, _U32, _I64 = types.uint64, types.uint32, types.int64
_PARENT_TYPES = (types.int64, types.int32, types.uint32)


mix64_compiled = jit(mix64)
"""``ids.mix64``, for use in compiled code."""


@jit
def _hash_block(parent_ids: U64, ordinals: U64, edge: np.uint64, out: U64) -> None:
    """``tuple_id`` of each pair; a loop without gathers, which becomes vector instructions."""
    for i in range(out.shape[0]):
        out[i] = mix64_compiled((parent_ids[i] ^ edge) ^ mix64_compiled(ordinals[i] + GOLDEN))


@kernel((vector(_U64, writable=True), _U64, _U64, _U64))
def _range_seeds(out: U64, base: np.uint64, start: np.uint64, replay: np.uint64) -> None:
    for i in range(out.shape[0]):
        root = mix64_compiled(base ^ mix64_compiled(start + np.uint64(i) + GOLDEN))
        out[i] = mix64_compiled(root ^ replay)


@jit
def _gather_sorted(
    parent_ids: U64, parents: Index, place: tuple[np.int64, np.int64], ids: U64, ordinals: U64
) -> tuple[np.int64, np.int64, int]:
    """Ids of the parents of one block of children, and the children's ordinals.

    ``place`` is (parent, ordinal) of the child before the block, (0, -1) at the start. Returns
    that of the block's last child, and the first position where ``parents`` falls or is out of
    range, else -1.
    """
    before, ordinal = place
    for i in range(parents.shape[0]):
        parent = np.int64(parents[i])
        if parent < before or parent >= parent_ids.shape[0]:
            return before, ordinal, i
        ordinal = (ordinal + 1) * np.int64(parent == before)
        before = parent
        ordinals[i] = ordinal
        ids[i] = parent_ids[np.uint64(parent)]
    return before, ordinal, -1


@kernel(
    *[
        (vector(_U64), vector(p), _U64, vector(_U64, writable=True), vector(_U64, writable=True))
        for p in _PARENT_TYPES
    ]
)
def _children_families(
    parent_ids: U64, parents: Index, edge: np.uint64, out: U64, families: U64
) -> int:
    """Ids of children and the XOR of those of each parent.

    Returns the first position where ``parents`` falls or is out of range, else -1.
    """
    ids, ordinals = np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.uint64)
    before, ordinal, family = np.int64(0), np.int64(-1), np.uint64(0)
    for start in range(0, parents.shape[0], _BLOCK):
        stop = min(start + _BLOCK, parents.shape[0])
        before, ordinal, bad = _gather_sorted(
            parent_ids, parents[start:stop], (before, ordinal), ids, ordinals
        )
        if bad >= 0:
            return start + bad
        block = out[start:stop]
        _hash_block(ids, ordinals, edge, block)
        for i in range(block.shape[0]):
            # All ones but for a first child: no branch, and the last store of a family stays.
            keep = np.uint64(0) - np.uint64(ordinals[i] != 0)
            family = (family & keep) ^ block[i]
            families[np.uint64(parents[start + i])] = family
    return -1


def range_seeds(source: str, partition: int, start: int, count: int, replay: int = 0) -> U64:
    """Tracking ids of ``count`` consecutive records of a source partition, uint64[count]."""
    out = np.empty(count, np.uint64)
    base = np.uint64(scalar.mix(scalar.name_id(source), partition))
    _range_seeds(out, base, np.uint64(start), np.uint64(scrambled(replay)))
    return out


def child_families(parent_ids: U64, parents: Index, edge: int) -> tuple[U64, U64] | None:
    """Ids of children on one edge whose parents never fall, with the XOR of each parent's.

    ``parents[i]`` (int64, int32 or uint32) is the index in ``parent_ids`` of child i's parent; the
    ordinal of a child counts the earlier children of its parent. Returns (ids,
    uint64[len(parents)]; families, uint64[len(parent_ids)], 0 where a parent has no child);
    ``None`` where an index falls or is out of range.
    """
    parent_ids, parents = _u64(parent_ids), _parents(parents)
    out = np.empty(len(parents), np.uint64)
    families = np.zeros(len(parent_ids), np.uint64)
    if _children_families(parent_ids, parents, np.uint64(edge), out, families) >= 0:
        return None
    return out, families


def _u64(values: U64) -> U64:
    if values.dtype == np.int64:
        values = values.view(np.uint64)
    return np.ascontiguousarray(values, np.uint64)


def _parents(parents: Index) -> Index:
    if parents.dtype not in (np.int64, np.int32, np.uint32):
        if not np.issubdtype(parents.dtype, np.integer):
            raise ProtocolError(
                f"parent indices are {parents.dtype}; return an array of integers, one for each "
                "output row"
            )
        parents = parents.astype(np.int64)
    return np.ascontiguousarray(parents)


def root_out_of_range(root: int, slots: int) -> ProtocolError:
    """The error for a sequence number that a window does not have."""
    return ProtocolError(
        f"root sequence {root} is out of range: the window has {slots} slots for roots; pass on "
        "the sequence numbers that came with the input"
    )
