"""A server that runs and does not answer the driver is left out of the view, and let in again."""

from __future__ import annotations

from pathlib import Path

import pytest
from machine_script import Script, describe, member, stamp

from millrace.protocol import events as e
from millrace.protocol.driver import RESEND_S
from millrace.protocol.membership import Standing
from millrace.protocol.server import Reason
from millrace.protocol.suspicion import MOST_PROOF, PATIENCE, PROOF, TRIES, Suspicion
from millrace.protocol.types import Member

THREE = """
    record R 1.1.1.5 sealed 3
    propose a1 b1 c1
    start
    -> ReadView
    view 4 e1 open x1 a1 b1 c1
    -> CasView 4 e1 open x2 a1 b1 c1
    cas done
    -> SendStamp a1 e1x2
    -> SendStamp b1 e1x2
    -> SendStamp c1 e1x2
    """

OPENED = """
    stamped a1 R
    stamped b1 R
    stamped c1 R
    -> CopyObjects 1.1.1.5 from a1 b1 c1
    copied
    -> SendRecord a1 1.2.1.1 sealed 3 published 3
    -> SendRecord b1 1.2.1.1 sealed 3 published 3
    -> SendRecord c1 1.2.1.1 sealed 3 published 3
    ack a1
    ack b1
    ack c1
    -> Notify DriverRecovered
    -> FenceSinks x2
    -> Plan behind {}
    fenced
    """

SEALING = """
    planned 4
    -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+4
    -> SendRecord b1 1.2.1.2 sealed 3 published 3, open 4: 0+4
    -> SendRecord c1 1.2.1.2 sealed 3 published 3, open 4: 0+4
    """


def asked(script: Script, ticks: int, *answering: str, anew: str = "") -> list[str]:
    """Ticks in which these members answer each stamp at once, and another life of ``anew`` refuses
    what that is asked; what the machine did besides."""
    found: list[str] = []
    for _ in range(ticks):
        begin = len(script.actions)
        script.tell("wait 1", "tick")
        for action in script.actions[begin:]:
            if not isinstance(action, e.SendStamp | e.SendRecord):
                continue
            name = str(describe(action)).split()[1]
            event: e.Event | None = None
            if name == anew:
                stamped = script.machine.membership.stamp
                event = e.Refused(action.member, stamped, Reason.RUN_ID.value)
            elif isinstance(action, e.SendStamp) and name in answering:
                event = e.Stamped(action.member, action.stamp, script.records["R"])
            if event is not None:
                script.actions += script.machine.handle(event, script.now_s)
        found += [
            describe(action)
            for action in script.actions[begin:]
            if not isinstance(action, e.SendStamp | e.SendRecord | e.ReadView | e.Wake)
        ]
    return [text for text in found if text]


def test_a_server_that_owes_an_answer_to_a_seal_is_left_out() -> None:
    """Rule 10: never a subset, but another view; the window runs again under it."""
    script = Script().play(THREE).play(OPENED).play(SEALING)
    script.play("ack a1\nack b1")
    assert asked(script, PATIENCE - 1, "a1", "b1") == []
    assert asked(script, 1, "a1", "b1") == [
        "Notify StateServerLeftOut",
        "CasView 5 e2 moving x2 a1 b1 c1 to a1 b1",
    ]
    script.play(
        """
        cas done
        -> SendStamp a1 e2x2
        -> SendStamp b1 e2x2
        -> SendStamp c1 e2x2
        stamped a1 R
        stamped b1 R
        """
    )
    # Nothing was heard of it for long enough: nobody waits for it as a source either.
    assert asked(script, 1) == ["CopyObjects 1.2.1.2 from a1 b1"]


def test_a_server_that_hangs_while_an_attempt_runs_is_left_out_soon() -> None:
    """Its tasks wait for a server that hangs, each for the time of an answer: it is asked beside
    them, and what runs is given up."""
    script = Script().play(THREE).play(OPENED).play(SEALING)
    script.play(
        """
        ack a1
        ack b1
        ack c1
        -> Run 1 of 4: 0+4
        -> Plan behind {'s': 4}
        """
    )
    assert asked(script, 2 * PATIENCE, "a1", "b1", "c1") == []
    # The first question is none that it owes an answer to for long.
    assert asked(script, PATIENCE, "a1", "b1") == []
    assert asked(script, 1, "a1", "b1") == [
        "Cancel 1 of 4",
        "Notify StateServerLeftOut",
        "CasView 5 e2 moving x2 a1 b1 c1 to a1 b1",
    ]


def test_a_server_that_was_started_anew_unseen_by_the_operator_is_left_out() -> None:
    """A refusal is no answer of the life that a seal waits for."""
    script = Script().play(THREE).play(OPENED).play(SEALING)
    script.play("ack a1\nack b1\nrefused c1 runId\n-> Notify StateServerAway")
    assert asked(script, PATIENCE - 1, "a1", "b1", anew="c1") == []
    assert asked(script, 1, "a1", "b1", anew="c1") == [
        "Notify StateServerLeftOut",
        "CasView 5 e2 moving x2 a1 b1 c1 to a1 b1",
    ]
    script.tell("cas done", "stamped a1 R", "stamped b1 R", "refused c1 runId", "copied")
    script.tell("ack a1", "ack b1", "cas done")
    assert script.machine.membership.standing is Standing.RECOVERED
    assert not any("CasView" in one for one in asked(script, 2 * PROOF, "a1", "b1", anew="c1"))


def test_its_new_life_is_let_in_once_it_is_proposed_and_has_answered_for_a_while() -> None:
    script = Script().play(THREE).play(OPENED).play(SEALING)
    script.tell("ack a1", "ack b1", "refused c1 runId")
    asked(script, PATIENCE, "a1", "b1", anew="c1")
    script.tell("cas done", "stamped a1 R", "stamped b1 R", "refused c1 runId", "copied")
    script.tell("ack a1", "ack b1", "cas done", "propose a1 b1 c2")
    asked(script, PROOF + 1, "a1", "b1", "c2")
    script.tell("died member")
    moves = [one for one in map(describe, script.actions) if one and "CasView" in one]
    assert moves[-1] == "CasView 7 e3 moving x2 a1 b1 to a1 b1 c2"


def test_a_driver_that_starts_leaves_out_who_was_started_anew_unseen() -> None:
    """View and proposal name a life that is over, and nobody proposes anything else."""
    script = Script().play(THREE).play("stamped a1 R\nstamped b1 R")
    script.play("refused c1 runId\n-> Notify StateServerAway")
    assert asked(script, PATIENCE - 1, anew="c1") == []
    assert asked(script, 1, anew="c1") == [
        "Notify StateServerLeftOut",
        "CasView 5 e2 moving x2 a1 b1 c1 to a1 b1",
    ]


@pytest.mark.parametrize(("copies", "answers"), [(1, ("a1", "b1")), (2, ("a1",))])
def test_who_was_started_anew_is_waited_for_where_it_may_have_the_newest_record(
    copies: int, answers: tuple[str, ...]
) -> None:
    script = Script(copies=copies).play(THREE)
    script.tell(*(f"stamped {name} R" for name in answers), "refused c1 runId")
    assert asked(script, 3 * PATIENCE, *answers, anew="c1") == []


def test_it_is_let_in_when_it_has_answered_for_a_while_and_for_longer_each_time() -> None:
    script = Script().play(THREE).play(OPENED).play(SEALING)
    script.play("ack a1\nack b1")
    asked(script, PATIENCE, "a1", "b1")
    script.tell("cas done", "stamped a1 R", "stamped b1 R", "unreachable c1", "copied")
    script.tell("ack a1", "ack b1", "cas done")
    assert asked(script, 3, "a1", "b1") == []
    assert asked(script, PROOF - 1, "a1", "b1", "c1") == []
    assert asked(script, 2) == [], "an answer that stays out counts from the beginning"
    assert asked(script, PROOF, "a1", "b1", "c1") == []
    assert asked(script, 1, "a1", "b1", "c1") == ["Notify StateServerBack"], "a window runs"
    script.tell("died member")
    moves = [one for one in map(describe, script.actions) if one and "CasView" in one]
    assert moves[-1] == "CasView 7 e3 moving x2 a1 b1 to a1 b1 c1"


def test_no_more_are_left_out_than_copies_can_be_lost() -> None:
    """Two copies: of two servers that are silent at once no object might be left."""
    script = Script().play(THREE).play(OPENED).play(SEALING).play("ack a1")
    assert asked(script, 3 * PATIENCE, "a1") == []
    # One of them answers, so the other one can be left out.
    script.play(
        """
        ack b1
        -> Notify StateServerLeftOut
        -> CasView 5 e2 moving x2 a1 b1 c1 to a1 b1
        """
    )


def test_a_server_that_died_counts_among_the_lost() -> None:
    script = Script().play(THREE).play(OPENED).play(SEALING).play("ack a1")
    script.tell("propose a1 b1", "cas done", "stamped a1 R", "unreachable c1")
    assert asked(script, 3 * PATIENCE, "a1") == []


def test_a_server_that_leaves_and_answers_is_not_lost() -> None:
    """What it holds is copied, so another one may be silent."""
    script = Script().play(THREE).play(OPENED)
    script.tell("propose a1 b1", "cas done", "stamped a1 R", "stamped c1 R")
    found = asked(script, PATIENCE, "a1", "c1")
    assert found == ["Notify StateServerLeftOut", "CasView 6 e3 moving x2 a1 b1 c1 to a1"]


def test_the_only_copy_is_waited_for() -> None:
    script = Script(copies=1).play(THREE).play("stamped a1 R\nstamped b1 R")
    assert asked(script, 3 * PATIENCE) == []
    script.play("stamped c1 R\n-> CopyObjects 1.1.1.5 from a1 b1 c1")


def test_a_single_copy_that_moves_is_waited_for_too() -> None:
    """The only member that holds the record is away: that is no older copy."""
    script = Script(copies=1)
    script.play(
        """
        record R 1.1.1.5 sealed 3
        start
        -> ReadView
        view 4 e1 moving x1 a1 to c1
        -> CasView 4 e1 moving x2 a1 to c1
        cas done
        -> SendStamp a1 e1x2
        -> SendStamp c1 e1x2
        stamped c1 none
        unreachable a1
        -> Notify StateMissing
        """
    )
    script.play("stamped a1 R\n-> CopyObjects 1.1.1.5 from a1")


def test_a_silent_server_that_only_joins_stops_nobody() -> None:
    """Also with one copy: it holds nothing."""
    for copies in (1, 2):
        script = Script(copies=copies)
        script.tell("record R 1.1.1.5 sealed 3", "start", "view 4 e1 moving x1 a1 b1 to a1 b1 c1")
        script.tell("propose a1 b1 c1", "cas done", "stamped a1 R", "stamped b1 R")
        assert asked(script, PATIENCE, "a1", "b1") == [
            "Notify StateServerLeftOut",
            "CasView 5 e2 moving x2 a1 b1",
        ]


def test_a_topology_is_born_without_a_silent_server() -> None:
    """Nothing can be lost yet; but somebody has to be there."""
    script = Script()
    script.tell("start", "propose a1 b1", "view none", "cas done")
    assert asked(script, 3 * PATIENCE) == []
    script.tell("stamped a1 none")
    assert asked(script, 1, "a1") == [
        "Notify StateServerLeftOut",
        "CasView 1 e2 creating x1 a1",
    ]


def test_a_driver_that_was_stopped_itself_suspects_nobody() -> None:
    """Its first tick comes before the answers that lie behind it; time alone means nothing."""
    script = Script().play(THREE).play(OPENED).play(SEALING)
    script.tell("wait 1000", "tick")
    script.tell("ack a1", "ack b1", "ack c1")
    assert script.machine.membership.wanted() == (member("a1"), member("b1"), member("c1"))
    assert script.machine.windows.attempt is not None


def question(name: str) -> e.Action:
    return e.SendStamp(member(name), stamp("e1x1"))


def answer(name: str) -> e.Event:
    return e.Stamped(member(name), stamp("e1x1"), None)


def silence(found: Suspicion, names: list[str], members: list[Member], ticks: int) -> None:
    """Ticks at which these are asked and do not answer."""
    for _ in range(ticks):
        found.asked([question(name) for name in names])
        found.tick(members, [])


def test_one_that_was_left_out_is_called_back_early_where_it_is_needed() -> None:
    """Of three servers with two copies the second one is silent before the first is trusted."""
    found, (a, b, c) = Suspicion(), (member("a1"), member("b1"), member("c1"))
    found.settle([a, b, c], [a, b])
    silence(found, ["b1", "c1"], [a, b, c], PATIENCE)
    assert found.choose((a, b, c), (b, c), 2) == (a, b), "nothing is won by waiting for it"
    found.heard(answer("c1"))
    found.tick([a, b, c], [])
    assert found.choose((a, b, c), (b, c), 2) == (a, c)
    assert found.choose((a, b, c), (b,), 2) == (a,), "it is not needed"
    assert found.settle([a, b, c], [a, c]) == [b]
    assert found.choose((a, b, c), (b,), 2) == (a, c), "and stays when it has come back"


def test_a_full_server_answers() -> None:
    found, one = Suspicion(), member("a1")
    silence(found, ["a1"], [one], PATIENCE)
    assert found.silent(one)
    found.heard(e.Unreachable(one, stamp("e1x1")))
    assert found.silent(one)
    found.heard(e.Unreachable(one, stamp("e1x1"), full=True))
    assert not found.silent(one)


@pytest.mark.parametrize("reason", [*Reason, e.TAG])
def test_what_the_life_that_is_asked_refuses_is_an_answer(reason: str) -> None:
    found, one = Suspicion(), member("a1")
    silence(found, ["a1"], [one], PATIENCE)
    found.heard(e.Refused(one, stamp("e1x1"), str(getattr(reason, "value", reason))))
    assert found.silent(one) is (reason == Reason.RUN_ID)


def test_only_ticks_at_which_it_is_asked_count() -> None:
    """A question whose answer is lost is no debt as long as nobody asks again."""
    found, one = Suspicion(), member("a1")
    silence(found, ["a1"], [one], PATIENCE - 1)
    silence(found, [], [one], 2 * PATIENCE)
    assert not found.silent(one)
    silence(found, ["a1"], [one], 1)
    assert found.silent(one)


def test_who_is_neither_proposed_nor_holds_anything_is_forgotten() -> None:
    found, one = Suspicion(), member("a1")
    silence(found, ["a1"], [one], PATIENCE)
    found.tick([], [one])
    assert found.silent(one)
    found.tick([], [])
    assert not found.silent(one)


def proven_in(found: Suspicion, one: Member) -> int:
    """Ticks, in each of which it answers, until it is tried again."""
    ticks = 0
    again: tuple[str, ...] = ()
    while not again:
        found.asked([question("a1")])
        found.heard(answer("a1"))
        again, ticks = found.tick([one], []), ticks + 1
    return ticks


def test_proof_is_doubled_up_to_a_limit() -> None:
    found, one = Suspicion(), member("a1")
    needed = []
    for _ in range(6):
        assert found.settle([one], []) == [one]
        assert found.settle([one], []) == [], "it is out"
        needed.append(proven_in(found, one))
        assert found.on_trial([one]) == []
    assert needed == [PROOF, 2 * PROOF, 4 * PROOF, 8 * PROOF, MOST_PROOF, MOST_PROOF]


def test_a_tick_without_a_question_proves_nothing() -> None:
    found, one = Suspicion(), member("a1")
    found.settle([one], [])
    silence(found, [], [one], 2 * PROOF)
    assert found.on_trial([one]) == [one]


def test_the_next_life_of_a_server_proves_itself_too() -> None:
    """A server that the driver cannot reach is not reached after its restart either."""
    found = Suspicion()
    found.settle([member("a1")], [])
    assert found.on_trial([member("a2")]) == [member("a2")]


def broken(found: Suspicion, *names: str) -> tuple[str, ...]:
    """Ticks in which copies to these break off, until they are given up."""
    for _ in range(TRIES):
        assert found.give_up() == ()
        for name in names:
            found.broke_off(member(name))
    return found.give_up()


def test_those_that_take_nothing_are_given_up_in_order() -> None:
    names = "fbdeac"
    assert broken(Suspicion(), *(f"{name}1" for name in names)) == tuple(sorted(names))


def test_the_proof_of_one_that_takes_nothing_is_doubled_up_to_a_limit_too() -> None:
    found, one = Suspicion(), member("a1")
    needed = []
    for _ in range(6):
        assert broken(found, "a1") == ("a",)
        assert found.given_up(one)
        needed.append(proven_in(found, one))
        assert not found.given_up(one), "it is tried again"
    assert needed == [PROOF, 2 * PROOF, 4 * PROOF, 8 * PROOF, MOST_PROOF, MOST_PROOF]


def test_it_is_told_once_that_one_is_trusted_again() -> None:
    found, one = Suspicion(), member("a1")
    found.settle([one], [])
    told = []
    for _ in range(3 * PROOF):
        found.asked([question("a1")])
        found.heard(answer("a1"))
        told += found.tick([one], [])
    assert told == ["a"]


def test_an_answer_proves_something_for_its_own_tick_alone() -> None:
    found, one = Suspicion(), member("a1")
    found.settle([one], [])
    found.asked([question("a1")])
    found.heard(answer("a1"))
    for _ in range(2 * PROOF):
        assert found.tick([one], []) == ()
    assert found.on_trial([one]) == [one]


def test_the_next_life_of_one_that_was_left_out_is_not_called_back_before_it_answers() -> None:
    """Nothing is owed by it yet, and nothing was heard of it either."""
    found, (a, b, c) = Suspicion(), (member("a1"), member("b1"), member("c2"))
    found.settle([a, b, member("c1")], [a, b])
    silence(found, ["b1"], [a, b, c], PATIENCE)
    assert not found.silent(c)
    assert found.choose((a, b, c), (b, c), 2) == (a, b)


def test_one_that_takes_nothing_and_answers_is_called_back_where_it_is_needed() -> None:
    found, (a, b, c) = Suspicion(), (member("a1"), member("b1"), member("c1"))
    assert broken(found, "c1") == ("c",)
    assert found.choose((a, b, c), (), 2) == (a, b)
    silence(found, ["b1"], [a, b, c], PATIENCE)
    assert found.choose((a, b, c), (b, c), 2) == (a, c)


def test_somebody_is_chosen_even_if_none_can_be_trusted() -> None:
    found, (a, b) = Suspicion(), (member("a1"), member("b1"))
    found.settle([a, b], [])
    assert found.choose((a, b), (a, b), 1) == (a, b)


MOVING = """
    record R 1.1.1.5 sealed 3
    record old 1.1.0.9 sealed 2
    propose {to}
    start
    -> ReadView
    view 4 e2 moving x1 {held} to {to}
    -> CasView 4 e2 moving x2 {held} to {to}
    cas done
    """


def moving(held: str, to: str, *answers: str, copies: int = 2) -> Script:
    """A driver that finds a moving view, after the first answers to its stamps."""
    script = Script(copies=copies)
    for line in MOVING.format(held=held, to=to).strip().splitlines():
        if not line.strip().startswith("->"):
            script.tell(line.strip())
    script.tell(*answers)
    assert script.machine.membership.standing is Standing.STAMPING
    return script


@pytest.mark.parametrize(("held", "suffices"), [("R", True), ("none", False), ("old", False)])
def test_one_that_came_back_on_its_file_is_not_lost(held: str, suffices: bool) -> None:
    """So another one may be silent; not so if what it came back with is not what it held."""
    script = moving(
        "a1 b1 c1", "a1 b1 c2", "stamped a1 R", f"stamped c2 {held}", "refused c1 runId"
    )
    found = asked(script, PATIENCE)
    left_out = ["Notify StateServerLeftOut", "CasView 5 e3 moving x2 a1 b1 c1 to a1 c2"]
    assert found == (left_out if suffices else [])


def test_that_one_came_back_says_nothing_of_another() -> None:
    answers = ("stamped a1 R", "stamped d2 R", "refused d1 runId", "unreachable c1")
    script = moving("a1 b1 c1 d1", "a1 b1 d2", *answers)
    assert asked(script, 2 * PATIENCE) == [], "neither c nor b can be done without"


def test_one_that_has_not_answered_yet_is_not_at_hand() -> None:
    """It is asked for the first time when another one already is silent."""
    script = Script().play(THREE).play(OPENED).play(SEALING).play("ack a1\nack c1")
    asked(script, PATIENCE - 2, "a1", "c1")
    script.tell("propose a1 b1", "cas done", "stamped a1 R", "unreachable c1")
    begin = len(script.actions)
    asked(script, 3, "a1")
    assert not any(isinstance(action, e.CasView) for action in script.actions[begin:])
    script.tell("stamped c1 R")
    left_out = ["Notify StateServerLeftOut", "CasView 6 e3 moving x2 a1 b1 c1 to a1"]
    assert asked(script, 1) == left_out


@pytest.mark.parametrize("copies", [1, 2])
def test_a_former_owner_is_waited_for_as_long_as_patience_lasts_or_for_ever(copies: int) -> None:
    """For ever where nobody else has what it holds."""
    script = moving("a1 b1", "a1", "stamped a1 R", copies=copies)
    assert asked(script, PATIENCE - 1) == []
    copied = asked(script, PATIENCE)[:1]
    assert copied == (["CopyObjects 1.1.1.5 from a1"] if copies == 2 else [])
    if copies == 1:
        script.play("stamped b1 R\n-> CopyObjects 1.1.1.5 from a1 b1")


def test_a_source_that_falls_silent_is_none_any_more() -> None:
    script = moving("a1 b1", "a1", "stamped a1 R")
    script.play("stamped b1 R\n-> CopyObjects 1.1.1.5 from a1 b1")
    found = asked(script, PATIENCE + 2, "a1")
    assert found[:2] == ["CopyObjects 1.1.1.5 from a1 b1"] * 2
    assert found[-1] == "CopyObjects 1.1.1.5 from a1"


def test_one_that_was_left_out_is_asked_on_the_whole_way_to_an_open_view() -> None:
    """Else it could not prove itself while another one is waited for."""
    script = Script().play(THREE).play(OPENED).play(SEALING).play("ack a1\nack b1")
    asked(script, PATIENCE, "a1", "b1")
    script.tell("cas done", "stamped a1 R", "stamped b1 R", "unreachable c1", "copied")
    script.tell("ack a1", "ack b1", "cas done", "propose a1 c1", "cas done")
    script.play(
        """
        wait 1
        tick
        -> SendStamp a1 e3x2
        -> SendStamp b1 e3x2
        -> SendStamp c1 e3x2
        stamped a1 R
        unreachable b1
        -> CopyObjects 1.2.2.3 from a1
        wait 1
        tick
        -> CopyObjects 1.2.2.3 from a1
        -> SendStamp a1 e3x2
        -> SendStamp c1 e3x2
        copied
        -> SendRecord a1 1.2.3.4 sealed 3 published 3, open 4: 0+4
        wait 1
        tick
        -> SendRecord a1 1.2.3.4 sealed 3 published 3, open 4: 0+4
        -> SendStamp c1 e3x2
        """
    )


def unreached(script: Script, name: str, attempts: int) -> list[str]:
    """So many attempts end since a task did not reach a server; all answer the driver."""
    found: list[str] = []
    for _ in range(attempts):
        script.tell(f"died away {name}")
        found += asked(script, 1, "a1", "b1", "c1")
    return [text for text in found if "WindowHeldUp" not in text and "Plan" not in text]


def running(copies: int = 2) -> Script:
    script = Script(copies=copies).play(THREE).play(OPENED)
    script.tell("planned 4", "ack a1", "ack b1", "ack c1")
    return script


@pytest.mark.parametrize("copies", [1, 2])
def test_a_server_that_tasks_do_not_reach_is_left_out_and_let_in_again(copies: int) -> None:
    """With one copy, too: the driver reaches it, so that what it holds is copied from it."""
    script = running(copies)
    runs = [f"Run {number} of 4: 0+4" for number in range(2, TRIES + 1)]
    assert unreached(script, "b", TRIES - 1) == runs
    assert unreached(script, "b", 1) == [
        "Notify StateServerLeftOut",
        "CasView 5 e2 moving x2 a1 b1 c1 to a1 c1",
    ]
    notice = next(a for a in script.actions if getattr(a, "kind", "") == "StateServerLeftOut")
    assert isinstance(notice, e.Notify)
    assert notice.server == "b"
    assert f"tasks have not reached it in {TRIES} attempts" in notice.text
    script.play(
        """
        cas done
        -> SendStamp a1 e2x2
        -> SendStamp b1 e2x2
        -> SendStamp c1 e2x2
        stamped a1 R
        stamped b1 R
        stamped c1 R
        -> CopyObjects 1.2.1.2 from a1 b1 c1
        """
    )
    script.tell("copied", "ack a1", "ack c1", "cas done")
    assert "Notify StateServerBack" in asked(script, PROOF + 2, "a1", "b1", "c1")


def test_one_that_dies_while_others_learn_the_only_copy_from_it_is_needed_again() -> None:
    script = running(1)
    unreached(script, "b", TRIES)
    script.tell("cas done")
    script.play(
        """
        propose a1 b2 c1
        -> CasView 6 e3 moving x2 a1 b1 c1 to a1 b2 c1
        """
    )


def members(names: str) -> list[Member]:
    return [member(f"{name}1") for name in names]


def test_a_window_that_is_sealed_shows_that_tasks_reach_all_servers() -> None:
    found, one, all_of_them = Suspicion(), member("a1"), members("ab")
    for attempt in range(1, 2 * TRIES - 1):
        found.unreached(one)
        if attempt == TRIES - 1:
            found.reached()
        assert found.part(all_of_them, 1) == ()
    found.unreached(one)
    assert found.part(all_of_them, 1) == ("a",)
    assert found.part(all_of_them, 1) == (), "it is told once"


def test_the_guarantees_say_after_how_much_a_server_is_left_out() -> None:
    said = (Path(__file__).parents[3] / "docs" / "guarantees.md").read_text()
    words = {PATIENCE: "ten", TRIES: "five"}
    assert f"out of the view after {words[PATIENCE]} tries, a second apart" in said
    assert f"after {words[TRIES]} attempts of a window the driver leaves it out" in said
    assert RESEND_S == 1.0


def test_those_that_tasks_do_not_reach_are_left_out_in_order() -> None:
    found, names = Suspicion(), "fcadbe"
    for name in names * TRIES:
        found.unreached(member(f"{name}1"))
    assert found.part(members(f"{names}g"), 1) == tuple(sorted(names))


@pytest.mark.parametrize(
    ("copies", "servers", "out"),
    [
        (1, "a", ""),
        (1, "abc", "ab"),
        (2, "ab", "a"),
        (2, "abc", "a"),
        (2, "abcd", "ab"),
        (3, "abc", "ab"),
        (3, "abcde", "ab"),
        (3, "abcdef", "abc"),
    ],
)
def test_where_tasks_reach_nobody_as_many_stay_as_there_are_copies(
    copies: int, servers: str, out: str
) -> None:
    """Or as can be lost: who answers the driver is not thrown out one after the other."""
    found, left = Suspicion(), ""
    for name in servers:
        for _ in range(TRIES):
            found.unreached(member(f"{name}1"))
        there = members("".join(one for one in servers if one not in left))
        left += "".join(found.part(there, copies))
    assert left == out
    stays = tuple(one for one in servers if one not in out)
    assert found.kept() == stays
    assert found.kept() == (), "each is told once"
    found.reached()
    for _ in range(TRIES):
        found.unreached(member(f"{stays[0]}1"))
    assert found.part(members("".join(stays)), copies) == ()
    assert found.kept() == stays[:1], "and again once a window was sealed"


def test_copies_stay_where_tasks_reach_nobody() -> None:
    script = running()
    assert "CasView 5 e2 moving x2 a1 b1 c1 to b1 c1" in unreached(script, "a", TRIES)
    script.tell("cas done", "stamped a1 R", "stamped b1 R", "stamped c1 R")
    script.tell("copied", "ack b1", "ack c1", "cas done", "fenced", "ack b1", "ack c1")
    found: list[str] = []
    for _ in range(TRIES):
        script.tell("died away b")
        found += asked(script, 1, "b1", "c1")
    assert "Notify StateServersUnreached" in found
    assert not any("CasView" in text for text in found)
    notice = next(a for a in script.actions if getattr(a, "kind", "") == "StateServersUnreached")
    assert isinstance(notice, e.Notify)
    assert notice.server == "b"
    assert "see what lies between executors and state servers" in notice.text


def test_what_a_silent_server_owes_is_not_told_in_other_words() -> None:
    found, one, both = Suspicion(), member("a1"), members("ab")
    found.asked([e.SendStamp(one, stamp("e1x1"))])
    for _ in range(TRIES):
        found.unreached(one)
    assert found.part(both, 1) == ()
    found.tick((one,), ())
    assert found.part(both, 1) == (), "it has not answered yet"
    found.heard(e.Stamped(one, stamp("e1x1"), None))
    assert found.part(both, 1) == ("a",)


def test_a_single_server_is_waited_for_whoever_does_not_reach_it() -> None:
    script = Script().play(
        """
        record R 1.1.1.5 sealed 3
        propose a1
        start
        -> ReadView
        view 4 e1 open x1 a1
        -> CasView 4 e1 open x2 a1
        """
    )
    script.tell("cas done", "stamped a1 R", "copied", "ack a1", "fenced", "planned 4", "ack a1")
    told = unreached(script, "a", 2 * TRIES)
    assert told.count("Notify StateServersUnreached") == 1
    runs = [f"Run {number} of 4: 0+4" for number in range(2, 2 * TRIES + 2)]
    assert [text for text in told if "Unreached" not in text] == runs
