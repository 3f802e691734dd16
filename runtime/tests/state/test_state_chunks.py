"""Large objects are read by key group: exactly the rows that are wanted, and not the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.protocol.types import Segment
from millrace.state.errors import BlobError
from millrace.state.keyed import blobs, chunks, loading
from millrace.state.keyed.blobs import Blob
from millrace.state.keyed.chain import Link
from millrace.state.keyed.loading import Extent, read_links

K = 16
ALL = (1 << K) - 1
GROUPS = st.lists(st.integers(0, K - 1), min_size=1, max_size=60)
MASK = st.integers(0, ALL)


@pytest.fixture(scope="module", autouse=True)
def small_chunks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_BYTES", 32)
        patch.setattr(loading, "WHOLE_BYTES", 0)
        patch.setattr(loading, "_TAIL_BYTES", 300)
        yield


def written(groups: Sequence[int], kind: str = "kind") -> Blob:
    rows = pa.record_batch({"key": [f"k{n}" for n in range(len(groups))], "n": range(len(groups))})
    return blobs.write(rows, np.array(groups, np.int64), K, kind)


class Object:
    """One object behind a link to some of its groups; ``read`` is what was read of it."""

    def __init__(self, blob: Blob, groups: int, data: bytes | None = None) -> None:
        self.data = blob.data if data is None else data
        size_bytes = len(blob.data)
        segment = Segment("o", 1, ALL, True, blob.rows, size_bytes, blob.digest, blob.index)
        self.link = Link(segment, groups)
        self.read: list[tuple[int, int]] = []

    def load(self, parts: Sequence[Extent]) -> list[bytes]:
        found = [part.of(self.data) for part in parts]
        ends = zip(parts, found, strict=True)
        self.read += [(part.start, part.start + len(data)) for part, data in ends]
        return found

    def rows(self, kind: str | None = None) -> list[int]:
        [batches] = read_links([self.link], self.load, kind)
        return [n for batch in batches for n in batch.column("n").to_pylist()]


def expected(groups: Sequence[int], mask: int) -> list[int]:
    return [n for _, n in sorted((g, n) for n, g in enumerate(groups) if mask >> g & 1)]


@settings(deadline=None)  # the first call loads compiled code
@given(GROUPS, MASK)
def test_a_link_reads_exactly_its_groups(groups: list[int], mask: int) -> None:
    blob = written(groups)
    assert Object(blob, mask).rows("kind") == expected(groups, mask)
    assert blobs.read(blob.data, mask, blob.digest).column("n").to_pylist() == expected(
        groups, mask
    )
    assert blobs.read(blob.data, None, blob.digest, "kind").num_rows == len(groups)


def test_chunks_of_other_groups_stay_where_they_are() -> None:
    groups = [n % K for n in range(3000)]
    blob = written(groups)
    found = chunks.read_index(blob.data, len(blob.data))
    assert found is not None
    index, digest = found
    assert digest == blob.index
    assert [[g for g, _ in chunk.spans] for chunk in index.chunks] == [[g] for g in range(K)]
    one = Object(blob, 1 << 3 | 1 << 4 | 1 << 9)
    assert one.rows() == expected(groups, one.link.groups)
    ends = {
        g: (index.chunks[g].start, index.chunks[g].start + index.chunks[g].size) for g in (3, 4, 9)
    }
    *tails, schema, neighbours, alone = one.read
    assert schema == (0, index.schema.size)
    assert neighbours == (ends[3][0], ends[4][1])
    assert alone == ends[9]
    footer = len(blob.data) - chunks.footer_size(blob.data)
    assert all(start >= min(footer, len(blob.data) - 300) for start, _ in tails)


@settings(deadline=None)
@given(GROUPS, st.data())
def test_damage_is_noticed_wherever_it_is(groups: list[int], data: st.DataObject) -> None:
    blob = written(groups)
    at = data.draw(st.integers(0, len(blob.data) - 1))
    flipped = bytearray(blob.data)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    for damaged in (bytes(flipped), blob.data[:at], blob.data + b"\0", b""):
        with pytest.raises(BlobError, match="digest"):
            blobs.read(damaged, digest=blob.digest)


@settings(deadline=None)
@given(GROUPS, MASK, st.data())
def test_what_is_read_in_parts_is_right_or_an_error(
    groups: list[int], mask: int, data: st.DataObject
) -> None:
    blob = written(groups)
    at = data.draw(st.integers(0, len(blob.data) - 1))
    flipped = bytearray(blob.data)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    for damaged in (bytes(flipped), blob.data[:at]):
        one = Object(blob, mask, damaged)
        try:
            found = one.rows()
        except BlobError:
            continue
        assert found == expected(groups, mask)


def test_an_object_of_another_content_is_refused_by_its_index() -> None:
    mine, other = written([n % K for n in range(500)]), written([n % K for n in range(500, 0, -1)])
    assert len(mine.data) == len(other.data)
    with pytest.raises(BlobError, match="digest"):
        Object(mine, 1, other.data).rows()


def test_objects_of_earlier_releases_are_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [n % K for n in range(500)]
    monkeypatch.setattr(blobs, "FORMAT", 2)
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1 << 20)
    blob = written(groups)
    monkeypatch.undo()
    one = Object(blob, 1 << 5)
    assert one.rows() == expected(groups, 1 << 5)
    assert one.read == [(0, len(blob.data))]


def test_another_kind_is_refused_also_in_parts() -> None:
    blob = written([n % K for n in range(500)], "aggregate")
    with pytest.raises(BlobError, match=r"kind 'aggregate', not 'dict'"):
        Object(blob, 1).rows("dict")


def test_equal_content_has_equal_bytes() -> None:
    first, second = (written([5, 0, 5] * 99) for _ in "ab")
    assert (first.data, first.digest) == (second.data, second.digest)


def test_there_are_never_more_chunks_than_fit_an_index() -> None:
    starts = np.arange(4097, dtype=np.int64) * 10
    cut = chunks.cuts(starts, 1 << 40)
    assert len(cut) - 1 <= chunks.MAX_CHUNKS
    assert (cut[0], cut[-1]) == (0, 40960)
    assert set(cut) <= set(starts.tolist())
    assert cut == sorted(set(cut))
