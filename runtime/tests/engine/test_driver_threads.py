"""What goes wrong on a thread of the driver in a way that nobody thought of is told, each time."""

from __future__ import annotations

import logging
import queue
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.clock import SystemClock
from millrace.engine.driver.journal import EventTeller
from millrace.engine.driver.performer import Equipment, RealPerformer
from millrace.engine.driver.publisher import Publisher
from millrace.engine.driver.verdicts import Verdicts
from millrace.errors import TopologyError
from millrace.protocol import events as e
from millrace.protocol.types import AttemptId, CloseMarker, Intent, Stamp
from millrace.state.journalfiles import JournalFiles

STAMP = Stamp(1, 1)
ATTEMPT = AttemptId(1, 1, 1)
WAIT_S = 30.0


def broken(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("nobody thought of this")


def quiet(*_: Any, **__: Any) -> None:
    return None


@pytest.fixture
def driver(tmp_path):
    """Effects all of whose parts are broken, and what they post."""
    events: queue.SimpleQueue[e.Event] = queue.SimpleQueue()
    part = SimpleNamespace(copy=broken, open=broken, forget=broken, delete=broken, stop=quiet)
    journal = JournalFiles(tmp_path / "status.json", tmp_path / "events.jsonl")
    names = ("view", "stores", "verdicts", "planner", "publisher", "mailbox")
    parts = Equipment(
        **dict.fromkeys(names, part),  # type: ignore[arg-type]
        events=EventTeller(journal, SystemClock()),
        sources={},
        runner=broken,
        committed=quiet,
        running=quiet,
        failed=quiet,
        settle=quiet,
    )
    performer = RealPerformer(parts, events.put, events.put)
    yield performer, events, tmp_path / "events.jsonl"
    performer.close()


def test_a_copy_is_asked_for_again(driver, caplog):
    performer, events, _ = driver
    for _ in range(2):
        performer.perform(e.CopyObjects(STAMP, None, None, ()))
        told = events.get(timeout=WAIT_S)
        assert told == e.CopyFailed(STAMP, "ZeroDivisionError: nobody thought of this")
    assert [r.exc_info is not None for r in caplog.records if r.levelno == logging.ERROR] == [
        True,
        True,
    ]


def test_an_attempt_that_cannot_be_announced_dies(driver):
    performer, events, _ = driver
    performer.perform(e.OpenLog(ATTEMPT, 10))
    assert events.get(timeout=WAIT_S) == e.RunDied(
        ATTEMPT, "ZeroDivisionError: nobody thought of this"
    )


def test_an_attempt_that_cannot_be_announced_for_good_stops_the_driver(driver, monkeypatch):
    """Spark refuses a setting at its start, say: no further attempt is begun."""
    performer, events, _ = driver
    wrong = TopologyError("spark.conf: no such thing; correct it")

    def refused(*_: Any) -> None:
        raise wrong

    told: list[Exception] = []
    monkeypatch.setattr(performer._equipment.verdicts, "open", refused)
    monkeypatch.setattr(performer, "_equipment", replace(performer._equipment, failed=told.append))
    performer.perform(e.OpenLog(ATTEMPT, 10))
    assert events.get(timeout=WAIT_S) == e.RunFailed(ATTEMPT, str(wrong))
    assert told == [wrong]


def test_leftovers_that_a_sink_keeps_hold_no_window_up():
    events: queue.SimpleQueue[e.Event] = queue.SimpleQueue()
    notices: queue.SimpleQueue[e.Notify] = queue.SimpleQueue()
    discarded: queue.SimpleQueue[e.Forget] = queue.SimpleQueue()
    sinks = [
        SimpleNamespace(name="first", discard=broken),
        SimpleNamespace(name="second", discard=discarded.put),
    ]
    publisher = Publisher(sinks, None, events.put, None, notices.put)  # type: ignore[arg-type]
    publisher.discard(e.Forget(STAMP, 0, (), (ATTEMPT,)))
    discarded.get(timeout=WAIT_S)
    publisher.stop()
    notice = notices.get(timeout=WAIT_S)
    assert notice.kind == "LeftoversKept"
    assert "sink first" in notice.text
    assert "nobody thought of this" in notice.text
    assert events.empty()


def test_a_deletion_that_fails_becomes_an_event(driver):
    performer, _, file = driver
    performer.perform(e.Forget(STAMP, 0, (), (ATTEMPT,)))
    deadline_s = time.monotonic() + WAIT_S
    while "LeftoversKept" not in (file.read_text() if file.exists() else ""):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert "nobody thought of this" in file.read_text()


def test_a_wait_for_a_verdict_that_breaks_stops_the_driver(monkeypatch):
    events: queue.SimpleQueue[e.Event] = queue.SimpleQueue()
    control = SimpleNamespace(close=quiet, slices=quiet)
    asking = Verdicts(SimpleNamespace(), lambda: (), events.put, quiet, 64)  # type: ignore[arg-type]
    monkeypatch.setattr(asking, "_begun", lambda: control)
    monkeypatch.setattr(asking, "_log", SimpleNamespace(wait_verdict=broken))
    asking.ask(CloseMarker(ATTEMPT, Intent(1, (), ()), frozenset(), (), ()))
    told = events.get(timeout=WAIT_S)
    assert told == e.RunFailed(ATTEMPT, "ZeroDivisionError: nobody thought of this")
    asking.stop()
