"""Looks at the folder of a files source, and says where known files are and whose turn it is.

One ``Lookout`` belongs to one source of the driver. A look is cheap while nothing changes: files
at rest are not opened, and a listing that is as it was leads to no matching.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from millrace.clock import Clock
from millrace.errors import SourceError
from millrace.sources.complaints import Complaints
from millrace.sources.entries import FileEntry, ReadState
from millrace.sources.evidence import FileEvidence
from millrace.sources.formats import FileFormat
from millrace.sources.identity import Change, Fate, Matched, Seen, match
from millrace.sources.lines import BadFileError
from millrace.sources.listing import Doubt, FileStat, Listing, Place, Stillness

MANY_FILES = 1000
"""From so many files on a folder is not looked at as often as a plan is asked for."""

PAUSE_FACTOR = 10
LONGEST_PAUSE_S = 1.0

RUN_AGAIN = "put it back as it was and run again, or run again without it"

LOOKS = 4
"""Most looks of one plan at a folder whose files change under its hands."""


@dataclass(slots=True)
class Sight:
    """What one look found: where each entry's file is, and which are new.

    ``queue`` holds the paths that have records to read, with their entries; the first is next.
    ``barred`` are entries whose files must not be read: nobody knows whether they are theirs.
    ``listing`` is what was looked at, without the folders ``unlisted``, and ``state`` that of the
    plan which this sight is behind.
    """

    files: dict[str, FileStat]
    paths: dict[int, str]
    queue: list[tuple[str, int | None]] = field(default_factory=list)
    barred: set[int] = field(default_factory=set)
    stale: bool = False
    state: ReadState | None = None
    listing: Listing | None = None
    unlisted: Collection[str] = ()


class _Waiting(NamedTuple):
    """A file that was seen and not begun; an entry of it has at least the number ``since``.

    Without ``records`` it had none yet, and nobody misses it if it goes.
    """

    stat: FileStat
    since: int
    records: bool


@dataclass(frozen=True, slots=True)
class Wishes:
    """The options that looks depend on; ``grows``: files of the format may have more later."""

    watch: bool
    order: str
    grows: bool


class Lookout:
    """Finds the files of entries; used by one thread.

    ``form`` gives the format when it is first needed. Raises ``SourceError`` where entries that
    are not read to their end are gone, or any was replaced; without ``watch`` also where a file is
    gone that waited to be begun. With it there is a warning.
    """

    def __init__(
        self,
        place: Place,
        wishes: Wishes,
        form: Callable[[], FileFormat],
        complaints: Complaints,
        clock: Clock,
    ) -> None:
        self._place = place
        self._wishes = wishes
        self._form = form
        self._complaints = complaints
        self._clock = clock
        self._look_again_s = 0.0
        self._listing: dict[str, FileStat] | None = None
        self._unlisted: set[str] = set()
        self._first_nodes: frozenset[tuple[int, int]] | None = None
        self._evidence: FileEvidence | None = None
        self._last: Sight | None = None
        self._barren: dict[str, FileStat] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._doubt = Doubt()

    def last(self, state: ReadState) -> Sight | None:
        """The sight that the plan up to ``state`` was made by."""
        return self._last if self._last is not None and self._last.state is state else None

    def keep(self, sight: Sight, state: ReadState) -> None:
        """A plan was made by a sight and came to a state."""
        sight.state = state
        self._last = None if sight.stale else sight

    def forget(self) -> None:
        """No plan came of the last sight, of which some may be used up."""
        self._last = None

    def opened(self, sight: Sight, path: str, stat: FileStat) -> None:
        """A file was looked into: an entry is never newer than the listing it is looked for in."""
        sight.files[path] = stat
        if self._listing is not None and path in self._listing:
            self._listing[path] = stat

    def empty(self, path: str, stat: FileStat) -> None:
        """A file has no record yet, and is left alone until it changes."""
        if path in self._waiting:
            self._waiting[path] = self._waiting[path]._replace(stat=stat, records=False)
        self._barren[path] = stat

    def listing(self) -> Listing:
        """The files that are there, for an estimate; nothing is kept. Raises ``OSError``."""
        known: Listing = self._listing or {}
        # Only a plan may take note of files that were renamed or are gone.
        return self._place.list() if len(known) < MANY_FILES else known

    def look(self, state: ReadState, since: int, fresh: bool = False) -> tuple[Sight, ReadState]:
        """Match the entries to the files that are there now; ``fresh``: whatever was listed.

        Entries from the number ``since`` on are of a plan that may never count.
        """
        still: Stillness | None = None
        for _ in range(LOOKS):
            files = self._list(state, fresh)
            if self._is_seen(state, files):
                assert self._last is not None
                return self._last, state
            found = self._match(state, files)
            fresh = True
            if self._evidence is not None and self._evidence.stale:
                continue
            problem = self._problem(state, found)
            # A file may have been renamed behind the listing: what is wrong is so when names rest.
            sure = still is not None and (
                still.lasted() or self._doubt.is_over(self._clock.monotonic_s())
            )
            if problem is not None and sure:
                raise problem
            if problem is None and (still is not None or not found.lost):
                self._wait(state, found, since, sure)
                sight, state = self._seen(state, found)
                sight.listing, sight.unlisted = files, self._unlisted
                return sight, state
            paths = [*found.files, *(e.path for e in state.files.values()), *found.lost]
            still = Stillness(self._place, paths)
        return Sight(dict(files), {}, stale=True), state

    def _is_seen(self, state: ReadState, files: Listing) -> bool:
        """Whether nothing has changed since the last look.

        Files that are called by a name that is not read may change behind any listing.
        """
        sight = self._last
        if sight is None or sight.stale or sight.state is not state or sight.listing is not files:
            return False
        if self._doubt.since_s is not None or sight.unlisted != self._unlisted:
            return False
        return sight.files.keys() == files.keys()

    def _list(self, state: ReadState, fresh: bool) -> Listing:
        """The files that are there now, or were at the start of a run that does not watch."""
        if self._listing is None or fresh or (self._wishes.watch and self._look_is_due()):
            began_s = self._clock.monotonic_s()
            self._unlisted = set()
            try:
                found = self._place.look(self._listing, self._skip)
                if self._listing is None or found is not self._listing:
                    self._listing = dict(found)
            except OSError as error:
                if not (isinstance(error, FileNotFoundError) and self._is_renamed(state)):
                    raise self._complaints.unreadable(error) from error
                # Between a rotation's rename and its new file.
                self._listing = {}
            now_s = self._clock.monotonic_s()
            self._look_again_s = now_s + min(LONGEST_PAUSE_S, PAUSE_FACTOR * (now_s - began_s))
            if not self._wishes.watch:
                self._listing = self._only_first(self._listing, state)
        return self._listing

    def _is_renamed(self, state: ReadState) -> bool:
        """Whether what is missing is one file that was seen, and not a folder that is away."""
        name = self._place.file
        if self._place.was_there:
            return bool(name and (state.files or self._waiting))
        try:
            beside = {stat.inode for stat in self._place.around([name]).values()}
        except OSError:
            return False
        return any(e.path == name or e.inode in beside for e in state.files.values())

    def _skip(self, path: str, why: str, unreadable: bool) -> None:
        if unreadable:
            self._unlisted.add(path)
        self._complaints.skip(path, why, unreadable)

    def _only_first(self, listing: Listing, state: ReadState) -> dict[str, FileStat]:
        """Without ``watch`` only files of the first look count, whatever they are called by now."""
        if self._first_nodes is None:
            if not listing and not state.files and (self._place.pattern or self._place.file):
                raise self._complaints.matches_nothing()
            self._first_nodes = frozenset(stat.node for stat in listing.values())
        own = {entry.path for entry in state.files.values()}
        return {
            path: stat
            for path, stat in listing.items()
            if stat.node in self._first_nodes or path in own
        }

    def _look_is_due(self) -> bool:
        """A small folder is looked at whenever asked, a large one at most a tenth of the time."""
        known = self._listing or {}
        return len(known) < MANY_FILES or self._clock.monotonic_s() >= self._look_again_s

    def _match(self, state: ReadState, files: Listing) -> Matched:
        if self._evidence is None:
            self._evidence = FileEvidence(self._place.root, self._form())
        evidence = self._evidence.about(files, self._unlisted)

        def around(paths: Collection[str]) -> Listing:
            return evidence.add(self._place.around(paths))

        begun = self._begun(state)
        waiting = {path: one.stat for path, one in self._waiting.items() if path not in begun}
        try:
            found = match(Seen(state.files, state.gone, waiting), files, around, evidence)
        except OSError as error:
            raise self._complaints.unreadable(error) from error
        return replace(found, lost=tuple(p for p in found.lost if self._waiting[p].records))

    def _problem(self, state: ReadState, found: Matched) -> SourceError | None:
        """What keeps the source from going on, if something does."""
        for number, fate in found.fates.items():
            entry = state.files[number]
            if fate.change is Change.GONE and (entry.unread or entry.more):
                gone = BadFileError(f"is gone after {entry.records} of its records were read")
                return self._complaints.error(entry.path, gone)
            if fate.change is Change.REPLACED:
                problem = self._replaced(entry, found.files[fate.path])
                return self._complaints.error(entry.path, problem)
        if found.lost and not self._wishes.watch:
            path = found.lost[0]
            return self._complaints.error(path, BadFileError(self._lost(path, found), RUN_AGAIN))
        return None

    def _lost(self, path: str, found: Matched) -> str:
        """What became of a file that waited."""
        before, now = self._waiting[path].stat, found.files.get(path)
        what = "is gone" if now is None else "was replaced"
        if now is not None and now.node == before.node and now.size < before.size:
            what = f"has shrunk from {before.size} to {now.size} bytes"
        return f"{what} before any of it was read"

    def _replaced(self, entry: FileEntry, stat: FileStat) -> BadFileError:
        if stat.size < entry.least_size:
            return BadFileError(f"has shrunk from {entry.known_size} to {stat.size} bytes")
        if stat.inode == entry.inode and stat.size > entry.size and self._wishes.grows:
            return BadFileError(f"was changed in its first {entry.mark.position} bytes")
        return BadFileError(f"was changed in the {entry.records} records already read")

    def _seen(self, state: ReadState, found: Matched) -> tuple[Sight, ReadState]:
        """Take down where the files are; those that have records to read make the queue."""
        files = found.files
        changed: dict[int, FileEntry] = {}
        gone = set(state.gone)
        sight = Sight(dict(files), {})
        held = False
        for number, fate in found.fates.items():
            if fate.change is Change.GONE:
                gone.add(number)
                continue
            entry = state.files[number]
            if fate.path not in files:
                # The folder that it is in was told already.
                held = held or entry.more
                continue
            gone.discard(number)
            sight.paths[number] = fate.path
            barred = fate.change is Change.BARRED
            now = (self._stay_away if barred else self._found)(sight, entry, fate)
            if now is not entry:
                changed[number] = now
        sight.queue += [(path, None) for path in found.new if self._has_records(path, files[path])]
        if held:
            # A file that was begun is finished before another one begins.
            sight.queue.clear()
        after = state.with_entries(changed, frozenset(gone))
        sight.queue.sort(key=lambda item: self._turn(after, files, *item))
        return sight, after

    def _has_records(self, path: str, stat: FileStat) -> bool:
        """Whether a new file may have some."""
        return bool(stat.size or not self._wishes.grows) and self._barren.get(path) != stat

    def _begun(self, state: ReadState) -> dict[str, int]:
        """Files that waited and have entries by now, with the numbers of those."""
        if not self._waiting:
            return {}
        newest: dict[int, int] = {}
        for number, entry in state.files.items():
            newest[entry.inode] = max(number, newest.get(entry.inode, -1))
        begun = {path: newest.get(one.stat.inode, -1) for path, one in self._waiting.items()}
        return {p: number for p, number in begun.items() if number >= self._waiting[p].since}

    def _wait(self, state: ReadState, found: Matched, since: int, sure: bool) -> None:
        """Take down which files wait from now on, and tell of those that are lost for sure."""
        files, before = found.files, self._waiting
        assert self._evidence is not None
        refused = self._evidence.refused
        kept = {path for path, number in self._begun(state).items() if number >= since}
        kept.update(path for path in before if path not in files and refused(path))
        if sure or not found.lost:
            self._doubt = Doubt()
            for path in found.lost:
                self._complaints.lost(path, self._lost(path, found))
        else:
            kept.update(found.lost)
        self._barren = {p: s for p, s in self._barren.items() if files.get(p) == s}
        self._waiting = {
            path: _Waiting(files[path], since, self._has_records(path, files[path]))
            for path in found.new
        }
        self._waiting.update((path, before[path]) for path in kept)

    def _found(self, sight: Sight, entry: FileEntry, fate: Fate) -> FileEntry:
        """The entry as its file is now; one that has records to read has its turn."""
        stat = sight.files[fate.path]
        if not fate.at_rest:
            assert self._evidence is not None
            entry = entry.seen(fate.path, stat, self._evidence.birth(fate.path))
            if self._wishes.grows and stat.size > entry.size:
                # Seen, so that it may not go unnoticed before its turn comes.
                entry = replace(entry, unread=stat.size - entry.mark.position)
        if self.waits(entry, stat):
            sight.queue.append((fate.path, entry.id))
        return entry

    def _stay_away(self, sight: Sight, entry: FileEntry, fate: Fate) -> FileEntry:
        """The entry where nobody knows its file: one that was begun keeps its turn."""
        self._complaints.barred(fate.path, self.waits(entry, sight.files[fate.path]))
        sight.barred.add(entry.id)
        if entry.more:
            sight.queue.append((fate.path, entry.id))
        return entry if fate.path == entry.path else replace(entry, path=fate.path)

    def _turn(
        self, state: ReadState, files: Listing, path: str, number: int | None
    ) -> tuple[bool, int, bool, str]:
        """What decides whose turn it is: what was begun, then the order, then the name."""
        begun = number is not None and state.files[number].more
        modified_ns = files[path].modified_ns if self._wishes.order == "modified" else 0
        return not begun, modified_ns, number is None and self._wishes.order == "modified", path

    def waits(self, entry: FileEntry, stat: FileStat) -> bool:
        """Whether a file has, as far as is known, records that are not planned."""
        if entry.more or stat.size > entry.size:
            return True
        return not self._wishes.watch and entry.unread > 0
