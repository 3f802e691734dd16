"""What the driver tells at ``/metrics``: its status, and what is counted beside it.

Totals are those of the committed record, so that they go on where the driver before stopped. What
befalls windows is counted by each driver for itself, and so are recoveries:

=============  ====================================================================================
recovery       from → to
=============  ====================================================================================
``driver``     the beginning of a driver → windows can be run
``view``       a view that was open moves → it is open, and windows can be run
``attempt``    a window attempt dies, or has to wait for a server or a sink → a window is sealed
=============  ====================================================================================

The first two are looked at five times a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum

from millrace.clock import Clock
from millrace.homes.documents import Status
from millrace.metrics import catalogue as c
from millrace.metrics.tally import Counts, Histogram, Sample, known, states
from millrace.protocol import events as e
from millrace.protocol.types import Phase, Record, View

STATES = ("starting", "running", *(kind.value for kind in e.StopKind))
"""What ``Status.state`` may be."""


class Ended(StrEnum):
    """How a window attempt ended."""

    RAN = "ran"
    WAITED = "waited"
    DIED = "died"
    FAILED = "failed"


class Recovery(StrEnum):
    """What recovers."""

    DRIVER = "driver"
    VIEW = "view"
    ATTEMPT = "attempt"


class DriverFigures:
    """Told by the loop's thread; ``samples`` is for any."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._attempts = Counts(c.ATTEMPTS, ((one.value,) for one in Ended))
        self._seal = Histogram(c.SEAL_S)
        self._publish = Histogram(c.PUBLISH_S)
        self._recoveries = {one: Histogram(c.RECOVERY_S, (one.value,)) for one in Recovery}
        self._since: dict[Recovery, float] = {}
        self._dead: int | None = None
        self._owners: tuple[tuple[str, ...], ...] = ()
        self._begin(Recovery.DRIVER)

    def committed(self, before: Record | None, record: Record, opened: Mapping[int, float]) -> None:
        """``opened``: when windows were, by the monotonic clock."""
        dead = record.totals.dead
        if before is None or self._dead is None:
            self._dead = dead
            return
        self._dead += newly_dead(before, record)
        if record.sealed > before.sealed:
            now_s = self._clock.monotonic_s()
            for window in range(before.sealed + 1, record.sealed + 1):
                if window in opened:
                    self._seal.observe(now_s - opened[window])
            self._end(Recovery.ATTEMPT)

    def observe(self, event: e.Event) -> None:
        """Count a window attempt that ends."""
        match event:
            case e.RunDone():
                self._attempts.add(Ended.RAN)
            case e.RunDied(member_lost=waits):
                self._attempts.add(Ended.WAITED if waits else Ended.DIED)
                self._begin(Recovery.ATTEMPT)
            case e.RunFailed():
                self._attempts.add(Ended.FAILED)

    def published(self, took_s: float) -> None:
        """``took_s``: since the window was opened."""
        self._publish.observe(took_s)

    def looked(self, status: Status, view: View | None) -> None:
        """To be called once in a while."""
        if view is not None:
            self._owners = view.owners
        if _runs(status):
            self._end(Recovery.DRIVER)
            self._end(Recovery.VIEW)
        elif Recovery.DRIVER not in self._since and status.phase != Phase.OPEN.value:
            self._begin(Recovery.VIEW)

    def samples(self, status: Status) -> Iterator[Sample]:
        """All of ``catalogue.DRIVER``; what is not known yet is left out."""
        yield from states(c.DRIVER_STATE, status.state, STATES)
        yield from known(c.DRIVER_EXECUTION, status.execution)
        yield from known(c.SPARK_RUNNING, status.spark == "running")
        yield from known(c.LAST_SEALED, status.sealed)
        yield from known(c.LAST_PUBLISHED, status.published)
        yield from self._attempts.samples()
        yield from self._seal.samples()
        yield from self._publish.samples()
        if (totals := status.totals) is not None:
            yield Sample(c.SEALED, totals.windows)
            yield Sample(c.ROOTS, totals.roots)
            yield Sample(c.DROPPED, totals.dropped)
            yield Sample(c.REPLAYS, totals.replays)
        yield from known(c.REPLAYS_WAITING, status.pending_replays)
        yield from known(c.DEAD, self._dead)
        yield from known(c.DEAD_HELD, status.dead_letters)
        yield from known(c.LAG, status.lag_records)
        for recovery in self._recoveries.values():
            yield from recovery.samples()
        yield from self._servers(status)

    def _servers(self, status: Status) -> Iterator[Sample]:
        yield from known(c.VIEW_EPOCH, status.epoch)
        yield from states(c.VIEW_PHASE, status.phase, (phase.value for phase in Phase))
        groups = Counter(name for owners in self._owners for name in owners)
        for name, count in sorted(groups.items()):
            yield Sample(c.KEY_GROUPS, count, (name,))
        for one in status.memory or ():
            yield Sample(c.MEMORY_USED, one.used_bytes, (one.name,))
            yield Sample(c.MEMORY_LIMIT, one.limit_bytes, (one.name,))
            yield Sample(c.SERVER_FULL, float(one.full), (one.name,))

    def _begin(self, of: Recovery) -> None:
        self._since.setdefault(of, self._clock.monotonic_s())

    def _end(self, of: Recovery) -> None:
        since_s = self._since.pop(of, None)
        if since_s is not None:
            self._recoveries[of].observe(self._clock.monotonic_s() - since_s)


def newly_dead(before: Record, record: Record) -> int:
    """How many dead letters came between two records, whichever were dropped or replayed then: the
    record's own number is of those that are dead still."""
    known = {one.begun: one.count for one in before.dead}
    return sum(max(0, one.count - known.get(one.begun, 0)) for one in record.dead)


def _runs(status: Status) -> bool:
    """Whether windows can be run."""
    told = (status.state, status.phase, status.spark)
    return told == ("running", Phase.OPEN.value, "running")
