"""A source that reads short, a sink that loses the end of what it staged, and one without room."""

from __future__ import annotations

import os
import random
import resource
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from fault_orders import attempt, orders, strike

from millrace.protocol.types import RootRange, Staged
from millrace.sinks.files import FileSink
from millrace.sources.base import ReadBatch
from millrace.sources.files import FileSource


class ShortLines(FileSource):
    """Leaves one record of a range out, where {"shortRead": {"windows", "seed"}} says so."""

    def read(self, piece: RootRange) -> Iterator[ReadBatch]:
        order = orders().get("shortRead")
        for part in super().read(piece):
            if order is not None and piece.count > 1 and attempt()[1] in order["windows"]:
                part = self._shortened(part, random.Random(f"{order['seed']}/{attempt()[1]}"))
            yield part

    def close(self) -> None:
        with (self.folder / f"{self.name}.closed").open("a") as told:
            told.write(f"{os.getpid()}\n")

    def _shortened(self, part: ReadBatch, chance: random.Random) -> ReadBatch:
        rows = part.data.num_rows
        # The last one, which nothing follows, is as likely as all others together.
        row = chance.choice([rows - 1, chance.randrange(rows)])
        if not strike(f"shortRead-{attempt()[1]}", row=row):
            return part
        keep = np.ones(rows, bool)
        keep[row] = False
        return ReadBatch(part.data.filter(pa.array(keep)), part.errors)


class CutFiles(FileSink):
    """Cuts the end off a staged file, where {"cutFile": {"windows", "seed"}} says so."""

    def stage(self, name: str, batches: Sequence[pa.RecordBatch]) -> Staged | None:
        staged = super().stage(name, batches)
        order = orders().get("cutFile")
        if staged is not None and order is not None and attempt()[1] in order["windows"]:
            chance = random.Random(f"{order['seed']}/{attempt()[1]}")
            if strike(f"cutFile-{attempt()[1]}", staged=name):
                os.truncate(self._staged_path(name), chance.randrange(staged.size_bytes))
        return staged

    def close(self) -> None:
        with (self.folder / f"{self.name}.closed").open("a") as told:
            told.write(f"{os.getpid()}\n")
        raise RuntimeError("what a sink says when it is closed changes nothing")


class CrampedFiles(FileSink):
    """May write files of {"mostBytes"} only, as long as there is such an order."""

    def stage(self, name: str, batches: Sequence[pa.RecordBatch]) -> Staged | None:
        most = orders().get("mostBytes")
        if most is None:
            return super().stage(name, batches)
        usual = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, usual[1]))
        try:
            return super().stage(name, batches)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, usual)
