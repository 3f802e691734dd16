"""Small windows in a task that stays: real Spark, and who befalls it."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from engine_support import SparkWindows, compiled, write_lines

from millrace.engine.jobs import runner as runners
from millrace.engine.jobs.resident import Resident
from millrace.engine.jobs.runner import AttemptDied
from millrace.engine.jobs.session import SessionSettings, build_session
from millrace.engine.program.link import Place
from millrace.protocol.types import Evidence

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


class Counts(SparkWindows):
    """Windows of words, and what they have to come to."""

    fed: Counter[str]
    pids: set[int]

    def feed(self, *words: str) -> None:
        self.fed = getattr(self, "fed", Counter()) + Counter(words)
        folder = Path(self.program.base_path)
        write_lines(folder, list(words), f"{len(list(folder.glob('texts/*'))):06}.txt")

    def count(self, *words: str) -> int:
        """Feed words and run them; the number of Spark's task."""
        self.feed(*words)
        outcome = self.go()
        assert outcome.verdict.complete
        for row in outcome.rows["rows"]:
            assert row["n"] == self.fed[row["word"]]
        assert {row["word"] for row in outcome.rows["rows"]} == set(words)
        (task,) = {report.task.task_attempt for report in outcome.reports.values()}
        return task


def assert_idle(spark) -> None:
    until_s = time.monotonic() + 60.0
    while spark.sparkContext.statusTracker().getActiveStageIds():
        assert time.monotonic() < until_s, "a task runs on"
        time.sleep(0.02)


def stay_of(run):
    return run.runner._resident._stay


def end_worker(run, number=signal.SIGKILL) -> None:
    """Kill the worker that the resident task is in, found by its connection."""
    link = stay_of(run).link
    told = link._connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    os.kill(int.from_bytes(told[:4], "little"), number)


def test_small_windows_are_one_task_of_sparks(windows):
    run = windows()
    assert len({run.count("a", "b"), run.count("a"), run.count("c", "a")}) == 1


def test_a_larger_window_has_all_slots(windows, spark):
    run = windows(small=3)
    first = run.count("a", "b")
    run.feed("a", "b", "c", "d")
    assert run.go().verdict.complete
    assert run.shape == (2, 2)
    assert_idle(spark)
    assert run.count("d") != first


def test_a_changed_program_gets_another_task(windows):
    run = windows()
    first = run.count("a")
    run.runner.use(replace(run.program, tuple_timeout_s=29.0))
    assert run.count("a") != first


def test_a_worker_that_dies_between_windows_costs_none(windows, spark):
    run = windows()
    first = run.count("a")
    stay = stay_of(run)
    end_worker(run)
    second = run.count("a", "b")
    assert second != first
    assert_idle(spark)  # Spark would run it no second time, so it is over
    assert stay_of(run) is not stay
    third = run.count("b")
    assert third not in (first, second)
    assert run.count("b") == third


def test_a_worker_that_is_killed_within_a_window_runs_it_again(windows, tmp_path):
    run = windows("deadlysteps:killed_once")
    run.count("a")
    run.feed("a", f"kill {tmp_path}/mark")
    outcome = run.go()
    assert {row["word"]: row["n"] for row in outcome.rows["rows"]} == {"a": 2, "kill": 1}
    assert outcome.verdict.complete
    assert (tmp_path / "mark").exists()
    run.count("a")


def test_user_code_that_ends_every_worker_is_blamed_and_the_next_window_runs(windows):
    run = windows("deadlysteps:leave")
    run.count("a")
    run.feed("bad")
    with pytest.raises(AttemptDied, match="exit code 7") as died:
        run.attempt(run.plan())
    assert died.value.evidence is Evidence.USER_CODE
    del run.fed["bad"]
    run.count("a")
    run.count("a", "b")


def test_an_attempt_is_cancelled_in_the_middle(windows, spark):
    run = windows("gates:rest")
    run.feed("a")
    timer = threading.Timer(1.0, lambda: run.runner.cancel(run.current))
    timer.start()
    with pytest.raises(AttemptDied, match="cancelled") as died:
        run.attempt(run.plan())
    assert died.value.evidence is Evidence.NONE
    assert_idle(spark)


def test_an_attempt_that_was_cancelled_before_it_began_does_not_run(windows, spark):
    run = windows("gates:rest")
    run.feed("a")
    run_attempt = run.runner.run

    def cancel_first(plan, first=None):
        run.runner._cancelled.add(plan.id)
        return run_attempt(plan, first)

    run.runner.run = cancel_first
    with pytest.raises(AttemptDied, match="cancelled"):
        run.attempt(run.plan())
    assert_idle(spark)


def test_the_cancelling_of_another_attempt_leaves_it_alone(windows):
    run = windows()
    first = run.count("a")
    run.runner.cancel(run.current)
    assert run.count("a") == first


def test_one_that_cannot_connect_leaves_windows_jobs_of_their_own(windows, monkeypatch):
    run = windows()
    run.runner._resident._place = Elsewhere(run.runner._resident._place.host)
    numbers = [run.count("a") for _ in range(5)]
    assert len(set(numbers)) == 5
    assert run.runner._resident._begun == 3, "it is tried a few times, and no more"


class Elsewhere(Place):
    """A place that drivers listen at and tasks do not find."""

    def connect(self):
        raise ConnectionRefusedError("no way there")


def test_where_nobody_can_listen_windows_are_jobs_of_their_own(windows, monkeypatch):
    monkeypatch.setattr(runners, "_place", lambda _: Place("/nowhere/at/all"))
    run = windows()
    assert len({run.count("a"), run.count("a", "b")}) == 2


def test_who_is_no_task_of_the_run_changes_nothing(windows):
    run = windows()
    first = run.count("a")
    path = run.runner._resident._place.host
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(path)
        stranger.sendall(bytes(4) + b"garbage" * 100)
        assert run.count("a") == first
    assert run.count("a", "c") == first


def test_an_answer_to_another_attempt_is_none_to_this(windows, monkeypatch):
    run = windows()
    run.count("a")
    link = stay_of(run).link
    receive = link.receive
    other = replace(run.current, attempt=99)
    monkeypatch.setattr(
        type(link), "receive", lambda _, purpose: (other, receive(purpose)[1]), raising=True
    )
    run.feed("a")
    with pytest.raises(AttemptDied, match="another attempt"):
        run.attempt(run.plan())
    monkeypatch.undo()


def test_a_task_that_is_over_is_listened_for_no_more(windows, tmp_path, spark):
    run = windows()
    run.count("a")
    place = run.runner._resident._place
    run.close()
    assert_idle(spark)
    with pytest.raises(OSError):
        place.connect()


def test_nothing_begins_after_the_close(spark, tmp_path):
    resident = Resident(spark.sparkContext, Place(str(tmp_path / "s")), "none")
    resident.close()
    resident.close()
    assert resident._stay is None
