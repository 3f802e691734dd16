"""How far each file was read, and its compact form in the offsets of a topology's record.

Offsets are ``{"format": 3, "next": n, "files": [row, ...], "read": [text, ...], "gone": [first,
last, ...], "went": [[next, first, last, ...], ...]}``. An entry is a file that was begun; its
number, counted up from 0, is its identity, the path only a hint where it was last. Entries that are
being read have a row each; those read to their end move to ``read`` in packs: columns as JSON,
deflated, in base 85 (about 35 bytes a file). Only packs that a plan touches are made again.
``gone`` names, as runs of numbers, the entries whose file was not there at the last look, and
``went`` the same by what ``next`` was, at the most, when they were first missed: each is remembered
until ``GONE_FILES`` newer files were begun. So it is the files that pass through a folder that are
forgotten, never those of a folder that is away.

Format 2 knew Parquet files by their footer alone, and marks that it left are told by that; their
entries get better ones when more is read. Format 1 knew files by path: its entries are numbered in
order of appearance.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from millrace.errors import NewerFormatError
from millrace.ids import name_id
from millrace.protocol.types import Json
from millrace.sources.content import BLOCK_BYTES, START, Mark
from millrace.sources.listing import FileStat

OFFSETS_FORMAT = 3
LOOSE_FILES = 128
"""Most finished files that keep a row of their own."""

PACK_FILES = 1024

GONE_FILES = 4096
"""A file that is no longer there is remembered until so many others were begun since."""

_FORGET_FILES = 1024
"""So many are forgotten at once, since that makes packs anew."""

_GENERATIONS = 8
"""As many groups of files that went in the time in which one is remembered."""

_NO_TEXT = "\0"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """What was read of one file: ``records`` (at least 1) up to ``mark``, when it had ``size``
    bytes.

    ``path``, ``inode`` and ``birth`` (16 bits of the time it was made) are hints where to find
    it, 0 where unknown; ``signature`` and ``changed`` are those of the last look at it. ``unread``
    is what is known to lie behind the mark (bytes; Parquet: rows), also of what a look saw come,
    ``more`` that a limit ended the scan there; the file is then read up to ``size`` before another
    one begins.
    """

    id: int
    path: str
    mark: Mark = START
    records: int = 0
    size: int = 0
    signature: int = 0
    changed: int = 0
    inode: int = 0
    birth: int = 0
    unread: int = 0
    more: bool = False

    @property
    def partition(self) -> int:
        return partition_of(self.id)

    @property
    def least_size(self) -> int:
        """A file with less bytes is not this one."""
        if self.unread or self.more:
            return self.known_size
        return min(self.size, self.mark.position)

    @property
    def known_size(self) -> int:
        """As many bytes as the file is known to have had."""
        if self.mark.rows or not self.mark.chain:
            return self.size  # Parquet never grows
        return max(self.size, self.mark.position + self.unread)

    def seen(self, path: str, stat: FileStat, birth: int) -> FileEntry:
        """The entry with the hints of a look; its size stays, for what is behind it is unread."""
        return replace(
            self,
            path=path,
            signature=stat.signature,
            changed=stat.changed,
            inode=stat.inode,
            birth=birth,
            size=min(self.size, stat.size),
        )

    def unchanged(self, stat: FileStat) -> bool:
        """Whether the file at this entry's path is as it was at the last look."""
        return self.signature == stat.signature and self.changed in (0, stat.changed)

    @property
    def read_bytes(self) -> int:
        """About how many bytes were read."""
        whole = self.mark.position + self.unread
        return self.known_size * self.mark.position // whole if whole else 0


def partition_of(number: int) -> int:
    """The source partition of an entry."""
    return name_id(f"file\0{number}")


def stored_name(path: str) -> str:
    """A path as documents hold it: text, with a mark in front where its bytes are none."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return _NO_TEXT + os.fsencode(path).decode("latin-1")
    return path


def plain_name(stored: str) -> str:
    """The path that ``stored_name`` was given."""
    if stored.startswith(_NO_TEXT):
        return os.fsdecode(stored[1:].encode("latin-1"))
    return stored


def shown_name(path: str) -> str:
    """A path for people; bytes that are no text are written as ``\\xff``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True)
class _Pack:
    text: str
    ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class ReadState:
    """All entries of a source by their numbers; a value, changed by ``with_entries``.

    ``gone`` are the entries whose file was not there, and ``went`` the same by what ``next`` was
    when they were first missed, or a little more. ``records`` and ``read_bytes`` are totals.
    """

    next: int = 0
    files: Mapping[int, FileEntry] = field(default_factory=dict)
    gone: frozenset[int] = frozenset()
    packs: tuple[_Pack, ...] = ()
    loose: frozenset[int] = frozenset()
    records: int = 0
    read_bytes: int = 0
    went: Mapping[int, frozenset[int]] = field(default_factory=dict)

    def with_entries(
        self, changed: Mapping[int, FileEntry], gone: frozenset[int] | None = None
    ) -> ReadState:
        """The state with entries replaced or added, and another set of those that are gone."""
        gone = self.gone if gone is None else gone
        if not changed and gone == self.gone:
            return self
        entries = {**self.files, **changed}
        following = max(self.next, *(n + 1 for n in changed)) if changed else self.next
        went = _since(self.went, gone, following)
        packs = self.packs
        loose = self.loose
        if changed:
            packs, left = _without(packs, changed.keys(), entries)
            loose = loose | changed.keys() | left
        old = [since for since in went if following - since >= GONE_FILES]
        forgotten = frozenset(n for since in old for n in went[since])
        if len(forgotten) >= _FORGET_FILES:
            packs, left = _without(packs, forgotten, entries)
            loose = (loose | left) - forgotten
            gone -= forgotten
            went = {since: ids for since, ids in went.items() if since not in old}
            entries = {n: entry for n, entry in entries.items() if n not in forgotten}
        packs, loose, stripped = _repacked(entries, packs, loose)
        entries.update(stripped)
        before = [self.files[n] for n in changed if n in self.files]
        return ReadState(
            following,
            entries,
            gone,
            packs,
            loose,
            self.records + _sum_records(changed.values()) - _sum_records(before),
            self.read_bytes + _sum_bytes(changed.values()) - _sum_bytes(before),
            went,
        )

    def encode(self) -> Json:
        return {
            "format": OFFSETS_FORMAT,
            "next": self.next,
            "files": [_row(self.files[n]) for n in sorted(self.loose)],
            "read": [pack.text for pack in self.packs],
            "gone": _runs(self.gone),
            "went": [[since, *_runs(ids)] for since, ids in sorted(self.went.items())],
        }


def decode_state(offsets: Json) -> ReadState:
    """The state that offsets mean. Raises ``NewerFormatError``."""
    if offsets["format"] > OFFSETS_FORMAT:
        raise NewerFormatError(
            f"offsets of a files source have format {offsets['format']}, this release reads up to "
            f"{OFFSETS_FORMAT}; use the newer release"
        )
    if offsets["format"] == 1:
        return _from_format_1(offsets)
    loose = {row[0]: _entry(row) for row in offsets["files"]}
    entries = dict(loose)
    packs = []
    for text in offsets["read"]:
        unpacked = _unpack(text)
        entries.update({e.id: e for e in unpacked})
        packs.append(_Pack(text, frozenset(e.id for e in unpacked)))
    gone = _numbers(offsets["gone"]) & entries.keys()
    # Of an earlier release, or of one that did not say when they went: just now, then.
    said = {since: _numbers(runs) & gone for since, *runs in offsets.get("went", [])}
    return ReadState(
        offsets["next"],
        entries,
        gone,
        tuple(packs),
        frozenset(loose),
        _sum_records(entries.values()),
        _sum_bytes(entries.values()),
        _since(said, gone, offsets["next"]),
    )


def _since(
    went: Mapping[int, frozenset[int]], gone: frozenset[int], following: int
) -> dict[int, frozenset[int]]:
    """When those that are gone went: as it was known, and the others now."""
    known = {since: ids & gone for since, ids in went.items()}
    step = max(1, GONE_FILES // _GENERATIONS)
    now = -(-following // step) * step
    known[now] = known.get(now, frozenset()) | gone.difference(*known.values())
    return {since: ids for since, ids in known.items() if ids}


def _sum_records(entries: Iterable[FileEntry]) -> int:
    return sum(e.records for e in entries)


def _sum_bytes(entries: Iterable[FileEntry]) -> int:
    return sum(e.read_bytes for e in entries)


def _runs(numbers: frozenset[int]) -> list[int]:
    runs: list[int] = []
    for n in sorted(numbers):
        if runs and runs[-1] == n - 1:
            runs[-1] = n
        else:
            runs += [n, n]
    return runs


def _numbers(runs: list[int]) -> frozenset[int]:
    pairs = zip(runs[::2], runs[1::2], strict=True)
    return frozenset(n for first, last in pairs for n in range(first, last + 1))


# -- packs


def _without(
    packs: tuple[_Pack, ...], ids: Iterable[int], entries: Mapping[int, FileEntry]
) -> tuple[tuple[_Pack, ...], frozenset[int]]:
    """Packs less some entries; those of a pack that becomes too small come back as loose."""
    kept: list[_Pack] = []
    loose: frozenset[int] = frozenset()
    for pack in packs:
        left = pack.ids
        if not left.isdisjoint(ids):
            left = left.difference(ids)
            if len(left) < LOOSE_FILES // 2:
                loose |= left
                continue
            pack = _packed([entries[n] for n in sorted(left)])
        kept.append(pack)
    return tuple(kept), loose


def _repacked(
    entries: Mapping[int, FileEntry], packs: tuple[_Pack, ...], loose: frozenset[int]
) -> tuple[tuple[_Pack, ...], frozenset[int], dict[int, FileEntry]]:
    """Packs, loose ones, and the entries as they are once they were packed."""
    done = [n for n in loose if not entries[n].unread and not entries[n].more]
    if len(done) <= LOOSE_FILES:
        return packs, loose, {}
    small = [pack for pack in packs if len(pack.ids) < PACK_FILES]
    ids = sorted({*done, *(n for pack in small for n in pack.ids)})
    made = [
        _packed([entries[n] for n in ids[i : i + PACK_FILES]])
        for i in range(0, len(ids), PACK_FILES)
    ]
    return (
        (*(pack for pack in packs if pack not in small), *made),
        loose.difference(done),
        {n: _stripped(entries[n]) for n in done},
    )


def _stripped(entry: FileEntry) -> FileEntry:
    """What of an entry is kept in a pack; the same as if it came from there."""
    mark = entry.mark
    if not _is_large(mark):
        mark = replace(mark, head=b"")
    return replace(entry, mark=mark)


def _is_large(mark: Mark) -> bool:
    """Whether a pack holds chain and head; those of a file of one block follow from the rest."""
    return mark.rows or mark.position > BLOCK_BYTES


def _packed(entries: list[FileEntry]) -> _Pack:
    large = [e for e in entries if _is_large(e.mark)]
    columns = [
        _steps([e.id for e in entries]),
        [stored_name(e.path) for e in entries],
        [e.mark.position for e in entries],
        "".join(e.mark.digest.hex() for e in entries),
        [[e.mark.chain.hex(), e.mark.head.hex()] for e in large],
        [e.records for e in entries],
        [e.size - e.mark.position for e in entries],
        "".join(f"{e.signature:08x}{e.changed:04x}{e.birth:04x}" for e in entries),
        _steps([e.inode for e in entries]),
        [int(e.mark.open) + 2 * (not e.mark.chain) + 4 * e.mark.rows for e in entries],
    ]
    plain = json.dumps(columns, separators=(",", ":")).encode()
    text = base64.b85encode(zlib.compress(plain, 6)).decode()
    return _Pack(text, frozenset(e.id for e in entries))


def _unpack(text: str) -> list[FileEntry]:
    ids, paths, positions, digests, large, records, behind, looks, inodes, flags = json.loads(
        zlib.decompress(base64.b85decode(text))
    )
    digest = bytes.fromhex(digests)
    more = iter(large)
    entries = []
    inodes = _sums(inodes)
    for i, number in enumerate(_sums(ids)):
        position = positions[i]
        chain, head, rows = START.chain, b"", bool(flags[i] & 4)
        if rows or position > BLOCK_BYTES:
            chain, head = (bytes.fromhex(part) for part in next(more))
        elif flags[i] & 2:
            chain = b""
        mark = Mark(position, digest[8 * i : 8 * i + 8], chain, bool(flags[i] & 1), head, rows)
        look = looks[16 * i : 16 * i + 16]
        entries.append(
            FileEntry(
                number,
                plain_name(paths[i]),
                mark,
                records[i],
                position + behind[i],
                int(look[:8], 16),
                int(look[8:12], 16),
                inodes[i],
                int(look[12:], 16),
            )
        )
    return entries


def _steps(numbers: list[int]) -> list[int]:
    """Differences between neighbours, which deflate better."""
    return [n - before for n, before in zip(numbers, [0, *numbers], strict=False)]


def _sums(steps: list[int]) -> list[int]:
    numbers, at = [], 0
    for step in steps:
        at += step
        numbers.append(at)
    return numbers


# -- rows


def _row(entry: FileEntry) -> list[Json]:
    mark = entry.mark
    return [
        entry.id,
        stored_name(entry.path),
        mark.position,
        mark.digest.hex(),
        mark.chain.hex(),
        mark.head.hex(),
        entry.records,
        entry.size,
        entry.signature,
        entry.changed,
        entry.inode,
        entry.birth,
        entry.unread,
        int(mark.open) + 2 * entry.more + 4 * mark.rows,
    ]


def _entry(row: list[Json]) -> FileEntry:
    number, path, position, digest, chain, head, records, *looks, unread, flags = row
    size, signature, changed, inode, birth = looks
    digest, chain, head = (bytes.fromhex(part) for part in (digest, chain, head))
    mark = Mark(position, digest, chain, bool(flags & 1), head, bool(flags & 4))
    more = bool(flags & 2)
    return FileEntry(
        number,
        plain_name(path),
        mark,
        records,
        size,
        signature,
        changed,
        inode,
        birth,
        unread,
        more,
    )


# -- format 1


def _from_format_1(offsets: Json) -> ReadState:
    rows = [_row_1(row) for row in offsets["files"]]
    for text in offsets["read"]:
        rows += _unpack_1(text)
    # What was looked at without a record being read is no entry any more.
    entries = [replace(e, id=n) for n, e in enumerate(e for e in rows if e.records)]
    return ReadState().with_entries({e.id: e for e in entries})


def _row_1(row: list[Json]) -> FileEntry:
    path, _, position, digest, chain, records, size, signature, inode, unread, flags = row
    mark = Mark(position, bytes.fromhex(digest), bytes.fromhex(chain), bool(flags & 1))
    return FileEntry(
        0,
        path,
        mark,
        records,
        size,
        signature,
        inode=inode,
        unread=unread,
        more=bool(flags & 2),
    )


def _unpack_1(text: str) -> list[FileEntry]:
    columns = json.loads(zlib.decompress(base64.b85decode(text)))
    digests = bytes.fromhex(columns[3])
    rows = zip(columns[0], columns[1], columns[2], *columns[4:], strict=True)
    return [
        FileEntry(
            0,
            path,
            # The chain is found again by reading, should the file ever grow.
            Mark(position, digests[8 * i : 8 * i + 8], b"", bool(open_line)),
            records,
            position + behind,
            signature,
        )
        for i, (path, _, position, records, behind, signature, open_line) in enumerate(rows)
    ]
