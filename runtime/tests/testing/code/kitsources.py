"""A good source, and sources that each break one rule."""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from millrace.errors import SourceError
from millrace.protocol.types import RootRange
from millrace.sources import ReadBatch, Source, SourcePlan

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


class Counted(Source):
    """Numbers up to ``count``; the locator says where a range begins, every fifth is an error."""

    def schema(self):
        return SCHEMA

    def plan(self, offsets, max_records):
        start = 0 if offsets is None else offsets["next"]
        count = min(max_records, self.options["count"] - start)
        ranges = (self.made(start, count),) if count else ()
        end = start + count
        return SourcePlan(ranges, {"next": end}, drained=end == self.options["count"])

    def made(self, start: int, count: int) -> RootRange:
        return self.range_of("numbers", start, count, {"from": start})

    def split(self, piece, at):
        first, second = super().split(piece, at)
        return first, replace(second, locator={"from": piece.locator["from"] + at})

    def read(self, piece):
        first = piece.locator["from"]
        for start in range(first, first + piece.count, 3):
            yield self.batch(range(start, min(start + 3, first + piece.count)))

    def batch(self, numbers) -> ReadBatch:
        texts = [self.text(n) for n in numbers]
        bad = [at for at, n in enumerate(numbers) if n % 5 == 4]
        rows = [None if at in bad else n for at, n in enumerate(numbers)]
        texts = [None if at in bad else text for at, text in enumerate(texts)]
        columns = [pa.array(rows, pa.int64()), pa.array(texts, pa.string())]
        data = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        return ReadBatch(data, tuple((at, "cannot be decoded") for at in bad))

    def text(self, n: int) -> str:
        return f"number {n}"


class Once(Counted):
    replayable = False


class OtherColumns(Counted):
    def schema(self):
        return pa.schema([("n", pa.int32()), ("text", pa.string())])


class OddColumns(Counted):
    """Its second column is a length of time, or has a reserved name."""

    other = pa.field("text", pa.duration("s"))

    def schema(self):
        return pa.schema([SCHEMA.field(0), self.other])

    def batch(self, numbers):
        made = super().batch(numbers)
        columns = [made.data.column(0), made.data.column(0).cast(self.other.type)]
        return replace(made, data=pa.RecordBatch.from_arrays(columns, schema=self.schema()))


class ReservedColumn(OddColumns):
    other = pa.field("__mr_text", pa.int64())


class TooFine(OddColumns):
    other = pa.field("text", pa.timestamp("ns"))


class ColumnsByChance(Counted):
    calls = itertools.count()

    def schema(self):
        return SCHEMA if next(self.calls) % 2 == 0 else pa.schema([SCHEMA.field(1)])


class TooMany(Counted):
    def plan(self, offsets, max_records):
        return super().plan(offsets, max_records + 1)


class EmptyRange(Counted):
    def plan(self, offsets, max_records):
        plan = super().plan(offsets, max_records)
        return replace(plan, ranges=(*plan.ranges, self.made(99, 0)))


class TupleOffsets(Counted):
    def plan(self, offsets, max_records):
        plan = super().plan(offsets and {"next": offsets[0]}, max_records)
        return replace(plan, offsets=(plan.offsets["next"], "x"))


class PathLocator(Counted):
    def made(self, start, count):
        piece = super().made(start, count)
        return replace(piece, locator={**piece.locator, 7: "x"})


class Overlapping(Counted):
    def plan(self, offsets, max_records):
        plan = super().plan(offsets, max_records)
        return replace(plan, ranges=(*plan.ranges, *plan.ranges[:1]) if max_records > 99 else
                       plan.ranges)  # fmt: skip


class OwnPosition(Counted):
    """Goes on where this object has been."""

    at = 0

    def plan(self, offsets, max_records):
        plan = super().plan({"next": self.at}, max_records)
        self.at = plan.offsets["next"]
        return plan


class LosesTheRest(Counted):
    """What a small plan leaves of four records never comes."""

    def plan(self, offsets, max_records):
        start = 0 if offsets is None else offsets["next"]
        if max_records >= 4:
            return super().plan(offsets, max_records)
        count = min(max_records, self.options["count"] - start)
        end = min(start + 4, self.options["count"])
        ranges = (self.made(start, count),) if count else ()
        return SourcePlan(ranges, {"next": end}, drained=end == self.options["count"])


class NeverDrained(Counted):
    def plan(self, offsets, max_records):
        return replace(super().plan(offsets, max_records), drained=False)


class DrainedTooEarly(Counted):
    def plan(self, offsets, max_records):
        plan = super().plan(offsets, max_records)
        return replace(plan, drained=plan.offsets["next"] >= self.options["count"] - 2)


class ShortRead(Counted):
    def read(self, piece):
        yield from super().read(replace(piece, count=max(1, piece.count - 1)))


class LoudErrors(Counted):
    """A row with an error keeps its values."""

    def batch(self, numbers):
        batch = super().batch(numbers)
        columns = [pa.array(list(numbers)), batch.data.column(1)]
        return replace(batch, data=pa.RecordBatch.from_arrays(columns, schema=SCHEMA))


class CountsReads(Counted):
    reads = itertools.count()

    def read(self, piece):
        self.turn = next(self.reads)
        yield from super().read(piece)

    def text(self, n):
        return f"number {n} in {self.turn}"


class OneReader(Counted):
    """Two readers share a position."""

    def read(self, piece):
        self.at, self.end = piece.locator["from"], piece.locator["from"] + piece.count
        while self.at < self.end:
            stop = min(self.at + 3, self.end)
            at, self.at = self.at, stop
            yield self.batch(range(at, stop))


class HashedRows(Counted):
    def text(self, n):
        return f"{hash(str(n)) % 1000}"


class PlansInMemory(Counted):
    """The locator is a key of what the plan remembers."""

    def made(self, start, count):
        piece = super().made(start, count)
        self.__dict__.setdefault("planned", set()).add(start)
        return piece

    def read(self, piece):
        if piece.locator["from"] not in self.__dict__.get("planned", ()):
            raise KeyError(piece.locator["from"])
        yield from super().read(piece)


class UncutLocator(Counted):
    split = Source.split


class UnequalHalves(Counted):
    def split(self, piece, at):
        first, second = super().split(piece, at)
        return replace(first, count=at + 1), second


class LocatesTheFirst(Counted):
    def locate(self, piece, index):
        return piece.locator


class PayloadOfTheMoment(Counted):
    def payload(self, replay):
        return f"{time.monotonic_ns()} {os.getpid()}".encode()


class NoPayload(Counted):
    def payload(self, replay):
        raise KeyError("payload")


class LagsBehindZero(Counted):
    def lag(self, offsets):
        return -1


class ChecksAloud(Counted):
    def check(self):
        raise SourceError("nothing is there")


class Marked(Counted):
    """Keeps a mark in a file."""

    @property
    def mark(self) -> Path:
        return self.folder / f"mark-{type(self).__name__}"


class AcksToTheEnd(Marked):
    """Whatever is told, all is taken for done."""

    def on_ack(self, acked):
        self.mark.touch()

    def read(self, piece):
        if self.mark.exists():
            raise FileNotFoundError("the records were deleted")
        yield from super().read(piece)


class AcksOnce(Counted):
    def on_ack(self, acked):
        if self.__dict__.setdefault("told", acked) is not acked:
            raise ValueError("told twice")


class LeavesATrace(Marked):
    """A plan takes a note that it removes at its end; where one is left, nothing is planned."""

    def plan(self, offsets, max_records):
        if self.mark.exists():
            return SourcePlan((), offsets or {"next": 0}, drained=True)
        self.mark.touch()
        plan = super().plan(offsets, max_records)
        self.mark.unlink()
        return plan


class Hangs(Counted):
    """Waits for records that never come."""

    def plan(self, offsets, max_records):
        plan = super().plan(offsets, max_records)
        while not plan.ranges or offsets is None:
            time.sleep(0.01)
        return plan


class Holey(Counted):
    """Every offset that three divides carries no record."""

    def batch(self, numbers) -> ReadBatch:
        found = super().batch(numbers)
        held = [at for at, n in enumerate(numbers) if n % 3]
        errors = tuple((held.index(at), text) for at, text in found.errors if at in held)
        holes = tuple((at, 1) for at, n in enumerate(numbers) if n % 3 == 0)
        return ReadBatch(found.data.take(pa.array(held, pa.int64())), errors, holes=holes)


class HolesOutside(Holey):
    def batch(self, numbers) -> ReadBatch:
        return replace(super().batch(numbers), holes=((len(numbers), 1),))


class HolesByChance(Holey):
    """What is a record when it is first read is a hole from then on."""

    reads = 0

    def read(self, piece):
        self.reads += 1
        for part in super().read(piece):
            if self.reads > 1 and part.data.num_rows:
                yield ReadBatch(part.data.slice(0, 0), holes=((0, part.offsets),))
            else:
                yield part
