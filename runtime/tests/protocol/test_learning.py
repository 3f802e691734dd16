"""Servers that are to join learn the objects beside the windows, and are believed in nothing."""

from __future__ import annotations

from dataclasses import replace

from machine_script import Script, describe, member, stamp

from millrace.protocol import events as e
from millrace.protocol.driver import Driver
from millrace.protocol.membership import Standing
from millrace.protocol.suspicion import PATIENCE, PROOF, TRIES

OPENED = """
    record R 1.1.1.5 sealed 3
    propose a1 b1
    start
    -> ReadView
    view 4 e1 open x1 a1 b1
    -> CasView 4 e1 open x2 a1 b1
    cas done
    -> SendStamp a1 e1x2
    -> SendStamp b1 e1x2
    stamped a1 R
    stamped b1 R
    -> CopyObjects 1.1.1.5 from a1 b1
    copied
    -> SendRecord a1 1.2.1.1 sealed 3 published 3
    -> SendRecord b1 1.2.1.1 sealed 3 published 3
    ack a1
    ack b1
    -> Notify DriverRecovered
    -> FenceSinks x2
    -> Plan behind {}
    fenced
    """

WINDOW = """
    planned 4
    -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+4
    -> SendRecord b1 1.2.1.2 sealed 3 published 3, open 4: 0+4
    """

JOINED = """
    propose a1 b1 c1
    -> SendStamp c1 e1x2
    stamped c1 none
    -> CopyObjects 1.2.1.1 from a1 b1
    copied
    -> CasView 5 e2 moving x2 a1 b1 to a1 b1 c1
    cas done
    -> SendStamp a1 e2x2
    -> SendStamp b1 e2x2
    -> SendStamp c1 e2x2
    stamped a1 R
    stamped b1 R
    stamped c1 none
    -> CopyObjects 1.2.1.1 from a1 b1
    """
"""What ``OPENED`` goes on with where a third server joins, up to the copies that it lacks."""


def script() -> Script:
    """A run whose servers learn before others join or leave."""
    return unopened().play(OPENED)


def unopened() -> Script:
    found = Script()
    before = found.machine
    settings = replace(before.settings, learners=True)
    found.machine = Driver(settings, before.membership.owners, lambda piece, index: index)
    return found


def test_windows_go_on_while_a_server_learns() -> None:
    found = script().play(
        """
        propose a1 b1 c1
        -> SendStamp c1 e1x2
        stamped c1 none
        -> CopyObjects 1.2.1.1 from a1 b1
        """
    )
    copy = found.actions[-1]
    assert isinstance(copy, e.CopyObjects)
    assert copy.learning
    assert [m.name for m in copy.view.target] == ["a", "b", "c"]
    # Records go to the members alone, and a window begins as if nothing were to come.
    found.play(WINDOW)
    found.tell("ack a1", "ack b1")
    assert found.machine.windows.attempt is not None
    # It makes nothing anew that is being learned.
    [run] = [action for action in found.actions if isinstance(action, e.Run)]
    assert run.plan.learning
    found.play("copied")
    assert found.machine.membership.standing.value == "recovered", "not within a window"


def test_what_is_learned_is_not_asked_for_again_while_a_window_runs() -> None:
    found = script()
    found.tell("propose a1 b1 c1", "stamped c1 none")
    found.play(WINDOW)
    found.tell("ack a1", "ack b1", "copied")
    begin = len(found.actions)
    found.tell("wait 1", "tick", "stamped a1 R", "stamped b1 R", "wait 1", "tick")
    after = found.actions[begin:]
    assert not any(isinstance(action, e.CopyObjects) for action in after)
    asked = {str(describe(action)) for action in after if isinstance(action, e.SendStamp)}
    assert asked == {"SendStamp a1 e1x2", "SendStamp b1 e1x2"}
    assert found.machine.membership.prepared()


def test_a_stamp_of_another_view_makes_no_learner_ready() -> None:
    script().play(
        """
        propose a1 b1 c1
        -> SendStamp c1 e1x2
        stamped c1 none e1x1
        stamped c1 none e2x2
        stamped c1 none
        -> CopyObjects 1.2.1.1 from a1 b1
        """
    )


def test_a_lesson_that_was_broken_off_is_not_learned_with_its_late_end() -> None:
    """Meanwhile windows write without regard to it."""
    script().play(
        """
        propose a1 b1 c1
        -> SendStamp c1 e1x2
        stamped c1 none
        -> CopyObjects 1.2.1.1 from a1 b1
        propose a1 b1
        wait 1
        tick
        -> SendStamp c1 e1x2
        copied
        propose a1 b1 c1
        -> CopyObjects 1.2.1.1 from a1 b1
        """
    )


def test_servers_that_have_room_again_are_told_in_order() -> None:
    found = script()
    names = "cdefgh"
    found.tell(" ".join(["propose a1 b1", *(f"{name}1" for name in names)]))
    found.tell(*(f"stamped {name}1 none" for name in names))
    found.tell(*(f"nospace {name} is full" for name in reversed(names)))
    begin = len(found.actions)
    found.tell("copied")
    back = [action.server for action in found.actions[begin:] if isinstance(action, e.Notify)]
    assert back == list(names)


def test_what_was_learned_is_copied_again_where_it_lacks() -> None:
    script().play(JOINED)


def test_a_copy_that_fails_is_left_to_the_view_that_moves() -> None:
    script().play(
        """
        propose a1 b1 c1
        -> SendStamp c1 e1x2
        stamped c1 none
        -> CopyObjects 1.2.1.1 from a1 b1
        uncopied c is full
        -> CasView 5 e2 moving x2 a1 b1 to a1 b1 c1
        """
    )


def test_one_that_has_no_room_does_not_join_and_windows_go_on() -> None:
    found = script().play(
        """
        propose a1 b1 c1
        -> SendStamp c1 e1x2
        stamped c1 none
        -> CopyObjects 1.2.1.1 from a1 b1
        nospace c is full
        -> Notify StateServerFull
        """
    )
    told = found.actions[-1]
    assert isinstance(told, e.Notify)
    assert told.text == (
        "c is full; windows go on, and the state servers stay as they are until then"
    )
    found.play(WINDOW)
    found.tell("ack a1", "ack b1")
    assert found.machine.windows.attempt is not None
    # It is asked for again with the next tick, and told once.
    copies = [isinstance(action, e.CopyObjects) for action in found.actions]
    found.tell("wait 1", "tick")
    again = [isinstance(action, e.CopyObjects) for action in found.actions]
    assert again.count(True) == copies.count(True) + 1
    found.play("nospace c is full")
    assert not found.machine.membership.prepared()
    found.tell("wait 1", "tick")
    found.play("copied\n-> Notify StateServerBack")
    assert found.machine.membership.prepared()


def test_a_server_that_dies_is_replaced_at_once() -> None:
    """Nobody waits for a lesson where a copy is lost."""
    script().play(
        """
        propose a1 b1 c1
        -> SendStamp c1 e1x2
        propose a1 c1
        -> CasView 5 e2 moving x2 a1 b1 to a1 c1
        """
    )


def test_others_that_are_to_come_begin_anew() -> None:
    script().play(
        """
        propose a1 b1 c1
        -> SendStamp c1 e1x2
        propose a1 b1 c2
        -> SendStamp c2 e1x2
        stamped c1 none
        stamped c2 none
        -> CopyObjects 1.2.1.1 from a1 b1
        """
    )


def test_an_answer_that_was_for_others_teaches_nobody() -> None:
    """Both lessons have the stamp of the open view."""
    found = script().play(
        """
        propose a1 b1 c1
        -> SendStamp c1 e1x2
        stamped c1 none
        -> CopyObjects 1.2.1.1 from a1 b1
        """
    )
    first = found.actions[-1]
    assert isinstance(first, e.CopyObjects)
    found.play(
        """
        propose a1 b1 c1 d1
        -> SendStamp c1 e1x2
        -> SendStamp d1 e1x2
        stamped c1 none
        stamped d1 none
        -> CopyObjects 1.2.1.1 from a1 b1
        """
    )
    for answer in (
        e.Copied(first.stamp, first.view),
        e.CopyFailed(first.stamp, "gone", planned=first.view),
        e.Copied(first.stamp),
    ):
        assert found.machine.handle(answer, 0.0) == []
        assert not found.machine.membership.prepared()
    found.play("copied\n-> CasView 5 e2 moving x2 a1 b1 to a1 b1 c1 d1")


def test_nothing_is_learned_where_a_server_is_gone() -> None:
    script().play("propose a1\n-> CasView 5 e2 moving x2 a1 b1 to a1")


LESSON = """
    propose a1 leaving b1
    -> CopyObjects 1.2.1.1 from a1 b1
    """


def test_windows_go_on_while_others_learn_what_one_leaves() -> None:
    found = script().play(LESSON)
    copy = found.actions[-1]
    assert isinstance(copy, e.CopyObjects)
    assert copy.learning
    assert [m.name for m in copy.view.target] == ["a"]
    assert copy.view.owners == (("a",), ("a",))
    # The one that leaves is a member like the other until then: it takes records and windows.
    found.play(WINDOW)
    found.tell("ack a1", "ack b1")
    assert found.machine.windows.attempt is not None
    found.play("copied")
    assert found.machine.membership.standing.value == "recovered", "not within a window"


def test_the_view_moves_between_windows_and_copies_what_was_written_since() -> None:
    script().play(LESSON).play(
        """
        copied
        -> CasView 5 e2 moving x2 a1 b1 to a1
        cas done
        -> SendStamp a1 e2x2
        -> SendStamp b1 e2x2
        stamped a1 R
        stamped b1 R
        -> CopyObjects 1.2.1.1 from a1 b1
        """
    )


def test_nobody_leaves_while_another_has_no_room_for_what_it_holds() -> None:
    found = script().play(LESSON)
    found.play("nospace a is full\n-> Notify StateServerFull")
    found.play(WINDOW)
    found.tell("ack a1", "ack b1")
    assert found.machine.windows.attempt is not None
    before = sum(isinstance(action, e.CopyObjects) for action in found.actions)
    found.tell("wait 1", "tick")
    assert sum(isinstance(action, e.CopyObjects) for action in found.actions) == before + 1
    found.play("copied\n-> Notify StateServerBack")
    assert found.machine.membership.prepared()


def test_one_that_dies_on_its_leave_is_gone_at_once() -> None:
    script().play(LESSON).play("propose a1\n-> CasView 5 e2 moving x2 a1 b1 to a1")


def test_one_that_falls_silent_on_its_leave_is_not_waited_for() -> None:
    found = script().play(LESSON)
    found.play(WINDOW)
    found.tell("ack a1", "ack b1")
    for _ in range(PATIENCE + 1):
        found.tell("wait 1", "tick", "stamped a1 R")
    assert any(str(describe(a)).startswith("CasView 5 e2 moving") for a in found.actions)


def test_others_that_come_while_one_leaves_begin_the_lesson_anew() -> None:
    found = (
        script()
        .play(LESSON)
        .play(
            """
        propose a1 c1 leaving b1
        -> SendStamp c1 e1x2
        stamped c1 none
        -> CopyObjects 1.2.1.1 from a1 b1
        copied
        -> CasView 5 e2 moving x2 a1 b1 to a1 c1
        """
        )
    )
    assert not any(str(describe(a)) == "CasView 5 e2 moving x2 a1 b1 to a1" for a in found.actions)


def test_one_that_is_to_stay_after_all_stays() -> None:
    found = script().play(LESSON)
    found.play("propose a1 b1\ncopied")
    found.tell("wait 1", "tick")
    assert not any(str(describe(a)).startswith("CasView 5") for a in found.actions)


def test_a_driver_that_starts_meanwhile_opens_first_and_has_it_learned_again() -> None:
    opened = OPENED.replace("propose a1 b1", "propose a1 leaving b1")
    planned = "-> Plan behind {}"
    copied = "-> CopyObjects 1.2.1.1 from a1 b1"
    opened = opened.replace(planned, f"{copied}\n    {planned}")
    unopened().play(opened)


def test_one_that_is_to_leave_stays_while_one_that_stays_is_silent() -> None:
    """There are to be two copies, and without it there would be one."""
    found = script()
    found.play(JOINED)
    found.tell("copied", "ack a1", "ack b1", "ack c1", "cas done", "fenced")
    assert found.machine.membership.standing.value == "recovered"
    found.tell("propose a1 b1 leaving c1")
    for _ in range(PATIENCE):
        found.machine.membership.suspicion.asked([e.SendStamp(member("b1"), stamp("e2x2"))])
        found.tell("wait 1", "tick")
    assert [m.name for m in found.machine.membership.wanted()] == ["a", "c"]
    moved = [str(describe(a)) for a in found.actions if isinstance(a, e.CasView)]
    assert moved[-1] == "CasView 7 e3 moving x2 a1 b1 c1 to a1 c1"


def test_a_view_that_goes_on_without_one_takes_it_back_where_another_falls_silent() -> None:
    found = script()
    found.play(JOINED)
    found.tell("copied", "ack a1", "ack b1", "ack c1", "cas done", "fenced")
    found.tell("propose a1 b1 leaving c1", "copied", "cas done", "stamped a1 R", "stamped c1 R")
    moved = [str(describe(a)) for a in found.actions if isinstance(a, e.CasView)]
    assert moved[-1] == "CasView 7 e3 moving x2 a1 b1 c1 to a1 b1"
    for _ in range(PATIENCE):
        found.machine.membership.suspicion.asked([e.SendStamp(member("b1"), stamp("e3x2"))])
        found.tell("wait 1", "tick")
    moved = [str(describe(a)) for a in found.actions if isinstance(a, e.CasView)]
    assert moved[-1] == "CasView 8 e4 moving x2 a1 b1 c1 to a1 c1"


def test_what_is_under_way_is_sent_again_and_silence_ends_it() -> None:
    found = script()
    found.play("propose a1 b1 c1\n-> SendStamp c1 e1x2")
    found.play(
        "wait 1\ntick\n-> SendStamp c1 e1x2\nstamped c1 none\n-> CopyObjects 1.2.1.1 from a1 b1"
    )
    found.play("wait 1\ntick\n-> SendStamp c1 e1x2\n-> CopyObjects 1.2.1.1 from a1 b1")
    for _ in range(PATIENCE):
        found.tell("wait 1", "tick")
    assert [m.name for m in found.machine.membership.wanted()] == ["a", "b"]
    assert not any(str(describe(a)).startswith("CasView 5") for a in found.actions)


def broken_off(found: Script, name: str, ticks: int) -> None:
    """So many ticks in which a server answers stamps, and a copy breaks off because of it."""
    for _ in range(ticks):
        found.tell("wait 1", "tick", f"stamped {name} none", f"unreachable {name}")


def left_out(found: Script) -> list[str]:
    told = [a for a in found.actions if isinstance(a, e.Notify)]
    return [a.text for a in told if a.kind == "StateServerLeftOut"]


def test_one_that_answers_and_takes_nothing_is_given_up_and_the_user_told() -> None:
    found = script()
    found.tell("propose a1 b1 c1", "stamped c1 none")
    broken_off(found, "c1", TRIES)
    assert left_out(found) == []
    found.tell("wait 1", "tick")
    [text] = left_out(found)
    assert text.startswith("state server c is to join and answers, but has taken no objects")
    assert [m.name for m in found.machine.membership.wanted()] == ["a", "b"]
    # After a while it is tried again, and waits longer if that is in vain.
    found.tell(*["wait 1", "tick", "stamped c1 none"] * (PROOF + 1))
    assert [m.name for m in found.machine.membership.wanted()] == ["a", "b", "c"]
    broken_off(found, "c1", TRIES)
    found.tell(*["wait 1", "tick", "stamped c1 none"] * (PROOF + 1))
    assert len(left_out(found)) == 2
    assert [m.name for m in found.machine.membership.wanted()] == ["a", "b"]


def test_one_that_takes_objects_at_times_is_not_given_up() -> None:
    found = script()
    found.tell("propose a1 b1 c1", "stamped c1 none")
    broken_off(found, "c1", TRIES - 1)
    found.machine.membership.suspicion.copied()
    broken_off(found, "c1", TRIES)
    assert left_out(found) == []


def test_one_whose_copy_would_be_missing_does_not_leave() -> None:
    """Of a and b one is to stay, and there are to be two copies: c should have had the other."""
    found = script()
    found.tell("propose a1 c1 leaving b1", "stamped c1 none")
    broken_off(found, "c1", TRIES)
    found.tell("wait 1", "tick", "copied")
    assert len(left_out(found)) == 1
    assert [m.name for m in found.machine.membership.wanted()] == ["a", "b"]
    assert not any(str(describe(a)).startswith("CasView 5") for a in found.actions)
    # Nobody is to come or to leave now, so that nobody learns.
    begin = len(found.actions)
    found.tell("wait 1", "tick")
    assert not any(isinstance(action, e.CopyObjects) for action in found.actions[begin:])


def test_one_leaves_where_enough_others_stay() -> None:
    found = script()
    found.tell("propose a1 b1 d1 leaving", "stamped d1 none", "copied", "cas done")
    found.tell("stamped a1 R", "stamped b1 R", "stamped d1 none", "copied")
    found.tell("ack a1", "ack b1", "ack d1", "cas done", "fenced")
    assert found.machine.membership.standing.value == "recovered"
    found.tell("propose a1 d1 c1 leaving b1", "stamped c1 none")
    broken_off(found, "c1", TRIES)
    found.tell("wait 1", "tick")
    assert [m.name for m in found.machine.membership.wanted()] == ["a", "d"]
    found.tell("copied")
    moved = [str(describe(a)) for a in found.actions if isinstance(a, e.CasView)]
    assert moved[-1] == "CasView 7 e3 moving x2 a1 b1 d1 to a1 d1"


def test_a_view_that_moves_goes_on_without_one_that_takes_nothing() -> None:
    """A member has died, so that windows wait for the copies."""
    found = script()
    found.tell("propose a1 c1", "cas done", "stamped a1 R", "stamped c1 none", "unreachable b1")
    assert found.machine.membership.standing.value == "copying"
    broken_off(found, "c1", TRIES)
    found.tell("wait 1", "tick")
    assert len(left_out(found)) == 1
    moved = [str(describe(a)) for a in found.actions if isinstance(a, e.CasView)]
    assert moved[-1] == "CasView 6 e3 moving x2 a1 b1 to a1"


def test_one_that_takes_nothing_and_may_hold_what_nobody_else_does_is_waited_for() -> None:
    """With one copy, one that has come back on its file is the only one there is."""
    found = Script(copies=1)
    found.play(OPENED)
    found.tell("propose a1 b2", "cas done", "stamped a1 R", "stamped b2 R", "unreachable b1")
    assert found.machine.membership.standing.value == "copying"
    broken_off(found, "b2", 2 * TRIES)
    assert left_out(found) == []
    moved = [str(describe(a)) for a in found.actions if isinstance(a, e.CasView)]
    assert moved[-1] == "CasView 5 e2 moving x2 a1 b1 to a1 b2"


def test_windows_write_bases_again_while_a_learner_has_no_room() -> None:
    """That may last for ever; what it lacks by then it learns once it has room."""
    found = script()
    found.tell("propose a1 b1 c1", "stamped c1 none", "nospace c is full")
    found.play(WINDOW)
    found.tell("ack a1", "ack b1")
    [run] = [action for action in found.actions if isinstance(action, e.Run)]
    assert not run.plan.learning
    found.tell("wait 1", "tick", "stamped c1 none", "copied")
    assert found.machine.membership.prepared()
    assert found.machine.membership.learning


def test_nobody_leaves_as_long_as_there_is_none_to_leave_anything_to() -> None:
    found = script()
    found.tell("propose c1 leaving a1 b1")
    for _ in range(2 * PATIENCE):
        found.tell("wait 1", "tick")
    assert [m.name for m in found.machine.membership.wanted()] == ["a", "b"]
    assert not any(str(describe(a)).startswith("CasView 5") for a in found.actions)


def test_windows_write_bases_again_once_nobody_is_to_join_any_more() -> None:
    found = script()
    found.tell("propose a1 b1 c1", "stamped c1 none", "propose a1 b1")
    found.play(WINDOW)
    found.tell("ack a1", "ack b1")
    [run] = [action for action in found.actions if isinstance(action, e.Run)]
    assert not run.plan.learning


def test_one_that_is_proposed_stays_whatever_else_is_said_of_it() -> None:
    found = script()
    found.tell("propose a1 b1 c1 leaving b1", "stamped c1 none")
    copy = found.actions[-1]
    assert isinstance(copy, e.CopyObjects)
    assert [m.name for m in copy.view.target] == ["a", "b", "c"]


def single() -> Script:
    """As ``script``, with one copy of everything."""
    found = Script(copies=1)
    settings = replace(found.machine.settings, learners=True)
    found.machine = Driver(settings, found.machine.membership.owners, lambda piece, index: index)
    return found.play(OPENED)


def silent_b(found: Script) -> None:
    """One of two members does not answer to a record for too long; with one copy it is kept."""
    found.play(WINDOW)
    found.tell("ack a1", *["wait 1", "tick"] * (PATIENCE + 1))
    assert found.machine.membership.suspicion.silent(member("b1"))
    assert found.machine.membership.standing is Standing.RECOVERED


def test_the_only_copy_that_falls_silent_on_its_leave_is_asked_for_by_the_view_that_moves() -> None:
    found = single()
    silent_b(found)
    found.tell("propose a1 leaving b1")
    assert describe(found.actions[-1]) == "CasView 5 e2 moving x2 a1 b1 to a1"


def test_who_is_silent_teaches_nobody() -> None:
    found = single()
    silent_b(found)
    found.play(
        """
        propose a1 b1 c1
        -> SendStamp c1 e1x2
        stamped c1 none
        -> CopyObjects 1.2.1.1 from a1
        """
    )


def test_what_was_answered_before_the_view_opened_is_not_at_hand() -> None:
    """With one copy: c is silent, and was to join. That b answered once does not make c needless
    now that b is gone; only the view that moves finds out."""
    found = single()
    found.tell("propose a1 b1 c1", *["wait 1", "tick"] * (PATIENCE + 1))
    assert found.machine.membership.suspicion.silent(member("c1"))
    found.tell("propose a1 c1")
    assert describe(found.actions[-1]) == "CasView 5 e2 moving x2 a1 b1 to a1 c1"


def test_an_open_view_is_opened_before_others_learn_to_join_it() -> None:
    found = unopened()
    found.tell("record R 1.1.1.5 sealed 3", "start", "view 4 e1 open x1 a1 b1", "cas done")
    found.play(
        """
        propose a1 b1 c1
        stamped a1 R
        stamped b1 R
        -> CopyObjects 1.1.1.5 from a1 b1
        """
    )
    found.tell("copied", "ack a1", "ack b1")
    assert found.machine.membership.standing is Standing.RECOVERED
    assert "-> SendStamp c1 e1x2" in found.transcript


def test_a_moving_view_is_gone_on_with_before_anybody_is_proposed() -> None:
    unopened().play(
        """
        start
        -> ReadView
        view 4 e2 moving x1 a1 to a1 b1
        -> CasView 4 e2 moving x2 a1 to a1 b1
        cas done
        -> SendStamp a1 e2x2
        -> SendStamp b1 e2x2
        wait 1
        tick
        -> SendStamp a1 e2x2
        -> SendStamp b1 e2x2
        """
    )


def test_where_nobody_is_to_hold_more_all_are_prepared() -> None:
    assert script().machine.membership.prepared()


def test_others_that_come_when_one_has_learned_learn_too() -> None:
    """A window runs, so that the view has not moved yet."""
    found = script()
    found.tell("propose a1 b1 c1", "stamped c1 none")
    found.play(WINDOW)
    found.tell("ack a1", "ack b1", "copied")
    assert found.machine.membership.prepared()
    found.play(
        """
        propose a1 b1 c1 d1
        -> SendStamp c1 e1x2
        -> SendStamp d1 e1x2
        """
    )
    assert not found.machine.membership.prepared()


def test_nobody_leaves_in_haste_where_another_one_dies() -> None:
    found = script()
    found.play(JOINED)
    found.tell("copied", "ack a1", "ack b1", "ack c1", "cas done", "fenced")
    found.play("propose a1 b1 leaving c1\n-> CopyObjects 1.2.2.2 from a1 b1 c1")
    found.play("propose a1 leaving c1\n-> CasView 7 e3 moving x2 a1 b1 c1 to a1 c1")


def test_a_lesson_ends_with_the_view_that_it_was_for() -> None:
    found = script()
    found.tell("propose a1 b1 c1", "propose a1 c1", "cas done", "stamped a1 R", "stamped c1 none")
    found.tell("unreachable b1", "copied", "ack a1", "ack c1", "cas done", "fenced")
    assert found.machine.membership.standing is Standing.RECOVERED
    begin = len(found.actions)
    found.tell("wait 1", "tick", "wait 1", "tick")
    assert not any(isinstance(action, e.SendStamp) for action in found.actions[begin:])


def test_one_that_is_full_is_not_given_up() -> None:
    """Its user is told that it has no room, and it joins once it has."""
    found = script()
    found.tell("propose a1 b1 c1", "stamped c1 none")
    for _ in range(2 * TRIES):
        found.tell("wait 1", "tick", "stamped c1 none", "full c1")
    assert left_out(found) == []


def test_one_to_which_nothing_is_copied_yet_is_not_given_up() -> None:
    """Another one has not been stamped."""
    found = script()
    found.tell("propose a1 b1 c1 d1", "stamped c1 none")
    broken_off(found, "c1", TRIES + 1)
    assert not any(a.learning for a in found.actions if isinstance(a, e.CopyObjects))
    assert left_out(found) == []


def test_a_member_that_others_learn_from_is_not_given_up() -> None:
    found = script()
    found.tell("propose a1 b1 c1", "stamped c1 none")
    for _ in range(TRIES + 2):
        found.tell("wait 1", "tick", "stamped c1 none", "stamped a1 R", "unreachable a1")
    assert left_out(found) == []


COPYING = ("propose a1 c1", "cas done", "stamped a1 R", "stamped c1 none", "unreachable b1")
"""A member has died, and what it held is copied to one that joins."""


def test_one_that_takes_no_record_is_waited_for_as_long_as_it_answers() -> None:
    found = script()
    found.tell(*COPYING, "copied")
    assert found.machine.membership.standing is Standing.WRITING
    broken_off(found, "c1", TRIES + 2)
    assert left_out(found) == []


def test_one_that_is_on_trial_is_not_given_up_for_what_is_copied_to_others() -> None:
    found = script()
    found.machine.membership.suspicion.settle([member("d1")], [])
    found.tell("propose a1 c1 d1", *COPYING[1:])
    assert found.machine.membership.standing is Standing.COPYING
    assert [m.name for m in found.machine.membership.view.target] == ["a", "c"]
    broken_off(found, "d1", TRIES + 1)
    assert left_out(found) == []


def test_copies_that_end_between_others_that_break_off_count() -> None:
    found = script()
    found.tell(*COPYING)
    broken_off(found, "c1", TRIES - 1)
    found.tell("copied", "propose a1 c1 d1", "cas done")
    found.tell("stamped a1 R", "stamped c1 none", "stamped d1 none", "unreachable b1")
    assert found.machine.membership.standing is Standing.COPYING
    broken_off(found, "c1", TRIES - 1)
    found.tell("wait 1", "tick")
    assert left_out(found) == []


def test_lessons_that_end_between_others_that_break_off_count() -> None:
    found = script()
    found.tell("propose a1 b1 c1", "stamped c1 none")
    found.play(WINDOW)
    found.tell("ack a1", "ack b1")
    for proposed in ("propose a1 b1 c1 d1", "propose a1 b1 c1"):
        for _ in range(TRIES - 1):
            found.tell("wait 1", "tick", "stamped a1 R", "stamped b1 R")
            found.tell("stamped c1 none", "unreachable c1")
        found.tell("copied", proposed, "stamped c1 none", "stamped d1 none")
    assert left_out(found) == []


def test_a_copy_for_which_another_one_has_no_room_is_no_end() -> None:
    found = script()
    found.tell("propose a1 b1 c1 d1", "stamped c1 none", "stamped d1 none")
    broken_off(found, "c1", TRIES - 1)
    found.tell("nospace d is full", "stamped d1 none")
    broken_off(found, "c1", 1)
    found.tell("wait 1", "tick")
    assert len(left_out(found)) == 1


def with_other_copies(there: int, asked: int) -> Script:
    """A driver that an edit has started, under the view of the one before."""
    found = Script(copies=asked)
    settings = replace(found.machine.settings, learners=True)
    found.machine = Driver(settings, found.machine.membership.owners, lambda piece, index: index)
    found.copies = there
    return found


MORE = """
    copied
    -> CasView 5 e2 moving x2 a1 b1
    cas done
    -> SendStamp a1 e2x2
    -> SendStamp b1 e2x2
    stamped a1 R
    stamped b1 R
    -> CopyObjects 1.2.1.1 from a1 b1
    """


def test_more_copies_are_learned_beside_windows_and_count_once_a_view_has_them() -> None:
    found = with_other_copies(1, 2)
    learns = "-> FenceSinks x2\n    -> CopyObjects 1.2.1.1 from a1 b1"
    found.play(OPENED.replace("-> FenceSinks x2", learns))
    membership = found.machine.membership
    [lesson] = [a for a in found.actions if isinstance(a, e.CopyObjects) and a.learning]
    assert lesson.view.owners == (("a", "b"), ("a", "b"))
    assert membership.held == 1, "there is one copy of each until the view has moved"
    found.play(MORE)
    moving = membership.view
    assert moving is not None
    assert (moving.owners, moving.copies) == (lesson.view.owners, 1)
    assert membership.held == 1
    found.tell("copied", "ack a1", "ack b1", "cas done")
    assert membership.standing is Standing.RECOVERED
    assert membership.view is not None
    assert (membership.view.copies, membership.held) == (0, 2)
    assert not membership.view_changed()


def test_who_holds_the_only_copies_is_waited_for_though_an_edit_asks_for_more() -> None:
    found = with_other_copies(1, 2)
    learns = "-> FenceSinks x2\n    -> CopyObjects 1.2.1.1 from a1 b1"
    found.play(OPENED.replace("-> FenceSinks x2", learns))
    found.tell("planned 4")
    for _ in range(2 * PATIENCE):
        found.tell("wait 1", "tick", "stamped a1 R")
    membership = found.machine.membership
    assert membership.suspicion.silent(member("b1"))
    assert not membership.member_gone()
    assert membership.standing is Standing.RECOVERED


def test_fewer_copies_need_no_lesson() -> None:
    found = with_other_copies(2, 1)
    found.tell(
        *("record R 1.1.1.5 sealed 3", "propose a1 b1", "start", "view 4 e1 open x1 a1 b1"),
        *("cas done", "stamped a1 R", "stamped b1 R", "copied", "ack a1", "ack b1"),
    )
    membership = found.machine.membership
    assert membership.held == 2, "a server may be lost until the view has moved"
    found.tell("fenced", "copied", "cas done", "stamped a1 R", "stamped b1 R", "copied")
    assert membership.view is not None
    assert membership.view.copies == 2
    found.tell("ack a1", "ack b1", "cas done")
    assert (membership.standing, membership.held) == (Standing.RECOVERED, 1)
    assert all(len(owners) == 1 for owners in membership.view.owners)
