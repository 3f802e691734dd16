"""Text cut into pieces without user code (``split``).

At white space the pieces are found by one compiled loop over the bytes of the column. Where all
that follows is combined by key, a piece never becomes a text of its own: it is an Arrow string
view, 16 bytes with its length, its beginning or all of it, and where it lies in the column, and
``state.keyed`` looks keys up by views. Tracking is that of any other step: each piece is a tuple
with an id, emitted here and processed where it is combined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.engine.program.program import Component, Cut, Route
from millrace.engine.task import kernels
from millrace.engine.task.batch import MOST_TAKEN, Array, Batch, is_text, widest_row
from millrace.engine.task.context import Task
from millrace.engine.task.steps import whitespace
from millrace.engine.task.steps.base import Outlet, StreamingStep

Pieces = tuple[pa.Array, Array]
"""Pieces of a text column, and the row (int64) of each."""


class SplitStep(StreamingStep):
    """Emits the pieces of each text; none for null."""

    def __init__(self, task: Task, component: Component, outlet: Outlet) -> None:
        super().__init__(task, component, outlet)
        assert isinstance(component.settings, Cut)
        self._cut = component.settings
        routes = {edge.route for edge in component.outputs}
        self._finder = whitespace.Finder() if routes == {Route.COMBINED} else None

    def process(self, batch: Batch) -> None:
        assert self.component.output is not None
        text = batch.data.column(self._cut.column)
        pieces, parents = self._pieces(text)
        names = self.component.output.names
        kept = [batch.data.column(name) for name in names[1:]]
        if widest_row(kept) * len(parents) <= MOST_TAKEN:
            self.outlet.emit(_with_kept(pieces, kept, parents, names), batch, parents)
            return
        ordinals = kernels.ordinals_of(parents, len(batch))
        for begin, end in _runs(kept, parents):
            rows = parents[begin:end]
            data = _with_kept(pieces.slice(begin, end - begin), kept, rows, names)
            self.outlet.emit_ordered(data, batch, rows, ordinals[begin:end])

    def _pieces(self, text: pa.Array) -> Pieces:
        cut = self._cut
        if cut.delimiter is None and cut.pattern is None:
            if self._finder is not None:
                return self._finder.views(text)
            views, parents = whitespace.Finder().views(text)
            return pc.cast(views, pa.string()), parents
        if cut.delimiter is not None:
            lists = pc.split_pattern(text, cut.delimiter)
        else:
            lists = pc.split_pattern_regex(text, cut.pattern)
        pieces, rows = pc.list_flatten(lists), pc.list_parent_indices(lists)
        if cut.drop_empty:
            full = pc.not_equal(pieces, "")
            pieces, rows = pieces.filter(full), rows.filter(full)
        return pieces, rows.to_numpy().astype(np.int64, copy=False)


def _with_kept(
    pieces: pa.Array, kept: Sequence[pa.Array], parents: Array, names: list[str]
) -> pa.RecordBatch:
    where = pa.array(parents) if kept else None
    columns = [pieces, *(column.take(where) for column in kept)]
    return pa.RecordBatch.from_arrays(columns, names=names)


def _runs(kept: Sequence[pa.Array], parents: Array) -> Iterator[tuple[int, int]]:
    """Begin and end of runs of pieces, whose kept columns take up to ``MOST_TAKEN`` bytes, or one
    row more."""
    sizes = sum((_row_bytes(column) for column in kept), np.zeros(1, np.int64))
    behind = np.cumsum(sizes[parents])
    cuts = np.searchsorted(behind, np.arange(MOST_TAKEN, behind[-1], MOST_TAKEN), "right")
    bounds = np.unique([0, *cuts.tolist(), len(parents)]).tolist()
    return pairwise(bounds)


def _row_bytes(column: pa.Array) -> Array:
    """Bytes (int64) that each row takes at most; as many as the widest, where it is no text."""
    if is_text(column.type):
        lengths: Array = pc.binary_length(column).fill_null(0).to_numpy().astype(np.int64)
        return lengths + 4
    return np.full(len(column), widest_row([column]), np.int64)
