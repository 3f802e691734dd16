"""What became of the files that were read: one pure function over entries and one listing.

A file is known by its content: the digests of the first and of the last block that were read of
it. Its path, its inode and the time it was made say where to look first, and which of several files
of equal content it is. Entries are matched in this order; every rule goes over all of them, those
of which most was read first, before the next one begins:

1. A file that is at its path as it was at the last look is the same; nothing of it is read.
2. The file that has an entry's inode, wherever it is, if the content is the entry's. Where the
   file system says when files were made, an inode that was given to a new file is told apart.
3. The file at an entry's path, if the content is the entry's: a copy took its place, or it came
   back after it was gone. An entry whose file was there at the last look comes first.
4. Any other file with the entry's content. Where another content stands at the entry's path, or in
   its inode, it may be longer: the file was copied and then truncated. Where nothing is left there
   it must have the size that was known: the file was copied elsewhere and removed, or, within one
   look, went and an equal one came, which cannot be told apart. Where a file was moved to the path
   that another entry has, or that waits, it must have the time of change, too, of the entry's file.

An entry that was gone at an earlier look is found by rule 2 (with proof that the inode was not
given away) and 3 alone: an equal file under another name is a new one. Several names of one file
at one moment are one file. What no entry matches is new, unless it stands, with another content,
where an entry's file was: then that one was replaced, and who asks must stop. It is gone where one
that waits was moved over it, or where it was read to its end and had a name that is not read.

Of a file that waits, since it was seen and nothing of it was read yet, no content is known. It is
its inode, not smaller than it was, if nothing was written since or it was made before it was seen;
where the file system does not say when, its name must be the same. Otherwise it is lost. Rule 4
does not ask about it, nor rule 3 under a name that it was moved to: both rest on content alone.

What must not be read is never another content: an entry is barred then, until it can be told. One
whose inode it has is looked for nowhere else, and one whose name it has by rule 2 alone.

Entries and files that wait are looked for under names that are not read, too, where they would be
lost or replaced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from millrace.sources.entries import FileEntry
from millrace.sources.listing import FileStat, Listing

_NEVER_NS = 1 << 63


class Change(Enum):
    """What became of an entry's file."""

    SAME = "same"
    GROWN = "grown"
    RENAMED = "renamed"
    ROTATED = "rotated"
    """Renamed, or copied and truncated, and its old name is another file's."""

    GONE = "gone"
    REPLACED = "replaced"
    """Another content stands at its path, and its own nowhere."""

    BARRED = "barred"
    """What has its inode, or else its path, or the folder of that, must not be read, so nobody
    knows what it holds.
    """


@dataclass(frozen=True, slots=True)
class Fate:
    """``path`` is where the file is now, for one that was replaced the one it was at.

    ``at_rest``: neither its name nor anything else about it has changed since the last look.
    """

    change: Change
    path: str = ""
    at_rest: bool = False


@dataclass(frozen=True, slots=True)
class Matched:
    """The fate of every entry by its number, and the paths of new files in order of name.

    ``lost`` are those that waited and are nowhere; ``files`` all that were looked at.
    """

    fates: Mapping[int, Fate]
    new: tuple[str, ...]
    lost: tuple[str, ...]
    files: Listing

    @property
    def missed(self) -> set[str]:
        """Paths of entries that were replaced, and of files that are lost."""
        replaced = {f.path for f in self.fates.values() if f.change is Change.REPLACED}
        return replaced.union(self.lost)


class Evidence(Protocol):
    """What is asked about listed files where the listing alone cannot tell."""

    def birth(self, path: str) -> int:
        """The time a file was made, as entries hold it; 0 where the file system does not say."""

    def born_ns(self, path: str) -> int:
        """The same in nanoseconds."""

    def begins(self, path: str, entries: Sequence[FileEntry]) -> Collection[int]:
        """Numbers of the entries whose read part the file begins with."""

    def beginnings(self, path: str, lengths: Collection[int]) -> Mapping[int, bytes]:
        """What ``Mark.beginning`` would be of the file, by length; without those it has not."""

    def refused(self, path: str) -> bool:
        """Whether a file of which more was asked, or a folder in which it lay, must not be read."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known from looks before: ``gone`` are numbers of entries that were not there,
    ``waiting`` the files that were there and not begun, as they were.
    """

    entries: Mapping[int, FileEntry]
    gone: Collection[int] = ()
    waiting: Listing = field(default_factory=dict)

    def strays(self, listing: Listing) -> set[str]:
        """Paths of files that, by their inodes, are not where they were."""
        found = set()
        for number, entry in self.entries.items():
            stat = listing.get(entry.path)
            elsewhere = stat is None or (entry.inode and entry.inode != stat.inode)
            if elsewhere and number not in self.gone:
                found.add(entry.path)
        for path, before in self.waiting.items():
            stat = listing.get(path)
            if stat is None or stat.node != before.node:
                found.add(path)
        return found


def is_still(before: FileStat, now: FileStat, born_ns: Callable[[], int]) -> bool:
    """Whether a file of which nothing was read is the one that was seen before.

    ``born_ns`` tells when the one that is there now was made, 0 for a time that is not known.
    """
    if now.node != before.node or now.size < before.size:
        return False
    return now.signature == before.signature or born_ns() <= before.changed_ns


def match(
    seen: Seen, listing: Listing, around: Callable[[Collection[str]], Listing], evidence: Evidence
) -> Matched:
    """Match what was seen to the files of one consistent listing.

    ``around`` gives all files of the folders of some paths, whatever their names. What is known
    may be found in them; none of them is new.
    """
    strays = seen.strays(listing)
    while True:
        hidden = around(strays) if strays else {}
        found = _match_in(seen, listing, {**hidden, **listing} if hidden else listing, evidence)
        if found.missed <= strays:
            return found
        # Copied to a name that is not read, perhaps, and truncated.
        strays |= found.missed


def _match_in(seen: Seen, listing: Listing, files: Listing, evidence: Evidence) -> Matched:
    entries, gone = seen.entries, seen.gone
    matching = _Matching(gone, listing, files, evidence)
    waiting = matching.waiting(seen.waiting)
    matching.moved = frozenset(p for old, p in waiting.items() if p not in ("", old))
    matching.waited = frozenset(matching.node(path) for path in waiting.values() if path)
    matching.unchanged(entries.values())
    # Most content first: what begins with much of one entry may begin with little of another.
    left = sorted(
        (e for e in entries.values() if e.id not in matching.placed),
        key=lambda e: (-e.mark.position, e.id in gone, -e.id),
    )
    matching.by_inode(left)
    moved_over = matching.moved.union(matching.taken, matching.barred.values())
    left = [e for e in left if e.id not in matching.placed and e.id not in matching.barred]
    there = [e for e in left if e.id not in gone]
    matching.by_path(there)
    matching.by_path([e for e in left if e.id in gone])
    left = [e for e in there if e.id not in matching.placed and not matching.is_behind_bar(e)]
    matching.by_content(left, moved_over)
    fates = matching.fates
    # What has the inode of a barred entry is no other one's replacement.
    for number in (*matching.barred, *entries):
        if number not in fates:
            fates[number] = matching.fate(entries[number])
    replaced = {matching.node(f.path) for f in fates.values() if f.change is Change.REPLACED}
    new: dict[tuple[int, int], str] = {}
    for path in sorted(listing):
        node = listing[path].node
        if node not in matching.claimed and node not in replaced:
            new.setdefault(node, path)
    lost = []
    for before, path in waiting.items():
        if not path:
            if before in files or not evidence.refused(before):
                lost.append(before)
        elif matching.node(path) not in matching.claimed:
            new.setdefault(matching.node(path), path)
    return Matched(fates, tuple(sorted(new.values())), tuple(sorted(lost)), files)


class _Beginning(NamedTuple):
    """What the files begin with that may be an entry's; ``size``: and have so many bytes.

    A ``length`` of 0 stands for a beginning of which no digest is known.
    """

    size: int | None
    length: int
    digest: bytes


@dataclass(slots=True)
class _Matching:
    """Entries placed so far: number → path, and the files that are claimed.

    ``files`` are those of the ``listing`` and such as have names that are not read.
    ``emptied`` are entries whose very file is there with another content, ``barred`` those whose
    very file must not be read, with its path. ``waited`` are files that waited, and are no entry's
    unless they have its name or its inode; ``moved`` is where those are that waited elsewhere.
    """

    gone: Collection[int]
    listing: Listing
    files: Listing
    evidence: Evidence
    moved: frozenset[str] = frozenset()
    waited: frozenset[tuple[int, int]] = frozenset()
    fates: dict[int, Fate] = field(default_factory=dict)
    placed: dict[int, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    claimed: set[tuple[int, int]] = field(default_factory=set)
    emptied: set[int] = field(default_factory=set)
    barred: dict[int, str] = field(default_factory=dict)

    def node(self, path: str) -> tuple[int, int]:
        return self.files[path].node

    def unchanged(self, entries: Iterable[FileEntry]) -> None:
        """Rule 1; of an entry that is gone and a later one of its path the later one counts."""
        files, taken = self.files, self.taken
        back = []
        for entry in entries:
            stat = files.get(entry.path)
            if stat is not None and entry.unchanged(stat):
                if entry.id in self.gone:
                    back.append(entry)
                elif entry.path not in taken:
                    self._leave(entry, stat)
        for entry in back:
            if entry.path not in taken:
                self._leave(entry, files[entry.path])

    def by_inode(self, entries: Sequence[FileEntry]) -> None:
        """Rule 2."""
        names = self._names({e.inode for e in entries} - {0})
        for entry in entries:
            for path in _own_first(entry.path, names.get(entry.inode, ())):
                own = path == entry.path
                free = path not in self.taken if own else self.node(path) not in self.claimed
                if free and self._same_node(entry, path):
                    if self._holds(entry, path):
                        self._place(entry, path)
                        break
                    if self._is_barred(entry, path):
                        self.barred.setdefault(entry.id, path)
                    elif own or entry.birth:
                        self.emptied.add(entry.id)

    def waiting(self, seen: Listing) -> dict[str, str]:
        """Where each file is that waited; nothing for one that is lost."""
        found = {p: p for p in seen if p in self.files and self._waits(p, seen[p], p)}
        left = seen.keys() - found.keys()
        names = self._names({seen[path].inode for path in left})
        for path in left:
            others = sorted(names.get(seen[path].inode, ()))
            found[path] = next((p for p in others if self._waits(path, seen[path], p)), "")
        return found

    def _waits(self, path: str, before: FileStat, now: str) -> bool:
        def born_ns() -> int:
            # Where that is not known the name has to do.
            return self.evidence.born_ns(now) or (0 if now == path else _NEVER_NS)

        return is_still(before, self.files[now], born_ns)

    def _names(self, inodes: Collection[int]) -> dict[int, list[str]]:
        names: dict[int, list[str]] = {}
        for path, stat in self.files.items():
            if stat.inode in inodes:
                names.setdefault(stat.inode, []).append(path)
        return names

    def by_path(self, entries: Sequence[FileEntry]) -> None:
        """Rule 3."""
        heirs: dict[str, list[FileEntry]] = {}
        for entry in entries:
            if entry.path in self.files and self._large_enough(entry, entry.path):
                heirs.setdefault(entry.path, []).append(entry)
        for path, may in heirs.items():
            if self._free(path) and path not in self.moved:
                begins = self.evidence.begins(path, may)
                first = next((entry for entry in may if entry.id in begins), None)
                if first is not None:
                    self._place(first, path)

    def by_content(self, entries: Sequence[FileEntry], moved_over: Collection[str]) -> None:
        """Rule 4.

        Files are looked up by their beginnings, and only those are compared that have an entry's.
        """
        wanted = {entry.id: self._wanted(entry, moved_over) for entry in entries}
        alike = self._alike(wanted.values())
        # Among equals one whose file was truncated first: the other may just have gone.
        for entry in sorted(entries, key=lambda e: (-e.mark.position, not self._is_overwritten(e))):
            paths = alike[wanted[entry.id]]
            while paths and not self._free(paths[0]):
                paths.popleft()
            for path in paths:
                free = self._free(path) and self._may_be(entry, path, moved_over)
                if free and self._holds(entry, path):
                    self._place(entry, path)
                    break

    def _is_overwritten(self, entry: FileEntry) -> bool:
        return entry.id in self.emptied or entry.path in self.files

    def _wanted(self, entry: FileEntry, moved_over: Collection[str]) -> _Beginning:
        length, digest = entry.mark.beginning
        alone = entry.path not in self.files or entry.path in moved_over
        exact = alone and entry.id not in self.emptied
        return _Beginning(entry.size if exact else None, length if digest else 0, digest)

    def _alike(self, wanted: Iterable[_Beginning]) -> dict[_Beginning, deque[str]]:
        """Free files by what is wanted of them, in order of name."""
        found: dict[_Beginning, deque[str]] = {beginning: deque() for beginning in wanted}
        lengths: dict[int | None, set[int]] = {}
        for size, length, _ in found:
            lengths.setdefault(size, set()).add(length)
        for path in sorted(self.files) if found else ():
            for size in (self.files[path].size, None):
                if size in lengths and self._free(path):
                    some = self.evidence.beginnings(path, lengths[size] - {0})
                    for length, digest in {**some, 0: b""}.items():
                        if (size, length, digest) in found:
                            found[_Beginning(size, length, digest)].append(path)
        return found

    def fate(self, entry: FileEntry) -> Fate:
        path = self.placed.get(entry.id)
        stat = self.files.get(entry.path)
        if path == entry.path:
            grown = stat is not None and stat.size > entry.size
            return Fate(Change.GROWN if grown else Change.SAME, path)
        if path is not None:
            return Fate(Change.RENAMED if stat is None else Change.ROTATED, path)
        if entry.id not in self.gone:
            path = self.barred.get(entry.id, entry.path)
            if self.is_behind_bar(entry):
                if path in self.files:
                    self.claimed.add(self.node(path))
                return Fate(Change.BARRED, path)
        if stat is None or entry.id in self.gone or self._moved_over(entry.path):
            return Fate(Change.GONE)
        if entry.path not in self.listing and not (entry.unread or entry.more):
            return Fate(Change.GONE)
        return Fate(Change.REPLACED, entry.path)

    def is_behind_bar(self, entry: FileEntry) -> bool:
        """Whether nobody can tell if the entry's file is where it was, or where its inode is."""
        path = self.barred.get(entry.id, entry.path)
        if path not in self.files:
            return self.evidence.refused(path)
        return path not in self.moved and self._free(path) and self._is_barred(entry, path)

    def _free(self, path: str) -> bool:
        return self.node(path) not in self.claimed

    def _moved_over(self, path: str) -> bool:
        """Whether what is there now is known: it was moved over the file that had the name."""
        return not self._free(path) or path in self.moved

    def _leave(self, entry: FileEntry, stat: FileStat) -> None:
        path = entry.path
        self.fates[entry.id] = Fate(
            Change.GROWN if stat.size > entry.size else Change.SAME, path, True
        )
        self.placed[entry.id] = path
        self.taken.add(path)
        self.claimed.add((stat.device, stat.inode))

    def _place(self, entry: FileEntry, path: str) -> None:
        self.placed[entry.id] = path
        self.taken.add(path)
        self.claimed.add(self.node(path))

    def _same_node(self, entry: FileEntry, path: str) -> bool:
        """Whether a file of the entry's inode is, as far as can be told, the entry's own."""
        birth = self.evidence.birth(path) if entry.birth else 0
        if birth:
            return birth == entry.birth
        # Without a proof an inode of a file that went is taken for one that was given away.
        return entry.id not in self.gone or self.files[path].signature == entry.signature

    def _may_be(self, entry: FileEntry, path: str, moved_over: Collection[str]) -> bool:
        """Rule 4, but for the content."""
        stat = self.files[path]
        if path == entry.path or stat.inode == entry.inode or stat.node in self.waited:
            return False
        if not self._large_enough(entry, path):
            return False
        if entry.id in self.emptied:
            return True
        if entry.path in moved_over:
            had = FileStat(entry.size, entry.inode, stat.modified_ns)
            return stat.size == entry.size and had.signature == entry.signature
        return stat.size == entry.size or entry.path in self.files

    def _large_enough(self, entry: FileEntry, path: str) -> bool:
        return self.files[path].size >= entry.least_size

    def _is_barred(self, entry: FileEntry, path: str) -> bool:
        return self._large_enough(entry, path) and self.evidence.refused(path)

    def _holds(self, entry: FileEntry, path: str) -> bool:
        return self._large_enough(entry, path) and bool(self.evidence.begins(path, [entry]))


def _own_first(own: str, paths: Sequence[str]) -> Iterator[str]:
    if own in paths:
        yield own
    yield from (path for path in sorted(paths) if path != own)
