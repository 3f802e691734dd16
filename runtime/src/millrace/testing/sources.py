"""``check_source``: a source that is planned, read, split, told and killed as the engine does.

The world that the source reads must stay as it is while it is tried. What a record is, is told by
one undisturbed walk over all of them; every other way to read them must give the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace

from millrace.errors import TopologyError
from millrace.protocol.types import RootRange
from millrace.sources.base import Source
from millrace.testing.findings import BrokenError, Check, ConformanceError, findings_of
from millrace.testing.processes import Workshop, scratch
from millrace.testing.rules import SOURCE_RULES
from millrace.testing.sourcefaults import SourceFaults
from millrace.testing.walks import Feed, Records, Walk, told

MOST_PLANS = 40
"""Plans of the walks with few records at a time."""

PROBED = 12
"""Places at which a range is split and located."""


def check_source(
    make: Callable[[], Source],
    *,
    bounded: bool = True,
    most_records: int = 10_000,
    only: Collection[str] | None = None,
) -> None:
    """Try a source against every rule in ``SOURCE_RULES``.

    ``make()`` makes the source over a world that stays as it is meanwhile and holds from 3 to
    ``most_records`` records; more are not looked at. With ``bounded`` the source must say that it
    is drained at their end. ``only`` names rules: the others are tried no further than these need.

    Raises ``ConformanceError`` with all findings, and ``UnusableError`` where the source's class
    cannot be loaded by other processes.
    """
    made = make()
    kind = type(made)
    with scratch() as folder:
        # Two processes whose hash() differs, as that of two workers does.
        first = Workshop(kind, folder, seed=1)
        second = Workshop(kind, folder, seed=2)
        try:
            feed = Feed(made, first, second, most_records, bounded)
            checks = _Contract(feed).checks() + SourceFaults(feed).checks()
            found = findings_of(checks, SOURCE_RULES, only)
        finally:
            first.close()
            second.close()
    if found:
        raise ConformanceError(f"source {kind.__module__}:{kind.__qualname__}", found)


class _Contract:
    """The checks in which nothing dies; each is a method that raises ``BrokenError``."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def checks(self) -> list[Check]:
        """All of them; the others build on the first."""
        return [
            Check(self.walking, ("replayable", "schema", "plan", "json", "once", "read"), True),
            Check(self.schemas, ("schema",)),
            Check(self.carrying, ("columns", "fits")),
            Check(self.draining, ("drained",)),
            Check(self.planning_again, ("plan-again",)),
            Check(self.short_plans, ("short", "drained")),
            Check(self.reading_again, ("read-again",)),
            Check(self.reading_elsewhere, ("elsewhere",)),
            Check(self.splitting, ("split",)),
            Check(self.locating, ("locate",)),
            Check(self.payloads, ("payload",)),
            Check(self.words, ("words",)),
            Check(self.acking, ("acks",)),
        ]

    def walking(self) -> None:
        if not self._feed.made.replayable:
            raise BrokenError("replayable", "the class says replayable = False")
        count = len(self._feed.truth)
        if count < 3:
            raise BrokenError("plan", f"{count} records came; make() must offer at least 3")
        self._feed.walk_of(1, 3)

    def schemas(self) -> None:
        with self._feed.copies(2) as copies:
            schemas = [copy.schema() for copy in copies for _ in range(2)]
        if any(schema != schemas[0] for schema in schemas):
            raise BrokenError("schema", f"schema() gave {schemas[0]} and then another one")

    def carrying(self) -> None:
        # The processes of the kit are spared the engine.
        from millrace.engine.program import draft, schema

        made = self._feed.made
        with self._feed.copy() as copy:
            columns = schema.normal_schema(copy.schema())
            try:
                draft.check_reserved(made.name, columns)
                draft.check_carried(made.name, columns, "write it as a number or a text")
            except TopologyError as error:
                raise BrokenError("columns", f"a run refuses it: {error}") from None
            for piece in (piece for plan in self._feed.walk.plans for piece in plan.ranges):
                for batch in copy.batches(piece, "fits"):
                    _, unfit = schema.fitting(batch, columns, made.name, made.sound)
                    for index, text in unfit.items():
                        raise BrokenError("fits", f"row {index} of a batch of {piece}: {text}")

    def draining(self) -> None:
        walk = self._feed.walk
        with self._feed.copy() as copy:
            again = copy.plan(walk.end, self._feed.most_records)
        if again.ranges:
            raise BrokenError("drained", "plan() from the end of all records gave more of them")
        if self._feed.bounded and not (walk.drained and again.drained):
            raise BrokenError("drained", "plan() never says that it is drained")
        early = [n for n, plan in enumerate(walk.plans[:-1]) if plan.drained]
        if early:
            raise BrokenError("drained", "plan() said that it is drained, but more records came")

    def planning_again(self) -> None:
        walk = self._feed.walk_of(self._feed.portion, MOST_PLANS)
        with self._feed.copies(2) as (one, other):
            for copy, who in ((one, "the same object"), (other, "another process")):
                # From the end to the beginning: what was planned before must not matter.
                one.plan(walk.end, self._feed.portion)
                for number in reversed(range(len(walk.plans))):
                    offsets = walk.starts[number]
                    again = copy.plan(offsets, self._feed.portion)
                    expected, found = walk.plans[number].names, again.names
                    if expected != found:
                        raise BrokenError(
                            "plan-again",
                            f"plan({offsets!r}, {self._feed.portion}) of {who} gave {found}, "
                            f"but {expected} when it was asked for the first time",
                        )
                    self._feed.compare(copy, again, "plan-again", f"planned again by {who}")

    def short_plans(self) -> None:
        for most in (1, 2, self._feed.portion):
            walk = self._feed.walk_of(most, MOST_PLANS)
            records = walk.records
            strange = sorted(records.keys() - self._feed.truth.keys())
            if strange:
                raise BrokenError(
                    "short", f"with max_records={most} plan() gave the record {strange[0]}, which "
                    f"does not come with max_records={self._feed.most_records}"
                )  # fmt: skip
            for name, row in records.items():
                if row != self._feed.truth[name]:
                    raise BrokenError(
                        "short", f"with max_records={most} the record {name} is {row}, but it is "
                        f"{self._feed.truth[name]} with {self._feed.most_records}"
                    )  # fmt: skip
            self._ends(walk, most)

    def _ends(self, walk: Walk, most: int) -> None:
        """A walk that ended has seen all records, and none was drained before."""
        missing = len(self._feed.truth) - len(walk.records)
        if missing and walk.drained:
            with self._feed.copy() as copy:
                if copy.plan(walk.end, most).ranges:
                    raise BrokenError(
                        "drained", f"with max_records={most} plan() said that it is drained, but "
                        "gave more records from there"
                    )  # fmt: skip
        if missing and walk.ended:
            raise BrokenError(
                "short", f"with max_records={most} the plans ended {missing} records too early"
            )

    def reading_again(self) -> None:
        pieces = [piece for plan in self._feed.walk.plans for piece in plan.ranges]
        with self._feed.copy() as copy:
            for _ in range(2):
                for piece in reversed(pieces):
                    self._same(copy.read(piece, "read-again"), piece, "read-again", "read again")
            first, second = self._feed.halves(copy, pieces)
            for piece, batches in zip((first, second), copy.read_two(first, second), strict=True):
                records = told(batches, piece, copy.known_schema, "read-again")
                self._same(records, piece, "read-again", "read in turn with another one")

    def reading_elsewhere(self) -> None:
        pieces = [piece for plan in self._feed.walk.plans for piece in plan.ranges]
        with self._feed.elsewhere() as copy:
            for piece in pieces:
                self._same(
                    copy.read(piece, "elsewhere"), piece, "elsewhere", "read by another process"
                )

    def splitting(self) -> None:
        with self._feed.copies(2) as (driver, worker):
            for piece in self._feed.long_pieces():
                for at in _spread(1, piece.count - 1):
                    halves = driver.split(piece, at)
                    self._check_halves(piece, at, halves)
                    for half in halves:
                        what = f"split off at {at} of {piece.count} records"
                        self._same(worker.read(half, "split"), half, "split", what)
                    rest = halves[1]
                    if rest.count > 1:
                        for part in driver.split(rest, 1):
                            self._same(worker.read(part, "split"), part, "split", "split twice")

    @staticmethod
    def _check_halves(piece: RootRange, at: int, halves: list[RootRange]) -> None:
        plain = [replace(half, locator=None) for half in halves]
        wanted = [
            replace(piece, count=at, locator=None),
            replace(piece, start=piece.start + at, count=piece.count - at, locator=None),
        ]
        if plain != wanted:
            raise BrokenError(
                "split", f"split() at {at} of {piece} gave {halves}; but for the locators it must "
                f"be {wanted}"
            )  # fmt: skip

    def locating(self) -> None:
        with self._feed.copies(2) as (driver, worker):
            for piece in self._feed.long_pieces():
                for index in _spread(0, piece.count - 1):
                    lone = replace(
                        piece,
                        start=piece.start + index,
                        count=1,
                        locator=driver.locate(piece, index),
                    )
                    what = f"located as number {index} of {piece.count} records"
                    self._same(worker.read(lone, "locate"), lone, "locate", what)

    def payloads(self) -> None:
        with self._feed.copies(2) as (driver, worker):
            for piece in self._feed.long_pieces():
                for index in _spread(0, piece.count - 1):
                    if self._feed.is_hole(piece, index):
                        continue  # what is no record becomes no dead letter
                    locator = driver.locate(piece, index)
                    one, other = (copy.payload(piece, index, locator) for copy in (driver, worker))
                    if one != other:
                        raise BrokenError(
                            "payload",
                            f"payload() of the record {piece.start + index} gave {one!r} and, in "
                            f"another process, {other!r}",
                        )

    def words(self) -> None:
        walk = self._feed.walk_of(self._feed.portion, MOST_PLANS)
        with self._feed.copies(2) as copies:
            for copy in copies:
                copy.check()
                for offsets in (*walk.starts, walk.end):
                    copy.lag(offsets)
                for plan in walk.plans:
                    for piece in plan.ranges:
                        copy.place(copy.replay(piece, piece.count - 1))
                again = copy.plan(None, self._feed.portion)
                if again.names != walk.plans[0].names:
                    raise BrokenError("words", "plan() gives other records after these were asked")
                self._feed.compare(copy, again, "words", "read after these were asked")

    def acking(self) -> None:
        walk = self._feed.walk_of(self._feed.portion, MOST_PLANS)
        windows = [list(plan.ranges) for plan in walk.plans if plan.ranges]
        with self._feed.copies(2) as (driver, worker):
            first = windows[0][0]
            records = [n for n in range(first.count) if not self._feed.is_hole(first, n)]
            failed = driver.replay(first, records[0] if records else 0)
            for _ in range(2):
                driver.on_ack(1, windows[0], failed)
            for piece in (piece for pieces in windows[1:] for piece in pieces):
                self._same(
                    worker.read(piece, "acks"), piece, "acks", "read after on_ack() of window 1"
                )
            lone = replace(first, start=failed.offset, count=1, locator=failed.locator)
            self._same(
                worker.read(lone, "acks"), lone, "acks", "read after on_ack() named it as failed"
            )
            for _ in range(2):
                driver.on_fail(failed)
            if len(walk.plans) > 1:
                again = worker.plan(walk.starts[1], self._feed.portion)
                if again.names != walk.plans[1].names:
                    raise BrokenError(
                        "acks", "plan() behind window 1 gives other records after on_ack()"
                    )

    def _same(self, records: Records, piece: RootRange, rule: str, how: str) -> None:
        self._feed.same(records, piece, rule, how)


def _spread(low: int, high: int) -> list[int]:
    """Up to ``PROBED`` whole numbers from ``low`` to ``high``, both among them."""
    if high < low:
        return []
    step = max(1, math.ceil((high - low) / PROBED))
    return sorted({*range(low, high + 1, step), high})
