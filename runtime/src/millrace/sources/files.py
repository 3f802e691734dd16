"""The files source: text lines, JSON lines, CSV and Parquet, of files that may still grow.

A source partition is one file; the offset of a record is its ordinal in the file. What is
appended to a file is new input. A file is an *entry*: it is known by the content that was read of
it, whatever it is called by now (``identity``), so it may be renamed and rotated at any time. One
that shrinks or is replaced is an error and never a silent loss. One that was read to its end may
be removed, and is known when it comes back.

A file that was begun is read to the end that was known when its turn came; then it is the turn of
the next that has records, in order of the time of their last change (then of name) or of name
alone. Each plan looks at the folder first, unless what is known to wait fills it.

If the driver dies at any point, nothing is lost: offsets are part of the record of the topology,
and a plan that is not in the record was never made.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.clock import Clock, SystemClock
from millrace.errors import SourceAwayError, SourceError, TopologyError
from millrace.protocol.types import Json, Replay, RootRange
from millrace.sources.arrow_types import arrow_schema
from millrace.sources.base import ReadBatch, Source, SourcePlan, check_cut, range_of
from millrace.sources.csv_rows import CsvDecoder
from millrace.sources.entries import (
    FileEntry,
    ReadState,
    decode_state,
    plain_name,
    shown_name,
    stored_name,
)
from millrace.sources.evidence import FileEvidence, birth_of
from millrace.sources.finding import candidates
from millrace.sources.formats import FileFormat, LineFormat, Opened, open_regular
from millrace.sources.identity import Change, Fate, match
from millrace.sources.json_lines import JsonDecoder
from millrace.sources.lines import BadFileError
from millrace.sources.listing import FileStat, Listing, Place
from millrace.sources.parquet import ParquetFormat, parquet_schema
from millrace.sources.text import TextDecoder

log = logging.getLogger(__name__)

MOST_RANGES = 4096
"""Most files in one plan."""

MANY_FILES = 1000
"""From so many files on a folder is not looked at as often as a plan is asked for."""

PAUSE_FACTOR = 10
LONGEST_PAUSE_S = 1.0

LOOKS = 4
"""Most looks of one plan at a folder whose files change under its hands."""

_STATES_KEPT = 4


@dataclass(slots=True)
class _Sight:
    """What one look found: where each entry's file is, and which are new.

    ``queue`` holds the paths that have records to read, with their entries; the first is next.
    ``listing`` is what was looked at, and ``state`` that of the plan which this sight is behind.
    """

    files: dict[str, FileStat]
    paths: dict[int, str]
    queue: list[tuple[str, int | None]] = field(default_factory=list)
    stale: bool = False
    state: ReadState | None = None
    listing: Listing | None = None


@dataclass(slots=True)
class _Draft:
    """A plan in the making, on from ``state``; ``changed`` is not in that yet."""

    left: int
    state: ReadState
    ranges: list[RootRange] = field(default_factory=list)
    changed: dict[int, FileEntry] = field(default_factory=dict)
    next: int = 0

    def __post_init__(self) -> None:
        self.next = self.state.next

    @property
    def full(self) -> bool:
        return self.left <= 0 or len(self.ranges) >= MOST_RANGES

    def fold(self) -> ReadState:
        """The state with all that was changed."""
        self.state = self.state.with_entries(self.changed)
        self.changed = {}
        return self.state


class _StaleError(Exception):
    """A file is not what the listing says; only another look can tell more."""


class FileSource(Source):
    """Options: ``path`` (file, folder or pattern), ``format``, ``watch``, ``order``, ``schema``.

    With ``watch: false`` the files are listed once, a last line counts without its newline, and
    the source is drained when all are read.
    """

    def __init__(
        self, name: str, options: Mapping[str, Any], folder: Path, clock: Clock | None = None
    ) -> None:
        super().__init__(name, options, folder)
        self._clock = clock or SystemClock()
        self._look_again_s = 0.0
        self.path = str(self.options["path"])
        self.kind = str(self.options.get("format", "text"))
        self.watch = bool(self.options.get("watch", True))
        self.order = str(self.options.get("order", "modified"))
        self._place = Place.of(self.path, folder)
        self._format: FileFormat | None = None
        self._listing: dict[str, FileStat] | None = None
        self._first_nodes: frozenset[tuple[int, int]] | None = None
        self._evidence: FileEvidence | None = None
        self._sight: _Sight | None = None
        self._barren: dict[str, FileStat] = {}
        self._warned: set[tuple[str, str]] = set()
        self._states: list[tuple[Json, ReadState]] = []

    def schema(self) -> pa.Schema:
        return self._opened_format().schema

    def check(self) -> None:
        self.schema()
        try:
            found = self._place.list()
        except OSError as error:
            raise self._unreadable(error) from error
        if not found and self._place.pattern and not self.watch:
            raise self._matches_nothing()

    # -- planning

    def plan(self, offsets: Json, max_records: int) -> SourcePlan:
        before = self._state(offsets)
        draft = _Draft(max_records, before)
        sight = self._sight if self._sight and self._sight.state is before else None
        if sight is not None:
            # What is known to wait may fill the window: then no folder needs to be looked at.
            self._take(draft, sight)
        for look in range(LOOKS):
            if sight is not None and draft.full:
                break
            sight = self._look(draft, fresh=look > 0)
            self._take(draft, sight)
            if not sight.stale:
                break
        assert sight is not None
        after = draft.fold()
        encoded = offsets if after is before and offsets is not None else after.encode()
        self._remember(encoded, after)
        sight.state = after
        self._sight = None if sight.stale else sight
        drained = not self.watch and not sight.queue and not sight.stale
        return SourcePlan(tuple(draft.ranges), encoded, drained, self._lag(after, sight))

    # -- looking

    def _look(self, draft: _Draft, fresh: bool = False) -> _Sight:
        """Match the entries to the files that are there now."""
        state = draft.fold()
        problem: SourceError | None = None
        for _ in range(LOOKS):
            files = self._list(state, fresh)
            if self._is_seen(state, files):
                assert self._sight is not None
                return self._sight
            fates, new, known = self._match(state, files)
            fresh = True
            if self._evidence is not None and self._evidence.stale:
                continue
            doubt, problem = problem, self._problem(state, fates, known)
            if problem is None:
                sight = self._seen(draft, known, fates, new)
                sight.listing = files
                return sight
            # A file may have been renamed behind the listing: what is wrong is so at two looks.
            if doubt is not None:
                raise problem
        return _Sight(dict(files), {}, stale=True)

    def _is_seen(self, state: ReadState, files: Listing) -> bool:
        """Whether nothing has changed since the last look.

        Files that are called by a name that is not read may change behind any listing.
        """
        sight = self._sight
        if sight is None or sight.state is not state or sight.listing is not files:
            return False
        return sight.files.keys() == files.keys()

    def _list(self, state: ReadState, fresh: bool) -> Listing:
        """The files that are there now, or were at the start of a run that does not watch."""
        if self._listing is None or fresh or (self.watch and self._look_is_due()):
            began_s = self._clock.monotonic_s()
            try:
                found = self._place.look(self._listing, self._skip)
                if self._listing is None or found is not self._listing:
                    self._listing = dict(found)
            except OSError as error:
                missing = isinstance(error, FileNotFoundError)
                if not (missing and self._place.file and state.files):
                    raise self._unreadable(error) from error
                # Between a rotation's rename and its new file.
                self._listing = {}
            now_s = self._clock.monotonic_s()
            self._look_again_s = now_s + min(LONGEST_PAUSE_S, PAUSE_FACTOR * (now_s - began_s))
            if not self.watch:
                self._listing = self._only_first(self._listing, state)
        return self._listing

    def _only_first(self, listing: Listing, state: ReadState) -> dict[str, FileStat]:
        """Without ``watch`` only files of the first look count, whatever they are called by now."""
        if self._first_nodes is None:
            if not listing and not state.files and (self._place.pattern or self._place.file):
                raise self._matches_nothing()
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

    def _match(
        self, state: ReadState, files: Listing
    ) -> tuple[Mapping[int, Fate], tuple[str, ...], Listing]:
        """Fates, new files, and all files that entries were looked for in."""
        lost = set()
        for number, entry in state.files.items():
            stat = files.get(entry.path)
            elsewhere = stat is None or (entry.inode and entry.inode != stat.inode)
            if elsewhere and number not in state.gone:
                lost.add(entry.path)
        try:
            hidden = self._place.around(lost) if lost else {}
            known = {**hidden, **files} if hidden else files
            if self._evidence is None:
                self._evidence = FileEvidence(self._place.root, self._opened_format())
            evidence = self._evidence.about(known)
            found = match(state.files, state.gone, files, evidence, hidden)
        except OSError as error:
            raise self._unreadable(error) from error
        return found.fates, found.new, known

    def _problem(
        self, state: ReadState, fates: Mapping[int, Fate], known: Listing
    ) -> SourceError | None:
        """What keeps the source from going on, if something does."""
        for number, fate in fates.items():
            entry = state.files[number]
            if fate.change is Change.GONE and (entry.unread or entry.more):
                gone = BadFileError(f"is gone after {entry.records} of its records were read")
                return self._error(entry.path, gone)
            if fate.change is Change.REPLACED:
                return self._error(entry.path, self._replaced(entry, known[fate.path]))
        return None

    def _replaced(self, entry: FileEntry, stat: FileStat) -> BadFileError:
        if stat.size < entry.least_size:
            return BadFileError(f"has shrunk from {entry.size} to {stat.size} bytes")
        if stat.inode == entry.inode and stat.size > entry.size and self.kind != "parquet":
            return BadFileError(f"was changed in its first {entry.mark.position} bytes")
        return BadFileError(f"was changed in the {entry.records} records already read")

    def _seen(
        self, draft: _Draft, files: Listing, fates: Mapping[int, Fate], new: tuple[str, ...]
    ) -> _Sight:
        """Take down where the files are; those that have records to read make the queue."""
        state = draft.state
        changed: dict[int, FileEntry] = {}
        gone = set(state.gone)
        sight = _Sight(dict(files), {})
        for number, fate in fates.items():
            if fate.change is Change.GONE:
                gone.add(number)
                continue
            entry, stat = state.files[number], files[fate.path]
            sight.paths[number] = fate.path
            if number in gone:
                gone.discard(number)
            if fate.path != entry.path or not entry.unchanged(stat):
                assert self._evidence is not None
                entry = entry.seen(fate.path, stat, self._evidence.birth(fate.path))
                changed[number] = entry
            if self._waits(entry, stat):
                sight.queue.append((fate.path, number))
        self._barren = {p: s for p, s in self._barren.items() if files.get(p) == s}
        for path in new:
            if (files[path].size or self.kind == "parquet") and path not in self._barren:
                sight.queue.append((path, None))
        draft.state = state.with_entries(changed, frozenset(gone))
        sight.queue.sort(key=lambda item: self._turn(draft.state, files, *item))
        return sight

    def _turn(
        self, state: ReadState, files: Listing, path: str, number: int | None
    ) -> tuple[bool, int, bool, str]:
        """What decides whose turn it is: what was begun, then the order, then the name."""
        begun = number is not None and state.files[number].more
        modified_ns = files[path].modified_ns if self.order == "modified" else 0
        return not begun, modified_ns, number is None and self.order == "modified", path

    def _waits(self, entry: FileEntry, stat: FileStat) -> bool:
        """Whether a file has, as far as is known, records that are not planned."""
        if entry.more or stat.size > entry.size:
            return True
        return not self.watch and entry.unread > 0

    def _skip(self, path: str, why: str, unreadable: bool) -> None:
        """An entry of the folder is left out; without ``watch`` nobody would come back to it."""
        if unreadable and not self.watch:
            raise SourceError(
                f"source {self.name!r}: {self._place.root / shown_name(path)} {why}; make it "
                "readable or take it away"
            )
        if (path, why) not in self._warned:
            self._warned.add((path, why))
            whole = self._place.root / shown_name(path)
            log.warning("source %r: %s %s; it is not read", self.name, whole, why)

    # -- taking records

    def _take(self, draft: _Draft, sight: _Sight) -> None:
        """Plan records of the files that have some, one after the other."""
        while sight.queue and not draft.full:
            path, number = sight.queue[0]
            entry = FileEntry(draft.next, path)
            if number is not None:
                entry = draft.changed.get(number) or draft.state.files[number]
            try:
                after = self._take_file(draft, entry, sight)
            except _StaleError:
                sight.stale = True
                return
            if after is None:
                self._barren[path] = sight.files[path]
            else:
                draft.changed[after.id] = after
                draft.next = max(draft.next, after.id + 1)
                sight.paths[after.id] = path
                if after.more:
                    sight.queue[0] = (path, after.id)
                    continue
                if sight.files[path].size > after.size:
                    sight.queue.append((path, after.id))
            del sight.queue[0]

    def _take_file(self, draft: _Draft, entry: FileEntry, sight: _Sight) -> FileEntry | None:
        """The entry behind the records that are planned; ``None`` for a file without any."""
        path, listed = self._place.root / entry.path, sight.files[entry.path]
        try:
            descriptor, found = open_regular(path)
        except FileNotFoundError:
            raise _StaleError from None
        except PermissionError as error:
            self._skip(entry.path, f"cannot be read ({error.strerror})", True)
            return None
        except OSError as error:
            raise self._unreadable(error) from error
        try:
            stat = FileStat.of(found)
            if stat.node != listed.node or stat.size < listed.size:
                raise _StaleError
            after = self._scan(draft, entry, descriptor, stat)
            # An entry is never newer than the listing that it is looked for in.
            sight.files[entry.path] = stat
            if self._listing is not None and entry.path in self._listing:
                self._listing[entry.path] = stat
            return after
        except BadFileError as problem:
            if FileStat.of(os.fstat(descriptor)) != listed:
                raise _StaleError from None
            raise self._error(entry.path, problem) from problem
        finally:
            os.close(descriptor)

    def _scan(
        self, draft: _Draft, entry: FileEntry, descriptor: int, stat: FileStat
    ) -> FileEntry | None:
        # Of a file that was begun it is the turn up to the end that was known then.
        begun = entry.more and self.watch and self.kind != "parquet"
        file = Opened(descriptor, min(entry.size, stat.size) if begun else stat.size)
        form = self._opened_format()
        mark = form.learn(file, entry.mark) if entry.records else entry.mark
        found = form.scan(file, mark, draft.left, final=not self.watch)
        if not entry.records and not found.count:
            return None
        after = replace(
            entry.seen(entry.path, stat, entry.birth or birth_of(descriptor)),
            mark=found.mark,
            records=entry.records + found.count,
            size=file.size,
            unread=found.unread,
            more=found.more,
        )
        if found.count:
            locator = {
                "e": entry.id,
                "f": stored_name(entry.path),
                "i": stat.inode,
                **form.names(found.mark),
                **found.locator,
            }
            draft.left -= found.count
            draft.ranges.append(
                RootRange(self.name, entry.partition, entry.records, found.count, locator)
            )
        return after

    def lag(self, offsets: Json) -> int | None:
        if not self.watch:
            return None  # what it reads was listed once, so the last plan told all
        state = self._state(offsets)
        listing: Listing = self._listing or {}
        if len(listing) < MANY_FILES:
            # Not kept: only a plan may take note of files that were renamed or are gone.
            listing = self._place.list()
        by_path = {e.path: e for e in state.files.values()}
        by_inode = {e.inode: e for e in state.files.values() if e.inode}
        behind = 0
        for path, stat in listing.items():
            entry = by_path.get(path)
            if entry is None or entry.inode not in (0, stat.inode):
                entry = by_inode.get(stat.inode)
            if entry is None or self._waits(entry, stat):
                behind += max(0, stat.size - (entry.read_bytes if entry else 0))
        return self._records_in(behind, state)

    def _lag(self, state: ReadState, sight: _Sight) -> int | None:
        """What waits behind a plan."""
        behind = 0
        for path, number in sight.queue:
            read = state.files[number].read_bytes if number is not None else 0
            behind += max(0, sight.files[path].size - read)
        return self._records_in(behind, state)

    def _records_in(self, size: int, state: ReadState) -> int | None:
        """Estimate of the records in so many bytes, from the mean size of those that were read."""
        if not size:
            return 0
        return round(size * state.records / state.read_bytes) if state.read_bytes else None

    # -- reading

    def split(self, piece: RootRange, at: int) -> tuple[RootRange, RootRange]:
        check_cut(piece, at)
        rest = piece.count - at
        trim = self._opened_format().trim
        return (
            replace(piece, count=at, locator=trim(piece.locator, 0, at)),
            replace(
                piece, start=piece.start + at, count=rest, locator=trim(piece.locator, at, rest)
            ),
        )

    def locate(self, piece: RootRange, index: int) -> Json:
        return self._opened_format().trim(piece.locator, index, 1)

    def read(self, piece: RootRange) -> Iterator[ReadBatch]:
        form = self._opened_format()
        done = 0
        problem: BadFileError | None = None
        for file in self._candidates(piece):
            # Where a file fails in the middle another one may go on: it was copied and truncated.
            rest = self.split(piece, done)[1] if done else piece
            try:
                for batch in form.read(file, rest):
                    done += batch.data.num_rows
                    yield batch
                return
            except BadFileError as bad:
                problem = problem or bad
        raise self._not_found(piece, problem)

    def payload(self, replay: Replay) -> bytes:
        piece = range_of(replay)
        problem: BadFileError | None = None
        for file in self._candidates(piece):
            try:
                return self._opened_format().raw(file, piece)
            except BadFileError as bad:
                problem = problem or bad
        raise self._not_found(piece, problem)

    def place(self, replay: Replay) -> str:
        """``texts/a.txt, line 17``: the name that the file has now, from the topology's folder."""
        piece = range_of(replay)
        for file in self._candidates(piece):
            try:
                where = self._opened_format().place(file, piece)
            except BadFileError:
                continue
            path = os.path.realpath(file.path)
            if path.startswith(f"{self.folder}{os.sep}"):
                path = os.path.relpath(path, self.folder)
            return f"{shown_name(path)}, {where}"
        return f"{shown_name(plain_name(replay.locator['f']))}, record {replay.offset + 1}"

    def _candidates(self, piece: RootRange) -> Iterator[Opened]:
        try:
            yield from candidates(self._place, self._opened_format(), piece.locator)
        except OSError as error:
            raise self._unreadable(error) from error

    def _not_found(self, piece: RootRange, problem: BadFileError | None) -> SourceError:
        gone = BadFileError("is gone, but records of it are still to be read")
        return self._error(plain_name(piece.locator["f"]), problem or gone)

    # -- states, formats, errors

    def _state(self, offsets: Json) -> ReadState:
        if offsets is None:
            return ReadState()
        for seen, state in self._states:
            if seen is offsets or seen == offsets:
                return state
        return decode_state(offsets)

    def _remember(self, offsets: Json, state: ReadState) -> None:
        if not any(seen is offsets for seen, _ in self._states):
            self._states = [(offsets, state), *self._states[: _STATES_KEPT - 1]]

    def _opened_format(self) -> FileFormat:
        if self._format is None:
            self._format = self._make_format()
        return self._format

    def _make_format(self) -> FileFormat:
        if self.kind == "text":
            return LineFormat(TextDecoder())
        if self.kind == "parquet":
            return ParquetFormat(self._first_schema())
        decoders = {"jsonLines": JsonDecoder, "csv": CsvDecoder}
        if self.kind not in decoders:
            raise SourceError(
                f"source {self.name!r}: files.format {self.kind!r} is not known; use text, "
                "jsonLines, csv or parquet"
            )
        declared = self.options.get("schema")
        if not declared:
            raise SourceError(
                f"source {self.name!r}: files.schema is missing; {self.kind} needs it, e.g. "
                'schema: "user string, n long"'
            )
        try:
            return LineFormat(decoders[self.kind](arrow_schema(str(declared))))
        except TopologyError as error:
            raise SourceError(f"source {self.name!r}: files.{error}") from None

    def _first_schema(self) -> pa.Schema:
        try:
            paths = list(self._place.list())
            if paths:
                return parquet_schema(self._place.root / paths[0])
        except OSError as error:
            raise self._unreadable(error) from error
        except BadFileError as error:
            raise self._error(paths[0], error) from error
        raise SourceError(
            f"source {self.name!r}: files.path {self.path!r} holds no Parquet file yet, so its "
            "columns are unknown; put one there before the start"
        )

    def _matches_nothing(self) -> SourceError:
        return SourceError(
            f"source {self.name!r}: files.path {self.path!r} matches no file in "
            f"{self._place.root}; correct the pattern"
        )

    def _error(self, path: str, problem: BadFileError) -> SourceError:
        file = self._place.root / shown_name(path)
        return SourceError(f"source {self.name!r}: file {file} {problem}; {problem.remedy}")

    def _unreadable(self, error: OSError) -> SourceError:
        file = shown_name(str(error.filename or self._place.root))
        if isinstance(error, FileNotFoundError):
            return SourceAwayError(
                f"source {self.name!r}: {file} does not exist; correct files.path "
                f"({self.path!r}, relative to {self.folder}) or put it there"
            )
        return SourceAwayError(
            f"source {self.name!r}: {file} cannot be read ({error.strerror}); make it readable"
        )
