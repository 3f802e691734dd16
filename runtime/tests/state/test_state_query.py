"""What is read from state objects alone equals what the processors hold."""

from __future__ import annotations

import datetime as dt
import math
import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.protocol.types import Segment
from millrace.sinks.values import as_text
from millrace.state.errors import BlobError
from millrace.state.keyed import query
from millrace.state.keyed.aggregates import Aggregate
from millrace.state.keyed.aggregatestate import AggregateState
from millrace.state.keyed.cache import StateCache, StateKey
from millrace.state.keyed.columnstate import ColumnState
from millrace.state.keyed.dictstate import DictState
from millrace.state.keyed.loading import Extent

K = 8
KEYS = pa.schema([("user", pa.string()), ("day", pa.date32())])
VALUES = pa.schema([("n", pa.int64())])
DAYS = [None, dt.date(2024, 2, 29), dt.date(2025, 1, 1)]
AGGREGATES = (
    Aggregate("rows", "count"),
    Aggregate("total", "sum", "n"),
    Aggregate("mean", "avg", "n"),
)

Key = tuple[str | None, dt.date | None]
KEY = st.tuples(st.none() | st.text("ab", max_size=2), st.sampled_from(DAYS))
WINDOW = st.dictionaries(KEY, st.none() | st.integers(-9, 9), max_size=6)
HISTORY = st.lists(st.tuples(WINDOW, st.none() | st.booleans()), max_size=7)
MASKS = (0b01010101, 0b10101010)


class Chains:
    """The chain of a processor on two shards, written through the cache as tasks write it."""

    def __init__(self, make: Any) -> None:
        self.objects: dict[str, bytes] = {}
        self.chain: tuple[Segment, ...] = ()
        self._make = make
        self._cache = StateCache()

    def window(self, number: int, change: Any, compact: bool | None) -> None:
        written = []
        for mask in MASKS:
            key = StateKey("uid", "p", mask)
            opened = self._cache.open(key, self.chain, self._make, self.fetch)
            change(opened.state, mask)
            found = opened.write(f"{number}/{mask}", number, compact=compact)
            for segment, data in found:
                self.objects[segment.name] = data
                written.append(segment)
        self.chain += tuple(written)

    def fetch(self, parts: Sequence[Extent]) -> list[bytes]:
        return [part.of(self.objects[part.segment.name]) for part in parts]


def columns(keys: Sequence[Key]) -> list[pa.Array]:
    parts = list(zip(*keys, strict=True)) or [(), ()]
    return [pa.array(part, field.type) for part, field in zip(parts, KEYS, strict=True)]


def mine(keys: Sequence[Key], mask: int) -> list[Key]:
    return [key for key in keys if mask >> query.group_of(columns([key]), K) & 1]


@pytest.mark.parametrize("form", [DictState, ColumnState])
@settings(deadline=None)
@given(history=HISTORY)
def test_dicts_and_columns_are_read_as_they_were_left(form: Any, history: list[Any]) -> None:
    chains = Chains(lambda: form(KEYS, VALUES, K))
    held: dict[Key, int] = {}
    for number, (window, compact) in enumerate(history, start=1):

        def change(state: DictState | ColumnState, mask: int, window: Any = window) -> None:
            keys = mine(list(window), mask)
            if isinstance(state, ColumnState):
                values = pa.record_batch(
                    [pa.array([window[key] for key in keys], pa.int64())], ["n"]
                )
                state.write(state.find(columns(keys)), state.converted(values))
                return
            for key, row in zip(keys, state.find(columns(keys)).tolist(), strict=True):
                state.values[row]["n"] = window[key]

        chains.window(number, change, compact)
        held |= window
        held = {key: n for key, n in held.items() if n is not None}
    rows = query.read_state(chains.chain, (1 << K) - 1, 2, chains.fetch)
    found = {(row["user"], row["day"]): row["n"] for row in rows.to_pylist()}
    assert found == held
    assert rows.num_rows == len(held)
    for key in [*held, ("nobody", None)]:
        wanted = columns([key])
        mask = 1 << query.group_of(wanted, K)
        one = query.pick(query.read_state(chains.chain, mask, 2, chains.fetch), wanted)
        assert [row["n"] for row in one.to_pylist()] == [held[k] for k in [key] if k in held]


@settings(deadline=None)
@given(HISTORY)
def test_totals_are_read_as_they_come_out(history: list[Any]) -> None:
    inputs = pa.schema([*KEYS, pa.field("n", pa.int64())])
    chains = Chains(lambda: AggregateState(inputs, KEYS.names, AGGREGATES, K))
    fed: dict[Key, list[int | None]] = {}
    for number, (window, compact) in enumerate(history, start=1):

        def change(state: AggregateState, mask: int, window: Any = window) -> None:
            keys = mine(list(window), mask)
            values = pa.array([window[key] for key in keys], pa.int64())
            state.update(pa.RecordBatch.from_arrays([*columns(keys), values], schema=inputs))

        chains.window(number, change, compact)
        for key, n in window.items():
            fed.setdefault(key, []).append(n)
    rows = query.read_state(chains.chain, (1 << K) - 1, 2, chains.fetch)
    found = {
        (row["user"], row["day"]): (row["rows"], row["total"], row["mean"])
        for row in query.results(rows, AGGREGATES).to_pylist()
    }
    assert found == {key: expected(values) for key, values in fed.items()}


def expected(values: list[int | None]) -> tuple[int, int | None, float | None]:
    there = [value for value in values if value is not None]
    total = sum(there) if there else None
    return len(values), total, None if total is None else total / len(there)


def test_rows_come_in_the_order_of_their_keys() -> None:
    chains = Chains(lambda: DictState(KEYS, VALUES, K))
    keys: list[Key] = [("b", DAYS[1]), ("a", DAYS[2]), ("a", DAYS[1]), ("c", None)]

    def change(state: DictState, mask: int) -> None:
        some = mine(keys, mask)
        for row in state.find(columns(some)).tolist():
            state.values[row]["n"] = 1

    chains.window(1, change, None)
    rows = query.read_state(chains.chain, (1 << K) - 1, 2, chains.fetch)
    order = [(row["user"], row["day"]) for row in rows.to_pylist()]
    assert order == [("a", DAYS[1]), ("a", DAYS[2]), ("b", DAYS[1]), ("c", None)]


def test_a_damaged_object_is_noticed() -> None:
    chains = Chains(lambda: DictState(KEYS, VALUES, K))

    def change(state: DictState, mask: int) -> None:
        for row in state.find(columns(mine([("a", None)], mask))).tolist():
            state.values[row]["n"] = 1

    chains.window(1, change, None)
    (name,) = (s.name for s in chains.chain if s.rows)
    chains.objects[name] = chains.objects[name][:-9] + b"x" * 9
    with pytest.raises(BlobError, match="damaged or replaced"):
        query.read_state(chains.chain, (1 << K) - 1, 2, chains.fetch)


def test_a_key_that_is_not_a_number_is_found() -> None:
    column = pa.array([1.5, math.nan, None, 0.0])
    rows = pa.RecordBatch.from_arrays([column, pa.array([1, 2, 3, 4])], names=["x", "n"])
    for text, n in (("1.5", 1), ("nan", 2), ("0", 4)):
        key = query.parse_key([text], [pa.field("x", pa.float64())])
        assert query.pick(rows, key).column("n").to_pylist() == [n]


def test_a_key_is_given_as_text() -> None:
    fields = [pa.field("user", pa.string()), pa.field("day", pa.date32())]
    (user, day) = query.parse_key(["a", "2024-02-29"], fields)
    assert (user[0].as_py(), day[0].as_py()) == ("a", DAYS[1])
    with pytest.raises(query.KeyTextError, match="key column n: 'x' is no value of type int64"):
        query.parse_key(["x"], [pa.field("n", pa.int64())])
    with pytest.raises(query.KeyTextError, match="has 2 columns, 1 values were given"):
        query.parse_key(["a"], fields)


def test_a_key_of_bytes_is_given_as_it_is_shown() -> None:
    field = pa.field("id", pa.binary())
    keys = pa.array([b"\xff\x00a", b"a", b""])
    for shown, key in zip(as_text(keys).to_pylist(), keys.to_pylist(), strict=True):
        assert query.parse_key([shown], [field])[0].to_pylist() == [key]
    for text in ("a", "YQ", "YQ= =", "ä", os.fsdecode(b"\xff\x00a")):
        with pytest.raises(query.KeyTextError, match=r"key column id: .* in base64"):
            query.parse_key([text], [field])


def test_bytes_that_are_no_text_are_no_other_key() -> None:
    given = os.fsdecode(b"\xff\x00a")
    for kind in (pa.string(), pa.int64()):
        with pytest.raises(query.KeyTextError, match=r"'\\udcff.*' is no value of type"):
            query.parse_key([given], [pa.field("id", kind)])
