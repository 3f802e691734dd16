"""A sink and a source that do not do what they were asked for."""

from __future__ import annotations

import pyarrow as pa

from millrace.sinks.files import FileSink
from millrace.sources import ReadBatch, Source, SourcePlan


class Forgetful(FileSink):
    """Leaves the last row out."""

    def stage(self, name, batches):
        return super().stage(name, [*batches[:-1], batches[-1].slice(0, len(batches[-1]) - 1)])


class Generous(Source):
    """Gives a record more than was planned."""

    def schema(self):
        return pa.schema([("value", pa.string())])

    def plan(self, offsets, max_records):
        return SourcePlan((self.range_of("all", 0, 5),), 5, True)

    def read(self, piece):
        values = pa.array([str(n) for n in range(piece.count + 1)])
        yield ReadBatch(pa.RecordBatch.from_arrays([values], names=["value"]))
