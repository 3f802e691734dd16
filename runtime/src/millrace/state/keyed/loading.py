"""State objects read as far as they are needed: of a large one only the chunks with the key groups
that are asked for.

Up to three round trips, whatever the number of objects: their ends with the indexes (and small
objects as a whole), longer indexes, and the chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from millrace.errors import NewerFormatError
from millrace.protocol.types import Segment
from millrace.state.errors import BlobError
from millrace.state.keyed import blobs, chunks
from millrace.state.keyed.chain import Link
from millrace.state.keyed.chunks import Chunk, ChunkIndex, digest_of

WHOLE_BYTES = 64 << 10
"""Objects up to this size are read as a whole."""

_TAIL_BYTES = 16 << 10

_HEAD_BYTES = 4 << 10
"""What the schema of most objects fits in."""


@dataclass(frozen=True, slots=True)
class Extent:
    """``size`` bytes of a segment's object from ``start`` on; None: all that follow. ``chunks`` are
    what they consist of, where that is known."""

    segment: Segment
    start: int = 0
    size: int | None = None
    chunks: tuple[Chunk, ...] = ()

    def of(self, data: bytes) -> bytes:
        """The part, from the whole."""
        return data[self.start : None if self.size is None else self.start + self.size]

    def is_intact(self, data: bytes) -> bool:
        """Whether these are its bytes, as far as a digest of them is known."""
        if self.chunks:
            view = memoryview(data)
            return all(
                chunk.is_in(view[chunk.start - self.start :][: chunk.size]) for chunk in self.chunks
            )
        whole = self.start == 0 and self.size is None
        return not (whole and self.segment.digest) or digest_of(data) == self.segment.digest


Load = Callable[[Sequence[Extent]], Sequence[bytes]]
"""Reads parts of objects, in their order, in as few round trips as it can."""


def read_links(
    links: Sequence[Link], load: Load, kind: str | None = None
) -> Iterator[list[pa.RecordBatch]]:
    """The rows of each link's key groups, in the order of the links.

    Raises ``BlobError`` for a damaged object or one of another kind than ``kind``, and what
    ``load`` raises.
    """
    indexes = _indexes(links, load)
    wanted = [_runs(link, index) for link, index in zip(links, indexes, strict=True)]
    data = iter(load([part for parts in wanted for part in parts]))
    for link, index, parts in zip(links, indexes, wanted, strict=True):
        held = [next(data) for _ in parts]
        if index is None:
            yield blobs.read_batches(held[0], link.groups, link.segment.digest, kind)
        else:
            chosen = index.having(link.groups)
            yield blobs.read_chunks(index.schema, chosen, _cut(parts, held), link.groups, kind)


def read_schemas(
    segments: Sequence[Segment], load: Load, kind: str | None = None
) -> Iterator[pa.Schema]:
    """The schema of each object, from its first bytes, or from all of it where they are not what
    the segment says of them. Raises as ``read_links``."""
    sizes = [_HEAD_BYTES] * len(segments)
    heads: list[bytes] = [b""] * len(segments)
    short = list(range(len(segments)))
    while short:
        asked = [_head(segments[at], sizes[at]) for at in short]
        for at, head in zip(short, load(asked), strict=True):
            heads[at] = head
        needed = {at: blobs.schema_bytes(heads[at]) for at in short}
        short = [at for at in short if sizes[at] < needed[at]]
        for at in short:
            sizes[at] = needed[at]
    pairs = list(zip(segments, heads, strict=True))
    doubtful = [segment for segment, head in pairs if not _is_head(segment, head)]
    wholes = dict(zip(doubtful, load([Extent(one) for one in doubtful]), strict=True))
    for segment, whole in wholes.items():
        blobs.read_batches(whole, digest=segment.digest, kind=kind)
    return (blobs.read_schema(wholes.get(segment, head), kind) for segment, head in pairs)


def _is_head(segment: Segment, head: bytes) -> bool:
    """Whether these are the first bytes of an object, as far as its segment tells. They have no
    digest of their own, so nobody else can say which copy of them is damaged."""
    try:
        schema = blobs.read_schema(head)
    except (BlobError, NewerFormatError):
        return False
    fields = [field for field in schema if field != blobs.UPDATED]
    found = blobs.digest_of_columns(pa.schema(fields), blobs.kind_of(schema))
    return segment.columns in ("", found)


def _head(segment: Segment, size: int) -> Extent:
    return Extent(segment, 0, min(size, segment.size_bytes) or size)


def _indexes(links: Sequence[Link], load: Load) -> list[ChunkIndex | None]:
    """The index of each object of which a part is enough; ``None``: it is to be read whole."""
    found: list[ChunkIndex | None] = [None] * len(links)
    tails = {at: _TAIL_BYTES for at, link in enumerate(links) if _is_part(link)}
    while tails:
        asked = [_tail(links[at].segment, size) for at, size in tails.items()]
        longer: dict[int, int] = {}
        for at, tail in zip(tails, load(asked), strict=True):
            segment = links[at].segment
            size = chunks.footer_size(tail)
            if tails[at] < size <= segment.size_bytes:
                longer[at] = size
                continue
            read = chunks.read_index(tail, segment.size_bytes)
            if read is not None and read[1] == segment.index:
                found[at] = read[0]
        tails = longer
    return found


def _is_part(link: Link) -> bool:
    segment = link.segment
    large = segment.size_bytes > WHOLE_BYTES
    return large and segment.index != "" and bool(segment.groups & ~link.groups)


def _tail(segment: Segment, size: int) -> Extent:
    return Extent(segment, max(segment.size_bytes - size, 0), size)


def _runs(link: Link, index: ChunkIndex | None) -> list[Extent]:
    """What is to be read of an object: neighbouring chunks as one."""
    if index is None:
        return [Extent(link.segment)]
    runs: list[list[Chunk]] = []
    for chunk in (index.schema, *index.having(link.groups)):
        if runs and runs[-1][-1].start + runs[-1][-1].size == chunk.start:
            runs[-1].append(chunk)
        else:
            runs.append([chunk])
    return [
        Extent(link.segment, run[0].start, sum(chunk.size for chunk in run), tuple(run))
        for run in runs
    ]


def _cut(parts: Sequence[Extent], held: Sequence[bytes]) -> Callable[[Chunk], memoryview]:
    """Function that finds the bytes of a chunk in those of the parts."""

    def bytes_of(chunk: Chunk) -> memoryview:
        for part, data in zip(parts, held, strict=True):
            at = chunk.start - part.start
            if 0 <= at < len(data):
                return memoryview(data)[at : at + chunk.size]
        raise BlobError(f"bytes {chunk.start} and following of a state object were not read")

    return bytes_of
