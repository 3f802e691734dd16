"""Plans of a source, one behind the other, and the records that they name."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from millrace.protocol.types import Json, Replay, RootRange
from millrace.sources.base import Source
from millrace.testing import wire
from millrace.testing.findings import BrokenError
from millrace.testing.processes import Copy, Outcome, Workshop

Name = tuple[int, int]
"""Partition and offset of a record."""

Records = Mapping[Name, str]
"""Each offset as text: its record's row as JSON, or its error, or ``HOLE``."""

HOLE = "no record"


@dataclass(frozen=True, slots=True)
class Planned:
    """What one call of ``plan`` gave."""

    ranges: tuple[RootRange, ...]
    offsets: Json
    drained: bool

    @property
    def names(self) -> list[tuple[int, int, int]]:
        """Partition, first offset and count of each range."""
        return [(piece.partition, piece.start, piece.count) for piece in self.ranges]


@dataclass(slots=True)
class Walk:
    """Plans from the beginning on; ``starts`` are the offsets that each was asked for from."""

    starts: list[Json] = field(default_factory=list)
    plans: list[Planned] = field(default_factory=list)
    records: dict[Name, str] = field(default_factory=dict)
    ended: bool = False

    @property
    def end(self) -> Json:
        """The offsets behind the last plan."""
        return self.plans[-1].offsets

    @property
    def drained(self) -> bool:
        return self.plans[-1].drained


class SourceCopy:
    """A process with a source object, asked in the words of its interface.

    Raises ``BrokenError`` where an answer breaks a rule by its form, or where there is none.
    """

    def __init__(self, source: Source, copy: Copy) -> None:
        self._source = source
        self.process = copy

    @cached_property
    def known_schema(self) -> pa.Schema:
        """What ``schema`` gave first."""
        return self.schema()

    def schema(self) -> pa.Schema:
        with pa.ipc.open_stream(base64.b64decode(self._ask("schema", "schema")["schema"])) as found:
            return found.schema

    def plan(self, offsets: Json, max_records: int) -> Planned:
        told_ = self._ask("plan", "plan", offsets=offsets, max_records=max_records)
        ranges = tuple(wire.unpack(RootRange, text) for text in told_["ranges"])
        lag = told_["lag"]
        for piece in ranges:
            if piece.source != self._source.name or piece.count < 1 or piece.start < 0:
                raise BrokenError("plan", f"plan() gave the range {piece}")
            if not 0 <= piece.partition < 1 << 64:
                raise BrokenError("plan", f"plan() gave {piece}, whose partition is no 64 bits")
        count = sum(piece.count for piece in ranges)
        if count > max_records:
            raise BrokenError("plan", f"plan() gave {count} records, asked for {max_records}")
        if lag is not None and (not isinstance(lag, int) or lag < 0):
            raise BrokenError("plan", f"plan() gave lag_records={lag!r}, which is no count")
        return Planned(ranges, told_["offsets"], told_["drained"])

    def read(self, piece: RootRange, rule: str = "read") -> Records:
        parts = self._ask("read", rule, piece=wire.pack(piece))
        return told(parts, piece, self.known_schema, rule)

    def batches(self, piece: RootRange, rule: str) -> list[pa.RecordBatch]:
        """What ``read`` yields for a range, as it is."""
        parts = self._ask("read", rule, piece=wire.pack(piece))
        return [batch for part in parts for batch in wire.unpack_batches(part["data"])]

    def read_two(self, one: RootRange, other: RootRange) -> list[Any]:
        pieces = [wire.pack(one), wire.pack(other)]
        found: list[Any] = self._ask("read_two", "read-again", pieces=pieces)
        return found

    def split(self, piece: RootRange, at: int) -> list[RootRange]:
        halves = self._ask("split", "split", piece=wire.pack(piece), at=at)["halves"]
        return [wire.unpack(RootRange, text) for text in halves]

    def locate(self, piece: RootRange, index: int) -> Json:
        return self._ask("locate", "locate", piece=wire.pack(piece), index=index)["locator"]

    def replay(self, piece: RootRange, index: int) -> Replay:
        locator = self.locate(piece, index)
        return Replay(piece.source, piece.partition, piece.start + index, 1, 0.0, locator)

    def payload(self, piece: RootRange, index: int, locator: Json) -> bytes:
        replay = Replay(piece.source, piece.partition, piece.start + index, 1, 0.0, locator)
        found = self._ask("payload", "payload", replay=wire.pack(replay))["payload"]
        return base64.b64decode(found)

    def check(self) -> None:
        self._ask("check", "words")

    def lag(self, offsets: Json) -> None:
        self._ask("lag", "words", offsets=offsets)

    def place(self, replay: Replay) -> None:
        self._ask("place", "words", replay=wire.pack(replay))

    def on_ack(self, window: int, ranges: list[RootRange], failed: Replay) -> None:
        packed = [wire.pack(piece) for piece in ranges]
        names = [[failed.partition, failed.offset]]
        self._ask("on_ack", "acks", window=window, ranges=packed, failed=names)

    def on_fail(self, letter: Replay) -> None:
        self._ask("on_fail", "acks", letters=[wire.pack(letter)])

    def _ask(self, act: str, rule: str, **args: Any) -> Any:
        outcome: Outcome = self.process.ask(act, **args)
        if not outcome.done:
            shown = ", ".join(f"{key}={value!r}" for key, value in args.items())
            raise BrokenError(rule, f"{act}({shown}) {outcome}")
        return outcome.value


class Feed:
    """The source under test: the records that it truly has, and processes to ask."""

    def __init__(
        self, made: Source, first: Workshop, second: Workshop, most_records: int, bounded: bool
    ) -> None:
        self.made = made
        self.most_records = most_records
        self.bounded = bounded
        self._first = first
        self._second = second

    @cached_property
    def walk(self) -> Walk:
        """The undisturbed walk over all records, in plans of half of them and more."""
        return self.walk_of(self.most_records, 8)

    @property
    def truth(self) -> Records:
        """All records."""
        return self.walk.records

    @property
    def portion(self) -> int:
        """Records of a plan such that there are a few."""
        return max(1, -(-len(self.truth) // 4))

    def walk_of(self, max_records: int, most_plans: int) -> Walk:
        """Up to ``most_plans`` plans of ``max_records`` each, read by the process that planned."""
        walk = Walk()
        offsets: Json = None
        with self.copy() as copy:
            for _ in range(most_plans):
                plan = copy.plan(offsets, max_records)
                walk.starts.append(offsets)
                walk.plans.append(plan)
                for piece in plan.ranges:
                    records = copy.read(piece)
                    both = sorted(records.keys() & walk.records.keys())
                    if both:
                        raise BrokenError("once", f"plan() gave the record {both[0]} twice")
                    walk.records |= records
                # As the record of the topology gives them back after a crash.
                offsets = json.loads(json.dumps(plan.offsets))
                if plan.drained or not plan.ranges:
                    walk.ended = True
                    break
        return walk

    def is_hole(self, piece: RootRange, index: int) -> bool:
        """Whether an offset of a range carries no record."""
        return self.truth.get((piece.partition, piece.start + index)) == HOLE

    def long_pieces(self) -> list[RootRange]:
        """A few ranges, the longest there are."""
        pieces = [piece for plan in self.walk.plans for piece in plan.ranges]
        return sorted(pieces, key=lambda piece: -piece.count)[:3]

    def halves(self, copy: SourceCopy, pieces: list[RootRange]) -> tuple[RootRange, RootRange]:
        """Two ranges to be read in turn."""
        if len(pieces) > 1:
            return pieces[0], pieces[1]
        first, second = copy.split(pieces[0], pieces[0].count // 2)
        return first, second

    def same(self, records: Records, piece: RootRange, rule: str, how: str) -> None:
        """The records of a range are what they truly are. Raises ``BrokenError``."""
        for name, row in records.items():
            true = self.truth.get(name)
            if row != true:
                where = f"the record {name}, {how},"
                raise BrokenError(rule, f"{where} is {row}, but {true} when it was read first")

    def compare(self, copy: SourceCopy, plan: Planned, rule: str, how: str) -> None:
        """``same`` for all ranges of a plan."""
        for piece in plan.ranges:
            self.same(copy.read(piece, rule), piece, rule, how)

    @contextmanager
    def copy(self) -> Iterator[SourceCopy]:
        """A new process."""
        with self.copies(1) as (copy,):
            yield copy

    @contextmanager
    def elsewhere(self) -> Iterator[SourceCopy]:
        """A new process that differs from the others as one on another machine does."""
        process = self._second.copy("source", self.made)
        try:
            yield SourceCopy(self.made, process)
        finally:
            process.close()

    @contextmanager
    def copies(self, count: int) -> Iterator[list[SourceCopy]]:
        """New processes; with two of them, the second one is that of ``elsewhere``."""
        shops = [self._first, self._second][:count]
        processes = [shop.copy("source", self.made) for shop in shops]
        try:
            yield [SourceCopy(self.made, process) for process in processes]
        finally:
            for process in processes:
                process.close()


def told(parts: list[Any], piece: RootRange, schema: pa.Schema, rule: str) -> Records:
    """The records of what ``read`` yielded. Raises ``BrokenError`` where it breaks a rule."""
    records: dict[Name, str] = {}
    number = 0
    for part in parts:
        if "broken" in part:
            raise BrokenError(part["broken"]["rule"], part["broken"]["seen"])
        (batch,) = wire.unpack_batches(part["data"])
        if batch.schema != schema:
            raise BrokenError(
                "schema", f"read() yields the columns {batch.schema.to_string()!r}, schema() says "
                f"{schema.to_string()!r}"
            )  # fmt: skip
        errors = _errors_of(part["errors"], batch)
        places = range(batch.num_rows) if part["places"] is None else part["places"]
        end = number + part["offsets"]
        names = [(piece.partition, piece.start + at) for at in range(number, end)]
        records |= dict.fromkeys(names, HOLE)
        for index, row in enumerate(batch.to_pylist()):
            text = json.dumps(row, sort_keys=True, default=repr, ensure_ascii=False)
            records[names[places[index]]] = errors.get(index, text)
        number = end
    if number != piece.count:
        raise BrokenError(rule, f"read() gave {number} rows and holes of {piece}")
    return records


def _errors_of(errors: list[Any], batch: pa.RecordBatch) -> dict[int, str]:
    found: dict[int, str] = {}
    for index, message in errors:
        if not (isinstance(index, int) and 0 <= index < batch.num_rows):
            raise BrokenError(
                "read", f"read() names the row {index!r} in errors of a batch of {batch.num_rows}"
            )
        row = {name: batch.column(name)[index].as_py() for name in batch.schema.names}
        if any(value is not None for value in row.values()):
            raise BrokenError("read", f"read() gave the row {row} with the error {message!r}")
        found[index] = f"error: {message}"
    return found
