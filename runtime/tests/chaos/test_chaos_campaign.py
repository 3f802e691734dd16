from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from millrace.chaos import ledger
from millrace.chaos.campaign import Campaign, Course, Kill, Pace
from millrace.chaos.ledger import SinkVerdict, judge
from millrace.chaos.picture import check
from millrace.chaos.plan import ChaosError, Strike, Together, VictimKind, label_of, plan
from millrace.chaos.report import Report
from millrace.chaos.target import Look, Victim, look_of
from millrace.homes.documents import RunningWindow, Status
from millrace.protocol.types import Totals
from millrace.topology.parts import Guarantee

EXACT = Guarantee.EXACTLY_ONCE


@dataclass
class Script:
    """A topology whose looks are a function of the time, and the clock of it."""

    looks: Callable[[float], Look]
    there: bool = True
    seen: bool = True
    seen_from_s: float = 0.0
    now: float = 0.0
    killed: list[VictimKind] = field(default_factory=list)
    refused: Mapping[VictimKind, str] = field(default_factory=dict)
    pace: Pace = field(default_factory=Pace)
    told: list[Kill | Strike] = field(default_factory=list)

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

    def ended(self, victim: Victim) -> bool | None:
        return None if self.now < self.seen_from_s else self.seen

    def run(self, kinds: Sequence[VictimKind | Together], settle_s: float = 30.0) -> Course:
        campaign = Campaign(self, self, self.pause, 1, self.told.append, self.pace)
        return campaign.run(plan(kinds, 10.0, 30.0, seed=1), settle_s)


def working(until_s: float, a_window_s: float = 4.0) -> Callable[[float], Look]:
    """Windows at a steady pace up to a moment, then rest."""

    def look(now: float) -> Look:
        sealed = int(min(now, until_s) / a_window_s)
        busy = now < until_s
        return Look(sealed, sealed, working=busy, idle=not busy, told_s=now, figures_s=now)

    return look


def test_each_kill_is_timed_to_the_next_sealed_window() -> None:
    script = Script(working(until_s=60.0))
    course = script.run([VictimKind.ACKER, VictimKind.DRIVER], settle_s=60.0)
    assert course.sealed[-1][1] == 15
    assert course.last.ended is None
    assert [kill.strike.kind for kill in course.kills] == script.killed
    assert len(course.kills) == 3
    for kill in course.kills:
        assert kill.in_flight
        assert kill.sealed == int(kill.at_s / 4.0)
        assert kill.recovery_s == pytest.approx(4.0 * (kill.sealed + 1) - kill.at_s, abs=0.21)
    assert [one for one in script.told if isinstance(one, Kill) and one.recovery_s] == [
        *course.kills
    ]
    assert len(script.told) == 2 * len(course.kills), "each is told of, and its recovery"


def test_a_strike_counts_once_its_victim_is_seen_to_end_and_that_is_waited_for() -> None:
    late = Script(working(until_s=40.0), seen_from_s=80.0)
    assert len(late.run([VictimKind.NODE], settle_s=120.0).kills) == 3
    assert late.now == pytest.approx(80.0, abs=0.21)
    never = Script(working(until_s=40.0), seen=False)
    course = never.run([VictimKind.NODE], settle_s=60.0)
    assert (len(course.kills), len(course.missed)) == (0, 3)
    patient = Script(working(until_s=40.0), seen_from_s=1000.0)
    course = patient.run([VictimKind.NODE], settle_s=60.0)
    assert (len(course.kills), len(course.missed)) == (0, 3)
    assert patient.now < 100.0


def test_a_strike_waits_for_work_in_flight_and_those_behind_it_keep_their_distance() -> None:
    """Nothing is done between the 3rd and the 18th second, and again from the 50th on."""

    def pausing(now: float) -> Look:
        look = working(until_s=50.0)(now)
        return replace(look, working=False, idle=True) if 3.0 <= now < 18.0 else look

    prompt = Script(pausing).run([VictimKind.ACKER], settle_s=60.0)
    assert [kill.in_flight for kill in prompt.kills] == [False, False, True]
    script = Script(pausing, pace=Pace(work_s=40.0))
    patient = script.run([VictimKind.ACKER], settle_s=60.0)
    assert [kill.in_flight for kill in patient.kills] == [True] * 3
    assert None not in [kill.recovery_s for kill in patient.kills[:2]]
    late = [b.at_s - a.at_s for a, b in zip(prompt.kills, patient.kills, strict=True)]
    assert patient.kills[0].at_s == pytest.approx(18.0, abs=0.11)
    assert late == pytest.approx([late[0]] * 3, abs=0.21)
    soon = Script(pausing, pace=Pace(work_s=5.0)).run([VictimKind.ACKER], settle_s=60.0)
    assert soon.kills[0].at_s == pytest.approx(prompt.kills[0].at_s + 5.0, abs=0.21)


def test_a_kill_between_two_figures_counts_by_the_first_behind_it_that_tell() -> None:
    """Windows are short and what is sealed is known at once; figures come every five seconds."""

    def looks(busy_until_s: float) -> Callable[[float], Look]:
        def look(now: float) -> Look:
            told_s = now - now % 5.0
            sealed = int(min(now, 80.0) / 0.5)
            if told_s < 5.0:
                return Look(sealed, sealed, working=False, idle=False, told_s=now)
            busy = told_s < busy_until_s
            return Look(sealed, sealed, busy, not busy, told_s=now, figures_s=told_s)

        return look

    def never_before(script: Script) -> Course:
        """No look that is asked for before a kill finds work."""
        known = script.looks
        script.looks = lambda now: replace(known(now), working=False) if waits(now) else known(now)
        return script.run([VictimKind.ACKER], settle_s=120.0)

    def waits(now: float) -> bool:
        return len(script.killed) < 3

    script = Script(looks(busy_until_s=80.0))
    course = never_before(script)
    last = course.kills[-1]
    assert last.in_flight
    assert last.sealed is not None
    assert last.recovery_s == pytest.approx(0.5 * (last.sealed + 1) - last.at_s, abs=0.21)
    script = Script(looks(busy_until_s=0.0))
    course = never_before(script)
    assert [kill.in_flight for kill in course.kills] == [False] * 3
    said = [one for one in script.told if isinstance(one, Kill) and one.in_flight is False]
    assert [kill.strike for kill in said] == [kill.strike for kill in course.kills]


def test_it_is_asked_all_the_while_whether_a_victim_has_ended() -> None:
    """What goes late goes for another reason, so that its end is to be seen while it is new."""
    asked: list[float] = []

    class Asked(Script):
        def ended(self, victim: Victim) -> bool | None:
            asked.append(self.now)
            return True

    Asked(working(until_s=40.0)).run([VictimKind.NODE], settle_s=60.0)
    assert max(b - a for a, b in pairwise(asked)) < 1.2


def test_a_window_that_was_sealed_before_the_kill_is_no_recovery() -> None:
    """Figures are old when they are read: those of before the kill say nothing of what follows."""
    young = working(until_s=40.0)
    late = Script(lambda now: young(max(0.0, now - 1.0)))
    for kill in late.run([VictimKind.ACKER], settle_s=60.0).kills:
        assert kill.sealed == int(kill.at_s / 4.0)
        assert kill.recovery_s is not None
        assert kill.recovery_s > 4.0 * (kill.sealed + 1) - kill.at_s


def test_a_window_that_was_sealed_while_the_victim_died_is_no_recovery() -> None:
    """A command for a node takes a while, and so does to see that a container has ended."""
    dying_s, back_s = 3.0, 5.0

    class Slow(Script):
        dead: tuple[float, ...] = ()

        def kill(self, kind: VictimKind, chance: random.Random) -> Victim | None:
            self.now += dying_s
            self.dead += (self.now,)
            return super().kill(kind, chance)

        def look(self) -> Look:
            """Half a second behind; a window each 0.9 s, but none for a while behind a death."""
            lived_s = max(0.0, self.now - 0.5)
            times = [0.9 * n for n in range(1, 1 + int(min(lived_s, 80.0) / 0.9))]
            sealed = sum(not any(0.0 <= s - died < back_s for died in self.dead) for s in times)
            steady = working(until_s=80.0)(self.now)
            return replace(steady, sealed=sealed, published=sealed, told_s=lived_s)

    course = Slow(working(until_s=80.0)).run([VictimKind.NODE], settle_s=120.0)
    assert len(course.kills) >= 2
    for kill in course.kills:
        assert kill.dead_s == pytest.approx(kill.told_s + dying_s)
        assert kill.recovery_s is not None
        assert kill.recovery_s >= dying_s + back_s


def test_kinds_that_die_together_recover_together() -> None:
    """The second is killed while the first is still seen to die."""
    both = (VictimKind.ACKER, VictimKind.DRIVER)
    meet = threading.Barrier(2, timeout=60)

    class Meeting(Script):
        def kill(self, kind: VictimKind, chance: random.Random) -> Victim | None:
            meet.wait()
            return super().kill(kind, chance)

    course = Meeting(working(until_s=60.0)).run([both], settle_s=60.0)
    assert [kill.strike.kind for kill in course.kills] == [*both] * 3
    fine = {"rows": judge([{"n": 1}], [{"n": 1}])}
    report = Report("t", EXACT, 1, ("acker+driver",), course, fine, ())
    document = report.document()
    assert document["kills"] == 6
    [(label, times)] = document["recovery_s"].items()
    assert (label, len(times)) == ("acker+driver", 3)
    assert times == [kill.recovery_s for kill in course.kills[::2]]
    assert times == [kill.recovery_s for kill in course.kills[1::2]]
    assert document["timeline"][1]["together"] == ["acker", "driver"]
    moments = [datetime.fromisoformat(kill["time"]).timestamp() for kill in document["timeline"]]
    assert moments == pytest.approx([kill.told_s for kill in course.kills], abs=1e-3)
    assert report.lines()[0].startswith("acker+driver: killed 3 times")


def test_a_report_says_of_which_kills_the_end_was_not_seen() -> None:
    """Who deletes a pod knows that this was accepted; a state server serves on behind it."""
    ways = ["SIGKILL", "delete", "force"]

    class OnCluster(Script):
        def kill(self, kind: VictimKind, chance: random.Random) -> Victim | None:
            victim = super().kill(kind, chance)
            return victim and replace(victim, way=ways[len(self.killed) - 1])

    def report(script: Script) -> Report:
        course, fine = script.run([VictimKind.STATE_SERVER], settle_s=60.0), {"rows": judge([], [])}
        return Report("t", EXACT, 1, ("state-server",), course, fine, ())

    found = report(OnCluster(working(until_s=60.0)))
    seen = {kill["way"]: kill["seen_to_end"] for kill in found.document()["timeline"]}
    assert seen == {"SIGKILL": True, "delete": False, "force": False}
    said = "those of delete and force are times from when the API server accepted the deletion"
    assert found.lines()[1].startswith(said)
    assert not [line for line in report(Script(working(60.0))).lines() if line.startswith(said)]


def test_a_kill_that_hits_nothing_proves_nothing() -> None:
    course = Script(working(until_s=0.0)).run([VictimKind.ACKER])
    assert [kill.in_flight for kill in course.kills] == [False] * 3
    assert [kill.recovery_s for kill in course.kills] == [None] * 3
    fine = {"rows": judge([{"n": 1}], [{"n": 1}])}
    report = Report("t", EXACT, 1, ("acker",), course, fine, ())
    assert report.failure is not None
    assert report.failure.startswith("nothing is proven: no kill hit work in flight; feed ")
    assert report.document()["unproven"] == ["acker"]


def test_of_a_kind_that_no_kill_of_hit_work_in_flight_nothing_is_proven() -> None:
    """One that was not there, and one that died when all was done; of two that die together none
    is proven by the other."""
    acker, driver, operator = VictimKind.ACKER, VictimKind.DRIVER, VictimKind.OPERATOR

    class Alone(Script):
        def kill(self, kind: VictimKind, chance: random.Random) -> Victim | None:
            return None if kind is driver else super().kill(kind, chance)

    def failure(script: Script, *kinds: VictimKind | Together) -> tuple[str | None, list[str]]:
        course, fine = script.run(kinds, settle_s=60.0), {"rows": judge([{"n": 1}], [{"n": 1}])}
        labels = tuple(map(label_of, kinds))
        report = Report("t", EXACT, 1, labels, course, fine, ())
        return report.failure, report.document()["unproven"]

    assert failure(Script(working(until_s=60.0)), acker, driver, operator) == (None, [])
    assert failure(Script(working(until_s=60.0)), (acker, driver)) == (None, [])
    said, unproven = failure(Alone(working(until_s=60.0)), acker, driver, operator)
    assert unproven == ["driver"]
    assert said is not None
    assert said.startswith("nothing is proven of driver: no kill of such a kind hit work in flight")
    late = Script(working(until_s=13.0))
    said, unproven = failure(late, acker, driver, operator)
    assert unproven == [kind for kind in (acker, driver, operator) if kind != late.killed[0]]
    assert said is not None
    assert said.startswith(f"nothing is proven of {unproven[0]}, {unproven[1]}: ")
    assert failure(Alone(working(until_s=60.0)), (acker, driver), acker)[1] == ["acker+driver"]


def test_what_is_not_there_is_a_missed_strike() -> None:
    course = Script(working(until_s=40.0), there=False).run([VictimKind.STANDBY])
    assert course.kills == ()
    assert [strike.kind for strike in course.missed] == [VictimKind.STANDBY] * 3


def test_a_run_that_is_drained_ends_the_campaign_and_another_end_is_an_error() -> None:
    def drained(now: float) -> Look:
        look = working(until_s=12.0)(now)
        return replace(look, ended="drained" if now > 12.0 else None)

    course = Script(drained).run([VictimKind.ACKER])
    assert course.last.ended == "drained"
    assert len(course.kills) == 1
    with pytest.raises(ChaosError, match=r"the run ended \(failed\)"):
        Script(lambda now: replace(drained(now), ended="failed" if now > 12.0 else None)).run(
            [VictimKind.ACKER]
        )


def test_one_that_never_rests_is_not_judged() -> None:
    with pytest.raises(ChaosError, match=r"does not come to rest within 30 s"):
        Script(working(until_s=1000.0)).run([VictimKind.ACKER])


def test_a_topology_of_which_nobody_can_tell_does_not_rest() -> None:
    def unknown(now: float) -> Look:
        return replace(working(until_s=10.0)(now), idle=False)

    with pytest.raises(ChaosError, match="does not come to rest"):
        Script(unknown).run([VictimKind.ACKER])


def test_a_report_says_what_is_wrong_in_numbers_and_in_words() -> None:
    course = Script(working(until_s=40.0)).run([VictimKind.ACKER, VictimKind.DRIVER])
    good, bad = judge([{"n": 1}], [{"n": 1}]), judge([{"n": 1}, {"n": 2}], [{"n": 1}, {"n": 1}])
    kinds = ("acker", "driver")
    assert Report("t", EXACT, 1, kinds, course, {"a": good}, ()).failure is None
    report = Report("t", EXACT, 1, kinds, course, {"a": good, "b": bad}, ("other",))
    assert report.failure == "rows are lost, doubled or wrong in b"
    document = report.document()
    assert {name: document[name] for name in ("lost", "duplicated", "wrong", "kills")} == {
        "lost": 1,
        "duplicated": 1,
        "wrong": 0,
        "kills": 3,
    }
    assert set(document["recovery_s"]) == {kill.strike.kind.value for kill in course.kills}

    def failure(guarantee: Guarantee, verdict: SinkVerdict) -> str | None:
        return Report("t", guarantee, 1, kinds, course, {"b": verdict}, ()).failure

    twice = judge([{"n": 1}], [{"n": 1}, {"n": 1}])
    missing = judge([{"n": 1}], [])
    assert failure(Guarantee.AT_LEAST_ONCE, twice) is None
    assert failure(Guarantee.AT_LEAST_ONCE, missing) == "rows are lost in b"
    assert failure(Guarantee.AT_MOST_ONCE, missing) is None
    assert failure(Guarantee.AT_MOST_ONCE, twice) == "rows are doubled in b"
    few, many, other = (
        judge([{"w": "a", "n": 7}], [{"w": "a", "n": n}], ledger.RunningTotals(("w",), ("n",)))
        for n in (5, 9, None)
    )
    assert failure(Guarantee.AT_LEAST_ONCE, few) == "rows are lost in b"
    assert failure(Guarantee.AT_LEAST_ONCE, many) is None
    assert failure(Guarantee.AT_MOST_ONCE, few) is None
    assert failure(Guarantee.AT_MOST_ONCE, many) == "rows are doubled in b"
    strange = "rows that nobody expects are in b"
    hint = " (if they are totals, say so with --last b=COLUMN)"
    added = judge([{"n": 1}], [{"n": 1}, {"n": 5}])
    total = judge([{"w": "a", "n": 3}], [{"w": "a", "n": 4}])
    for guarantee in (Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE):
        assert failure(guarantee, other) == strange
        assert failure(guarantee, added) == strange + hint
    assert failure(Guarantee.AT_MOST_ONCE, total) == strange + hint
    assert failure(Guarantee.AT_LEAST_ONCE, total) == "rows are lost in b"
    both = {"a": missing, "b": added}
    report_of_both = Report("t", Guarantee.AT_LEAST_ONCE, 1, kinds, course, both, ())
    assert report_of_both.failure == f"rows are lost in a; {strange}{hint}"
    nothing = failure(EXACT, judge([], []))
    assert nothing is not None
    assert nothing.startswith("nothing is proven: no row is expected")
    lines = report.lines()
    assert "sink b: 2 rows expected, 1 lost, 1 duplicated, 0 wrong" in lines
    assert "sink other: writes no files, so nobody judged it" in lines


RUNNING = Status(
    pid=1, state="running", spark="running", sealed=3, published=3, lag_records=0, pending_replays=0
)
BUSY = RunningWindow(4, 1, 10, 0.0)


@pytest.mark.parametrize(
    ("figures", "lives", "working", "rests"),
    [
        (RUNNING, True, False, True),
        (replace(RUNNING, published=2), True, False, False),
        (replace(RUNNING, lag_records=1), True, True, False),
        (replace(RUNNING, lag_records=None), True, False, False),
        (replace(RUNNING, pending_replays=1), True, True, False),
        (replace(RUNNING, window=BUSY), True, True, False),
        (replace(RUNNING, state="starting"), True, False, False),
        (replace(RUNNING, spark="starting"), True, False, False),
        (replace(RUNNING, window=BUSY), False, False, False),
        (RUNNING, False, False, False),
    ],
)
def test_what_a_drivers_figures_say(
    figures: Status, lives: bool, working: bool, rests: bool
) -> None:
    look = look_of(figures, lives, None)
    assert (look.working, look.at_rest) == (working, rests)
    assert look_of(figures, lives, "drained").at_rest
    assert not look_of(figures, lives, "failed").at_rest


def test_a_root_is_done_with_whatever_became_of_it() -> None:
    """Two runs over the same input agree about it, though kills make one of them drop some."""
    figures = replace(RUNNING, totals=Totals(roots=90, windows=7, replays=4, dead=3, dropped=7))
    assert look_of(figures, True, None).roots == 100
    assert look_of(RUNNING, True, None).roots == 0


def test_a_picture_that_cannot_be_drawn_is_refused_before_anything_is_killed(
    tmp_path: Path,
) -> None:
    check(tmp_path / "timeline.svg")
    with pytest.raises(ChaosError, match=r"give it an ending of \.svg, \.png, \.pdf"):
        check(tmp_path / "timeline.nonsense")
    with pytest.raises(ChaosError, match="cannot be written there"):
        check(tmp_path / "nowhere" / "timeline.svg")
