"""The files source: text lines, JSON lines, CSV and Parquet, of files that may still grow.

A source partition is one file; the offset of a record is its ordinal in the file. What is
appended to a file is new input. A file is known by its path and the digest of the part that was
read, so a file that shrinks or is replaced is an error and never a silent loss. A file that was
read to its end may be removed; another one that later has its path is a new file. One that has
another name when it is looked for goes on under that name.

If the driver dies at any point, nothing is lost: offsets are part of the record of the topology,
and a plan that is not in the record was never made.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.clock import Clock, SystemClock
from millrace.errors import SourceError, TopologyError
from millrace.protocol.types import Json, Replay, RootRange
from millrace.sources.arrow_types import arrow_schema
from millrace.sources.base import ReadBatch, Source, SourcePlan, check_cut, range_of
from millrace.sources.csv_rows import CsvDecoder
from millrace.sources.entries import FileEntry, ReadState, decode_state
from millrace.sources.formats import FileFormat, LineFormat, Opened
from millrace.sources.json_lines import JsonDecoder
from millrace.sources.lines import BadFileError
from millrace.sources.listing import FileStat, Place
from millrace.sources.parquet import ParquetFormat, parquet_schema
from millrace.sources.text import TextDecoder

MOST_RANGES = 4096
"""Most files in one plan."""

MANY_FILES = 1000
"""From so many files on a folder is not looked at as often as a plan is asked for."""

PAUSE_FACTOR = 10
LONGEST_PAUSE_S = 1.0
_STATES_KEPT = 4


@dataclass(slots=True)
class _Draft:
    """A plan in the making."""

    left: int
    ranges: list[RootRange] = field(default_factory=list)
    changed: dict[str, FileEntry] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    cursor: str = ""

    @property
    def full(self) -> bool:
        return self.left <= 0 or len(self.ranges) >= MOST_RANGES


class FileSource(Source):
    """Options: ``path`` (file, folder or pattern), ``format``, ``watch``, ``schema``.

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
        self._place = Place.of(self.path, folder)
        self._format: FileFormat | None = None
        self._listing: dict[str, FileStat] | None = None
        self._checked: set[str] = set()
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
        state = self._state(offsets)
        draft = _Draft(max_records, cursor=state.cursor)
        known = self._listing
        if self.watch and known is not None:
            # What is known to wait may fill the window: then no folder needs to be looked at.
            ready = [p for p in known if self._waits(state.files.get(p), known[p])]
            self._take(draft, state, known, ready)
        if not draft.full or known is None:
            known = self._look(draft, state)
            self._take(draft, state, known, known)
        after = state.with_entries(draft.changed, draft.gone, draft.cursor)
        encoded = offsets if after is state and offsets is not None else after.encode()
        self._remember(encoded, after)
        waiting = [p for p in known if self._waits(after.files.get(p), known[p])]
        drained = not self.watch and not waiting
        return SourcePlan(tuple(draft.ranges), encoded, drained, self._lag(after, known, waiting))

    def _look(self, draft: _Draft, state: ReadState) -> dict[str, FileStat]:
        """The files that are there now, or were at the start of a run that does not watch."""
        if self._listing is None or (self.watch and self._look_is_due()):
            began_s = self._clock.monotonic_s()
            try:
                self._listing = self._place.list()
            except OSError as error:
                raise self._unreadable(error) from error
            now_s = self._clock.monotonic_s()
            self._look_again_s = now_s + min(LONGEST_PAUSE_S, PAUSE_FACTOR * (now_s - began_s))
            if not self._listing and self._place.pattern and not self.watch:
                raise self._matches_nothing()
        missing = state.files.keys() - self._listing.keys()
        new = {p: s for p, s in self._listing.items() if p not in state.files} if missing else {}
        for path in sorted(missing):
            entry = draft.changed.get(path, state.files[path])
            renamed = next((p for p, stat in new.items() if _is_same(entry, stat)), None)
            if renamed is not None:
                del new[renamed]
                draft.changed[renamed] = replace(entry, path=renamed)
            elif entry.unread:
                raise self._error(path, _gone(entry))
            draft.changed.pop(path, None)
            draft.gone.append(path)
        return self._listing

    def lag(self, offsets: Json) -> int | None:
        if not self.watch:
            return None  # what it reads was listed once, so the last plan told all
        state = self._state(offsets)
        known = self._listing or {}
        if len(known) < MANY_FILES:
            # Not kept: only a plan may take note of files that were renamed or are gone.
            known = self._place.list()
        waiting = [p for p in known if self._waits(state.files.get(p), known[p])]
        return self._lag(state, known, waiting)

    def _look_is_due(self) -> bool:
        """A small folder is looked at whenever asked, a large one at most a tenth of the time."""
        known = self._listing or {}
        return len(known) < MANY_FILES or self._clock.monotonic_s() >= self._look_again_s

    def _take(
        self,
        draft: _Draft,
        state: ReadState,
        known: Mapping[str, FileStat],
        paths: Iterable[str],
    ) -> None:
        """Plan records of the files that have some, in order of path.

        When watching, the order begins behind the file that filled the last window, so that one
        that always has more does not keep the others waiting.
        """
        order = sorted(paths)
        if self.watch:
            order = [p for p in order if p > state.cursor] + [p for p in order if p <= state.cursor]
        for path in order:
            if draft.full:
                return
            entry = draft.changed.get(path, state.files.get(path))
            if path in known and self._wants(entry, known[path]):
                self._take_file(draft, entry or FileEntry(path, state.generation))
                if draft.full:
                    draft.cursor = path

    def _take_file(self, draft: _Draft, entry: FileEntry) -> None:
        path = self._place.root / entry.path
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            if entry.unread:
                raise self._error(entry.path, _gone(entry)) from None
            return
        except OSError as error:
            raise self._unreadable(error) from error
        try:
            found = os.fstat(descriptor)
            self._scan(
                draft, entry, Opened(path, descriptor, found.st_size, entry.partition), found
            )
        except BadFileError as problem:
            raise self._error(entry.path, problem) from problem
        finally:
            os.close(descriptor)

    def _scan(self, draft: _Draft, entry: FileEntry, file: Opened, status: os.stat_result) -> None:
        stat = FileStat.of(status)
        form = self._opened_format()
        mark = entry.mark
        if entry.signature and stat.signature != entry.signature:
            if stat.size < entry.size:
                raise BadFileError(f"has shrunk from {entry.size} to {stat.size} bytes")
            # The tail of the part that was read is checked by every scan; that is enough for the
            # same file grown longer. For any other change the whole part is read again.
            grown = entry.inode == stat.inode and stat.size > entry.size and mark.chain
            if mark.position and not grown:
                checked = form.same(file.descriptor, file.size, mark)
                if checked is None:
                    raise BadFileError(f"was changed in the {entry.records} records already read")
                mark = replace(checked, open=mark.open)
        self._checked.add(entry.path)
        found = form.scan(file, mark, draft.left, final=not self.watch)
        after = replace(
            entry,
            mark=found.mark,
            records=entry.records + found.count,
            unread=found.unread,
            more=found.more,
        ).seen(stat)
        draft.changed[entry.path] = after
        if found.count:
            locator = {"f": entry.path, **found.locator}
            draft.left -= found.count
            draft.ranges.append(
                RootRange(self.name, entry.partition, entry.records, found.count, locator)
            )

    def _waits(self, entry: FileEntry | None, stat: FileStat) -> bool:
        """Whether a file has, as far as is known, records that are not planned."""
        if entry is None:
            return stat.size > 0 or self.kind == "parquet"
        if entry.more or stat.size > entry.size:
            return True
        return not self.watch and entry.unread > 0

    def _wants(self, entry: FileEntry | None, stat: FileStat) -> bool:
        """Whether a file must be opened: it may have more, or may not be what it was."""
        if self._waits(entry, stat):
            return True
        if entry is None or entry.signature == stat.signature:
            return False
        return self.watch or entry.path not in self._checked

    def _lag(
        self, state: ReadState, known: Mapping[str, FileStat], waiting: Iterable[str]
    ) -> int | None:
        """Estimate of the records that wait, from the mean size of those that were read."""
        entries = state.files
        behind = sum(
            known[p].size - (entries[p].read_bytes if p in entries else 0) for p in waiting
        )
        if not behind:
            return 0
        records = sum(e.records for e in entries.values())
        size = sum(e.read_bytes for e in entries.values())
        return round(behind * records / size) if size else None

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
        with self._reading(piece) as path:
            yield from self._opened_format().read(path, piece)

    def payload(self, replay: Replay) -> bytes:
        piece = range_of(replay)
        with self._reading(piece) as path:
            return self._opened_format().raw(path, piece)

    @contextmanager
    def _reading(self, piece: RootRange) -> Iterator[Path]:
        """The file of a range; what goes wrong with it becomes a ``SourceError``."""
        name = str(piece.locator["f"])
        try:
            yield self._place.root / name
        except BadFileError as problem:
            raise self._error(name, problem) from problem
        except FileNotFoundError as error:
            gone = BadFileError("is gone, but records of it are still to be read")
            raise self._error(name, gone) from error
        except OSError as error:
            raise self._unreadable(error) from error

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
        file = self._place.root / path
        return SourceError(f"source {self.name!r}: file {file} {problem}; {problem.remedy}")

    def _unreadable(self, error: OSError) -> SourceError:
        if isinstance(error, FileNotFoundError):
            return SourceError(
                f"source {self.name!r}: {error.filename or self._place.root} does not exist; "
                f"correct files.path ({self.path!r}, relative to {self.folder}) or put it there"
            )
        return SourceError(
            f"source {self.name!r}: {error.filename or self._place.root} cannot be read "
            f"({error.strerror}); make it readable"
        )


def _is_same(entry: FileEntry, stat: FileStat) -> bool:
    """Whether a file under a new name is the one of an entry whose own name is gone."""
    if entry.signature == stat.signature:
        return True
    return entry.inode == stat.inode and entry.inode != 0 and stat.size >= entry.size


def _gone(entry: FileEntry) -> BadFileError:
    return BadFileError(f"is gone after {entry.records} of its records were read")
