"""SQL steps in the Python pass behind the JVM, which has evaluated them already.

A source that is read into the JVM is *fed* here: its rows carry, beside their own columns, what
every SQL step behind it made of them (``engine.sql``). The steps only pick it out, so ids and
check values go along the declared edges as for any other processor.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.engine.program.program import Component
from millrace.engine.program.sql import SEQUENCE, SOURCE, TRACKING, column_of, holes_of, keep_of
from millrace.engine.task.batch import Batch
from millrace.engine.task.context import Task
from millrace.engine.task.steps.base import Deliver, Outlet, StreamingStep

CARRIED = "__mr_"
"""Prefix of the columns that SQL steps further on still need."""


class SqlOutcome(StreamingStep):
    """Emits what the JVM selected for each row that passed."""

    def __init__(self, task: Task, component: Component, outlet: Outlet) -> None:
        super().__init__(task, component, outlet)

    def process(self, batch: Batch) -> None:
        assert self.component.output is not None
        keep = batch.data.column(keep_of(self.component))
        kept = np.flatnonzero(keep.to_numpy(zero_copy_only=False))
        rows = batch.data.take(pa.array(kept))
        self.outlet.emit(unfold(rows, self.component), batch, kept)


def unfold(rows: pa.RecordBatch, component: Component) -> pa.RecordBatch:
    """Columns that a source or SQL step emits, followed by those carried for steps behind it."""
    assert component.output is not None
    struct = rows.column(column_of(component))
    fields = dict(zip([f.name for f in struct.type], struct.flatten(), strict=True))
    arrays = [fields[f.name].cast(f.type) for f in component.output]
    names = list(component.output.names)
    for name in rows.schema.names:
        if name.startswith(CARRIED):
            arrays.append(rows.column(name))
            names.append(name)
    return pa.RecordBatch.from_arrays(arrays, names=names)


def without_carried(producer: Component, deliver: Deliver) -> Deliver:
    """A way to a consumer that sees the declared columns alone."""
    assert producer.output is not None
    declared = producer.output.names

    def pass_on(batch: Batch) -> None:
        deliver(batch.with_data(batch.data.select(declared)))

    return pass_on


def fed_holes(component: Component, frame: pa.RecordBatch) -> list[tuple[int, int]]:
    """(First sequence number, count) of a source's offsets without a record in a frame."""
    mine = np.flatnonzero(frame.column(SOURCE).to_numpy() == holes_of(component))
    firsts, counts = (frame.column(name).to_numpy()[mine] for name in (SEQUENCE, TRACKING))
    return list(zip(firsts.tolist(), counts.tolist(), strict=True))


def fed_batch(component: Component, frame: pa.RecordBatch, tracked: bool) -> Batch:
    """Rows of one source out of a frame, with the id that came with each."""
    mine = np.flatnonzero(frame.column(SOURCE).to_numpy() == component.number)
    rows = frame if mine.size == frame.num_rows else frame.take(pa.array(mine))
    roots = rows.column(SEQUENCE).to_numpy().astype(np.uint32)
    ids = rows.column(TRACKING).to_numpy().view(np.uint64) if tracked else None
    return Batch.of(rows, roots, ids)
