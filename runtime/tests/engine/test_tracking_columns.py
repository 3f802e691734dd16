"""Compiled loops over the tracking columns, against the reference in millrace.ids."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace import ids as reference
from millrace.engine.task import kernels
from millrace.engine.task.batch import Batch, concat, dense
from millrace.errors import EngineError, UserCodeError

EDGE = reference.edge_id("split", "counts")


def a_batch(roots, order=None, values=None):
    n = len(roots)
    data = pa.RecordBatch.from_arrays([pa.array(values or list(range(n)))], names=["v"])
    return Batch.of(
        data,
        np.array(roots, np.uint32),
        np.arange(100, 100 + n, dtype=np.uint64),
        None if order is None else np.array(order, np.uint64),
    )


def test_tuples_of_the_windows_tree_and_untracked_ones_touch_no_root():
    net = np.zeros(1, np.uint64), np.zeros(1, np.uint64)
    roots = np.array([kernels.WINDOW_TREE | 3, kernels.UNTRACKED], np.uint32)
    kernels.absorb(np.array([5, 9], np.uint64), roots, net)
    assert (net[0].tolist(), net[1].tolist()) == ([0], [5])


def test_anchors_are_xored_into_each_of_their_roots():
    net = np.zeros(3, np.uint64), np.zeros(1, np.uint64)
    lists = pa.array([[0, 2], [1]], pa.list_(pa.uint32()))
    ids = np.array([5, 9], np.uint64)
    kernels.absorb_lists(ids, lists.offsets.to_numpy(), lists.values.to_numpy(), net)
    assert net[0].tolist() == [5, 9, 5]


TREE = kernels.WINDOW_TREE


@pytest.mark.parametrize(
    "roots", [[TREE | 1], [TREE | 1, TREE | 2], [TREE | 1, TREE | 1 << 16 | 1, TREE | 2]]
)
def test_a_tuple_is_once_in_the_windows_tree_however_many_of_its_anchors_are(roots):
    """An even number of them would take it out again, and nobody would miss it."""
    net = np.zeros(2, np.uint64), np.zeros(1, np.uint64)
    lists = pa.array([[0, *roots], [kernels.UNTRACKED], [1]], pa.list_(pa.uint32()))
    ids = np.array([5, 9, 17], np.uint64)
    kernels.absorb_lists(ids, lists.offsets.to_numpy(), lists.values.to_numpy(), net)
    assert [a.tolist() for a in net] == [[5, 17], [5]]


@given(st.permutations(list(range(8))))
@settings(max_examples=40, deadline=None)
def test_root_order_does_not_depend_on_how_tuples_arrived(arrival):
    roots = [0, 0, 1, 1, 1, 3, 3, 7]
    order = [0, 1, 0, 1, 2, 5, 9, 0]
    batch = a_batch([roots[i] for i in arrival], [order[i] for i in arrival], list(arrival))
    ordered = batch.in_root_order()
    assert ordered.data.column("v").to_pylist() == list(range(8))
    assert ordered.roots.tolist() == roots


def test_children_stay_behind_their_parents_place():
    order = kernels.child_order(
        np.array([1, 2], np.uint64), np.array([0, 0, 1], np.int64), np.array([0, 1, 0], np.uint32)
    )
    assert order.tolist() == [1 << 16, (1 << 16) + 1, 2 << 16]


@pytest.mark.parametrize("anchored", [False, True])
def test_a_batch_travels_as_arrow_and_comes_back(anchored):
    batch = a_batch([3, kernels.WINDOW_TREE], [4, 5])
    if anchored:
        lists = pa.array([[3, 9], [kernels.WINDOW_TREE]], pa.list_(pa.uint32()))
        batch = Batch.of(batch.data, batch.roots, batch.ids, batch.order, lists)
    found = Batch.from_arrow(batch.to_arrow())
    assert found.data.equals(batch.data)
    assert found.roots.tolist() == batch.roots.tolist()
    assert found.ids.tolist() == batch.ids.tolist()
    assert found.order.tolist() == batch.order.tolist()
    assert (found.anchors is not None) == anchored
    assert [found.roots_at(0), found.roots_at(1)] == (
        [[3, 9], [kernels.WINDOW_TREE]] if anchored else [[3], [kernels.WINDOW_TREE]]
    )


def test_other_columns_have_as_many_rows_as_there_are_tuples():
    batch = a_batch([1, 2])
    with pytest.raises(EngineError, match="1 rows are to stand for 2 tuples"):
        batch.with_data(batch.data.slice(1))


def test_batches_join_though_only_one_has_anchors_and_encoded_columns():
    plain = a_batch([1, 2], values=["a", "b"])
    encoded = plain.data.column("v").dictionary_encode()
    lists = pa.array([[1, 2], [2]], pa.list_(pa.uint32()))
    other = Batch.of(
        pa.RecordBatch.from_arrays([encoded], names=["v"]), plain.roots, plain.ids, None, lists
    )
    joined = concat([plain, other])
    assert dense(joined.data).column("v").to_pylist() == ["a", "b", "a", "b"]
    assert joined.anchors.to_pylist() == [[1], [2], [1, 2], [2]]
    assert joined.take(np.array([2])).roots_at(0) == [1, 2]


def text_of(size: int) -> pa.Array:
    """One text, whose bytes nobody writes to or reads."""
    offsets = pa.py_buffer(np.array([0, size], np.int32))
    return pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(bytes(size))])


def list_of(size: int) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, size], pa.int32()), pa.nulls(size))


@pytest.mark.parametrize(("column", "told"), [(text_of, "column v"), (list_of, "column of lists")])
def test_what_one_column_cannot_hold_is_told_with_what_to_do(column, told):
    parts = [
        Batch.of(pa.RecordBatch.from_arrays([column(size)], names=["v"]), np.array([0], np.uint32))
        for size in ((1 << 31) - 4, 5)
    ]
    with pytest.raises(UserCodeError, match=f"{told} .* spec.window.maxRecords"):
        concat(parts)


def test_ids_of_children_with_one_ordinal_are_those_of_the_reference():
    parents = np.array([0, 7, 1 << 63, (1 << 64) - 1], np.uint64)
    for ordinal in (0, 3, 255, 256, 70_000):
        ids = kernels.emit_alike(parents, ordinal, EDGE)
        assert ids.tolist() == [reference.tuple_id(int(p), ordinal, EDGE) for p in parents]
