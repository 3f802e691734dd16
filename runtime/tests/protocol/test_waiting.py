"""Replays wait by the clock of the process that lets them wait, whatever other clocks show."""

from __future__ import annotations

from dataclasses import replace

from machine_script import Script

from millrace.protocol import events as e
from millrace.protocol.types import Replay
from millrace.protocol.windows.waiting import Waiting


def replay(offset: int, delay_s: float = 0.0, alone: bool = False, number: int = 1) -> Replay:
    return Replay("s", 0, offset, number, delay_s, alone=alone)


def test_due_replays_are_taken_together_and_killers_alone() -> None:
    queue = (replay(1, alone=True), replay(2), replay(3, 9.0), replay(4))
    waiting = Waiting()
    waiting.update(queue, 5.0)
    assert waiting.due(queue, 5.0, 10) == (replay(2), replay(4))
    assert waiting.due(queue, 5.0, 1) == (replay(2),)
    killers = (replay(1, alone=True), replay(5, alone=True))
    waiting.update(killers, 5.0)
    assert waiting.due(killers, 5.0, 10) == (replay(1, alone=True),)


def test_a_replay_waits_from_the_first_record_that_it_is_in() -> None:
    waiting = Waiting()
    first, second = replay(1, 4.0), replay(2, 1.0)
    waiting.update((first,), 100.0)
    waiting.update((first, second), 102.0)
    assert waiting.next_s() == 103.0
    assert waiting.due((first, second), 102.5, 9) == ()
    assert waiting.due((first, second), 103.0, 9) == (second,)
    assert waiting.due((first, second), 104.0, 9) == (first, second)
    waiting.update((), 104.0)
    assert waiting.next_s() is None


def test_the_next_replay_of_a_root_waits_anew() -> None:
    waiting = Waiting()
    waiting.update((replay(1, 4.0),), 100.0)
    again = replay(1, 8.0, number=2)
    waiting.update((again,), 104.0)
    assert waiting.due((again,), 111.9, 9) == ()
    assert waiting.due((again,), 112.0, 9) == (again,)


def test_what_no_record_holds_yet_has_not_begun_to_wait() -> None:
    waiting = Waiting()
    assert waiting.due((replay(1, 4.0),), 1e9, 9) == ()
    assert waiting.due((replay(1, 0.0),), 0.0, 9) == (replay(1),)


RECOVER = """
    start
    -> ReadView
    view 4 e1 open x1 a1
    -> CasView 4 e1 open x2 a1
    cas done
    -> SendStamp a1 e1x2
    stamped a1 R
    -> CopyObjects 1.1.1.5 from a1
    copied
    -> SendRecord a1 1.2.1.1 sealed 3 published 3, replay 1#1
    ack a1
    -> Notify DriverRecovered
    -> FenceSinks x2
    -> Plan behind {}
    fenced
    """


def restarted(now_s: float) -> Script:
    """A driver on a machine that has just been started, with a record of another machine."""
    script = Script()
    script.now_s = now_s
    script.play("record R 1.1.1.5 sealed 3")
    held = script.records["R"]
    script.records["R"] = replace(held, replays=(replay(1, 10.0),))
    return script


def test_a_restarted_driver_lets_replays_wait_their_whole_back_off_and_no_longer() -> None:
    for now_s in (0.5, 100_000_000.0):
        script = restarted(now_s).play(RECOVER)
        assert e.Wake(now_s + 10.0) in script.actions
        script.play(
            """
            wait 9.9
            tick
            wait 0.1
            tick
            -> SendRecord a1 1.2.1.2 sealed 3 published 3, open 4: 1#1
            """
        )
