"""Envelopes: what is packed comes out again, and damage is noticed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from millrace.engine.task import exchange, kernels
from millrace.engine.task.batch import ANCHORS, ID, ROOT
from millrace.engine.task.exchange import Check, EnvelopeError, Header, Parcel, Transport
from millrace.errors import NewerFormatError
from millrace.protocol.types import TaskId


def a_table(rows=5):
    ids = np.arange(1, rows + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return pa.table(
        {
            "word": pa.array([f"w{i}" for i in range(rows)]).dictionary_encode(),
            ROOT: pa.array(np.arange(rows, dtype=np.uint32)),
            ID: pa.array(ids),
        }
    )


def a_parcel(writer=0, reader=0, table=None):
    tables = {"split>counts": a_table() if table is None else table}
    checks = {edge: exchange.check_of(found) for edge, found in tables.items()}
    return Parcel(Header(TaskId(0, writer, 7), reader, checks), tables)


def carried(parcel):
    """Through the bytes and back."""
    return Transport().receive(e for _, e in Transport().send([parcel]))[0]


def test_a_parcel_survives_its_envelope():
    parcel = a_parcel()
    found = carried(parcel)
    assert found.header == parcel.header
    assert found.tables["split>counts"].to_pydict() == parcel.tables["split>counts"].to_pydict()
    exchange.check_envelopes([found], 1, 0, tracked=True)


def test_an_envelope_without_edges_counts_too():
    found = carried(Parcel(Header(TaskId(0, 0, 1), 0, {}), {}))
    exchange.check_envelopes([found], 1, 0, tracked=True)


def test_exactly_one_envelope_from_each_partition_is_taken():
    parcels = [carried(a_parcel(writer)) for writer in (0, 1)]
    exchange.check_envelopes(parcels, 2, 0, tracked=True)
    for wrong in (parcels[:1], [*parcels, parcels[0]], [parcels[0], parcels[0]]):
        with pytest.raises(EnvelopeError, match="expected one of each of 2"):
            exchange.check_envelopes(wrong, 2, 0, tracked=True)


def test_an_envelope_for_another_reader_is_refused():
    with pytest.raises(EnvelopeError, match="for partition 1"):
        exchange.check_envelopes([carried(a_parcel(reader=1))], 1, 0, tracked=True)


def test_what_the_content_lost_or_gained_shows():
    sent = a_parcel()
    table = sent.tables["split>counts"]
    altered = table.set_column(2, ID, pa.array(table.column(ID).to_numpy() ^ np.uint64(1)))
    changed = [
        table.slice(1),
        pa.concat_tables([table, table.slice(0, 1)]),
        pa.concat_tables([table, table.slice(0, 1), table.slice(0, 1)]),
        altered,
    ]
    for content in changed:
        damaged = carried(Parcel(sent.header, {"split>counts": content}))
        with pytest.raises(EnvelopeError, match=r"split>counts"):
            exchange.check_envelopes([damaged], 1, 0, tracked=True)
        exchange.check_envelopes([damaged], 1, 0, tracked=False)
    with pytest.raises(EnvelopeError):
        exchange.check_envelopes([Parcel(sent.header, {})], 1, 0, tracked=True)
    extra = Parcel(sent.header, {**sent.tables, "a>b": table})
    with pytest.raises(EnvelopeError, match="not sent"):
        exchange.check_envelopes([extra], 1, 0, tracked=True)


def test_damaged_bytes_are_no_envelope():
    whole = exchange.pack(a_parcel())
    for broken in (b"", whole[:10], whole[:-1], whole + b"x", b"x" + whole[1:]):
        with pytest.raises(EnvelopeError):
            exchange.unpack(broken)


def test_a_newer_envelope_is_refused():
    whole = bytearray(exchange.pack(a_parcel()))
    whole[6] = 99
    with pytest.raises(NewerFormatError, match="format 99"):
        exchange.unpack(bytes(whole))


def test_a_root_that_the_window_lacks_is_refused_before_it_is_used():
    exchange.check_roots(a_table(5), 5, "split>counts")
    with pytest.raises(EnvelopeError, match="roots"):
        exchange.check_roots(a_table(6), 5, "split>counts")


def test_an_anchor_that_the_window_lacks_is_refused_before_it_is_used():
    tree = kernels.WINDOW_TREE | 1
    anchors = pa.array([[0], [1, 4], [2, kernels.UNTRACKED], [tree, 3], [4]], pa.list_(pa.uint32()))
    table = a_table(5).append_column(ANCHORS, anchors)
    exchange.check_roots(table, 5, "split>counts")
    exchange.check_roots(table.slice(0, 1), 5, "split>counts")
    wrong = pa.array([[0], [1, 5], [2], [3], [4]], pa.list_(pa.uint32()))
    table = a_table(5).append_column(ANCHORS, wrong)
    with pytest.raises(EnvelopeError, match="roots"):
        exchange.check_roots(table, 5, "split>counts")


def test_lists_of_anchors_that_lie_elsewhere_are_refused_before_they_are_used():
    offsets = pa.array(np.array([0, 1, 900, 3, 4, 5], np.int32)).buffers()[1]
    roots = pa.array(np.arange(5, dtype=np.uint32))
    wild = pa.Array.from_buffers(pa.list_(pa.uint32()), 5, [None, offsets], children=[roots])
    with pytest.raises(EnvelopeError, match="damaged anchors"):
        exchange.check_roots(a_table(5).append_column(ANCHORS, wild), 5, "split>counts")


def test_the_check_covers_count_and_ids():
    assert exchange.check_of(a_table(0)) == Check(0, 0)
    twice = pa.concat_tables([a_table(3), a_table(3)])
    assert exchange.check_of(twice) == Check(6, 0)
