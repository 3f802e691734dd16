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

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.clock import Clock, SystemClock
from millrace.ddl import parse_schema
from millrace.errors import SourceError, TopologyError
from millrace.protocol.types import Json, Replay, RootRange
from millrace.sources.arrow_types import arrow_schema
from millrace.sources.base import ReadBatch, Source, SourcePlan, check_cut, range_of
from millrace.sources.complaints import Complaints
from millrace.sources.csv_rows import CsvDecoder
from millrace.sources.entries import (
    FileEntry,
    ReadState,
    decode_state,
    plain_name,
    shown_name,
    stored_name,
)
from millrace.sources.evidence import birth_of, born_ns_of
from millrace.sources.finding import candidates
from millrace.sources.formats import FileFormat, LineFormat, Opened, open_regular
from millrace.sources.identity import is_still
from millrace.sources.json_lines import JsonDecoder
from millrace.sources.lines import BadFileError
from millrace.sources.listing import FileStat, FolderNews, Place
from millrace.sources.parquet import ParquetFormat, parquet_schema
from millrace.sources.sight import LOOKS, Lookout, Sight, Wishes
from millrace.sources.text import TextDecoder

MOST_RANGES = 4096
"""Most files in one plan."""

_STATES_KEPT = 4


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


class _BarredError(Exception):
    """A file must not be read, which was told."""


class FileSource(Source):
    """Options: ``path`` (file, folder or pattern), ``format``, ``watch``, ``order``, ``schema``.

    With ``watch: false`` the files are listed once, a last line counts without its newline, and
    the source is drained when all are read.
    """

    sound = True

    def __init__(
        self, name: str, options: Mapping[str, Any], folder: Path, clock: Clock | None = None
    ) -> None:
        super().__init__(name, options, folder)
        self.path = str(self.options["path"])
        self.kind = str(self.options.get("format", "text"))
        self.watch = bool(self.options.get("watch", True))
        self._place = Place.of(self.path, folder)
        self._format: FileFormat | None = None
        self._unplanned: ParquetFormat | None = None
        self._complaints = Complaints(name, self.path, folder, self._place, strict=not self.watch)
        self._lookout = Lookout(
            self._place,
            Wishes(self.watch, str(self.options.get("order", "modified")), self.kind != "parquet"),
            self._opened_format,
            self._complaints,
            clock or SystemClock(),
        )
        self._states: list[tuple[Json, ReadState]] = []
        self._news: FolderNews | None = None

    def schema(self) -> pa.Schema:
        return self._opened_format().schema

    def check(self) -> None:
        self.schema()
        try:
            found = self._place.list()
        except OSError as error:
            raise self._complaints.unreadable(error) from error
        if not found and self._place.pattern and not self.watch:
            raise self._complaints.matches_nothing()

    # -- planning

    def on_news(self, tell: Callable[[], None]) -> None:
        if self.watch:
            self._news = FolderNews(self._place, tell)

    def close(self) -> None:
        if self._news is not None:
            self._news.close()

    def plan(self, offsets: Json, max_records: int) -> SourcePlan:
        try:
            return self._plan(offsets, max_records)
        except Exception:
            self._lookout.forget()
            raise

    def _plan(self, offsets: Json, max_records: int) -> SourcePlan:
        before = self._state(offsets)
        draft = _Draft(max_records, before)
        sight = self._lookout.last(before)
        if sight is not None:
            # What is known to wait may fill the window: then no folder needs to be looked at.
            self._take(draft, sight)
        for look in range(LOOKS):
            if sight is not None and draft.full:
                break
            sight, draft.state = self._lookout.look(draft.fold(), before.next, fresh=look > 0)
            self._take(draft, sight)
            if not sight.stale:
                break
        assert sight is not None
        after = draft.fold()
        encoded = offsets if after is before and offsets is not None else after.encode()
        self._remember(encoded, after)
        self._lookout.keep(sight, after)
        drained = not self.watch and not sight.queue and not sight.stale
        return SourcePlan(tuple(draft.ranges), encoded, drained, self._lag(after, sight))

    # -- taking records

    def _take(self, draft: _Draft, sight: Sight) -> None:
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
            except _BarredError:
                if entry.more:
                    return  # it is finished before another one begins
                after = None
            if after is None:
                self._lookout.empty(path, sight.files[path])
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

    def _take_file(self, draft: _Draft, entry: FileEntry, sight: Sight) -> FileEntry | None:
        """The entry behind the records that are planned; ``None`` for a file without any."""
        path, listed = self._place.root / entry.path, sight.files[entry.path]
        try:
            descriptor, found = open_regular(path)
        except FileNotFoundError:
            raise _StaleError from None
        except PermissionError as error:
            if entry.records:
                self._complaints.barred(entry.path, waits=True)
            else:
                self._complaints.skip(entry.path, f"cannot be read ({error.strerror})", True)
            raise _BarredError from None
        except OSError as error:
            raise self._complaints.unreadable(error) from error
        try:
            stat = FileStat.of(found)
            if not is_still(listed, stat, lambda: born_ns_of(descriptor)):
                raise _StaleError
            if entry.id in sight.barred:
                raise _StaleError  # it may be read again
            if entry.records and stat.size == entry.size and entry.signature != stat.signature:
                raise _StaleError  # written over, perhaps
            after = self._scan(draft, entry, descriptor, stat)
            self._lookout.opened(sight, entry.path, stat)
            return after
        except BadFileError as problem:
            if FileStat.of(os.fstat(descriptor)) != listed:
                raise _StaleError from None
            raise self._complaints.error(entry.path, problem) from problem
        except OSError as error:
            raise self._complaints.failing(entry.path, error) from error
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
        listing = self._lookout.listing()
        by_path = {e.path: e for e in state.files.values()}
        by_inode = {e.inode: e for e in state.files.values() if e.inode}
        behind = 0
        for path, stat in listing.items():
            entry = by_path.get(path)
            if entry is None or entry.inode not in (0, stat.inode):
                entry = by_inode.get(stat.inode)
            if entry is None or self._lookout.waits(entry, stat):
                behind += max(0, stat.size - (entry.read_bytes if entry else 0))
        return self._records_in(behind, state)

    def _lag(self, state: ReadState, sight: Sight) -> int | None:
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
        trim = self._reading_format().trim
        return (
            replace(piece, count=at, locator=trim(piece.locator, 0, at)),
            replace(
                piece, start=piece.start + at, count=rest, locator=trim(piece.locator, at, rest)
            ),
        )

    def locate(self, piece: RootRange, index: int) -> Json:
        return self._reading_format().trim(piece.locator, index, 1)

    def read(self, piece: RootRange) -> Iterator[ReadBatch]:
        form = self._reading_format()
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
            except OSError as error:
                raise self._complaints.failing(plain_name(piece.locator["f"]), error) from error
        raise self._not_found(piece, problem)

    def payload(self, replay: Replay) -> bytes:
        piece = range_of(replay)
        problem: BadFileError | None = None
        for file in self._candidates(piece):
            try:
                return self._reading_format().raw(file, piece)
            except BadFileError as bad:
                problem = problem or bad
            except OSError as error:
                raise self._complaints.failing(plain_name(piece.locator["f"]), error) from error
        raise self._not_found(piece, problem)

    def place(self, replay: Replay) -> str:
        """``texts/a.txt, line 17``: the name that the file has now, from the topology's folder."""
        piece = range_of(replay)
        for file in self._candidates(piece):
            try:
                where = self._reading_format().place(file, piece)
            except BadFileError:
                continue
            path = os.path.realpath(file.path)
            if path.startswith(f"{self.folder}{os.sep}"):
                path = os.path.relpath(path, self.folder)
            return f"{shown_name(path)}, {where}"
        return f"{shown_name(plain_name(replay.locator['f']))}, record {replay.offset + 1}"

    def _candidates(self, piece: RootRange) -> Iterator[Opened]:
        try:
            yield from candidates(self._place, self._reading_format(), piece.locator)
        except OSError as error:
            raise self._complaints.unreadable(error) from error

    def _not_found(self, piece: RootRange, problem: BadFileError | None) -> SourceError:
        gone = BadFileError("is gone, but records of it are still to be read")
        return self._complaints.error(plain_name(piece.locator["f"]), problem or gone)

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

    def _reading_format(self) -> FileFormat:
        """What ranges are read by. Who has not planned them takes no columns from the first file,
        which may be another one than the driver went by."""
        if self._format is None and self.kind == "parquet":
            self._unplanned = self._unplanned or ParquetFormat(None)
            return self._unplanned
        return self._opened_format()

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
            return LineFormat(decoders[self.kind](arrow_schema(parse_schema(str(declared)))))
        except TopologyError as error:
            raise SourceError(f"source {self.name!r}: files.{error}") from None

    def _first_schema(self) -> pa.Schema:
        try:
            paths = list(self._place.list())
            if paths:
                return parquet_schema(self._place.root / paths[0])
        except OSError as error:
            raise self._complaints.unreadable(error) from error
        except BadFileError as error:
            raise self._complaints.error(paths[0], error) from error
        raise SourceError(
            f"source {self.name!r}: files.path {self.path!r} holds no Parquet file yet, so its "
            "columns are unknown; put one there before the start, it need not have rows"
        )
