"""Ack messages: what a task collects comes out of the bytes, in few bytes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tasktold import TaskTold, TrackedEdge

from millrace.errors import NewerFormatError, ProtocolError
from millrace.ids import TRACKING_PARTITIONS, tuple_id
from millrace.protocol.acklog import check_partition, local_index, partition_of, source_edge
from millrace.protocol.types import FORMAT, AttemptId, RootRange, TaskId
from millrace.tracking import message as codec
from millrace.tracking.collector import AckCollector, ReadRun
from millrace.tracking.kernels import range_seeds

ATTEMPT, TASK = AttemptId(1 << 40, 7, 3), TaskId(2, 9, 1 << 35)
SPLIT, WORDS = TrackedEdge.between("lines", "split"), TrackedEdge.between("split", "zähler")
U64S = st.integers(0, (1 << 64) - 1)

Touch = tuple[str, int, int]


def _net_by_root(collector: TaskTold, roots: int) -> dict[tuple[str, int], int]:
    """Non-zero nets by edge and sequence number, straight from the bytes."""
    found: dict[tuple[str, int], int] = {}
    for partition, data in collector.messages():
        message = codec.decode(data)
        assert (message.attempt, message.task, message.partition) == (ATTEMPT, TASK, partition)
        place_of = {
            local_index(7, partition, s, TRACKING_PARTITIONS): s
            for s in range(roots)
            if partition_of(7, s, TRACKING_PARTITIONS) == partition
        }
        for net in message.values(TRACKING_PARTITIONS):
            places = range(net.low, net.low + len(net.values)) if net.places is None else net.places
            for place, value in zip(places, net.values.tolist(), strict=True):
                root = (net.edge, place_of[int(place)])
                found[root] = found.get(root, 0) ^ value
    return {root: value for root, value in found.items() if value}


def test_a_message_is_enclosed_as_text() -> None:
    ((_, data),) = AckCollector(ATTEMPT, TASK, 5, slices=1).messages()
    found = codec.read_enclosed(codec.enclosed(data))
    assert (found.attempt, found.task, found.partition) == (ATTEMPT, TASK, 0)


@pytest.mark.parametrize("text", ["?", "TUE", "TUE=\n", "ä"])
def test_what_is_no_text_of_a_message_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError, match="no base64"):
        codec.read_enclosed(text)
    with pytest.raises(ProtocolError, match="does not begin with a head"):
        codec.read_enclosed("")


@given(
    st.sampled_from([1, 200, 300, 4096, 9000]),
    st.lists(
        st.tuples(
            st.sampled_from([SPLIT.name, WORDS.name]),
            st.lists(st.tuples(st.integers(0, 8999), U64S), max_size=9),
        ),
        max_size=6,
    ),
)
@settings(deadline=None)
def test_what_is_collected_comes_out(
    roots: int, batches: list[tuple[str, list[tuple[int, int]]]]
) -> None:
    collector = TaskTold(ATTEMPT, TASK, roots)
    expected: dict[tuple[str, int], int] = {}
    for edge, items in batches:
        items = [(root % roots, value) for root, value in items]
        collector.absorb(
            edge,
            np.array([root for root, _ in items], np.uint32),
            np.array([value for _, value in items], np.uint64),
        )
        for root, value in items:
            expected[edge, root] = expected.get((edge, root), 0) ^ value
    assert _net_by_root(collector, roots) == {k: v for k, v in expected.items() if v}


def test_an_edge_that_nets_out_takes_no_bytes() -> None:
    def sizes(collector: TaskTold) -> list[int]:
        return [len(data) for _, data in collector.messages()]

    busy, idle = TaskTold(ATTEMPT, TASK, 5000), TaskTold(ATTEMPT, TASK, 5000)
    roots, ids = np.arange(5000, dtype=np.uint32), np.arange(1, 5001, dtype=np.uint64)
    busy.absorb(SPLIT, roots, ids)
    busy.absorb(SPLIT, roots, ids)
    busy.combined(WORDS, 77)
    busy.combined(WORDS, 77)
    assert sizes(busy) == sizes(idle)
    assert len(sizes(idle)) == 1


def test_every_task_writes_to_the_slice_that_judges_the_window() -> None:
    collector = TaskTold(ATTEMPT, TASK, 5000)
    collector.absorb(SPLIT, np.array([300], np.uint32), np.array([9], np.uint64))
    for value in (5, 1, 2):
        collector.combined(WORDS, value)
    home, other = (
        check_partition(7, TRACKING_PARTITIONS),
        (check_partition(7, TRACKING_PARTITIONS) + 1) % TRACKING_PARTITIONS,
    )
    messages = {partition: codec.decode(data) for partition, data in collector.messages()}
    assert messages.keys() == {home, other}
    assert messages[home].window_checks == {WORDS.name: 5 ^ 1 ^ 2}
    assert messages[home].nets == ()
    assert messages[other].window_checks == {}


def test_dense_and_sparse_by_size() -> None:
    def nets(roots: np.ndarray, total: int) -> list[codec.Net]:  # type: ignore[type-arg]
        collector = TaskTold(ATTEMPT, TASK, total)
        collector.read("lines", roots.astype(np.uint32), np.ones(len(roots), np.uint64))
        return [
            n
            for _, data in collector.messages()
            for n in codec.decode(data).values(TRACKING_PARTITIONS)
        ]

    dense = nets(np.arange(8192), 8192)
    assert len(dense) == TRACKING_PARTITIONS
    share = 8192 // TRACKING_PARTITIONS
    assert all(net.places is None and len(net.values) == share for net in dense)
    assert {net.edge for net in dense} == {source_edge("lines")}
    (sparse,) = nets(np.array([5, 200, 4096]), 8192)
    assert sparse.places is not None
    assert sparse.places.tolist() == [5, 200, 4096 // TRACKING_PARTITIONS]


def test_bytes_of_a_dense_message_are_8_a_root() -> None:
    collector = TaskTold(ATTEMPT, TASK, 100_000)
    roots = np.arange(100_000, dtype=np.uint32)
    collector.absorb(SPLIT, roots, roots.astype(np.uint64) + np.uint64(1))
    size_bytes = sum(len(data) for _, data in collector.messages())
    assert size_bytes < 8.02 * 100_000


RANGES = (
    RootRange("lines", (1 << 64) - 3, 11, 2500),
    RootRange("more", 5, 0, 700),
    RootRange("lines", 6, 1 << 40, 1800),
)
READ = 5000


@given(
    st.sampled_from([(0, READ), (0, 2500), (1300, 4001), (2500, 3200), (4999, READ)]),
    st.lists(st.tuples(st.integers(0, READ - 1), U64S), max_size=9),
    st.integers(0, 3),
    st.lists(st.integers(1, READ - 1), max_size=3),
    st.integers(0, 7),
)
@settings(deadline=None, max_examples=40)
def test_what_a_source_read_is_a_few_bytes_and_comes_out(
    span: tuple[int, int], faults: list[tuple[int, int]], shift: int, cuts: list[int], as_runs: int
) -> None:
    """``faults`` are roots whose trees broke; with a shift, records at wrong offsets were read. One
    run was read, or every second one between ``cuts``: others have read the rest. Some of them,
    by the bits of ``as_runs``, are told as such, without their ids."""
    bounds = sorted({span[0], *(cut for cut in cuts if span[0] < cut < span[1]), span[1]})
    runs = tuple((low, high - low) for low, high in pairwise(bounds))[::2]
    short, long = TaskTold(ATTEMPT, TASK, READ, RANGES, runs=runs), TaskTold(ATTEMPT, TASK, READ)
    for collector in (short, long):
        first = 0
        for piece in RANGES:
            for number, (begin, count) in enumerate(runs):
                low, high = max(first, begin), min(first + piece.count, begin + count)
                start = piece.start + low - first + shift
                if low < high and collector is short and as_runs >> number & 1:
                    base = (start - low) % (1 << 64)
                    run = ReadRun(low, high - low, piece.partition, base)
                    collector.read_run(piece.source, run)
                elif low < high:
                    ids = range_seeds(piece.source, piece.partition, start, high - low)
                    collector.read(piece.source, np.arange(low, high, dtype=np.uint32), ids)
            first += piece.count
        for root, value in faults:
            broken = span[0] + root % (span[1] - span[0])
            fault = np.array([broken], np.uint32), np.array([value], np.uint64)
            collector.absorb(source_edge("lines"), *fault)
    assert _net_by_root(short, READ) == _net_by_root(long, READ)
    sizes = [sum(len(data) for _, data in one.messages()) for one in (short, long)]
    if not shift or all(as_runs >> number & 1 for number in range(len(runs))):
        assert sizes[0] < 16 * 250 * len(runs) + 64 * len(faults)
    elif not as_runs:
        assert sizes[0] == sizes[1]


def test_children_are_made_and_collected() -> None:
    collector, by_hand = TaskTold(ATTEMPT, TASK, 50), TaskTold(ATTEMPT, TASK, 50)
    roots, ids = np.array([7, 7, 3], np.uint32), np.array([70, 71, 30], np.uint64)
    parents = np.array([0, 0, 2, 1])
    made = collector.emit(WORDS, roots[parents], ids, parents)
    assert made.tolist() == [
        tuple_id(70, 0, WORDS.id),
        tuple_id(70, 1, WORDS.id),
        tuple_id(30, 0, WORDS.id),
        tuple_id(71, 0, WORDS.id),
    ]
    by_hand.absorb(WORDS, roots[parents], made)
    assert collector.messages() == by_hand.messages()


def test_arrays_are_views_into_the_bytes() -> None:
    collector = TaskTold(ATTEMPT, TASK, 5000)
    collector.absorb(SPLIT, np.arange(5000, dtype=np.uint32), np.ones(5000, np.uint64))
    collector.absorb(WORDS, np.array([1], np.uint32), np.ones(1, np.uint64))
    data = collector.messages()[0][1]
    whole = np.frombuffer(data, np.uint8)
    for net in codec.decode(data).nets:
        assert isinstance(net, codec.Net)
        assert np.shares_memory(net.values, whole)
        assert net.values.flags.aligned
        assert not net.values.flags.writeable
        assert net.places is None or np.shares_memory(net.places, whole)


def test_a_run_beyond_the_window_or_a_second_time_is_refused() -> None:
    collector = AckCollector(ATTEMPT, TASK, 10, slices=TRACKING_PARTITIONS)
    with pytest.raises(ProtocolError, match="root sequence 10 is out of range"):
        collector.add_read(source_edge("lines"), [ReadRun(3, 8, 1, 0)])
    collector.add_read(source_edge("more"), [ReadRun(3, 7, 1, 0)])
    with pytest.raises(ProtocolError, match="runs cannot be added to those that it has"):
        collector.add_read(source_edge("more"), [ReadRun(0, 2, 1, 0)])


def test_a_root_beyond_the_window_is_refused() -> None:
    collector = TaskTold(ATTEMPT, TASK, 10)
    collector.absorb(SPLIT, np.array([10], np.uint32), np.array([1], np.uint64))
    with pytest.raises(ProtocolError, match="root sequence 10 is out of range"):
        collector.messages()


def _bytes() -> bytes:
    collector = TaskTold(ATTEMPT, TASK, 600, RANGES[:1])
    read = range_seeds("lines", RANGES[0].partition, 11, 600)
    collector.read("lines", np.arange(600, dtype=np.uint32), read)
    collector.absorb(SPLIT, np.arange(600, dtype=np.uint32), np.ones(600, np.uint64))
    collector.absorb(WORDS, np.array([1, 90, 200], np.uint32), np.ones(3, np.uint64))
    collector.combined(WORDS, 5)
    return dict(collector.messages())[check_partition(7, TRACKING_PARTITIONS)]


def test_a_newer_format_is_refused() -> None:
    data = bytearray(_bytes())
    data[2:4] = (FORMAT + 1).to_bytes(2, "little")
    told = f"has format {FORMAT + 1}, this release reads up to {FORMAT}"
    with pytest.raises(NewerFormatError, match=told):
        codec.decode(bytes(data))


def test_seeds_of_an_edge_that_is_no_sources_own_are_refused() -> None:
    def message(edge: str) -> bytes:
        nets = (codec.Seeds(edge, 0, 10, 3, 1 << 63),)
        return codec.encode(codec.AckMessage(ATTEMPT, TASK, 0, nets, {}))

    (found,) = codec.decode(message(source_edge("lines"))).nets
    assert found == codec.Seeds(source_edge("lines"), 0, 10, 3, 1 << 63)
    with pytest.raises(ProtocolError, match="seeds for edge 'lines>split'"):
        codec.decode(message(SPLIT.name))


@given(st.data())
@settings(deadline=None)
def test_a_message_cut_short_is_an_error(data: st.DataObject) -> None:
    whole = _bytes()
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ProtocolError):
        codec.decode(whole[:cut])
    with pytest.raises(ProtocolError):
        codec.decode(whole + b"x")
    noise = data.draw(st.binary(max_size=200))
    with pytest.raises(ProtocolError):
        codec.decode(noise)
