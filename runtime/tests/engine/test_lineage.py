"""Ids that are worked out late: what is booked is what working them out at once would book."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from engine_support import write_lines
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace import ids as reference
from millrace.engine.program.program import Channel, Route
from millrace.engine.task import books as books_module
from millrace.engine.task import kernels
from millrace.engine.task.batch import Batch, concat
from millrace.engine.task.books import Books, NetPool
from millrace.engine.task.combine import Combiner
from millrace.engine.task.lineage import Records
from millrace.engine.task.steps.base import Outlet, StreamingStep
from millrace.errors import EngineError
from millrace.ids import TRACKING_PARTITIONS
from millrace.protocol.acklog import source_edge
from millrace.protocol.types import RootRange
from millrace.tracking.collector import ReadRun

EDGE = Channel("lines", "words", Route.LOCAL)
ROOTS = 8
READ = RootRange("lines", 3, 100, ROOTS)


def books(tracked=True) -> Books:
    return Books(ROOTS, TRACKING_PARTITIONS, tracked, NetPool())


def outlet(mine: Books, deliver, edge=EDGE) -> Outlet:
    component = SimpleNamespace(many=True)
    return Outlet(SimpleNamespace(books=mine), component, [(edge, deliver)])


def records(tracked=True) -> Batch:
    data = pa.RecordBatch.from_arrays([pa.array(range(ROOTS))], names=["v"])
    return Batch(data, Records(0, READ, tracked))


def rows(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(range(count))], names=["v"])


def child_ids(parents: list[int]) -> list[int]:
    """By the reference, of children of ``records`` on ``EDGE``."""
    seen: dict[int, int] = {}
    found = []
    for parent in parents:
        root = reference.root_id(reference.name_id("lines"), 3, 100 + parent)
        ordinal = seen.get(parent, 0)
        seen[parent] = ordinal + 1
        found.append(reference.tuple_id(reference.tracking_id(root, 0), ordinal, EDGE.id))
    return found


def processed_rows(number: int) -> st.SearchStrategy:
    """Rows of a batch of so many that a step takes, in pieces; None: the batch as it came."""
    piece = st.none() | st.lists(st.integers(0, number - 1), max_size=number)
    return st.lists(piece, max_size=3)


@given(st.lists(st.integers(0, ROOTS - 1), min_size=1, max_size=30), st.data())
@settings(deadline=None)
def test_books_are_those_of_ids_that_are_worked_out_at_once(parents, data):
    pieces = data.draw(processed_rows(len(parents)))
    later = data.draw(processed_rows(len(parents)))
    elsewhere = data.draw(st.booleans())
    mine, held = books(), []

    def take(batch: Batch, piece) -> None:
        part = batch if piece is None else batch.take(np.array(piece, np.int64))
        mine.absorb("a>b" if elsewhere else EDGE.name, part)

    def deliver(batch: Batch) -> None:
        held.append(batch)
        for piece in pieces:
            take(batch, piece)

    places = np.array(parents, np.int64)
    outlet(mine, deliver).emit(rows(len(parents)), records(), places)
    places[:] = 0  # what children were made from is not theirs when their delivery is over
    whole = None in pieces and not elsewhere
    for piece in later:
        try:
            take(held[0], piece)
        except EngineError:
            assert whole
            pieces = [*pieces, []]
        else:
            pieces = [*pieces, piece]
    expected = {EDGE.name: [0] * ROOTS, "a>b": [0] * ROOTS}
    known = child_ids(parents)
    for child, root in zip(known, parents, strict=True):
        expected[EDGE.name][root] ^= child
    for piece in pieces:
        for row in range(len(parents)) if piece is None else piece:
            expected["a>b" if elsewhere else EDGE.name][parents[row]] ^= known[row]
    for edge, values in expected.items():
        net = mine.nets.get(edge)
        assert ([0] * ROOTS if net is None else net[:ROOTS].tolist()) == values


def test_what_goes_whole_from_step_to_step_costs_no_ids():
    mine = books()
    batch = records()
    outlet(mine, lambda given: mine.absorb(EDGE.name, given)).emit(batch.data, batch, None)
    mine.absorb_records(source_edge("lines"), batch)
    assert mine.nets == {}
    assert mine.read == {source_edge("lines"): [ReadRun(0, ROOTS, 3, 100)]}
    assert batch.lineage._ids is None


def test_runs_of_records_are_as_few_as_may_be_and_further_ones_are_booked_by_ids(monkeypatch):
    monkeypatch.setattr(books_module, "MOST_RUNS", 2)
    mine = books()
    edge = source_edge("lines")
    for first, count in ((0, 1), (1, 2), (4, 1), (5, 1), (7, 1)):
        part = replace(READ, start=READ.start + first, count=count)
        mine.absorb_records(edge, Batch(rows(count), Records(first, part, tracked=True)))
    assert mine.read == {edge: [ReadRun(0, 3, 3, 100), ReadRun(4, 2, 3, 100)]}
    seed = reference.tracking_id(reference.root_id(reference.name_id("lines"), 3, 107), 0)
    assert mine.nets[edge][:ROOTS].tolist() == [0] * 7 + [seed]


def test_other_columns_are_the_same_tuples():
    mine = books()

    def deliver(batch: Batch) -> None:
        mine.absorb(EDGE.name, batch.with_data(batch.data.rename_columns(["w"])))

    outlet(mine, deliver).emit(rows(ROOTS), records(), None)
    assert mine.nets == {}


def test_who_has_processed_a_batch_looks_at_it_no_more_unless_it_was_kept():
    mine, held = books(), []

    def deliver(batch: Batch) -> None:
        held.extend([batch, batch.keep()])
        mine.absorb(EDGE.name, batch.with_data(batch.data))

    outlet(mine, deliver).emit(rows(ROOTS), records(), None)
    assert held[1].ids.tolist() == child_ids(list(range(ROOTS)))
    assert held[0].ids.tolist() == held[1].ids.tolist(), "it was looked at in time"
    held.clear()

    def careless(batch: Batch) -> None:
        held.append(batch)
        mine.absorb(EDGE.name, batch)

    outlet(mine, careless).emit(rows(ROOTS), records(), None)
    for look in (lambda: held[0].ids, lambda: held[0].roots, lambda: concat([held[0]] * 2)):
        with pytest.raises(EngineError, match="the edge lines>words are looked at when they"):
            look()


@pytest.mark.parametrize("tracked", [True, False])
def test_what_waits_behind_its_delivery_has_roots_of_its_own(tracked):
    mine, held = books(tracked), []
    places = np.array([0, 0, 5], np.int64)
    outlet(mine, held.append).emit(rows(3), records(tracked), places)
    places[:] = 7
    assert held[0].roots.tolist() == [0, 0, 5]
    assert (held[0].ids is None) == (not tracked)
    if tracked:
        assert held[0].ids.tolist() == child_ids([0, 0, 5])


def test_copies_of_a_broadcast_are_booked_and_not_what_they_are_of():
    mine = books()
    edge = Channel("lines", "words", Route.BROADCAST)
    outlet(mine, lambda batch: mine.absorb(edge.name, batch), edge).emit(
        rows(ROOTS), records(), None
    )
    assert mine.nets[edge.name][:ROOTS].tolist() == child_ids(list(range(ROOTS)))


def test_rows_without_parents_are_refused():
    with pytest.raises(EngineError, match="3 rows are to be emitted for 2 parents"):
        outlet(books(), lambda _: None).emit(rows(3), records(), np.zeros(2, np.int64))


LINES = [f"a{i % 5} b{i % 11} c{i}" for i in range(80)]
NATIVE = """
sources: [{name: lines, files: {path: texts}}]
processors:
  - {name: split, inputs: [{from: lines}], split: {column: value, into: word}}
  - name: step
    inputs: [{from: split, key: [word]}]
    aggregate: {columns: [{name: n, function: count}]}
sinks:
  - {name: rows, inputs: [{from: step}], files: {path: rows, format: jsonLines}}
"""


def dropped(accept, batch):
    """All but the tuple at place 7."""
    accept(batch.filter(np.arange(len(batch)) != 7))


def lost(accept, batch):
    """Nothing of it."""


def doubled(accept, batch):
    accept(batch)
    accept(batch)


def repeated(accept, batch):
    """The tuple at place 7 once more."""
    accept(batch)
    accept(batch.take(np.array([7], np.int64)))


def swapped(accept, batch):
    """The tuple at place 7 under another root."""
    roots = batch.roots.copy()
    roots[7] = roots[7] + 1 if roots[7] == 0 else roots[7] - 1
    accept(Batch.of(batch.data, roots, batch.ids))


DAMAGES = [dropped, lost, doubled, repeated, swapped]


@pytest.mark.parametrize("damage", DAMAGES, ids=[damage.__name__ for damage in DAMAGES])
@pytest.mark.parametrize("edge", ["lines>split", "split>step"])
def test_damage_between_steps_of_one_task_is_seen_by_the_ackers(
    windows, tmp_path, monkeypatch, edge, damage
):
    write_lines(tmp_path, LINES)
    run = windows(NATIVE, whole=True)
    assert run.attempt(run.plan()).verdict.complete
    run.offsets.clear()
    combine, process = Combiner.accept, StreamingStep.accept

    def combined(self, batch):
        damage(lambda given: combine(self, given), batch)

    def taken(self, over, batch):
        damage(lambda given: process(self, over, given), batch)

    if edge == "split>step":
        monkeypatch.setattr(Combiner, "accept", combined)
    else:
        monkeypatch.setattr(StreamingStep, "accept", taken)
    verdict = run.attempt(run.plan()).verdict
    assert set(verdict.edges) == {edge}
    whole = len(LINES)
    expected = {dropped: 1, lost: whole, doubled: whole, repeated: 1, swapped: 2}[damage]
    assert len(verdict.incomplete) == expected


def test_ids_of_children_are_worked_out_from_parents_in_any_order():
    parent_ids = np.arange(50, 55, dtype=np.uint64)
    for parents in ([0, 0, 3, 4], [4, 0, 4, 0]):
        places = np.array(parents, np.int64)
        ordinals = kernels.ordinals_of(places, 5)
        made = kernels.children(parent_ids, places, None, EDGE.id)
        assert made.tolist() == kernels.children(parent_ids, places, ordinals, EDGE.id).tolist()
