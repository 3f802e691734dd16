"""How far each file was read, and its compact form in the offsets of a topology's record.

Offsets are ``{"format": 1, "generation": g, "cursor": file, "files": [row, ...], "read": [text,
...]}``. Files that are being read have a row each; those read to their end move to ``read`` in
packs: columns as JSON, deflated, in base 85 (about 27 bytes a file). Only packs that a plan
touches are made again.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from millrace.errors import NewerFormatError
from millrace.ids import name_id
from millrace.protocol.types import Json
from millrace.sources.content import START, Mark
from millrace.sources.listing import FileStat

OFFSETS_FORMAT = 1
LOOSE_FILES = 128
"""Most finished files that keep a row of their own."""

PACK_FILES = 1024


@dataclass(frozen=True, slots=True)
class FileEntry:
    """What was read of one file: ``records`` up to ``mark``, when it had ``size`` bytes.

    ``generation`` tells apart files that had the same path in turn. ``unread`` is what was known
    to lie behind the mark, ``more`` that a limit ended the scan there. ``inode`` is 0 where it is
    not remembered.
    """

    path: str
    generation: int
    mark: Mark = START
    records: int = 0
    size: int = 0
    signature: int = 0
    inode: int = 0
    unread: int = 0
    more: bool = False

    @property
    def partition(self) -> int:
        return name_id(f"{self.path}\0{self.generation}")

    def seen(self, stat: FileStat) -> FileEntry:
        return replace(self, size=stat.size, signature=stat.signature, inode=stat.inode)

    @property
    def read_bytes(self) -> int:
        """About how many bytes were read."""
        whole = self.mark.position + self.unread
        return self.size * self.mark.position // whole if whole else 0


@dataclass(frozen=True, slots=True)
class _Pack:
    text: str
    paths: frozenset[str]


@dataclass(frozen=True, slots=True)
class ReadState:
    """All entries of a source; a value, changed by ``with_entries``."""

    generation: int = 0
    cursor: str = ""
    entries: Mapping[str, FileEntry] | None = None
    packs: tuple[_Pack, ...] = ()

    @property
    def files(self) -> Mapping[str, FileEntry]:
        return self.entries or {}

    def with_entries(
        self, changed: Mapping[str, FileEntry], gone: Iterable[str], cursor: str
    ) -> ReadState:
        """The state with entries replaced or added and others forgotten.

        Once a file is forgotten, all that appear later have a higher generation.
        """
        gone = set(gone)
        if not changed and not gone and cursor == self.cursor:
            return self
        entries = {p: e for p, e in self.files.items() if p not in gone} | dict(changed)
        touched = gone | changed.keys()
        packs = []
        for pack in self.packs:
            left = pack.paths - touched
            if left and len(left) < len(pack.paths):
                pack = _packed([entries[p] for p in sorted(left)])
            if left:
                packs.append(pack)
        return ReadState(
            self.generation + bool(gone), cursor, entries, _repacked(entries, tuple(packs))
        )

    def encode(self) -> Json:
        packed = frozenset[str]().union(*(pack.paths for pack in self.packs))
        return {
            "format": OFFSETS_FORMAT,
            "generation": self.generation,
            "cursor": self.cursor,
            "files": [_row(e) for p, e in self.files.items() if p not in packed],
            "read": [pack.text for pack in self.packs],
        }


def decode_state(offsets: Json) -> ReadState:
    """The state that offsets mean. Raises ``NewerFormatError``."""
    if offsets["format"] > OFFSETS_FORMAT:
        raise NewerFormatError(
            f"offsets of a files source have format {offsets['format']}, this release reads up to "
            f"{OFFSETS_FORMAT}; use the newer release"
        )
    entries = {row[0]: _entry(row) for row in offsets["files"]}
    packs = []
    for text in offsets["read"]:
        unpacked = _unpack(text)
        entries.update({e.path: e for e in unpacked})
        packs.append(_Pack(text, frozenset(e.path for e in unpacked)))
    return ReadState(offsets["generation"], offsets["cursor"], entries, tuple(packs))


def _repacked(entries: Mapping[str, FileEntry], packs: tuple[_Pack, ...]) -> tuple[_Pack, ...]:
    packed = frozenset[str]().union(*(pack.paths for pack in packs))
    loose = [p for p, e in entries.items() if not e.unread and not e.more and p not in packed]
    if len(loose) <= LOOSE_FILES:
        return packs
    small = [pack for pack in packs if len(pack.paths) < PACK_FILES]
    paths = sorted({*loose, *(p for pack in small for p in pack.paths)})
    made = [
        _packed([entries[p] for p in paths[i : i + PACK_FILES]])
        for i in range(0, len(paths), PACK_FILES)
    ]
    return (*(pack for pack in packs if pack not in small), *made)


def _row(entry: FileEntry) -> list[Json]:
    mark = entry.mark
    return [
        entry.path,
        entry.generation,
        mark.position,
        mark.digest.hex(),
        mark.chain.hex(),
        entry.records,
        entry.size,
        entry.signature,
        entry.inode,
        entry.unread,
        int(mark.open) + 2 * entry.more,
    ]


def _entry(row: list[Json]) -> FileEntry:
    path, generation, position, digest, chain, records, size, signature, inode, unread, flags = row
    mark = Mark(position, bytes.fromhex(digest), bytes.fromhex(chain), bool(flags & 1))
    return FileEntry(
        path, generation, mark, records, size, signature, inode, unread, bool(flags & 2)
    )


def _packed(entries: list[FileEntry]) -> _Pack:
    columns = [
        [e.path for e in entries],
        [e.generation for e in entries],
        [e.mark.position for e in entries],
        "".join(e.mark.digest.hex() for e in entries),
        [e.records for e in entries],
        [e.size - e.mark.position for e in entries],
        [e.signature for e in entries],
        [int(e.mark.open) for e in entries],
    ]
    plain = json.dumps(columns, separators=(",", ":")).encode()
    text = base64.b85encode(zlib.compress(plain, 6)).decode()
    return _Pack(text, frozenset(e.path for e in entries))


def _unpack(text: str) -> list[FileEntry]:
    columns = json.loads(zlib.decompress(base64.b85decode(text)))
    digests = bytes.fromhex(columns[3])
    rows = zip(columns[0], columns[1], columns[2], *columns[4:], strict=True)
    return [
        FileEntry(
            path,
            generation,
            # The chain is found again by reading, should the file ever grow.
            Mark(position, digests[8 * i : 8 * i + 8], b"", bool(open_line)),
            records,
            position + behind,
            signature,
        )
        for i, (path, generation, position, records, behind, signature, open_line) in enumerate(
            rows
        )
    ]
