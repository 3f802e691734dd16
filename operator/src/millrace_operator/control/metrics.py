"""What the operator tells at ``/metrics``: how its turns end, and how topologies are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import product
from typing import Generic

from millrace.clock import Clock
from millrace.health import Answer
from millrace.metrics import catalogue as c
from millrace.metrics.exposition import CONTENT_TYPE, Exposition
from millrace.metrics.tally import Counts, Histogram, Sample, known
from millrace_operator.api.resources import ConditionStatus, ConditionType, Phase, TopologyStatus
from millrace_operator.control.queue import K, WorkQueue
from millrace_operator.kube.observing import Key


class Ended(StrEnum):
    """How a turn ended."""

    DONE = "done"
    REFUSED = "refused"
    """A pod was not taken by the API server; the rest was done."""

    STALE = "stale"
    """What was read is not true any more."""

    AWAY = "away"
    """The API server, or something else that was asked, does not answer."""

    FAILED = "failed"
    """An error with a cause, which the topology's events tell."""

    BUG = "bug"
    """An error that nobody expected; the log has it."""

    NOT_LEADING = "notLeading"
    """Another operator may act by now, so nothing more was done."""


_EXPECTED = {Phase.PENDING, Phase.STARTING, Phase.RUNNING, Phase.STALLED}
"""Phases of a topology that is to run."""


def _is_ready(status: TopologyStatus) -> bool:
    told = [one for one in status.conditions if one.type == ConditionType.READY]
    return any(one.status is ConditionStatus.TRUE for one in told)


class Standings:
    """Where each topology stands; safe for several threads."""

    def __init__(self) -> None:
        self._known: dict[Key, TopologyStatus] = {}

    def tell(self, key: Key, status: TopologyStatus | None) -> None:
        """None: it is gone."""
        if status is None:
            self._known.pop(key, None)
        else:
            self._known[key] = status

    def keys(self) -> set[Key]:
        return set(self._known)

    def samples(self) -> Iterator[Sample]:
        topologies = list(self._known.items())
        statuses = [status for _, status in topologies]
        phases = Counter(status.phase for status in statuses)
        for phase in Phase:
            yield Sample(c.TOPOLOGIES, phases[phase], (phase.value,))
        conditions = Counter(
            (condition.type, condition.status.value)
            for status in statuses
            for condition in status.conditions
        )
        for one, status in product(ConditionType, ConditionStatus):
            labels = one.value, status.value
            yield Sample(c.CONDITIONS, conditions[labels], labels)
        for key, found in topologies:
            if found.phase in _EXPECTED:
                yield Sample(c.TOPOLOGY_READY, float(_is_ready(found)), (key.namespace, key.name))


class Turns:
    """How turns ended; safe for several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        results = [(one.value,) for one in Ended]
        self._reconciliations = Counts(c.RECONCILIATIONS, results)
        self._lists = Counts(c.LISTS, results)
        self._took = Histogram(c.RECONCILIATION_S)
        self._reconciled_s: float | None = None
        self._listed_s: float | None = None

    def begin(self) -> None:
        """This operator leads from now on: it is late with a list that does not follow."""
        self._listed_s = self._clock.now_s()

    def reconciled(self, ended: Ended, took_s: float) -> None:
        """A turn for one topology is over."""
        self._reconciliations.add(ended)
        self._took.observe(took_s)
        if ended is Ended.DONE:
            self._reconciled_s = self._clock.now_s()

    def listed(self, ended: Ended) -> None:
        """All topologies were looked at."""
        self._lists.add(ended)
        if ended is Ended.DONE:
            self._listed_s = self._clock.now_s()

    def samples(self) -> Iterator[Sample]:
        yield from self._reconciliations.samples()
        yield from self._lists.samples()
        yield from self._took.samples()
        yield from known(c.LAST_RECONCILIATION, self._reconciled_s)
        yield from known(c.LAST_LIST, self._listed_s)


class Metrics(Generic[K]):
    """All of ``catalogue.OPERATOR``, from any thread."""

    def __init__(
        self,
        turns: Turns,
        standings: Standings,
        queue: WorkQueue[K],
        leads: Callable[[], bool],
    ) -> None:
        self._turns = turns
        self._standings = standings
        self._queue = queue
        self._leads = leads
        self._exposition = Exposition(c.OPERATOR, self.samples)

    def answer(self) -> Answer:
        return Answer(True, self._exposition.text(), content_type=CONTENT_TYPE)

    def samples(self) -> Iterator[Sample]:
        yield Sample(c.LEADER, float(self._leads()))
        yield from self._turns.samples()
        yield from self._standings.samples()
        yield Sample(c.QUEUE_DEPTH, self._queue.depth())
        yield Sample(c.QUEUE_WAIT, self._queue.longest_s())
