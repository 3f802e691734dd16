"""The cache gives exactly the state of the chain it is asked for, however it comes by it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from millrace.errors import EngineError
from millrace.protocol.record import extend
from millrace.protocol.types import Segment
from millrace.state.errors import BlobError
from millrace.state.keyed import blobs
from millrace.state.keyed.aggregates import Aggregate
from millrace.state.keyed.aggregatestate import AggregateState
from millrace.state.keyed.cache import OpenState, StateCache, StateKey
from millrace.state.keyed.chain import (
    BYTES_PER_DELTA,
    MAX_DELTAS,
    MOST_DELTAS,
    MOST_LINES,
    links,
    part_for_base,
    should_compact,
)
from millrace.state.keyed.dictstate import DictState
from millrace.state.keyed.keys import hash_keys, key_groups
from millrace.state.keyed.loading import Extent, read_schemas

K = 16
ALL = (1 << K) - 1
INPUTS = pa.schema([("k", pa.int64()), ("v", pa.int64())])


class Store:
    """Objects by name, as on a state server; counts what is read."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.read: list[str] = []

    def load(self, parts: Sequence[Extent]) -> list[bytes]:
        self.read += [part.segment.name for part in parts]
        return [part.of(self.objects[part.segment.name]) for part in parts]


def make() -> AggregateState:
    return AggregateState(INPUTS, ["k"], [Aggregate("sum", "sum", "v")], K)


def add(state: AggregateState, keys: Sequence[int], value: int) -> None:
    columns = [pa.array(keys, pa.int64()), pa.array([value] * len(keys), pa.int64())]
    state.update(pa.RecordBatch.from_arrays(columns, schema=INPUTS))


def totals(state: AggregateState) -> dict[int, int]:
    return {row["k"]: row["sum"] for row in state.rows().to_pylist()}


class Window:
    """One process's attempts at windows of one processor, for one task's key groups."""

    def __init__(self, store: Store, groups: int = ALL, **options: int) -> None:
        self.store = store
        self.cache = StateCache(**options)
        self.key = StateKey("uid", "counts", groups)
        self.learning = False

    def open(
        self, chain: Sequence[Segment], touched: int | None = None
    ) -> OpenState[AggregateState]:
        told = None if touched is None else lambda: touched
        return self.cache.open(self.key, chain, make, self.store.load, told, learning=self.learning)

    def attempt(
        self, chain: Sequence[Segment], keys: Sequence[int], name: str, **options: bool
    ) -> tuple[Segment, ...]:
        """Add one to each key on top of a chain; the chain if this attempt is sealed."""
        mine = keys_of(self.key.groups, keys)
        opened = self.open(chain, groups_of(mine))
        if mine:
            add(opened.state, mine, 1)
        written = opened.write(name, len(chain), **options)
        self.store.objects |= {segment.name: data for segment, data in written}
        self.written = [segment for segment, _ in written]
        own = [("counts", segment) for segment in self.written]
        return extend({"counts": tuple(chain)}, own)["counts"]


def group_of(key: int) -> int:
    return int(key_groups(hash_keys([pa.array([key])]), K)[0])


def keys_of(groups: int, keys: Sequence[int]) -> list[int]:
    """Those of some keys that lie in a mask of key groups."""
    return [key for key in keys if groups >> group_of(key) & 1]


def groups_of(keys: Sequence[int]) -> int:
    """Mask of the key groups of some keys."""
    return sum(1 << group for group in {group_of(key) for key in keys})


def lazy(store: Store, groups: int = ALL) -> Window:
    """A process in which no state is so small that it is loaded whole anyway."""
    return Window(store, groups, small_bytes=0)


def test_a_sealed_attempt_needs_no_reading() -> None:
    store = Store()
    window = Window(store)
    chain = window.attempt((), range(100), "w1")
    for number in range(2, 6):
        chain = window.attempt(chain, range(10), f"w{number}")
    assert store.read == []
    assert [segment.base for segment in chain] == [True, False, False, False, False]
    assert totals(window.open(chain).state) == {k: 5 if k < 10 else 1 for k in range(100)}


def test_an_attempt_that_was_not_sealed_is_undone() -> None:
    store = Store()
    window = Window(store)
    chain = window.attempt((), range(100), "w1")
    window.attempt(chain, range(50, 150), "w2.lost")
    again = window.attempt(chain, range(10), "w2")
    assert totals(window.open(again).state) == {k: 2 if k < 10 else 1 for k in range(100)}
    assert store.read == []


def test_an_attempt_that_died_before_it_wrote_is_undone() -> None:
    store = Store()
    window = Window(store)
    chain = window.attempt((), range(10), "w1")
    add(window.open(chain).state, range(5, 500), 7)
    assert totals(window.open(chain).state) == dict.fromkeys(range(10), 1)
    assert store.read == []


def test_the_winner_of_another_process_is_caught_up_with() -> None:
    store = Store()
    here, there = Window(store), Window(store)
    chain = here.attempt((), range(100), "w1")
    here.attempt(chain, range(30), "w2.here")
    chain = there.attempt(chain, range(20, 40), "w2.there")
    chain = there.attempt(chain, range(3), "w3")
    opened = here.open(chain)
    assert store.read == ["w1", "w2.there", "w3"]
    expected = {k: 1 + (k < 3) + (20 <= k < 40) for k in range(100)}
    assert totals(opened.state) == expected
    add(opened.state, [0], 1)
    assert totals(opened.state) == {**expected, 0: 3}


def test_a_base_of_another_process_is_loaded_afresh() -> None:
    store = Store()
    here, there = Window(store), Window(store)
    chain = here.attempt((), range(10), "w1")
    chain = there.attempt(chain, range(5), "w2", compact=True)
    assert [segment.name for segment in chain] == ["w2"]
    assert totals(here.open(chain).state) == {k: 2 if k < 5 else 1 for k in range(10)}
    assert store.read == ["w1", "w2"]


def test_a_base_of_ones_own_is_known() -> None:
    store = Store()
    window = Window(store)
    chain = window.attempt((), range(10), "w1")
    chain = window.attempt(chain, range(3), "w2", compact=True)
    assert totals(window.open(chain).state) == {k: 2 if k < 3 else 1 for k in range(10)}
    assert store.read == []


def test_the_same_name_with_another_content_is_not_ones_own() -> None:
    store = Store()
    window = Window(store)
    chain = window.attempt((), range(10), "w1")
    forged = tuple(replace(segment, digest="0" * 32) for segment in chain)
    with pytest.raises(BlobError, match="digest"):
        window.open(forged)
    assert len(window.cache) == 0
    assert totals(window.open(chain).state) == dict.fromkeys(range(10), 1)


def test_nothing_is_written_when_nothing_changed() -> None:
    store = Store()
    window = Window(store)
    chain = window.attempt((), range(10), "w1")
    assert window.attempt(chain, [], "w2") == chain
    assert window.attempt(chain, [1], "w3") != chain
    assert store.read == []


def test_mostly_touched_state_is_written_as_a_base() -> None:
    window = Window(Store())
    chain = window.attempt((), range(10), "w1")
    [only] = window.attempt(chain, range(5), "w2")
    assert (only.name, only.base, only.groups, only.rows) == ("w2", True, ALL, 10)


def test_a_state_that_broke_is_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    window = Window(store)
    chain = window.attempt((), range(10), "w1")
    opened = window.open(chain)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(opened.state._accumulators[0], "merge", stop)
    with pytest.raises(KeyboardInterrupt):
        add(opened.state, range(20), 1)
    assert totals(window.open(chain).state) == dict.fromkeys(range(10), 1)
    assert store.read == ["w1"]


def test_a_chain_that_went_back_is_what_counts() -> None:
    """As after a restore: windows that were sealed here are not part of the new timeline."""
    store = Store()
    window = Window(store)
    first = window.attempt((), range(10), "w1")
    later = window.attempt(window.attempt(first, [1], "w2"), [2], "w3")
    assert totals(window.open(later).state)[2] == 2
    assert totals(window.open(first).state) == dict.fromkeys(range(10), 1)
    other = window.attempt(first, [3], "w2.restored")
    assert totals(window.open(other).state) == {k: 1 + (k == 3) for k in range(10)}


def test_a_sealed_attempt_of_ones_own_is_not_taken_for_another_of_that_name() -> None:
    """Names are never given twice; where they were, the content decides."""
    store = Store()
    here, there = Window(store), Window(store)
    chain = here.attempt((), range(10), "w1")
    mine = here.attempt(chain, [1], "w2")
    store.objects.pop("w2")
    theirs = there.attempt(chain, [2], "w2")
    assert mine[-1].digest != theirs[-1].digest
    assert totals(here.open(theirs).state) == {k: 1 + (k == 2) for k in range(10)}


def test_topologies_and_processors_share_nothing() -> None:
    store = Store()
    window = Window(store)
    chain = window.attempt((), range(10), "w1")
    for key in (StateKey("other", "counts", ALL), StateKey("uid", "other", ALL)):
        assert totals(window.cache.open(key, (), make, store.load).state) == {}
        assert totals(window.cache.open(key, chain, make, store.load).state)[0] == 1
    assert store.read == ["w1", "w1"]


def test_a_change_of_parallelism_and_back_loads_anew() -> None:
    store = Store()
    cache = StateCache()
    whole, halves = Window(store), [Window(store, mask) for mask in (0x00FF, 0xFF00)]
    for one in (whole, *halves):
        one.cache = cache
    chain = whole.attempt((), range(40), "w1")
    for half in halves:
        name = f"w2.{half.key.groups}"
        chain = half.attempt(chain, range(20), name)
    assert totals(whole.open(chain).state) == {k: 1 + (k < 20) for k in range(40)}
    found = [totals(half.open(chain).state) for half in halves]
    assert {**found[0], **found[1]} == {k: 1 + (k < 20) for k in range(40)}
    assert not set(found[0]) & set(found[1])


def test_masks_of_another_division_are_dropped() -> None:
    store = Store()
    cache = StateCache()
    halves = (0x00FF, 0xFF00)
    for mask in halves:
        cache.open(StateKey("u", "p", mask), (), make, store.load)
    cache.open(StateKey("u", "other", ALL), (), make, store.load)
    assert len(cache) == 3
    cache.open(StateKey("u", "p", 0x0FF0), (), make, store.load)
    assert len(cache) == 2


def test_the_cache_is_bounded() -> None:
    store = Store()
    sizes = StateCache()
    sizes.open(StateKey("u", "p", 1), (), make, store.load)
    cache = StateCache(limit_bytes=int(sizes.size_bytes * 2.5))
    for bit in (0, 1, 2):
        cache.open(StateKey("u", "p", 1 << bit), (), make, store.load)
    assert len(cache) == 2
    alone = StateCache(limit_bytes=1)
    add(alone.open(StateKey("u", "p", 1), (), make, store.load).state, range(9), 1)
    assert len(alone) == 1


def test_links_leave_out_what_a_base_replaces() -> None:
    def segment(name: str, groups: int, *, base: bool) -> Segment:
        return Segment(name, 1, groups, base)

    chain = [
        segment("a", 0b1111, base=True),
        segment("b", 0b0110, base=False),
        segment("c", 0b0011, base=True),
        segment("d", 0b1001, base=False),
    ]
    found = [(link.segment.name, link.groups) for link in links(chain, 0b0111)]
    assert found == [("a", 0b0100), ("b", 0b0100), ("c", 0b0011), ("d", 0b0001)]
    assert [link.segment.name for link in links(chain, 0b0010)] == ["c"]


def test_long_or_heavy_chains_are_compacted() -> None:
    base = Segment("b", 1, ALL, True, size_bytes=1 << 20)
    light = [Segment(f"d{n}", n, 1, False, size_bytes=100) for n in range(31)]
    heavy = Segment("h", 9, 1, False, size_bytes=3 << 20)
    assert not should_compact([], ALL)
    assert not should_compact([base, *light], ALL)
    assert should_compact([base, *light, light[0]], ALL)
    assert not should_compact([base, *light, light[0]], 0b10)
    assert should_compact([base, heavy], ALL)
    assert not should_compact([base, replace(heavy, size_bytes=1 << 20)], ALL)
    # What a task does not have as a whole it would have to load first.
    assert not should_compact([base, heavy], ALL, whole=False)
    assert should_compact([base, heavy, heavy], ALL, whole=False)
    assert not should_compact([base, *light, *light], ALL, whole=False)
    assert should_compact([base, *light, *light, *light[:2]], ALL, whole=False)
    # While servers learn it a chain may be longer, and no heavier.
    assert should_compact([base, heavy], ALL, learning=True)
    assert not should_compact([base, *(5 * light)[: MOST_DELTAS - 1]], ALL, learning=True)
    assert should_compact([base, *(5 * light)[:MOST_DELTAS]], ALL, learning=True)
    assert not should_compact([base, *(5 * light)[:MOST_DELTAS]], ALL, whole=False, learning=True)
    # A large base is worth a longer chain, up to a limit.
    large, larger = (replace(base, size_bytes=n * BYTES_PER_DELTA) for n in (40, 1000))
    assert not should_compact([large, *light, *light[:8]], ALL)
    assert should_compact([large, *light, *light[:9]], ALL)
    assert not should_compact([larger, *(5 * light)[: MOST_DELTAS - 1]], ALL)
    assert should_compact([larger, *(5 * light)[:MOST_DELTAS]], ALL)


def test_only_what_a_window_touches_is_loaded() -> None:
    store = Store()
    chain: tuple[Segment, ...] = ()
    for key in range(40):  # an object for each key, so that what is read says which groups are
        chain = (*chain, *Window(store).attempt((), [key], f"k{key}"))
    chain = tuple(replace(s, groups=groups_of([k]), base=False) for k, s in enumerate(chain))
    first, second = group_of(0), group_of(1)
    assert first != second
    window = lazy(store)
    opened = window.open(chain, 1 << first)
    assert store.read == [f"k{k}" for k in range(40) if group_of(k) == first]
    assert not opened.whole
    store.read.clear()
    window.open(chain, 1 << first)
    assert store.read == []
    opened = window.open(chain, 1 << first | 1 << second)
    assert store.read == [f"k{k}" for k in range(40) if group_of(k) == second]
    store.read.clear()
    opened = window.open(chain)
    assert store.read == [f"k{k}" for k in range(40) if group_of(k) not in (first, second)]
    assert opened.whole
    assert totals(opened.state) == dict.fromkeys(range(40), 1)


def test_an_undone_attempt_keeps_the_groups_that_were_loaded_for_it() -> None:
    store = Store()
    chain = Window(store).attempt((), range(100), "w1")
    window = lazy(store)
    add(window.open(chain, groups_of([0])).state, [0], 5)
    add(window.open(chain, groups_of([0, 1])).state, [0, 1], 7)
    assert store.read == ["w1", "w1"]
    sealed = window.attempt(chain, [0, 1], "w2")
    assert [segment.base for segment in sealed] == [True, False]
    assert totals(lazy(store).open(sealed).state) == {k: 1 + (k < 2) for k in range(100)}


def test_what_was_not_loaded_cannot_be_written() -> None:
    store = Store()
    chain = Window(store).attempt((), range(100), "w1")
    stranger = next(k for k in range(100) if group_of(k) != group_of(0))
    opened = lazy(store).open(chain, groups_of([0]))
    add(opened.state, [0, stranger], 1)
    with pytest.raises(EngineError, match=r"counts: state of the key groups .* loaded"):
        opened.write("w2", 2)


def test_a_group_that_nobody_wrote_is_there_at_once() -> None:
    store = Store()
    chain = Window(store).attempt((), keys_of(0x00FF, range(100)), "w1")
    chain = tuple(replace(segment, groups=0x00FF) for segment in chain)
    opened = lazy(store).open(chain, 0)
    assert store.read == []
    opened.require(0xFF00)
    with pytest.raises(EngineError):
        opened.require(1)


def test_a_large_state_gets_its_base_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads the chain anew, as a whole or in part, finds the same."""
    monkeypatch.setattr("millrace.state.keyed.chain.PART_BYTES", 1_000)
    store = Store()
    window = Window(store)
    chain = window.attempt((), range(1000), "w1")
    keys = [next(k for k in range(1000) if group_of(k) == g) for g in range(K)]
    for number in range(MAX_DELTAS):
        chain = window.attempt(chain, keys, f"d{number}")
    assert not any(segment.base for segment in chain[1:])
    parts = []
    while any(segment.name.startswith("d") for segment in chain):
        chain = window.attempt(chain, keys, f"p{len(parts)}")
        base, delta = window.written
        assert (base.base, delta.base) == (True, False)
        parts.append(base.groups)
        assert totals(Window(store).open(chain).state) == totals(window.open(chain).state)
    # Each key group came once, and no window wrote much more than its share.
    assert sum(parts) == ALL
    assert sum(part.bit_count() for part in parts) == K
    assert max(part.bit_count() for part in parts) <= 4
    times = MAX_DELTAS + len(parts) + 1
    assert (
        totals(lazy(store).open(chain, 1).state).items()
        <= {k: times if k in keys else 1 for k in range(1000)}.items()
    )


def test_a_schema_is_found_whatever_is_damaged_in_a_copy_of_its_bytes() -> None:
    store = Store()
    (segment,) = Window(store).attempt((), range(100), "w1")
    data = store.objects[segment.name]
    (schema,) = read_schemas([segment], store.load, AggregateState.kind)
    assert store.read == [segment.name], "what is as it was is read once"
    for at in range(blobs.schema_bytes(data)):
        damaged = data[:at] + bytes([data[at] ^ 0x15]) + data[at + 1 :]

        def load(parts: Sequence[Extent], damaged: bytes = damaged) -> list[bytes]:
            """From one of two owners, or from the other one where that is seen to be needed."""
            copies = [(part.of(damaged), part.of(data)) for part in parts]
            pairs = zip(parts, copies, strict=True)
            return [one if part.is_intact(one) else other for part, (one, other) in pairs]

        (found,) = read_schemas([segment], load, AggregateState.kind)
        assert found.equals(schema)


def test_a_base_that_no_server_takes_is_of_fewer_key_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millrace.state.messages.MAX_OBJECT_BYTES", 10_000)
    store, mine = Store(), lambda n: range(n * 200, n * 200 + 200)
    window, chain = Window(store), ()
    for number in range(5):
        chain = window.attempt(chain, mine(number), f"w{number}", compact=False)
    for number in range(8):
        chain = window.attempt(chain, mine(number % 5), f"b{number}", compact=True)
        assert [segment.base for segment in window.written] == [True, False]
        assert all(len(data) <= 10_000 for data in store.objects.values())
        assert totals(Window(store).open(chain).state) == totals(window.open(chain).state)
    # What cannot be cut any further is not written at all.
    monkeypatch.setattr("millrace.state.messages.MAX_OBJECT_BYTES", 10)
    chain = window.attempt(chain, [1], "last", compact=True)
    assert [segment.name for segment in window.written] == ["last"]
    assert totals(Window(store).open(chain).state) == totals(window.open(chain).state)


def test_deltas_over_a_few_key_groups_bring_a_base_of_these_alone() -> None:
    base = Segment("b", 1, ALL, True, size_bytes=64 << 20)
    over = [Segment(f"d{n}", 2 + n, 0b101, False, size_bytes=100) for n in range(MOST_DELTAS)]
    assert part_for_base([base, *over], ALL) == 0b101
    # Those whose base is the oldest come first; what is written beside it makes the part larger.
    newer = Segment("n", 500, 0b001, True, size_bytes=1 << 20)
    spread = [replace(one, window=501, groups=ALL) for one in over[:40]]
    assert part_for_base([base, newer, *spread], ALL) == 0b110
    assert part_for_base([base, newer, *spread], ALL, 64 << 20).bit_count() == K - 0
    assert part_for_base([replace(base, size_bytes=1 << 20), *over], ALL) == ALL


@pytest.mark.parametrize("tasks", [4, 16])
def test_a_record_does_not_outgrow_its_bound_in_many_small_windows(tasks: int) -> None:
    """Of 1 GB of state, in as many tasks: each window changes a little of all key groups."""
    masks = [sum(1 << group for group in range(task, 128, tasks)) for task in range(tasks)]
    share = (1 << 30) // tasks
    line = Segment("1.1.1.1.1.0/state/counts.1", 1, 0, False, 100, 4096, "0" * 32, "1" * 32)

    def written(chain: tuple[Segment, ...], mask: int, window: int) -> list[tuple[str, Segment]]:
        delta = replace(line, name=f"{line.name}/{window}", window=window, groups=mask)
        if not chain:
            return [("counts", replace(delta, base=True, size_bytes=share))]
        part = part_for_base(chain, mask, 4096) if should_compact(chain, mask) else 0
        size_bytes = share * part.bit_count() // mask.bit_count()
        base = replace(delta, name=f"{delta.name}+", groups=part, base=True, size_bytes=size_bytes)
        return [*([("counts", base)] if part else []), ("counts", delta)]

    chains: dict[str, tuple[Segment, ...]] = {}
    longest = 0
    for window in range(1, 201):
        chain = chains.get("counts", ())
        new = [one for mask in masks for one in written(chain, mask, window)]
        chains = extend(chains, new)
        longest = max(longest, sum(not segment.base for segment in chains["counts"]))
    assert longest <= 1.3 * min(tasks * MOST_DELTAS, max(MOST_LINES, tasks * MAX_DELTAS))


def test_a_base_waits_while_servers_learn_the_chain() -> None:
    store = Store()
    window = Window(store)
    chain = window.attempt((), range(100), "w1")
    for number in range(MAX_DELTAS):
        chain = window.attempt(chain, [0], f"d{number}")
    window.learning = True
    learned = window.attempt(chain, [0], "beside")
    assert [segment.name for segment in learned] == [*(s.name for s in chain), "beside"]
    for number in range(MOST_DELTAS - len(learned) + 1):
        learned = window.attempt(learned, [0], f"e{number}")
    assert not learned[-1].base
    [base] = window.attempt(learned, [0], "last")
    assert base.base


def test_part_of_a_state_never_becomes_a_base_and_a_long_chain_loads_it_whole() -> None:
    store = Store()
    chain = Window(store).attempt((), range(100), "w1")
    window = lazy(store)
    for number in range(2 * MAX_DELTAS):
        chain = window.attempt(chain, [0], f"d{number}")
    assert [segment.base for segment in chain] == [True] + [False] * (2 * MAX_DELTAS)
    assert set(store.read) == {"w1"}
    [base] = window.attempt(chain, [0], "last")
    assert base.base
    assert base.groups == ALL
    expected = {k: 1 + (k == 0) * (2 * MAX_DELTAS + 1) for k in range(100)}
    assert totals(lazy(store).open((base,)).state) == expected


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_random_histories_equal_a_plain_model(
    seed: int, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes with caches of their own take turns; some attempts are sealed, some are lost.

    Where the state is not ``small`` it is loaded by key group. With half of the seeds bases are
    written often, and of a part of the state.
    """
    in_parts = 0
    if seed % 2:
        monkeypatch.setattr("millrace.state.keyed.chain.MIN_COMPACT_BYTES", 3_000)
        monkeypatch.setattr("millrace.state.keyed.chain.DELTAS_PER_BASE", 0.5)
        monkeypatch.setattr("millrace.state.keyed.chain.PART_BYTES", 2_000)
    dice = random.Random(seed)
    store = Store()
    tasks = (0x003F, 0xFFC0) if dice.random() < 0.7 else (ALL,)
    make_window = Window if small else lazy
    workers = [{mask: make_window(store, mask) for mask in tasks} for _ in range(3)]
    chain: tuple[Segment, ...] = ()
    model: dict[int, int] = {}
    kept: list[tuple[tuple[Segment, ...], dict[int, int]]] = []
    for number in range(40):
        kept.append((chain, model))
        if dice.random() < 0.06:  # all copies were lost, and an older window was restored
            chain, model = dice.choice(kept)
        keys = dice.sample(range(60), dice.randint(0, 25))
        while True:
            segments = []
            for mask in tasks:
                window = dice.choice(workers)[mask]
                name = f"{number}.{dice.getrandbits(60)}"
                window.attempt(chain, keys, name)
                segments += [("counts", segment) for segment in window.written]
                in_parts += sum(s.base and s.groups != mask for s in window.written)
            if dice.random() < 0.6:
                break
            if dice.random() < 0.2:
                dice.choice(workers)[dice.choice(tasks)].cache.clear()
        chain = extend({"counts": chain}, segments)["counts"]
        model = {k: model.get(k, 0) + (k in keys) for k in {*model, *keys}}
        if dice.random() < 0.3:
            found: dict[int, int] = {}
            asked = dice.sample(range(60), dice.randint(1, 60))
            for mask in tasks:
                opened = dice.choice(workers)[mask].open(chain, groups_of(asked))
                found |= totals(opened.state)
            assert {k: found.get(k) for k in asked} == {k: model.get(k) for k in asked}
    fresh = StateCache()
    everything = fresh.open(StateKey("uid", "counts", ALL), chain, make, store.load)
    assert totals(everything.state) == model
    assert bool(in_parts) == (seed % 2 == 1)


def test_deletions_reach_other_processes() -> None:
    store = Store()

    def make_dicts() -> DictState:
        return DictState(pa.schema([("k", pa.int64())]), pa.schema([("v", pa.int64())]), K)

    key = StateKey("u", "dedup", ALL)
    here, there = StateCache(), StateCache()
    opened = here.open(key, (), make_dicts, store.load)
    for row in opened.state.find([pa.array(range(10))]).tolist():
        opened.state.values[row]["v"] = row
    [written] = opened.write("w1", 1)
    store.objects["w1"] = written[1]
    chain = [written[0]]
    there.open(key, chain, make_dicts, store.load)
    opened = here.open(key, chain, make_dicts, store.load)
    for row in opened.state.find([pa.array([3, 4])]).tolist():
        opened.state.values[row].clear()
    [written] = opened.write("w2", 2)
    assert not written[0].base
    store.objects["w2"] = written[1]
    chain.append(written[0])
    for cache in (here, there, StateCache()):
        state = cache.open(key, chain, make_dicts, store.load).state
        rows = state.find([pa.array(range(10))]).tolist()
        assert [state.values[r]["v"] for r in rows] == [0, 1, 2, None, None, 5, 6, 7, 8, 9]
