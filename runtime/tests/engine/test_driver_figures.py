"""What a driver counts: windows, attempts, recoveries, dead letters, by what it is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from moved_clock import Hands

from millrace.engine.driver.home.journal import StatusBoard
from millrace.engine.driver.statistics import Statistics
from millrace.homes.documents import ServerMemory
from millrace.homes.memory import MemoryJournal
from millrace.metrics import catalogue
from millrace.metrics.tally import Distribution
from millrace.protocol import events as e
from millrace.protocol.record import first_record, take_letters
from millrace.protocol.types import (
    AttemptId,
    DeadSegment,
    Intent,
    Phase,
    RootRange,
    Tag,
    Totals,
    View,
)

UID = "figures"
ATTEMPT = AttemptId(3, 1, 1)
OWNERS = (("a", "b"), ("b", "a"), ("b", "c"))


class Told:
    """A driver's statistics, told by a test."""

    def __init__(self) -> None:
        self.hands = Hands()
        self.statistics = Statistics(StatusBoard(MemoryJournal(), self.hands, UID), self.hands)
        self.statistics.spark_runs = lambda: True
        self.statistics.lag = lambda: 17
        self.view = View(UID, 1, 5, Phase.OPEN, 3, (), (), 5, OWNERS)
        self.record = first_record(UID, Tag(1, 3, 5, 1))

    def after(self, seconds: float) -> Told:
        self.hands.at_s += seconds
        return self

    def commit(self, **changes: Any) -> Told:
        self.record = replace(self.record, **changes)
        self.statistics.committed(self.record, self.view)
        return self

    def look(self, phase: Phase = Phase.OPEN) -> Told:
        self.view = replace(self.view, phase=phase)
        self.statistics.membership(self.view, None)
        self.statistics.settle()
        return self

    def seal(self, window: int) -> Told:
        return self.commit(intents=(), sealed=window, totals=Totals(roots=10, windows=window))

    def values(self) -> dict[tuple[str, ...], Any]:
        return {(one.metric.name, *one.labels): one.value for one in self.statistics.samples()}

    def recoveries(self, of: str) -> tuple[int, float]:
        """How many there were, and how many seconds they took together."""
        found = self.values()[catalogue.RECOVERY_S.name, of]
        assert isinstance(found, Distribution)
        return found.counts[-1], found.total


@pytest.fixture
def told() -> Told:
    return Told()


def opened(window: int) -> tuple[Intent, ...]:
    return (Intent(window, (RootRange("lines", 1, 0, 10),)),)


def test_all_that_is_named_is_told_and_nothing_else(told: Told) -> None:
    told.statistics.memory = lambda: (ServerMemory("a", 5, 10),)
    told.commit(intents=opened(1)).look().seal(1)
    told.statistics.observe(e.Published(1))
    names = {one.metric.name for one in told.statistics.samples()}
    assert names == {metric.name for metric in catalogue.DRIVER}


def test_what_is_not_known_yet_is_left_out(told: Told) -> None:
    names = {name for name, *_ in told.values()}
    assert not names & {"millrace_windows_sealed_total", "millrace_driver_execution"}
    assert told.values()["millrace_driver_state", "starting"] == 1.0
    told.commit()
    assert told.values()["millrace_windows_sealed_total",] == 0
    assert told.values()["millrace_driver_execution",] == 3.0


def test_a_window_takes_from_its_opening_to_its_seal_and_to_its_publication(told: Told) -> None:
    told.commit(intents=opened(1)).after(0.3).seal(1)
    told.after(0.4).statistics.observe(e.Published(1))
    for metric, took_s in ((catalogue.SEAL_S, 0.3), (catalogue.PUBLISH_S, 0.7)):
        found = told.values()[metric.name,]
        assert (found.counts[-1], found.total) == (1, pytest.approx(took_s))
        below = dict(zip(metric.bounds, found.counts, strict=False))
        assert (below[0.25], below[1.0]) == (0, 1)


def test_what_was_sealed_before_this_driver_has_no_time_of_it(told: Told) -> None:
    told.commit(sealed=7, totals=Totals(roots=70, windows=7)).after(5).commit(intents=opened(8))
    found = told.values()
    assert found[catalogue.SEAL_S.name,].counts[-1] == 0
    assert found["millrace_windows_sealed_total",] == 7
    assert found["millrace_roots_sealed_total",] == 70
    assert found["millrace_window_last_sealed",] == 7


@pytest.mark.parametrize(
    ("event", "result"),
    [
        (e.RunDone(ATTEMPT, (1,), ()), "ran"),
        (e.RunDied(ATTEMPT, "an executor is gone"), "died"),
        (e.RunDied(ATTEMPT, "a server is away", member_lost=True), "waited"),
        (e.RunFailed(ATTEMPT, "a file shrank"), "failed"),
    ],
)
def test_attempts_are_counted_by_their_end(told: Told, event: e.Event, result: str) -> None:
    told.statistics.observe(event)
    told.statistics.observe(e.Tick())
    name = catalogue.ATTEMPTS.name
    found = {labels[0]: value for (one, *labels), value in told.values().items() if one == name}
    assert found == {"ran": 0, "waited": 0, "died": 0, "failed": 0} | {result: 1}


def test_dead_letters_never_grow_fewer(told: Told) -> None:
    """In the record a letter that is replayed is no dead one any more."""
    old, new = DeadSegment("2.1.1.1/dead", 1, 4), DeadSegment("3.2.1.1/dead", 2, 2)
    told.record = replace(told.record, sealed=1, dead=(old,), totals=Totals(dead=4))
    told.commit()
    told.commit(dead=(old, new), totals=Totals(dead=6), sealed=2)
    assert told.values()["millrace_dead_letters_total",] == 6
    told.record = take_letters(told.record, new.name, (0, 1), ())
    assert told.record.totals.dead == 4
    told.commit()
    assert told.values()["millrace_dead_letters_total",] == 6
    assert told.values()["millrace_dead_letters_held",] == 4
    newest = DeadSegment("3.3.1.1/dead", 3, 1)
    told.commit(dead=(old, newest), totals=Totals(dead=5), sealed=3)
    assert told.values()["millrace_dead_letters_total",] == 7


def test_new_dead_letters_count_whatever_is_dropped_in_the_same_record(told: Told) -> None:
    old, new = DeadSegment("3.1.1.1/dead", 1, 10), DeadSegment("3.2.1.1/dead", 2, 3)
    told.record = replace(told.record, sealed=1, dead=(old,), totals=Totals(dead=10))
    told.commit()
    told.commit(sealed=2, dead=(new,), totals=Totals(dead=3))
    assert told.values()["millrace_dead_letters_total",] == 13
    assert told.values()["millrace_dead_letters_held",] == 3


def test_letters_that_stand_in_a_newer_segment_are_not_counted_again(told: Told) -> None:
    """Two were dropped of ten, and three came behind them, and one behind those."""
    old = DeadSegment("3.1.1.1/dead", 1, 10)
    told.record = replace(told.record, sealed=1, dead=(old,), totals=Totals(dead=10))
    told.commit()
    both = DeadSegment("3.2.1.1/dead", 2, 13, (0, 1), first=old.name)
    told.commit(sealed=2, dead=(both,), totals=Totals(dead=11))
    assert told.values()["millrace_dead_letters_total",] == 13
    all_three = replace(both, name="3.3.1.1/dead", window=3, count=14)
    told.commit(sealed=3, dead=(all_three,), totals=Totals(dead=12))
    assert told.values()["millrace_dead_letters_total",] == 14


def test_a_driver_has_recovered_once_it_can_run_windows(told: Told) -> None:
    told.statistics.spark_runs = lambda: False
    told.commit().after(2).look(Phase.MOVING).after(1).look()
    assert told.recoveries("driver") == (0, 0)
    told.statistics.spark_runs = lambda: True
    told.after(4).look().after(60).look()
    assert told.recoveries("driver") == (1, pytest.approx(7))
    # That the view moved at its start is a part of that.
    assert told.recoveries("view") == (0, 0)


def test_a_view_has_recovered_once_it_is_open(told: Told) -> None:
    told.commit().look().after(50).look(Phase.MOVING).after(3).look(Phase.MOVING).after(1).look()
    assert told.recoveries("view") == (1, pytest.approx(4))
    told.after(9).look()
    assert told.recoveries("view") == (1, pytest.approx(4))


def test_an_attempt_has_recovered_once_a_window_is_sealed(told: Told) -> None:
    told.commit(intents=opened(1)).look()
    for _ in range(2):
        told.after(1).statistics.observe(e.RunDied(ATTEMPT, "an executor is gone"))
    told.after(2).commit(intents=(*opened(1), *opened(2)))
    assert told.recoveries("attempt") == (0, 0)
    told.seal(1)
    assert told.recoveries("attempt") == (1, pytest.approx(3))
    told.after(5).seal(2)
    assert told.recoveries("attempt") == (1, pytest.approx(3))


def test_servers_and_the_view_are_told(told: Told) -> None:
    told.statistics.memory = lambda: (ServerMemory("a", 5, 10), ServerMemory("b", 7, 0))
    told.commit().statistics.observe(e.RunDied(ATTEMPT, "full", True, full="a"))
    told.look()
    told.statistics.write(force=True)
    found = told.values()
    groups = {server: found["millrace_view_key_groups", server] for server in "abc"}
    assert groups == {"a": 2, "b": 3, "c": 1}
    assert found["millrace_view_epoch",] == 5
    phases = {phase.value: found["millrace_view_phase", phase.value] for phase in Phase}
    assert phases == {"creating": 0.0, "open": 1.0, "moving": 0.0}
    assert found["millrace_state_server_memory_used_bytes", "b"] == 7
    assert found["millrace_state_server_memory_limit_bytes", "a"] == 10
    assert [found["millrace_state_server_full", server] for server in "ab"] == [1.0, 0.0]
    assert found["millrace_lag_records",] == 17


def test_a_stop_is_one_of_the_states_that_are_told(told: Told) -> None:
    for kind in e.StopKind:
        told.statistics.stopped(e.Stop(kind, "over"))
        states = {
            labels[0]: value
            for (name, *labels), value in told.values().items()
            if name == "millrace_driver_state"
        }
        assert [state for state, value in states.items() if value] == [kind.value]


def test_a_record_that_loses_windows_by_a_restore_breaks_nothing(told: Told) -> None:
    told.commit(sealed=9, totals=Totals(roots=90, windows=9, dead=3))
    told.commit(sealed=4, totals=Totals(roots=40, windows=4, dead=1))
    assert told.values()["millrace_windows_sealed_total",] == 4
    assert told.values()["millrace_dead_letters_total",] == 3
