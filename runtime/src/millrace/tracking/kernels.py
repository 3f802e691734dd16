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
from millrace.tracking.ids import U32, U64, scrambled
from millrace.tracking.jit import compile_all, jit, kernel, vector

Index = npt.NDArray[np.integer]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)

_BLOCK = 256
"""Children hashed at once; their parents' ids and ordinals stay in the first-level cache."""

_U64, _U32, _I64 = types.uint64, types.uint32, types.int64
_PARENT_TYPES = (types.int64, types.int32, types.uint32)


@jit
def mix64_compiled(x: np.uint64) -> np.uint64:
    """``ids.mix64``, for use in compiled code."""
    x = (x ^ (x >> _S30)) * _FIRST
    x = (x ^ (x >> _S27)) * _SECOND
    return x ^ (x >> _S31)


@jit
def _hash_block(parent_ids: U64, ordinals: U64, edge: np.uint64, out: U64) -> None:
    """``tuple_id`` of each pair; a loop without gathers, which becomes vector instructions."""
    for i in range(out.shape[0]):
        out[i] = mix64_compiled((parent_ids[i] ^ edge) ^ mix64_compiled(ordinals[i] + _GOLDEN))


@kernel((vector(_U64, writable=True), _U64, _U64, _U64))
def _range_seeds(out: U64, base: np.uint64, start: np.uint64, replay: np.uint64) -> None:
    for i in range(out.shape[0]):
        root = mix64_compiled(base ^ mix64_compiled(start + np.uint64(i) + _GOLDEN))
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


@jit
def _gather_counted(parent_ids: U64, parents: Index, counters: U32, ids: U64, ordinals: U64) -> int:
    """``_gather_sorted`` for parents in any order; returns only the bad position."""
    for i in range(parents.shape[0]):
        parent = np.int64(parents[i])
        if parent < 0 or parent >= parent_ids.shape[0]:
            return i
        ordinals[i] = counters[parent]
        counters[parent] += np.uint32(1)
        ids[i] = parent_ids[parent]
    return -1


@kernel(*[(vector(_U64), vector(p), _U64, vector(_U64, writable=True)) for p in _PARENT_TYPES])
def _children_sorted(parent_ids: U64, parents: Index, edge: np.uint64, out: U64) -> int:
    """Returns the first position where ``parents`` falls or is out of range, else -1."""
    ids, ordinals = np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.uint64)
    before, ordinal = np.int64(0), np.int64(-1)
    for start in range(0, parents.shape[0], _BLOCK):
        stop = min(start + _BLOCK, parents.shape[0])
        before, ordinal, bad = _gather_sorted(
            parent_ids, parents[start:stop], (before, ordinal), ids, ordinals
        )
        if bad >= 0:
            return start + bad
        _hash_block(ids, ordinals, edge, out[start:stop])
    return -1


@kernel(
    *[
        (vector(_U64), vector(p), _U64, vector(_U32, writable=True), vector(_U64, writable=True))
        for p in _PARENT_TYPES
    ]
)
def _children_counted(
    parent_ids: U64, parents: Index, edge: np.uint64, counters: U32, out: U64
) -> int:
    """Returns the first position that is out of range, else -1."""
    ids, ordinals = np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.uint64)
    for start in range(0, parents.shape[0], _BLOCK):
        stop = min(start + _BLOCK, parents.shape[0])
        bad = _gather_counted(parent_ids, parents[start:stop], counters, ids, ordinals)
        if bad >= 0:
            return start + bad
        _hash_block(ids, ordinals, edge, out[start:stop])
    return -1


@kernel((vector(_U64, writable=True), vector(_I64, writable=True), vector(_U32), vector(_U64)))
def _xor_into(acc: U64, span: npt.NDArray[np.int64], roots: U32, values: U64) -> int:
    """Returns the first position that is out of range, else -1; widens ``span``."""
    low, high = span[0], span[1]
    bad = -1
    for i in range(roots.shape[0]):
        root = np.int64(roots[i])
        if root >= acc.shape[0]:
            bad = i
            break
        low = min(low, root)
        high = max(high, root)
        acc[root] ^= values[i]
    span[0], span[1] = low, high
    return bad


@kernel(
    *[
        (vector(_U64), vector(p), _U64, vector(_U64, writable=True), vector(_U64, writable=True))
        for p in _PARENT_TYPES
    ]
)
def _children_families(
    parent_ids: U64, parents: Index, edge: np.uint64, out: U64, families: U64
) -> int:
    """``_children_sorted``, with the XOR of each parent's children in ``families``."""
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


def child_ids(parent_ids: U64, parents: Index, edge: int, counters: U32 | None = None) -> U64:
    """Ids of children on one edge, uint64[len(parents)].

    ``parents[i]`` (int64, int32 or uint32) is the index in ``parent_ids`` of child i's parent;
    sorted parents are fastest. The ordinal of a child counts the earlier children of its parent
    in this call, and with ``counters`` (uint32[len(parent_ids)], updated) those of earlier calls.
    Raises ``ProtocolError`` for an index out of range.
    """
    parent_ids, parents = _u64(parent_ids), _parents(parents)
    out = np.empty(len(parents), np.uint64)
    if counters is None:
        if _children_sorted(parent_ids, parents, np.uint64(edge), out) < 0:
            return out
        counters = np.zeros(len(parent_ids), np.uint32)
    bad = _children_counted(parent_ids, parents, np.uint64(edge), counters, out)
    if bad >= 0:
        raise _bad_parent(parents, bad, len(parent_ids))
    return out


def xor_into(acc: U64, roots: U32, values: U64, span: npt.NDArray[np.int64] | None = None) -> None:
    """``acc[roots[i]] ^= values[i]`` for every i.

    ``span`` (int64[2]) is widened to the lowest and highest root. Raises ``ProtocolError`` for a
    root outside of ``acc`` or arrays of different lengths.
    """
    roots, values = _u32(roots), _u64(values)
    _same_length(roots, values)
    bad = _xor_into(acc, span if span is not None else np.zeros(2, np.int64), roots, values)
    if bad >= 0:
        raise root_out_of_range(int(roots[bad]), len(acc))


def child_families(parent_ids: U64, parents: Index, edge: int) -> tuple[U64, U64] | None:
    """``child_ids`` for parents that never fall, with the XOR of each parent's children.

    Returns (ids, uint64[len(parents)]; families, uint64[len(parent_ids)], 0 where a parent has no
    child); ``None`` where an index falls or is out of range.
    """
    parent_ids, parents = _u64(parent_ids), _parents(parents)
    out = np.empty(len(parents), np.uint64)
    families = np.zeros(len(parent_ids), np.uint64)
    if _children_families(parent_ids, parents, np.uint64(edge), out, families) >= 0:
        return None
    return out, families


def children_xor(
    acc: U64,
    span: npt.NDArray[np.int64],
    parent_roots: U32,
    parent_ids: U64,
    parents: Index,
    edge: int,
) -> U64:
    """``child_ids`` of tuples that inherit their parent's root, XORed into ``acc`` on the way.

    ``span`` is widened at least to the children's roots; errors as ``xor_into`` and
    ``child_ids``.
    """
    parent_roots, parents = _u32(parent_roots), _parents(parents)
    _same_length(parent_roots, parent_ids)
    found = child_families(parent_ids, parents, edge)
    if found is not None:
        xor_into(acc, parent_roots, found[1], span)
        return found[0]
    out = child_ids(parent_ids, parents, edge)
    xor_into(acc, parent_roots[parents], out, span)
    return out


def warm_up() -> None:
    """Compile, or load from the cache, every kernel of this module.

    To be called once where workers are forked from, so that none of them waits for it.
    """
    compile_all()


def _u64(values: U64) -> U64:
    if values.dtype == np.int64:
        values = values.view(np.uint64)
    return np.ascontiguousarray(values, np.uint64)


def _u32(values: U32) -> U32:
    if values.dtype != np.uint32 and len(values):
        low, high = int(values.min()), int(values.max())
        if low < 0 or high > 0xFFFF_FFFF:
            raise ProtocolError(
                f"root sequences {low} to {high} do not fit into 32 bits; a window holds fewer"
            )
    return np.ascontiguousarray(values, np.uint32)


def _parents(parents: Index) -> Index:
    if parents.dtype not in (np.int64, np.int32, np.uint32):
        if not np.issubdtype(parents.dtype, np.integer):
            raise ProtocolError(
                f"parent indices are {parents.dtype}; return an array of integers, one for each "
                "output row"
            )
        parents = parents.astype(np.int64)
    return np.ascontiguousarray(parents)


def _same_length(roots: U32, values: U64) -> None:
    if len(roots) != len(values):
        raise ProtocolError(f"{len(roots)} roots were given for {len(values)} tuple ids")


def root_out_of_range(root: int, slots: int) -> ProtocolError:
    """The error for a sequence number that a window does not have."""
    return ProtocolError(
        f"root sequence {root} is out of range: the window has {slots} slots for roots; pass on "
        "the sequence numbers that came with the input"
    )


def _bad_parent(parents: Index, at: int, count: int) -> ProtocolError:
    return ProtocolError(
        f"parent index {parents[at]} of output row {at} is out of range: the batch has {count} "
        "rows; return for each output row the index of the input row it comes from"
    )
