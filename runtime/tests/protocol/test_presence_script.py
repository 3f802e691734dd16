"""A state server that goes and comes back is told once each, whatever was under way."""

from __future__ import annotations

import pytest
from machine_script import Script, member

from millrace.protocol import events as e
from millrace.protocol.presence import Presence
from millrace.protocol.types import AttemptId, Phase, Stamp, View

BEGUN = """
record R 1.1.1.5 sealed 3
start
-> ReadView
view 4 e1 open x1 a1
-> CasView 4 e1 open x2 a1
cas done
-> SendStamp a1 e1x2
"""

STAMPED = (
    BEGUN
    + """
stamped a1 R
-> CopyObjects 1.1.1.5 from a1
"""
)

START = (
    STAMPED
    + """
copied
-> SendRecord a1 1.2.1.1 sealed 3 published 3
ack a1
-> Notify DriverRecovered
-> FenceSinks x2
-> Plan behind {}
fenced
"""
)

OPENED = """
planned 4
-> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+4
ack a1
-> Run 1 of 4: 0+4
-> Plan behind {'s': 4}
"""

UNDER_WAY = {
    "the stamp at the start": BEGUN
    + """
        unreachable a1
        -> Notify StateServerAway
        wait 1
        tick
        -> SendStamp a1 e1x2
        unreachable a1
        """,
    "the copy at the start": STAMPED
    + """
        uncopied a is away
        -> Notify StateMissing
        wait 1
        tick
        -> CopyObjects 1.1.1.5 from a1
        -> SendStamp a1 e1x2
        unreachable a1
        -> Notify StateServerAway
        uncopied a is away
        wait 1
        tick
        -> CopyObjects 1.1.1.5 from a1
        -> SendStamp a1 e1x2
        unreachable a1
        """,
    "the write-back at the start": STAMPED
    + """
        copied
        -> SendRecord a1 1.2.1.1 sealed 3 published 3
        unreachable a1
        -> Notify StateServerAway
        wait 1
        tick
        -> SendRecord a1 1.2.1.1 sealed 3 published 3
        unreachable a1
        """,
    "a record write": START
    + """
        planned 4
        -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+4
        unreachable a1
        -> Notify StateServerAway
        wait 1
        tick
        -> SendStamp a1 e1x2
        -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 0+4
        unreachable a1
        unreachable a1
        """,
    "a window attempt": START
    + OPENED
    + """
        died member
        -> Notify WindowHeldUp
        tick
        wait 1
        tick
        -> SendStamp a1 e1x2
        -> Run 2 of 4: 0+4
        unreachable a1
        -> Notify StateServerAway
        wait 1
        tick
        -> SendStamp a1 e1x2
        unreachable a1
        """,
    "a verdict": START
    + OPENED
    + """
        done
        -> AskVerdict 1 of 4
        wait 1
        tick
        -> SendStamp a1 e1x2
        -> AskVerdict 1 of 4
        unreachable a1
        -> Notify StateServerAway
        wait 1
        tick
        -> SendStamp a1 e1x2
        -> AskVerdict 1 of 4
        unreachable a1
        """,
    "dead letters": START
    + OPENED
    + """
        done failing 1
        -> Notify WindowRunAgain
        -> Run 2 of 4: 0+4 without [1]
        done
        -> WriteDead 2.4.2.1/dead 1#0
        wait 1
        tick
        -> SendStamp a1 e1x2
        -> WriteDead 2.4.2.1/dead 1#0
        unreachable a1
        -> Notify StateServerAway
        wait 1
        tick
        -> SendStamp a1 e1x2
        -> WriteDead 2.4.2.1/dead 1#0
        unreachable a1
        """,
    "the seal": START
    + OPENED
    + """
        done
        -> SendRecord a1 1.2.1.3 sealed 4 published 3
        unreachable a1
        -> Notify StateServerAway
        wait 1
        tick
        -> SendStamp a1 e1x2
        -> SendRecord a1 1.2.1.3 sealed 4 published 3
        unreachable a1
        """,
    "a split": START
    + OPENED
    + """
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
        unreachable a1
        -> Notify StateServerAway
        wait 1
        tick
        -> SendStamp a1 e1x2
        -> SendRecord a1 1.2.1.3 sealed 3 published 3, open 4: 0+2, open 5: 2+2
        unreachable a1
        """,
}


def plain(*texts: str) -> str:
    lines = (line.strip() for text in texts for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def notices(script: Script, prefix: str) -> list[str]:
    """What was told of the state server, in order."""
    told = [line.removeprefix("-> Notify ") for line in script.transcript]
    return [kind for kind in told if kind.startswith(prefix)]


@pytest.mark.parametrize("what", UNDER_WAY)
@pytest.mark.parametrize("back", ["itself", "as a new incarnation"])
def test_it_is_told_once_that_a_server_went_and_once_that_it_is_back(what: str, back: str) -> None:
    script = Script(tracking=what == "a verdict", max_replays=0)
    script.play(plain(UNDER_WAY[what]))
    assert notices(script, "StateServer") == ["StateServerAway"]
    if back == "itself":
        script.tell("record S 1.2.1.2 sealed 3", "stamped a1 S")
        assert "-> Notify StateServerBack" in script.transcript[-2:]
    else:
        script.tell("propose a2", "cas done", "record S 1.2.1.2 sealed 3", "stamped a2 S")
    script.tell("wait 1", "tick")
    assert notices(script, "StateServer") == ["StateServerAway", "StateServerBack"]


def test_a_server_that_was_started_anew_is_away_until_it_is_admitted() -> None:
    script = Script(copies=1).play(plain(START, OPENED))
    script.tell("died member", "wait 1", "tick", "refused a1 runId")
    assert notices(script, "StateServer") == ["StateServerAway"]
    script.tell("propose a2", "cas done", "record S 1.2.1.2 sealed 3", "stamped a2 S")
    assert notices(script, "StateServer") == ["StateServerAway", "StateServerBack"]


def test_answers_to_an_older_stamp_say_nothing_of_today() -> None:
    script = Script().play(plain(START, OPENED))
    script.tell("died member", "wait 1", "tick", "unreachable a1")
    script.tell("ack a1 e1x1 5", "stamped a1 R e1x1")
    assert notices(script, "StateServer") == ["StateServerAway"]


def test_a_full_server_is_back_when_it_takes_a_record_again() -> None:
    """It answers stamps all the while."""
    script = Script().play(plain(START))
    script.tell("planned 4", "full a1", "wait 1", "tick", "stamped a1 R", "full a1")
    assert notices(script, "StateServer") == ["StateServerFull"]
    script.tell("ack a1")
    assert notices(script, "StateServer") == ["StateServerFull", "StateServerBack"]


FULL = (
    OPENED
    + """
died full a
-> Notify StateServerFull
wait 1
tick
-> SendStamp a1 e1x2
-> Run 2 of 4: 0+4
"""
)


def test_a_server_without_room_for_a_window_is_told_once_until_one_is_sealed() -> None:
    """It answers stamps and takes records all the while; each try waits longer, up to 16 s."""
    script = Script().play(plain(START, FULL))
    for pause_s in (2, 4, 8, 16, 16):
        runs = [a for a in script.actions if isinstance(a, e.Run)]
        script.tell("died full a", f"wait {pause_s - 1}", "tick", "stamped a1 R")
        assert [a for a in script.actions if isinstance(a, e.Run)] == runs
        script.tell("wait 1", "tick")
        assert len([a for a in script.actions if isinstance(a, e.Run)]) == len(runs) + 1
    assert notices(script, "StateServer") == ["StateServerFull"]
    assert notices(script, "WindowHeldUp") == []
    script.tell("done")
    assert notices(script, "StateServer") == ["StateServerFull"]
    script.tell("ack a1")
    assert notices(script, "StateServer") == ["StateServerFull", "StateServerBack"]
    # The next time is another one, with its pauses from the shortest on.
    script.tell("planned 4", "ack a1", "died full a")
    assert notices(script, "StateServer")[2:] == ["StateServerFull"]
    runs = [a for a in script.actions if isinstance(a, e.Run)]
    script.tell("wait 1", "tick")
    assert len([a for a in script.actions if isinstance(a, e.Run)]) == len(runs) + 1


def test_who_has_no_room_for_a_window_is_waited_for_itself() -> None:
    script = Script().play(plain(START, FULL))
    [notice] = [a for a in script.actions if getattr(a, "kind", "") == "StateServerFull"]
    assert isinstance(notice, e.Notify)
    assert notice.text == "its memory is full; windows wait until then"


def test_servers_that_have_room_again_are_told_in_order() -> None:
    presence = Presence()
    names = [f"state-{n}" for n in range(6)]
    view = View("u", 1, 1, Phase.OPEN, 1, (), (), 1, ())
    for name in reversed(names):
        full = e.RunDied(AttemptId(1, 1, 1), "full", True, full=name)
        assert len(presence.observe(full, view)) == 1
    assert [one.server for one in presence.sealed() if isinstance(one, e.Notify)] == names
    assert presence.sealed() == []


def test_all_whose_part_a_full_server_would_take_over_are_named_in_order() -> None:
    there = tuple(member(f"{name}1") for name in "abcdef")
    view = View("u", 1, 2, Phase.MOVING, 1, there, there[:1], 1, ())
    full = e.CopyFailed(view.stamp(), "a is full", full="a")
    [notice] = Presence().observe(full, view)
    assert isinstance(notice, e.Notify)
    until = "until then, or until b or c or d or e or f is a member again"
    assert notice.text == f"a is full; windows wait {until}"


def test_what_sinks_have_shown_is_noted_while_a_window_waits_for_room() -> None:
    """What was staged for them can be deleted then."""
    script = Script().play(plain(START, OPENED))
    script.tell("planned 4", "done", "ack a1", "died full a", "published 4")
    assert script.transcript[-1] == ("-> SendRecord a1 1.2.1.4 sealed 4 published 4, open 5: 4+4")
    script.tell("ack a1")
    runs = [action for action in script.actions if isinstance(action, e.Run)]
    script.tell("wait 1", "tick")
    assert len([action for action in script.actions if isinstance(action, e.Run)]) == len(runs) + 1
    # That a record had room makes none for the window: the next pause is the longer one.
    script.tell("died full a", "wait 1", "tick")
    assert len([action for action in script.actions if isinstance(action, e.Run)]) == len(runs) + 1
    script.tell("wait 1", "tick")
    assert len([action for action in script.actions if isinstance(action, e.Run)]) == len(runs) + 2


def test_a_window_that_met_a_lost_server_runs_again_after_a_second_each_time() -> None:
    """And nothing is written meanwhile: the server that is away would hold that up."""
    script = Script().play(plain(START, OPENED))
    script.tell("planned 4", "done", "ack a1")
    for _ in range(4):
        begin = len(script.actions)
        script.tell("died member", "published 4")
        assert not any(isinstance(a, e.SendRecord | e.Run) for a in script.actions[begin:])
        script.tell("wait 1", "tick")
        assert len([a for a in script.actions[begin:] if isinstance(a, e.Run)]) == 1
    # One without room that comes behind it begins with the shortest pause.
    begin = len(script.actions)
    script.tell("died full a", "ack a1", "wait 1", "tick")
    assert len([a for a in script.actions[begin:] if isinstance(a, e.Run)]) == 1


def test_a_server_that_left_the_view_is_not_told_to_have_room_again() -> None:
    script = Script(copies=1).play(plain(START, FULL))
    script.tell("propose b1", "cas done", "record S 1.2.1.2 sealed 3", "stamped a1 S")
    script.tell("stamped b1 none", "copied", "ack b1", "cas done", "fenced")
    script.tell("planned 4", "ack b1", "done", "ack b1")
    assert script.machine.windows.record.sealed == 4, script.transcript[-30:]
    assert notices(script, "StateServer") == ["StateServerFull"]


def test_where_nobody_has_another_copy_members_are_not_asked_beside_an_attempt() -> None:
    """None of them could be left out."""
    for copies, asked in ((1, False), (2, True)):
        script = Script(copies=copies).play("record R 1.1.1.5 sealed 3")
        script.tell("start", "view 4 e1 open x1 a1 b1", "cas done", "stamped a1 R", "stamped b1 R")
        script.tell("copied", "ack a1", "ack b1", "fenced", "planned 4", "ack a1", "ack b1")
        assert script.machine.windows.attempt is not None
        begin = len(script.actions)
        script.tell("wait 1", "tick")
        assert any(isinstance(a, e.SendStamp) for a in script.actions[begin:]) is asked


def test_a_stop_does_not_wait_for_a_server_that_is_away() -> None:
    """Waiting would bring nothing: the next driver goes on from the record either way."""
    script = Script().play(plain(UNDER_WAY["a record write"]))
    script.play(
        """
        stop
        wait 1
        tick
        -> Stop asked
        """
    )


def test_a_driver_that_waits_for_a_server_at_its_start_notices_that_it_was_replaced() -> None:
    script = Script().play(
        """
        start
        -> ReadView
        view 4 e1 open x1 a1
        -> CasView 4 e1 open x2 a1
        cas done
        -> SendStamp a1 e1x2
        unreachable a1
        -> Notify StateServerAway
        """
    )
    for _ in range(5):
        script.tell("wait 1", "tick")
    assert script.transcript[-1] == "-> ReadView"
    script.play("view 5 e1 open x3 a1\n-> Stop fenced")


def test_servers_that_are_away_are_named_in_order() -> None:
    script = Script().play("record R 1.1.1.5 sealed 3")
    script.tell("start", "view 4 e1 open x1 a1 b1", "cas done", "unreachable b1", "unreachable a1")
    script.tell("stop", "wait 1", "tick")
    (stop,) = (action for action in script.actions if isinstance(action, e.Stop))
    assert stop.text.startswith("stopped while a, b is away")


@pytest.mark.parametrize(
    ("reason", "said"),
    [("connection refused", "connection refused"), ("", "state server a does not answer")],
)
def test_what_is_told_says_why_or_at_least_who(reason: str, said: str) -> None:
    gone = e.Unreachable(member("a1"), Stamp(1, 2), reason)
    for names, until in (("a", "it is back"), ("ab", "it is back or left out")):
        there = tuple(member(f"{name}1") for name in names)
        view = View("u", 1, 1, Phase.OPEN, 2, there, there, 1, (tuple(names),) * 2)
        (notice,) = Presence().observe(gone, view)
        assert isinstance(notice, e.Notify)
        assert notice.text == f"{said}; windows wait until {until}"
