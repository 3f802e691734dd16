"""The array fold does what the plain one does, in 8 bytes a root."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tasktold import TaskTold

from millrace.ids import TRACKING_PARTITIONS
from millrace.protocol.acker import AckerMachine, Answer, Drain, Follow, Reread, Unfollow
from millrace.protocol.acklog import (
    Open,
    SliceOwners,
    check_partition,
    roots_of,
    sequences,
    source_edge,
)
from millrace.protocol.types import (
    UNSAID_SLICES,
    AttemptId,
    CloseMarker,
    Intent,
    Replay,
    RootRange,
    TaskId,
)
from millrace.simulate.parts.plainfold import PlainFold, PlainMessage, seeds
from millrace.tracking.fold import ArrayFold, SeedIntervals
from millrace.tracking.ids import U64, range_tracking_ids
from millrace.tracking.message import AckMessage, Net, Seeds, decode, read_enclosed

WINDOW = 9
ATTEMPT = AttemptId(1, WINDOW, 1)
EDGES = (source_edge("lines"), source_edge("more"), "lines>a", "more>a", "a>b")


def intent(roots: int) -> Intent:
    """Several ranges of two sources, then replays."""
    replays = tuple(Replay("more", 8, 70 + i, 1 + i, 0.0) for i in range(min(3, roots // 2)))
    rest = roots - len(replays)
    first, second = rest // 3, rest // 5
    ranges = (
        RootRange("lines", (1 << 64) - 3, 11, first),
        RootRange("more", 5, 0, second),
        RootRange("lines", 6, 1 << 40, rest - first - second),
    )
    return Intent(WINDOW, ranges, replays)


def marker(roots: int, excluded: frozenset[int]) -> CloseMarker:
    return CloseMarker(ATTEMPT, intent(roots), excluded, (), ())


Touches = list[tuple[int, str, int, int]]


def touches(roots: int) -> st.SearchStrategy[Touches]:
    """(task, edge, root, value)"""
    one = st.tuples(
        st.integers(0, 2),
        st.sampled_from(EDGES),
        st.integers(0, roots - 1),
        st.integers(0, (1 << 64) - 1),
    )
    return st.lists(one, max_size=30)


def messages(
    roots: int, what: Touches, slices: int = UNSAID_SLICES
) -> list[tuple[AckMessage, PlainMessage]]:
    """The same messages in both forms."""
    found = []
    for task in {touch[0] for touch in what}:
        collector = TaskTold(ATTEMPT, TaskId(0, task, task), roots, intent(roots).ranges, slices)
        for edge in EDGES:
            mine = [touch for touch in what if touch[:2] == (task, edge)]
            roots_of_edge = np.array([root for _, _, root, _ in mine], np.uint32)
            values = np.array([value for *_, value in mine], np.uint64)
            collector.absorb(edge, roots_of_edge, values)
        for partition, data in collector.messages():
            message = decode(data)
            fold = ArrayFold(Open(ATTEMPT, roots, EDGES, slices), partition)
            nets: dict[str, dict[int, int]] = {}
            for net in message.values(slices):
                so_far = nets.setdefault(net.edge, {})
                for sequence, value in _by_sequence(fold, net).items():
                    so_far[sequence] = so_far.get(sequence, 0) ^ value
            found.append((message, PlainMessage(ATTEMPT, message.task, partition, nets, {})))
    return found


def _by_sequence(fold: ArrayFold, net: Net) -> dict[int, int]:
    places = np.arange(net.low, net.low + len(net.values)) if net.places is None else net.places
    sequences = fold.sequences(places.astype(np.int64)).tolist()
    return dict(zip(sequences, net.values.tolist(), strict=True))


@given(
    st.sampled_from([1, 6, 300, 2100]).flatmap(
        lambda roots: st.tuples(
            st.just(roots), touches(roots), st.frozensets(st.integers(0, roots - 1), max_size=5)
        )
    ),
    st.integers(0, UNSAID_SLICES - 1),
    st.sampled_from([UNSAID_SLICES, 18, 21]),
)
@settings(deadline=None, max_examples=60)
def test_the_array_fold_equals_the_plain_one(
    case: tuple[int, Touches, frozenset[int]], taken_out: int, slices: int
) -> None:
    roots, what, excluded = case
    opened, close = Open(ATTEMPT, roots, EDGES, slices), marker(roots, excluded)
    # Most roots are read, so that both kinds of roots are there.
    read = [s for s in range(roots) if s not in excluded and (s % 7 or s == 0)]
    what = what + [(0, edge, s, seed) for s, seed, edge in seeds(close.intent, read)]
    pairs = messages(roots, what, slices)
    for partition in range(slices):
        array, plain = ArrayFold(opened, partition), PlainFold(opened, partition)
        mine = [pair for pair in pairs if pair[0].partition == partition]
        for one, other in mine:
            assert array.accepts(one)
            assert plain.accepts(other)
            array.apply(one)
            plain.apply(other)
        if mine and taken_out == partition:
            array.apply(mine[0][0])
            plain.apply(mine[0][1])
            mine = mine[1:]
        array.seed(close)
        plain.seed(close)
        assert list(array.incomplete()) == list(plain.incomplete())
        array_trace, plain_trace = array.trace(close), plain.trace(close)
        for one, other in mine:
            array_trace.add(one)
            plain_trace.add(other)
        assert list(array_trace.broken()) == list(plain_trace.broken())


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 9), st.sampled_from([(0, 0), (0, 5), (3, 0)])),
        max_size=12,
    )
)
@settings(deadline=None)
def test_seeds_that_cancel_are_never_computed(said: list[tuple[int, int, tuple[int, int]]]) -> None:
    intervals, plain = SeedIntervals(), np.zeros(50, np.uint64)
    for low, count, records in said:
        seeds = Seeds(source_edge("lines"), low, count, *records)
        intervals.toggle(seeds)
        plain[low : low + count] ^= seeds.net(WINDOW, WINDOW, UNSAID_SLICES).values
    left = list(intervals.take())
    for seeds in left:
        plain[seeds.low : seeds.low + seeds.count] ^= seeds.net(
            WINDOW, WINDOW, UNSAID_SLICES
        ).values
    assert not plain.any()
    assert sum(seeds.count for seeds in left) <= sum(count for _, count, _ in said)
    assert list(intervals.take()) == []


def test_halves_that_tasks_read_cancel_with_the_whole_that_is_seeded() -> None:
    intervals = SeedIntervals()
    for low, count in ((0, 20), (20, 30), (0, 50)):
        intervals.toggle(Seeds(source_edge("lines"), low, count, 1, 7))
    assert list(intervals.take()) == []


@given(st.data())
@settings(deadline=None)
def test_both_folds_leave_holes_alone(data: st.DataObject) -> None:
    """A hole is complete where nothing came of it, and any tuple under its number shows."""
    roots = data.draw(st.integers(1, 900))
    fresh = roots - min(3, roots // 2)
    cuts = sorted(data.draw(st.sets(st.integers(0, fresh), max_size=8)))
    holes = tuple((low, high - low) for low, high in pairwise(cuts))[::2]
    excluded = frozenset(data.draw(st.sets(st.integers(0, roots - 1), max_size=3)))
    close = CloseMarker(ATTEMPT, intent(roots), excluded, (), (), holes)
    empty = {s for first, count in holes for s in range(first, first + count)}
    touched = data.draw(st.integers(0, roots - 1))
    for partition in range(UNSAID_SLICES):
        opened = Open(ATTEMPT, roots, EDGES)
        array, plain = ArrayFold(opened, partition), PlainFold(opened, partition)
        mine = messages(roots, [(0, "a>b", touched, 5)])
        for one, other in mine:
            if other.partition == partition:
                array.apply(one)
                plain.apply(other)
        array.seed(close)
        plain.seed(close)
        inside = set(sequences(WINDOW, partition, roots, UNSAID_SLICES)) - excluded
        wanted = sorted(s for s in inside if s not in empty or s == touched)
        assert list(array.incomplete()) == list(plain.incomplete()) == wanted
        assert list(array.trace(close).broken()) == list(plain.trace(close).broken())


def test_holes_are_taken_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of transactions may have a mark behind each of its records."""
    calls: list[int] = []

    def counted(source: int, partition: int, offsets: U64, replay: int = 0) -> U64:
        calls.append(len(offsets))
        return range_tracking_ids(source, partition, offsets, replay)

    for module in ("fold", "message"):
        monkeypatch.setattr(f"millrace.tracking.{module}.range_tracking_ids", counted)
    roots, partition = 20_000, check_partition(WINDOW, UNSAID_SLICES)
    array = ArrayFold(Open(ATTEMPT, roots, EDGES), partition)
    holes = tuple((s, 1) for s in range(1, roots, 2))
    array.seed(CloseMarker(ATTEMPT, intent(roots), frozenset(), (), (), holes))
    mine = list(sequences(WINDOW, partition, roots, UNSAID_SLICES))
    assert list(array.incomplete()) == [s for s in mine if not s % 2]
    assert len(calls) <= 2 * len(intent(roots).ranges)


def _dense(edge: str, low: int, count: int) -> AckMessage:
    net = Net(edge, low, np.ones(count, np.uint64))
    return AckMessage(ATTEMPT, TaskId(0, 0, 0), check_partition(WINDOW, UNSAID_SLICES), (net,), {})


def _sparse(*places: int) -> AckMessage:
    net = Net("a>b", 0, np.ones(len(places), np.uint64), np.array(places, np.uint32))
    return AckMessage(ATTEMPT, TaskId(0, 0, 0), check_partition(WINDOW, UNSAID_SLICES), (net,), {})


def test_messages_that_do_not_fit_are_not_accepted() -> None:
    fold = ArrayFold(Open(ATTEMPT, 200, EDGES), check_partition(WINDOW, UNSAID_SLICES))
    assert fold.accepts(_dense("a>b", 0, 200))
    assert not fold.accepts(_dense("a>b", 1, 200))
    assert not fold.accepts(_dense("a>c", 0, 200))
    assert fold.accepts(_sparse())
    assert fold.accepts(_sparse(1, 199))
    assert not fold.accepts(_sparse(1, 200))
    assert not fold.accepts(_sparse(5, 5))
    assert not fold.accepts(_sparse(6, 5))


def test_eight_bytes_a_root() -> None:
    roots = 1_000_000
    opened = Open(ATTEMPT, roots, EDGES)
    folds = [ArrayFold(opened, partition) for partition in range(UNSAID_SLICES)]
    assert sum(fold.size_bytes for fold in folds) == 0
    for fold in folds:
        fold.apply(_dense("a>b", 0, 256))
    assert sum(fold.size_bytes for fold in folds) == 8 * roots


def test_a_wrong_close_marker_breaks_roots_but_not_the_acker() -> None:
    """More roots than were announced, excluded ones far away, a source that has no edge."""
    fold = ArrayFold(Open(ATTEMPT, 10, ("a>b",)), check_partition(WINDOW, UNSAID_SLICES))
    close = marker(5000, frozenset([4097, 3]))
    fold.seed(close)
    assert list(fold.incomplete()) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert {edge for _, edge in fold.trace(close).broken()} == {""}


def test_a_machine_over_arrays_finds_the_broken_roots() -> None:
    """The whole way: collectors, bytes, machine, arrays; one tuple lost, one loser folded."""
    roots, rng = 5000, random.Random(7)
    close = marker(roots, frozenset([17]))
    judged = [s for s in range(roots) if s not in close.excluded]
    known = {s: (seed, edge) for s, seed, edge in seeds(close.intent, judged)}
    ranges = close.intent.ranges
    source, sink = (TaskTold(ATTEMPT, TaskId(p, 0, p), roots, ranges) for p in range(2))
    loser = TaskTold(ATTEMPT, TaskId(1, 0, 55), roots)
    all_roots = np.array(sorted(known), np.uint32)
    ids = np.array([rng.getrandbits(64) for _ in all_roots], np.uint64)
    for name in ("lines", "more"):
        edge = source_edge(name)
        mine = [s for s in sorted(known) if known[s][1] == edge]
        values = np.array([known[s][0] for s in mine], np.uint64)
        source.read(name, np.array(mine, np.uint32), values)
    source.absorb("a>b", all_roots, ids)
    keep = all_roots != 4000
    sink.absorb("a>b", all_roots[keep], ids[keep])
    loser.absorb("a>b", all_roots, ids)
    log: dict[int, list[AckMessage]] = {p: [] for p in range(TRACKING_PARTITIONS)}
    wrote: dict[TaskId, tuple[int, ...]] = {}
    for collector in (source, loser, sink):
        parts = collector.messages()
        for partition, data in parts:
            log[partition].append(decode(data))
        wrote[decode(parts[0][1]).task] = tuple(partition for partition, _ in parts)
    del wrote[TaskId(1, 0, 55)]
    close = CloseMarker(ATTEMPT, close.intent, close.excluded, tuple(wrote.items()), ())

    machine = AckerMachine[AckMessage]("a", ArrayFold, read_enclosed)
    actions = machine.control(SliceOwners.of(1, ["a"]))
    actions += machine.control(Open(ATTEMPT, roots, EDGES, TRACKING_PARTITIONS))
    actions += machine.control(close)
    found, complete = [], 0
    while actions:
        action = actions.pop(0)
        if isinstance(action, Drain):
            for number, message in enumerate(log[action.partition]):
                machine.message(action.partition, str(number), message)
            actions += machine.drained(action.id, action.partition)
        elif isinstance(action, Reread):
            again = [log[action.partition][int(entry)] for entry in action.entries]
            actions += machine.reread(action.id, action.partition, again)
        elif isinstance(action, Answer):
            assert action.verdict.window_complete
            found += action.verdict.incomplete
            complete += action.verdict.complete
        else:
            assert isinstance(action, Follow | Unfollow)
    assert [(root.sequence, root.processor) for root in found] == [(4000, "b")]
    assert complete == roots - 2
    assert roots_of(WINDOW, 0, roots, UNSAID_SLICES) > 0
