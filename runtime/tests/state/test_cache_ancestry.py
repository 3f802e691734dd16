"""What a process keeps of its state where others wrote bases of parts: as much as it may, and never
a wrong version, whatever was sealed, lost, deleted or restored meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from millrace.protocol.record import extend
from millrace.protocol.types import Segment
from millrace.state.keyed.aggregates import Aggregate
from millrace.state.keyed.aggregatestate import AggregateState
from millrace.state.keyed.cache import StateCache, StateKey
from millrace.state.keyed.chain import MAX_DELTAS
from millrace.state.keyed.dictstate import DictState
from millrace.state.keyed.keys import hash_keys, key_groups
from millrace.state.keyed.loading import Extent

K = 16
ALL = (1 << K) - 1
KEY = StateKey("uid", "counts", ALL)
KEYS = pa.schema([("k", pa.int64())])
INPUTS = pa.schema([("k", pa.int64()), ("v", pa.int64())])
GROUPS = key_groups(hash_keys([pa.array(range(4000), pa.int64())]), K).tolist()


class Totals:
    """A declared sum."""

    def make(self) -> AggregateState:
        return AggregateState(INPUTS, ["k"], [Aggregate("sum", "sum", "v")], K)

    def add(self, state: Any, keys: Sequence[int]) -> None:
        columns = [pa.array(keys, pa.int64()), pa.array([1] * len(keys), pa.int64())]
        state.update(pa.RecordBatch.from_arrays(columns, schema=INPUTS))

    def step(self, held: int | None) -> int | None:
        return (held or 0) + 1

    def read(self, state: Any) -> dict[int, int]:
        return {row["k"]: row["sum"] for row in state.rows().to_pylist()}


class Dicts:
    """A function's counts, which are deleted at three."""

    def make(self) -> DictState:
        return DictState(KEYS, pa.schema([("v", pa.int64())]), K)

    def add(self, state: Any, keys: Sequence[int]) -> None:
        for row in state.find([pa.array(keys, pa.int64())]).tolist():
            state.values[row]["v"] = self.step(state.values[row]["v"])

    def step(self, held: int | None) -> int | None:
        return None if held == 3 else (held or 0) + 1

    def read(self, state: Any) -> dict[int, int]:
        rows = list(range(len(state.values)))
        held = state._table.keys(pa.array(rows).to_numpy())[0].to_pylist()
        values = zip(held, state.values, strict=True)
        return {key: value["v"] for key, value in values if value["v"] is not None}


class World:
    """Objects on servers, the sealed chain, and some processes with caches of their own."""

    def __init__(self, kind: Totals | Dicts, processes: int = 2, **options: int) -> None:
        self.kind = kind
        self.caches = [StateCache(**options) for _ in range(processes)]
        self.objects: dict[str, bytes] = {}
        self.chain: tuple[Segment, ...] = ()
        self.read: list[str] = []
        self._names = 0

    def load(self, parts: Sequence[Extent]) -> list[bytes]:
        found = [part.of(self.objects[part.segment.name]) for part in parts]
        self.read += [part.segment.name for part in parts]
        return found

    def attempt(self, process: int, keys: Sequence[int], **options: bool) -> tuple[Segment, ...]:
        """One attempt of the next window; the chain if it is sealed."""
        self._names += 1
        touched = groups_of(keys)
        opened = self.caches[process].open(
            KEY, self.chain, self.kind.make, self.load, lambda: touched
        )
        if keys:
            self.kind.add(opened.state, keys)
        written = opened.write(f"w{self._names}", self._names, **options)
        self.objects |= {segment.name: data for segment, data in written}
        return extend({"c": self.chain}, [("c", segment) for segment, _ in written])["c"]

    def held(self, process: int, groups: int = ALL) -> dict[int, int]:
        opened = self.caches[process].open(
            KEY, self.chain, self.kind.make, self.load, lambda: groups
        )
        found = self.kind.read(opened.state)
        return {key: held for key, held in found.items() if groups >> GROUPS[key] & 1}


def groups_of(keys: Sequence[int]) -> int:
    return sum(1 << group for group in {GROUPS[key] for key in keys})


def one_of_each() -> list[int]:
    return [GROUPS.index(group) for group in range(K)]


@pytest.fixture
def bases_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.state.keyed.chain.PART_BYTES", 5_000)


def in_parts(world: World) -> list[Segment]:
    return [one for one in world.chain if one.name.endswith("+")]


@pytest.mark.usefixtures("bases_in_parts")
def test_a_process_that_ran_the_window_before_reads_no_base() -> None:
    world = World(Totals())
    world.chain = world.attempt(0, range(4000))
    keys = one_of_each()
    world.held(1)
    for _ in range(MAX_DELTAS):
        world.chain = world.attempt(0, keys)
    world.held(1)
    for window in range(6):
        world.read.clear()
        world.chain = world.attempt(window % 2, keys)
        expected = dict.fromkeys(range(4000), 1) | dict.fromkeys(keys, MAX_DELTAS + window + 2)
        assert world.held(1 - window % 2) == expected
        assert not [name for name in world.read if name == "w1" or name.endswith("+")]
    assert in_parts(world)


@pytest.mark.usefixtures("bases_in_parts")
def test_a_process_that_is_behind_reads_the_new_bases_alone() -> None:
    world = World(Totals())
    world.chain = world.attempt(0, range(4000))
    keys = one_of_each()
    world.held(1)
    for _ in range(MAX_DELTAS + 2):
        world.chain = world.attempt(0, keys)
    bases = in_parts(world)
    assert len(bases) == 2
    world.read.clear()
    assert world.held(1) == dict.fromkeys(range(4000), 1) | dict.fromkeys(keys, MAX_DELTAS + 3)
    assert {one.name for one in bases} <= set(world.read)
    assert "w1" not in world.read


@pytest.mark.usefixtures("bases_in_parts")
def test_what_was_deleted_before_a_base_of_another_process_does_not_come_back() -> None:
    world = World(Dicts())
    for _ in range(3):
        world.chain = world.attempt(0, range(4000))
    assert set(world.held(1).values()) == {3}
    keys = range(100)
    world.chain = world.attempt(0, keys)  # the function deletes them
    for _ in range(2 * MAX_DELTAS):
        world.chain = world.attempt(0, [3999 - GROUPS[::-1].index(g) for g in range(K)])
    assert in_parts(world)
    assert not set(world.held(1)) & set(keys)
    assert world.held(1) == world.held(0)


@pytest.mark.usefixtures("bases_in_parts")
def test_a_window_that_was_restored_is_not_taken_for_the_one_that_a_base_covers() -> None:
    world = World(Totals(), 3)
    world.chain = world.attempt(0, range(4000))
    keys = one_of_each()
    for _ in range(MAX_DELTAS):
        world.chain = world.attempt(0, keys)
    before = world.chain
    world.chain = world.attempt(1, [*keys, *range(100)])  # another timeline
    world.held(2)
    world.chain = before
    world.chain = world.attempt(0, keys)
    assert in_parts(world)
    world.chain = world.attempt(0, keys)
    expected = dict.fromkeys(range(4000), 1) | dict.fromkeys(keys, MAX_DELTAS + 3)
    for process in range(3):
        assert world.held(process) == expected


@pytest.mark.parametrize("kind", [Totals, Dicts])
@pytest.mark.parametrize("small_bytes", [0, 1 << 20])
@pytest.mark.parametrize("seed", range(10))
def test_random_histories_with_bases_in_parts_equal_a_plain_model(
    seed: int,
    small_bytes: int,
    kind: Callable[[], Totals | Dicts],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millrace.state.keyed.chain.MIN_COMPACT_BYTES", 2_000)
    monkeypatch.setattr("millrace.state.keyed.chain.DELTAS_PER_BASE", 0.5)
    monkeypatch.setattr("millrace.state.keyed.chain.PART_BYTES", 1_500)
    dice = random.Random(seed)
    world = World(kind(), 3, small_bytes=small_bytes)
    model: Mapping[int, int] = {}
    kept = [(world.chain, model)]
    parts = 0
    for _ in range(60):
        if dice.random() < 0.05:  # all copies were lost, and an older window was restored
            world.chain, model = dice.choice(kept)
        keys = dice.sample(range(80), dice.randint(0, 30))
        while True:
            sealed = world.attempt(dice.randrange(3), keys)
            parts += any(one.name.endswith("+") and one not in world.chain for one in sealed)
            if dice.random() < 0.7:
                break
        world.chain = sealed
        after = {key: world.kind.step(model.get(key)) for key in keys}
        model = {key: held for key, held in {**model, **after}.items() if held is not None}
        kept.append((world.chain, model))
        for process in range(3):
            if dice.random() < 0.4:
                groups = dice.choice([ALL, dice.getrandbits(K), dice.getrandbits(K)])
                wanted = {key: held for key, held in model.items() if groups >> GROUPS[key] & 1}
                assert world.held(process, groups) == wanted
    assert parts
