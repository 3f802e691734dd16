"""State that expires, against a plain dict: through deltas, bases, caches, cuts of key groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.protocol.record import extend
from millrace.protocol.types import Segment
from millrace.state.keyed import blobs, query
from millrace.state.keyed.aggregates import Aggregate
from millrace.state.keyed.aggregatestate import AggregateState
from millrace.state.keyed.blobs import UPDATED
from millrace.state.keyed.cache import StateCache, StateKey
from millrace.state.keyed.columnstate import ColumnState
from millrace.state.keyed.dictstate import DictState
from millrace.state.keyed.keys import hash_keys, key_groups
from millrace.state.keyed.loading import Extent
from millrace.state.keyed.query import Lifetime

K = 8
ALL = (1 << K) - 1
TTL = 100
START = 1_000_000
KEYS = pa.schema([("k", pa.int64())])
INPUTS = pa.schema([("k", pa.int64()), ("v", pa.int64())])
CUTS = {1: (ALL,), 2: (0b01010101, 0b10101010), 4: (0b00010001, 0b00100010, 0b01000100, 0b10001000)}


def make_dicts(ttl_ms: int = TTL) -> DictState:
    return DictState(KEYS, pa.schema([("n", pa.int64())]), K, ttl_ms)


def make_columns(ttl_ms: int = TTL) -> ColumnState:
    return ColumnState(KEYS, pa.schema([("n", pa.int64())]), K, ttl_ms)


def held_by(state: DictState | ColumnState, row: int) -> int | None:
    if isinstance(state, DictState):
        return state.values[row]["n"]
    return state.read(np.array([row])).column("n")[0].as_py()


def leave(state: DictState | ColumnState, row: int, n: int | None) -> None:
    """What a call leaves of a key's state."""
    if isinstance(state, DictState):
        before = dict(state.values[row])
        state.values[row]["n"] = n
        state.updated(row, before)
    else:
        left = pa.record_batch([pa.array([n], pa.int64())], names=["n"])
        state.write(np.array([row]), state.converted(left))


def make_totals(ttl_ms: int = TTL) -> AggregateState:
    wanted = [Aggregate("n", "count"), Aggregate("sum", "sum", "v"), Aggregate("low", "min", "v")]
    return AggregateState(INPUTS, ["k"], wanted, K, ttl_ms)


def group_of(key: int) -> int:
    return int(key_groups(hash_keys([pa.array([key])]), K)[0])


@dataclass
class Worker:
    """One process: what it caches is as old as it likes."""

    small_bytes: int
    cache: StateCache = field(init=False)

    def __post_init__(self) -> None:
        self.cache = StateCache(small_bytes=self.small_bytes)


class World:
    """A chain on state servers, workers that write it, and what it ought to hold."""

    def __init__(self, make: Any, ttl_ms: int = TTL) -> None:
        self.make = make
        self.ttl_ms = ttl_ms
        self.objects: dict[str, bytes] = {}
        self.chain: tuple[Segment, ...] = ()
        self.now_ms = START
        self.window = 0
        self.written = 0
        # Of each key (value, time of its last update).
        self.model: dict[int, tuple[int, int]] = {}

    def fetch(self, parts: Sequence[Extent]) -> list[bytes]:
        return [part.of(self.objects[part.segment.name]) for part in parts]

    def seen(self, key: int) -> int | None:
        """What user code must see of a key in a window of this time."""
        held = self.model.get(key)
        return None if held is None or self.now_ms - held[1] >= self.ttl_ms else held[0]

    def open(self, worker: Worker, mask: int, keys: Sequence[int]) -> Any:
        touched = sum(1 << group for group in {group_of(key) for key in keys})
        return worker.cache.open(
            StateKey("uid", "p", mask), self.chain, lambda: self.make(self.ttl_ms), self.fetch,
            lambda: touched, self.now_ms,
        )  # fmt: skip

    def seal(self, written: list[Segment]) -> None:
        self.window += 1
        self.chain = extend({"p": self.chain}, [("p", one) for one in written]).get("p", ())

    def store(self, opened: Any, compact: bool | None) -> list[Segment]:
        self.written += 1
        name = f"{self.written}"
        found = opened.write(name, self.window + 1, compact=compact)
        self.objects |= {segment.name: data for segment, data in found}
        return [segment for segment, _ in found]

    def stored(self) -> dict[int, int]:
        """What a reader from outside sees, as of the last window."""
        lifetime = Lifetime(self.ttl_ms, self.now_ms)
        rows = query.read_state(self.chain, ALL, 1, self.fetch, lifetime)
        assert UPDATED.name not in rows.schema.names
        return {row["k"]: row["n"] for row in rows.to_pylist()}

    def expected(self) -> dict[int, int]:
        found = {key: self.seen(key) for key in self.model}
        return {key: value for key, value in found.items() if value is not None}


# What a call does to the state of its key: leave it, count, set what is there again, delete it.
CALLS = st.lists(
    st.tuples(st.integers(0, 11), st.sampled_from(["read", "add", "same", "clear"])), max_size=8
)
WINDOWS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 30, 99, 100, 250]),  # how far the time moves
        CALLS,
        st.sampled_from([1, 2, 4]),  # on how many tasks the key groups lie
        st.sampled_from([0, 1, 2]),  # which worker runs it
        st.booleans(),  # whether an attempt that does not count runs before, in another worker
        st.sampled_from([None, None, True, False]),
    ),
    max_size=14,
)


@settings(max_examples=50, deadline=None)
@given(WINDOWS, st.sampled_from([make_dicts, make_columns]))
def test_dicts_expire_as_a_plain_dict_would(windows: list[Any], make: Any) -> None:
    world = World(make)
    workers = [Worker(0), Worker(1 << 20), Worker(0)]
    for step, calls, tasks, number, loses, compact in windows:
        world.now_ms += step
        if loses:
            spoil(world, workers[(number + 1) % 3], calls, CUTS[tasks])
        written: list[Segment] = []
        for mask in CUTS[tasks]:
            mine = [(key, how) for key, how in calls if mask >> group_of(key) & 1]
            if not mine:
                continue
            opened = world.open(workers[number], mask, [key for key, _ in mine])
            for key, how in mine:
                call(world, opened.state, key, how)
            written += world.store(opened, compact if opened.whole else None)
        world.seal(written)
        assert world.stored() == world.expected()


def call(world: World, state: DictState | ColumnState, key: int, how: str) -> None:
    (row,) = state.find([pa.array([key], pa.int64())]).tolist()
    before = held_by(state, row)
    assert before == world.seen(key)
    match how:
        case "add":
            leave(state, row, (before or 0) + 1)
        case "same":
            leave(state, row, before)
        case "clear":
            leave(state, row, None)
    value = held_by(state, row)
    if value is None:
        world.model.pop(key, None)
    elif value != before:
        world.model[key] = (value, world.now_ms)


def spoil(world: World, worker: Worker, calls: list[Any], masks: Sequence[int]) -> None:
    """An attempt that changes everything and is never sealed."""
    for mask in masks:
        keys = [key for key, _ in calls if mask >> group_of(key) & 1]
        if keys:
            state = world.open(worker, mask, keys).state
            for row in state.find([pa.array(keys, pa.int64())]).tolist():
                leave(state, row, -1)


@settings(max_examples=50, deadline=None)
@given(WINDOWS)
def test_totals_expire_as_a_plain_dict_would(windows: list[Any]) -> None:
    world = World(make_totals)
    workers = [Worker(0), Worker(1 << 20), Worker(0)]
    sums: dict[int, tuple[int, int]] = {}
    for step, calls, tasks, number, loses, compact in windows:
        world.now_ms += step
        keys = [key for key, _ in calls]
        written: list[Segment] = []
        for mask in CUTS[tasks]:
            mine = [key for key in keys if mask >> group_of(key) & 1]
            if not mine:
                continue
            if loses:
                other = world.open(workers[(number + 1) % 3], mask, mine)
                other.state.update(rows_of(mine, 1000))
            opened = world.open(workers[number], mask, mine)
            found = opened.state.update(rows_of(mine, 7))
            for key in mine:
                total, low = sums.get(key, (0, 7)) if world.seen(key) is not None else (0, 7)
                sums[key] = (total + 7, low)
                world.model[key] = ((world.seen(key) or 0) + 1, world.now_ms)
            for row in opened.state.rows(found).to_pylist():
                assert (row["n"], row["sum"]) == (world.seen(row["k"]), sums[row["k"]][0])
                assert row["low"] == 7
            live = {row["k"] for row in opened.state.rows(opened.state.live()).to_pylist()}
            assert set(mine) <= live <= set(world.expected())
            written += world.store(opened, compact if opened.whole else None)
        world.seal(written)
        assert world.stored() == world.expected()


def rows_of(keys: Sequence[int], value: int) -> pa.RecordBatch:
    columns = [pa.array(keys, pa.int64()), pa.array([value] * len(keys), pa.int64())]
    return pa.RecordBatch.from_arrays(columns, schema=INPUTS)


@pytest.mark.parametrize("make", [make_dicts, make_columns, make_totals])
def test_what_expires_is_given_back_on_servers_and_in_workers(make: Any) -> None:
    """Always new keys, of which 2,000 at a time are young."""
    world, worker = World(make), Worker(0)
    stored, held = [], []
    for window in range(200):
        world.now_ms += 5
        keys = list(range(100 * window, 100 * window + 100))
        opened = world.open(worker, ALL, keys)
        if not isinstance(opened.state, AggregateState):
            for row in opened.state.find([pa.array(keys, pa.int64())]).tolist():
                leave(opened.state, row, 1)
        else:
            opened.state.update(rows_of(keys, 1))
        world.seal(world.store(opened, None))
        stored.append(sum(segment.rows for segment in world.chain))
        held.append(opened.state.size)
    assert len(world.stored()) == 100 * TTL // 5
    assert max(stored[100:]) <= max(stored[50:100]) < 10_000
    assert max(held[100:]) <= max(held[50:100]) < 10_000


@pytest.mark.parametrize("make", [make_dicts, make_columns, make_totals])
def test_state_of_before_the_ttl_counts_from_the_window_that_wrote_it(make: Any) -> None:
    world, worker = World(make, ttl_ms=0), Worker(0)
    touch(world, worker, [1, 11, 12, 13])
    world.now_ms += 60
    touch(world, worker, [2])
    assert [one.base for one in world.chain] == [True, False]
    world.ttl_ms, worker = TTL, Worker(0)
    world.now_ms += 39
    assert set(world.stored()) == {1, 2, 11, 12, 13}
    world.now_ms += 1
    assert set(world.stored()) == {2}
    touch(world, worker, [1, 3])
    assert world.stored() == {1: 1, 2: 1, 3: 1}
    world.now_ms += 60
    assert set(world.stored()) == {1, 3}


@pytest.mark.parametrize("make", [make_dicts, make_columns, make_totals])
def test_state_without_a_known_time_is_kept_until_it_is_updated(make: Any) -> None:
    """An older release wrote no time, and neither has a window that it planned."""
    world, worker = World(make), Worker(0)
    world.now_ms = 0
    touch(world, worker, [1, 2])
    world.now_ms = START
    touch(world, worker, [1])
    assert world.stored() == {1: 2, 2: 1}
    world.now_ms += TTL
    assert world.stored() == {2: 1}
    touch(world, Worker(1 << 20), [2], compact=True)
    assert world.stored() == {2: 2}


@pytest.mark.parametrize("make", [make_dicts, make_columns, make_totals])
def test_state_of_a_ttl_that_is_gone_is_read_and_kept(make: Any) -> None:
    world = World(make)
    touch(world, Worker(0), [1])
    world.ttl_ms = 0
    world.now_ms += 10 * TTL
    assert world.stored() == {1: 1}
    touch(world, Worker(1 << 20), [1, 2], compact=True)
    assert world.stored() == {1: 2, 2: 1}
    (segment,) = world.chain
    assert UPDATED.name not in blobs.read(world.objects[segment.name]).schema.names


def touch(world: World, worker: Worker, keys: list[int], compact: bool | None = False) -> None:
    """One window that counts each key once."""
    opened = world.open(worker, ALL, keys)
    if not isinstance(opened.state, AggregateState):
        for row in opened.state.find([pa.array(keys, pa.int64())]).tolist():
            leave(opened.state, row, (held_by(opened.state, row) or 0) + 1)
    else:
        opened.state.update(rows_of(keys, 1))
    world.seal(world.store(opened, compact if opened.whole else None))
