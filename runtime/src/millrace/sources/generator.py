"""Made-up records, the same for the same seed: ``id long, key string, value double``.

Record ``n`` of partition ``p`` of ``P`` has the id ``n * P + p``; key and value are hashes of seed
and id, so every record can be made again anywhere. Keys are ``k0`` to ``k999``, values lie in
[0, 1).

Source of the hash: the finaliser of splitmix64, as in ``millrace.ids``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from millrace import mixers
from millrace.clock import Clock, SystemClock
from millrace.errors import SourceError
from millrace.ids import mix64
from millrace.protocol.types import Json, Replay, RootRange
from millrace.sources.base import ReadBatch, Source, SourcePlan

KEYS = 1000
BATCH_ROWS = 1 << 17

_SCHEMA = pa.schema([("id", pa.int64()), ("key", pa.string()), ("value", pa.float64())])


class GeneratorSource(Source):
    """Options: ``seed``, ``count`` in all, ``rate`` in records per second, ``partitions``.

    Offsets are ``{"n": [records made of each partition]}``. The rate counts from the first plan of
    this process on, by a clock that does not jump; while nothing runs nothing is made.
    With a rate, what a pause left out is made up for afterwards.
    """

    sound = True

    def __init__(
        self, name: str, options: Mapping[str, Any], folder: Path, clock: Clock | None = None
    ) -> None:
        super().__init__(name, options, folder)
        self._clock = clock or SystemClock()
        self._begin: tuple[float, int] | None = None
        self.seed = self._whole("seed", 0) or 0
        self.count = self._whole("count", 1)
        self.rate = self._whole("rate", 1)
        self.partitions = self._whole("partitions", 1) or 1
        self._keys = pa.array([f"k{i}" for i in range(KEYS)])

    def schema(self) -> pa.Schema:
        return _SCHEMA

    def plan(self, offsets: Json, max_records: int) -> SourcePlan:
        now_s = self._clock.monotonic_s()
        done = [0] * self.partitions
        if offsets is not None:
            if len(offsets["n"]) != self.partitions:
                raise SourceError(
                    f"source {self.name!r}: generator.partitions is {self.partitions}, but records "
                    f"were read from {len(offsets['n'])} partitions; set it back or start over "
                    "with --fresh"
                )
            done = [int(n) for n in offsets["n"]]
        total = sum(done)
        began_s, made = self._begin = self._begin or (now_s, total)
        left = self._left(total, made + (now_s - began_s) * (self.rate or 0))
        ranges = []
        for partition, share in enumerate(self._shares(done, min(left, max(0, max_records)))):
            if share:
                ranges.append(self._range(partition, done[partition], share))
                done[partition] += share
        planned = sum(done) - total
        drained = self.count is not None and total + planned >= self.count
        lag = left - planned if self.count is not None or self.rate is not None else None
        return SourcePlan(tuple(ranges), {"n": done}, drained, lag)

    def read(self, piece: RootRange) -> Iterator[ReadBatch]:
        partition = int(piece.locator["p"])
        for start in range(piece.start, piece.start + piece.count, BATCH_ROWS):
            end = min(start + BATCH_ROWS, piece.start + piece.count)
            ids = np.arange(start, end, dtype=np.int64) * self.partitions + partition
            hashed = mixers.mix64(ids.view(np.uint64) ^ np.uint64(mix64(self.seed + 1)))
            columns = [
                pa.array(ids),
                self._keys.take(pa.array((hashed % np.uint64(KEYS)).astype(np.int64))),
                pa.array((mixers.mix64(hashed) >> np.uint64(11)).astype(np.float64) / (1 << 53)),
            ]
            yield ReadBatch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))

    def place(self, replay: Replay) -> str:
        return f"record {replay.offset} of partition {replay.locator['p']}"

    def _range(self, partition: int, start: int, count: int) -> RootRange:
        return self.range_of(f"generator/{partition}", start, count, {"p": partition})

    def _left(self, total: int, allowed: float) -> int:
        bounds = [1 << 62]
        if self.count is not None:
            bounds.append(self.count - total)
        if self.rate is not None:
            bounds.append(int(allowed) - total)
        return max(0, min(bounds))

    def _shares(self, done: list[int], wanted: int) -> list[int]:
        """How many records each partition gives, so that all stay level.

        With a count the ids up to it come out: partition p ends behind its last id below it.
        """
        total = sum(done) + wanted
        among = self.partitions
        level = [(total - p + among - 1) // among for p in range(among)]
        return [max(0, to - n) for to, n in zip(level, done, strict=True)]

    def _whole(self, field: str, least: int) -> int | None:
        value = self.options.get(field)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise SourceError(
                f"source {self.name!r}: generator.{field} is {value!r}; give a whole number of at "
                f"least {least}"
            )
        return value
