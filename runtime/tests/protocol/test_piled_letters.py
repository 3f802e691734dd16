"""Dead letters that nobody takes out make every record larger, which is told."""

from __future__ import annotations

from dataclasses import replace

from machine_script import Script

from millrace.protocol import events as e
from millrace.protocol.types import DeadSegment
from millrace.protocol.windows.machine import MANY_DEAD

START = (
    *("record R 1.1.1.5 sealed 3", "propose a1", "start", "view 4 e1 open x1 a1", "cas done"),
    *("stamped a1 R", "copied", "ack a1", "fenced"),
)
DEAD = ("planned 4", "ack a1", "done failing 1", "done", "dead", "ack a1")


def told(script: Script) -> list[e.Notify]:
    return [one for one in script.actions if getattr(one, "kind", "") == "DeadLettersPileUp"]


def test_it_is_told_once_for_every_so_many_objects() -> None:
    script = Script(copies=1, max_replays=0)
    script.tell(*START)
    windows = script.machine.windows
    for held, times in ((MANY_DEAD - 2, 0), (MANY_DEAD - 1, 1), (MANY_DEAD, 1), (19_999, 2)):
        assert windows.record is not None
        dead = tuple(DeadSegment(f"d{n}", 1, 1) for n in range(held))
        windows.record = replace(windows.record, dead=dead)
        script.tell(*DEAD)
        assert len(windows.record.dead) == held + 1
        assert len(told(script)) == times
    assert "10,000 dead letters are held in 10,000 objects" in told(script)[0].text
    assert told(script)[0].warning


def test_a_dead_letter_in_every_window_is_one_object_for_as_many_as_fit() -> None:
    script = Script(copies=1, max_replays=0, letters_together=40)
    script.tell(*START)
    for window in range(4, 104):
        script.tell(*DEAD, f"published {window}", "ack a1")
    record = script.machine.windows.record
    assert record is not None
    assert [one.count for one in record.dead] == [40, 40, 20]
    assert record.totals.dead == 100
