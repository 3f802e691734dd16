"""A source that holds back the last record of the range that ends its partition."""

from __future__ import annotations

import pyarrow as pa

from millrace import row
from millrace.sources.base import ReadBatch, Source, SourcePlan


@row(output="word string")
def spell(record):
    return {"word": str(record["n"] % 7)}


class Short(Source):
    def schema(self):
        return pa.schema([("n", pa.int64())])

    def plan(self, offsets, max_records):
        start = offsets or 0
        count = min(max_records, self.options["count"] - start)
        ranges = (self.range_of("numbers", start, count),) if count else ()
        return SourcePlan(ranges, start + count, start + count == self.options["count"])

    def read(self, piece):
        end = piece.start + piece.count
        if end == self.options["count"]:
            end -= 1
        numbers = pa.array(range(piece.start, end), pa.int64())
        yield ReadBatch(pa.RecordBatch.from_arrays([numbers], schema=self.schema()))
