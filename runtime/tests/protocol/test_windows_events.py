"""Events about what is over, or was never begun, change nothing in a window."""

from __future__ import annotations

from dataclasses import replace

import pytest
from machine_script import Script

from millrace.protocol import events as e
from millrace.protocol.types import (
    AttemptId,
    DeadSegment,
    Guarantee,
    Replay,
    Sealed,
    Staged,
    TaskId,
    TaskReport,
    Verdict,
)

OPEN = """
    record R 1.1.1.5 sealed 3
    start
    -> ReadView
    view 4 e1 open x1 a1
    -> CasView 4 e1 open x2 a1
    cas done
    -> SendStamp a1 e1x2
    stamped a1 R
    -> CopyObjects 1.1.1.5 from a1
    copied
    -> SendRecord a1 1.2.1.1 sealed 3 published 3
    ack a1
    -> Notify DriverRecovered
    -> FenceSinks x2
    -> Plan behind {}
    fenced
    """
RUN = """
    planned 4
    -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+4
    ack a1
    -> Run 1 of 4: 0+4
    -> Plan behind {'s': 4}
    """
SPLITTING = """
    died
    -> Cancel 1 of 4
    -> Notify WindowRunAgain
    -> Run 2 of 4: 0+4
    died
    -> Cancel 2 of 4
    -> Notify WindowSplit
    -> Split 4: 0+4 at 2
    """


def script(*steps: str, **settings: object) -> Script:
    found = Script(**settings)  # type: ignore[arg-type]
    for step in steps:
        found.play(step)
    return found


def told(found: Script, event: e.Event) -> list[e.Action]:
    return found.machine.handle(event, found.now_s)


def last(found: Script, kind: type) -> e.Action:
    return next(action for action in reversed(found.actions) if isinstance(action, kind))


def test_a_source_that_cannot_go_on_ends_the_driver_with_its_text() -> None:
    found = script(OPEN)
    plan = last(found, e.Plan)
    assert isinstance(plan, e.Plan)
    assert told(found, e.PlanFailed(plan.token - 1, "shrunk")) == []
    assert told(found, e.PlanFailed(plan.token, "shrunk")) == [e.Stop("failed", "shrunk")]


def test_a_window_that_cannot_be_run_ends_the_driver_with_its_text() -> None:
    found = script(OPEN, RUN)
    assert told(found, e.RunFailed(AttemptId(2, 4, 9), "gone")) == []
    assert told(found, e.RunFailed(AttemptId(2, 4, 1), "gone")) == [e.Stop("failed", "gone")]


@pytest.mark.parametrize("lost", [False, True])
def test_a_verdict_counts_once_and_only_for_what_was_asked(lost: bool) -> None:
    found = script(OPEN, RUN, tracking=True)
    attempt = AttemptId(2, 4, 1)
    verdict = Verdict(attempt, (0,), 4, (), True)
    event = e.VerdictLost(attempt) if lost else e.VerdictGiven(verdict)
    assert told(found, event) == [], "the attempt still runs"
    found.play("done\n-> AskVerdict 1 of 4\nverdict ok\n" + WRITE)
    assert told(found, event) == [], "the attempt is over"


WRITE = "-> SendRecord a1 1.2.1.3 sealed 4 published 3"


def test_lost_tuples_are_dropped_at_most_once_and_stop_nothing() -> None:
    found = script(OPEN, RUN, tracking=True, guarantee=Guarantee.AT_MOST_ONCE, max_replays=0)
    found.play(f"done\n-> AskVerdict 1 of 4\nverdict incomplete 1 3\n{WRITE}")
    sent = last(found, e.SendRecord)
    assert isinstance(sent, e.SendRecord)
    assert (sent.record.totals.dropped, sent.record.totals.roots) == (2, 2)


def test_a_new_member_waits_until_dead_letters_are_written() -> None:
    script(OPEN, RUN, max_replays=0).play(
        """
        done failing 1
        -> Notify WindowRunAgain
        -> Run 2 of 4: 0+4 without [1]
        done
        -> WriteDead 2.4.2.1/dead 1#0
        propose a1 b1
        dead
        -> Notify DeadLetters
        -> SendRecord a1 1.2.1.3 sealed 4 published 3, dead 1 in 2.4.2.1/dead
        """
    )


# --- splits


def split(found: Script) -> e.SplitDone:
    found.transcript.append("split 2 2")
    done = found._on_split(["2", "2"])
    assert isinstance(done, e.SplitDone)
    return done


def test_a_split_that_nobody_asked_for_is_nothing() -> None:
    asked = split(script(OPEN, RUN, SPLITTING))
    found = script(OPEN, RUN)
    assert told(found, asked) == []
    assert told(script(OPEN), asked) == []


def test_a_split_of_another_window_is_nothing() -> None:
    found = script(OPEN, RUN, SPLITTING)
    done = split(found)
    assert told(found, replace(done, window=5)) == []
    (write,) = told(found, done)
    assert isinstance(write, e.SendRecord)
    assert [intent.window for intent in write.record.intents] == [4, 5]


def test_the_second_answer_of_a_split_is_nothing() -> None:
    found = script(OPEN, RUN, SPLITTING)
    done = split(found)
    assert len(told(found, done)) == 1
    assert told(found, done) == []


def test_both_halves_and_the_windows_behind_them_know_what_was_known() -> None:
    """Roots that failed before the split are left out behind it, wherever they have gone."""
    script(OPEN, RUN, max_replays=9).play(
        """
        done failing 3
        -> Notify WindowRunAgain
        -> Run 2 of 4: 0+4 without [3]
        died
        -> Cancel 2 of 4
        -> Notify WindowRunAgain
        -> Run 3 of 4: 0+4 without [3]
        died
        -> Cancel 3 of 4
        -> Notify WindowSplit
        -> Split 4: 0+4 at 1
        split 1 3
        -> SendRecord a1 1.2.1.3 sealed 3 published 3, open 4: 0+1, open 5: 1+3
        ack a1
        -> Run 4 of 4: 0+1
        done
        -> SendRecord a1 1.2.1.4 sealed 4 published 3, open 5: 1+3
        ack a1
        -> Publish 4
        -> Run 1 of 5: 1+3 without [2]
        """
    )


def test_a_window_that_moves_up_takes_what_is_known_with_it() -> None:
    script(OPEN, max_replays=9).play(
        """
        planned 8
        -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+8
        ack a1
        -> Run 1 of 4: 0+8
        -> Plan behind {'s': 8}
        done failing 7
        -> Notify WindowRunAgain
        -> Run 2 of 4: 0+8 without [7]
        died
        -> Cancel 2 of 4
        -> Notify WindowRunAgain
        -> Run 3 of 4: 0+8 without [7]
        died
        -> Cancel 3 of 4
        -> Notify WindowSplit
        -> Split 4: 0+8 at 3
        split 3 5
        -> SendRecord a1 1.2.1.3 sealed 3 published 3, open 4: 0+3, open 5: 3+5
        ack a1
        -> Run 4 of 4: 0+3
        died
        -> Cancel 4 of 4
        -> Notify WindowRunAgain
        -> Run 5 of 4: 0+3
        died
        -> Cancel 5 of 4
        -> Notify WindowSplit
        -> Split 4: 0+3 at 1
        split 1 2
        -> SendRecord a1 1.2.1.4 sealed 3 published 3, open 4: 0+1, open 5: 1+2, open 6: 3+5
        ack a1
        -> Run 6 of 4: 0+1
        done
        -> SendRecord a1 1.2.1.5 sealed 4 published 3, open 5: 1+2, open 6: 3+5
        ack a1
        -> Publish 4
        -> Run 1 of 5: 1+2
        done
        -> SendRecord a1 1.2.1.6 sealed 5 published 3, open 6: 3+5
        ack a1
        -> Run 1 of 6: 3+5 without [4]
        """
    )


# --- what a seal holds


def sealed_by(reports: tuple[TaskReport, ...]) -> Sealed:
    found = script(OPEN, RUN)
    (write, *_) = told(found, e.RunDone(AttemptId(2, 4, 1), (2,), reports))
    assert isinstance(write, e.SendRecord)
    return write.record.unpublished[-1]


def test_outputs_are_sealed_in_one_order_whatever_they_are_called_and_when_they_came() -> None:
    """The digest tells contents apart, so it must not depend on which task was first."""

    def report(partition: int, sink: str) -> TaskReport:
        runs = ((0, 4),) if partition == 0 else ()
        staged = Staged(sink, f"{partition}", f"d{partition}", 1, 1)
        return TaskReport(TaskId(0, partition, 0), roots_read=runs, staged=(staged,))

    sealed = sealed_by((report(0, "z"), report(1, "a")))
    assert [one.sink for one in sealed.staged] == ["a", "z"]
    assert sealed.roots is None, "no source wants to be told"


def test_a_letter_that_the_user_takes_goes_with_the_next_write() -> None:
    found = script("record R 1.1.1.5 sealed 3")
    dead = DeadSegment("1.2.1.1/dead", 2, 2)
    found.records["R"] = replace(found.records["R"], dead=(dead,))
    found.play(OPEN.replace("record R 1.1.1.5 sealed 3\n", "").replace(*WITH_LETTERS))
    root = Replay("s", 0, 1, 1, 0.0)
    (write,) = told(found, e.DeadLetterRequest("t", dead.name, (1,), (root,)))
    assert isinstance(write, e.SendRecord)
    assert write.record.replays == (root,)
    assert write.record.dead == (replace(dead, removed=(1,)),)


WITH_LETTERS = ("sealed 3 published 3\n", "sealed 3 published 3, dead 2 in 1.2.1.1/dead\n")
