"""The array twins of the ids are the ids: numpy and compiled, element by element."""

from __future__ import annotations

from collections import Counter
from functools import reduce
from operator import xor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace import ids
from millrace.errors import ProtocolError
from millrace.tracking import ids as arrays
from millrace.tracking import kernels

U64S = st.integers(0, (1 << 64) - 1)
NAMES = st.text(min_size=1, max_size=10)


def _u64(values: list[int]) -> arrays.U64:
    array = np.array(values, np.uint64)
    array.flags.writeable = False  # as an Arrow buffer is
    return array


def test_mix64_is_the_finaliser_of_splitmix64() -> None:
    # First outputs of splitmix64 seeded with 0: mix64 of one and two times the golden gamma.
    gamma = 0x9E3779B97F4A7C15
    assert ids.mix64(gamma) == 0xE220A8397B1DCDAF
    assert ids.mix64(2 * gamma) == 0x6E789E6AA1B965F4


@given(st.lists(U64S, max_size=20), U64S)
@settings(deadline=None)
def test_mix_equals(values: list[int], other: int) -> None:
    array = _u64(values)
    assert arrays.mix64(array).tolist() == [ids.mix64(v) for v in values]
    assert arrays.mix(array, other).tolist() == [ids.mix(v, other) for v in values]
    assert arrays.mix(other, array).tolist() == [ids.mix(other, v) for v in values]
    assert arrays.mix(array, array[::-1]).tolist() == [
        ids.mix(a, b) for a, b in zip(values, values[::-1], strict=True)
    ]


@given(NAMES, U64S, st.integers(0, 1 << 62), st.integers(0, 50), st.integers(0, 9))
@settings(deadline=None)
def test_seeds_of_a_range_equal(
    source: str, partition: int, start: int, count: int, replay: int
) -> None:
    name = ids.name_id(source)
    expected = [
        ids.tracking_id(ids.root_id(name, partition, start + i), replay) for i in range(count)
    ]
    offsets = _u64(list(range(start, start + count)))
    assert arrays.range_tracking_ids(name, partition, offsets, replay).tolist() == expected
    assert kernels.range_seeds(source, partition, start, count, replay).tolist() == expected


@given(st.lists(st.tuples(U64S, U64S), max_size=20), U64S, st.integers(0, 999))
@settings(deadline=None)
def test_tuple_ids_equal(pairs: list[tuple[int, int]], edge: int, partition: int) -> None:
    parents, ordinals = _u64([p for p, _ in pairs]), _u64([o for _, o in pairs])
    assert arrays.tuple_ids(parents, ordinals, edge).tolist() == [
        ids.tuple_id(p, o, edge) for p, o in pairs
    ]
    assert arrays.copy_ids(parents, partition, edge).tolist() == [
        ids.tuple_id(p, partition, ids.mix64(edge)) for p, _ in pairs
    ]


def _children(parent_ids: list[int], parents: list[int], edge: int) -> list[int]:
    """Child ids straight from the definition."""
    seen: Counter[int] = Counter()
    found = []
    for parent in parents:
        found.append(ids.tuple_id(parent_ids[parent], seen[parent], edge))
        seen[parent] += 1
    return found


@st.composite
def families(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Ids of parents and, for each child, the index of its parent; often over one block."""
    parent_ids = draw(st.lists(U64S, min_size=1, max_size=12))
    size = draw(st.sampled_from([0, 1, 7, 255, 256, 257, 700]))
    random = draw(st.randoms(use_true_random=False))
    parents = [random.randrange(len(parent_ids)) for _ in range(size)]
    return parent_ids, sorted(parents) if draw(st.booleans()) else parents


@given(families(), U64S, st.sampled_from([np.int64, np.int32, np.uint32, np.uint8, np.int16]))
@settings(deadline=None)
def test_child_ids_equal(family: tuple[list[int], list[int]], edge: int, dtype: type) -> None:
    parent_ids, parents = family
    expected = _children(parent_ids, parents, edge)
    index = np.array(parents, dtype)
    assert kernels.child_ids(_u64(parent_ids), index, edge).tolist() == expected
    assert arrays.child_ids(_u64(parent_ids), index.astype(np.int64), edge).tolist() == expected
    assert kernels.child_ids(_u64(parent_ids)[::-1], index[::-1], edge).tolist() == _children(
        parent_ids[::-1], parents[::-1], edge
    )


@given(families(), st.integers(0, 700), U64S)
@settings(deadline=None)
def test_counters_continue_the_numbering(
    family: tuple[list[int], list[int]], at: int, edge: int
) -> None:
    parent_ids, parents = family
    counters = np.zeros(len(parent_ids), np.uint32)
    first = kernels.child_ids(_u64(parent_ids), np.array(parents[:at], np.int64), edge, counters)
    rest = kernels.child_ids(_u64(parent_ids), np.array(parents[at:], np.int64), edge, counters)
    assert first.tolist() + rest.tolist() == _children(parent_ids, parents, edge)


@given(families(), U64S, st.data())
@settings(deadline=None)
def test_fused_children_equal_the_two_steps(
    family: tuple[list[int], list[int]], edge: int, data: st.DataObject
) -> None:
    parent_ids, parents = family
    roots = [data.draw(st.integers(0, 9)) for _ in parent_ids]
    acc, span = np.zeros(10, np.uint64), np.array([10, -1])
    made = kernels.children_xor(
        acc, span, np.array(roots, np.uint32), _u64(parent_ids), np.array(parents, np.int64), edge
    )
    assert made.tolist() == _children(parent_ids, parents, edge)
    expected = [0] * 10
    for child, parent in zip(made.tolist(), parents, strict=True):
        expected[roots[parent]] ^= child
    assert acc.tolist() == expected
    touched = [root for root, value in enumerate(expected) if value]
    assert not touched or span[0] <= touched[0] <= touched[-1] <= span[1]


@given(st.lists(st.tuples(st.integers(0, 9), U64S), max_size=40))
@settings(deadline=None)
def test_xor_into_equals(items: list[tuple[int, int]]) -> None:
    expected = [0] * 10
    for root, value in items:
        expected[root] ^= value
    roots, values = np.array([r for r, _ in items], np.int64), _u64([v for _, v in items])
    compiled, plain, span = np.zeros(10, np.uint64), np.zeros(10, np.uint64), np.array([10, -1])
    kernels.xor_into(compiled, roots, values, span)
    arrays.xor_into(plain, roots.astype(np.uint32), values)
    assert compiled.tolist() == plain.tolist() == expected
    if items:
        assert span.tolist() == [min(r for r, _ in items), max(r for r, _ in items)]
    assert arrays.xor_all(values) == reduce(xor, (v for _, v in items), 0)


@pytest.mark.parametrize("bad", [[-1], [0, 3], [2, -1], [1, 0, 7]])
def test_a_parent_out_of_range_is_refused(bad: list[int]) -> None:
    three = _u64([1, 2, 3])
    with pytest.raises(
        ProtocolError, match=f"parent index {next(b for b in bad if b not in (0, 1, 2))} "
    ):
        kernels.child_ids(three, np.array(bad), 5)
    with pytest.raises(ProtocolError, match="out of range"):
        kernels.children_xor(
            np.zeros(4, np.uint64),
            np.array([4, -1]),
            np.zeros(3, np.uint32),
            three,
            np.array(bad),
            5,
        )


def test_wrong_arrays_are_refused() -> None:
    acc, three = np.zeros(4, np.uint64), _u64([1, 2, 3])
    with pytest.raises(ProtocolError, match="root sequence 4 is out of range"):
        kernels.xor_into(acc, np.array([0, 4, 1], np.uint32), three)
    with pytest.raises(ProtocolError, match="-1 to 1 do not fit"):
        kernels.xor_into(acc, np.array([0, -1, 1]), three)
    with pytest.raises(ProtocolError, match="2 roots were given for 3"):
        kernels.xor_into(acc, np.array([0, 1], np.uint32), three)
    with pytest.raises(ProtocolError, match="parent indices are float64"):
        kernels.child_ids(three, np.array([0.0]), 5)  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match="parent index 0 "):
        kernels.child_ids(_u64([]), np.array([0]), 5)
    assert kernels.child_ids(_u64([]), np.array([], np.int64), 5).tolist() == []


def test_dense_numbers_do_not_cancel() -> None:
    """Why ``mix`` must not be linear: runs of neighbouring ids never XOR to zero."""
    seeds = kernels.range_seeds("lines", 0, 0, 4096)
    for width in (2, 4, 8, 64, 256):
        runs = np.bitwise_xor.reduce(seeds.reshape(-1, width), axis=1)
        assert runs.all()
