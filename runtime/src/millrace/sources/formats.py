"""What a files source asks of a file format, and the formats whose records are lines."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.protocol.types import RootRange
from millrace.sources.base import ReadBatch
from millrace.sources.content import BLOCK_BYTES, Mark, read_mark
from millrace.sources.decode import Decoder
from millrace.sources.lines import (
    BadFileError,
    Lines,
    Start,
    find_lines,
    read_groups,
    scan,
    trim,
)

_COMPRESSED = {b"\x1f\x8b\x08": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\x00": "xz"}


@dataclass(frozen=True, slots=True)
class Opened:
    """A file open for reading; ``partition`` tells apart files that had one path in turn."""

    path: Path
    descriptor: int
    size: int
    partition: int


@dataclass(frozen=True, slots=True)
class Found:
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
    def scan(self, file: Opened, mark: Mark, limit: int, final: bool) -> Found:
        """At most ``limit`` records behind ``mark``; ``final``: nothing will be appended."""

    @abstractmethod
    def same(self, descriptor: int, size: int, mark: Mark) -> Mark | None:
        """Check the part that was read, all of it; the mark with all it knows, or ``None``."""

    @abstractmethod
    def trim(self, locator: Any, skip: int, count: int) -> dict[str, Any]:
        """Locator of ``count`` records behind the first ``skip``."""

    @abstractmethod
    def read(self, path: Path, piece: RootRange) -> Iterator[ReadBatch]:
        """The records of a range."""

    @abstractmethod
    def raw(self, path: Path, piece: RootRange) -> bytes:
        """The bytes of the first record of a range."""


class LineFormat(FileFormat):
    """Any format whose records are lines; the decoder says what they mean."""

    def __init__(self, decoder: Decoder) -> None:
        self.schema = decoder.schema
        self._decoder = decoder
        self._kept: dict[int, Any] = {}

    def scan(self, file: Opened, mark: Mark, limit: int, final: bool) -> Found:
        first = mark.position
        if file.partition not in self._kept:
            preamble = self._preamble(file, final)
            if preamble is None:
                return Found(mark, 0, {}, more=False, unread=file.size - mark.position)
            first = max(first, preamble)
        first += self._line_end(file, mark)
        start = Start(mark, first, final, self._decoder.blanks)
        index = scan(file.descriptor, file.size, start, limit)
        locator = {
            "at": index.at,
            "n": list(index.counts),
            "b": list(index.sizes),
            "h": list(index.hashes),
        }
        if (kept := self._kept[file.partition]) is not None:
            locator["k"] = kept
        # A preamble is read again until there is a record behind it.
        end = index.mark if index.count or mark.position else mark
        still = mark.open and end.position == mark.position
        end = replace(end, open=index.unterminated if index.count else still)
        # Of a file that will not grow nothing is left once the scan came to its end.
        unread = 0 if final and not index.more else file.size - end.position
        return Found(end, index.count, locator, index.more, unread)

    def same(self, descriptor: int, size: int, mark: Mark) -> Mark | None:
        found = read_mark(descriptor, mark.position)
        return found if found is not None and found.digest == mark.digest else None

    def trim(self, locator: Any, skip: int, count: int) -> dict[str, Any]:
        return trim(locator, skip, count)

    def read(self, path: Path, piece: RootRange) -> Iterator[ReadBatch]:
        for lines in self._lines(path, piece):
            yield self._decoder.decode(lines, piece.locator.get("k"))

    def raw(self, path: Path, piece: RootRange) -> bytes:
        return next(self._lines(path, piece)).record(0)

    def _lines(self, path: Path, piece: RootRange) -> Iterator[Lines]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            for data, records, skip, take in read_groups(descriptor, piece.locator, piece.count):
                lines = find_lines(data, self._decoder.blanks)
                if len(lines) != records:
                    raise BadFileError(f"has {len(lines)} records where {records} were planned")
                yield lines.take(skip, take)
        finally:
            os.close(descriptor)

    def _preamble(self, file: Opened, final: bool) -> int | None:
        head = os.pread(file.descriptor, BLOCK_BYTES, 0)
        for magic, name in _COMPRESSED.items():
            if head.startswith(magic):
                raise BadFileError(
                    f"is compressed ({name}), which is not read",
                    "put it there unpacked, under another name",
                )
        complete = final or len(head) == BLOCK_BYTES
        try:
            preamble = self._decoder.preamble(head, complete)
        except ValueError as error:
            raise BadFileError(
                str(error), "correct its header, or files.schema, and give it another name"
            ) from None
        if preamble is not None:
            self._kept[file.partition] = preamble[1]
            return preamble[0]
        return None

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
