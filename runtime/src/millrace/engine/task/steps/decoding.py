"""Objects of JSON read into columns without user code (``json``).

Texts are parsed by Arrow, by the rules of files of JSON lines, a batch at a stroke; the texts that
it refuses are found by halving. Each fails its own roots and no others, for good: a replay would
read the same text.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.engine.program.program import Component, Decoding
from millrace.engine.task.batch import Batch, without_views
from millrace.engine.task.context import Task
from millrace.engine.task.steps.base import CertainStep, Outlet
from millrace.sources.decode import Errors, shown
from millrace.sources.json_lines import JsonDecoder
from millrace.sources.lines import Lines

_BLANKS = " \t\r\n"
"""White space of JSON."""
_IS_BLANK = np.isin(np.arange(256), np.frombuffer(_BLANKS.encode(), np.uint8))


class JsonStep(CertainStep):
    """Emits one tuple for each object."""

    def __init__(self, task: Task, component: Component, outlet: Outlet) -> None:
        super().__init__(task, component, outlet)
        settings = component.settings
        assert isinstance(settings, Decoding)
        assert component.output is not None
        self._settings = settings
        read = component.output.names[: len(settings.paths)]
        schema = pa.schema([component.output.field(name) for name in read])
        self._decoder = JsonDecoder(
            schema, paths=dict(settings.paths), record="text", progress=task.box.progress
        )
        self._kept = component.output.names[len(read) :]

    def process(self, batch: Batch) -> None:
        assert self.component.output is not None
        texts = lines_of(batch.data.column(self._settings.column))
        self.task.worked_on(self.name, batch)
        read = self._decoder.decode(texts, None)
        errors: Errors = dict(read.errors)
        self._find_missing(read.data, texts, errors)
        self.task.box.end()
        columns = [*read.data.columns, *(batch.data.column(name) for name in self._kept)]
        data = pa.RecordBatch.from_arrays(columns, names=self.component.output.names)
        for index, error in sorted(errors.items()):
            self.fail_for_good(batch, index, error)
        if not errors:
            self.outlet.emit(data, batch, None)
            return
        good = np.setdiff1d(np.arange(len(batch)), np.fromiter(errors, np.int64))
        self.outlet.emit(without_views(data).take(pa.array(good)), batch, good)

    def _find_missing(self, data: pa.RecordBatch, texts: Lines, errors: Errors) -> None:
        """Add the objects that lack a required field."""
        for name in self._settings.required:
            column = data.column(name)
            if column.null_count == 0:
                continue
            for index in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
                text = shown(texts.record(index))
                errors.setdefault(index, f"column {name!r} is missing or null; the text is {text}")


def lines_of(column: pa.Array) -> Lines:
    """The texts of a column (string or binary) as records, without white space around them; null
    as an object without fields."""
    texts = column if pa.types.is_string(column.type) else column.view(pa.string())
    lines = _joined(pc.fill_null(texts, "{}"))
    array = np.frombuffer(lines.data, np.uint8)
    if _IS_BLANK[array[lines.starts]].any() or _IS_BLANK[array[lines.ends - 1]].any():
        return _joined(pc.ascii_trim(pc.fill_null(texts, "{}"), _BLANKS))
    return lines


def _joined(texts: pa.Array) -> Lines:
    lengths = pc.binary_length(texts).to_numpy().astype(np.int64)
    whole = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    data = pc.binary_join(whole, "\n")[0].as_buffer().to_pybytes() + b"\n"
    ends = np.cumsum(lengths + 1) - 1
    return Lines(data, ends - lengths, ends)
