"""A source of one's own with every type; it needs what only the tests' own process can import."""

from __future__ import annotations

import type_values

from millrace.sources import ReadBatch, Source, SourcePlan


class Rows(Source):
    """The rows of ``type_values``, from memory."""

    def schema(self):
        return type_values.SCHEMA

    def plan(self, offsets, max_records):
        start = offsets or 0
        count = min(max_records, len(type_values.rows()) - start)
        ranges = (self.range_of("rows", start, count),) if count else ()
        return SourcePlan(ranges, start + count, drained=True)

    def read(self, piece):
        table = type_values.table().slice(piece.start, piece.count)
        for batch in table.combine_chunks().to_batches():
            yield ReadBatch(batch)
