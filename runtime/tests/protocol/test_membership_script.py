"""From a driver's start to a committed record, and view changes: events in, actions out."""

from __future__ import annotations

import pytest
from machine_script import Script

from millrace.protocol import events as e


def test_a_topology_is_created_by_cas() -> None:
    """The first record is final with the CAS to open, not before (rule 17)."""
    Script().play(
        """
        start
        -> ReadView
        propose a1 b1
        -> ReadView
        view none
        -> CasView 0 e1 creating x1 a1 b1
        cas done
        -> SendStamp a1 e1x1
        -> SendStamp b1 e1x1
        stamped a1 none
        stamped b1 none
        -> SendRecord a1 1.1.1.1 sealed 0 published 0
        -> SendRecord b1 1.1.1.1 sealed 0 published 0
        ack a1
        ack b1
        -> CasView 1 e1 open x1 a1 b1
        cas done
        -> Notify DriverRecovered
        -> FenceSinks x1
        -> Plan behind {}
        """
    )


def test_nothing_is_created_without_members() -> None:
    """A driver that knows no state server waits for a proposal."""
    Script().play(
        """
        start
        -> ReadView
        view none
        propose a1
        -> ReadView
        view none
        -> CasView 0 e1 creating x1 a1
        """
    )


def test_the_birth_of_a_topology_is_repeated_with_other_members() -> None:
    """Until the view is open nothing was ever acted on, so what servers hold does not matter."""
    Script().play(
        """
        record half 1.1.1.1 sealed 0
        start
        -> ReadView
        view 1 e1 creating x1 a1 b1
        -> CasView 1 e1 creating x2 a1 b1
        cas done
        -> SendStamp a1 e1x2
        -> SendStamp b1 e1x2
        propose a1 b2
        -> CasView 2 e2 creating x2 a1 b2
        cas done
        -> SendStamp a1 e2x2
        -> SendStamp b2 e2x2
        stamped a1 half
        stamped b2 none
        -> SendRecord a1 1.2.2.1 sealed 0 published 0
        -> SendRecord b2 1.2.2.1 sealed 0 published 0
        ack a1
        ack b2
        -> CasView 3 e2 open x2 a1 b2
        cas done
        -> Notify DriverRecovered
        -> FenceSinks x2
        -> Plan behind {}
        """
    )


def test_a_topology_does_not_begin_over_servers_that_hold_windows() -> None:
    """Rule 17: the view alone was lost, and its record is no first one."""
    Script().play(
        """
        record R 1.3.2.57 sealed 3
        start
        -> ReadView
        propose a1 b1
        -> ReadView
        view none
        -> CasView 0 e1 creating x1 a1 b1
        cas done
        -> SendStamp a1 e1x1
        -> SendStamp b1 e1x1
        stamped a1 none
        stamped b1 R
        -> Stop failed
        """
    )


def test_nor_does_it_once_enough_drivers_have_tried() -> None:
    """The tags of what they would write are above those that the servers hold by then."""
    Script().play(
        """
        record R 1.3.2.57 sealed 3
        start
        -> ReadView
        view 8 e1 creating x7 a1 b1
        -> CasView 8 e1 creating x8 a1 b1
        cas done
        -> SendStamp a1 e1x8
        -> SendStamp b1 e1x8
        stamped a1 R
        -> Stop failed
        """
    )


@pytest.mark.parametrize("reason", ["fenced", "staleEpoch"])
def test_servers_that_serve_a_later_driver_than_the_view_knows_end_this_one(reason: str) -> None:
    """The view was put back from an older copy. An earlier look tells nothing of that."""
    Script().play(
        f"""
        start
        -> ReadView
        view 4 e1 open x1 a1 b1
        -> CasView 4 e1 open x2 a1 b1
        cas done
        -> SendStamp a1 e1x2
        -> SendStamp b1 e1x2
        refused a1 {reason}
        -> ReadView
        view 5 e1 open x2 a1 b1
        look 5 e1 open x2 a1 b1
        -> Stop behind
        """
    )


def test_a_driver_that_was_overtaken_finds_the_newer_one_in_the_view() -> None:
    Script().play(
        """
        start
        -> ReadView
        view 4 e1 open x1 a1 b1
        -> CasView 4 e1 open x2 a1 b1
        cas done
        -> SendStamp a1 e1x2
        -> SendStamp b1 e1x2
        refused a1 fenced
        -> ReadView
        look 6 e1 open x3 a1 b1
        -> Stop fenced
        """
    )


@pytest.mark.parametrize("tag", ["1.3.1.5", "1.2.1.1", "1.1.2.5"])
def test_servers_whose_record_is_later_than_the_view_end_the_driver(tag: str) -> None:
    """They have started again, so that no stamp tells of the driver that wrote it."""
    Script().play(
        f"""
        record R {tag} sealed 3
        start
        -> ReadView
        view 4 e1 open x1 a1 b1
        -> CasView 4 e1 open x2 a1 b1
        cas done
        -> SendStamp a1 e1x2
        -> SendStamp b1 e1x2
        stamped a1 R
        -> ReadView
        wait 1
        tick
        -> ReadView
        look 5 e1 open x2 a1 b1
        -> Stop behind
        """
    )


def test_a_view_that_is_put_back_under_a_driver_ends_it_once_it_needs_the_view() -> None:
    """What it asked before its claim may be answered late, and tells nothing."""
    Script().play(
        """
        start
        -> ReadView
        view 4 e1 open x1 a1 b1
        -> CasView 4 e1 open x2 a1 b1
        cas done
        -> SendStamp a1 e1x2
        -> SendStamp b1 e1x2
        propose a1 b2
        -> CasView 5 e2 moving x2 a1 b1 to a1 b2
        cas lost
        -> ReadView
        view 4 e1 open x1 a1 b1
        look 4 e1 open x1 a1 b1
        -> Stop behind
        """
    )


def test_the_highest_tag_is_written_back_to_all() -> None:
    """Rule 9; acknowledgements count once, and only of this very round (rule 3)."""
    Script().play(
        """
        record old 1.1.1.4 sealed 2
        record new 1.1.1.5 sealed 3
        start
        -> ReadView
        view 4 e1 open x1 a1 b1
        -> CasView 4 e1 open x2 a1 b1
        cas done
        -> SendStamp a1 e1x2
        -> SendStamp b1 e1x2
        stamped a1 new
        stamped b1 old
        -> CopyObjects 1.1.1.5 from a1 b1
        copied
        -> SendRecord a1 1.2.1.1 sealed 3 published 3
        -> SendRecord b1 1.2.1.1 sealed 3 published 3
        ack a1
        ack a1
        ack b1 e1x1 1
        ack b1 e1x2 7
        ack b1
        -> Notify DriverRecovered
        -> FenceSinks x2
        -> Plan behind {}
        """
    )


@pytest.mark.parametrize(("copies", "kind"), [(1, e.StopKind.LOST), (2, e.StopKind.FAILED)])
def test_a_member_that_loses_its_record_in_the_life_that_it_has_ends_the_driver(
    copies: int, kind: e.StopKind
) -> None:
    """Its keys were deleted, or it was made a replica: it answers as if nothing had been."""
    script = Script(copies=copies).play(
        """
        record old 1.1.1.4 sealed 2
        start
        -> ReadView
        view 4 e1 open x1 a1 b1
        -> CasView 4 e1 open x2 a1 b1
        cas done
        -> SendStamp a1 e1x2
        -> SendStamp b1 e1x2
        stamped a1 old
        stamped b1 old
        -> CopyObjects 1.1.1.4 from a1 b1
        copied
        -> SendRecord a1 1.2.1.1 sealed 2 published 2
        -> SendRecord b1 1.2.1.1 sealed 2 published 2
        ack a1
        ack b1
        -> Notify DriverRecovered
        -> FenceSinks x2
        -> Plan behind {}
        stamped b1 old
        stamped c1 none
        fenced
        unreachable a1
        -> Notify StateServerAway
        wait 1
        tick
        -> SendStamp a1 e1x2
        -> SendStamp b1 e1x2
        """
    )
    script.tell("stamped a1 none")
    stop = script.actions[-1]
    assert isinstance(stop, e.Stop)
    assert stop.kind is kind
    assert "holds none" in stop.text


def test_a_late_answer_of_before_the_first_record_is_no_loss() -> None:
    script = Script(copies=1).play(
        """
        start
        -> ReadView
        propose a1
        -> ReadView
        view none
        -> CasView 0 e1 creating x1 a1
        cas done
        -> SendStamp a1 e1x1
        stamped a1 none
        -> SendRecord a1 1.1.1.1 sealed 0 published 0
        ack a1
        -> CasView 1 e1 open x1 a1
        cas done
        -> Notify DriverRecovered
        -> FenceSinks x1
        -> Plan behind {}
        record first 1.1.1.1 sealed 0
        record later 1.1.1.9 sealed 2
        stamped a1 none
        stamped a1 first
        stamped a1 none
        stamped a1 later
        stamped a1 none
        fenced
        unreachable a1
        -> Notify StateServerAway
        wait 1
        tick
        -> SendStamp a1 e1x1
        """
    )
    script.tell("stamped a1 none")
    assert isinstance(script.actions[-1], e.Stop)


def test_a_member_that_does_not_answer_is_waited_for_or_replaced() -> None:
    """Never a subset (rule 10); a joiner is no source, however high its record (rule 14)."""
    Script().play(
        """
        record old 1.1.1.4 sealed 2
        record new 1.1.1.5 sealed 3
        start
        -> ReadView
        view 4 e1 open x1 a1 b1
        -> CasView 4 e1 open x2 a1 b1
        cas done
        -> SendStamp a1 e1x2
        -> SendStamp b1 e1x2
        stamped a1 old
        unreachable b1
        -> Notify StateServerAway
        wait 1
        tick
        -> SendStamp b1 e1x2
        propose a1 b2
        -> CasView 5 e2 moving x2 a1 b1 to a1 b2
        cas done
        -> SendStamp a1 e2x2
        -> SendStamp b1 e2x2
        -> SendStamp b2 e2x2
        stamped a1 old
        refused b1 runId
        stamped b2 new
        -> Notify StateServerBack
        -> CopyObjects 1.1.1.4 from a1
        copied
        -> SendRecord a1 1.2.2.1 sealed 2 published 2
        -> SendRecord b2 1.2.2.1 sealed 2 published 2
        ack a1
        ack b2
        -> CasView 6 e2 open x2 a1 b2
        cas done
        -> Notify DriverRecovered
        -> FenceSinks x2
        -> Plan behind {}
        """
    )


def test_a_lost_answer_of_the_view_store_is_looked_up() -> None:
    """The view itself tells whether the swap has happened."""
    Script().play(
        """
        record R 1.1.1.4 sealed 2
        start
        -> ReadView
        view 4 e1 moving x1 a1 b1 to a1 b2
        -> CasView 4 e1 moving x2 a1 b1 to a1 b2
        cas done
        -> SendStamp a1 e1x2
        -> SendStamp b1 e1x2
        -> SendStamp b2 e1x2
        stamped a1 R
        unreachable b1
        stamped b2 none
        -> CopyObjects 1.1.1.4 from a1
        copied
        -> SendRecord a1 1.2.1.1 sealed 2 published 2
        -> SendRecord b2 1.2.1.1 sealed 2 published 2
        ack a1
        ack b2
        -> CasView 5 e1 open x2 a1 b2
        cas lost
        -> ReadView
        view 5 e1 moving x2 a1 b1 to a1 b2
        -> CasView 5 e1 open x2 a1 b2
        cas lost
        -> ReadView
        view 6 e1 open x2 a1 b2
        -> Notify DriverRecovered
        -> FenceSinks x2
        -> Plan behind {}
        """
    )


def test_a_claim_is_never_believed_unanswered() -> None:
    """A view with the execution that was wanted may be the claim of another driver."""
    Script().play(
        """
        start
        -> ReadView
        view 4 e1 open x1 a1
        -> CasView 4 e1 open x2 a1
        cas lost
        -> ReadView
        view 5 e1 open x2 a1
        -> CasView 5 e1 open x3 a1
        cas done
        -> SendStamp a1 e1x3
        """
    )


def test_moving_is_gone_on_with_from_the_last_open_members() -> None:
    """Rules 11 to 13: the next driver keeps source, may change target, needs one source only."""
    Script().play(
        """
        record R 1.1.1.4 sealed 2
        record half 1.2.2.1 sealed 2
        start
        -> ReadView
        propose b1 c1
        -> ReadView
        view 7 e2 moving x2 a1 b1 to b1 c1
        -> CasView 7 e2 moving x3 a1 b1 to b1 c1
        cas done
        -> SendStamp a1 e2x3
        -> SendStamp b1 e2x3
        -> SendStamp c1 e2x3
        unreachable a1
        stamped b1 R
        stamped c1 half
        -> CopyObjects 1.1.1.4 from b1
        copied
        -> SendRecord b1 1.3.2.1 sealed 2 published 2
        -> SendRecord c1 1.3.2.1 sealed 2 published 2
        propose b1 c2
        -> CasView 8 e3 moving x3 a1 b1 to b1 c2
        cas done
        -> SendStamp a1 e3x3
        -> SendStamp b1 e3x3
        -> SendStamp c2 e3x3
        stamped b1 R
        refused a1 behind
        unreachable a1
        stamped c2 none
        -> CopyObjects 1.1.1.4 from b1
        copied
        -> SendRecord b1 1.3.3.2 sealed 2 published 2
        -> SendRecord c2 1.3.3.2 sealed 2 published 2
        ack b1
        ack c2
        -> CasView 9 e3 open x3 b1 c2
        cas done
        -> Notify DriverRecovered
        -> FenceSinks x3
        -> Plan behind {}
        """
    )


def test_a_restarted_server_with_the_only_copy_is_a_source() -> None:
    """Rule 24: its name is in source, its record recent; beside it the members that stayed."""
    Script(copies=1).play(
        """
        record mine 1.1.1.4 sealed 2
        record back 1.1.1.5 sealed 3
        start
        -> ReadView
        view 4 e1 open x1 a1 b1
        -> CasView 4 e1 open x2 a1 b1
        cas done
        -> SendStamp a1 e1x2
        -> SendStamp b1 e1x2
        propose a1 b2
        -> CasView 5 e2 moving x2 a1 b1 to a1 b2
        cas done
        -> SendStamp a1 e2x2
        -> SendStamp b1 e2x2
        -> SendStamp b2 e2x2
        stamped a1 mine
        refused b1 runId
        stamped b2 back
        -> CopyObjects 1.1.1.5 from a1 b2
        copied
        -> SendRecord a1 1.2.2.1 sealed 3 published 3
        -> SendRecord b2 1.2.2.1 sealed 3 published 3
        """
    )


def test_a_file_from_before_the_last_opening_is_refused() -> None:
    """Rule 24: the restarted server holds an older truth."""
    Script(copies=1).play(
        """
        record old 1.1.2.9 sealed 1
        start
        -> ReadView
        view 4 e3 open x1 a1
        -> CasView 4 e3 open x2 a1
        cas done
        -> SendStamp a1 e3x2
        propose a2
        -> CasView 5 e4 moving x2 a1 to a2
        cas done
        -> SendStamp a1 e4x2
        -> SendStamp a2 e4x2
        refused a1 runId
        stamped a2 old
        -> Stop behind
        """
    )


def test_a_restarted_server_without_its_file_is_no_new_beginning() -> None:
    """Rule 17 with a single copy: what came back under the name holds nothing."""
    Script(copies=1).play(
        """
        start
        -> ReadView
        view 4 e3 open x1 a1
        -> CasView 4 e3 open x2 a1
        cas done
        -> SendStamp a1 e3x2
        propose a2
        -> CasView 5 e4 moving x2 a1 to a2
        cas done
        -> SendStamp a1 e4x2
        -> SendStamp a2 e4x2
        refused a1 runId
        stamped a2 none
        -> Stop lost
        """
    )


def test_where_all_have_restarted_one_that_is_empty_does_not_mean_that_all_is_lost() -> None:
    """Every member has the record; what else was in the lost file the copy finds out."""
    Script(copies=1).play(
        """
        record R 1.1.1.5 sealed 3
        start
        -> ReadView
        view 4 e1 open x1 a1 b1
        -> CasView 4 e1 open x2 a1 b1
        cas done
        -> SendStamp a1 e1x2
        -> SendStamp b1 e1x2
        propose a2 b2
        -> CasView 5 e2 moving x2 a1 b1 to a2 b2
        cas done
        -> SendStamp a1 e2x2
        -> SendStamp b1 e2x2
        -> SendStamp a2 e2x2
        -> SendStamp b2 e2x2
        refused a1 runId
        stamped a2 R
        refused b1 runId
        stamped b2 none
        -> CopyObjects 1.1.1.5 from a2
        """
    )


def test_a_member_without_a_record_is_an_error() -> None:
    """Rule 17: never a new beginning."""
    Script().play(
        """
        start
        -> ReadView
        view 4 e1 open x1 a1
        -> CasView 4 e1 open x2 a1
        cas done
        -> SendStamp a1 e1x2
        stamped a1 none
        -> Stop lost
        """
    )


IS_ASKED_AGAIN = """
    uncopied 1.1.1/state/p is nowhere
    -> Notify StateMissing
    wait 1
    tick
    -> CopyObjects 1.1.1.4 from a1
    -> SendStamp a1 e2x2
    -> SendStamp b1 e2x2
    """
"""Where a1, which alone answered, does not have all that is to be copied."""


def test_missing_state_is_waited_for() -> None:
    """The server that holds it may still be starting; its return makes a new view."""
    Script(copies=1).play(
        """
        record R 1.1.1.4 sealed 2 state 1.1.1/state/p
        start
        -> ReadView
        view 4 e1 open x1 a1 b1
        -> CasView 4 e1 open x2 a1 b1
        cas done
        -> SendStamp a1 e1x2
        -> SendStamp b1 e1x2
        propose a1
        -> CasView 5 e2 moving x2 a1 b1 to a1
        cas done
        -> SendStamp a1 e2x2
        -> SendStamp b1 e2x2
        stamped a1 R
        unreachable b1
        -> CopyObjects 1.1.1.4 from a1
        """
    ).play(IS_ASKED_AGAIN).play(
        """
        refused b1 runId
        uncopied 1.1.1/state/p is nowhere
        propose a1 b2
        -> CasView 6 e3 moving x2 a1 b1 to a1 b2
        cas done
        -> SendStamp a1 e3x2
        -> SendStamp b1 e3x2
        -> SendStamp b2 e3x2
        """
    )


LEAVES_UNHEARD = """
    record R 1.1.1.4 sealed 2 state 1.1.1/state/p
    record newer 1.1.1.5 sealed 3 state 1.1.1/state/p
    start
    -> ReadView
    view 4 e2 moving x1 a1 b1 to a1
    -> CasView 4 e2 moving x2 a1 b1 to a1
    cas done
    -> SendStamp a1 e2x2
    -> SendStamp b1 e2x2
    stamped a1 R
    unreachable b1
    -> CopyObjects 1.1.1.4 from a1
    """


def test_a_leaving_server_that_failed_to_answer_once_is_asked_again_for_what_is_missing() -> None:
    """Rules 13 and 15: with its answer record and sources are chosen anew, under a new stamp, so
    that the end of the copy before counts for nothing."""
    Script(copies=1).play(LEAVES_UNHEARD).play(IS_ASKED_AGAIN).play(
        """
        stamped a1 R
        stamped b1 newer
        -> CasView 5 e3 moving x2 a1 b1 to a1
        copied
        cas done
        -> SendStamp a1 e3x2
        -> SendStamp b1 e3x2
        stamped a1 R
        stamped b1 newer
        -> CopyObjects 1.1.1.5 from a1 b1
        copied
        -> SendRecord a1 1.2.3.1 sealed 3 published 3
        ack a1
        -> CasView 6 e3 open x2 a1
        """
    )


def test_a_source_that_falls_silent_in_the_copy_has_the_others_asked_again() -> None:
    """A copy that waits for one source may be made from one that had not answered in time."""
    Script().play(
        """
        record R 1.1.1.4 sealed 2 state 1.1.1/state/p
        start
        -> ReadView
        view 4 e2 moving x1 a1 b1 c1 to a1
        -> CasView 4 e2 moving x2 a1 b1 c1 to a1
        cas done
        -> SendStamp a1 e2x2
        -> SendStamp b1 e2x2
        -> SendStamp c1 e2x2
        stamped a1 R
        stamped b1 R
        unreachable c1
        -> CopyObjects 1.1.1.4 from a1 b1
        unreachable b1
        wait 1
        tick
        -> CopyObjects 1.1.1.4 from a1 b1
        -> SendStamp a1 e2x2
        -> SendStamp b1 e2x2
        -> SendStamp c1 e2x2
        stamped c1 R
        -> CasView 5 e3 moving x2 a1 b1 c1 to a1
        """
    )


def test_a_copy_that_lacks_nothing_does_not_begin_anew_for_a_late_answer() -> None:
    """Who was not heard in time is not waited for (rule 13)."""
    Script(copies=1).play(LEAVES_UNHEARD).play(
        """
        stamped b1 R
        wait 1
        tick
        -> CopyObjects 1.1.1.4 from a1
        -> SendStamp a1 e2x2
        copied
        -> SendRecord a1 1.2.2.1 sealed 2 published 2
        """
    )


def test_who_fails_once_more_to_answer_is_not_asked_for_a_copy_that_lacks_nothing() -> None:
    Script(copies=1).play(LEAVES_UNHEARD).play(
        """
        unreachable b1
        wait 1
        tick
        -> CopyObjects 1.1.1.4 from a1
        -> SendStamp a1 e2x2
        stamped b1 newer
        copied
        -> SendRecord a1 1.2.2.1 sealed 2 published 2
        """
    )


def test_a_copy_that_is_complete_after_all_is_not_made_again_for_a_late_answer() -> None:
    Script(copies=1).play(LEAVES_UNHEARD).play(IS_ASKED_AGAIN).play(
        """
        copied
        -> SendRecord a1 1.2.2.1 sealed 2 published 2
        stamped b1 newer
        ack a1
        -> CasView 5 e2 open x2 a1
        """
    )


def test_one_that_is_to_hold_what_is_copied_is_asked_for_signs_of_life_too() -> None:
    Script().play(
        """
        record R 1.1.1.4 sealed 2
        propose a1 c1
        start
        -> ReadView
        view 4 e2 moving x1 a1 b1 to a1 c1
        -> CasView 4 e2 moving x2 a1 b1 to a1 c1
        cas done
        -> SendStamp a1 e2x2
        -> SendStamp b1 e2x2
        -> SendStamp c1 e2x2
        stamped a1 R
        stamped c1 none
        unreachable b1
        -> CopyObjects 1.1.1.4 from a1
        wait 1
        tick
        -> CopyObjects 1.1.1.4 from a1
        -> SendStamp a1 e2x2
        -> SendStamp c1 e2x2
        """
    )


def test_who_comes_while_the_view_is_stamped_is_taken_in_at_once() -> None:
    """Where servers do not learn before they join."""
    Script().play(
        """
        start
        -> ReadView
        view 4 e1 open x1 a1 b1
        -> CasView 4 e1 open x2 a1 b1
        cas done
        -> SendStamp a1 e1x2
        -> SendStamp b1 e1x2
        propose a1 b1 c1
        -> CasView 5 e2 moving x2 a1 b1 to a1 b1 c1
        """
    )


def test_one_of_several_that_came_back_empty_does_not_stop_those_that_hold_the_state() -> None:
    """Copies 1: it is no source (rule 14); what was on it alone the copy misses and names."""
    Script(copies=1).play(
        """
        record mine 1.1.1.4 sealed 2 state 1.1.1/state/p
        start
        -> ReadView
        view 4 e1 open x1 a1 b1
        -> CasView 4 e1 open x2 a1 b1
        propose a1 b2
        cas done
        -> CasView 5 e2 moving x2 a1 b1 to a1 b2
        cas done
        -> SendStamp a1 e2x2
        -> SendStamp b1 e2x2
        -> SendStamp b2 e2x2
        stamped a1 mine
        refused b1 runId
        stamped b2 none
        -> CopyObjects 1.1.1.4 from a1
        uncopied 1.1.1/state/p is nowhere
        -> Notify StateMissing
        """
    )


def test_a_fenced_driver_ends_and_says_so() -> None:
    """A higher stamp on a server makes it look at the view."""
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
        refused a1 fenced
        -> ReadView
        view 9 e1 open x9 a1
        -> Stop fenced
        """
    )


def test_a_driver_that_waits_looks_up() -> None:
    """A driver without input would never meet a refusal."""
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
        wait 1
        tick
        wait 1
        tick
        wait 1
        tick
        wait 1
        tick
        wait 1
        tick
        -> ReadView
        view 9 e1 open x9 a1
        -> Stop fenced
        """
    )


def test_a_late_answer_from_before_the_creation_is_no_loss() -> None:
    """Only a view that stays away is gone."""
    Script().play(
        """
        start
        -> ReadView
        propose a1
        -> ReadView
        view none
        -> CasView 0 e1 creating x1 a1
        cas done
        -> SendStamp a1 e1x1
        view none
        -> ReadView
        stamped a1 none
        -> SendRecord a1 1.1.1.1 sealed 0 published 0
        ack a1
        -> CasView 1 e1 open x1 a1
        cas done
        -> Notify DriverRecovered
        -> FenceSinks x1
        -> Plan behind {}
        view none
        -> ReadView
        view none
        -> ReadView
        view none
        -> ReadView
        view none
        -> Stop failed
        """
    )
