"""Compiled loops over the tracking columns of a batch.

Root column (uint32): a value below ``WINDOW_TREE`` is a root sequence number. Above it lie the
tuples of the window's own tree, ``WINDOW_TREE | aggregate << 16 | key group``, so that a failure
behind a combine finds the aggregate and the key group it came from. ``UNTRACKED`` belongs to no
tree.

``nets`` is uint64, one value for each root of the window, or empty where no tuple has a root;
``loose`` is uint64[1] and collects the window's own tree. Numba does not check bounds: roots that
came out of an envelope go through ``count_foreign`` first.

Source: tuple ids and check values after JStorm's acker; ``millrace.ids`` is the reference.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from millrace.compiled.jit import kernel, vector
from millrace.mixers import GOLDEN
from millrace.tracking.kernels import child_ids, mix64_compiled

WINDOW_TREE = 0x80000000
UNTRACKED = 0xFFFFFFFF

_ORDINAL_BITS = 16
_ORDINAL_MAX = (1 << _ORDINAL_BITS) - 1
_TREE = np.uint32(WINDOW_TREE)
_NONE = np.uint32(UNTRACKED)

Array = np.ndarray[Any, np.dtype[Any]]

_MASK = (1 << 64) - 1

_U64, _U64_OUT = vector(types.uint64), vector(types.uint64, writable=True)
_U32, _U32_OUT = vector(types.uint32), vector(types.uint32, writable=True)
_INDEX, _LISTS = vector(types.int64), vector(types.int32)
_INDEX_OUT = vector(types.int64, writable=True)


@kernel((_INDEX, _U32_OUT, _U32_OUT))
def _count_up(parents: Any, counts: Any, ordinals: Any) -> Any:
    for i in range(parents.size):
        parent = parents[i]
        ordinals[i] = counts[parent]
        counts[parent] += np.uint32(1)


@kernel((_INDEX, _INDEX_OUT, _INDEX_OUT, _INDEX_OUT, _INDEX_OUT))
def _by_key(codes: Any, number: Any, found: Any, starts: Any, order: Any) -> Any:
    known = 0
    for i in range(codes.size):
        code = codes[i]
        if number[code] < 0:
            number[code] = known
            found[known] = code
            known += 1
        starts[number[code] + 1] += 1
    for key in range(known):
        starts[key + 1] += starts[key]
    cursor = starts.copy()
    for i in range(codes.size):
        key = number[codes[i]]
        order[cursor[key]] = i
        cursor[key] += 1
    return known


@kernel((_U64, _INDEX, _U32, types.uint64, _U64_OUT))
def _children(parent_ids: Any, parents: Any, ordinals: Any, edge: Any, ids: Any) -> Any:
    for i in range(parents.size):
        steps = np.uint64(ordinals[i]) + np.uint64(1)
        ids[i] = mix64_compiled(parent_ids[parents[i]] + edge + steps * GOLDEN)


@kernel((_U64, types.uint64, _U64_OUT))
def _emit_alike(parent_ids: Any, rest: Any, ids: Any) -> Any:
    for i in range(ids.size):
        ids[i] = mix64_compiled(parent_ids[i] + rest)


@kernel((_U64, _U32, _U64_OUT, _U64_OUT))
def _absorb(ids: Any, roots: Any, nets: Any, loose: Any) -> Any:
    # Tuples of one root follow each other, and each would wait for what the one before it wrote.
    last, value = _NONE, np.uint64(0)
    for i in range(roots.size):
        root = roots[i]
        if root != last:
            if last < _TREE:
                nets[last] ^= value
            elif last != _NONE:
                loose[0] ^= value
            last, value = root, np.uint64(0)
        value ^= ids[i]
    if last < _TREE:
        nets[last] ^= value
    elif last != _NONE:
        loose[0] ^= value


@kernel((_U64, _LISTS, _U32, _U64_OUT, _U64_OUT))
def _absorb_lists(ids: Any, offsets: Any, values: Any, nets: Any, loose: Any) -> Any:
    for i in range(ids.size):
        in_tree = False
        for j in range(offsets[i], offsets[i + 1]):
            root = values[j]
            if root < _TREE:
                nets[root] ^= ids[i]
            elif root != _NONE:
                in_tree = True
        if in_tree:
            loose[0] ^= ids[i]


@kernel((_U32, types.uint32))
def _count_foreign(roots: Any, limit: Any) -> Any:
    bad = 0
    for i in range(roots.size):
        if roots[i] < _TREE and roots[i] >= limit:
            bad += 1
    return bad


@kernel((_U64,))
def _first_and_end(values: Any) -> Any:
    first = 0
    while first < values.size and values[first] == 0:
        first += 1
    end = values.size
    while end > first and values[end - 1] == 0:
        end -= 1
    return first, end


@kernel((_U64,))
def _xor(ids: Any) -> Any:
    value = np.uint64(0)
    for i in range(ids.size):
        value ^= ids[i]
    return value


@kernel((_U64, _INDEX, _U32, _U64_OUT))
def _child_order(order: Any, parents: Any, ordinals: Any, out: Any) -> Any:
    limit = np.uint64(_ORDINAL_MAX)
    for i in range(parents.size):
        step = min(np.uint64(ordinals[i]), limit)
        out[i] = (order[parents[i]] << np.uint64(_ORDINAL_BITS)) | step


@kernel((_U32, _U64))
def _in_order(roots: Any, order: Any) -> Any:
    for i in range(1, roots.size):
        if roots[i] < roots[i - 1]:
            return False
        if roots[i] == roots[i - 1] and order[i] <= order[i - 1]:
            return False
    return True


def rows_by_key(codes: Array, keys: int) -> tuple[Array, Array, Array]:
    """Rows sorted by key, a key's rows staying in their order; ``codes`` (int64) are below
    ``keys``.

    Returns the codes that come, in the order in which they first do (int64[k]), where each one's
    rows begin in the order, and where all end (int64[k + 1]), and the order (int64, one a row).
    """
    number = np.full(keys, -1, np.int64)
    found = np.empty(keys, np.int64)
    starts = np.zeros(keys + 1, np.int64)
    order = np.empty(codes.size, np.int64)
    known = _by_key(codes, number, found, starts, order)
    return found[:known], starts[: known + 1], order


def ordinals_of(parents: Array, parent_count: int) -> Array:
    """For each child (int64 ``parents``) how many earlier children its parent has: uint32."""
    ordinals = np.empty(parents.size, np.uint32)
    _count_up(parents, np.zeros(parent_count, np.uint32), ordinals)
    return ordinals


def children(parent_ids: Array, parents: Array | None, ordinals: Array | None, edge: int) -> Array:
    """Ids (uint64) of what the tuples of ``parent_ids`` emit on an edge; ``parents`` (int64) are
    indices into them. Without ``parents`` each has one child, without ``ordinals`` a child's counts
    the earlier children of its parent."""
    if parents is None:
        return emit_alike(parent_ids, 0, edge)
    if ordinals is None:
        ids = child_ids(parent_ids, parents, edge)
        if ids is not None:
            return ids
        ordinals = ordinals_of(parents, len(parent_ids))
    ids = np.empty(parents.size, np.uint64)
    _children(parent_ids, parents, ordinals, np.uint64(edge), ids)
    return ids


def emit_alike(parent_ids: Array, ordinal: int, edge: int) -> Array:
    """Ids of children that all have the same ordinal, one of each parent."""
    ids = np.empty(parent_ids.size, np.uint64)
    rest = edge + (ordinal + 1) * int(GOLDEN)
    _emit_alike(parent_ids, np.uint64(rest & _MASK), ids)
    return ids


def absorb(ids: Array, roots: Array, net: tuple[Array, Array]) -> None:
    """XOR ids into the roots they belong to (emitted or processed, both are the same)."""
    _absorb(ids, roots, net[0], net[1])


def absorb_lists(ids: Array, offsets: Array, values: Array, net: tuple[Array, Array]) -> None:
    """XOR each id into every root of its list of anchors (int32 offsets, uint32 values).

    All that belong to the window's own tree are one root: there an id counts once, since with an
    even number of them it would take itself out again.
    """
    _absorb_lists(ids, offsets, values, net[0], net[1])


def count_foreign(roots: Array, limit: int) -> int:
    """How many root sequence numbers are not below ``limit``."""
    return int(_count_foreign(roots, np.uint32(limit)))


def xor(ids: Array) -> int:
    """XOR of all ids."""
    return int(_xor(ids))


def nonzero_span(values: Array) -> tuple[int, int]:
    """First place that is not zero and the one behind the last; equal where all are zero."""
    first, end = _first_and_end(values)
    return int(first), int(end)


def child_order(order: Array, parents: Array, ordinals: Array) -> Array:
    """Order of children within their root: the parent's, then 16 bits for the ordinal."""
    out = np.empty(parents.size, np.uint64)
    _child_order(order, parents, ordinals, out)
    return out


def in_order(roots: Array, order: Array) -> bool:
    """Whether (root, order) rises strictly, so that no sort is needed."""
    return bool(_in_order(roots, order))
