"""Compiled loops over tuples: ids of records and of children.

Each wrapper checks its arguments, brings arrays into the form the compiled code takes (without a
copy where they have it already) and turns a bad index into an error: compiled code does not look
at bounds by itself, and a wild index would kill the worker.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import types

from millrace import ids as scalar
from millrace.compiled.jit import jit, kernel, vector
from millrace.errors import ProtocolError
from millrace.mixers import GOLDEN, mix64
from millrace.tracking.ids import U64, scrambled

Index = npt.NDArray[np.integer]

_U64, _U32, _I64 = types.uint64, types.uint32, types.int64
_PARENT_TYPES = (types.int64, types.int32, types.uint32)


mix64_compiled = jit(mix64)
"""``ids.mix64``, for use in compiled code."""


@kernel((vector(_U64, writable=True), _U64, _U64, _U64))
def _range_seeds(out: U64, base: np.uint64, start: np.uint64, replay: np.uint64) -> None:
    for i in range(out.shape[0]):
        root = mix64_compiled(base ^ mix64_compiled(start + np.uint64(i) + GOLDEN))
        out[i] = mix64_compiled(root ^ replay)


@jit
def _within(parents: Index, count: int) -> bool:
    """Whether the indices never fall and all are below ``count``."""
    fallen = False
    for i in range(1, parents.shape[0]):
        fallen |= parents[i] < parents[i - 1]
    return not fallen and parents[0] >= 0 and parents[parents.shape[0] - 1] < count


@kernel(*[(vector(_U64), vector(p), _U64, vector(_U64, writable=True)) for p in _PARENT_TYPES])
def _child_ids(parent_ids: U64, parents: Index, edge: np.uint64, out: U64) -> bool:
    """Ids of children; False where ``parents`` fall or are out of range."""
    count = parents.shape[0]
    if count == 0:
        return True
    if not _within(parents, parent_ids.shape[0]):
        return False
    last, seed = parents[0], parent_ids[np.uint64(parents[0])] + edge
    for i in range(count):
        parent = parents[i]
        if parent != last:
            last, seed = parent, parent_ids[np.uint64(parent)] + edge
        seed += GOLDEN
        out[i] = mix64_compiled(seed)
    return True


def range_seeds(source: str, partition: int, start: int, count: int, replay: int = 0) -> U64:
    """Tracking ids of ``count`` consecutive records of a source partition, uint64[count]."""
    out = np.empty(count, np.uint64)
    base = np.uint64(scalar.mix(scalar.name_id(source), partition))
    _range_seeds(out, base, np.uint64(start), np.uint64(scrambled(replay)))
    return out


def child_ids(parent_ids: U64, parents: Index, edge: int) -> U64 | None:
    """Ids (uint64, one a child) of children on one edge whose parents never fall.

    ``parents[i]`` (int64, int32 or uint32) is the index in ``parent_ids`` of child i's parent; the
    ordinal of a child counts the earlier children of its parent. ``None`` where an index falls or
    is out of range.
    """
    parent_ids, parents = _u64(parent_ids), _parents(parents)
    out = np.empty(len(parents), np.uint64)
    return out if _child_ids(parent_ids, parents, np.uint64(edge), out) else None


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
