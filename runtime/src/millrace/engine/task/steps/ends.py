"""Where tuples begin and end: sources and sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from millrace import crash
from millrace.engine.program.program import Channel, Component
from millrace.engine.program.schema import fitting
from millrace.engine.program.sql import ERROR, GONE
from millrace.engine.task.batch import Array, Batch
from millrace.engine.task.context import Task
from millrace.engine.task.exchange import EnvelopeError
from millrace.engine.task.lineage import Records
from millrace.engine.task.steps.base import CollectingStep, Outlet, Step
from millrace.engine.task.steps.sqlstep import unfold
from millrace.errors import (
    EngineError,
    MillraceError,
    SinkError,
    SourceError,
    error_text,
)
from millrace.protocol.acklog import source_edge
from millrace.protocol.types import RootRange, Staged
from millrace.sinks.base import RowsRefusedError, Sink
from millrace.sources.base import ReadBatch, Source
from millrace.tracking import kernels

ROWS_PER_BATCH = 8_192
"""Most roots that go through the steps of a pass at once."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive roots that one task reads: sequence numbers from ``first`` on."""

    first: int
    range: RootRange
    replay: int = 0


def in_turn(_: Piece, batches: Iterator[ReadBatch]) -> Iterator[tuple[int, ReadBatch]]:
    """All batches of a piece, each with the place, counted from 0, that it begins at."""
    done = 0
    for part in batches:
        yield done, part
        done += part.offsets


@dataclass(frozen=True, slots=True)
class Intake:
    """How a source's batches come: ``chosen`` gives those that are worked on here, as ``in_turn``
    gives all; ``rows`` of them at most go through the steps at once."""

    chosen: Callable[[Piece, Iterator[ReadBatch]], Iterator[tuple[int, ReadBatch]]] = in_turn
    rows: int = ROWS_PER_BATCH


def read_piece(
    source: Source, piece: Piece, schema: pa.Schema, drop_gone: bool
) -> Iterator[ReadBatch]:
    """The records of a piece, in the declared schema.

    Raises ``SourceError`` where they cannot be read. That says nothing about a root, so it holds
    the stream up also for a replay, unless the user gives up with ``drop_gone`` what is gone: its
    root then fails.
    """
    found = 0
    try:
        for part in source.read(piece.range):
            if part.holes:
                _check_holes(source, piece, part)
            found += part.offsets
            if found > piece.range.count:
                raise SourceError(
                    f"source {source.name!r} gave at least {found} records where "
                    f"{piece.range.count} were planned; its read() must give those of the range "
                    "alone, correct it"
                )
            yield _fitted(part, schema, source)
    except SourceError as error:
        if found or not piece.replay or not error.gone:
            raise
        if not drop_gone:
            raise SourceError(
                f"{error}. It is a record that is to be replayed: --drop-gone gives up those that "
                "cannot be read any more"
            ) from error
        nulls = [pa.nulls(1, field.type) for field in schema]
        row = pa.RecordBatch.from_arrays(nulls, schema=schema)
        yield ReadBatch(row, ((0, str(error)),), gone=True)
    except (MillraceError, MemoryError):
        raise
    except Exception as error:  # a source's code may raise anything
        text = f"source {source.name!r}: reading raised {error_text(error)}"
        raise EngineError(text) from error


def _fitted(part: ReadBatch, schema: pa.Schema, source: Source) -> ReadBatch:
    """The records in the declared schema; one with a value beyond its type cannot be decoded."""
    found = part.data
    if source.sound and len(found.schema) > len(schema):
        # Columns that only some files have.
        found = found.select(schema.names)
    data, bad = fitting(found, schema, source.name, source.sound)
    errors = tuple({**bad, **dict(part.errors)}.items())
    return ReadBatch(data, errors, part.gone, part.holes)


def _check_holes(source: Source, piece: Piece, part: ReadBatch) -> None:
    """Raises ``SourceError`` for holes that cannot be. A replay's record was there before."""
    if piece.replay:
        raise SourceError(
            f"source {source.name!r}: the record at offset {piece.range.start} of partition "
            f"{piece.range.partition:016x} is not there any more"
        )
    try:
        part.places()
    except ValueError as error:
        raise SourceError(f"source {source.name!r}: read() gave {error}; correct it") from error


class SourceStep(Step):
    """Reads one task's share of the window's roots and emits a tuple for each."""

    def __init__(
        self, task: Task, component: Component, outlet: Outlet, source: Source, intake: Intake
    ) -> None:
        super().__init__(task, component, outlet)
        self._source = source
        self._intake = intake
        self._fed: list[Array] = []
        self.holes: list[tuple[int, int]] = []
        """(First sequence number, count) of what was read and carries no record."""
        self._excluded = np.array(sorted(task.plan.excluded), np.int64)

    def accept(self, edge: Channel, batch: Batch) -> None:
        raise AssertionError("a source has no input")

    def read(self, pieces: Sequence[Piece]) -> list[tuple[int, int]]:
        """Read the pieces of this source; the (first, count) runs that were really read."""
        runs = []
        for piece in pieces:
            if piece.range.source == self.name:
                runs += self._read_piece(piece)
        crash.reached("worker.read")
        return runs

    def feed(self, batch: Batch) -> None:
        """Take roots of this source that were read elsewhere and came through the JVM."""
        self._fed.append(batch.roots)
        keep = ~np.isin(batch.roots, self._excluded)
        texts, gone = batch.data.column(ERROR), batch.data.column(GONE)
        for index in np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False)).tolist():
            if keep[index]:
                text = texts[index].as_py()
                self.task.not_read(batch, index, self.name, text, gone[index].as_py())
        if not keep.all():
            batch = batch.filter(keep)
        batch = self.task.failures.without_failed(batch)
        if len(batch):
            batch = batch.with_data(unfold(batch.data, self.component))
            self.outlet.emit(batch.data, batch, None)
            self.task.books.absorb(source_edge(self.name), batch)

    def feed_holes(self, holes: Iterable[tuple[int, int]]) -> None:
        """Take what is no record of this source and came through the JVM."""
        self.holes += holes

    def fed_runs(self, pieces: Sequence[Piece]) -> list[tuple[int, int]]:
        """The (first, count) runs of roots that really came out of the JVM.

        Raises ``EnvelopeError`` for roots that came twice or out of the pieces' order.
        """
        roots = np.concatenate(self._fed) if self._fed else np.zeros(0, np.uint32)
        mine = [p for p in pieces if p.range.source == self.name]
        runs = []
        for piece in mine:
            low, high = piece.first, piece.first + piece.range.count
            empty = sum(count for first, count in self.holes if low <= first < high)
            runs.append((low, int(((roots >= low) & (roots < high)).sum()) + empty))
        rows = sum(count for _, count in runs) - sum(count for _, count in self.holes)
        if roots.size != rows or np.unique(roots).size != roots.size:
            raise EnvelopeError(
                f"{roots.size} rows of source {self.name!r} came out of the JVM, among them roots "
                "that were not read or that came twice"
            )
        return runs

    def _read_piece(self, piece: Piece) -> list[tuple[int, int]]:
        runs: list[tuple[int, int]] = []
        self.task.box.begin(self.name, (piece.first, piece.first + piece.range.count - 1))
        assert self.component.output is not None
        schema, drop_gone = self.component.output, self.task.program.drop_gone
        batches = read_piece(self._source, piece, schema, drop_gone)
        for done, part in self._intake.chosen(piece, batches):
            errors, places = dict(part.errors), part.places()
            self.holes += ((piece.first + done + at, count) for at, count in part.holes)
            for at in range(0, part.data.num_rows, self._intake.rows):
                data = part.data.slice(at, self._intake.rows)
                self.task.box.end()
                here = {i - at: text for i, text in errors.items()}
                numbers = rows_at(done, at, data.num_rows, places)
                self._emit(piece, numbers, data, here, part.gone)
            _lengthen(runs, piece.first + done, part.offsets)
            self.task.box.begin(self.name)
        self.task.box.end()
        return runs

    def _emit(
        self,
        piece: Piece,
        numbers: Array,
        data: pa.RecordBatch,
        errors: dict[int, str],
        gone: bool,
    ) -> None:
        """Emit rows that stand at these places of the piece, counted from 0."""
        batch = self._tracked(piece, numbers, data)
        keep = self._wanted(batch.roots)
        books = self.task.books
        for index, text in errors.items():
            if 0 <= index < len(batch) and (keep is None or keep[index]):
                self.task.not_read(batch, index, self.name, text, gone)
        if keep is not None:
            batch = batch.filter(keep)
        batch = self.task.failures.without_failed(batch)
        self.outlet.emit(batch.data, batch, None)
        books.absorb_records(source_edge(self.name), batch)

    def _tracked(self, piece: Piece, numbers: Array, data: pa.RecordBatch) -> Batch:
        tracked = self.task.books.tracked
        low, count = int(numbers[0]), len(numbers)
        if not piece.replay and int(numbers[-1]) - low + 1 == count:
            read = replace(piece.range, start=piece.range.start + low, count=count)
            return Batch(data, Records(piece.first + low, read, tracked))
        ids = seeds_at(self.name, piece, numbers) if tracked else None
        return Batch.of(data, (numbers + piece.first).astype(np.uint32), ids)

    def _wanted(self, roots: Array) -> Array | None:
        """Mask of the roots, rising, that are not excluded, or ``None`` where all are wanted."""
        low, high = np.searchsorted(self._excluded, [roots[0], int(roots[-1]) + 1])
        return None if low == high else ~np.isin(roots, self._excluded[low:high])


def _lengthen(runs: list[tuple[int, int]], first: int, count: int) -> None:
    """Add a (first, count) run to those before it, to the last one where it follows that."""
    if not count:
        return
    if runs and sum(runs[-1]) == first:
        first, count = runs[-1][0], runs.pop()[1] + count
    runs.append((first, count))


def rows_at(done: int, at: int, rows: int, places: Array | None) -> Array:
    """Places in a piece, int64[rows], of rows of a batch that begins at its place ``done``."""
    if places is None:
        return np.arange(done + at, done + at + rows)
    return places[at : at + rows] + done


def seeds_at(source: str, piece: Piece, numbers: Array) -> Array:
    """Tracking ids, uint64, of the records at these rising places of a piece."""
    low, high = int(numbers[0]), int(numbers[-1]) + 1
    start = piece.range.start + low
    ids = kernels.range_seeds(source, piece.range.partition, start, high - low, piece.replay)
    return ids if len(ids) == len(numbers) else ids[numbers - low]


class SinkStep(CollectingStep):
    """Stages what reaches a sink under this task attempt's name."""

    def __init__(self, task: Task, component: Component, outlet: Outlet, sink: Sink) -> None:
        super().__init__(task, component, outlet)
        self._sink = sink
        self.staged: Staged | None = None

    def finish(self) -> None:
        if self.waiting:
            self._stage([self.task.failures.without_failed(b) for _, b in self.waiting])
            crash.reached("worker.staged")
        self.take_all()

    def _stage(self, left: list[Batch]) -> None:
        """Stage rows; those that the sink refuses fail, and the others are staged without them."""
        name = self.task.object_name("out", self.name)
        assert self.component.output is not None
        columns = self.component.output.names
        while True:
            try:
                self.staged = self._staged(name, [b.data.select(columns) for b in left])
                break
            except RowsRefusedError as refused:
                left = self._without(left, refused)
        given, taken = sum(len(b) for b in left), self.staged.rows if self.staged else 0
        if given != taken:
            raise SinkError(
                f"sink {self.name!r} was given {given} rows and staged {taken}; its stage() "
                "must take every row, correct it"
            )

    def _staged(self, name: str, batches: list[pa.RecordBatch]) -> Staged | None:
        try:
            return self._sink.stage(name, batches)
        except (MillraceError, MemoryError):
            raise
        except Exception as error:  # a sink's code may raise anything
            text = f"sink {self.name!r}: staging rows raised {error_text(error)}"
            raise EngineError(text) from error

    def _without(self, batches: list[Batch], refused: RowsRefusedError) -> list[Batch]:
        """The batches less the refused rows, whose roots fail, and less those of such roots."""
        rows = sum(len(b) for b in batches)
        wrong = [place for place in refused.rows if not 0 <= place < rows]
        if wrong:
            raise SinkError(
                f"sink {self.name!r} refuses row {wrong[0]} of {rows}; RowsRefusedError counts "
                "the rows of all batches from 0, correct it"
            )
        left, first = [], 0
        for batch in batches:
            keep = np.ones(len(batch), bool)
            for place, text in refused.rows.items():
                if 0 <= place - first < len(batch):
                    keep[place - first] = False
                    self.task.fail(batch, place - first, self.name, text)
            first += len(batch)
            left.append(batch if keep.all() else batch.filter(keep))
        return [self.task.failures.without_failed(b) for b in left]
