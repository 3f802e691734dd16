from __future__ import annotations

import datetime as dt
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millrace.errors import TopologyError
from millrace.state.errors import KeyTypeError, StateSchemaError
from millrace.state.keyed import blobs
from millrace.state.keyed.aggregates import Aggregate, AggregateOverflowError
from millrace.state.keyed.aggregatestate import AggregateState
from millrace.state.keyed.keys import hash_keys, key_groups

K = 8
INPUTS = pa.schema(
    [
        ("word", pa.string()),
        ("part", pa.int32()),
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("text", pa.string()),
    ]
)
KEYS = ["word", "part"]
AGGREGATES = [
    Aggregate("rows", "count"),
    Aggregate("some", "count", "n"),
    Aggregate("total", "sum", "n"),
    Aggregate("low", "min", "x"),
    Aggregate("high", "max", "n"),
    Aggregate("mean", "avg", "n"),
    Aggregate("first", "min", "text"),
    Aggregate("last", "max", "text"),
]

Input = tuple[str | None, int | None, int | None, float | None, str | None]
_ROWS = st.lists(
    st.tuples(
        st.none() | st.text("ab", max_size=2),
        st.none() | st.integers(0, 2),
        st.none() | st.integers(-1000, 1000),
        st.none() | st.floats(-10, 10, width=16),
        st.none() | st.text(max_size=2),
    ),
    max_size=15,
)


def batch(rows: list[Input]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [()] * 5
    arrays = [pa.array(c, f.type) for c, f in zip(columns, INPUTS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=INPUTS)


class Plain:
    """The same totals in plain Python."""

    def __init__(self) -> None:
        self.rows: dict[Any, list[Input]] = {}

    def update(self, rows: list[Input]) -> None:
        for row in rows:
            self.rows = {**self.rows, row[:2]: [*self.rows.get(row[:2], []), row]}

    def results(self) -> dict[Any, dict[str, Any]]:
        return {key: self._result(rows) for key, rows in self.rows.items()}

    def _result(self, rows: list[Input]) -> dict[str, Any]:
        numbers = [row[2] for row in rows if row[2] is not None]
        floats = [row[3] for row in rows if row[3] is not None]
        texts = [row[4] for row in rows if row[4] is not None]
        return {
            "rows": len(rows),
            "some": len(numbers),
            "total": sum(numbers) if numbers else None,
            "low": min(floats, default=None),
            "high": max(numbers, default=None),
            "mean": sum(numbers) / len(numbers) if numbers else None,
            "first": min(texts, default=None),
            "last": max(texts, default=None),
        }


def results(found: pa.RecordBatch) -> dict[Any, dict[str, Any]]:
    found.validate(full=True)
    held = {}
    for row in found.to_pylist():
        key = (row.pop("word"), row.pop("part"))
        assert key not in held
        held[key] = row
    return held


def make() -> AggregateState:
    return AggregateState(INPUTS, KEYS, AGGREGATES, K)


def combined(rows: pa.RecordBatch, keys: list[str], aggregates: list[Aggregate]) -> pa.RecordBatch:
    """Partial rows, as what is combined before an exchange."""
    state = AggregateState(rows.schema, keys, aggregates, K)
    state.begin()
    state.update(rows)
    return state.partials()


class Windows(RuleBasedStateMachine):
    """Random window attempts, kept, undone, or replayed from blobs into another state."""

    @initialize()
    def start(self) -> None:
        self.state = make()
        self.copy = make()
        self.model = Plain()
        self.kept = dict(self.model.rows)
        self.touched: set[Any] = set()
        self.state.begin()

    @rule(rows=_ROWS)
    def update(self, rows: list[Input]) -> None:
        into = self.state.update(batch(rows))
        self._agree(rows, into)

    @rule(rows=_ROWS)
    def merge_what_was_combined_before(self, rows: list[Input]) -> None:
        half = len(rows) // 2
        for part in (rows[:half], rows[half:]):
            self.state.merge(combined(batch(part), KEYS, AGGREGATES))
        self._agree(rows, None)

    def _agree(self, rows: list[Input], into: np.ndarray[Any, Any] | None) -> None:
        self.model.update(rows)
        self.touched |= {row[:2] for row in rows}
        if into is not None and len(into):
            named = self.state.rows(into).select(KEYS).to_pylist()
            assert [(r["word"], r["part"]) for r in named] == [row[:2] for row in rows]

    @rule()
    def keep(self) -> None:
        blob = self.state.delta()
        assert (blob is None) == (not self.touched)
        if blob is not None:
            self.copy.apply(blobs.read(blob.data, None, blob.digest, "aggregate"))
        self.state.commit()
        self._begin()

    @rule()
    def undo(self) -> None:
        self.model.rows = dict(self.kept)
        self.state.rollback()
        self._begin()

    @precondition(lambda self: not self.touched)
    @rule(mask=st.integers(0, (1 << K) - 1))
    def load_some_groups_of_a_base(self, mask: int) -> None:
        base = self.state.base()
        loaded = make()
        loaded.apply(blobs.read(base.data, mask, base.digest, "aggregate"))
        groups = loaded.groups().tolist()
        assert all(mask >> group & 1 for group in groups)
        others = make()
        others.apply(blobs.read(base.data, ~mask & (1 << K) - 1))
        together = {**results(loaded.rows()), **results(others.rows())}
        assert together == self.model.results()

    def _begin(self) -> None:
        self.kept = dict(self.model.rows)
        self.touched = set()
        assert results(self.copy.rows()) == self.model.results()

    @invariant()
    def totals_agree(self) -> None:
        if not hasattr(self, "state"):
            return
        expected = self.model.results()
        assert results(self.state.rows()) == expected
        assert self.state.size == len(expected)
        rows = self.state.touched()
        assert results(self.state.rows(rows)) == {key: expected[key] for key in self.touched}
        assert self.state.hashes(rows).tolist() == self.state.hashes(rows.copy()).tolist()


Windows.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
TestWindows = Windows.TestCase


def test_tables_grow_within_an_attempt_and_go_back() -> None:
    inputs = pa.schema([("k", pa.string())])
    state = AggregateState(inputs, ["k"], [Aggregate("n", "count")], 128)
    first = pa.record_batch({"k": [f"key-{n}" for n in range(3000)]})
    state.begin()
    state.update(first)
    state.commit()
    before = state.base().data
    state.update(pa.record_batch({"k": [f"key-{n}" for n in range(1000, 60_000)]}))
    assert state.size == 60_000
    state.rollback()
    assert state.size == 3000
    assert state.base().data == before
    state.update(first)
    assert set(state.rows().column("n").to_pylist()) == {2}


@pytest.mark.parametrize("known", [0, 1_000, 19_000, 20_000, 40_000])
def test_a_table_that_has_room_from_the_beginning_is_like_one_that_grew(known: int) -> None:
    lines: list[Input] = [(f"w{n % 20_000}", n % 3, n, None, str(n)) for n in range(40_000)]
    rows = [batch(lines[at : at + 3_000]) for at in range(0, 40_000, 3_000)]
    met = make()
    met.begin()
    met.update(batch([(f"w{n}", 0, n, None, None) for n in range(known)]))
    one, other = make(), make()
    other.make_room(met.room)
    for state in (one, other):
        state.begin()
        for some in rows:
            state.update(some)
    assert results(other.rows()) == results(one.rows())
    assert other.room == one.room
    assert other.base().data == one.base().data
    # What is held already is never thrown away.
    other.make_room(met.room)
    assert results(other.rows()) == results(one.rows())


def test_a_table_that_has_room_does_not_grow() -> None:
    def numbers() -> AggregateState:
        return AggregateState(INPUTS, KEYS, AGGREGATES[:-2], K)

    rows = batch([(f"w{n}", 0, n, 0.5, None) for n in range(20_000)])
    first, second = numbers(), numbers()
    first.begin()
    first.update(rows)
    second.make_room(first.room)
    before = second.size_bytes
    second.begin()
    second.update(rows)
    assert second.size_bytes == before


@pytest.mark.parametrize("some", [0, 1, 10, 300, 3_000])
def test_rows_that_were_touched_come_in_order_be_they_few_or_many(some: int) -> None:
    state = make()
    state.begin()
    state.update(batch([(f"w{n}", 0, n, None, None) for n in range(3_000)]))
    state.commit()
    chosen = np.random.default_rng(some).permutation(3_000)[:some].tolist()
    state.update(batch([(f"w{n}", 0, n, None, None) for n in chosen]))
    assert state.touched().tolist() == sorted(chosen)
    state.update(batch([("another", 0, 1, None, None)]))
    assert state.touched().tolist() == [*sorted(chosen), 3_000]


def test_blobs_are_sorted_by_key_group() -> None:
    state = make()
    state.begin()
    state.update(batch([(f"w{n}", n, n, None, None) for n in range(100)]))
    read = blobs.read(state.base().data)
    groups = key_groups(hash_keys([read.column(k) for k in KEYS]), K)
    assert groups.tolist() == sorted(groups.tolist())
    assert len(set(groups.tolist())) == K


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.date32(), [dt.date(2020, 1, 5), dt.date(1969, 1, 1)]),
        (pa.timestamp("us"), [dt.datetime(2020, 1, 5, 1, 2, 3), dt.datetime(1960, 1, 1)]),
        (pa.bool_(), [True, False]),
        (pa.int16(), [300, -300]),
        (pa.float32(), [1.5, -2.5]),
        (pa.string(), ["\U0001d11e", "\ue000"]),
        (pa.string(), ["a", ""]),
    ],
)
def test_extremes_keep_their_type(kind: pa.DataType, values: list[Any]) -> None:
    inputs = pa.schema([("k", pa.int64()), ("v", kind)])
    wanted = [Aggregate("low", "min", "v"), Aggregate("high", "max", "v")]
    rows = pa.record_batch([[1, 1, 2], pa.array([*values, None], kind)], schema=inputs)
    partial = combined(rows, ["k"], wanted)
    state = AggregateState(inputs, ["k"], wanted, K)
    state.begin()
    state.merge(partial)
    reloaded = AggregateState(inputs, ["k"], wanted, K)
    reloaded.apply(blobs.read(state.base().data))
    for one in (state, reloaded):
        found = one.rows().sort_by("k")
        assert found.schema.field("low").type == kind
        assert found.to_pylist() == [
            {"k": 1, "low": min(values), "high": max(values)},
            {"k": 2, "low": None, "high": None},
        ]


@settings(deadline=None)  # the first call loads compiled code
@given(st.lists(st.sampled_from([float("nan"), 1.0, -1.0, 0.0, None]), min_size=1, max_size=6))
def test_nan_is_larger_than_every_number(values: list[float | None]) -> None:
    inputs = pa.schema([("k", pa.int64()), ("v", pa.float64())])
    wanted = [Aggregate("low", "min", "v"), Aggregate("high", "max", "v")]
    rows = pa.record_batch([[1] * len(values), pa.array(values, pa.float64())], schema=inputs)
    state = AggregateState(inputs, ["k"], wanted, K)
    state.begin()
    state.update(rows)
    held = sorted((v for v in values if v is not None), key=lambda v: (v != v, v))
    [row] = state.rows().to_pylist()
    expected = (held[0], held[-1]) if held else (None, None)
    assert [repr(row["low"]), repr(row["high"])] == [repr(v) for v in expected]


@pytest.mark.parametrize("value", [2**53 + 1, 2**63 - 1, -(2**63), -(2**53) - 1])
def test_a_mean_of_whole_numbers_that_no_double_is_rounds_them(value: int) -> None:
    inputs = pa.schema([("k", pa.string()), ("n", pa.int64())])
    rows = pa.RecordBatch.from_arrays([pa.array(["a", "b"]), pa.array([value, 3])], schema=inputs)
    state = AggregateState(inputs, ["k"], [Aggregate("mean", "avg", "n")], K)
    state.begin()
    state.merge(combined(rows, ["k"], [Aggregate("mean", "avg", "n")]))
    assert state.rows().to_pylist() == [{"k": "a", "mean": float(value)}, {"k": "b", "mean": 3.0}]


@pytest.mark.parametrize("values", [[(1 << 63) - 1, 1], [-(1 << 63), -1], [1, (1 << 63) - 1]])
def test_a_sum_that_overflows_is_an_error_and_can_be_undone(values: list[int]) -> None:
    inputs = pa.schema([("k", pa.string()), ("v", pa.int64())])
    state = AggregateState(inputs, ["k"], [Aggregate("s", "sum", "v")], K)
    state.begin()
    state.update(pa.record_batch([["good", "bad"], [1, values[0]]], schema=inputs))
    state.commit()
    before = state.base().data
    with pytest.raises(AggregateOverflowError, match="sum s of key bad") as caught:
        state.update(pa.record_batch([["good", "bad"], [1, values[1]]], schema=inputs))
    assert caught.value.group == int(key_groups(hash_keys([pa.array(["bad"])]), K)[0])
    assert pickle.loads(pickle.dumps(caught.value)).group == caught.value.group
    assert not state.broken
    state.rollback()
    assert state.base().data == before


def test_sums_up_to_the_limit_are_exact() -> None:
    inputs = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    state = AggregateState(inputs, ["k"], [Aggregate("s", "sum", "v")], K)
    state.begin()
    most = (1 << 63) - 1
    state.update(pa.record_batch([[1] * 4, [most, -most, -most, -1]], schema=inputs))
    assert state.rows().to_pylist() == [{"k": 1, "s": -(1 << 63)}]


@pytest.mark.parametrize(
    ("aggregate", "message"),
    [
        (Aggregate("a", "median", "n"), "median cannot be taken of column n of type int64"),
        (Aggregate("a", "sum", "word"), "sum cannot be taken of column word of type string"),
        (Aggregate("a", "avg", "word"), "avg cannot be taken"),
        (Aggregate("a", "sum"), "is of column None, which its input has not"),
        (Aggregate("a", "count", "nope"), "column 'nope', which its input has not; it has word"),
    ],
)
def test_aggregates_that_cannot_be_are_refused(aggregate: Aggregate, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        AggregateState(INPUTS, KEYS, [aggregate], K)


def test_a_sum_over_a_decimal_says_how_to_make_it_a_number() -> None:
    inputs = pa.schema([("k", pa.int64()), ("v", pa.decimal128(9, 2))])
    with pytest.raises(TopologyError, match=r"CAST\(\.\.\. AS double\) AS v"):
        AggregateState(inputs, ["k"], [Aggregate("s", "sum", "v")], K)


def test_keys_that_cannot_be_are_refused() -> None:
    inputs = pa.schema([("tags", pa.list_(pa.string()))])
    with pytest.raises(KeyTypeError, match="key column tags has type list"):
        AggregateState(inputs, ["tags"], [Aggregate("n", "count")], K)


def test_stored_totals_of_other_columns_are_refused() -> None:
    state = make()
    state.begin()
    state.update(batch([("a", 1, 2, 3.0, "t")]))
    other = AggregateState(INPUTS, KEYS, AGGREGATES[:2], K)
    with pytest.raises(StateSchemaError, match=r"stored totals have columns .*total.*--fresh"):
        other.apply(blobs.read(state.base().data))


def test_a_change_that_is_interrupted_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    state = make()
    state.begin()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(state._accumulators[2], "merge", stop)
    with pytest.raises(KeyboardInterrupt):
        state.update(batch([("a", 1, 2, 3.0, "t")]))
    assert state.broken
