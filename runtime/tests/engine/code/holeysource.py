"""A source whose ranges hold offsets without a record, and one that holds back a record too."""

from __future__ import annotations

import pyarrow as pa
from numbersource import Numbers

from millrace import row
from millrace.sources.base import ReadBatch


def is_hole(offset: int) -> bool:
    """Marks behind every ten records, as transactions leave them, and one long gap."""
    return offset % 11 == 10 or 200 <= offset < 260


class Holey(Numbers):
    """The offsets below ``count`` that are no holes; ``batch`` offsets come at a time."""

    def read(self, piece):
        end = piece.start + piece.count
        for low in range(piece.start, end, self.options.get("batch", 70)):
            yield self.part(range(low, min(low + self.options.get("batch", 70), end)))

    def part(self, offsets):
        held = [n for n in offsets if not is_hole(n)]
        holes = tuple((at, 1) for at, n in enumerate(offsets) if is_hole(n))
        return self.batch(held, holes)


class HoleyAndShort(Holey):
    def part(self, offsets):
        whole = super().part(offsets)
        if 49 not in offsets:
            return whole
        kept = [at for at, n in enumerate(whole.data["n"].to_pylist()) if n != 49]
        return ReadBatch(whole.data.take(pa.array(kept, pa.int64())), holes=whole.holes)


class Vanishing(Holey):
    """The record 30 is there when it is read with others, and a hole when it is read again."""

    def part(self, offsets):
        if list(offsets) == [30]:
            return ReadBatch(super().part(offsets).data.slice(0, 0), holes=((0, 1),))
        return super().part(offsets)


@row(output="n long")
def picky(record):
    if record["n"] in (30, 205 + 60, 297):
        raise ValueError(f"{record['n']} is no good")
    return {"n": record["n"]}


@row(output="n long")
def deadly(record):
    if record["n"] == 31:
        import os

        os._exit(9)
    return {"n": record["n"]}
