"""Rows of state with other columns, through a user's function, in every form it may answer in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest

from millrace.protocol.types import Segment
from millrace.state.errors import StateMigrationError, StateSchemaError
from millrace.state.keyed import blobs, query
from millrace.state.keyed.blobs import UPDATED
from millrace.state.keyed.cache import SMALL_BYTES, StateCache, StateKey
from millrace.state.keyed.dictstate import DictState
from millrace.state.keyed.keys import hash_keys, key_groups
from millrace.state.keyed.loading import Extent
from millrace.state.keyed.migrations import Migration, Migrations

K = 8
KEYS = pa.schema([("k", pa.int64())])
OLD = pa.schema([("n", pa.int64())])
NEW = pa.schema([("n", pa.int64()), ("last", pa.string())])


def old_blob(values: dict[int, int | None], ttl_ms: int = 0) -> blobs.Blob:
    """State as it was kept: a key with None was deleted."""
    state = DictState(KEYS, OLD, K, ttl_ms)
    state.begin(500)
    rows = state.find([pa.array(list(values), pa.int64())]).tolist()
    for row in rows:
        state.values[row]["n"] = 1
    state.commit()
    state.begin(1_000)
    again = state.find([pa.array(list(values), pa.int64())]).tolist()
    for row, n in zip(again, values.values(), strict=True):
        before = dict(state.values[row])
        state.values[row]["n"] = n
        state.updated(row, before)
    found = state.delta()
    assert found is not None
    return found


def today(function: Any, ttl_ms: int = 0) -> DictState:
    known = (Migration(tuple(OLD), function),)
    return DictState(KEYS, NEW, K, ttl_ms, Migrations("counts", known))


def migrated(function: Any, values: dict[int, int | None]) -> dict[int, dict[str, Any]]:
    state = today(function)
    state.apply(blobs.read(old_blob(values).data))
    rows = blobs.read(state.base().data).to_pylist()
    assert not any(row.pop("__deleted") for row in rows)
    return {row.pop("k"): row for row in rows}


def test_each_key_is_converted_and_deleted_ones_stay_deleted() -> None:
    seen = []

    def change(state: dict[str, Any]) -> dict[str, Any]:
        seen.append(dict(state))
        return {"n": -state["n"], "last": "x"}

    found = migrated(change, {2: 7, 3: None, 4: 9})
    assert found == {2: {"n": -7, "last": "x"}, 4: {"n": -9, "last": "x"}}
    assert sorted(one["n"] for one in seen) == [7, 9]


def test_columns_that_are_left_out_are_none_and_without_any_there_is_no_state() -> None:
    answers = {7: {"last": "x"}, 8: {}, 9: None}
    found = migrated(lambda state: answers[state["n"]], {2: 7, 3: 8, 4: 9})
    assert found == {2: {"n": None, "last": "x"}}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"m": 1}, "it has no column m; its columns are n, last"),
        ({"n": 1.5}, "column n of type int64 cannot hold 1.5"),
        ([1], "gave a list, not a dict"),
    ],
)
def test_an_answer_that_is_no_state_names_processor_and_key(answer: Any, problem: str) -> None:
    with pytest.raises(StateMigrationError) as error:
        migrated(lambda state: answer, {5: 7})
    assert "processor 'counts': the state of key 5, kept as (n int64)" in str(error.value)
    assert problem in str(error.value)


def test_other_keys_or_columns_are_refused_as_ever() -> None:
    state = DictState(pa.schema([("k", pa.string())]), NEW, K, 0, today(dict)._migrations)
    with pytest.raises(StateSchemaError, match="@migrates"):
        state.apply(blobs.read(old_blob({1: 2}).data))
    two = DictState(KEYS, pa.schema([("m", pa.int64())]), K)
    two.begin()
    two.values[int(two.find([pa.array([1])])[0])]["m"] = 1
    with pytest.raises(StateSchemaError, match="@migrates"):
        today(dict).apply(blobs.read(two.base().data))


def test_the_time_of_the_last_update_stays() -> None:
    state = today(lambda held: {"n": held["n"]}, ttl_ms=100)
    state.apply(blobs.read(old_blob({1: 2}, ttl_ms=100).data))
    state.begin(1_099)
    assert blobs.read(state.base().data).column(UPDATED.name).to_pylist() == [1_000]
    state.begin(1_100)
    assert blobs.read(state.base().data).num_rows == 0


def test_what_has_expired_is_not_migrated() -> None:
    seen = []
    blob = old_blob({1: 2}, ttl_ms=100)
    held = Segment("old", 1, blob.groups, False, blob.rows, len(blob.data), blob.digest)

    def opened(time_ms: int) -> DictState:
        key = StateKey("uid", "counts", (1 << K) - 1)

        def make() -> DictState:
            return today(lambda held: seen.append(held) or {"n": held["n"]}, ttl_ms=100)

        def load(parts: Sequence[Extent]) -> list[bytes]:
            return [part.of(blob.data) for part in parts]

        return StateCache().open(key, (held,), make, load, None, time_ms).state

    state = opened(1_100)
    row = int(state.find([pa.array([1])])[0])
    assert state.values[row] == {"n": None, "last": None}
    assert seen == []
    opened(1_099)
    assert seen == [{"n": 2}]


def test_state_of_both_forms_is_shown_with_the_columns_of_either() -> None:
    state = today(lambda held: {"n": held["n"], "last": "x"})
    old = old_blob({1: 2, 2: 3})
    state.apply(blobs.read(old.data))
    state.begin(2_000)
    row = int(state.find([pa.array([1])])[0])
    state.values[row]["n"] = 5
    new = state.delta()
    assert new is not None
    objects = {"old": old, "new": new}
    chain = [
        Segment(name, 1, blob.groups, False, blob.rows, len(blob.data), blob.digest)
        for name, blob in objects.items()
    ]
    rows = query.read_state(
        chain, (1 << K) - 1, 1, lambda parts: [p.of(objects[p.segment.name].data) for p in parts]
    )
    assert rows.to_pylist() == [{"k": 1, "n": 5, "last": "x"}, {"k": 2, "n": 3, "last": None}]


def shards_of(count: int) -> list[tuple[int, int]]:
    """Masks of the shards of a task cut in two, each with keys of its own."""
    groups = key_groups(hash_keys([pa.array(range(count))]), K).tolist()
    masks = [sum(1 << g for g in range(first, K, 2)) for first in (0, 1)]
    return [
        (mask, next(key for key, group in enumerate(groups) if mask >> group & 1)) for mask in masks
    ]


@dataclass
class Chain:
    """A chain on state servers, written by processes that begin anew for each window."""

    small_bytes: int = SMALL_BYTES
    objects: dict[str, bytes] = field(default_factory=dict)
    segments: tuple[Segment, ...] = ()
    read: list[str] = field(default_factory=list)

    def load(self, parts: Sequence[Extent]) -> list[bytes]:
        self.read += [part.segment.name for part in parts]
        return [part.of(self.objects[part.segment.name]) for part in parts]

    def window(self, make: Callable[[], Any], mask: int, key: int) -> None:
        """A key of one shard gets a value."""
        cache = StateCache(small_bytes=self.small_bytes)
        group = int(key_groups(hash_keys([pa.array([key])]), K)[0])
        opened = cache.open(
            StateKey("uid", "counts", mask),
            self.segments,
            make,
            self.load,
            lambda: 1 << group,
            1_000,
        )
        opened.state.values[int(opened.state.find([pa.array([key])])[0])]["n"] = 7 + len(
            self.segments
        )
        name = str(len(self.segments))
        [(segment, data)] = opened.write(name, 1, compact=False)
        self.objects[name] = data
        self.segments = (*self.segments, segment)


@pytest.mark.parametrize("small_bytes", [SMALL_BYTES, 0])
@pytest.mark.parametrize("touched", [0, 1])
def test_other_columns_stop_whatever_a_window_touches(touched: int, small_bytes: int) -> None:
    chain = Chain(small_bytes)
    shards = shards_of(100)
    chain.window(lambda: DictState(KEYS, OLD, K), *shards[0])
    with pytest.raises(StateSchemaError, match="@migrates"):
        chain.window(lambda: DictState(KEYS, NEW, K), *shards[touched])
    assert len(chain.segments) == 1
    chain.window(lambda: DictState(KEYS, OLD, K), *shards[1])
    # With the hook both may be written, and then the code of before does not go on.
    migrating = lambda: today(lambda held: {"n": held["n"]})  # noqa: E731
    chain.window(migrating, *shards[touched])
    for shard in shards:
        with pytest.raises(StateSchemaError, match="@migrates"):
            chain.window(lambda: DictState(KEYS, OLD, K), *shard)
        # Nor the new code once its hook is gone, while there is one object of the old form.
        with pytest.raises(StateSchemaError, match="@migrates"):
            chain.window(lambda: DictState(KEYS, NEW, K), *shard)


def test_of_what_has_the_same_columns_nothing_is_read() -> None:
    chain = Chain()
    first, second = shards_of(100)
    now = lambda: today(lambda held: {"n": held["n"]})  # noqa: E731
    chain.window(lambda: DictState(KEYS, OLD, K), *first)
    chain.window(lambda: DictState(KEYS, OLD, K), *second)
    assert chain.read == []
    chain.window(now, *second)
    assert sorted(chain.read) == ["0", "1"]  # the first for its columns alone
    chain.read.clear()
    # A chain that an earlier release wrote says nothing of columns, which are then read.
    chain.segments = tuple(replace(segment, columns="") for segment in chain.segments)
    chain.window(now, *first)
    assert sorted(chain.read) == ["0", "2"]  # the last one is a base


@pytest.mark.parametrize("key_group_count", [K, 4096])
def test_columns_are_read_from_the_first_bytes_of_an_object_and_once(key_group_count: int) -> None:
    state = DictState(KEYS, OLD, key_group_count)
    state.begin(1_000)
    for row in state.find([pa.array(range(40_000))]).tolist():
        state.values[row]["n"] = row
    blob = state.base()
    held = Segment("old", 1, blob.groups, True, blob.rows, len(blob.data), blob.digest, blob.index)
    asked: list[Extent] = []

    def load(parts: Sequence[Extent]) -> list[bytes]:
        asked.extend(parts)
        return [part.of(blob.data) for part in parts]

    cache = StateCache(small_bytes=0)
    for mask in (1, 2):
        key = StateKey("uid", "counts", mask)
        chain = (replace(held, groups=blob.groups & ~3),)
        cache.open(key, chain, lambda: DictState(KEYS, OLD, key_group_count), load, lambda: 0)
    assert sum(part.size or len(blob.data) for part in asked) < 64 << 10
    assert len({part.start for part in asked}) == 1
    assert len(asked) == (1 if key_group_count == K else 2)
