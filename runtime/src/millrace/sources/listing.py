"""Which files a files source sees: one file, those of a folder, or those that a pattern names.

Only regular files count, also behind symbolic links; nothing is opened here, so that no FIFO or
device can hold anything up. What is neither a file nor a folder is told to a callback. A listing
that other programs rename in may miss a file or show it twice, so one is believed only when
everything that the one before it showed is still there under the same name.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import logging
import os
import re
import stat as kinds
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from inotify_simple import INotify, flags

log = logging.getLogger(__name__)

_WILD = "*?["

STEADY_TRIES = 8
"""Most listings for one look; a folder in which names never rest is believed after so many."""

TICK_S = 0.025
"""Longer than a file system's clock takes for a step: a later change has a later time."""

YOUNG_S = 5.0
"""A folder that changed so lately may change again within one step of its clock."""

RESTLESS_S = 10.0
"""So long is waited for names to rest before something is taken for gone all the same."""

MOST_WATCHED = 1000
"""Folders of one source of which the kernel is asked to tell."""

_HEARD_MS = 500
_NEWS = flags.MODIFY | flags.CREATE | flags.MOVED_TO | flags.CLOSE_WRITE

Skip = Callable[[str, str, bool], None]
"""Told of an entry that is left out: its path, why, and whether its content is unreadable."""

_KINDS = (
    (kinds.S_ISFIFO, "is a FIFO"),
    (kinds.S_ISSOCK, "is a socket"),
    (kinds.S_ISCHR, "is a device"),
    (kinds.S_ISBLK, "is a device"),
)


class FileStat(NamedTuple):
    """What the file system says of a file, quickly."""

    size: int
    inode: int
    modified_ns: int
    changed_ns: int = 0
    device: int = 0

    @classmethod
    def of(cls, found: os.stat_result) -> FileStat:
        return cls(found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_dev)

    @property
    def node(self) -> tuple[int, int]:
        """What tells one file from another at one moment; both may be given away later."""
        return self.device, self.inode

    @property
    def signature(self) -> int:
        """32 bits that differ, but for chance, when size, inode or time of change do."""
        return zlib.crc32(f"{self.size}/{self.inode}/{self.modified_ns}".encode())

    @property
    def changed(self) -> int:
        """16 bits of the inode's own time of change, never 0."""
        return zlib.crc32(b"%d" % self.changed_ns) & 0xFFFF or 1


Listing = Mapping[str, FileStat]


def no_skip(path: str, why: str, unreadable: bool) -> None:
    """For those who do not want to be told."""


@dataclass(slots=True)
class Place:
    """``root`` is the folder that file names are relative to; with neither ``file`` nor
    ``pattern`` it is the folder that is read.

    Whether a path ``was_there`` decides what it is: a folder that comes later, or comes back, looks
    like a file until then.
    """

    root: Path
    file: str = ""
    pattern: str = ""
    was_there: bool = True

    @classmethod
    def of(cls, path: str, folder: Path) -> Place:
        """Where ``path``, relative to ``folder``, leads: a folder, a file or a pattern. What cannot
        be looked at is not there yet: whoever lists it hears why."""
        whole = folder / path
        try:
            found: os.stat_result | None = whole.stat()
        except OSError:
            found = None
        if found is not None and kinds.S_ISDIR(found.st_mode):
            return cls(whole)
        if found is not None or not any(c in path for c in _WILD):
            return cls(whole.parent, file=whole.name, was_there=found is not None)
        parts = whole.parts
        wild = next(i for i, part in enumerate(parts) if any(c in part for c in _WILD))
        return cls(Path(*parts[:wild]), pattern=str(Path(*parts[wild:])))

    def decide(self) -> None:
        """Look again what the path is, as long as nothing was there. Raises ``OSError``."""
        whole = self.root / self.file
        if not self.was_there and whole.exists():
            if whole.is_dir():
                self.root, self.file = whole, ""
            self.was_there = True

    def look(self, before: Listing | None = None, skip: Skip = no_skip) -> Listing:
        """A listing that renames did not tear; ``before`` itself where nothing changed.

        Raises ``OSError``.
        """
        for _ in range(STEADY_TRIES):
            found = self.list(skip)
            if before is not None:
                if found == before:
                    return before
                if _keeps(before, found):
                    return found
            before = found
        return found

    def list(self, skip: Skip = no_skip) -> dict[str, FileStat]:
        """The files by name, in order of name, as one pass shows them.

        Names that begin with ``_`` or ``.`` are skipped unless the file is named outright; of a
        folder only its own files count. Raises ``OSError``.
        """
        self.decide()
        if self.file:
            path = self.root / self.file
            found = path.stat()
            if not kinds.S_ISREG(found.st_mode):
                skip(self.file, _kind(found.st_mode) or "is a folder", False)
                return {}
            return {self.file: FileStat.of(found)}
        walk = _Walk(self.root, skip)
        if self.pattern:
            walk.match(self.pattern)
        else:
            walk.folder()
        return dict(sorted(walk.found.items()))

    def folders(self) -> set[Path]:
        """Those in which files are, or may come to be, as far as there are any now."""
        if not os.path.dirname(self.pattern):
            return {self.root}
        try:
            names = self.list()
        except OSError:
            names = {}
        return {self.root, *((self.root / name).parent for name in names)}

    def concerns(self, name: str) -> bool:
        """Whether what happened to a file of this name may be of interest."""
        return name == self.file if self.file else not name.startswith(("_", "."))

    def around(self, paths: Iterable[str]) -> dict[str, FileStat]:
        """All other files of the folders in which ``paths`` lie, whatever their names.

        A file that was read may have been given a name that is not read.
        """
        found: dict[str, FileStat] = {}
        for folder in {os.path.dirname(path) for path in paths} | {""}:
            walk = _Walk(self.root, no_skip)
            walk.folder(folder, lambda _: True)
            found.update(walk.found)
        return found


@dataclass(slots=True)
class Doubt:
    """How long something has been wrong at every look, though names never rest."""

    since_s: float | None = None

    def is_over(self, now_s: float) -> bool:
        """Whether it is so for too long to be put down to renames; it is doubted from now on."""
        if self.since_s is None:
            self.since_s = now_s
        return now_s - self.since_s >= RESTLESS_S


class Stillness:
    """Whether names rested from when this was made until ``lasted`` is asked.

    A listing in between shows every file only if they did: what is missing from any other one may
    have been renamed behind it. ``paths`` lie in the folders that are watched.
    """

    def __init__(self, place: Place, paths: Iterable[str]) -> None:
        self._folders = {place.root / os.path.dirname(path) for path in paths} | {place.root}
        self._times = self._changed()
        if max(self._times.values()) > time.time_ns() - YOUNG_S * 1e9:
            time.sleep(TICK_S)

    def lasted(self) -> bool:
        return self._changed() == self._times

    def _changed(self) -> dict[Path, int]:
        """When names of each folder changed, in nanoseconds; 0 for one that is not there."""
        times = {}
        for folder in self._folders:
            try:
                times[folder] = folder.stat().st_mtime_ns
            except OSError:
                times[folder] = 0
        return times


def _keeps(before: Listing, found: Listing) -> bool:
    return all(
        (other := found.get(path)) is not None and other.node == one.node
        for path, one in before.items()
    )


def _kind(mode: int) -> str:
    return next((text for test, text in _KINDS if test(mode)), "")


def _visible(name: str) -> bool:
    return name[0] not in "_."


@dataclass(slots=True)
class _Walk:
    """Goes over folders below ``root``, each once, so that links cannot lead in circles."""

    root: Path
    skip: Skip
    found: dict[str, FileStat] = field(default_factory=dict)
    seen: set[tuple[int, int, int]] = field(default_factory=set)
    links: deque[tuple[str, list[str]]] = field(default_factory=deque)

    def folder(self, path: str = "", wanted: Callable[[str], bool] = _visible) -> None:
        """The files of one folder."""
        prefix = f"{path}/" if path else ""
        for entry in self._entries(path):
            if wanted(entry.name):
                self._add(prefix + entry.name, entry.stat, entry.is_symlink)

    def match(self, pattern: str) -> None:
        """The files that a pattern names, as ``glob`` does with ``**`` for any folders."""
        parts = [part for part in pattern.split("/") if part]
        self._descend("", parts)
        # Folders behind links come last, so that files keep the names that they have without.
        while self.links:
            self._descend(*self.links.popleft())

    def _descend(self, path: str, parts: list[str]) -> None:
        part, rest = parts[0], parts[1:]
        if part == "**":
            if not self._first_time(path, len(parts)):
                return
            if rest:
                self._descend(path, rest)
            else:
                self.folder(path)
            for entry in sorted(self._entries(path), key=lambda entry: entry.name):
                if _visible(entry.name) and _is_folder(entry):
                    below = os.path.join(path, entry.name)
                    if entry.is_symlink():
                        self.links.append((below, parts))
                    else:
                        self._descend(below, parts)
            return
        if not any(c in part for c in _WILD):
            self._go_on(os.path.join(path, part), rest)
            return
        fits = re.compile(fnmatch.translate(part)).match
        for entry in sorted(self._entries(path), key=lambda entry: entry.name):
            name = entry.name
            if not fits(name):
                continue
            if rest:
                if (_visible(name) or part[0] == name[0]) and _is_folder(entry):
                    self._descend(os.path.join(path, name), rest)
            elif _visible(name):
                self._add(os.path.join(path, name), entry.stat, entry.is_symlink)

    def _go_on(self, path: str, rest: list[str]) -> None:
        whole = self.root / path
        try:
            there = whole.is_dir() if rest else whole.exists()
        except OSError as error:
            self.skip(path, f"cannot be looked at ({error.strerror})", True)
            return
        if there and rest:
            self._descend(path, rest)
        elif there and _visible(whole.name):
            self._add(path, whole.stat, whole.is_symlink)

    def _first_time(self, path: str, left: int) -> bool:
        try:
            found = os.stat(self.root / path)
        except OSError:
            return False
        key = (found.st_dev, found.st_ino, left)
        if key in self.seen:
            return False
        self.seen.add(key)
        return True

    def _entries(self, path: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self.root / path) as entries:
                return list(entries)
        except FileNotFoundError:
            if not path:
                raise
            return []
        except OSError as error:
            if not path:
                raise
            self.skip(path, f"cannot be listed ({error.strerror})", True)
            return []

    def _add(
        self, path: str, look: Callable[[], os.stat_result], linked: Callable[[], bool]
    ) -> None:
        try:
            found = look()
        except FileNotFoundError:
            # Files that were read may be removed, also while they are listed.
            if linked():
                self.skip(path, "is a link to nothing", False)
            return
        except OSError as error:
            circle = error.errno == errno.ELOOP
            why = "is a link that leads to itself" if circle else f"({error.strerror})"
            self.skip(path, why, not circle)
            return
        if kinds.S_ISREG(found.st_mode):
            self.found[path] = FileStat.of(found)
        elif why := _kind(found.st_mode):
            self.skip(path, why, False)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


class FolderNews:
    """A thread that calls ``tell`` when something changes at a place.

    Where the kernel cannot tell (a network's file system, too many folders) nothing is told.
    """

    def __init__(self, place: Place, tell: Callable[[], None]) -> None:
        self._place = place
        self._tell = tell
        self._closed = threading.Event()
        folders = place.folders()
        if len(folders) > MOST_WATCHED:
            return  # others on this machine want watches too
        try:
            inotify = self._watched(folders)
        except OSError as error:
            log.info("changes of files are found by looking every time: %s", error)
            return
        threading.Thread(target=self._run, args=(inotify,), name="news", daemon=True).start()

    def close(self) -> None:
        """Tell nothing more."""
        self._closed.set()

    @staticmethod
    def _watched(folders: Iterable[Path]) -> INotify:
        with contextlib.ExitStack() as stack:
            inotify = stack.enter_context(contextlib.closing(INotify()))
            for folder in folders:
                inotify.add_watch(folder, _NEWS)
            stack.pop_all()
        return inotify

    def _run(self, inotify: INotify) -> None:
        with contextlib.closing(inotify):
            while not self._closed.is_set():
                events = inotify.read(timeout=_HEARD_MS)
                told = any(self._place.concerns(event.name) for event in events)
                if told and not self._closed.is_set():
                    self._tell()
