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
from dataclasses import dataclass

import xxhash

BLOCK_BYTES = 256 << 10
CHAIN_START = bytes(16)


@dataclass(frozen=True, slots=True)
class Mark:
    """Digest of the first ``position`` bytes of a file; ``chain`` is empty where it is unknown.

    ``open``: the last line before ``position`` had no newline when it was read.
    """

    position: int = 0
    digest: bytes = b""
    chain: bytes = CHAIN_START
    open: bool = False

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


def mark_at(position: int, chain: bytes, tail: bytes | memoryview) -> Mark:
    """The mark at ``position`` from the chain up to its block and the block's bytes before it."""
    return Mark(position, _digest(chain, tail), chain)


def read_mark(descriptor: int, position: int) -> Mark | None:
    """The mark at ``position``, from all bytes before it; ``None`` where the file is shorter."""
    chain = CHAIN_START
    base = base_of(position)
    for at in range(0, base, BLOCK_BYTES):
        block = os.pread(descriptor, BLOCK_BYTES, at)
        if len(block) < BLOCK_BYTES:
            return None
        chain = advance(chain, block)
    tail = os.pread(descriptor, position - base, base)
    return mark_at(position, chain, tail) if len(tail) == position - base else None


def short_hash(data: bytes | memoryview) -> int:
    """32-bit hash of the bytes of one indexed block."""
    return int(xxhash.xxh3_64_intdigest(data)) & 0xFFFFFFFF


def _digest(chain: bytes, tail: bytes | memoryview) -> bytes:
    return xxhash.xxh3_64_digest(chain + xxhash.xxh3_128_digest(tail))
