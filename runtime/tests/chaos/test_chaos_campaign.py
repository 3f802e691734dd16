from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from millrace.chaos.campaign import Campaign, Course
from millrace.chaos.ledger import judge
from millrace.chaos.plan import ChaosError, VictimKind, plan
from millrace.chaos.report import Report
from millrace.chaos.target import Look, Victim


@dataclass
class Script:
    """A topology whose looks are a function of the time, and the clock of it."""

    looks: Callable[[float], Look]
    there: bool = True
    now: float = 0.0
    killed: list[VictimKind] = field(default_factory=list)
    refused: Mapping[VictimKind, str] = field(default_factory=dict)

    def now_s(self) -> float:
        return self.now

    def monotonic_s(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def look(self) -> Look:
        return self.looks(self.now)

    def kill(self, kind: VictimKind, chance: random.Random) -> Victim | None:
        self.killed.append(kind)
        return Victim(f"{kind}-0", "SIGKILL") if self.there else None

    def run(self, kinds: list[VictimKind], settle_s: float = 30.0) -> Course:
        campaign = Campaign(self, self, self.pause, 1, lambda _: None)
        return campaign.run(plan(kinds, 10.0, 30.0, seed=1), settle_s)


def working(until_s: float, a_window_s: float = 4.0) -> Callable[[float], Look]:
    """Windows at a steady pace up to a moment, then rest."""

    def look(now: float) -> Look:
        sealed = int(min(now, until_s) / a_window_s)
        return Look(sealed, sealed, busy=now < until_s, behind=now < until_s)

    return look


def test_each_kill_is_timed_to_the_next_sealed_window() -> None:
    script = Script(working(until_s=60.0))
    course = script.run([VictimKind.ACKER, VictimKind.DRIVER], settle_s=60.0)
    assert [kill.strike.kind for kill in course.kills] == script.killed
    assert len(course.kills) == 3
    for kill in course.kills:
        assert kill.in_flight
        assert kill.sealed == int(kill.at_s / 4.0)
        assert kill.recovery_s == pytest.approx(4.0 * (kill.sealed + 1) - kill.at_s, abs=0.21)
    assert course.sealed[-1][1] == 15
    assert course.ended is None


def test_a_kill_that_hits_nothing_proves_nothing() -> None:
    course = Script(working(until_s=0.0)).run([VictimKind.ACKER])
    assert [kill.in_flight for kill in course.kills] == [False] * 3
    assert [kill.recovery_s for kill in course.kills] == [None] * 3
    fine = {"rows": judge([], [])}
    report = Report("t", 1, course, fine, ())
    assert report.failure is not None
    assert "no kill hit work in flight" in report.failure


def test_what_is_not_there_is_a_missed_strike() -> None:
    course = Script(working(until_s=40.0), there=False).run([VictimKind.STANDBY])
    assert course.kills == ()
    assert [strike.kind for strike in course.missed] == [VictimKind.STANDBY] * 3


def test_a_run_that_is_drained_ends_the_campaign_and_another_end_is_an_error() -> None:
    def drained(now: float) -> Look:
        look = working(until_s=12.0)(now)
        return replace(look, ended="drained" if now > 12.0 else None)

    course = Script(drained).run([VictimKind.ACKER])
    assert course.ended == "drained"
    assert len(course.kills) == 1
    with pytest.raises(ChaosError, match=r"the run ended \(failed\)"):
        Script(lambda now: replace(drained(now), ended="failed" if now > 12.0 else None)).run(
            [VictimKind.ACKER]
        )


def test_one_that_never_rests_is_not_judged() -> None:
    with pytest.raises(ChaosError, match=r"does not come to rest within 30 s"):
        Script(working(until_s=1000.0)).run([VictimKind.ACKER])


def test_a_topology_of_which_the_lag_is_unknown_does_not_rest() -> None:
    def unknown(now: float) -> Look:
        return replace(working(until_s=10.0)(now), behind=None)

    with pytest.raises(ChaosError, match="does not come to rest"):
        Script(unknown).run([VictimKind.ACKER])


def test_a_report_says_what_is_wrong_in_numbers_and_in_words() -> None:
    course = Script(working(until_s=40.0)).run([VictimKind.ACKER, VictimKind.DRIVER])
    good, bad = judge([{"n": 1}], [{"n": 1}]), judge([{"n": 1}, {"n": 2}], [{"n": 1}, {"n": 1}])
    assert Report("t", 1, course, {"a": good}, ()).failure is None
    report = Report("t", 1, course, {"a": good, "b": bad}, ("other",))
    assert report.failure == "rows are lost, doubled or wrong in b"
    document = report.document()
    assert {name: document[name] for name in ("lost", "duplicated", "wrong", "kills")} == {
        "lost": 1,
        "duplicated": 1,
        "wrong": 0,
        "kills": 3,
    }
    assert set(document["recovery_s"]) == {kill.strike.kind.value for kill in course.kills}
    lines = report.lines()
    assert "sink b: 2 rows expected, 1 lost, 1 duplicated, 0 wrong" in lines
    assert "sink other: writes no files, so nobody judged it" in lines
