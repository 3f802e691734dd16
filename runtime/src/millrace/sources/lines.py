"""Records that are lines: finding their boundaries, and reading exactly counted runs of them.

Of a locator these are ``{"at": first byte, "skip": records, "n": [...], "b": [...], "h": [...]}``:
consecutive blocks of whole lines with their counts of records, sizes in bytes and hashes, of which
the first ``skip`` records are left out. So a run is cut at any record without looking at the
file, and whoever reads a run reads whole blocks, whose hashes and counts must be the planned ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from millrace.sources.content import (
    BLOCK_BYTES,
    Mark,
    advance,
    base_of,
    mark_at,
    read_head,
    short_hash,
)

MAX_RECORD_BYTES = 64 << 20
"""Longest line that is accepted."""

GROUP_BYTES = 2 << 20
GROUP_RECORDS = 1 << 17
"""About how much is decoded at once; more would not fit the processor's caches."""

_NEWLINE = 10
_RETURN = 13

Ints = npt.NDArray[np.int64]


BACK_OR_FRESH = (
    "records that were read cannot be read again from it. Put the file back as it was, or start "
    "over with --fresh; new data belongs at a file's end or in a new file"
)


class BadFileError(Exception):
    """A file that cannot be read as it should; says what is wrong with it and what to do."""

    def __init__(self, what: str, remedy: str = BACK_OR_FRESH) -> None:
        super().__init__(what)
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Index:
    """What a scan found: blocks of whole lines from byte ``at`` up to ``mark``.

    ``more``: it stopped at the limit; ``unterminated``: the last line has no newline.
    """

    mark: Mark
    count: int
    at: int = 0
    counts: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    hashes: tuple[int, ...] = ()
    more: bool = False
    unterminated: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """Where a scan starts: behind ``mark``, at the record that begins at byte ``first``.

    ``final``: nothing will come behind the end of the file, so a last line counts without its
    newline. ``blanks``: empty lines are records.
    """

    mark: Mark
    first: int
    final: bool
    blanks: bool


class _Blocks:
    """Blocks of whole lines, collected while a scan goes over blocks of the file."""

    def __init__(self, first: int) -> None:
        self.begin = self.end = first
        self.records = 0
        self.open_bytes = 0
        self.counts: list[int] = []
        self.sizes: list[int] = []
        self.hashes: list[int] = []
        self._hash = xxhash.xxh3_64()
        self._closed = (0, first)

    def add(self, body: memoryview, whole: int, records: int) -> None:
        """The next bytes; lines end in the first ``whole`` of them, the others begin a line."""
        if whole:
            self._hash.update(body[:whole])
            self.end += self.open_bytes + whole
            self.records += records
            self.open_bytes = 0
            self._close()
        self._hash.update(body[whole:])
        self.open_bytes += len(body) - whole

    def _close(self) -> None:
        records, end = self._closed
        # Blank lines alone make no block: it would have no record to be read for.
        if self.records > records:
            self.counts.append(self.records - records)
            self.sizes.append(self.end - end)
            self.hashes.append(self._hash.intdigest() & 0xFFFFFFFF)
            self._hash.reset()
            self._closed = (self.records, self.end)


def scan(descriptor: int, size: int, start: Start, limit: int) -> Index:
    """Find at most ``limit`` (at least 1) records behind ``start`` in the first ``size`` bytes.

    Raises ``BadFileError`` where the bytes before ``start`` are not those that were read, where
    the file is shorter than ``size``, and for a line longer than ``MAX_RECORD_BYTES``.

    Source: newline positions per 256 KiB block by vectorised comparison (numpy), with no state
    between blocks but the length of the open line.
    """
    blocks = _Blocks(start.first)
    chains = [start.mark.chain]
    last = _NEWLINE
    unterminated = False
    for at in range(start.mark.base, size, BLOCK_BYTES):
        data = _block(descriptor, at, size)
        if at == start.mark.base and not start.mark.fits(data[: start.mark.position - at]):
            raise BadFileError(f"was changed in its first {start.mark.position} bytes")
        begin = min(max(0, start.first - at), len(data))
        body = memoryview(data)[begin:]
        newlines = np.frombuffer(body, np.uint8) == _NEWLINE
        records = int(np.count_nonzero(newlines))
        whole = data.rfind(b"\n", begin) + 1 - begin if records else 0
        unterminated = start.final and at + len(data) == size and whole < len(body)
        if unterminated:
            records, whole = records + 1, len(body)
        room = limit - blocks.records
        full = False
        if records >= room or not start.blanks:
            # Where each one ends matters, too, and not how many there are alone.
            ends = np.flatnonzero(newlines) + 1
            if unterminated:
                ends = np.append(ends, len(body))
            counted = ends
            if not start.blanks:
                counted = ends[_not_blank(body, ends, blocks.open_bytes, last)]
            records = len(counted)
            full = records >= room
            if full:
                records, whole = room, int(counted[room - 1])
                unterminated = unterminated and whole == len(body)
        blocks.add(body, whole, records)
        if blocks.open_bytes > MAX_RECORD_BYTES and not full:
            raise BadFileError(
                f"has a line of more than {MAX_RECORD_BYTES >> 20} MiB at byte {blocks.end}",
                "check that it is a text file with line ends, or take it away",
            )
        last = data[-1]
        if len(data) == BLOCK_BYTES:
            chains.append(advance(chains[-1], data))
        if full:
            break
    return Index(
        _mark(descriptor, start, blocks.end, chains),
        blocks.records,
        blocks.begin,
        tuple(blocks.counts),
        tuple(blocks.sizes),
        tuple(blocks.hashes),
        blocks.records >= limit and blocks.end < size,
        bool(unterminated),
    )


def _block(descriptor: int, at: int, size: int) -> bytes:
    wanted = min(BLOCK_BYTES, size - at)
    data = os.pread(descriptor, wanted, at)
    if len(data) < wanted:
        raise BadFileError(f"has shrunk to {at + len(data)} bytes while it was read")
    return data


def read_groups(descriptor: int, locator: Any, count: int) -> Iterator[tuple[bytes, int, int, int]]:
    """The blocks of a locator as (bytes, records in them, records to skip, records to take).

    Raises ``BadFileError`` where the bytes are not the planned ones.
    """
    at, skip, left = int(locator["at"]), int(locator.get("skip", 0)), count
    blocks = list(zip(locator["n"], locator["b"], locator["h"], strict=True))
    while left:
        group = _next_group(blocks)
        blocks = blocks[len(group) :]
        size = sum(b for _, b, _ in group)
        data = os.pread(descriptor, size, at)
        while len(data) < size:
            part = os.pread(descriptor, size - len(data), at + len(data))
            if not part:
                raise BadFileError(
                    f"has {at + len(data)} bytes, but records up to byte {at + size} were planned"
                )
            data += part
        view, begin = memoryview(data), 0
        for _, length, expected in group:
            if short_hash(view[begin : begin + length]) != expected:
                raise BadFileError(f"was changed between the bytes {at + begin} and {at + size}")
            begin += length
        records = sum(n for n, _, _ in group)
        take = min(left, records - skip)
        yield data, records, skip, take
        at, skip, left = at + size, 0, left - take


def holds_ends(descriptor: int, locator: Any) -> bool:
    """Whether a file has the first and the last block of a locator where they are to be."""
    sizes, hashes = locator["b"], locator["h"]
    at = int(locator["at"])
    ends = [(at, 0)]
    if len(sizes) > 1:
        ends.append((at + sum(sizes[:-1]), -1))
    for begin, index in ends:
        data = os.pread(descriptor, sizes[index], begin)
        if len(data) < sizes[index] or short_hash(data) != hashes[index]:
            return False
    return True


def trim(locator: Any, skip: int, count: int) -> dict[str, Any]:
    """The locator of ``count`` records behind the first ``skip`` of a locator."""
    skip += int(locator.get("skip", 0))
    counts, sizes, hashes = locator["n"], locator["b"], locator["h"]
    behind = list(accumulate(counts))
    first = int(np.searchsorted(behind, skip, "right"))
    last = int(np.searchsorted(behind, skip + count, "left")) + 1
    trimmed = {
        **locator,
        "at": int(locator["at"]) + sum(sizes[:first]),
        "n": counts[first:last],
        "b": sizes[first:last],
        "h": hashes[first:last],
    }
    left_out = skip - (behind[first - 1] if first else 0)
    trimmed.pop("skip", None)
    return {**trimmed, "skip": left_out} if left_out else trimmed


@dataclass(frozen=True, slots=True)
class Lines:
    """Records inside ``data``: record i is ``data[starts[i]:ends[i]]``, without its line end."""

    data: bytes
    starts: Ints
    ends: Ints

    def __len__(self) -> int:
        return len(self.starts)

    def record(self, index: int) -> bytes:
        return self.data[int(self.starts[index]) : int(self.ends[index])]

    def joined(self) -> bytes:
        """The records, each with one newline behind it; at least one record."""
        first, last = int(self.starts[0]), int(self.ends[-1])
        if self.bare_bytes + len(self) - 1 == last - first:
            # Nothing lies between the records but one newline each.
            return b"".join((memoryview(self.data)[first:last], b"\n"))
        return b"".join(self.record(i) + b"\n" for i in range(len(self)))

    @property
    def bare_bytes(self) -> int:
        """Size of all records without their line ends."""
        return int((self.ends - self.starts).sum())

    def take(self, skip: int, count: int) -> Lines:
        rows = slice(skip, skip + count)
        return Lines(self.data, self.starts[rows], self.ends[rows])


def find_lines(data: bytes, blanks: bool) -> Lines:
    """All lines of ``data``, which begins with a line; without the empty ones if not ``blanks``."""
    array = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(array == _NEWLINE)
    starts = np.empty(len(ends) + 1, np.int64)
    starts[0] = 0
    starts[1:] = ends + 1
    if len(data) and data[-1] != _NEWLINE:
        ends = np.append(ends, len(data))
    else:
        starts = starts[:-1]
    if b"\r" in data:
        ends = ends - ((ends > starts) & (array[ends - 1] == _RETURN))
    if not blanks:
        full = ends > starts
        if not full.all():
            starts, ends = starts[full], ends[full]
    return Lines(data, starts, ends)


def _not_blank(body: memoryview, ends: Ints, open_bytes: int, last: int) -> npt.NDArray[np.bool_]:
    """Mask of the lines with content; ``open_bytes`` of the first one lie before ``body``."""
    array = np.frombuffer(body, np.uint8)
    starts = np.empty_like(ends)
    starts[:1] = -open_bytes
    starts[1:] = ends[:-1]
    content = ends - (array[ends - 1] == _NEWLINE)
    lengths = content - starts
    byte = np.where(content > 0, array[np.maximum(content - 1, 0)], last)
    blank: npt.NDArray[np.bool_] = (lengths == 0) | ((lengths == 1) & (byte == _RETURN))
    return ~blank


def _mark(descriptor: int, start: Start, position: int, chains: list[bytes]) -> Mark:
    if position <= start.mark.position:
        return start.mark
    base = base_of(position)
    tail = os.pread(descriptor, position - base, base)
    if len(tail) < position - base:
        raise BadFileError(f"has shrunk to {base + len(tail)} bytes while it was read")
    head = b""
    if position > BLOCK_BYTES:
        head = start.mark.head or read_head(descriptor)
    return mark_at(position, chains[(base - start.mark.base) // BLOCK_BYTES], tail, head)


def _next_group(blocks: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """As many of the next blocks as are decoded at once, at least one."""
    records = size = taken = 0
    for count, length, _ in blocks:
        records, size = records + count, size + length
        if taken and (records > GROUP_RECORDS or size > GROUP_BYTES):
            break
        taken += 1
    return blocks[:taken]
