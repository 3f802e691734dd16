"""Every layer of checkers sees for itself: what one misses another one catches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from millrace.protocol.record import first_record
from millrace.protocol.types import Member, Phase, Stamp, Tag, View
from millrace.protocol.windows import decide
from millrace.simulate.bugs import BUGS
from millrace.simulate.checkers.acts import Acts
from millrace.simulate.checkers.bound import Bound, limit
from millrace.simulate.checkers.contents import Contents
from millrace.simulate.checkers.ledger import Ledger
from millrace.simulate.checkers.places import Places
from millrace.simulate.checkers.restores import Restores
from millrace.simulate.checkers.shown import ShownWindows
from millrace.simulate.checkers.stamps import Stamps
from millrace.simulate.checkers.unreadable import Unreadable
from millrace.simulate.checkers.verdicts import VerdictTruth
from millrace.simulate.history import (
    Commit,
    DriverGone,
    History,
    RecordWritten,
    ServerStamped,
    StateGone,
    ViewChanged,
    ViolationError,
)
from millrace.simulate.options import draw
from millrace.simulate.runner import run_one
from millrace.simulate.simulation import Simulation

BLINDFOLDS = {
    Acts: ("_acted",),
    Bound: ("_committed", "_acted"),
    Contents: ("_committed", "_restored"),
    Places: ("_committed", "_restored"),
    Restores: ("_taken", "_restored"),
    ShownWindows: ("_shown", "_confirm", "_committed", "_kept", "_restored", "finish"),
    Stamps: ("_stamped", "_changed", "_claimed", "_viewed"),
    Unreadable: ("_committed",),
    VerdictTruth: ("_answered",),
}


def blind(monkeypatch: pytest.MonkeyPatch, *checkers: type) -> None:
    for checker in checkers:
        for name in BLINDFOLDS[checker]:
            monkeypatch.setattr(checker, name, lambda *_: None)


def violations(bug: str, runs: int = 300) -> Iterator[str]:
    """What each run violates, of those that violate something."""
    found = (run_one(seed, bug).violation for seed in range(runs))
    return (violation for violation in found if violation is not None)


def violations_among_few(bug: str, runs: int = 300) -> Iterator[str]:
    """The same where little befalls the state servers, so that what is wrong gets to the end."""
    for seed in range(runs):
        drawn = draw(seed)
        quiet = dict.fromkeys(("change", "burst_s", "part_s", "hang_s", "slow_s", "half_seal"), 0.0)
        chaos = replace(drawn.chaos, **quiet, standby_s=0.0)
        options = replace(drawn, chaos=chaos, standby=False, learners=False)
        violation = Simulation(seed, BUGS[bug].machines(), options=options).run().violation
        if violation is not None:
            yield violation


def first_violation(bug: str) -> str | None:
    return next(violations(bug), None)


@pytest.mark.parametrize(
    "bug",
    ["intent_not_rerun", "mark_before_confirm", "split_drops_boundary"],
)
def test_promises_alone_see_lost_roots(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    """In other runs a sink is asked for output that is gone, and says so itself. Who publishes
    before the seal is refused by the machine, before anything is lost."""
    blind(monkeypatch, *BLINDFOLDS)
    seen = ("ExactlyOnce", "AtLeastOnce", "end")
    assert any(violation.startswith(seen) for violation in violations_among_few(bug))


@pytest.mark.parametrize("bug", ["restore_forgets_replays", "restore_forgets_window"])
def test_promises_alone_see_what_a_restore_forgets(
    monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    blind(monkeypatch, *BLINDFOLDS)
    seen = ("ExactlyOnce", "AtLeastOnce", "AtMostOnce")
    assert any(violation.startswith(seen) for violation in violations(bug))


def test_a_record_that_was_never_committed_is_not_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong with it: the others only count what they know of."""
    blind(monkeypatch, Places)
    found = violations("restore_forgets_replays")
    assert any(violation.startswith("restore: ") for violation in found)


def test_a_driver_that_says_that_nothing_is_left_is_not_believed() -> None:
    simulation = Simulation(0, options=replace(draw(0), lost_s=5.0))
    with pytest.raises(ViolationError, match="lost: driver 1 says so, and nothing was"):
        simulation.history.add(DriverGone(1, "lost"))
    simulation.history.add(StateGone(("s0",)))
    simulation.history.add(DriverGone(1, "lost"))


@pytest.mark.parametrize("bug", ["id_without_edge", "unseeded_roots"])
def test_a_blind_tracker_seals_broken_windows(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    blind(monkeypatch, VerdictTruth, Unreadable)
    violation = first_violation(bug)
    assert violation is not None
    assert violation.startswith("I1")


@pytest.mark.parametrize("bug", ["ack_of_other_round_counts", "no_write_back", "no_stamp_check"])
def test_broken_fencing_does_harm(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    """The rule is not only broken: something is shown, lost or deleted that must not be.

    In other runs it is only that a driver goes on for ever, which is no harm of this kind.
    """
    blind(monkeypatch, Acts, Stamps, Bound)
    assert any(violation.startswith(("I", "rule 22")) for violation in violations(bug))


def test_too_many_runs_break_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "MAX_RUNS", 9)
    monkeypatch.setattr(decide, "MAX_DEATHS", 9)
    seeds = (seed for seed in range(1000) if draw(seed).poison_only and draw(seed).poison.kills)
    found = (run_one(seed).violation or "" for seed in seeds)
    assert any(violation.startswith("bound") for violation in found)


def test_the_bound_is_that_of_the_design() -> None:
    assert [limit(8, 0), limit(8, 1), limit(9, 2), limit(1, 1)] == [3, 21, 51, 3]


def test_a_machine_that_raises_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(decide, "narrow", broken)
    found = (run_one(seed).violation or "" for seed in range(200))
    assert any("raised: KeyError" in violation for violation in found)


def test_a_stamp_that_goes_back_is_seen() -> None:
    simulation = Simulation(0)
    (member,) = simulation.cluster.alive()
    simulation.history.add(ServerStamped(member, Stamp(1, 2)))
    with pytest.raises(ViolationError, match="I5"):
        simulation.history.add(ServerStamped(member, Stamp(1, 1)))


def test_a_record_is_committed_when_every_member_has_taken_it() -> None:
    history = History()
    commits: list[Commit] = []
    history.listen(Commit, commits.append)
    ledger = Ledger(history)
    one, two = Member("a", "1"), Member("b", "1")
    view = View("u", 1, 1, Phase.OPEN, 1, (one, two), (one, two), 1, (("a", "b"),))
    record = first_record("u", Tag(1, 1, 1, 1))
    history.add(ViewChanged(1, view))
    history.add(RecordWritten(one, view.stamp(), record))
    assert ledger.record is None
    history.add(RecordWritten(two, view.stamp(), record))
    assert ledger.record == record
    assert [commit.after for commit in commits] == [record]
    older = replace(record, tag=Tag(1, 1, 1, 0))
    history.add(RecordWritten(one, view.stamp(), older))
    with pytest.raises(ViolationError, match="rule 2"):
        history.add(RecordWritten(two, view.stamp(), older))
