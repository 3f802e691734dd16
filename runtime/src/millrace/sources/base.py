"""What a source of records is, for those that ship with Millrace and for your own.

A source lives twice: the driver plans with it, and every worker reads with a copy of its own that
is built from the same name, options and folder. Nothing is shared between the two but what
``plan`` puts into the ranges' locators, so a range must say all that is needed to find its
records again, in another process and after a crash.

``millrace.testing.check_source`` tries a source against all that is promised here. One of one's own
is a class that the topology names::

    sources:
      - name: ticks
        custom: {class: "feeds:Ticks", options: {count: 1000}}

with ``feeds.py`` beside the topology file::

    class Ticks(Source):
        def schema(self) -> pa.Schema:
            return pa.schema([("tick", pa.int64())])

        def plan(self, offsets: Json, max_records: int) -> SourcePlan:
            start = offsets or 0
            count = min(max_records, self.options["count"] - start)
            ranges = (self.range_of("ticks", start, count),) if count else ()
            drained = start + count == self.options["count"]
            return SourcePlan(ranges, start + count, drained)

        def read(self, piece: RootRange) -> Iterator[ReadBatch]:
            ticks = pa.array(range(piece.start, piece.start + piece.count), pa.int64())
            yield ReadBatch(pa.RecordBatch.from_arrays([ticks], schema=self.schema()))
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from millrace.errors import SourceError
from millrace.ids import name_id
from millrace.protocol.types import Json, Replay, RootRange
from millrace.sources.arrow_types import plain_value


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """The next records of a source.

    ``ranges`` hold exactly counted records, none twice, among which there may be offsets that
    carry none (``ReadBatch.holes``); ``offsets`` is where the plan after this
    one starts; ``drained`` says that nothing will ever come behind ``offsets``; ``lag_records``
    is an estimate of the records that are there but not in this plan.
    """

    ranges: tuple[RootRange, ...]
    offsets: Json
    drained: bool = False
    lag_records: int | None = None

    @property
    def records(self) -> int:
        return sum(piece.count for piece in self.ranges)


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """Records in offset order, one row each.

    A record that cannot be decoded is a row of nulls and an (index of the row, message) in
    ``errors``: that root fails for good at once, the others go on. ``gone`` is for the engine: the
    record, a replay's, is not there, and may be when it is replayed again.

    ``holes`` are offsets that carry no record and never will, such as marks of transactions and
    records that were aborted or compacted away: rising (first, count), counted from the first
    offset of the batch. A batch is about as many offsets as it has rows and holes; it may have
    holes alone. Name only what is known to carry none: a hole is no root, and nobody misses it.
    """

    data: pa.RecordBatch
    errors: tuple[tuple[int, str], ...] = ()
    gone: bool = False
    holes: tuple[tuple[int, int], ...] = ()

    @property
    def offsets(self) -> int:
        """How many offsets of the range the batch is about."""
        rows: int = self.data.num_rows
        return rows + sum(count for _, count in self.holes)

    def places(self) -> np.ndarray[Any, np.dtype[np.int64]] | None:
        """The offset of each row, counted from the first of the batch, int64[rows]; ``None``
        without holes: 0, 1, 2, ... Raises ``ValueError`` where the holes are none of the batch's.
        """
        if not self.holes:
            return None
        free = np.ones(self.offsets, bool)
        end = 0
        for first, count in self.holes:
            if count < 1 or first < end or first + count > len(free):
                raise ValueError(f"holes {self.holes} do not lie in {len(free)} offsets, rising")
            end = first + count
            free[first:end] = False
        return np.flatnonzero(free)


@dataclass(frozen=True, slots=True)
class Acked:
    """Roots of one source whose window is sealed: those of ``ranges`` and ``replays``, less the
    ``failed`` (partition, offset), which wait for a replay, are dead letters or were dropped.
    """

    window: int
    ranges: tuple[RootRange, ...]
    replays: tuple[Replay, ...] = ()
    failed: frozenset[tuple[int, int]] = frozenset()


class Source(ABC):
    """A source of records; ``schema``, ``plan`` and ``read`` are all that it must define.

    ``options`` are the topology file's, ``folder`` is where that file lies and what relative paths
    start from. Offsets and locators consist of JSON's own types and are kept in the record of the
    topology, which is written with every window: keep them small. ``read`` gets a locator as it is
    read there, with a list for each tuple.

    ``plan`` is called by one thread of the driver; ``split``, ``locate`` and ``payload`` may be
    called by others at the same time, one of these after the other; ``read`` runs in workers.
    """

    replayable: ClassVar[bool] = True
    """Whether a range can be read any number of times. Others are refused for now."""

    sound: ClassVar[bool] = False
    """Whether each value is surely one of its type, such as a text that is UTF-8. Of sources that
    do not say so all values are looked at."""

    def __init__(self, name: str, options: Mapping[str, Any], folder: Path) -> None:
        self.name = name
        self.options = dict(options)
        self.folder = folder

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Columns of every batch that ``read`` yields. Raises ``SourceError``."""

    @abstractmethod
    def plan(self, offsets: Json, max_records: int) -> SourcePlan:
        """The next at most ``max_records`` records behind ``offsets`` (``None``: the beginning).

        Returns at once with what is there, also with nothing. The answer may depend on nothing
        but ``offsets`` and the outside world: plans are asked for again, from old offsets too.
        Raises ``SourceError`` where records that were counted before are gone or changed,
        ``SourceAwayError`` where the source cannot be asked now: that, and whatever else it raises,
        is tried again a few times.
        """

    @abstractmethod
    def read(self, piece: RootRange) -> Iterator[ReadBatch]:
        """The records of a range, in offset order, exactly ``piece.count`` rows and holes in all.

        The same range always yields the same rows. Raises ``SourceError`` where it cannot.
        """

    def lag(self, offsets: Json) -> int | None:
        """How many records wait behind ``offsets``, an estimate; ``None`` where only a plan tells.

        Asked about once a second while a window is processed, by the thread that plans.
        """
        return None

    def on_news(self, tell: Callable[[], None]) -> None:  # noqa: B027, polling is a good answer
        """Have ``tell`` called, from any thread, whenever there may be more than a plan has found.

        Called once on the driver, before the first plan. A hint that saves the time up to the next
        look: whoever cannot tell, or misses some, is asked for a plan every 50 ms all the same.
        """

    def check(self) -> None:  # noqa: B027, nothing to look for is a good answer
        """Raise the ``SourceError`` that reading would raise now, if that is known without reading.

        Asked by ``validate --connect``, of files also before a run starts; changes nothing.
        """

    def split(self, piece: RootRange, at: int) -> tuple[RootRange, RootRange]:
        """Two ranges that together are ``piece``; the first has ``at`` records (0 < at < count).

        Pure and quick. This one keeps the locator as it is; override it where the locator says
        where the records begin.
        """
        check_cut(piece, at)
        return (
            replace(piece, count=at),
            replace(piece, start=piece.start + at, count=piece.count - at),
        )

    def locate(self, piece: RootRange, index: int) -> Json:
        """Locator by which the record ``index`` of a range alone can be read again."""
        if index:
            piece = self.split(piece, index)[1]
        return (self.split(piece, 1)[0] if piece.count > 1 else piece).locator

    def payload(self, replay: Replay) -> bytes:
        """The record itself, for a dead letter: its own bytes where it has any.

        This one is the row as JSON. Raises ``SourceError`` where it cannot be read any more.
        """
        parts = [part.data for part in self.read(range_of(replay)) if part.data.num_rows]
        if not parts:
            raise SourceError(f"source {self.name!r}: {self.place(replay)}: the record is gone")
        return first_row(parts[0])

    def place(self, replay: Replay) -> str:
        """Where a record is found, in words, for a dead letter: a file and a line, say.

        Called on the driver with one letter after the other, in the order of their records.
        Whatever it raises is answered with the words that this one gives.
        """
        return f"partition {replay.partition:016x}, offset {replay.offset}"

    def on_ack(self, acked: Acked) -> None:  # noqa: B027, nothing to do is a good answer
        """Called on the driver after a window is sealed and published, at least once for each.

        Windows come in order. Nothing is told of one that ``AtMostOnce`` gives up, in whole or
        without knowing which of its roots. An exception is logged and stops nothing.
        """

    def on_fail(self, letters: Sequence[Replay]) -> None:  # noqa: B027
        """Called on the driver with roots that became dead letters, at least once for each."""

    def close(self) -> None:  # noqa: B027
        """Called once on the driver at the end of a run that was not killed.

        Workers are ended without; what an exception says is logged and changes nothing.
        """

    def range_of(self, partition: str, start: int, count: int, locator: Json = None) -> RootRange:
        """A range of this source; a partition's name and its offsets identify records for ever."""
        return RootRange(self.name, name_id(partition), start, count, locator)


def first_row(data: pa.RecordBatch) -> bytes:
    """The first row of a batch as JSON, for a dead letter; whatever is in it."""
    row = {name: plain_value(data.column(name)[0]) for name in data.schema.names}
    return json.dumps(row, default=str, ensure_ascii=False).encode()


def range_of(replay: Replay) -> RootRange:
    """The range of one record that a replay reads."""
    return RootRange(replay.source, replay.partition, replay.offset, 1, replay.locator)


def cut(source: Source, piece: RootRange, parts: int) -> list[RootRange]:
    """Cut a range into at most ``parts`` ranges of nearly equal, exact counts, in order."""
    pieces: list[RootRange] = []
    parts = min(parts, piece.count)
    for left in range(parts, 1, -1):
        first, piece = source.split(piece, -(-piece.count // left))
        pieces.append(first)
    return [*pieces, piece]


def check_cut(piece: RootRange, at: int) -> None:
    """Raises ``ValueError`` unless ``at`` lies inside the range."""
    if not 0 < at < piece.count:
        raise ValueError(f"a range of {piece.count} records cannot be split at {at}")


def check_replayable(source: Source) -> None:
    """Raises ``SourceError`` for a source that cannot be read again."""
    if not source.replayable:
        raise SourceError(
            f"source {source.name!r}: {type(source).__name__} says replayable = False, but every "
            "record must be readable again after a crash; let it write what arrives to files and "
            "read those with a files source"
        )
