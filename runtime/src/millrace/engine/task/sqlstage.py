"""The two Python ends of a window that goes through the JVM: reading into it, running behind it.

Both ends of a partition run in one Spark task, in two worker processes. The reader only reads:
what it read is booked behind the JVM, from the ids that came out of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.serializers import pack_long

from millrace.engine.program.program import Component, Program
from millrace.engine.program.sql import (
    ERROR,
    GONE,
    SEQUENCE,
    SOURCE,
    TRACKING,
    column_of,
    holes_of,
    jvm_sources,
)
from millrace.engine.task.batch import Array
from millrace.engine.task.steps.ends import ROWS_PER_BATCH, Piece, read_piece, rows_at, seeds_at
from millrace.engine.task.worker import (
    Job,
    TaskRun,
    begin_task,
    decode_pieces,
    encode_reports,
    load_job,
    marked_errors,
    rehearse,
    task_id,
    toolbox_of,
)


class FrameReader:
    """Reads one task's share of the roots of the sources that have SQL steps behind them."""

    def __init__(self, job: bytes, pieces: Sequence[bytes]) -> None:
        self._job = job
        self._pieces = pieces

    def __call__(self, _: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        job = load_job(self._job)
        with marked_errors(job.plan.id):
            toolbox = toolbox_of(job)
            sources = {s.name: s for s in jvm_sources(toolbox.program)}
            partition = _partition()
            begin_task(toolbox, job, task_id(TaskContext.get(), 0, partition))
            for piece in decode_pieces(self._pieces[partition]):
                component = sources.get(piece.range.source)
                if component is not None:
                    yield from self._read(job, piece, component)
            toolbox.bench.box.idle()

    def _read(self, job: Job, piece: Piece, component: Component) -> Iterator[pa.RecordBatch]:
        toolbox = toolbox_of(job)
        done = 0
        span = piece.first, piece.first + piece.range.count - 1
        toolbox.bench.box.begin(component.name, span)
        assert component.output is not None
        source, drop_gone = toolbox.source(component), toolbox.program.drop_gone
        for part in read_piece(source, piece, component.output, drop_gone):
            toolbox.bench.box.end()
            places = part.places()
            if part.holes:
                yield frame_holes(toolbox.program, component, piece, done, part.holes)
            texts: list[str | None] = [None] * part.data.num_rows
            for index, text in part.errors:
                texts[index] = text
            for at in range(0, part.data.num_rows, ROWS_PER_BATCH):
                data = part.data.slice(at, ROWS_PER_BATCH)
                errors = pa.array(texts[at : at + data.num_rows], pa.string())
                fates = errors, pa.repeat(part.gone, data.num_rows)
                numbers = rows_at(done, at, data.num_rows, places)
                yield frame_rows(toolbox.program, component, piece, numbers, data, fates)
            done += part.offsets
            toolbox.bench.box.begin(component.name, span)
        toolbox.bench.box.end()


def frame_rows(
    program: Program,
    component: Component,
    piece: Piece,
    numbers: Array,
    data: pa.RecordBatch,
    fates: tuple[pa.Array, pa.Array],
) -> pa.RecordBatch:
    """What the JVM gets of the records at these places of a piece; ``fates`` are their ``ERROR``
    and ``GONE``."""
    ids = seeds_at(component.name, piece, numbers)
    columns: tuple[pa.Array, ...] = (
        pa.array(np.full(data.num_rows, component.number, np.int32)),
        pa.array(numbers + piece.first),
        pa.array(ids.view(np.int64)),
        *fates,
    )
    return _frame(program, component, columns, data)


def frame_holes(
    program: Program,
    component: Component,
    piece: Piece,
    done: int,
    holes: Sequence[tuple[int, int]],
) -> pa.RecordBatch:
    """What the JVM gets of offsets without a record, of a batch that begins at place ``done``."""
    count = len(holes)
    firsts, counts = (np.array(one, np.int64) for one in zip(*holes, strict=True))
    columns = (
        pa.array(np.full(count, holes_of(component), np.int32)),
        pa.array(firsts + piece.first + done),
        pa.array(counts),
        pa.nulls(count, pa.string()),
        pa.repeat(False, count),
    )
    return _frame(program, component, columns, None)


def _frame(
    program: Program,
    component: Component,
    columns: tuple[pa.Array, ...],
    data: pa.RecordBatch | None,
) -> pa.RecordBatch:
    """Rows for the JVM: the columns of every row, and one struct for each source."""
    arrays: list[pa.Array] = list(columns)
    names = [SOURCE, SEQUENCE, TRACKING, ERROR, GONE]
    rows = len(arrays[0])
    for source in jvm_sources(program):
        assert source.output is not None
        kind = pa.struct(list(source.output))
        if data is not None and source.name == component.name:
            # Read in this very schema (``read_piece``).
            arrays.append(pa.StructArray.from_arrays(data.columns, fields=list(source.output)))
        else:
            arrays.append(pa.nulls(rows, kind))
        names.append(column_of(source))
    return pa.RecordBatch.from_arrays(arrays, names=names)


class FramePass:
    """Runs pass 0, or every pass, over what comes out of the JVM.

    Yields (reader, envelope) rows, or one row of encoded reports where it is the last pass.
    """

    def __init__(self, job: bytes, pieces: Sequence[bytes]) -> None:
        self._job = job
        self._pieces = pieces

    def __call__(self, frames: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partition = _partition()
        job = load_job(self._job)
        pieces = decode_pieces(self._pieces[partition])
        with marked_errors(job.plan.id), TaskRun.of_spark(job, 0, partition) as running:
            running.run.open()
            runs = tuple(running.run.feed(frames, pieces) + running.run.read(pieces))
            made = running.complete(roots_read=runs)
        if running.last:
            made = [(0, encode_reports(made))]
        for reader, value in made:
            yield pa.RecordBatch.from_arrays(
                [pa.array([reader], pa.int32()), pa.array([value], pa.binary())],
                names=["reader", "value"],
            )


class FrameRehearsal:
    """Either end of a pass over nothing (``worker.Rehearsal``)."""

    def __init__(self, kit: str) -> None:
        self._kit = kit

    def __call__(self, nothing: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        list(nothing)
        rehearse(self._kit)
        return iter(())


def keyed(rows: Iterable[Any]) -> Iterator[bytes]:
    """Rows of (reader, envelope) as Spark's shuffle takes them: key, value, key, value, ..."""
    for reader, envelope in rows:
        yield pack_long(reader)
        yield bytes(envelope)


def values(rows: Iterable[Any]) -> Iterator[bytes]:
    """The encoded reports in result rows."""
    for _, value in rows:
        yield bytes(value)


RESULT_SCHEMA = "reader int, value binary"


def _partition() -> int:
    context = TaskContext.get()
    assert context is not None
    return int(context.partitionId())
