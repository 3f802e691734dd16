from __future__ import annotations

import datetime as dt
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millrace.state.errors import StateSchemaError
from millrace.state.keyed import blobs
from millrace.state.keyed.dictstate import DictState, StateValueError
from millrace.state.keyed.typedstate import Row

K = 8
KEYS = pa.schema([("user", pa.string()), ("day", pa.date32())])
VALUES = pa.schema([("n", pa.int64()), ("tags", pa.list_(pa.string()))])

Key = tuple[str | None, dt.date | None]
_KEY = st.tuples(
    st.none() | st.text("ab", max_size=2), st.sampled_from([None, dt.date(2024, 2, 29)])
)
_VALUE = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-5, 5) | st.just(1 << 62),
        "tags": st.none() | st.lists(st.none() | st.text("xy", max_size=2), max_size=2),
    }
)
_CHANGE = st.sampled_from(["read", "clear", "set", "append", "add"])


def columns(keys: list[Key]) -> list[pa.Array]:
    parts = list(zip(*keys, strict=True)) or [(), ()]
    return [pa.array(part, field.type) for part, field in zip(parts, KEYS, strict=True)]


def change(row: Row, how: str, value: Row) -> None:
    """What a user's function may do to its state."""
    if how == "clear":
        row.clear()
    elif how == "set":
        row.update(value)
    elif how == "append":
        row["tags"] = row.get("tags") or []
        row["tags"].append("z")
    elif how == "add":
        row["n"] = (row.get("n") or 0) + 1


def present(held: dict[Key, Row]) -> dict[Key, Row]:
    full = {key: {"n": row.get("n"), "tags": row.get("tags")} for key, row in held.items()}
    return {key: row for key, row in full.items() if any(v is not None for v in row.values())}


def contents(state: DictState) -> dict[Key, Row]:
    base = state.base()
    rows = blobs.read(base.data, None, base.digest, "dict").to_pylist()
    assert not any(row.pop("__deleted") for row in rows)
    return {(row.pop("user"), row.pop("day")): row for row in rows}


class Windows(RuleBasedStateMachine):
    """Random window attempts, kept or undone, beside a plain dict."""

    @initialize()
    def start(self) -> None:
        self.state = DictState(KEYS, VALUES, K)
        self.copy = DictState(KEYS, VALUES, K)
        self.model: dict[Key, Row] = {}
        self.kept = pickle.dumps(self.model)
        self.state.begin()

    @rule(calls=st.lists(st.tuples(_KEY, _CHANGE, _VALUE), max_size=8))
    def process(self, calls: list[tuple[Key, str, Row]]) -> None:
        rows = self.state.find(columns([key for key, _, _ in calls]))
        for row, (key, how, value) in zip(rows.tolist(), calls, strict=True):
            self.state.revive(row)
            mine = self.model.setdefault(key, {})
            mine.update({name: mine.get(name) for name in ("n", "tags")})
            assert self.state.values[row] == mine
            # Each gets values of its own: both keep lists that are changed in place.
            change(self.state.values[row], how, pickle.loads(pickle.dumps(value)))
            change(mine, how, pickle.loads(pickle.dumps(value)))
            assert self.state.check(row) is None

    @rule()
    def keep(self) -> None:
        before, after = present(pickle.loads(self.kept)), present(self.model)
        blob = self.state.delta()
        changed = {k for k in {*before, *after} if before.get(k) != after.get(k)}
        assert (0 if blob is None else blob.rows) == len(changed)
        if blob is not None:
            self.copy.apply(blobs.read(blob.data, None, blob.digest, "dict"))
        self.state.commit()
        assert contents(self.copy) == after
        assert self.state.size == len(after)
        assert self.copy.size == len(after)
        self.kept = pickle.dumps(self.model)

    @rule()
    def undo(self) -> None:
        self.model = pickle.loads(self.kept)
        self.state.rollback()

    @invariant()
    def contents_agree(self) -> None:
        if hasattr(self, "state"):
            assert contents(self.state) == present(self.model)


Windows.TestCase.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)
TestWindows = Windows.TestCase


def scalar_state(kind: pa.DataType) -> DictState:
    state = DictState(pa.schema([("k", pa.int64())]), pa.schema([("v", kind)]), K)
    state.begin()
    return state


@pytest.mark.parametrize(
    ("kind", "value", "another"),
    [
        (pa.float32(), float("nan"), 1.5),
        (pa.float64(), 0.0, -0.0),
        (pa.float64(), -0.0, 0.0),
        (pa.list_(pa.float64()), [1.0, float("nan")], [float("nan"), 1.0]),
        (pa.list_(pa.float64()), [0.0], [-0.0]),
        (pa.list_(pa.list_(pa.float32())), [[0.0], []], [[-0.0], []]),
    ],
)
def test_what_is_stored_alike_is_no_update(kind: pa.DataType, value: Any, another: Any) -> None:
    """NaN is itself, and 0.0 is not -0.0."""
    state = DictState(pa.schema([("k", pa.int64())]), pa.schema([("v", kind)]), K, ttl_ms=1000)

    def updates(time_ms: int, left: Any = None) -> bool:
        state.begin(time_ms)
        (row,) = state.find([pa.array([1])]).tolist()
        before = state.copy(state.values[row])
        if left is not None:
            state.values[row]["v"] = left
        assert state.check(row) is None
        state.updated(row, before)
        updated = state.delta() is not None
        state.commit()
        return updated

    assert updates(1000, value)
    assert not updates(1500)
    assert not updates(1600, value)
    assert updates(1900, another)
    assert updates(2800, value)


def test_another_zero_is_stored_without_a_time_to_live() -> None:
    state = scalar_state(pa.float64())
    for value in (0.0, -0.0):
        state.begin()
        (row,) = state.find([pa.array([1])]).tolist()
        state.values[row]["v"] = value
        assert state.delta() is not None
        state.commit()


@settings(deadline=None)
@given(st.integers(0, (1 << K) - 1))
def test_a_mask_loads_its_groups(mask: int) -> None:
    state = scalar_state(pa.int64())
    for row in state.find([pa.array(range(50))]).tolist():
        state.values[row]["v"] = row
    base = state.base()
    halves = []
    for part in (mask, ~mask & (1 << K) - 1):
        loaded = scalar_state(pa.int64())
        loaded.apply(blobs.read(base.data, part))
        halves.append([row["v"] for row in loaded.values])
    assert sorted(halves[0] + halves[1]) == list(range(50))


def test_deleted_keys_are_freed_when_they_are_many() -> None:
    state = scalar_state(pa.int64())
    keys = pa.array(range(5000))
    for row in state.find([keys]).tolist():
        state.values[row]["v"] = row
    state.commit()
    held = state.size_bytes
    for row in state.find([keys.slice(0, 4900)]).tolist():
        state.values[row].clear()
    delta = state.delta()
    assert delta is not None
    assert delta.rows == 4900
    state.commit()
    assert state.size == 100
    assert state.size_bytes < held / 5
    rows = state.find([keys.slice(4890)]).tolist()
    assert [state.values[row]["v"] for row in rows] == [None] * 10 + list(range(4900, 5000))


def test_a_cleared_dict_starts_again_with_none() -> None:
    state = scalar_state(pa.int64())
    [row] = state.find([pa.array([1])]).tolist()
    assert state.values[row] == {"v": None}
    state.values[row].clear()
    state.revive(row)
    assert state.values[row] == {"v": None}
    assert state.delta() is None


def test_lists_that_are_changed_in_place_are_undone() -> None:
    state = scalar_state(pa.list_(pa.list_(pa.int64())))
    [row] = state.find([pa.array([1])]).tolist()
    state.values[row]["v"] = [[1]]
    state.commit()
    state.find([pa.array([1])])
    state.values[row]["v"][0].append(2)
    state.rollback()
    assert state.values[row] == {"v": [[1]]}


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (pa.float32(), 0.1, 0.10000000149011612),
        (pa.list_(pa.float32()), [0.1], [0.10000000149011612]),
        (pa.int64(), np.int64(5), 5),
        (pa.float64(), np.float32(0.5), 0.5),
    ],
)
def test_a_checked_value_is_what_will_be_read_back(
    kind: pa.DataType, value: Any, stored: Any
) -> None:
    state = scalar_state(kind)
    [row] = state.find([pa.array([7])]).tolist()
    state.values[row]["v"] = value
    assert state.check(row) is None
    assert state.values[row]["v"] == stored
    assert type(state.values[row]["v"]) is type(stored)
    blob = state.delta()
    assert blob is not None
    assert blobs.read(blob.data).column("v").to_pylist() == [stored]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.int64(), [1, -(1 << 63), (1 << 63) - 1], ["1", 1 << 63, object()]),
        (pa.int32(), [(1 << 31) - 1], [1 << 31, 1.5]),
        (pa.float64(), [1.5, 2, float("nan")], ["x"]),
        (pa.string(), ["é", "a"], [b"\xff", 1, "\ud800"]),
        (pa.bool_(), [True], ["yes"]),
        (pa.binary(), [b"\xff"], [1]),
        (pa.date32(), [dt.date(2020, 1, 1)], ["2020-01-01"]),
        (pa.timestamp("us"), [dt.datetime(2020, 1, 1, 2)], [5]),
        (pa.list_(pa.int64()), [[1, None]], [["x"], 5, [1.5]]),
        (pa.list_(pa.float64()), [[1.0, float("nan"), None], []], [["x"]]),
        (pa.list_(pa.list_(pa.float64())), [[[float("nan")], None]], [[1.0]]),
    ],
)
def test_values_are_checked_by_the_call_that_left_them(
    kind: pa.DataType, good: list[Any], bad: list[Any]
) -> None:
    state = scalar_state(kind)
    [row] = state.find([pa.array([7])]).tolist()
    for value in good:
        state.values[row]["v"] = value
        assert state.check(row) is None
        blob = state.delta()
        assert blob is not None
        [stored] = blobs.read(blob.data).column("v").to_pylist()
        assert repr(stored) == repr(value) or stored == value
    for value in bad:
        state.values[row]["v"] = value
        problem = state.check(row)
        assert problem is not None
        assert f"column v of type {kind} cannot hold" in problem


UTC = dt.UTC
UTC_TIME = pa.timestamp("us", "UTC")
NOON = dt.datetime(2026, 1, 1, 12)


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (UTC_TIME, NOON, NOON.replace(tzinfo=UTC)),
        (pa.list_(UTC_TIME), [NOON, None], [NOON.replace(tzinfo=UTC), None]),
        (pa.date32(), dt.datetime(2026, 1, 1), dt.date(2026, 1, 1)),
        (pa.float32(), 0.1, float(np.float32(0.1))),
        (pa.float32(), float("inf"), float("inf")),
        (pa.list_(pa.float32()), [float("-inf"), None], [float("-inf"), None]),
        (pa.date32(), NOON, None),
        (pa.float32(), 1e300, None),
        (pa.list_(pa.float32()), [1.0, -1e300], None),
    ],
)
def test_a_moment_without_a_zone_is_in_utc_and_no_number_becomes_infinite(
    kind: pa.DataType, value: Any, stored: Any
) -> None:
    state = scalar_state(kind)
    [row] = state.find([pa.array([7])]).tolist()
    state.values[row]["v"] = value
    problem = state.check(row)
    if stored is not None:
        assert problem is None
        assert state.values[row]["v"] == stored
    else:
        assert problem is not None
        assert "it would become" in problem


def test_a_wrong_value_that_was_not_checked_is_named_by_its_key() -> None:
    state = scalar_state(pa.int64())
    rows = state.find([pa.array([1, 2, 3])]).tolist()
    for row, value in zip(rows, [1, "two", 3], strict=True):
        state.values[row]["v"] = value
    with pytest.raises(StateValueError, match="state of key 2: column v of type int64") as caught:
        state.delta()
    assert caught.value.group == int(state.groups(state.touched()[1:2])[0])
    assert pickle.loads(pickle.dumps(caught.value)).key == "2"


def test_an_undeclared_column_is_named() -> None:
    state = scalar_state(pa.int64())
    [row] = state.find([pa.array([1])]).tolist()
    state.values[row]["other"] = 1
    assert state.check(row) == "it has no column other; its columns are v"


def test_stored_state_of_other_columns_is_refused() -> None:
    state = scalar_state(pa.int64())
    [row] = state.find([pa.array([1])]).tolist()
    state.values[row]["v"] = 1
    base = state.base()
    with pytest.raises(StateSchemaError, match=r"v int64.*declares.*v string.*--fresh"):
        scalar_state(pa.string()).apply(blobs.read(base.data))
