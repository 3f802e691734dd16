from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.errors import NewerFormatError, ProtocolError
from millrace.state.keyed import blobs
from millrace.state.keyed.blobs import FORMAT

KEY_GROUPS = 16


def _rows(groups: list[int]) -> pa.RecordBatch:
    return pa.record_batch(
        {"key": [f"k{n}" for n in range(len(groups))], "n": list(range(len(groups)))}
    )


@settings(deadline=None)  # the first call loads compiled code
@given(st.lists(st.integers(0, KEY_GROUPS - 1), max_size=60), st.integers(0, (1 << 16) - 1))
def test_a_mask_reads_exactly_its_groups(groups: list[int], mask: int) -> None:
    blob = blobs.write(_rows(groups), np.array(groups, np.int64), KEY_GROUPS, "kind")
    assert blob.rows == len(groups)
    assert blob.groups == sum(1 << g for g in set(groups))
    read = blobs.read(blob.data, mask, blob.digest, "kind")
    read.validate(full=True)
    expected = sorted((g, n) for n, g in enumerate(groups) if mask >> g & 1)
    assert read.column("n").to_pylist() == [n for _, n in expected]
    assert blobs.read(blob.data).num_rows == len(groups)


@settings(deadline=None)  # the first call loads compiled code
@given(st.data())
def test_damage_is_noticed(data: st.DataObject) -> None:
    blob = blobs.write(_rows([3, 1, 2]), np.array([3, 1, 2]), KEY_GROUPS)
    at = data.draw(st.integers(0, len(blob.data) - 1))
    flipped = bytearray(blob.data)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    for damaged in (bytes(flipped), blob.data[:at], b""):
        with pytest.raises(blobs.BlobError, match="digest"):
            blobs.read(damaged, digest=blob.digest)


@pytest.mark.parametrize("data", [b"", b"rubbish", b"\xff" * 100])
def test_what_is_no_state_object_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match=f"{len(data)} bytes are no state object"):
        blobs.read(data)


def test_an_arrow_stream_of_somebody_else_is_refused() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _rows([1]).schema) as writer:
        writer.write_batch(_rows([1]))
    with pytest.raises(blobs.BlobError, match=r"millrace\.format"):
        blobs.read(sink.getvalue().to_pybytes())


def test_state_of_another_kind_is_refused() -> None:
    blob = blobs.write(_rows([1]), np.array([1]), KEY_GROUPS, "aggregate")
    with pytest.raises(blobs.BlobError, match=r"kind 'aggregate', not 'dict'.*--fresh"):
        blobs.read(blob.data, kind="dict")


def test_a_newer_format_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "FORMAT", FORMAT + 4)
    blob = blobs.write(_rows([1]), np.array([1]), KEY_GROUPS)
    monkeypatch.undo()
    with pytest.raises(NewerFormatError, match=f"format {FORMAT + 4}.*format {FORMAT}"):
        blobs.read(blob.data)


def test_equal_content_has_equal_bytes() -> None:
    first, second = (blobs.write(_rows([5, 0, 5]), np.array([5, 0, 5]), KEY_GROUPS) for _ in "ab")
    assert (first.data, first.digest) == (second.data, second.digest)


def test_large_objects_are_compressed_and_read_the_same() -> None:
    groups = [n % KEY_GROUPS for n in range(20_000)]
    blob = blobs.write(_rows(groups), np.array(groups), KEY_GROUPS)
    assert len(blob.data) < _rows(groups).nbytes / 2
    read = blobs.read(blob.data, 1 << 3, blob.digest)
    assert read.column("n").to_pylist() == list(range(3, 20_000, KEY_GROUPS))
