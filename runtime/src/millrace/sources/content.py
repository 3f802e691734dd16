"""Digest of a growing file's beginning, carried on without reading the beginning again.

The file is cut in blocks of 256 KiB from its start. ``chain`` runs over the blocks before the one
that holds a position's last byte, ``digest`` is over the chain and that block up to the position.
Moving on reads at most one block twice, and reading it twice is what proves that the file still
is the one whose beginning was read.

Source: a hash chain over fixed blocks (Merkle-Damgard with XXH3-128 as the step), so the digest
does not depend on how a file was cut into windows. XXH3 detects accidents, not forgery.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import xxhash

BLOCK_BYTES = 256 << 10
CHAIN_START = bytes(16)


@dataclass(frozen=True, slots=True)
class Mark:
    """Digest of the first ``position`` bytes of a file; ``chain`` is empty where it is unknown.

    ``open``: the last line before ``position`` had no newline when it was read. ``head`` is the
    digest of the first block where that is whole and known; within it ``digest`` says the same.

    ``rows``: of a Parquet file, whose ``position`` counts rows. Then ``digest`` is of size and
    footer, ``head`` of the bytes of all row groups up to the one of the last row, ``chain`` theirs.
    """

    position: int = 0
    digest: bytes = b""
    chain: bytes = CHAIN_START
    open: bool = False
    head: bytes = b""
    rows: bool = False

    @property
    def beginning(self) -> tuple[int, bytes]:
        """Length and digest of the part of the first block that was read; no digest: unknown.

        Of a Parquet file any number and the digest of size and footer.
        """
        if self.rows or self.position <= BLOCK_BYTES:
            return self.position, self.digest
        return BLOCK_BYTES, self.head

    @property
    def base(self) -> int:
        """Start of the block that holds the last byte before ``position``."""
        return base_of(self.position)

    def fits(self, tail: bytes | memoryview) -> bool:
        """Whether ``tail`` (the bytes from ``base`` to ``position``) are those that were read."""
        return self.position == 0 or _digest(self.chain, tail) == self.digest


START = Mark()
"""The beginning of any file."""


def base_of(position: int) -> int:
    """Start of the block that holds the last byte before a position, so the tail is never empty."""
    return max(0, position - 1) // BLOCK_BYTES * BLOCK_BYTES


def advance(chain: bytes, block: bytes | memoryview) -> bytes:
    """The chain behind one more whole block."""
    return xxhash.xxh3_128_digest(chain + xxhash.xxh3_128_digest(block))


def mark_at(position: int, chain: bytes, tail: bytes | memoryview, head: bytes = b"") -> Mark:
    """The mark at ``position`` from the chain up to its block and the block's bytes before it."""
    return Mark(position, _digest(chain, tail), chain, head=head)


def read_mark(descriptor: int, position: int, start: Mark = START) -> Mark | None:
    """The mark at ``position``, from all bytes before it; ``None`` where the file is shorter.

    ``start`` is a mark before it, whose chain is carried on.
    """
    chain, head = start.chain, start.head
    base = base_of(position)
    for at in range(start.base, base, BLOCK_BYTES):
        block = os.pread(descriptor, BLOCK_BYTES, at)
        if len(block) < BLOCK_BYTES:
            return None
        if at == 0:
            head = _digest(CHAIN_START, block)
        chain = advance(chain, block)
    tail = os.pread(descriptor, position - base, base)
    return mark_at(position, chain, tail, head) if len(tail) == position - base else None


def read_head(descriptor: int) -> bytes:
    """Digest of the first block; empty where the file has no whole one."""
    block = os.pread(descriptor, BLOCK_BYTES, 0)
    return _digest(CHAIN_START, block) if len(block) == BLOCK_BYTES else b""


def beginnings(descriptor: int, lengths: Iterable[int]) -> dict[int, bytes]:
    """Digests of a file's beginnings of some lengths, none beyond the first block.

    Lengths that the file does not have are left out.
    """
    block = memoryview(os.pread(descriptor, BLOCK_BYTES, 0))
    found: dict[int, bytes] = {}
    running, done = xxhash.xxh3_128(), 0
    for length in sorted(set(lengths)):
        if length > len(block):
            break
        running.update(block[done:length])
        done = length
        found[length] = xxhash.xxh3_64_digest(CHAIN_START + running.digest())
    return found


def begins_with(descriptor: int, size: int, marks: Sequence[tuple[Mark, bool]]) -> list[bool]:
    """Whether a file of ``size`` bytes begins with what each mark was read from.

    The first block and the last one before the mark are compared; with True beside a mark, or
    where its chain is unknown, every byte.
    """
    lengths = (mark.beginning[0] for mark, _ in marks if mark.beginning[1])
    heads = beginnings(descriptor, lengths)
    return [
        mark.position <= size and _begins(descriptor, mark, heads, whole) for mark, whole in marks
    ]


def _begins(descriptor: int, mark: Mark, heads: dict[int, bytes], whole: bool) -> bool:
    length, head = mark.beginning
    if head and heads.get(length) != head:
        return False
    if mark.position <= BLOCK_BYTES:
        return True
    if whole or not mark.chain:
        found = read_mark(descriptor, mark.position)
        return found is not None and found.digest == mark.digest
    tail = os.pread(descriptor, mark.position - mark.base, mark.base)
    return len(tail) == mark.position - mark.base and mark.fits(tail)


def short_hash(data: bytes | memoryview) -> int:
    """32-bit hash of the bytes of one indexed block."""
    return int(xxhash.xxh3_64_intdigest(data)) & 0xFFFFFFFF


def _digest(chain: bytes, tail: bytes | memoryview) -> bytes:
    return xxhash.xxh3_64_digest(chain + xxhash.xxh3_128_digest(tail))
