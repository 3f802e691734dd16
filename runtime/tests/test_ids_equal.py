"""The array twins of the ids are the ids: numpy and compiled, element by element."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace import ids
from millrace.engine.task import kernels as task
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
    assert [ids.tuple_id(0, ordinal, 0) for ordinal in range(2)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
    ]


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


@given(st.lists(U64S, max_size=20), st.integers(0, 999), U64S)
@settings(deadline=None)
def test_ids_of_equal_ordinals_equal(parents: list[int], ordinal: int, edge: int) -> None:
    assert task.emit_alike(_u64(parents), ordinal, edge).tolist() == [
        ids.tuple_id(parent, ordinal, edge) for parent in parents
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


def _nets(roots: int = 10) -> tuple[arrays.U64, arrays.U64]:
    return np.zeros(roots, np.uint64), np.zeros(1, np.uint64)


@given(families(), U64S)
@settings(deadline=None)
def test_child_ids_equal(family: tuple[list[int], list[int]], edge: int) -> None:
    parent_ids, parents = family
    index = np.array(parents, np.int64)
    for ordinals in (None, task.ordinals_of(index, len(parent_ids))):
        made = task.children(_u64(parent_ids), index, ordinals, edge)
        assert made.tolist() == _children(parent_ids, parents, edge)


@given(st.lists(U64S, max_size=20), U64S)
@settings(deadline=None)
def test_ids_of_single_children_equal(parents: list[int], edge: int) -> None:
    made = task.children(_u64(parents), None, None, edge)
    assert made.tolist() == [ids.tuple_id(parent, 0, edge) for parent in parents]


TREE, NOWHERE = task.WINDOW_TREE, task.UNTRACKED


@given(st.lists(st.integers(0, 9) | st.sampled_from([TREE, TREE + 5, NOWHERE]), max_size=40))
@settings(deadline=None)
def test_what_is_emitted_is_booked_for_its_root(roots: list[int]) -> None:
    """Roots of the window, its own tree, and tuples of none."""
    made = [ids.mix64(number + 1) for number in range(len(roots))]
    expected, loose = [0] * 10, 0
    for child, root in zip(made, roots, strict=True):
        if root < TREE:
            expected[root] ^= child
        elif root != NOWHERE:
            loose ^= child
    nets = _nets()
    task.absorb(_u64(made), np.array(roots, np.uint32), nets)
    assert (nets[0].tolist(), int(nets[1][0])) == (expected, loose)


@given(families(), U64S, st.sampled_from([np.int64, np.int32, np.uint32, np.uint8, np.int16]))
@settings(deadline=None)
def test_children_of_any_index_type_equal(
    family: tuple[list[int], list[int]], edge: int, dtype: type
) -> None:
    parent_ids, parents = family
    found = kernels.child_ids(_u64(parent_ids), np.array(sorted(parents), dtype), edge)
    assert found is not None
    assert found.tolist() == _children(parent_ids, sorted(parents), edge)


@pytest.mark.parametrize("bad", [[-1], [0, 3], [2, -1], [1, 0, 7], [(1 << 63) - 1, -(1 << 63)]])
def test_children_of_a_parent_out_of_range_are_not_made(bad: list[int]) -> None:
    assert kernels.child_ids(_u64([1, 2, 3]), np.array(bad), 5) is None
    assert kernels.child_ids(_u64([]), np.array([0]), 5) is None


def test_wrong_arrays_are_refused() -> None:
    with pytest.raises(ProtocolError, match="parent indices are float64"):
        kernels.child_ids(_u64([1, 2, 3]), np.array([0.0]), 5)  # type: ignore[arg-type]


def test_dense_numbers_do_not_cancel() -> None:
    """Why ``mix`` must not be linear: runs of neighbouring ids never XOR to zero."""
    seeds = kernels.range_seeds("lines", 0, 0, 4096)
    for width in (2, 4, 8, 64, 256):
        runs = np.bitwise_xor.reduce(seeds.reshape(-1, width), axis=1)
        assert runs.all()
