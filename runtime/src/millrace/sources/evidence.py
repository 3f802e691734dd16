"""Looks into listed files for ``identity.match``, and remembers what was seen while they rest."""

from __future__ import annotations

import ctypes
import os
import struct
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from millrace.sources.entries import FileEntry
from millrace.sources.formats import FileFormat, Opened, open_regular
from millrace.sources.listing import FileStat, Listing

_FROM_HERE = -100  # AT_FDCWD
_EMPTY_PATH = 0x1000
_INODE, _BIRTH = 0x100, 0x800
_MASK_AT, _INODE_AT, _BIRTH_AT, _STATX_BYTES = 0, 0x20, 0x50, 256

_LENGTHS_KEPT = 8
"""Of more lengths the beginnings of a file are not remembered: there may be as many as files."""


class FileEvidence:
    """Evidence on the files of one listing at a time.

    ``stale`` says that a file was not what the listing says when it was opened: then the listing
    is out of date, and so are the answers. Raises ``OSError`` where a file system fails.
    """

    def __init__(self, root: Path, form: FileFormat) -> None:
        self._root = root
        self._format = form
        self._files: Listing = {}
        self._unlisted: Collection[str] = ()
        self._known: dict[tuple[str, FileStat], _Known] = {}
        self.stale = False

    def about(self, files: Listing, unlisted: Collection[str]) -> FileEvidence:
        """From now on about these files; ``unlisted`` are folders that cannot be listed."""
        self._known = {
            (path, stat): known
            for (path, stat), known in self._known.items()
            if stat in (files.get(path), self._files.get(path))
        }
        self._files = files
        self._unlisted = unlisted
        self.stale = False
        return self

    def add(self, hidden: Listing) -> Listing:
        """About these too."""
        self._files = {**hidden, **self._files}
        return hidden

    def birth(self, path: str) -> int:
        return _birth(self.born_ns(path))

    def born_ns(self, path: str) -> int:
        known = self._of(path)
        if known.born_ns is None:
            known.born_ns = 0
            with self._opened(path, known):
                pass
        return known.born_ns

    def begins(self, path: str, entries: Sequence[FileEntry]) -> Collection[int]:
        known = self._of(path)
        new = [e for e in entries if (e.id, e.mark.position) not in known.begins]
        if new:
            self._compare(path, new, known)
        return {e.id for e in entries if known.begins.get((e.id, e.mark.position))}

    def beginnings(self, path: str, lengths: Collection[int]) -> Mapping[int, bytes]:
        known = self._of(path)
        if known.lengths.issuperset(lengths):
            return known.beginnings
        with self._opened(path, known) as file:
            if file is None:
                return {}
            found = self._format.beginnings(file, lengths)
        if len(known.lengths.union(lengths)) <= _LENGTHS_KEPT:
            known.lengths = known.lengths.union(lengths)
            known.beginnings = {**known.beginnings, **found}
        return found

    def refused(self, path: str) -> bool:
        if path in self._files:
            return self._of(path).refused
        return any(path == barred or path.startswith(f"{barred}/") for barred in self._unlisted)

    def _of(self, path: str) -> _Known:
        return self._known.setdefault((path, self._files[path]), _Known())

    def _compare(self, path: str, entries: Sequence[FileEntry], known: _Known) -> None:
        with self._opened(path, known) as file:
            if file is not None:
                birth = _birth(known.born_ns or 0)
                marks = [(e.mark, _whole(e, self._files[path], birth)) for e in entries]
                begins = self._format.begins(file, marks)
                for entry, yes in zip(entries, begins, strict=True):
                    known.begins[entry.id, entry.mark.position] = yes

    @contextmanager
    def _opened(self, path: str, known: _Known) -> Iterator[Opened | None]:
        """The file that was listed; nothing where it is another one by now, or is refused."""
        listed = self._files[path]
        try:
            descriptor, found = open_regular(self._root / path)
        except FileNotFoundError:
            self.stale = True
            yield None
            return
        except PermissionError:
            known.refused = True
            # When it was made may be asked all the same.
            inode, born_ns = _statx(_FROM_HERE, os.fsencode(self._root / path), 0)
            known.born_ns = born_ns if inode == listed.inode else 0
            yield None
            return
        known.refused = False
        try:
            if FileStat.of(found).node != listed.node or found.st_size < listed.size:
                self.stale = True
                yield None
                return
            known.born_ns = born_ns_of(descriptor)
            yield Opened(descriptor, listed.size)
        finally:
            os.close(descriptor)


class _Known:
    __slots__ = ("beginnings", "begins", "born_ns", "lengths", "refused")

    def __init__(self) -> None:
        self.born_ns: int | None = None
        self.begins: dict[tuple[int, int], bool] = {}
        self.lengths: frozenset[int] = frozenset()
        self.beginnings: Mapping[int, bytes] = {}
        self.refused = False


def _whole(entry: FileEntry, stat: FileStat, birth: int) -> bool:
    """Whether the hints leave it open that the part that was read is another one."""
    if entry.inode != stat.inode or (birth and entry.birth and birth != entry.birth):
        return True
    return stat.size <= entry.size and entry.signature != stat.signature


def birth_of(descriptor: int) -> int:
    """16 bits of the time at which an open file was made; 0 where that is not known."""
    return _birth(born_ns_of(descriptor))


def _birth(born_ns: int) -> int:
    return zlib.crc32(b"%d.%d" % divmod(born_ns, 10**9)) & 0xFFFF or 1 if born_ns else 0


def born_ns_of(descriptor: int) -> int:
    """When an open file was made, in nanoseconds; 0 where that is not known."""
    return _statx(descriptor, b"", _EMPTY_PATH)[1]


def _statx(descriptor: int, path: bytes, how: int) -> tuple[int, int]:
    """The inode of a file and when it was made, in nanoseconds; 0 for what is not known."""
    found = ctypes.create_string_buffer(_STATX_BYTES)
    if _STATX is None or _STATX(descriptor, path, how, _INODE | _BIRTH, found) != 0:
        return 0, 0
    (inode,) = struct.unpack_from("Q", found, _INODE_AT)
    if not struct.unpack_from("I", found, _MASK_AT)[0] & _BIRTH:
        return inode, 0
    seconds, nanoseconds = struct.unpack_from("qI", found, _BIRTH_AT)
    return inode, int(seconds * 10**9 + nanoseconds)


_STATX = None
with suppress(AttributeError, OSError):
    # Python has no call for it before 3.15.
    _STATX = ctypes.CDLL(None).statx
    _STATX.argtypes = (
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.c_char_p,
    )
    _STATX.restype = ctypes.c_int
