"""Events about what is over, or was never begun, change nothing in a window."""

from __future__ import annotations

from dataclasses import replace

import pytest
from machine_script import Script, member

from millrace.errors import ExitCode
from millrace.protocol import events as e
from millrace.protocol.types import (
    AttemptId,
    DeadSegment,
    FailedRoot,
    Guarantee,
    Record,
    Replay,
    RootRange,
    Sealed,
    Staged,
    TaskId,
    TaskReport,
    Verdict,
)
from millrace.protocol.windows.decide import BREAKAGE_PAUSES_S

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
    stop = e.Stop("failed", "shrunk", ExitCode.SOURCE)
    assert told(found, e.PlanFailed(plan.token, "shrunk", ExitCode.SOURCE)) == [stop]


def test_a_window_that_cannot_be_run_ends_the_driver_with_its_text() -> None:
    found = script(OPEN, RUN)
    assert told(found, e.RunFailed(AttemptId(2, 4, 9), "gone")) == []
    stop = e.Stop("failed", "gone", ExitCode.SINK)
    assert told(found, e.RunFailed(AttemptId(2, 4, 1), "gone", ExitCode.SINK)) == [stop]


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


def written(found: Script) -> Record:
    """The record that is on its way, or was written last."""
    sent = last(found, e.SendRecord)
    assert isinstance(sent, e.SendRecord)
    return sent.record


@pytest.mark.parametrize(("failing", "dropped"), [("1", 1), ("0 1 2 3", 4)])
def test_what_failed_beside_a_broken_tree_is_dropped_at_most_once_and_counted(
    failing: str, dropped: int
) -> None:
    """The next attempt leaves those roots out, and no replay comes for them."""
    found = script(OPEN, RUN, tracking=True, guarantee=Guarantee.AT_MOST_ONCE)
    found.tell(f"done failing {failing}", "verdict broken")
    if dropped < 4:
        found.tell("done", "verdict ok")
    record = written(found)
    assert (record.sealed, record.replays) == (4, ())
    assert (record.totals.dropped, record.totals.roots) == (dropped, 4 - dropped)


def test_a_window_that_dies_is_dropped_once_whatever_failed_in_it_before() -> None:
    found = script(OPEN, RUN, tracking=True, guarantee=Guarantee.AT_MOST_ONCE)
    found.tell("done failing 1", "verdict broken", "died")
    assert (written(found).totals.dropped, written(found).totals.roots) == (4, 0)


@pytest.mark.parametrize(
    ("tells", "named"),
    [
        (["done failing 1"], {1}),
        (["done", "verdict incomplete 1 3"], {1, 3}),
        (["done failing 1", "verdict broken", "done", "verdict ok"], {1}),
        (["done", "verdict ok"], set()),
        (["died"], None),
        (["done failing 1", "verdict broken", "died"], None),
    ],
)
def test_of_what_is_dropped_at_most_once_nobody_is_told_that_it_is_processed(
    tells: list[str], named: set[int] | None
) -> None:
    """Of a window that is given up nothing is told."""
    tracking = any(line.startswith("verdict") for line in tells)
    found = script(OPEN, RUN, tracking=tracking, guarantee=Guarantee.AT_MOST_ONCE)
    found.machine.windows.settings = replace(found.machine.windows.settings, callbacks=True)
    found.tell(*tells)
    record = written(found)
    assert (record.sealed, record.replays) == (4, ())
    told = record.unpublished[-1].roots
    if named is None:
        assert told is None
        assert record.totals.dropped == 4
    else:
        assert told is not None
        assert {root.offset for root in told.replays} == named
        assert record.totals.dropped == len(named)


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


# --- what is reported, forgotten and planned


def forgotten(actions: list[e.Action]) -> list[e.Forget]:
    return [action for action in actions if isinstance(action, e.Forget)]


def test_what_has_ended_is_forgotten_with_the_next_commit_and_only_then() -> None:
    found = script(OPEN, RUN)
    (first,) = forgotten(found.actions)
    assert (first.attempts, first.keep) == ((), frozenset()), "a new driver sweeps once"
    found.play("done\n-> SendRecord a1 1.2.1.3 sealed 4 published 3\nack a1\n-> Publish 4")
    (second,) = forgotten(found.actions)[1:]
    assert (second.attempts, second.names, second.keep) == ((AttemptId(2, 4, 1),), (), None)
    found.play("published 4\n-> SendRecord a1 1.2.1.4 sealed 4 published 4\nack a1")
    assert len(forgotten(found.actions)) == 2, "there is nothing more to forget"


def test_names_that_the_next_record_does_not_need_are_forgotten_in_order() -> None:
    found = script("record R 1.1.1.5 sealed 3")
    staged = tuple(Staged("x", f"1.3.1.0.0.{n}/out/x", "d", 1, 1) for n in (7, 3, 9, 1))
    held = replace(found.records["R"], published=2, unpublished=(Sealed(3, "d", staged),))
    found.records["R"] = held
    found.play(without_record(OPEN).replace("published 3", "published 2") + "-> Publish 3\n")
    found.play("published 3\n-> SendRecord a1 1.2.1.2 sealed 3 published 3\nack a1")
    (first,) = forgotten(found.actions)
    assert first.names == tuple(sorted(one.name for one in staged))


def without_record(text: str) -> str:
    return text.replace("record R 1.1.1.5 sealed 3\n", "")


@pytest.mark.parametrize(("sealed", "sweeps"), [(254, False), (255, True), (256, False)])
def test_losers_are_looked_for_every_256_windows(sealed: int, sweeps: bool) -> None:
    numbered = [
        text.replace("sealed 3", f"sealed {sealed}")
        .replace("published 3", f"published {sealed}")
        .replace("of 4", f"of {sealed + 1}")
        .replace("open 4", f"open {sealed + 1}")
        for text in (OPEN, RUN)
    ]
    found = script(*numbered)
    before = len(forgotten(found.actions))
    found.play(
        f"""
        done
        -> SendRecord a1 1.2.1.3 sealed {sealed + 1} published {sealed}
        ack a1
        -> Publish {sealed + 1}
        """
    )
    (last_one,) = forgotten(found.actions)[before:]
    assert (last_one.keep is not None) is sweeps


def test_every_commit_is_reported_once_with_the_version_of_the_view() -> None:
    found = script(OPEN, RUN)
    reported = [action for action in found.actions if isinstance(action, e.Committed)]
    assert [one.record.tag.seq for one in reported] == [1, 2]
    assert [one.version for one in reported] == [5, 5]


def test_a_window_that_is_held_up_wakes_the_driver_again() -> None:
    found = script(OPEN, RUN).play("died member\n-> Notify WindowHeldUp")
    assert e.Wake(found.now_s + 1.0) in found.actions
    found.play("wait 0.9\ntick\nwait 0.1\ntick\n-> SendStamp a1 e1x2\n-> Run 2 of 4: 0+4")
    found.play("wait 1\ntick")  # it runs, and nothing waits any more


@pytest.mark.parametrize(("waiting", "plans"), [(4, True), (5, False)])
def test_input_is_planned_ahead_of_a_few_windows_that_are_not_shown(
    waiting: int, plans: bool
) -> None:
    found = script("record R 1.1.1.5 sealed 9")
    unpublished = tuple(Sealed(10 - n, "d", ()) for n in range(waiting, 0, -1))
    held = replace(found.records["R"], published=9 - waiting, unpublished=unpublished)
    found.records["R"] = held
    text = without_record(OPEN).replace("sealed 3", "sealed 9")
    text = text.replace("published 3", f"published {9 - waiting}")
    if not plans:
        text = text.replace("    -> Plan behind {}\n", "")
    found.play(f"{text}-> Publish {10 - waiting}\n")


def test_behind_the_end_of_all_input_nothing_is_planned() -> None:
    script(OPEN).play(
        """
        planned 4 drained
        -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+4
        ack a1
        -> Run 1 of 4: 0+4
        """
    )


def test_the_first_answer_to_a_plan_counts() -> None:
    found = script(OPEN, RUN, "planned 3")
    plan = last(found, e.Plan)
    assert isinstance(plan, e.Plan)
    other = e.Planned(plan.token, (RootRange("s", 0, 4, 1, 4),), {"s": 5}, drained=False)
    assert told(found, other) == []
    found.play("done\n-> SendRecord a1 1.2.1.3 sealed 4 published 3, open 5: 4+3")


def test_with_windows_open_no_other_is_opened() -> None:
    script(OPEN, RUN, SPLITTING).play(
        """
        split 2 2
        -> SendRecord a1 1.2.1.3 sealed 3 published 3, open 4: 0+2, open 5: 2+2
        ack a1
        -> Run 3 of 4: 0+2
        planned 3
        done
        -> SendRecord a1 1.2.1.4 sealed 4 published 3, open 5: 2+2
        """
    )


def test_the_first_half_knows_what_was_known() -> None:
    script(OPEN, RUN, max_replays=9).play(
        """
        done failing 0
        -> Notify WindowRunAgain
        -> Run 2 of 4: 0+4 without [0]
        died
        -> Cancel 2 of 4
        -> Notify WindowRunAgain
        -> Run 3 of 4: 0+4 without [0]
        died
        -> Cancel 3 of 4
        -> Notify WindowSplit
        -> Split 4: 0+4 at 2
        split 2 2
        -> SendRecord a1 1.2.1.3 sealed 3 published 3, open 4: 0+2, open 5: 2+2
        ack a1
        -> Run 4 of 4: 0+2 without [0]
        """
    )


# --- again, and no more


def test_a_split_is_asked_for_again() -> None:
    script(OPEN, RUN, SPLITTING).play("wait 1.1\ntick\n-> Split 4: 0+4 at 2")


def test_a_failed_publication_is_tried_again_once() -> None:
    found = script(OPEN, RUN)
    found.play(
        """
        done
        -> SendRecord a1 1.2.1.3 sealed 4 published 3
        ack a1
        -> Publish 4
        unpublished 4
        -> Notify PublishFailed
        wait 1.1
        tick
        -> SendStamp a1 e1x2
        -> Publish 4
        wait 1.1
        tick
        """
    )


def test_only_the_window_that_is_being_shown_frees_the_next_one() -> None:
    found = script("record R 1.1.1.5 sealed 3")
    unpublished = (Sealed(2, "d", ()), Sealed(3, "e", ()))
    found.records["R"] = replace(found.records["R"], published=1, unpublished=unpublished)
    found.play(without_record(OPEN).replace("published 3", "published 1") + "-> Publish 2\n")
    assert told(found, e.Published(1)) == []
    found.play("published 2\n-> Publish 3\n-> SendRecord a1 1.2.1.2 sealed 3 published 2")


def test_results_count_once() -> None:
    found = script(OPEN, RUN, "done\n-> AskVerdict 1 of 4", tracking=True)
    report = TaskReport(TaskId(0, 0, 0), roots_read=((0, 4),))
    assert told(found, e.RunDone(AttemptId(2, 4, 1), (1,), (report,))) == []


def test_results_that_do_not_fit_together_run_again() -> None:
    found = script(OPEN, RUN)
    report = TaskReport(TaskId(0, 0, 0), roots_read=((0, 4),))
    actions = told(found, e.RunDone(AttemptId(2, 4, 1), (2,), (report,)))
    assert [type(action) for action in actions][-1] is e.Run


# --- settings


def test_without_tracking_the_ackers_hear_nothing() -> None:
    assert not any(isinstance(action, e.OpenLog) for action in script(OPEN, RUN).actions)
    tracked = script(OPEN, RUN, tracking=True)
    assert e.OpenLog(AttemptId(2, 4, 1), 4) in tracked.actions


def test_a_final_window_is_run_although_it_has_no_roots() -> None:
    found = script(OPEN)
    found.machine.windows.settings = replace(found.machine.settings, emits_final=True)
    found.play(
        """
        planned 0 drained
        -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4:
        ack a1
        -> Run 1 of 4:
        done
        -> SendRecord a1 1.2.1.3 sealed 4 published 3
        """
    )


def test_sources_are_told_of_letters_without_their_traces() -> None:
    found = script(OPEN, RUN, max_replays=0)
    found.machine.windows.settings = replace(found.machine.settings, callbacks=True)
    failing = FailedRoot(1, "p", "no good", trace="line 1")
    report = TaskReport(TaskId(0, 0, 0), roots_read=((0, 4),), failed=(failing,))
    told(found, e.RunDone(AttemptId(2, 4, 1), (1,), (report,)))
    (letters,) = told(found, e.RunDone(AttemptId(2, 4, 2), (1,), (replace(report, failed=()),)))
    assert isinstance(letters, e.WriteDead)
    assert [one.trace for one in letters.letters] == ["line 1"]
    sent = [a for a in told(found, e.DeadWritten(letters.name)) if isinstance(a, e.SendRecord)]
    roots = sent[0].record.unpublished[-1].roots
    assert roots is not None
    assert [one.trace for one in roots.letters] == [""]


def test_what_was_found_before_a_stop_is_not_opened() -> None:
    found = script(OPEN.replace("    fenced\n", ""), "planned 4")
    told(found, e.StopAsked())
    found.play("fenced\n-> Stop asked")


def test_a_stop_while_a_window_is_split_leaves_it_whole() -> None:
    found = script(OPEN, RUN, SPLITTING)
    done = split(found)
    (stop,) = told(found, e.StopAsked())
    assert isinstance(stop, e.Stop)
    assert stop.kind == "asked"
    assert told(found, done) == []


# --- what is kept, and for how long


def test_nothing_is_kept_of_windows_that_are_sealed() -> None:
    found = script(OPEN, RUN)
    found.play("done\n-> SendRecord a1 1.2.1.3 sealed 4 published 3\nack a1\n-> Publish 4")
    assert found.machine.windows._progress == {}
    assert found.machine.windows._numbers == {}


def test_names_are_forgotten_when_nothing_else_is() -> None:
    found = script(OPEN, RUN)
    staged = Staged("x", "2.4.1.0.0.0/out/x", "d", 1, 1)
    report = TaskReport(TaskId(0, 0, 0), roots_read=((0, 4),), staged=(staged,))
    told(found, e.RunDone(AttemptId(2, 4, 1), (1,), (report,)))
    stamp = found.machine.membership.stamp
    told(found, e.RecordAck(MEMBER, stamp, 3))
    told(found, e.Published(4))
    (last_one,) = forgotten(told(found, e.RecordAck(MEMBER, stamp, 4)))
    assert (last_one.names, last_one.attempts) == ((staged.name,), ())


MEMBER = member("a1")


def test_attempts_that_break_again_and_again_leave_nothing_behind() -> None:
    found = script(OPEN, RUN)
    told(found, e.RunDied(AttemptId(2, 4, 1), "broke"))
    actions = told(found, e.RunDied(AttemptId(2, 4, 2), "broke"))
    assert e.Wake(found.now_s + 0.5) in actions
    (swept,) = forgotten(actions)
    assert swept.attempts == (AttemptId(2, 4, 1), AttemptId(2, 4, 2))


def test_a_pause_counts_from_the_moment_in_which_the_attempt_died() -> None:
    found = script(OPEN, RUN, "wait 7\ndied member\n-> Notify WindowHeldUp")
    assert e.Wake(found.now_s + 1.0) in found.actions


def test_a_member_that_goes_ends_the_attempt_that_runs() -> None:
    script(OPEN, RUN).play("propose a2\n-> Cancel 1 of 4\n-> CasView 5 e2 moving x2 a1 to a2")


def test_a_split_that_no_record_holds_is_forgotten_with_what_its_half_knew() -> None:
    found = script(OPEN, RUN, SPLITTING)
    found.play(
        """
        split 2 2
        -> SendRecord a1 1.2.1.3 sealed 3 published 3, open 4: 0+2, open 5: 2+2
        propose a2 b1
        -> CasView 5 e2 moving x2 a1 to a2 b1
        cas done
        -> SendStamp a1 e2x2
        -> SendStamp a2 e2x2
        -> SendStamp b1 e2x2
        record S 1.2.1.2 sealed 3 open 4
        stamped a1 S
        stamped a2 none
        stamped b1 none
        -> CopyObjects 1.2.1.2 from a1
        copied
        -> SendRecord a2 1.2.2.4 sealed 3 published 3, open 4: 0+4
        -> SendRecord b1 1.2.2.4 sealed 3 published 3, open 4: 0+4
        ack a2
        ack b1
        -> CasView 6 e2 open x2 a2 b1
        cas done
        -> Notify DriverRecovered
        -> Run 3 of 4: 0+4
        -> Plan behind {'s': 4}
        done
        -> SendRecord a2 1.2.2.5 sealed 4 published 3
        -> SendRecord b1 1.2.2.5 sealed 4 published 3
        """
    )


def test_a_driver_that_is_to_stop_plans_no_more() -> None:
    script(OPEN, RUN).play(
        """
        planned 3
        done
        -> SendRecord a1 1.2.1.3 sealed 4 published 3, open 5: 4+3
        stop
        ack a1
        -> Publish 4
        """
    )


# --- across a change of members


MOVED = (
    "propose a2",
    "cas done",
    "stamped a1 R",
    "stamped a2 none",
    "copied",
    "ack a2",
    "cas done",
)


def planned(found: Script, count: int) -> e.Planned:
    """An answer to the last plan, as any source may give it."""
    event = found._on_planned([f"{count}"])
    assert isinstance(event, e.Planned)
    return event


def test_what_was_planned_before_members_changed_is_planned_again() -> None:
    found = script(OPEN)
    early = planned(found, 4)
    found.tell(*MOVED)
    assert told(found, early) == []
    assert told(found, e.PlanFailed(early.token, "shrunk")) == []
    (write, *_) = told(found, planned(found, 3))
    assert isinstance(write, e.SendRecord)
    assert [intent.roots for intent in write.record.intents] == [3]


def test_an_answer_to_a_plan_of_long_ago_is_never_taken_for_one_of_now() -> None:
    """Its roots were read since."""
    found = script(OPEN)
    early = planned(found, 4)
    found.tell("planned 4", "ack a1", "done", "ack a1", "published 4", "ack a1")
    found.tell("record R 1.2.1.4 sealed 4", *MOVED)
    assert told(found, early) == []


def test_a_plan_that_fails_while_members_change_is_asked_for_again() -> None:
    found = script(OPEN)
    failed = e.PlanFailed(planned(found, 1).token, "shrunk")
    found.tell(*MOVED[:2])
    assert told(found, failed) == []
    found.tell(*MOVED[2:])
    found.play("planned 4\n-> SendRecord a2 1.2.2.3 sealed 3 published 3, open 4: 0+4")


def test_a_split_that_was_decided_before_members_changed_is_decided_anew() -> None:
    found = script(OPEN, RUN, SPLITTING)
    done = split(found)
    found.tell("record R 1.2.1.2 sealed 3 open 4", *MOVED)
    run = last(found, e.Run)
    assert isinstance(run, e.Run)
    assert (run.plan.id.attempt, run.plan.intent.roots) == (3, 4)
    assert told(found, done) == []


def test_behind_a_change_of_members_losers_are_looked_for_once() -> None:
    """What the old members were told last may have come late."""
    found = script(OPEN, RUN)
    found.tell("done", "ack a1", "published 4", "ack a1")
    swept = len(forgotten(found.actions))
    found.tell("record R 1.2.1.4 sealed 4", *MOVED, "planned 4", "ack a2", "done", "ack a2")
    first, second = forgotten(found.actions)[swept:]
    assert first.keep is not None
    assert second.keep is None


def test_halves_are_numbered_by_the_machine_whatever_number_their_source_gave_them() -> None:
    found = script(OPEN, RUN, SPLITTING, tracking=True)
    done = split(found)
    halves = (replace(done.first, window=0), replace(done.second, window=0))
    found._answer(told(found, e.SplitDone(4, *halves)))
    assert [intent.window for intent in written(found).intents] == [4, 5]
    found.tell("ack a1", "done")
    asked = last(found, e.AskVerdict)
    assert isinstance(asked, e.AskVerdict)
    assert asked.marker.intent == written(found).intents[0]


# --- while time passes


def test_an_event_in_between_does_not_put_off_what_is_sent_again() -> None:
    write = "-> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+4"
    found = script(OPEN, f"planned 4\n{write}")
    found.play(f"wait 1.1\npropose a1\ntick\n{write}")


def test_servers_are_asked_for_a_sign_of_life_only_where_something_waits_for_them() -> None:
    script(OPEN, RUN).play("wait 1.1\ntick")


def test_a_stop_waits_until_what_is_sealed_is_shown() -> None:
    script(OPEN, RUN).play(
        """
        done
        -> SendRecord a1 1.2.1.3 sealed 4 published 3
        ack a1
        -> Publish 4
        stop
        wait 1.1
        tick
        published 4
        -> SendRecord a1 1.2.1.4 sealed 4 published 4
        ack a1
        -> Stop asked
        """
    )


def test_what_was_shown_after_all_is_not_tried_again() -> None:
    """The sink was slow; the window behind is shown once."""
    found = script("record R 1.1.1.5 sealed 3")
    unpublished = (Sealed(2, "d", ()), Sealed(3, "e", ()))
    found.records["R"] = replace(found.records["R"], published=1, unpublished=unpublished)
    found.play(without_record(OPEN).replace("published 3", "published 1") + "-> Publish 2\n")
    found.play(
        """
        unpublished 2
        -> Notify PublishFailed
        published 2
        -> Publish 3
        -> SendRecord a1 1.2.1.2 sealed 3 published 2
        ack a1
        wait 1.1
        tick
        """
    )


def test_a_window_all_of_whose_roots_failed_drops_none() -> None:
    found = script(OPEN, RUN)
    found.tell("done failing 0 1 2 3")
    record = written(found)
    assert (record.sealed, len(record.replays)) == (4, 4)
    assert (record.totals.dropped, record.totals.roots) == (0, 0)


# --- holes


def test_holes_that_two_attempts_do_not_agree_on_are_believed_when_two_in_a_row_do() -> None:
    found = script(OPEN, RUN)
    report = TaskReport(TaskId(0, 0, 0), roots_read=((0, 4),), failed=(FailedRoot(3, "p", "no"),))
    told(found, e.RunDone(AttemptId(2, 4, 1), (1,), (report,)))
    # The record of root 1 was read before, and is gone now: that is not believed at once.
    holey = replace(report, failed=(), holes=((1, 1),))
    notice, run = told(found, e.RunDone(AttemptId(2, 4, 2), (1,), (holey,)))[-2:]
    assert isinstance(run, e.Run)
    assert isinstance(notice, e.Notify)
    assert "offset 1 of source 's'" in notice.text
    sent = told(found, e.RunDone(AttemptId(2, 4, 3), (1,), (holey,)))[-1]
    assert isinstance(sent, e.SendRecord)
    assert sent.record.sealed == 4
    assert sent.record.totals.roots == found.records["R"].totals.roots + 2


def test_attempts_that_the_driver_ends_itself_run_again_at_once_and_count_for_nothing() -> None:
    """A shorter tuple time-out ends one, and may be given as often as anybody likes."""
    found = script(OPEN, RUN)
    for number in range(1, 2 + 2 * len(BREAKAGE_PAUSES_S)):
        cancelled, notice, run = told(
            found, e.RunDied(AttemptId(2, 4, number), "a shorter time-out", ended=True)
        )
        assert cancelled == e.Cancel(AttemptId(2, 4, number))
        assert isinstance(notice, e.Notify)
        assert (notice.kind, notice.warning) == ("WindowRunAgain", False)
        assert notice.text == f"attempt {number} of window 4: a shorter time-out"
        assert isinstance(run, e.Run)
        assert run.plan.id == AttemptId(2, 4, number + 1)
    assert found.machine.stopped is None


def test_failures_of_the_engine_count_on_behind_an_attempt_that_the_driver_ended() -> None:
    found = script(OPEN, RUN)
    attempt = 1
    for pause_s in BREAKAGE_PAUSES_S:
        told(found, e.RunDied(AttemptId(2, 4, attempt), "broke"))
        found.now_s += pause_s + 1.0
        told(found, e.Tick())
        attempt += 1
        told(found, e.RunDied(AttemptId(2, 4, attempt), "a shorter time-out", ended=True))
        attempt += 1
    actions = told(found, e.RunDied(AttemptId(2, 4, attempt), "broke"))
    assert any(isinstance(one, e.Stop) and one.kind is e.StopKind.ENGINE for one in actions)
