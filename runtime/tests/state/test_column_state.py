"""Columns of state beside a plain dict: attempts that are kept or undone, objects, both forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millrace.state.errors import StateSchemaError
from millrace.state.keyed import blobs
from millrace.state.keyed.columnstate import ColumnState
from millrace.state.keyed.dictstate import DictState
from millrace.state.keyed.migrations import Migration, Migrations
from millrace.state.keyed.typedstate import TypedState

K = 8
KEYS = pa.schema([("user", pa.string())])
VALUES = pa.schema([("n", pa.int64()), ("x", pa.float32()), ("tags", pa.list_(pa.string()))])

Held = dict[str | None, dict[str, Any]]
_KEY = st.none() | st.text("abc", max_size=2)
_VALUE = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-5, 5) | st.just(1 << 62),
        "x": st.none() | st.sampled_from([0.0, -0.0, 1.5, float("inf")]),
        "tags": st.none() | st.lists(st.none() | st.text("xy", max_size=2), max_size=2),
    }
)
NOTHING = dict.fromkeys(VALUES.names)


def batch(values: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(values, schema=VALUES)


def found(state: ColumnState, keys: list[str | None]) -> np.ndarray:
    return state.find([pa.array(keys, pa.string())])


def contents(state: TypedState) -> Held:
    base = state.base()
    rows = blobs.read(base.data, None, base.digest, "dict").to_pylist()
    assert not any(row.pop("__deleted") for row in rows)
    return {row.pop("user"): row for row in rows}


class Windows(RuleBasedStateMachine):
    """Random window attempts; a copy of each form is kept by the objects alone."""

    @initialize()
    def start(self) -> None:
        self.state = ColumnState(KEYS, VALUES, K)
        self.copies = [ColumnState(KEYS, VALUES, K), DictState(KEYS, VALUES, K)]
        self.model: Held = {}
        self.kept: Held = {}
        self.state.begin()

    @rule(calls=st.dictionaries(_KEY, st.none() | _VALUE, max_size=8))
    def process(self, calls: dict[str | None, dict[str, Any] | None]) -> None:
        rows = found(self.state, list(calls))
        read = self.state.read(rows)
        assert read.schema == VALUES
        assert read.to_pylist() == [self.model.get(key, NOTHING) for key in calls]
        # What is not written was read alone.
        wanted = [at for at, value in enumerate(calls.values()) if value is not None]
        values = [value for value in calls.values() if value is not None]
        self.state.write(rows[wanted], self.state.converted(batch(values)))
        for key, value in calls.items():
            if value is not None and value != NOTHING:
                self.model[key] = {name: value[name] for name in VALUES.names}
            elif value is not None:
                self.model.pop(key, None)

    @rule()
    def keep(self) -> None:
        blob = self.state.delta()
        changed = {
            key
            for key in {*self.kept, *self.model}
            if repr(self.kept.get(key)) != repr(self.model.get(key))
        }
        assert (0 if blob is None else blob.rows) == len(changed)
        self.state.commit()
        assert self.state.size == len(self.model)
        for copy in self.copies:
            if blob is not None:
                copy.apply(blobs.read(blob.data, None, blob.digest, "dict"))
            assert repr(sorted_by_key(contents(copy))) == repr(sorted_by_key(self.model))
            assert copy.size == len(self.model)
        self.kept = dict(self.model)

    @rule()
    def undo(self) -> None:
        self.state.rollback()
        self.model = dict(self.kept)

    @invariant()
    def contents_agree(self) -> None:
        if hasattr(self, "state"):
            assert contents(self.state) == self.model


Windows.TestCase.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)
TestWindows = Windows.TestCase


def sorted_by_key(held: Held) -> list[Any]:
    return sorted(held.items(), key=lambda item: (item[0] is None, item[0]))


def one_column(kind: pa.DataType) -> ColumnState:
    state = ColumnState(pa.schema([("k", pa.int64())]), pa.schema([("v", kind)]), K)
    state.begin()
    return state


def put(state: ColumnState, keys: range, values: pa.Array) -> None:
    rows = state.find([pa.array(keys, pa.int64())])
    state.write(rows, state.converted(pa.RecordBatch.from_arrays([values], names=["v"])))


@settings(deadline=None)
@given(st.integers(0, (1 << K) - 1))
def test_a_mask_loads_its_groups_and_forgets_them(mask: int) -> None:
    state = one_column(pa.int64())
    put(state, range(50), pa.array(range(50)))
    state.commit()
    base = state.base()
    halves = []
    for part in (mask, ~mask & (1 << K) - 1):
        loaded = one_column(pa.int64())
        loaded.apply(blobs.read(base.data, part))
        halves.append(loaded.size)
    assert sum(halves) == 50
    state.forget(mask, np.zeros(0, np.int64))
    assert state.size == halves[1]
    assert state.base().rows == halves[1]


@pytest.mark.parametrize(
    ("kind", "value"),
    [(pa.int64(), 7), (pa.binary(), b"x" * 1000), (pa.list_(pa.list_(pa.int64())), [[1, 2], []])],
)
def test_deleted_keys_are_freed_when_they_are_many(kind: pa.DataType, value: Any) -> None:
    state = one_column(kind)
    empty = state.size_bytes
    put(state, range(5000), pa.array([value] * 5000, kind))
    state.commit()
    held = state.size_bytes
    if isinstance(value, bytes):
        assert held - empty > 5000 * 1000
    put(state, range(4900), pa.nulls(4900, kind))
    delta = state.delta()
    assert delta is not None
    assert delta.rows == 4900
    state.commit()
    assert state.size == 100
    assert state.size_bytes < held / 5
    rows = state.find([pa.array(range(4890, 5000))])
    assert state.read(rows).column("v").to_pylist() == [None] * 10 + [value] * 100


def test_what_is_not_a_number_is_no_change_where_it_stays() -> None:
    state = one_column(pa.float64())
    put(state, range(1), pa.array([float("nan")]))
    state.commit()
    put(state, range(1), pa.array([float("nan")]))
    assert state.delta() is None
    put(state, range(1), pa.array([1.0]))
    assert state.delta() is not None


def test_what_was_interrupted_is_known_as_broken() -> None:
    state = one_column(pa.int64())
    put(state, range(2), pa.array([1, 2]))
    with pytest.raises(IndexError):
        state.write(np.array([0, 1 << 20]), [(np.zeros(2), np.ones(2))])
    assert state.broken


@pytest.mark.parametrize(
    ("kind", "given", "error"),
    [
        (pa.int64(), pa.array(["no", "number"]), "Failed to parse"),
        (pa.string(), pa.array([b"a", b"\xff"]).view(pa.string()), "'utf-8' codec can't decode"),
        (
            pa.list_(pa.timestamp("us", "UTC")),
            pa.array([[0], [1 << 62]]).cast(pa.list_(pa.timestamp("us", "UTC"))),
            "out of range|year",
        ),
    ],
)
def test_what_cannot_be_held_is_noticed_before_anything_changes(
    kind: pa.DataType, given: pa.Array, error: str
) -> None:
    state = one_column(kind)
    with pytest.raises(ValueError, match=f"state column 'v': .*({error})"):
        put(state, range(2), given)
    assert not state.broken
    assert state.delta() is None


def bits(kind: pa.DataType, value: Any) -> list[bytes | None]:
    return [one and one.to_pybytes() for one in pa.array([value], kind).buffers()]


FLOATS = st.none() | st.lists(
    st.none() | st.sampled_from([0.0, -0.0, 1.5, float("nan"), -float("nan")]), max_size=3
)


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
@given(pair=st.tuples(FLOATS, FLOATS), nested=st.booleans())
def test_floats_in_lists_are_compared_by_their_bits(
    kind: pa.DataType, pair: tuple[Any, Any], nested: bool
) -> None:
    kind = pa.list_(pa.list_(kind)) if nested else pa.list_(kind)
    first, second = ([one] for one in pair) if nested else pair
    state = one_column(kind)
    put(state, range(1), pa.array([first], kind))
    state.commit()
    put(state, range(1), pa.array([second], kind))
    blob = state.delta()
    assert (blob is not None) == (bits(kind, first) != bits(kind, second))


def test_state_of_dicts_goes_on_in_columns_and_is_migrated() -> None:
    old = pa.schema([("n", pa.int64())])
    dicts = DictState(KEYS, old, K)
    dicts.begin()
    for row, n in zip(dicts.find([pa.array(["a", "b"])]).tolist(), [1, 2], strict=True):
        dicts.values[row]["n"] = n
    blob = dicts.base()
    same = ColumnState(KEYS, old, K)
    assert same.columns == dicts.columns
    same.apply(blobs.read(blob.data, kind="dict"))
    assert contents(same) == {"a": {"n": 1}, "b": {"n": 2}}
    known = Migration(tuple(old), lambda held: {"n": -held["n"], "tags": ["x"]})
    today = ColumnState(KEYS, VALUES, K, 0, Migrations("p", (known,)))
    today.apply(blobs.read(blob.data))
    assert contents(today) == {
        "a": {"n": -1, "x": None, "tags": ["x"]},
        "b": {"n": -2, "x": None, "tags": ["x"]},
    }
    with pytest.raises(StateSchemaError, match=r"n int64.*declares.*tags list.*@migrates"):
        ColumnState(KEYS, VALUES, K).apply(blobs.read(blob.data))
