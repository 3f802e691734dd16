"""Text cut into pieces without user code (``split``).

At white space the pieces are found by one compiled loop over the bytes of the column. Where all
that follows is combined by key, a piece never becomes a text of its own: it is an Arrow string
view, 16 bytes with its length, its beginning or all of it, and where it lies in the column, and
``state.keyed`` looks keys up by views. Tracking is that of any other step: each piece is a tuple
with an id, emitted here and processed where it is combined.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.engine.program.program import Component, Cut, Route
from millrace.engine.task.batch import Array, Batch
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
        where = pa.array(parents) if len(names) > 1 else None
        kept = [batch.data.column(name).take(where) for name in names[1:]]
        data = pa.RecordBatch.from_arrays([pieces, *kept], names=names)
        self.outlet.emit(data, batch, parents)

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
