"""The index behind the chunks of a large state object.

An object that is large is cut at the borders of key groups into *chunks*, each an Arrow record
batch of the same stream, so that some of its groups can be read without the rest::

    schema | chunk | chunk | ... | index (JSON) | its length (4 bytes) | "MRix"

The index has the sizes and digests of the schema and of each chunk, and the groups in them. The
record has the digest of the index, so that a part can be checked as well as the whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import xxhash

from millrace.state.errors import BlobError
from millrace.state.keyed.keybytes import Array

CHUNK_BYTES = 128 << 10
"""Rows of less than this in memory are no chunk of their own."""

MAX_CHUNKS = 256

_MAGIC = b"MRix"
FOOT_BYTES = 4 + len(_MAGIC)
"""Of a footer, behind the text of the index."""

Span = tuple[int, int]
"""A key group and its number of rows."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes ``start`` to ``start + size`` of an object, and the spans of rows in them."""

    start: int
    size: int
    digest: str
    spans: tuple[Span, ...]

    def is_in(self, data: memoryview) -> bool:
        """Whether these are its bytes."""
        return len(data) == self.size and digest_of(data) == self.digest

    def check(self, data: memoryview) -> None:
        """Raises ``BlobError`` unless these are its bytes."""
        if not self.is_in(data):
            raise BlobError(
                f"{len(data)} bytes of a state object have digest {digest_of(data)}, its index "
                f"says {self.size} bytes and {self.digest}: it was damaged or replaced; restore it "
                "from another copy"
            )


@dataclass(frozen=True, slots=True)
class ChunkIndex:
    """What an object consists of; ``schema`` is its first chunk, without rows."""

    schema: Chunk
    chunks: tuple[Chunk, ...]

    def having(self, groups: int) -> list[Chunk]:
        """The chunks with rows of the key groups in a mask."""
        return [p for p in self.chunks if any(groups >> group & 1 for group, _ in p.spans)]


def digest_of(data: bytes | memoryview) -> str:
    """128-bit XXH3 in hex: notices damage, not malice."""
    return xxhash.xxh3_128_hexdigest(data)


def cuts(starts: Array, size_bytes: int) -> list[int]:
    """Where rows sorted by key group are cut into chunks: 0, rising row numbers, their number.

    ``starts`` (int64, K + 1) holds the first row of each group and the number of rows, which take
    ``size_bytes`` in memory.
    """
    rows = int(starts[-1])
    most = min(size_bytes // CHUNK_BYTES, MAX_CHUNKS)
    if most < 2:
        return [0, rows]
    borders = np.unique(starts)
    found = [0]
    for border in borders.tolist():
        if border - found[-1] >= rows / most:
            found.append(border)
    found[-1] = rows
    return found if len(found) > 1 else [0, rows]


def footer(data: memoryview, ends: Sequence[int], spans: Sequence[Sequence[Span]]) -> bytes:
    """The index of a stream with its end, to be put behind it.

    ``ends`` are those of the schema and of each chunk, ``spans`` the groups in each chunk.
    """
    chunks = []
    for (start, end), held in zip(pairwise(ends), spans, strict=True):
        text = " ".join(f"{group}:{rows}" for group, rows in held)
        chunks.append([end - start, digest_of(data[start:end]), text])
    schema = [ends[0], digest_of(data[: ends[0]])]
    told = {"schema": schema, "chunks": chunks}
    index = json.dumps(told, separators=(",", ":")).encode()
    return index + len(index).to_bytes(4, "little") + _MAGIC


def footer_size(tail: bytes | memoryview) -> int:
    """Size of the footer of an object that ends so; 0 where it has none."""
    if len(tail) < FOOT_BYTES or tail[-len(_MAGIC) :] != _MAGIC:
        return 0
    return int.from_bytes(tail[-FOOT_BYTES : -len(_MAGIC)], "little") + FOOT_BYTES


def read_index(tail: bytes | memoryview, size_bytes: int) -> tuple[ChunkIndex, str] | None:
    """The index of an object of this size that ends so, and its digest; ``None`` where it has
    none, or one that does not fit."""
    size = footer_size(tail)
    if not FOOT_BYTES < size <= len(tail):
        return None
    text = bytes(tail[-size:-FOOT_BYTES])
    try:
        told = json.loads(text)
        schema = Chunk(0, int(told["schema"][0]), str(told["schema"][1]), ())
        chunks = tuple(_placed(schema.size, told["chunks"]))
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    if not chunks or chunks[-1].start + chunks[-1].size + size != size_bytes:
        return None
    return ChunkIndex(schema, chunks), digest_of(text)


def _placed(at: int, told: Sequence[Sequence[str]]) -> Iterator[Chunk]:
    for size, digest, spans in told:
        pairs = (span.split(":") for span in spans.split())
        yield Chunk(at, int(size), str(digest), tuple((int(g), int(n)) for g, n in pairs))
        at += int(size)
