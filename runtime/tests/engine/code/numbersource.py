"""A source of the numbers below ``count``, for those that leave some of them out."""

from __future__ import annotations

import pyarrow as pa

from millrace.sources.base import ReadBatch, Source, SourcePlan


class Numbers(Source):
    def schema(self):
        return pa.schema([("n", pa.int64())])

    def plan(self, offsets, max_records):
        start = offsets or 0
        count = min(max_records, self.options["count"] - start)
        ranges = (self.range_of("numbers", start, count),) if count else ()
        return SourcePlan(ranges, start + count, start + count == self.options["count"])

    def read(self, piece):
        yield self.batch(range(piece.start, piece.start + piece.count))

    def batch(self, numbers, holes=()):
        data = pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64())], schema=self.schema())
        return ReadBatch(data, holes=holes)
