"""What a files source asks of a file format, and the formats whose records are lines."""

from __future__ import annotations

import errno
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.protocol.types import RootRange
from millrace.sources.base import ReadBatch
from millrace.sources.content import BLOCK_BYTES, Mark, beginnings, begins_with, read_mark
from millrace.sources.decode import Decoder, HeaderError
from millrace.sources.lines import (
    BadFileError,
    Lines,
    Start,
    find_lines,
    holds_ends,
    read_groups,
    scan,
    trim,
)

_COMPRESSED = {b"\x1f\x8b\x08": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\x00": "xz"}


COUNTED_BYTES = 1 << 20
"""How much of a file is looked at in one go where its lines are counted."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A file open for reading, of which the first ``size`` bytes count."""

    descriptor: int
    size: int

    @property
    def path(self) -> str:
        """A name for what is open, whatever became of the name that it was opened by."""
        return f"/proc/self/fd/{self.descriptor}"


def open_regular(path: Path) -> tuple[int, os.stat_result]:
    """Open a regular file for reading, and what the file system says of it.

    Never waits for anything, also where the name was given to a FIFO meanwhile. Raises
    ``OSError``.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "is no regular file any more", os.fspath(path))
    return descriptor, found


@dataclass(frozen=True, slots=True)
class Scan:
    """Records that a scan found behind a mark.

    ``more``: the limit ended the scan. ``unread``: bytes (Parquet: rows) behind ``mark``.
    """

    mark: Mark
    count: int
    locator: dict[str, Any]
    more: bool
    unread: int


class FileFormat(ABC):
    """Records of one file. Everything raises ``BadFileError`` where the file is not as planned."""

    schema: pa.Schema

    @abstractmethod
    def scan(self, file: Opened, mark: Mark, limit: int, final: bool) -> Scan:
        """At most ``limit`` records behind ``mark``; ``final``: nothing will be appended."""

    @abstractmethod
    def begins(self, file: Opened, marks: Sequence[tuple[Mark, bool]]) -> list[bool]:
        """Whether a file begins with what each mark was read from; True: look at every byte."""

    @abstractmethod
    def beginnings(self, file: Opened, lengths: Collection[int]) -> Mapping[int, bytes]:
        """What ``Mark.beginning`` would be of this file, by length; without those it has not."""

    @abstractmethod
    def learn(self, file: Opened, mark: Mark) -> Mark:
        """A mark of this very file with all that there is to know of it."""

    @abstractmethod
    def names(self, mark: Mark) -> dict[str, Any]:
        """What a locator of records before a mark says of the file that they are in."""

    @abstractmethod
    def fits(self, file: Opened, locator: Any) -> bool:
        """Whether a file, as far as a quick look says, is the one that a locator means."""

    @abstractmethod
    def trim(self, locator: Any, skip: int, count: int) -> dict[str, Any]:
        """Locator of ``count`` records behind the first ``skip``."""

    @abstractmethod
    def read(self, file: Opened, piece: RootRange) -> Iterator[ReadBatch]:
        """The records of a range."""

    @abstractmethod
    def raw(self, file: Opened, piece: RootRange) -> bytes:
        """The bytes of the first record of a range."""

    @abstractmethod
    def place(self, file: Opened, piece: RootRange) -> str:
        """Where in the file the first record of a range is: ``line 17`` or ``row 12``."""


class LineFormat(FileFormat):
    """Any format whose records are lines; the decoder says what they mean."""

    def __init__(self, decoder: Decoder) -> None:
        self.schema = decoder.schema
        self._decoder = decoder
        self._counted = (0, 0), 0, 0
        """A file's device and inode, a position in it and the line ends before that."""

    def scan(self, file: Opened, mark: Mark, limit: int, final: bool) -> Scan:
        preamble: tuple[int, Any] | None = (0, None)
        if mark.position == 0 or self._decoder.keeps:
            preamble = self._preamble(file, final)
        if preamble is None:
            return Scan(mark, 0, {}, more=False, unread=file.size - mark.position)
        first = max(mark.position, preamble[0]) + self._line_end(file, mark)
        start = Start(mark, first, final, self._decoder.blanks)
        index = scan(file.descriptor, file.size, start, limit)
        locator = {
            "at": index.at,
            "n": list(index.counts),
            "b": list(index.sizes),
            "h": list(index.hashes),
        }
        if preamble[1] is not None:
            locator["k"] = preamble[1]
        # A preamble is read again until there is a record behind it.
        end = index.mark if index.count or mark.position else mark
        still = mark.open and end.position == mark.position
        end = replace(end, open=index.unterminated if index.count else still)
        # Of a file that will not grow nothing is left once the scan came to its end.
        unread = 0 if final and not index.more else file.size - end.position
        return Scan(end, index.count, locator, index.more, unread)

    def begins(self, file: Opened, marks: Sequence[tuple[Mark, bool]]) -> list[bool]:
        return begins_with(file.descriptor, file.size, marks)

    def beginnings(self, file: Opened, lengths: Collection[int]) -> Mapping[int, bytes]:
        return beginnings(file.descriptor, lengths)

    def learn(self, file: Opened, mark: Mark) -> Mark:
        if mark.chain and (mark.position <= BLOCK_BYTES or mark.head):
            return mark
        found = read_mark(file.descriptor, mark.position)
        return mark if found is None else replace(found, open=mark.open)

    def names(self, mark: Mark) -> dict[str, Any]:
        length, head = mark.beginning
        return {"x": [length, head.hex()]}

    def fits(self, file: Opened, locator: Any) -> bool:
        length, head = locator.get("x", (0, ""))
        if head and beginnings(file.descriptor, [length]).get(length) != bytes.fromhex(head):
            return False
        return holds_ends(file.descriptor, locator)

    def trim(self, locator: Any, skip: int, count: int) -> dict[str, Any]:
        return trim(locator, skip, count)

    def read(self, file: Opened, piece: RootRange) -> Iterator[ReadBatch]:
        kept = piece.locator.get("k")
        if kept is None and self._decoder.keeps:
            # Older releases left it out where it was what the schema said at that time.
            kept = (self._preamble(file, final=True) or (0, None))[1]
        for data, records, skip, take in self._groups(file, piece):
            plain = self._decoder.decode_plain(data, records)
            if plain is not None:
                _check_count(plain.num_rows, records)
                yield ReadBatch(plain.slice(skip, take))
                continue
            lines = self._lines(data, records).take(skip, take)
            try:
                batch = self._decoder.decode(lines, kept)
            except HeaderError as error:
                raise BadFileError(
                    f"{error}, and records of it are still to be read", "correct files.schema"
                ) from None
            yield batch

    def raw(self, file: Opened, piece: RootRange) -> bytes:
        data, records, skip, _ = next(self._groups(file, piece))
        return self._lines(data, records).record(skip)

    def place(self, file: Opened, piece: RootRange) -> str:
        data, _, skip, _ = next(read_groups(file.descriptor, piece.locator, 1))
        start = int(find_lines(data, self._decoder.blanks).starts[skip])
        return f"line {self._line_ends(file.descriptor, int(piece.locator['at']) + start) + 1}"

    def _line_ends(self, descriptor: int, position: int) -> int:
        """Line ends before a position, counted on from the last position of the same file."""
        found = os.fstat(descriptor)
        identity = found.st_dev, found.st_ino
        known, at, count = self._counted
        if known != identity or at > position:
            at = count = 0
        while at < position:
            data = os.pread(descriptor, min(position - at, COUNTED_BYTES), at)
            if not data:
                break
            at, count = at + len(data), count + data.count(b"\n")
        self._counted = identity, at, count
        return count

    def _groups(self, file: Opened, piece: RootRange) -> Iterator[tuple[bytes, int, int, int]]:
        return read_groups(file.descriptor, piece.locator, piece.count)

    def _lines(self, data: bytes, records: int) -> Lines:
        lines = find_lines(data, self._decoder.blanks)
        _check_count(len(lines), records)
        return lines

    def _preamble(self, file: Opened, final: bool) -> tuple[int, Any] | None:
        head = os.pread(file.descriptor, BLOCK_BYTES, 0)
        for magic, name in _COMPRESSED.items():
            if head.startswith(magic):
                raise BadFileError(
                    f"is compressed ({name}), which is not read",
                    "put it there unpacked, under another name",
                )
        complete = final or len(head) == BLOCK_BYTES
        try:
            return self._decoder.preamble(head, complete)
        except HeaderError as error:
            raise BadFileError(
                str(error), "correct its header, or files.schema, and give it another name"
            ) from None

    def _line_end(self, file: Opened, mark: Mark) -> int:
        """Bytes of the line end that came after a last line was read without it."""
        if not mark.open or mark.position >= file.size:
            return 0
        behind = os.pread(file.descriptor, 2, mark.position)
        for end in (b"\n", b"\r\n"):
            if behind.startswith(end):
                return len(end)
        raise BadFileError(
            f"goes on in the middle of a line: its last line, up to byte {mark.position}, had no "
            "newline when it was read"
        )


def _check_count(found: int, planned: int) -> None:
    if found != planned:
        raise BadFileError(f"has {found} records where {planned} were planned")
