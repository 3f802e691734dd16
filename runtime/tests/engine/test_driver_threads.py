"""What goes wrong on a thread of the driver in a way that nobody thought of is told, each time."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from millrace.clock import SystemClock
from millrace.engine.driver import errands
from millrace.engine.driver import performer as performing
from millrace.engine.driver.callbacks import Callbacks
from millrace.engine.driver.errands import GIVE_WAY_S, MOST_IN_A_ROW, Errands, Foreground
from millrace.engine.driver.home.journal import EventTeller
from millrace.engine.driver.performer import Equipment, RealPerformer
from millrace.engine.driver.publisher import Publisher
from millrace.engine.driver.verdicts import Verdicts
from millrace.engine.jobs.runner import AttemptDied, AttemptResult
from millrace.engine.jobs.sizes import FEW_ROOTS
from millrace.engine.task.faults import TaskError, find_error
from millrace.errors import (
    EngineError,
    ExitCode,
    FencedError,
    NewerFormatError,
    SinkError,
    SourceAwayError,
    SourceError,
    StateServerError,
    TopologyError,
    error_text,
)
from millrace.protocol import events as e
from millrace.protocol.types import (
    AttemptId,
    AttemptPlan,
    CloseMarker,
    Intent,
    RootRange,
    Sealed,
    Staged,
    Stamp,
)
from millrace.sinks.base import SinkUnavailableError
from millrace.state.errors import ObjectTooLargeError, UnreachableError
from millrace.state.journalfiles import JournalFiles

STAMP = Stamp(1, 1)
ATTEMPT = AttemptId(1, 1, 1)
WAIT_S = 30.0
LARGE = FEW_ROOTS + 1


def broken(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("nobody thought of this")


class MuteError(Exception):
    """One that cannot say what it is."""

    def __str__(self) -> str:
        raise TypeError("__str__ returned non-string")


class Panic(BaseException):
    """As of extensions in other languages."""


ODD = [SystemExit(3), Panic("index out of bounds"), MuteError()]
"""What code of users raises beside the usual."""


def raising(error: BaseException) -> Any:
    def raised(*_: Any, **__: Any) -> Any:
        raise error

    return raised


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
        settle=quiet,
        foreground=Foreground(),
    )
    performer = RealPerformer(parts, events.put, events.put)
    yield performer, events, tmp_path / "events.jsonl"
    performer.close()


TOLD = "ZeroDivisionError: nobody thought of this"
COPY = e.CopyObjects(STAMP, None, None, ())


def test_a_copy_is_asked_for_again(driver, caplog):
    performer, events, _ = driver
    for _ in range(2):
        performer.perform(COPY)
        told = events.get(timeout=WAIT_S)
        assert told == e.CopyFailed(STAMP, TOLD, unexpected=True)
    assert [r.exc_info is not None for r in caplog.records if r.levelno == logging.ERROR] == [
        True,
        True,
    ]


def test_a_copy_that_another_view_has_superseded_answers_nothing(driver, monkeypatch):
    """It may have ended when it was asked for the last time whether it is wanted."""
    performer, events, _ = driver
    begun, later_asked, end = threading.Event(), threading.Event(), threading.Event()
    copied = []

    def copy(action, *_):
        copied.append(action.view)
        if action.view == "later":
            end.wait(WAIT_S)
        else:
            begun.set()
            later_asked.wait(WAIT_S)
        return e.Copied(action.stamp, action.view)

    monkeypatch.setattr(performer._equipment.stores, "copy", copy)
    earlier = e.CopyObjects(STAMP, None, "earlier", (), learning=True)
    later = e.CopyObjects(STAMP, None, "later", (), learning=True)
    before = set(threading.enumerate())
    performer.perform(earlier)
    assert begun.wait(WAIT_S)
    (thread,) = [one for one in set(threading.enumerate()) - before if one.name == "copy"]
    performer.perform(later)
    later_asked.set()
    thread.join(WAIT_S)
    assert events.empty()
    performer.perform(later)
    end.set()
    assert events.get(timeout=WAIT_S) == e.Copied(STAMP, "later")
    assert copied == ["earlier", "later"], "it was asked for twice, and copied once"


def test_a_copy_that_goes_wrong_again_and_again_stops_the_driver(driver):
    performer, events, _ = driver
    for _ in range(MOST_IN_A_ROW - 1):
        performer.perform(COPY)
        assert isinstance(events.get(timeout=WAIT_S), e.CopyFailed)
    performer.perform(COPY)
    error = events.get(timeout=WAIT_S)
    assert isinstance(error, EngineError)
    assert str(error) == f"copying objects between state servers failed 5 times in a row: {TOLD}"
    performer.perform(COPY)
    assert events.empty(), "there is nothing more to be had of it"


def test_only_what_goes_wrong_in_a_row_counts(driver, monkeypatch):
    performer, events, _ = driver
    stores = performer._equipment.stores
    for _ in range(3):
        for _ in range(MOST_IN_A_ROW - 1):
            performer.perform(COPY)
            assert isinstance(events.get(timeout=WAIT_S), e.CopyFailed)
        with monkeypatch.context() as mended:
            mended.setattr(stores, "copy", lambda action, *_: e.Copied(action.stamp))
            performer.perform(COPY)
            assert events.get(timeout=WAIT_S) == e.Copied(STAMP)


@pytest.mark.parametrize("what", ["copy", "delete", "forget"])
def test_a_permanent_error_in_a_copy_or_a_deletion_stops_the_driver(driver, monkeypatch, what):
    """With that very error, whose exit code the process ends with."""
    performer, events, _ = driver
    wrong = NewerFormatError("the object was written by a newer release; install that")
    for name in ("delete", "forget"):
        monkeypatch.setattr(performer._equipment.stores, name, quiet)
    monkeypatch.setattr(performer._equipment.stores, what, raising(wrong))
    performer.perform(COPY if what == "copy" else e.Forget(STAMP, 0, (), (ATTEMPT,)))
    assert events.get(timeout=WAIT_S) is wrong


@pytest.mark.parametrize("error", [UnreachableError("away"), FencedError("a newer one")])
def test_a_deletion_that_is_made_later_or_by_another_stops_nobody(driver, monkeypatch, error):
    performer, events, _ = driver
    monkeypatch.setattr(performer._equipment.stores, "forget", raising(error))
    deleted: queue.SimpleQueue[e.Forget] = queue.SimpleQueue()
    monkeypatch.setattr(performer._equipment.stores, "delete", deleted.put)
    forget = e.Forget(STAMP, 0, (), (ATTEMPT,))
    performer.perform(forget)
    assert deleted.get(timeout=WAIT_S) == forget
    performer.close()
    assert events.empty()


@pytest.mark.parametrize("error", [ObjectTooLargeError("560 MB"), UnreachableError("away")])
def test_dead_letters_that_no_server_will_take_stop_the_driver(driver, monkeypatch, error):
    performer, events, told = driver
    monkeypatch.setattr(
        performer._equipment.stores, "put_everywhere", raising(error), raising=False
    )
    performer.perform(e.WriteDead("1.1.1.1/dead", STAMP, 1, ()))
    performer._asking.stop()
    performer._asking.join(WAIT_S)
    assert events.empty() == error.retryable
    assert events.empty() or events.get() is error
    assert told.exists() == error.retryable


class Shown:
    """A publisher of one sink whose ``publish`` raises in turn what is in ``errors``."""

    def __init__(self, *errors: BaseException | None) -> None:
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.failed: queue.SimpleQueue[Exception] = queue.SimpleQueue()
        self.errors = list(errors)
        sink = SimpleNamespace(name="rows", publish=self.show)
        retired = SimpleNamespace(shares=lambda sealed, sinks: ([], [(sink, [])]))
        self.publisher = Publisher(
            [sink],  # type: ignore[list-item]
            None,  # type: ignore[arg-type]
            self.events.put,
            retired,  # type: ignore[arg-type]
            quiet,
            self.failed.put,
        )
        for _ in errors:
            self.publisher.publish(Sealed(7, "digest", ()), 1)  # type: ignore[arg-type]
        self.publisher._thread.shutdown(wait=True)

    def show(self, *_: Any) -> None:
        error = self.errors.pop(0)
        if error is not None:
            raise error

    def told(self) -> list[Any]:
        return [self.events.get_nowait() for _ in range(self.events.qsize())]


def test_a_window_that_cannot_be_shown_is_tried_again_a_few_times():
    odd = ZeroDivisionError("nobody thought of this")
    shown = Shown(*[odd] * (MOST_IN_A_ROW - 1), None, *[odd] * (MOST_IN_A_ROW - 1))
    assert shown.failed.empty()
    failed = e.PublishFailed(7, TOLD)
    assert shown.told() == [*[failed] * 4, e.Published(7), *[failed] * 4]
    (error,) = (Shown(*[odd] * MOST_IN_A_ROW).failed.get_nowait(),)
    assert isinstance(error, EngineError)
    assert str(error) == f"showing window 7 failed 5 times in a row: {TOLD}"


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (SinkUnavailableError("away"), e.PublishFailed(7, "away")),
        (UnreachableError("away"), e.PublishFailed(7, "away")),
        (SinkError("other data"), e.SinkRefused("other data", fenced=False)),
        (FencedError("a newer one"), e.SinkRefused("a newer one", fenced=True)),
        (NewerFormatError("install the newer release"), None),
    ],
)
def test_what_becomes_of_a_window_that_cannot_be_shown_is_the_errors_own_word(error, event):
    shown = Shown(*[error] * 7)
    assert shown.told() == ([event] * 7 if event is not None else [])
    failed = [shown.failed.get_nowait() for _ in range(shown.failed.qsize())]
    assert failed == ([] if event is not None else [error] * 7)


@pytest.mark.parametrize("odd", ODD, ids=error_text)
def test_whatever_a_sink_raises_is_its_error(odd):
    shown = Shown(*[odd] * MOST_IN_A_ROW)
    assert shown.told() == [e.PublishFailed(7, error_text(odd))] * MOST_IN_A_ROW
    assert isinstance(shown.failed.get_nowait(), EngineError)


def test_a_sink_error_that_cannot_say_what_it_is_is_one_all_the_same():
    class MuteSinkError(MuteError, SinkError):
        pass

    assert Shown(MuteSinkError()).told() == [e.SinkRefused("", fenced=False)]


@pytest.mark.parametrize("odd", ODD, ids=error_text)
def test_whatever_a_callback_raises_stops_nothing(odd):
    source = SimpleNamespace(name="in", on_ack=raising(odd), on_fail=quiet)
    callbacks = Callbacks([])
    callbacks._listening = [source]  # type: ignore[list-item]
    intent = Intent(7, (RootRange("in", 0, 0, 1),), ())
    callbacks.tell(7, SimpleNamespace(intent=intent, replays=(), letters=()))  # type: ignore[arg-type]


@pytest.mark.parametrize("odd", ODD, ids=error_text)
def test_an_errand_that_ends_its_thread_ends_the_driver(odd):
    failed: queue.SimpleQueue[Exception] = queue.SimpleQueue()
    Errands("asking", broken, failed.put).do("it", raising(odd))
    error = failed.get(timeout=WAIT_S)
    assert error is odd or (isinstance(error, EngineError) and str(error) == error_text(odd))


@pytest.mark.parametrize("odd", ODD, ids=error_text)
def test_whatever_an_attempt_raises_blames_no_root(driver, monkeypatch, odd):
    performer, events, _ = driver
    assert ended(driver, monkeypatch, odd) == [e.RunDied(ATTEMPT, error_text(odd))]
    monkeypatch.setattr(performer._equipment.verdicts, "open", raising(odd))
    performer.perform(e.OpenLog(ATTEMPT, 10))
    assert events.get(timeout=WAIT_S) == e.RunDied(ATTEMPT, error_text(odd))


def test_what_an_attempt_cannot_even_tell_ends_the_driver(driver, monkeypatch):
    class MuteSourceError(MuteError, SourceError):
        pass

    (told,) = ended(driver, monkeypatch, MuteSourceError())
    assert isinstance(told, TypeError)


def test_rows_are_not_verified_while_their_sink_shows_others():
    shows, shown = threading.Event(), threading.Event()
    inside = []

    def publish(*_: Any) -> None:
        shows.set()
        shown.wait(WAIT_S)
        inside.append("shown")

    sink = SimpleNamespace(name="rows", publish=publish, verify=lambda _: inside.append("verified"))
    retired = SimpleNamespace(shares=lambda sealed, sinks: ([], [(sink, [])]))
    publisher = Publisher([sink], None, quiet, retired, quiet, broken)  # type: ignore[arg-type, list-item]
    publisher.publish(Sealed(7, "digest", ()), 1)  # type: ignore[arg-type]
    assert shows.wait(WAIT_S)
    report = SimpleNamespace(staged=(Staged("rows", "name", "d", 1, 1),))
    verifying = threading.Thread(target=publisher.verify, args=([report],))
    verifying.start()
    verifying.join(0.1)
    shown.set()
    verifying.join(WAIT_S)
    publisher.stop()
    assert inside == ["shown", "verified"]


@pytest.mark.parametrize("jvm", ["gone", "hangs"])
def test_the_end_goes_on_without_a_jvm_that_answers(driver, monkeypatch, jvm):
    performer, _, _ = driver
    monkeypatch.setattr(performing, "CANCEL_S", 0.01)
    ends, stopped = threading.Event(), []
    gone = Py4JNetworkError("while trying to connect to the Java server")
    cancel = raising(gone) if jvm == "gone" else ends.wait
    performer._active = SimpleNamespace(cancel_all=cancel)
    monkeypatch.setattr(performer._equipment.publisher, "stop", lambda: stopped.append(jvm))
    performer.close()
    ends.set()
    performer._active = None
    assert jvm in stopped


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

    monkeypatch.setattr(performer._equipment.verdicts, "open", refused)
    performer.perform(e.OpenLog(ATTEMPT, 10))
    failed = e.RunFailed(ATTEMPT, str(wrong), ExitCode.INVALID_TOPOLOGY)
    assert events.get(timeout=WAIT_S) == failed


class Ahead:
    """Verdicts and a runner that say what they were asked for; beginning waits for ``may``."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.begun, self.may = threading.Event(), threading.Event()
        self.end: BaseException | None = None
        self.one_task = False
        self.submits, self.ends, self.dies = threading.Event(), threading.Event(), False
        self.submits.set()
        self.ends.set()

    def as_one(self, roots: int) -> bool:
        return self.one_task

    def open(self, attempt: AttemptId, roots: int, one_task: bool) -> None:
        self.begun.set()
        self.may.wait(WAIT_S)
        if self.end is not None:
            raise self.end
        self.did.append(f"open {attempt.window} with {roots}" + (", one task" if one_task else ""))

    def forget(self, attempts: Any) -> None:
        self.did += [f"forget {one.window}" for one in attempts]

    def give_up(self, attempt: AttemptId) -> None:
        pass

    def planned(self, plan: AttemptPlan) -> AttemptPlan:
        return plan

    def prepare(self, plan: AttemptPlan) -> str:
        self.did.append(f"prepare {plan.id.window}")
        return f"first of {plan.id.window}"

    def run(
        self, plan: AttemptPlan, first: str | None, submitted: Callable[[], None]
    ) -> AttemptResult:
        self.did.append(f"run {plan.id.window} behind {first}")
        assert self.submits.wait(WAIT_S)
        if self.dies:
            raise AttemptDied("before anybody works on it")
        submitted()
        assert self.ends.wait(WAIT_S)
        return AttemptResult((1,), ())

    def drop(self, attempt: AttemptId) -> None:
        self.did.append(f"drop {attempt.window}")

    def cancel_all(self) -> None:
        pass


@pytest.fixture
def ahead(driver, monkeypatch):
    """A driver that runs attempts, with what it asks for."""
    performer, _, _ = driver
    found, equipment = Ahead(), performer._equipment
    for part, answers in ((equipment.planner, "busy"), (equipment.publisher, "verify")):
        monkeypatch.setattr(part, answers, quiet, raising=False)
    performer._equipment = replace(equipment, verdicts=found, runner=lambda _: found)
    performer._active = found
    yield performer, found
    for event in (found.may, found.submits, found.ends):
        event.set()
    performer._equipment = equipment


def next_plan(window: int, roots: int = LARGE) -> AttemptPlan:
    intent = Intent(window, (RootRange("lines", 0, 0, roots),))
    return AttemptPlan(AttemptId(1, window, 1), STAMP, intent, frozenset(), {}, {})


def settle(performer: RealPerformer) -> None:
    performer._ahead.submit(quiet).result(WAIT_S)


def test_what_was_prepared_is_announced_and_begun_before_its_turn(driver, ahead):
    performer, asked = ahead
    asked.may.set()
    asked.one_task = True
    performer.perform(e.Prepare(next_plan(2), tracked=True))
    settle(performer)
    assert asked.did == [f"open 2 with {LARGE}, one task", "prepare 2"]
    performer.perform(e.Run(next_plan(2), prepared=True))
    assert driver[1].get(timeout=WAIT_S) == e.RunDone(next_plan(2).id, (1,), ())
    assert asked.did[2:] == ["run 2 behind first of 2"]


def test_of_few_roots_the_log_alone_is_prepared(driver, ahead):
    performer, asked = ahead
    asked.may.set()
    few = next_plan(2, FEW_ROOTS)
    performer.perform(e.Prepare(few, tracked=True))
    settle(performer)
    performer.perform(e.Run(few, prepared=True))
    assert driver[1].get(timeout=WAIT_S) == e.RunDone(few.id, (1,), ())
    assert asked.did == [f"open 2 with {FEW_ROOTS}", "run 2 behind None"]


def test_what_is_given_up_while_it_begins_is_ended_and_forgotten_behind_that(ahead):
    """Else it would be announced after it was forgotten, and stay in the log."""
    performer, asked = ahead
    performer.perform(e.Prepare(next_plan(2), tracked=True))
    assert asked.begun.wait(WAIT_S)
    performer.perform(e.Cancel(next_plan(2).id))
    asked.may.set()
    settle(performer)
    assert asked.did == [f"open 2 with {LARGE}", "prepare 2", "drop 2", "forget 2"]


def test_what_is_given_up_before_it_begins_never_does(ahead):
    performer, asked = ahead
    for window in (2, 3):
        performer.perform(e.Prepare(next_plan(window), tracked=True))
    assert asked.begun.wait(WAIT_S)
    performer.perform(e.Cancel(next_plan(3).id))
    asked.may.set()
    settle(performer)
    assert asked.did == [f"open 2 with {LARGE}", "prepare 2"]


def unannounced(performer: RealPerformer, asked: Ahead, error: StateServerError) -> None:
    """A window is prepared whose log cannot be opened."""
    asked.end = error
    asked.may.set()
    performer.perform(e.Prepare(next_plan(2), tracked=True))
    settle(performer)
    assert asked.did == []


def test_what_cannot_be_announced_before_its_turn_dies_when_that_has_come(driver, ahead):
    performer, asked = ahead
    unannounced(performer, asked, UnreachableError("state server s0 is away"))
    assert driver[1].empty()
    performer.perform(e.Run(next_plan(2), prepared=True))
    died = e.RunDied(next_plan(2).id, str(asked.end), member_lost=True)
    assert driver[1].get(timeout=WAIT_S) == died
    assert asked.did == []


def test_a_log_that_is_back_by_then_holds_no_window_up(driver, ahead):
    performer, asked = ahead
    unannounced(performer, asked, StateServerError("no acker is alive"))
    asked.end = None
    performer.perform(e.Run(next_plan(2), prepared=True))
    assert driver[1].get(timeout=WAIT_S) == e.RunDone(next_plan(2).id, (1,), ())
    assert asked.did == [f"open 2 with {LARGE}", "run 2 behind None"]


def test_a_driver_that_is_fenced_when_the_turn_has_come_says_so_first(driver, ahead):
    performer, asked = ahead
    unannounced(performer, asked, StateServerError("no acker is alive"))
    asked.end = FencedError("execution 2 has taken over")
    performer.perform(e.Run(next_plan(2), prepared=True))
    assert driver[1].get(timeout=WAIT_S) == e.SinkRefused(str(asked.end), fenced=True)


def test_a_fence_that_a_task_has_met_ends_its_attempt(driver, monkeypatch):
    fenced = FencedError("execution 2 has taken over")
    (told,) = ended(driver, monkeypatch, fenced)
    assert told == e.RunFailed(ATTEMPT, str(fenced), fenced.exit_code)


def test_a_driver_that_is_fenced_hears_it_before_the_turn_of_what_it_prepares(driver, ahead):
    performer, asked = ahead
    asked.end = FencedError("execution 2 has taken over")
    asked.may.set()
    performer.perform(e.Prepare(next_plan(2), tracked=True))
    assert driver[1].get(timeout=WAIT_S) == e.SinkRefused(str(asked.end), fenced=True)


class Reading:
    """Runs attempts that end with what is in ``ends`` in turn: an error, or ``None`` for well."""

    def __init__(self, *ends: BaseException | None) -> None:
        self.ends = list(ends)

    def as_one(self, roots: int) -> bool:
        return True

    def run(self, plan: Any, first: Any, submitted: Any) -> AttemptResult:
        end = self.ends.pop(0)
        if end is not None:
            raise end
        return AttemptResult((1,), ())

    def cancel_all(self) -> None:
        pass


def ended(driver: Any, monkeypatch: Any, *ends: BaseException | None) -> list[e.Event]:
    """What attempts with these ends are told as."""
    performer, events, _ = driver
    equipment, reading = performer._equipment, Reading(*ends)
    plan = AttemptPlan(ATTEMPT, STAMP, Intent(1, (), ()), frozenset(), {}, ())
    for part, answers in ((equipment.planner, "busy"), (equipment.publisher, "verify")):
        monkeypatch.setattr(part, answers, quiet, raising=False)
    monkeypatch.setattr(equipment.verdicts, "planned", lambda plan: plan, raising=False)
    monkeypatch.setattr(performer, "_equipment", replace(equipment, runner=lambda _: reading))
    told = []
    for _ in ends:
        performer.perform(e.Run(plan))
        told.append(events.get(timeout=WAIT_S))
    return told


def test_a_window_whose_source_cannot_be_read_now_runs_again_a_few_times(driver, monkeypatch):
    """No root is blamed for it, and the run ends with the source's own text and code."""
    away = SourceAwayError("source 'lines': /texts cannot be read")
    again = e.RunDied(ATTEMPT, str(away))
    few = [away] * (MOST_IN_A_ROW - 1)
    told = ended(driver, monkeypatch, *few, None, *few, away)
    assert told == [
        *[again] * len(few),
        e.RunDone(ATTEMPT, (1,), ()),
        *[again] * len(few),
        e.RunFailed(ATTEMPT, str(away), ExitCode.SOURCE),
    ]


def test_a_window_whose_input_is_wrong_or_will_be_back_needs_no_such_tries(driver, monkeypatch):
    coming = SourceAwayError("its server starts")
    coming.retryable = True
    told = ended(driver, monkeypatch, *[coming] * 9, SourceError("it shrank"))
    assert told == [
        *[e.RunDied(ATTEMPT, "its server starts", member_lost=True)] * 9,
        e.RunFailed(ATTEMPT, "it shrank", ExitCode.SOURCE),
    ]


def test_leftovers_that_a_sink_keeps_hold_no_window_up():
    events: queue.SimpleQueue[e.Event] = queue.SimpleQueue()
    notices: queue.SimpleQueue[e.Notify] = queue.SimpleQueue()
    discarded: queue.SimpleQueue[e.Forget] = queue.SimpleQueue()
    sinks = [
        SimpleNamespace(name="first", discard=broken),
        SimpleNamespace(name="second", discard=discarded.put),
    ]
    publisher = Publisher(
        sinks,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        events.put,
        None,  # type: ignore[arg-type]
        notices.put,
        broken,
    )
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
    stores = SimpleNamespace()
    asking = Verdicts(stores, lambda: (), events.put, quiet, 64)  # type: ignore[arg-type]
    monkeypatch.setattr(asking, "_begun", lambda: control)
    monkeypatch.setattr(asking, "_log", SimpleNamespace(wait_verdict=broken))
    asking.ask(CloseMarker(ATTEMPT, Intent(1, (), ()), frozenset(), (), ()))
    told = events.get(timeout=WAIT_S)
    assert told == e.RunFailed(ATTEMPT, "ZeroDivisionError: nobody thought of this")
    asking.stop()


def test_a_verdict_that_is_wrong_for_good_stops_the_driver_with_its_own_error(monkeypatch):
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    wrong = NewerFormatError("the verdict was written by a newer release; install that")
    stores = SimpleNamespace()
    asking = Verdicts(
        stores,  # type: ignore[arg-type]
        lambda: (),
        events.put,
        quiet,
        64,
    )
    monkeypatch.setattr(asking, "_begun", lambda: SimpleNamespace(close=quiet, slices=quiet))
    monkeypatch.setattr(asking, "_log", SimpleNamespace(wait_verdict=raising(wrong)))
    asking.ask(CloseMarker(ATTEMPT, Intent(1, (), ()), frozenset(), (), ()))
    failed = e.RunFailed(ATTEMPT, str(wrong), ExitCode.NEWER_FORMAT)
    assert events.get(timeout=WAIT_S) == failed
    asking.stop()


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (StateServerError("it cannot write its file"), True),
        (UnreachableError("away"), True),
        (ObjectTooLargeError("more parallelism"), False),
        (SinkUnavailableError("away"), True),
        (SinkError("other data"), False),
        (SourceAwayError("no permission"), False),
        (SourceError("it shrank"), False),
        (EngineError("nobody knows"), False),
    ],
)
def test_whether_an_error_may_pass_is_an_attribute_that_travels_with_it(error, passes):
    assert error.retryable is passes
    found = find_error(str(TaskError(error, ATTEMPT)), ATTEMPT)
    assert type(found) is type(error)
    assert found.retryable is passes


def test_only_what_will_not_come_back_by_itself_may_be_given_up():
    assert SourceError("the file is gone").gone
    assert not SourceAwayError("the folder cannot be listed").gone
    passing = SourceError("its server starts")
    passing.retryable = True
    assert not passing.gone


def test_what_nobody_waits_for_comes_behind_all_that_is_under_way(monkeypatch):
    monkeypatch.setattr(errands, "GIVE_WAY_S", 10 * WAIT_S)
    foreground, came = Foreground(), threading.Event()
    foreground.give_way()  # nothing is under way
    for what in ("run", "show"):
        foreground.began(what)
    waiting = threading.Thread(target=lambda: (foreground.give_way(), came.set()))
    waiting.start()
    foreground.over("run")
    foreground.over("run")  # which an attempt says again when it ends
    assert not came.wait(0.1), "what is shown is still under way"
    foreground.over("show")
    waiting.join(WAIT_S)
    assert came.is_set()


def test_what_nobody_waits_for_does_not_wait_for_long():
    foreground = Foreground()
    foreground.began("an attempt whose task does not come")
    began_s = time.monotonic()
    foreground.give_way()
    assert GIVE_WAY_S <= time.monotonic() - began_s < WAIT_S


@pytest.mark.parametrize("dies", [False, True])
def test_leftovers_are_deleted_once_the_next_attempt_is_on_its_way(ahead, monkeypatch, dies):
    """And what is shown of the window before is shown."""
    monkeypatch.setattr(errands, "GIVE_WAY_S", 10 * WAIT_S)
    performer, asked = ahead
    asked.submits, asked.ends, asked.dies = threading.Event(), threading.Event(), dies
    shown: Future[None] = Future()
    stores, publisher = performer._equipment.stores, performer._equipment.publisher
    deletes: queue.SimpleQueue[e.Forget] = queue.SimpleQueue()
    monkeypatch.setattr(stores, "delete", deletes.put)
    monkeypatch.setattr(publisher, "publish", lambda *_: shown, raising=False)
    forget = e.Forget(STAMP, 0, (), ())
    performer.perform(forget)
    deletes.get(timeout=WAIT_S)  # where no window runs nothing is waited for
    performer.perform(e.Publish(Sealed(7, "digest", ()), 1))  # type: ignore[arg-type]
    performer.perform(e.Run(next_plan(8)))
    performer.perform(forget)
    for way_is_free in (asked.submits.set, lambda: shown.set_result(None)):
        with pytest.raises(queue.Empty):
            deletes.get(timeout=0.1)
        way_is_free()
    assert deletes.get(timeout=WAIT_S) == forget
    asked.ends.set()


def test_who_has_a_window_shown_knows_when_that_was_tried_also_where_it_fails():
    events: queue.SimpleQueue[e.Event] = queue.SimpleQueue()
    sink = SimpleNamespace(name="rows", publish=raising(SinkUnavailableError("away")))
    retired = SimpleNamespace(shares=lambda sealed, sinks: ([], [(sink, [])]))
    publisher = Publisher([sink], None, events.put, retired, quiet, broken)  # type: ignore[arg-type, list-item]
    publisher.publish(Sealed(7, "digest", ()), 1).result(WAIT_S)  # type: ignore[arg-type]
    assert isinstance(events.get_nowait(), e.PublishFailed)
    publisher.stop()
