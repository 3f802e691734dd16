"""Small windows in a task that stays: real Spark, and what befalls it."""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from engine_support import WordWindows, assert_idle, compiled

from millrace.engine.jobs import resident as residents
from millrace.engine.jobs import runner as runners
from millrace.engine.jobs import sizes
from millrace.engine.jobs.resident import TRIES, NotResidentError, Resident, _shut
from millrace.engine.jobs.runner import AttemptDied
from millrace.engine.jobs.session import SessionSettings, build_session
from millrace.engine.program.link import Caller, Place, TaskLink, Work
from millrace.engine.program.program import Program
from millrace.protocol.types import AttemptId, Evidence, Intent, Replay, RootRange
from millrace.state.errors import ObjectTooLargeError
from millrace_e2e.waiting import until

WAIT_S = 60.0

COUNT = """
sources: [{name: lines, files: {path: texts}}]
processors:
  - {name: split, function: "FUNCTION", inputs: [{from: lines}]}
  - name: last
    inputs: [{from: split, key: [word]}]
    aggregate: {columns: [{name: n, function: count}]}
sinks: [{name: rows, inputs: [{from: last}], files: {path: rows, format: jsonLines}}]
"""


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    session = build_session(SessionSettings("resident", tmp_path_factory.mktemp("spark")))
    yield session
    session.stop()


@pytest.fixture
def windows(tmp_path, state_server, uid, spark):
    (tmp_path / "texts").mkdir()
    made = []

    def make(function="wordsteps:split_batch", small=100) -> Counts:
        program = compiled(COUNT.replace("FUNCTION", function), tmp_path, uid)
        made.append(Counts(program, state_server.address, spark, small))
        return made[-1]

    yield make
    for one in made:
        one.close()
    assert_idle(spark)


class Counts(WordWindows):
    def count(self, *words: str) -> int:
        """Feed words and run them; the number of Spark's task."""
        self.feed(*words)
        outcome = self.go()
        self.check(outcome, *words)
        (task,) = {report.task.task_attempt for report in outcome.reports.values()}
        return task


def end_worker(run) -> None:
    os.kill(run.worker(), signal.SIGKILL)


def test_small_windows_are_one_task_of_sparks(windows):
    run = windows()
    assert len({run.count("a", "b"), run.count("a"), run.count("c", "a")}) == 1


def test_a_larger_window_has_all_slots(windows, tmp_path):
    """Each of its tasks waits for the other."""
    run = windows("gates:meet", small=3)
    first = run.count("a", "b")
    run.feed(f"meet {tmp_path}", "a", f"meet {tmp_path}", "b")
    outcome = run.go()
    assert outcome.verdict.complete
    assert run.shape == (2, 2)
    assert sum(row["n"] for row in outcome.rows["rows"] if row["word"] == "meet") == 2
    assert run.count("d") != first


def test_a_changed_program_gets_another_task(windows):
    run = windows()
    first = run.count("a")
    run.runner.use(replace(run.program, tuple_timeout_s=29.0))
    assert run.count("a") != first


def test_a_worker_that_dies_between_windows_costs_none(windows):
    run = windows()
    first = run.count("a")
    end_worker(run)
    second = run.count("a", "b")
    third = run.count("b")
    assert first not in (second, third)
    assert run.count("b") == third, "one that Spark would run no second time is not kept"


def test_both_runs_of_a_task_may_end_between_windows(windows):
    run = windows("deadlysteps:leave")
    run.count("a")
    stay, change = run.stay(), run.runner._resident._change
    for runs in (2, 3):
        end_worker(run)
        with change:
            wanted = lambda runs=runs: stay.over if runs > 2 else stay.runs == runs and stay.link  # noqa: E731
            assert change.wait_for(wanted, 60.0)
    run.count("b")
    run.feed("bad")
    with pytest.raises(AttemptDied, match="exit code 7"):
        run.attempt(run.plan())


def test_a_worker_that_is_killed_within_a_window_runs_it_again(windows, tmp_path):
    run = windows("deadlysteps:killed_once")
    assert run.count("a") == run.count("b")
    run.feed("a", f"kill {tmp_path}/mark")
    outcome = run.go()
    assert {row["word"]: row["n"] for row in outcome.rows["rows"]} == {"a": 2, "kill": 1}
    assert outcome.verdict.complete
    assert run.stay().runs == 2, "it was run again within its stay"
    assert (tmp_path / "mark").exists()
    run.count("a")


def test_user_code_that_ends_every_worker_is_blamed_and_the_next_window_runs(windows):
    run = windows("deadlysteps:leave")
    assert run.count("a") == run.count("b")
    run.feed("bad")
    with pytest.raises(AttemptDied, match="exit code 7") as died:
        run.attempt(run.plan())
    assert died.value.evidence is Evidence.USER_CODE
    del run.fed["bad"]
    run.count("a")
    run.count("a", "b")


@pytest.fixture
def three_are_many(monkeypatch):
    """A window of three records is a larger one, and one task would soon be done with it."""
    for module in (runners, sizes):
        monkeypatch.setattr(module, "FEW_ROOTS", 2)
    monkeypatch.setattr(sizes.WindowSizes, "_soon_done", lambda *_: True)


def test_a_larger_window_that_dies_as_one_task_blames_nobody_and_is_several(
    windows, three_are_many
):
    """Which may have room for what one had none for; what ends them, too, is evidence."""
    run = windows("deadlysteps:leave")
    run.count("a", "b", "c")
    assert run.shape == (1,)
    run.feed("bad", "a", "b")
    intent = run.plan()
    with pytest.raises(AttemptDied, match="exit code 7") as alone:
        run.attempt(intent)
    assert alone.value.evidence is Evidence.NONE
    with pytest.raises(AttemptDied, match="exit code 7") as several:
        run.attempt(intent)
    assert several.value.evidence is Evidence.USER_CODE
    run.feed("a", "b", "c")
    assert run.go().verdict.complete
    assert run.shape == (2, 2)


def test_what_several_tasks_can_store_stops_no_driver_where_one_cannot(
    windows, three_are_many, monkeypatch
):
    run = windows()
    done = run.runner._run

    def full(plan, whole, *rest):
        if whole:
            raise ObjectTooLargeError("an object of 600 MiB")
        return done(plan, whole, *rest)

    monkeypatch.setattr(run.runner, "_run", full)
    run.feed("a", "b", "c")
    intent = run.plan()
    with pytest.raises(AttemptDied, match="600 MiB") as died:
        run.attempt(intent)
    assert died.value.evidence is Evidence.NONE
    assert not died.value.member_lost
    assert run.attempt(intent).verdict.complete
    assert run.shape == (2, 2)
    monkeypatch.setattr(run.runner, "_run", lambda *_: full(None, True))
    run.feed("a")
    with pytest.raises(ObjectTooLargeError):
        run.attempt(run.plan())


def test_larger_windows_are_one_task_only_where_that_costs_no_job(
    windows, three_are_many, monkeypatch
):
    runner = windows().runner
    few, many = (Intent(1, (RootRange("lines", 1, 0, n),)) for n in (2, 3))
    assert runner._is_whole(few)
    assert runner._is_whole(many)
    assert runner.most_tasks(3, 2) == 1
    assert runner.as_one(3)
    runner._resident._rests_until_s = time.monotonic() + 60.0
    assert runner._is_whole(few)
    assert not runner._is_whole(many)
    assert runner.most_tasks(3, 2) == 2
    assert not runner.as_one(3)
    runner._resident._rests_until_s = 0.0
    assert runner._is_whole(many)
    monkeypatch.setattr(Program, "sql_steps", ["sums"])
    assert runner._is_whole(few)
    assert not runner._is_whole(many)


def test_many_replays_are_several_tasks(windows, three_are_many):
    """Each of them is read by itself."""
    runner = windows().runner
    for count in (2, 3):
        replays = tuple(Replay("lines", 1, n, 1, 0.0) for n in range(count))
        assert runner._is_whole(Intent(1, (), replays)) is (count == 2)


def test_an_attempt_is_cancelled_in_the_middle(windows, spark, tmp_path):
    run = windows("deadlysteps:slow")
    gate = tmp_path / "gate"
    gate.touch()
    run.feed(str(gate))
    canceller = threading.Thread(target=cancel_once_there, args=(run, tmp_path / "gate.started"))
    canceller.start()
    with pytest.raises(AttemptDied, match="cancelled") as died:
        run.attempt(run.plan())
    canceller.join()
    assert died.value.evidence is Evidence.NONE
    assert_idle(spark)


def cancel_once_there(run, mark: Path) -> None:
    until(mark.exists, "user code", WAIT_S)
    run.runner.cancel(run.current)


def test_an_attempt_that_was_cancelled_before_it_began_does_not_run(windows, spark):
    run = windows("gates:rest")
    run.feed("a")
    run_attempt = run.runner.run

    def cancel_first(plan, first=None):
        run.runner.cancel(plan.id)
        return run_attempt(plan, first)

    run.runner.run = cancel_first
    with pytest.raises(AttemptDied, match="cancelled"):
        run.attempt(run.plan())
    assert_idle(spark)


def test_an_attempt_that_waits_for_a_slot_is_cancelled_at_once(windows, spark, tmp_path):
    """And that it found none says nothing of the way to the driver."""
    run = windows()
    run.feed("a")
    intent = run.plan()
    with all_slots_taken(spark, tmp_path):
        for _ in range(TRIES):
            threading.Timer(0.2, lambda: run.runner.cancel(run.current)).start()
            with pytest.raises(AttemptDied, match="cancelled"):
                run.attempt(intent)
    run.attempt(intent)
    assert run.stay() is not None


@contextmanager
def all_slots_taken(spark, folder):
    """Tasks that wait for the end of the block."""
    context, gate = spark.sparkContext, folder / "gate"

    def wait(name):
        (gate / str(name)).touch()
        while gate.exists():
            time.sleep(0.01)
            if (gate / "open").exists():
                return

    gate.mkdir()
    slots = context.defaultParallelism
    numbers = context.parallelize(range(slots), slots)
    job = threading.Thread(target=lambda: numbers.foreach(wait), daemon=True)
    job.start()
    until(lambda: len(list(gate.iterdir())) == slots, "a task in every slot", WAIT_S)
    try:
        yield
    finally:
        (gate / "open").touch()
        job.join()


def test_a_cancel_that_comes_with_the_answer_costs_the_next_attempt_nothing(windows, monkeypatch):
    run = windows()
    run.count("a")
    receive = TaskLink.receive

    def cancel_too(link, purpose, *rest):
        said = receive(link, purpose, *rest)
        if purpose == "made":
            monkeypatch.undo()
            run.runner.cancel(run.current)
        return said

    for _ in range(5):
        monkeypatch.setattr(TaskLink, "receive", cancel_too)
        run.count("a")
        run.count("b")


def test_the_cancelling_of_another_attempt_leaves_it_alone(windows):
    run = windows()
    first = run.count("a")
    run.runner.cancel(run.current)
    assert run.count("a") == first


def test_one_that_cannot_connect_leaves_windows_jobs_of_their_own_for_a_while(windows, monkeypatch):
    run = windows()
    resident = run.runner._resident
    monkeypatch.setattr(Place, "listen", elsewhere)
    numbers = [run.count("a") for _ in range(TRIES + 2)]
    assert len(set(numbers)) == TRIES + 2
    assert resident._begun == TRIES, "it is tried a few times, and no more"
    monkeypatch.undo()
    _shut(resident._listener)
    resident._listener, resident._rests_until_s = None, 0.0
    assert run.count("a") == run.count("b")


LISTEN = Place.listen


def elsewhere(place: Place) -> socket.socket:
    """Where tasks do not look for a driver."""
    return LISTEN(Place(place.host + ".driver"))


def test_where_nobody_can_listen_windows_are_jobs_of_their_own(windows, monkeypatch):
    monkeypatch.setattr(runners, "_place", lambda _: Place("/nowhere/at/all"))
    run = windows()
    assert len({run.count("a"), run.count("a", "b")}) == 2


def test_where_no_thread_can_be_had_windows_are_jobs_of_their_own(windows, monkeypatch):
    start = threading.Thread.start

    def refused(thread):
        if thread.name == "resident":
            raise RuntimeError("can't start new thread")
        start(thread)

    run = windows()
    monkeypatch.setattr(threading.Thread, "start", refused)
    run.count("a")
    monkeypatch.undo()
    assert run.count("a") == run.count("b")


def test_a_death_before_a_window_is_no_evidence_about_it(windows, tmp_path):
    """As a job of its own the window would be run twice."""
    run = windows("deadlysteps:killed_once")
    run.count("a")
    with unheard(run):
        end_worker(run)
        run.feed("a", f"kill {tmp_path}/mark")
        outcome = run.go()
    assert {row["word"]: row["n"] for row in outcome.rows["rows"]} == {"a": 2, "kill": 1}


@contextmanager
def unheard(run):
    """The next window comes before it is known that the worker has ended."""
    resident = run.runner._resident
    ready = resident._ready

    def same(kit):
        resident._ready = ready
        return run.stay()

    resident._ready = same
    yield


def test_a_stay_that_fails_before_a_window_has_begun_costs_it_nothing(windows, spark):
    run = windows()
    run.count("a")
    stay = run.stay()
    with unheard(run):
        spark.sparkContext.cancelJobGroup(stay.group)
        change = run.runner._resident._change
        with change:
            assert change.wait_for(lambda: stay.over, 60.0)
        run.count("b")
    assert run.stay() is not stay


@pytest.fixture
def middle(windows, monkeypatch):
    """A run whose task connects through something that can forget a connection."""
    monkeypatch.setattr(residents, "LOST_S", 0.5)
    monkeypatch.setattr(Place, "listen", elsewhere)
    run = windows()
    middle = Middle(run.runner._resident._place.host)
    yield run, middle
    middle.close()


class Middle:
    """Leads connections on, until one of them is ended on one side or all are silenced."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._silent = False
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = LISTEN(Place(path))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                task, _ = self._listener.accept()
            except OSError:
                return
            driver = Place(self._path + ".driver").connect()
            driver.settimeout(None)
            self.pairs.append((task, driver))
            for one, other in ((task, driver), (driver, task)):
                threading.Thread(target=self._lead, args=(one, other), daemon=True).start()

    def _lead(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                if not self._silent:
                    other.sendall(data)

    def reset(self) -> None:
        """The driver hears of an end, the task does not."""
        self.pairs[-1][1].shutdown(socket.SHUT_RDWR)

    def silence(self) -> None:
        """Neither hears anything any more."""
        self._silent = True

    def close(self) -> None:
        _shut(self._listener)
        for one in chain.from_iterable(self.pairs):
            one.close()


def test_a_connection_that_has_ended_for_the_driver_alone_holds_no_window_up(middle, spark):
    run, between = middle
    run.count("a")
    between.reset()
    run.count("b")
    run.count("a")


def test_a_task_that_does_not_hear_that_it_is_to_end_is_cancelled(middle, spark):
    run, between = middle
    run.count("a")
    between.silence()
    run.runner._resident.end()
    assert_idle(spark)


def test_who_is_no_task_of_the_run_changes_nothing(windows):
    run = windows()
    first = run.count("a")
    path = run.runner._resident._place.host
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(path)
        stranger.sendall(bytes(4) + b"garbage" * 100)
        assert run.count("a") == first
    run.runner.rest()
    assert run.count("a", "c") == run.count("d"), "others are listened to"


def test_one_who_tells_slowly_who_it_is_keeps_no_task_waiting(windows):
    run = windows()
    run.count("a")
    path = run.runner._resident._place.host
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(path)
        stranger.sendall(struct.pack("!I", 4000))
        run.runner.rest()
        assert run.count("a") == run.count("b")


def test_too_many_who_tell_nothing_are_refused(windows):
    run = windows()
    first = run.count("a")
    path = run.runner._resident._place.host
    with ExitStack() as strangers:
        for _ in range(64):
            strangers.enter_context(socket.socket(socket.AF_UNIX)).connect(path)
        assert run.count("b") == first
        run.runner._resident.end()
        run.count("a")  # whether it gets through or not
    run.count("b")


def test_an_error_in_a_greeting_ends_no_other(windows, monkeypatch):
    real = residents.answer

    def broken(connection):
        monkeypatch.setattr(residents, "answer", real)
        raise OSError("setsockopt on a connection that was reset")

    run = windows()
    monkeypatch.setattr(residents, "answer", broken)
    run.count("a")
    assert run.count("a") == run.count("b")


class Line:
    closed = False

    def close(self) -> None:
        self.closed = True


def test_an_earlier_run_that_connects_late_is_turned_away():
    resident = Resident(None, Place("nowhere"), "none")
    resident._stay = stay = residents._Stay(1, "kit", "group")
    second, first, other = Line(), Line(), Line()
    resident._connected(second, Caller(1, 1))
    resident._connected(first, Caller(1, 0))
    resident._connected(other, Caller(2, 0))
    assert (second.closed, first.closed, other.closed) == (False, True, True)
    assert stay.link is second


def test_an_answer_to_another_attempt_is_none_to_this(windows, monkeypatch):
    run = windows()
    run.count("a")
    receive = TaskLink.receive

    def other(link, purpose, *rest):
        said = receive(link, purpose, *rest)
        return (replace(run.current, attempt=99), said[1]) if purpose == "made" else said

    monkeypatch.setattr(TaskLink, "receive", other)
    run.feed("a")
    with pytest.raises(AttemptDied, match="instead of"):
        run.attempt(run.plan())


def test_a_task_that_is_over_is_listened_for_no_more(windows, tmp_path, spark):
    run = windows()
    run.count("a")
    place = run.runner._resident._place
    stay = run.stay()
    run.close()
    assert stay.over, "before the JVM can find nobody to tell so"
    assert_idle(spark)
    with pytest.raises(OSError, match=r"refused|No such file"):
        place.connect()


def test_a_task_that_works_is_over_before_the_close_is(windows, spark, tmp_path):
    """It is cancelled, and nobody waits for its attempt any more."""
    run = windows("deadlysteps:slow")
    gate = tmp_path / "gate"
    gate.touch()
    run.feed(str(gate))
    died: list[BaseException] = []

    def attempt():
        try:
            run.attempt(run.plan())
        except AttemptDied as error:
            died.append(error)

    working = threading.Thread(target=attempt)
    working.start()
    until((tmp_path / "gate.started").exists, "user code", WAIT_S)
    stay = run.stay()
    run.close()
    assert stay.over
    working.join()
    assert len(died) == 1
    assert_idle(spark)


def test_nothing_begins_after_the_close(spark, tmp_path):
    place = Place(str(tmp_path / "s"))
    resident = Resident(spark.sparkContext, place, "none")
    resident.close()
    resident.close()
    with pytest.raises(NotResidentError):
        resident.run("kit", AttemptId(1, 1, 1), Work(b"", b""), lambda: False)
    with pytest.raises(OSError, match="No such file"):
        place.connect()


def test_a_driver_listens_where_pods_are_told_that_it_does(windows, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = Place("127.0.0.1", free.getsockname()[1])
    assert Place.of(place.told) == place
    assert Place.of(Place("fd00::7", 7080).told) == Place("fd00::7", 7080)
    monkeypatch.setattr(runners, "_place", lambda _: Place.of(place.told))
    run = windows()
    assert run.count("a") == run.count("b")
    link = run.stay().link
    assert link._connection.getsockname()[1] == place.port
