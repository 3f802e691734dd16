"""What the operator tells of its turns and of topologies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hand_clock import HandClock
from prometheus_client.parser import text_string_to_metric_families as parse

from millrace.errors import MillraceError
from millrace.homes.stores import HomeAwayError
from millrace.metrics import catalogue
from millrace.metrics.catalogue import Metric
from millrace_operator.api.resources import (
    Condition,
    ConditionStatus,
    ConditionType,
    Phase,
    TopologyStatus,
)
from millrace_operator.control.metrics import Ended, Metrics
from millrace_operator.control.queue import WorkQueue
from millrace_operator.control.reconciler import Result
from millrace_operator.control.workers import ALL, LOOK_S, Queue, Work, Workers
from millrace_operator.kube.acting import NotLeadingError
from millrace_operator.kube.objects import RefusedError, StaleError
from millrace_operator.kube.observing import Key, Orphans

WORDS = Key("jobs", "words")


@dataclass
class Reconciling:
    """A reconciler whose turns take so long and end so."""

    clock: HandClock
    end: Callable[[Key], Result] = lambda _: Result(status=standing())
    takes_s: float = 0.0
    told: list[str] = field(default_factory=list)

    def turn(self, key: Key) -> Result:
        self.clock.time_s += self.takes_s
        return self.end(key)

    def tell(self, key: Key, error: MillraceError) -> None: ...

    def tell_orphans(self, namespace: str) -> None:
        self.told.append(namespace)


@dataclass
class Listed:
    """Topologies as the API server lists them."""

    names: list[str] = field(default_factory=list)
    away: bool = False

    def heads(self, kind: str, namespace: str | None) -> list[object]:
        if self.away:
            raise HomeAwayError("no answer")
        return [{"metadata": {"namespace": "jobs", "name": name}} for name in self.names]

    def list(
        self, kind: str, namespace: str | None, selector: str | None = None
    ) -> Iterator[object]:
        return iter(())


def standing(phase: Phase = Phase.RUNNING, **conditions: bool) -> TopologyStatus:
    made = tuple(
        Condition(
            type=ConditionType[name].value,
            status=ConditionStatus.TRUE if holds else ConditionStatus.FALSE,
            lastTransitionTime="2026-01-01T00:00:00Z",
            reason="Because",
            message="",
        )
        for name, holds in conditions.items()
    )
    return TopologyStatus(phase=phase, conditions=made)


class World:
    def __init__(self) -> None:
        self.clock, self.listed, self.leads = HandClock(), Listed(), True
        self.queue: Queue = WorkQueue(self.clock)
        self.turns = Reconciling(self.clock)
        self.workers = Workers(self.queue, self.turns, self.listed, (), self.clock)  # type: ignore[arg-type]
        self.metrics: Metrics[Work] = Metrics(
            self.workers.turns, self.workers.standings, self.queue, lambda: self.leads
        )

    def work(self, *keys: Work) -> None:
        """Work off what is due, these too."""
        for key in keys:
            self.queue.add(key)
        while self.queue.depth():
            key = self.queue.take()
            assert key is not None
            self.workers.turn(key)

    def values(self) -> dict[tuple[str, ...], float]:
        """As Prometheus reads it."""
        answer = self.metrics.answer()
        assert answer.good
        return {
            (one.name, *(value for _, value in sorted(one.labels.items()))): one.value
            for family in parse(answer.text)
            for one in family.samples
        }


@pytest.fixture
def world() -> World:
    return World()


def test_all_that_is_named_is_told_and_nothing_else(world: World):
    world.work(ALL, WORDS)
    assert {one.metric.name for one in world.metrics.samples()} == {
        metric.name for metric in catalogue.OPERATOR
    }


def test_what_did_not_happen_yet_has_no_time(world: World):
    names = {name for name, *_ in world.values()}
    assert catalogue.LAST_RECONCILIATION.name not in names
    assert catalogue.LAST_LIST.name not in names
    assert world.values()["millrace_operator_lists_total", "done"] == 0


def test_one_that_leads_is_late_with_a_list_from_then_on(world: World):
    """Whoever lists nothing at all is to be noticed, too."""
    world.clock.time_s += 7.0
    began_s = world.clock.now_s()
    world.workers.start(count=0)
    world.clock.time_s += 600.0
    assert world.values()[catalogue.LAST_LIST.name,] == began_s
    world.work(ALL)
    assert world.values()[catalogue.LAST_LIST.name,] == world.clock.now_s()


def test_a_look_at_snapshots_without_a_topology_is_no_turn_of_one(world: World):
    world.work(Orphans("jobs"))
    assert world.turns.told == ["jobs"]
    assert world.values()["millrace_operator_reconciliation_seconds_count",] == 0
    assert world.values()["millrace_operator_reconciliations_total", "done"] == 0
    assert (catalogue.LAST_RECONCILIATION.name,) not in world.values()


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (StaleError("another version"), Ended.STALE),
        (HomeAwayError("no answer"), Ended.AWAY),
        (RefusedError("ConfigMap words", 403, "quota"), Ended.FAILED),
        (ValueError("a mistake of ours"), Ended.BUG),
        (NotLeadingError("no more"), Ended.NOT_LEADING),
        (None, Ended.DONE),
    ],
)
def test_turns_are_counted_by_their_end(world: World, error: Exception | None, ended: Ended):
    def end(_: Key) -> Result:
        if error is not None:
            raise error
        return Result()

    world.turns.end, world.turns.takes_s = end, 0.3
    world.work(WORDS)
    name = catalogue.RECONCILIATIONS.name
    found = {labels[0]: value for (one, *labels), value in world.values().items() if one == name}
    assert found == {one.value: float(one is ended) for one in Ended}
    assert world.values()["millrace_operator_reconciliation_seconds_sum",] == pytest.approx(0.3)
    well = ended is Ended.DONE
    assert ((catalogue.LAST_RECONCILIATION.name,) in world.values()) is well


def test_a_turn_of_which_a_pod_was_refused_is_no_success(world: World):
    world.turns.end = lambda _: Result(refused=True)
    world.work(WORDS)
    assert world.values()["millrace_operator_reconciliations_total", "refused"] == 1
    assert (catalogue.LAST_RECONCILIATION.name,) not in world.values()


def test_the_last_success_stays_the_last(world: World):
    world.work(ALL, WORDS)
    at_s = world.clock.time_s
    world.clock.time_s += LOOK_S
    world.listed.away = True
    world.work(WORDS)
    world.clock.time_s += LOOK_S
    world.work(ALL)
    found = world.values()
    assert found["millrace_operator_last_list_timestamp_seconds",] == at_s
    assert found["millrace_operator_last_reconciliation_timestamp_seconds",] == at_s + LOOK_S
    assert found["millrace_operator_lists_total", "done"] == 1
    assert found["millrace_operator_lists_total", "away"] >= 1


def test_the_queue_is_as_deep_as_there_is_work_that_is_due(world: World):
    world.queue.add(WORDS)
    world.queue.add(Key("jobs", "later"), 60.0)
    assert world.values()["millrace_operator_queue_depth",] == 1
    world.clock.time_s += 10
    assert world.values()["millrace_operator_queue_longest_seconds",] == 10
    key = world.queue.take()
    assert world.values()["millrace_operator_queue_depth",] == 0
    world.clock.time_s += 5
    assert world.values()["millrace_operator_queue_longest_seconds",] == 5
    assert key is not None
    world.queue.done(key)
    assert world.values()["millrace_operator_queue_longest_seconds",] == 0


def test_topologies_are_counted_by_phase_and_by_condition(world: World):
    stands = {
        "a": standing(READY=True, STALLED=False),
        "b": standing(READY=True, STALLED=False),
        "c": standing(Phase.STALLED, READY=False, STALLED=True),
    }
    world.turns.end = lambda key: Result(status=stands.get(key.name))
    world.listed.names = list(stands)
    world.work(ALL)
    found = world.values()
    phases = {phase: found["millrace_operator_topologies", phase.value] for phase in Phase}
    assert phases == dict.fromkeys(Phase, 0.0) | {Phase.RUNNING: 2.0, Phase.STALLED: 1.0}
    name = "millrace_operator_topology_conditions"
    told = {(kind, one): found[name, one, kind] for kind in ("Ready", "Stalled") for one in BOTH}
    assert told == {
        ("Ready", "True"): 2.0,
        ("Ready", "False"): 1.0,
        ("Stalled", "True"): 1.0,
        ("Stalled", "False"): 2.0,
    }
    del stands["a"]
    world.work(Key("jobs", "a"))
    assert world.values()["millrace_operator_topologies", "Running"] == 1


def test_each_topology_that_is_to_run_says_whether_it_is_ready(world: World):
    stands = {
        "a": standing(READY=True),
        "b": standing(Phase.STARTING, READY=False),
        "c": standing(Phase.STALLED, STALLED=True),
        **{phase.value: standing(phase, READY=False) for phase in AT_REST},
    }
    world.turns.end = lambda key: Result(status=stands.get(key.name))
    world.listed.names = list(stands)
    world.work(ALL)

    def told() -> dict[str, float]:
        name = "millrace_operator_topology_ready"
        return {key[1]: value for key, value in world.values().items() if key[0] == name}

    assert told() == {"a": 1.0, "b": 0.0, "c": 0.0}
    del stands["a"]
    world.work(Key("jobs", "a"))
    assert told() == {"b": 0.0, "c": 0.0}


AT_REST = (Phase.PAUSED, Phase.SUSPENDED, Phase.FINISHED, Phase.DELETING)


BOTH = ("True", "False")


def test_a_topology_whose_end_no_watch_told_of_is_counted_no_more(world: World):
    world.listed.names = ["a", "b"]
    world.work(ALL)
    assert world.values()["millrace_operator_topologies", "Running"] == 2
    world.listed.names = ["b"]
    world.clock.time_s += LOOK_S
    world.work(ALL)
    assert world.values()["millrace_operator_topologies", "Running"] == 1


def test_one_whose_turn_fails_stands_where_it_stood(world: World):
    world.work(WORDS)

    def end(_: Key) -> Result:
        raise StaleError("another version")

    world.turns.end = end
    world.work(WORDS)
    assert world.values()["millrace_operator_topologies", "Running"] == 1


def test_who_leads_is_told(world: World):
    assert world.values()["millrace_operator_leader",] == 1
    world.leads = False
    assert world.values()["millrace_operator_leader",] == 0


@pytest.mark.parametrize(
    ("metric", "label", "values"),
    [
        (catalogue.RECONCILIATIONS, "result", list(Ended)),
        (catalogue.LISTS, "result", list(Ended)),
        (catalogue.TOPOLOGIES, "phase", list(Phase)),
        (catalogue.CONDITIONS, "type", list(ConditionType)),
        (catalogue.CONDITIONS, "status", list(ConditionStatus)),
    ],
)
def test_the_values_that_are_named_are_those_that_there_are(
    metric: Metric, label: str, values: list[str]
):
    told = re.findall(r"`([A-Za-z]+)`", metric.labels[label])
    assert told == [str(value) for value in values]
