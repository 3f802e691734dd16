"""Windows from plan to published mark: events in, actions out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from machine_script import Script

from millrace.protocol import events as e
from millrace.protocol.cohorts import DeadLimit
from millrace.protocol.record import first_record
from millrace.protocol.types import Guarantee, Replay, RootRange, Tag


def test_sealing_and_opening_are_one_write() -> None:
    """The mark of what is published rides along."""
    Script().play(
        """
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
        planned 4
        -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+4
        ack a1
        -> Run 1 of 4: 0+4
        -> Plan behind {'s': 4}
        planned 3
        done
        -> SendRecord a1 1.2.1.3 sealed 4 published 3, open 5: 4+3
        ack a1
        -> Publish 4
        -> Run 1 of 5: 4+3
        -> Plan behind {'s': 7}
        published 4
        done
        -> SendRecord a1 1.2.1.4 sealed 5 published 4
        ack a1
        -> Publish 5
        published 5
        -> SendRecord a1 1.2.1.5 sealed 5 published 5
        ack a1
        """
    )


def test_failing_roots_are_excluded_replayed_and_dead_lettered() -> None:
    """ExactlyOnce runs again without them; replays come when they are due, as new trees."""
    Script().play(
        """
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
        planned 4
        -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+4
        ack a1
        -> Run 1 of 4: 0+4
        -> Plan behind {'s': 4}
        done failing 1 2
        -> Notify WindowRunAgain
        -> Run 2 of 4: 0+4 without [1, 2]
        done
        -> SendRecord a1 1.2.1.3 sealed 4 published 3, replay 1#1, replay 2#1
        ack a1
        -> Publish 4
        planned 0 drained
        published 4
        -> SendRecord a1 1.2.1.4 sealed 4 published 4, replay 1#1, replay 2#1
        ack a1
        wait 5
        tick
        wait 6
        tick
        -> SendRecord a1 1.2.1.5 sealed 4 published 4, open 5: 1#1 2#1
        ack a1
        -> Run 1 of 5: 1#1 2#1
        done failing 0
        -> Notify WindowRunAgain
        -> Run 2 of 5: 1#1 2#1 without [0]
        done
        -> WriteDead 2.5.2.1/dead 1#1
        dead
        -> Notify DeadLetters
        -> SendRecord a1 1.2.1.6 sealed 5 published 4, dead 1 in 2.5.2.1/dead
        ack a1
        -> Publish 5
        published 5
        -> SendRecord a1 1.2.1.7 sealed 5 published 5, dead 1 in 2.5.2.1/dead
        ack a1
        -> Stop drained
        """
    )


BEGIN = """
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
        planned 4
        -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+4
        ack a1
"""


def test_what_cannot_be_decoded_is_dead_at_once_and_costs_no_second_run() -> None:
    Script(tracking=True).play(
        BEGIN
        + """
        -> Run 1 of 4: 0+4
        -> Plan behind {'s': 4}
        done unreadable 1
        -> AskVerdict 1 of 4
        verdict incomplete 1
        -> WriteDead 2.4.1.1/dead 1#0
        dead
        -> Notify DeadLetters
        -> SendRecord a1 1.2.1.3 sealed 4 published 3, dead 1 in 2.4.1.1/dead
        ack a1
        -> Publish 4
        """
    )


def test_what_no_replay_helps_is_dead_behind_the_run_without_it() -> None:
    """Something of it may have gone elsewhere, so the window is not sealed with that."""
    Script(tracking=True).play(
        BEGIN
        + """
        -> Run 1 of 4: 0+4
        -> Plan behind {'s': 4}
        done lasting 1
        -> AskVerdict 1 of 4
        verdict ok
        -> Notify WindowRunAgain
        -> Run 2 of 4: 0+4 without [1]
        done
        -> AskVerdict 2 of 4
        verdict ok
        -> WriteDead 2.4.2.1/dead 1#0
        dead
        -> Notify DeadLetters
        -> SendRecord a1 1.2.1.3 sealed 4 published 3, dead 1 in 2.4.2.1/dead
        ack a1
        -> Publish 4
        """
    )


def test_what_goes_on_although_its_source_could_not_decode_it_is_run_again() -> None:
    """The ackers found its tree complete, so something of it was processed."""
    Script(tracking=True).play(
        BEGIN
        + """
        -> Run 1 of 4: 0+4
        -> Plan behind {'s': 4}
        done unreadable 1
        -> AskVerdict 1 of 4
        verdict ok
        -> Notify WindowRunAgain
        -> Run 2 of 4: 0+4 without [1]
        """
    )


def test_a_window_with_too_many_dead_letters_is_not_sealed_by_any_driver() -> None:
    """The next driver runs the same window and stops again, until more letters are allowed."""
    stopped = Script(dead_limit=DeadLimit(50, 4))
    stopped.play(
        BEGIN
        + """
        -> Run 1 of 4: 0+4
        -> Plan behind {'s': 4}
        done unreadable 0 1 3
        -> Stop deadLetters
        """
    )
    assert isinstance(stopped.actions[-1], e.Stop)
    assert "3 of 4 roots that were read or replayed together fail" in stopped.actions[-1].text
    assert "3 in 'p' (no good)" in stopped.actions[-1].text
    half = Script(dead_limit=DeadLimit(75, 4))
    half.play(
        BEGIN
        + """
        -> Run 1 of 4: 0+4
        -> Plan behind {'s': 4}
        done unreadable 0 1 3
        -> WriteDead 2.4.1.1/dead 0#0 1#0 3#0
        """
    )


def test_partial_effects_are_sealed_at_least_once() -> None:
    """AtLeastOnce seals at once and replays what failed."""
    Script(guarantee=Guarantee.AT_LEAST_ONCE).play(
        """
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
        planned 4
        -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+4
        ack a1
        -> Run 1 of 4: 0+4
        -> Plan behind {'s': 4}
        done failing 1
        -> SendRecord a1 1.2.1.3 sealed 4 published 3, replay 1#1
        ack a1
        -> Publish 4
        """
    )


def test_killers_are_found_by_splitting() -> None:
    """Two deaths split a window durably; its halves run when the split is committed (rule 19)."""
    Script().play(
        """
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
        planned 4
        -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+4
        ack a1
        -> Run 1 of 4: 0+4
        -> Plan behind {'s': 4}
        died
        -> Cancel 1 of 4
        -> Notify WindowRunAgain
        -> Run 2 of 4: 0+4
        died
        -> Cancel 2 of 4
        -> Notify WindowSplit
        -> Split 4: 0+4 at 2
        split 2 2
        -> SendRecord a1 1.2.1.3 sealed 3 published 3, open 4: 0+2, open 5: 2+2
        ack a1
        -> Run 3 of 4: 0+2
        died
        -> Cancel 3 of 4
        -> Notify WindowRunAgain
        -> Run 4 of 4: 0+2
        died
        -> Cancel 4 of 4
        -> Notify WindowSplit
        -> Split 4: 0+2 at 1
        split 2 2
        split 1 1
        -> SendRecord a1 1.2.1.4 sealed 3 published 3, open 4: 0+1, open 5: 1+1, open 6: 2+2
        ack a1
        -> Run 5 of 4: 0+1
        done
        -> SendRecord a1 1.2.1.5 sealed 4 published 3, open 5: 1+1, open 6: 2+2
        ack a1
        -> Publish 4
        -> Run 1 of 5: 1+1
        died
        -> Cancel 1 of 5
        -> Notify WindowRunAgain
        -> Run 2 of 5: 1+1
        died
        -> Cancel 2 of 5
        -> Notify WindowRunAgain
        -> SendRecord a1 1.2.1.6 sealed 5 published 3, open 6: 2+2, replay 1#1
        ack a1
        -> Run 1 of 6: 2+2
        """
    )


def test_the_last_suspect_is_innocent_if_others_failed() -> None:
    """Only deaths blame a root without a witness."""
    Script().play(
        """
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
        planned 3
        -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+3
        ack a1
        -> Run 1 of 4: 0+3
        -> Plan behind {'s': 3}
        done combined
        -> Notify WindowRunAgain
        -> Run 2 of 4: 0+3 uncombined {'p': 1}
        done failing 0
        -> Notify WindowRunAgain
        -> Run 3 of 4: 0+3 without [0] uncombined {'p': 1}
        done failing 1
        -> Notify WindowRunAgain
        -> Run 4 of 4: 0+3 without [0, 1] uncombined {'p': 1}
        done
        -> SendRecord a1 1.2.1.3 sealed 4 published 3, replay 0#1, replay 1#1
        ack a1
        -> Publish 4
        """
    )


def test_a_failure_after_a_combine_runs_with_ids() -> None:
    """The failing key groups travel uncombined, then the root is known."""
    Script().play(
        """
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
        planned 4
        -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+4
        ack a1
        -> Run 1 of 4: 0+4
        -> Plan behind {'s': 4}
        done combined
        -> Notify WindowRunAgain
        -> Run 2 of 4: 0+4 uncombined {'p': 1}
        done failing 3
        -> Notify WindowRunAgain
        -> Run 3 of 4: 0+4 without [3] uncombined {'p': 1}
        done
        -> SendRecord a1 1.2.1.3 sealed 4 published 3, replay 3#1
        ack a1
        -> Publish 4
        """
    )


def test_what_no_root_is_to_blame_for_stops_the_run_with_nothing_sealed() -> None:
    """Each attempt comes after a longer pause; the window stays open for a later run."""
    script = Script().play(
        """
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
        planned 4
        -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+4
        ack a1
        -> Run 1 of 4: 0+4
        -> Plan behind {'s': 4}
        broke
        -> Cancel 1 of 4
        -> Notify WindowRunAgain
        -> Run 2 of 4: 0+4
        broke
        -> Cancel 2 of 4
        -> Notify WindowRunAgain
        wait 0.4
        tick
        wait 0.2
        tick
        -> Run 3 of 4: 0+4
        broke
        -> Cancel 3 of 4
        -> Notify WindowRunAgain
        wait 2
        tick
        -> SendStamp a1 e1x2
        -> Run 4 of 4: 0+4
        broke
        -> Cancel 4 of 4
        -> Notify WindowRunAgain
        wait 8
        tick
        -> SendStamp a1 e1x2
        -> Run 5 of 4: 0+4
        broke
        -> Cancel 5 of 4
        -> Stop engine
        """
    )
    stop = script.actions[-1]
    assert isinstance(stop, e.Stop)
    assert "an assertion in Spark" in stop.text
    told = [a.text for a in script.actions if isinstance(a, e.Notify) and a.window == 4]
    assert told[0].endswith("an assertion in Spark")
    assert told[1].endswith("an assertion in Spark; it runs again in 0.5 s")


def test_a_window_whose_own_tree_is_broken_blames_nobody() -> None:
    Script(tracking=True).play(
        """
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
        planned 1
        -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+1
        ack a1
        -> Run 1 of 4: 0+1
        -> Plan behind {'s': 1}
        done
        -> AskVerdict 1 of 4
        verdict broken
        -> Notify WindowRunAgain
        -> Run 2 of 4: 0+1
        done
        -> AskVerdict 2 of 4
        verdict broken
        -> Notify WindowRunAgain
        wait 0.5
        tick
        -> Run 3 of 4: 0+1
        done
        -> AskVerdict 3 of 4
        verdict ok
        -> SendRecord a1 1.2.1.3 sealed 4 published 3
        ack a1
        -> Publish 4
        """
    )


def test_a_root_that_only_loses_tuples_is_replayed_and_never_a_dead_letter() -> None:
    """With its last replay it is the run that stops: nobody has failed on the root."""
    script = Script(tracking=True, max_replays=1).play(
        """
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
        planned 2
        -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+2
        ack a1
        -> Run 1 of 4: 0+2
        -> Plan behind {'s': 2}
        done
        -> AskVerdict 1 of 4
        verdict incomplete 1
        -> Notify WindowRunAgain
        -> Run 2 of 4: 0+2 without [1]
        done
        -> AskVerdict 2 of 4
        verdict ok
        -> SendRecord a1 1.2.1.3 sealed 4 published 3, replay 1#1
        ack a1
        -> Publish 4
        wait 11
        tick
        -> SendRecord a1 1.2.1.4 sealed 4 published 3, open 5: 1#1
        ack a1
        -> Run 1 of 5: 1#1
        done
        -> AskVerdict 1 of 5
        verdict incomplete 0
        -> Notify WindowRunAgain
        -> Run 2 of 5: 1#1
        done
        -> AskVerdict 2 of 5
        verdict incomplete 0
        -> Notify WindowRunAgain
        wait 0.5
        tick
        -> Run 3 of 5: 1#1
        done
        -> AskVerdict 3 of 5
        verdict incomplete 0
        -> Notify WindowRunAgain
        wait 2
        tick
        -> SendStamp a1 e1x2
        -> Run 4 of 5: 1#1
        done
        -> AskVerdict 4 of 5
        verdict incomplete 0
        -> Notify WindowRunAgain
        wait 8
        tick
        -> SendStamp a1 e1x2
        -> Run 5 of 5: 1#1
        done
        -> AskVerdict 5 of 5
        verdict incomplete 0
        -> Stop engine
        """
    )
    stop = script.actions[-1]
    assert isinstance(stop, e.Stop)
    assert "1 root lost tuples: p: broken" in stop.text


def test_open_windows_are_dropped_at_most_once() -> None:
    """AtMostOnce never runs a window twice: deaths and recovery drop what was open."""
    Script(guarantee=Guarantee.AT_MOST_ONCE).play(
        """
        record R 1.1.1.5 sealed 3 open 4
        start
        -> ReadView
        view 4 e1 open x1 a1
        -> CasView 4 e1 open x2 a1
        cas done
        -> SendStamp a1 e1x2
        stamped a1 R
        -> CopyObjects 1.1.1.5 from a1
        copied
        -> SendRecord a1 1.2.1.1 sealed 3 published 3, open 4: 0+4
        ack a1
        -> Notify DriverRecovered
        -> FenceSinks x2
        -> Plan behind {'s': 4}
        fenced
        -> Notify RootsDropped
        -> SendRecord a1 1.2.1.2 sealed 3 published 3
        ack a1
        planned 2
        -> SendRecord a1 1.2.1.3 sealed 3 published 3, open 4: 4+2
        ack a1
        -> Run 1 of 4: 4+2
        -> Plan behind {'s': 6}
        died
        -> Cancel 1 of 4
        -> Notify RootsDropped
        -> SendRecord a1 1.2.1.4 sealed 4 published 3
        ack a1
        -> Publish 4
        """
    )


AT_MOST_ONCE_PLANNED = """
    record R 1.1.1.5 sealed 3
    record planned 1.2.1.2 sealed 3 open 4
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
    planned 4
    -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+4
    """

MOVED_WITH_A_PLAN = """
    cas done
    -> SendStamp a1 e2x2
    -> SendStamp b1 e2x2
    stamped a1 planned
    stamped b1 none
    -> CopyObjects 1.2.1.2 from a1
    copied
    -> SendRecord b1 1.2.2.3 sealed 3 published 3, open 4: 0+4
    ack b1
    -> CasView 6 e2 open x2 b1
    cas done
    -> Notify DriverRecovered
    """


def test_at_most_once_a_window_that_has_not_begun_is_run_when_members_have_changed() -> None:
    """Its plan was on its way to the servers, so nothing of it can have run."""
    played = Script(guarantee=Guarantee.AT_MOST_ONCE).play(AT_MOST_ONCE_PLANNED)
    played.play("propose b1\n-> CasView 5 e2 moving x2 a1 to b1")
    played.play(MOVED_WITH_A_PLAN + "-> Run 1 of 4: 0+4\n    -> Plan behind {'s': 4}")


def test_at_most_once_a_window_that_has_begun_is_dropped_when_members_change() -> None:
    played = Script(guarantee=Guarantee.AT_MOST_ONCE).play(AT_MOST_ONCE_PLANNED)
    played.play("ack a1\n-> Run 1 of 4: 0+4\n-> Plan behind {'s': 4}")
    played.play("propose b1\n-> Cancel 1 of 4\n-> CasView 5 e2 moving x2 a1 to b1")
    played.play(
        MOVED_WITH_A_PLAN
        + "-> Notify RootsDropped\n    -> SendRecord b1 1.2.2.4 sealed 3 published 3"
    )


def test_at_most_once_what_a_driver_found_is_dropped_however_often_members_change_before() -> None:
    """Whether the driver before had begun it nobody knows, also while the dropping is cut off."""
    Script(guarantee=Guarantee.AT_MOST_ONCE).play(
        """
        record R 1.1.1.5 sealed 3 open 4
        record again 1.2.1.1 sealed 3 open 4
        start
        -> ReadView
        view 4 e1 open x1 a1
        -> CasView 4 e1 open x2 a1
        cas done
        -> SendStamp a1 e1x2
        stamped a1 R
        -> CopyObjects 1.1.1.5 from a1
        copied
        -> SendRecord a1 1.2.1.1 sealed 3 published 3, open 4: 0+4
        ack a1
        -> Notify DriverRecovered
        -> FenceSinks x2
        -> Plan behind {'s': 4}
        fenced
        -> Notify RootsDropped
        -> SendRecord a1 1.2.1.2 sealed 3 published 3
        propose b1
        -> CasView 5 e2 moving x2 a1 to b1
        cas done
        -> SendStamp a1 e2x2
        -> SendStamp b1 e2x2
        stamped a1 again
        stamped b1 none
        -> CopyObjects 1.2.1.1 from a1
        copied
        -> SendRecord b1 1.2.2.3 sealed 3 published 3, open 4: 0+4
        ack b1
        -> CasView 6 e2 open x2 b1
        cas done
        -> Notify DriverRecovered
        -> Notify RootsDropped
        -> SendRecord b1 1.2.2.4 sealed 3 published 3
        """
    )


def test_a_lost_state_server_blames_nobody() -> None:
    """The window waits a moment and runs again, as often as it takes, and leaves nothing behind."""
    script = Script().play(
        """
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
        planned 4
        -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+4
        ack a1
        -> Run 1 of 4: 0+4
        -> Plan behind {'s': 4}
        died member
        -> Notify WindowHeldUp
        wait 2
        tick
        -> SendStamp a1 e1x2
        -> Run 2 of 4: 0+4
        died member
        -> Notify WindowHeldUp
        wait 2
        tick
        -> SendStamp a1 e1x2
        -> Run 3 of 4: 0+4
        """
    )
    forgotten = [a for a in script.actions if isinstance(a, e.Forget) and a.attempts]
    assert [[one.attempt for one in forget.attempts] for forget in forgotten] == [[1], [2]]
    assert all(forget.keep is not None and forget.sealed == 3 for forget in forgotten)


def test_nothing_new_is_opened_while_very_many_replays_wait() -> None:
    script = Script()
    script.machine.settings = replace(script.machine.settings, max_waiting=2)
    windows = script.machine.windows
    windows.settings = script.machine.settings
    waiting = tuple(Replay("s", 0, offset, 1, 100.0) for offset in range(2))
    record = replace(first_record("u", Tag(1, 1, 1, 1)), replays=waiting)
    windows.planning.found = e.Planned(1, (RootRange("s", 0, 0, 4, 0),), {"s": 4}, False)
    assert windows._opening(record) is None
    assert windows._opening(replace(record, replays=waiting[:1])) is not None


def test_a_lost_log_gives_a_new_attempt() -> None:
    """The log has one copy; nobody is to blame."""
    Script(tracking=True).play(
        """
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
        planned 4
        -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+4
        ack a1
        -> Run 1 of 4: 0+4
        -> Plan behind {'s': 4}
        done
        -> AskVerdict 1 of 4
        verdict lost
        -> Notify AckLogLost
        -> Run 2 of 4: 0+4
        done
        -> AskVerdict 2 of 4
        verdict incomplete 2
        -> Notify WindowRunAgain
        -> Run 3 of 4: 0+4 without [2]
        done
        -> AskVerdict 3 of 4
        verdict ok
        -> SendRecord a1 1.2.1.3 sealed 4 published 3, replay 2#1
        ack a1
        -> Publish 4
        """
    )


def test_roots_that_nobody_judged_are_not_complete() -> None:
    """A verdict on fewer roots than were to be judged seals nothing."""
    Script(tracking=True).play(
        """
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
        planned 4
        -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+4
        ack a1
        -> Run 1 of 4: 0+4
        -> Plan behind {'s': 4}
        done
        -> AskVerdict 1 of 4
        verdict short 1
        -> Notify WindowRunAgain
        -> Run 2 of 4: 0+4
        done
        -> AskVerdict 2 of 4
        verdict ok
        -> SendRecord a1 1.2.1.3 sealed 4 published 3
        ack a1
        -> Publish 4
        """
    )


def test_a_short_verdict_does_not_say_that_something_unreadable_was_complete() -> None:
    """The ackers did not name the root that its source could not decode, nor all the others."""
    Script(tracking=True).play(
        """
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
        planned 4
        -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+4
        ack a1
        -> Run 1 of 4: 0+4
        -> Plan behind {'s': 4}
        done unreadable 1
        -> AskVerdict 1 of 4
        verdict short 1
        -> Notify WindowRunAgain
        -> Run 2 of 4: 0+4 without [1]
        done
        -> AskVerdict 2 of 4
        verdict ok
        -> WriteDead 2.4.2.1/dead 1#0
        dead
        -> Notify DeadLetters
        -> SendRecord a1 1.2.1.3 sealed 4 published 3, dead 1 in 2.4.2.1/dead
        """
    )


def test_a_change_of_members_gives_up_the_attempt() -> None:
    """What was written for other owners does not count for the new ones (rule 18)."""
    Script(max_replays=0).play(
        """
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
        planned 2
        -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+2
        ack a1
        -> Run 1 of 4: 0+2
        -> Plan behind {'s': 2}
        done failing 0 1
        -> Notify WindowRunAgain
        -> WriteDead 2.4.1.1/dead 0#0 1#0
        propose a2 b1
        -> CasView 5 e2 moving x2 a1 to a2 b1
        cas done
        -> SendStamp a1 e2x2
        -> SendStamp a2 e2x2
        -> SendStamp b1 e2x2
        record S 1.2.1.2 sealed 3 open 2
        stamped a1 S
        stamped a2 none
        stamped b1 none
        -> CopyObjects 1.2.1.2 from a1
        copied
        -> SendRecord a2 1.2.2.3 sealed 3 published 3, open 4: 0+2
        -> SendRecord b1 1.2.2.3 sealed 3 published 3, open 4: 0+2
        ack a2
        ack b1
        -> CasView 6 e2 open x2 a2 b1
        cas done
        -> Notify DriverRecovered
        -> WriteDead 2.4.1.2/dead 0#0 1#0
        -> Plan behind {'s': 2}
        dead 2.4.1.1/dead
        dead
        -> Notify DeadLetters
        -> SendRecord a2 1.2.2.4 sealed 4 published 3, dead 2 in 2.4.1.2/dead
        -> SendRecord b1 1.2.2.4 sealed 4 published 3, dead 2 in 2.4.1.2/dead
        ack a2
        ack b1
        -> Publish 4
        """
    )


def test_a_new_member_is_let_in_between_windows() -> None:
    """A running window is not given up for it."""
    Script().play(
        """
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
        planned 4
        -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+4
        ack a1
        -> Run 1 of 4: 0+4
        -> Plan behind {'s': 4}
        propose a1 b1
        done
        -> SendRecord a1 1.2.1.3 sealed 4 published 3
        ack a1
        -> CasView 5 e2 moving x2 a1 to a1 b1
        """
    )


def test_a_stop_ends_behind_what_is_published() -> None:
    """Nothing new is sealed; what is sealed is shown and marked first."""
    Script().play(
        """
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
        planned 4
        -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+4
        ack a1
        -> Run 1 of 4: 0+4
        -> Plan behind {'s': 4}
        planned 4
        done
        -> SendRecord a1 1.2.1.3 sealed 4 published 3, open 5: 4+4
        ack a1
        -> Publish 4
        -> Run 1 of 5: 4+4
        -> Plan behind {'s': 8}
        stop
        -> Cancel 1 of 5
        published 4
        -> SendRecord a1 1.2.1.4 sealed 4 published 4, open 5: 4+4
        ack a1
        -> Stop asked
        """
    )


def test_a_sink_that_is_away_is_asked_again() -> None:
    """Publishing is repeated with the next tick."""
    Script().play(
        """
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
        planned 4
        -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+4
        ack a1
        -> Run 1 of 4: 0+4
        -> Plan behind {'s': 4}
        done
        -> SendRecord a1 1.2.1.3 sealed 4 published 3
        ack a1
        -> Publish 4
        unpublished 4
        -> Notify PublishFailed
        wait 1
        tick
        -> SendStamp a1 e1x2
        -> Publish 4
        published 4
        -> SendRecord a1 1.2.1.4 sealed 4 published 4
        """
    )


def test_nothing_is_begun_before_the_sinks_are_fenced() -> None:
    """A successor must not be overtaken on a sink, nor a sink that is further than the record."""
    Script().play(
        """
        record R 1.1.1.5 sealed 3 open 4
        start
        -> ReadView
        view 4 e1 open x1 a1
        -> CasView 4 e1 open x2 a1
        cas done
        -> SendStamp a1 e1x2
        stamped a1 R
        -> CopyObjects 1.1.1.5 from a1
        copied
        -> SendRecord a1 1.2.1.1 sealed 3 published 3, open 4: 0+4
        ack a1
        -> Notify DriverRecovered
        -> FenceSinks x2
        -> Plan behind {'s': 4}
        wait 1
        tick
        -> FenceSinks x2
        fenced
        -> Run 1 of 4: 0+4
        done
        -> SendRecord a1 1.2.1.2 sealed 4 published 3
        ack a1
        -> Publish 4
        """
    )


RECOVERED = """
record R 1.1.1.5 sealed 3 open 4
start
-> ReadView
view 4 e1 open x1 a1
-> CasView 4 e1 open x2 a1
cas done
-> SendStamp a1 e1x2
stamped a1 R
-> CopyObjects 1.1.1.5 from a1
copied
-> SendRecord a1 1.2.1.1 sealed 3 published 3, open 4: 0+4
ack a1
-> Notify DriverRecovered
-> FenceSinks x2
-> Plan behind {'s': 4}
"""


def test_sinks_that_are_further_than_the_record_refuse_it() -> None:
    """Not by an older look at the view, and not before one: the sinks may be a successor's."""
    Script().play(RECOVERED).play(
        """
        behind
        -> ReadView
        view 5 e1 open x2 a1
        look 5 e1 open x2 a1
        -> Stop behind
        """
    )


def test_a_driver_whose_successor_has_shown_more_is_fenced() -> None:
    Script().play(RECOVERED).play(
        """
        behind
        -> ReadView
        wait 1
        tick
        -> FenceSinks x2
        -> ReadView
        look 6 e1 open x3 a1
        -> Stop fenced
        """
    )


def test_a_sink_that_cannot_tell_is_named_once() -> None:
    Script().play(RECOVERED).play(
        """
        fenced out
        -> Notify SinkCannotTell
        -> Run 1 of 4: 0+4
        fenced out
        """
    )


@pytest.mark.parametrize(
    ("sealed", "text"),
    [(0, "stopped before a window was sealed"), (1, "stopped behind window 1")],
)
def test_a_stop_says_how_far_it_came(sealed: int, text: str) -> None:
    script = Script()
    script.tell("record R 1.1.1.5 sealed " + str(sealed), "start", "view 4 e1 open x1 a1")
    script.tell("cas done", "stamped a1 R", "copied", "ack a1", "fenced", "stop")
    assert [action.text for action in script.actions if isinstance(action, e.Stop)] == [text]
