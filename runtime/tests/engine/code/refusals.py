"""Rows that sinks refuse, and sinks and sources that raise."""

from __future__ import annotations

import pyarrow as pa

from millrace import Processor, row, vectorized
from millrace.sinks import RowsRefusedError
from millrace.sinks.files import FileSink
from millrace.sources import Source, SourcePlan

FAR = 2**62
"""Microseconds from 1970 to the year 148109, for which there is no text."""


@row(output="word string")
def words(line):
    return {"word": None if line["value"] == "bad" else line["value"]}


@vectorized(output="word string, days array<timestamp>")
def dates(batch):
    lines = batch.column("value").to_pylist()
    days = pa.array([[FAR if line == "bad" else 1] for line in lines], pa.list_(pa.int64()))
    return {"word": batch.column("value"), "days": days.cast(pa.list_(pa.timestamp("us")))}, list(
        range(batch.num_rows)
    )


class FailsAtTheEnd(Processor):
    output = "word string"

    def process(self, row, out):
        pass

    def finish(self, out):
        raise ValueError("no end")


class Picky(FileSink):
    """Refuses one null at a time."""

    def __init__(self, name, options, folder):
        super().__init__(name, {"path": "rows", **options}, folder)

    def stage(self, name, batches):
        first = 0
        for batch in batches:
            for index, word in enumerate(batch.column("word").to_pylist()):
                if word is None:
                    raise RowsRefusedError({first + index: "null is not for me"})
            first += batch.num_rows
        return super().stage(name, batches)


class Raising(Picky):
    def stage(self, name, batches):
        raise RuntimeError("no such table")


class Miscounting(Picky):
    def stage(self, name, batches):
        raise RowsRefusedError({99: "too far"})


class Broken(Source):
    def schema(self):
        return pa.schema([("value", pa.string())])

    def plan(self, offsets, max_records):
        return SourcePlan((self.range_of("all", 0, 3),), 3, True)

    def read(self, piece):
        raise KeyError("gone")
