"""The tables of what the machine of windows does hold, and what cannot be is told of."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import get_args

import pytest
from machine_script import Script
from test_windows_events import OPEN, RUN, script, told

from millrace.errors import ProtocolError
from millrace.ids import Execution
from millrace.protocol import events as e
from millrace.protocol.types import AttemptId, Member, Stamp, Verdict
from millrace.protocol.windows import doing as d
from millrace.protocol.windows.machine import Windows
from millrace.protocol.windows.surprises import Awaited
from millrace.simulate import states
from millrace.simulate.runner import run_one

ROOT = Path(__file__).parents[3]
STATES = get_args(d.Doing)
WITHIN_RUNS = 2000

Step = tuple[type[d.Doing], type[d.Doing]]


def test_every_step_of_the_table_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """That no other is taken, the machine sees to itself."""
    taken: set[Step] = set()
    become = Windows._become

    def watched(self: Windows, doing: d.Doing) -> None:
        taken.add((type(self.doing), type(doing)))
        become(self, doing)

    monkeypatch.setattr(Windows, "_become", watched)
    for seed in range(WITHIN_RUNS):
        if taken.issuperset(d.TRANSITIONS):
            return
        assert run_one(seed).violation is None
    pytest.fail(f"never taken: {d.TRANSITIONS.keys() - taken}")


def test_a_step_that_is_not_in_the_table_is_refused() -> None:
    windows = script(OPEN, RUN).machine.windows
    assert type(windows.doing) is d.Running
    for state in STATES:
        windows.doing = state.__new__(state)
        for other in STATES:
            if (state, other) not in d.TRANSITIONS and (state, other) != (d.Idle, d.Idle):
                with pytest.raises(ProtocolError, match=other.__name__):
                    windows._become(other.__new__(other))


def test_a_driver_begins_idle() -> None:
    assert script().machine.windows.doing == d.Idle()


def test_each_answer_has_a_place_in_each_state() -> None:
    assert set(d.SURPRISES) == set(get_args(d.Answer))
    for answer, state in product(d.SURPRISES, STATES):
        assert d.SURPRISES[answer].get(state) in (None, *d.Surprise)
    # Each is waited for somewhere, and where it is not it has been asked for before, or never.
    waited = {
        a.__name__: [s.__name__ for s in STATES if s not in d.SURPRISES[a]] for a in d.SURPRISES
    }
    assert waited == {
        "RunDone": ["Running"],
        "RunDied": ["Running", "Judging"],
        "RunFailed": ["Running", "Judging"],
        "VerdictGiven": ["Judging"],
        "VerdictLost": ["Judging"],
        "DeadWritten": ["WritingLetters"],
        "SplitDone": ["Splitting"],
        "RecordAck": ["Opening", "Halving", "Sealing", "Noting"],
    }


def test_an_answer_is_late_wherever_nothing_else_is_said() -> None:
    assert d._late_but(*STATES) == {}
    others = {state: d.Surprise.LATE for state in STATES if state is not d.Running}
    assert d._late_but(d.Running) == others
    doubled = {**others, d.Judging: d.Surprise.DOUBLED}
    assert d._late_but(d.Running, Judging=d.Surprise.DOUBLED) == doubled


def asked(found: Script, *events: e.Event) -> list[str]:
    """What is told of as a bug, after each event twice."""
    bugs: list[str] = []
    found.machine.windows.on_bug = bugs.append
    before = found.machine.windows.doing
    for event in events:
        for _ in range(2):
            assert told(found, event) == []
    assert found.machine.windows.doing is before
    return bugs


MINE = AttemptId(2, 4, 1)
NEXT = AttemptId(2, 4, 2)
AHEAD = AttemptId(2, 5, 1)
FOREIGN = AttemptId(3, 4, 1)
OLDER = AttemptId(1, 9, 9)
SEALED = AttemptId(2, 3, 7)


@pytest.mark.parametrize("attempt", [NEXT, AHEAD, FOREIGN])
@pytest.mark.parametrize("kind", [e.RunDied, e.RunFailed])
def test_word_of_an_attempt_that_was_never_begun_is_a_bug(
    attempt: AttemptId, kind: type[e.RunDied] | type[e.RunFailed]
) -> None:
    found = script(OPEN, RUN)
    why = f"{kind.__name__} while Running: nobody has asked for it"
    assert asked(found, kind(attempt, "x")) == [why]


@pytest.mark.parametrize("attempt", [OLDER, SEALED])
def test_word_of_an_attempt_that_is_over_is_late(attempt: AttemptId) -> None:
    assert asked(script(OPEN, RUN), e.RunFailed(attempt, "x"), e.VerdictLost(attempt)) == []


def test_a_verdict_that_was_not_asked_for_is_a_bug() -> None:
    found = script(OPEN, RUN, tracking=True)
    given = e.VerdictGiven(Verdict(MINE, (0,), 4, (), True))
    assert asked(found, given, e.VerdictLost(MINE)) == [
        "VerdictGiven while Running: nobody has asked for it",
        "VerdictLost while Running: nobody has asked for it",
    ]


def test_the_same_end_of_a_run_twice_is_doubled() -> None:
    found = script(OPEN, RUN, tracking=True)
    found.play("done\n-> AskVerdict 1 of 4")
    assert asked(found, e.RunDone(MINE, (1,), ())) == []


def test_a_window_that_was_not_to_be_shown_is_a_bug_and_counts_for_nothing() -> None:
    found = script(OPEN, RUN)
    confirmed = found.machine.windows.publishing.confirmed
    assert asked(found, e.Published(99)) == ["Published while Running: nobody has asked for it"]
    assert found.machine.windows.publishing.confirmed == confirmed


def test_input_that_was_not_asked_for_is_a_bug() -> None:
    found = script(OPEN, RUN)
    assert asked(found, e.Planned(99, (), {}, True), e.PlanFailed(99, "x")) == [
        "Planned while Running: nobody has asked for it",
        "PlanFailed while Running: nobody has asked for it",
    ]


def test_the_document_is_made_from_the_tables() -> None:
    text = states.document()
    assert (ROOT / "docs" / "windows.md").read_text() == text + "\n"
    for before, after in d.TRANSITIONS:
        assert f"\n    {before.__name__} --> {after.__name__}\n" in text
    assert text.count(" --> ") == len(d.TRANSITIONS) + 1


def test_before_a_record_is_known_only_older_executions_can_have_asked() -> None:
    asked = Awaited(d.Idle(), None, Execution(2), {})
    assert asked.surprise(e.VerdictLost(OLDER)) is d.Surprise.LATE
    assert asked.surprise(e.VerdictLost(MINE)) is d.Surprise.BUG


def test_an_acknowledgement_is_late_where_nothing_is_written() -> None:
    ack = e.RecordAck(Member("a", "1"), Stamp(1, 2), 3)
    assert Awaited(d.Idle(), None, Execution(2), {}).surprise(ack) is d.Surprise.LATE
    writing = d.Noting.__new__(d.Noting)
    assert Awaited(writing, None, Execution(2), {}).surprise(ack) is None
