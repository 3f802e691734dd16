"""Columns of the user's may have any name, also those that objects use themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from millrace.protocol.types import Segment
from millrace.state.keyed import blobs, query
from millrace.state.keyed.aggregates import Aggregate
from millrace.state.keyed.aggregatestate import AggregateState
from millrace.state.keyed.blobs import UPDATED, Blob
from millrace.state.keyed.dictstate import DictState
from millrace.state.keyed.migrations import Migration, Migrations
from millrace.state.keyed.typedstate import DELETED

K = 8
ALL = (1 << K) - 1
OWN = (UPDATED.name, DELETED)
COLUMNS = [("n", pa.int64()), *((name, pa.int64()) for name in OWN)]
ORDERS = [COLUMNS, COLUMNS[::-1], COLUMNS[:2], COLUMNS[2:], [("n", pa.int64())]]
TTLS = [0, 1_000]


def dicts(key: str, columns: list[tuple[str, pa.DataType]], ttl_ms: int, **more: Any) -> DictState:
    return DictState(pa.schema([(key, pa.string())]), pa.schema(columns), K, ttl_ms, **more)


def totals(key: str, name: str, ttl_ms: int) -> AggregateState:
    inputs = pa.schema([(key, pa.string()), ("value", pa.int64())])
    return AggregateState(inputs, [key], [Aggregate(name, "max", "value")], K, ttl_ms)


def as_format_4(blob: Blob) -> bytes:
    """The object as the release before wrote it: it knew its own columns by their names."""
    batch = blobs.read(blob.data)
    metadata = dict(batch.schema.metadata)
    del metadata[b"millrace.updated"]
    schema = batch.schema.with_metadata({**metadata, b"millrace.format": b"4"})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
    return bytes(sink.getvalue())


def read_alone(data: Sequence[bytes]) -> list[dict[str, Any]]:
    """As ``millrace state`` shows it."""
    chain = [Segment(str(at), 1, ALL, False, 1, len(one)) for at, one in enumerate(data)]
    rows = query.read_state(
        chain, ALL, 1, lambda parts: [part.of(data[int(part.segment.name)]) for part in parts]
    )
    return rows.to_pylist()


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("ttl_ms", TTLS)
@pytest.mark.parametrize("columns", ORDERS)
@pytest.mark.parametrize("key", ["k", *OWN])
def test_dicts_come_back_as_they_were(key, columns, ttl_ms, old):
    columns = [column for column in columns if column[0] != key]
    if not columns:
        return
    names = [name for name, _ in columns]
    state = dicts(key, columns, ttl_ms)
    state.begin(1_000)
    for at, row in enumerate(state.find([pa.array(["a", "b"])]).tolist()):
        before = dict(state.values[row])
        state.values[row].update({name: at + place for place, name in enumerate(names, 1)})
        state.updated(row, before)
    first = state.delta()
    state.commit()
    state.begin(1_500)
    row = int(state.find([pa.array(["b"])])[0])
    state.values[row] = dict.fromkeys(names)
    second = state.delta()
    state.commit()
    base = state.base()
    held = {name: place for place, name in enumerate(names, 1)}
    for chain in ([first, second], [base]):
        data = [as_format_4(one) if old else one.data for one in chain]
        again = dicts(key, columns, ttl_ms)
        again.begin(1_900)
        for one in data:
            again.apply(blobs.read(one, kind="dict"))
        again.begin(1_900)
        found = again.find([pa.array(["a", "b"])]).tolist()
        assert [again.values[row] for row in found] == [held, dict.fromkeys(names)]
        assert read_alone(data) == [{key: "a", **held}]
        if ttl_ms:
            again.begin(2_000)
            assert again.values[int(again.find([pa.array(["a"])])[0])] == dict.fromkeys(names)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("ttl_ms", TTLS)
@pytest.mark.parametrize("name", ["n", *OWN])
@pytest.mark.parametrize("key", ["k", *OWN])
def test_totals_come_back_as_they_were(key, name, ttl_ms, old):
    if key == name:
        return
    state = totals(key, name, ttl_ms)
    state.begin(1_000)
    rows = pa.record_batch([pa.array(["a"]), pa.array([7])], schema=state_inputs(key))
    state.update(rows)
    for blob in (state.delta(), state.base()):
        data = as_format_4(blob) if old else blob.data
        again = totals(key, name, ttl_ms)
        again.begin(1_900)
        again.apply(blobs.read(data, kind="aggregate"))
        assert again.rows().to_pylist() == [{key: "a", name: 7}]
        if not old or name != UPDATED.name or ttl_ms:
            assert read_alone([data]) == [{key: "a", name: 7}]
        assert len(again.live()) == 1
        again.begin(2_000)
        assert len(again.live()) == (0 if ttl_ms else 1)


def state_inputs(key: str) -> pa.Schema:
    return pa.schema([(key, pa.string()), ("value", pa.int64())])


@pytest.mark.parametrize("ttl_ms", TTLS)
def test_such_columns_can_be_migrated(ttl_ms):
    state = dicts("k", COLUMNS, ttl_ms)
    state.begin(1_000)
    row = int(state.find([pa.array(["a"])])[0])
    state.values[row].update({UPDATED.name: 5, DELETED: 6})
    fields = tuple(pa.field(*column) for column in COLUMNS)

    def change(held: dict[str, Any]) -> dict[str, Any]:
        return {"sum": held[UPDATED.name] + held[DELETED]}

    known = Migrations("p", (Migration(fields, change),))
    today = dicts("k", [("sum", pa.int64())], ttl_ms, migrations=known)
    today.begin(1_100)
    today.apply(blobs.read(state.base().data))
    today.begin(1_100)
    assert today.values[int(today.find([pa.array(["a"])])[0])] == {"sum": 11}
