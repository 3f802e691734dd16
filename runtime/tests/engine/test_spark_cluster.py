"""Executors as processes of their own: what is lost with one of them."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter

import psutil
import pytest
from engine_support import SparkWindows, compiled, write_lines

from millrace.engine.jobs.executors import executors as known
from millrace.engine.jobs.executors import have_executors
from millrace.engine.jobs.refusals import _ALLOCATOR, Refusals
from millrace.engine.jobs.runner import AttemptDied
from millrace.engine.jobs.session import FOLDER, SHIPPED, SessionSettings, build_session
from millrace.protocol.types import Evidence
from millrace.protocol.winners import Inconsistent, Winners, find_winners
from millrace_e2e import quickjvm
from millrace_e2e.waiting import until

LINES = [f"alpha beta w{i % 7} w{i % 13}" for i in range(200)]
WORDS = Counter(word for line in LINES for word in line.split())


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    java = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")
    settings = SessionSettings(
        "engine-cluster",
        tmp_path_factory.mktemp("spark"),
        instances=2,
        executor_memory="512m",
        # As for executors on other machines: their kit is brought to them by Spark.
        conf={SHIPPED: "true", **dict.fromkeys(java, quickjvm.options())},
    )
    session = build_session(settings)
    yield session
    session.stop()


def spec(function, columns):
    return f"""
sources: [{{name: lines, files: {{path: texts}}}}]
processors:
  - {{name: split, function: "{function}", inputs: [{{from: lines}}]}}
  - {{name: gated, function: "gates:pause", inputs: [{{from: split, key: [word]}}]}}
  - name: last
    inputs: [{{from: gated, key: [word]}}]
    aggregate: {{columns: [{columns}]}}
sinks: [{{name: rows, inputs: [{{from: last}}], files: {{path: rows, format: jsonLines}}}}]
"""


ENDING = """
sources: [{name: lines, files: {path: texts}}]
processors:
  - {name: last, function: "gates:end_executor", inputs: [{from: lines}]}
sinks: [{name: rows, inputs: [{from: last}], files: {path: rows, format: jsonLines}}]
"""


def executors():
    """Executor processes below this test."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            line = process.cmdline()
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        if any("CoarseGrainedExecutorBackend" in part for part in line):
            found.append(process.pid)
    return found


def any_executor(_):
    return executors()[0]


def run_and_kill(run, gate, victim=any_executor):
    """Kill an executor while the second pass waits at the gate; what became of the attempt."""
    outcome: list[object] = []

    def attempt():
        try:
            outcome.append(run.attempt(run.plan()))
        except AttemptDied as died:
            outcome.append(died)

    thread = threading.Thread(target=attempt)
    thread.start()
    while not (gate.parent / "waiting").exists():
        thread.join(0.02)
    os.kill(victim(run), signal.SIGKILL)
    gate.unlink()
    thread.join(120)
    return outcome[0]


@pytest.fixture
def windows(tmp_path, state_server, uid, spark, monkeypatch):
    made = []

    def make(text, small=0):
        write_lines(tmp_path, [f"{line} {tmp_path}" for line in LINES])
        program = compiled(text, tmp_path, uid)
        made.append(SparkWindows(program, state_server.address, spark, small))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_an_executor_lost_with_its_envelopes_costs_time_only(windows, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    run = windows(spec("gates:split", "{name: n, function: count}"))
    outcome = run_and_kill(run, gate)
    assert {r["word"]: r["n"] for r in outcome.rows["rows"]} == WORDS
    found = find_winners(run.shape, outcome.reports.values(), len(LINES))
    if isinstance(found, Winners):
        assert outcome.verdict.complete
    else:
        # Tasks saw different attempts of a lost one: the driver runs the window again.
        assert isinstance(found, Inconsistent)


def with_the_task_that_stays(run):
    """The executor whose worker small windows go to."""
    above = {one.pid for one in psutil.Process(run.worker()).parents()}
    (found,) = above & set(executors())
    return found


def test_an_executor_lost_with_the_task_that_stays_costs_time_only(windows, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    run = windows(spec("gates:split", "{name: n, function: count}"), small=1000)
    outcome = run_and_kill(run, gate, with_the_task_that_stays)
    assert run.shape == (1,)
    assert {r["word"]: r["n"] for r in outcome.rows["rows"]} == WORDS
    assert outcome.verdict.complete
    run.seal(outcome)
    write_lines(tmp_path, [f"alpha {tmp_path}"], "b.txt")
    (row,) = run.go().rows["rows"]
    assert row["n"] == WORDS["alpha"] + 1


def with_a_worker():
    """Executors whose daemon has forked a worker."""
    return {
        pid
        for pid in executors()
        if any(daemon.children() for daemon in psutil.Process(pid).children())
    }


def test_executors_beside_the_task_that_stays_get_a_worker_by_a_rehearsal(windows, spark):
    until(lambda: len(known(spark.sparkContext)) == 2, "two executors", 120.0)
    run = windows(spec("gates:split", "{name: n, function: count}"), small=1000)
    assert run.runner.spare_executors() == frozenset()  # nothing has run in one
    run.go()
    assert run.runner.spare_executors() == known(spark.sparkContext)
    run.runner.rehearse_on(2)
    assert with_a_worker() == set(executors())
    run.runner.rest()
    assert run.runner.spare_executors() == frozenset()


def test_output_that_depends_on_the_attempt_is_never_mixed_unseen(windows, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    run = windows(spec("gates:split_at_random", "{name: n, function: count}"))
    outcome = run_and_kill(run, gate)
    if isinstance(outcome, AttemptDied):
        return
    found = find_winners(run.shape, outcome.reports.values(), len(LINES))
    if isinstance(found, Winners):
        assert outcome.verdict.complete
        assert sum(r["n"] for r in outcome.rows["rows"]) == sum(WORDS.values())


def test_executors_need_no_folder_of_the_drivers(windows, spark, tmp_path):
    """What they open of it while they run their tasks is nothing."""
    gate = tmp_path / "gate"
    run = windows(spec("gates:split", "{name: n, function: count}"))
    outcome = run.attempt(run.plan())
    assert {r["word"]: r["n"] for r in outcome.rows["rows"]} == WORDS
    folder = spark.sparkContext.getConf().get(FOLDER)
    assert not gate.exists()
    kits = {name for _, name in run.runner._kits.values()}
    assert kits
    assert not [kit for kit in kits if os.path.dirname(kit)]
    assert {kit for kit in os.listdir(folder) if kit.startswith("kit-")} >= kits


KNOWN = """
sources: [{name: lines, files: {path: texts}}]
processors:
  - {name: split, inputs: [{from: lines}], split: {column: value, into: word}}
  - name: known
    inputs: [{from: split, key: [word]}]
    lookup: {table: {path: known.csv, schema: "word string, n long"}, key: [{column: word}],
      columns: [{name: n}], missing: Drop}
sinks: [{name: rows, inputs: [{from: known}], files: {path: rows, format: jsonLines}}]
"""


def test_a_table_is_brought_to_executors_as_the_driver_read_it(windows, spark, tmp_path):
    """Each attempt sees the same, also on executors that were not there for the one before."""
    known = {"alpha": 1, "w3": 2, "w12": 3}
    text = "".join(f"{word},{n}\n" for word, n in known.items())
    (tmp_path / "known.csv").write_text(f"word,n\n{text}")
    run = windows(KNOWN)
    (tmp_path / "known.csv").write_text("torn")
    wanted = Counter({word: WORDS[word] for word in known})
    intent = run.plan()
    for _ in range(2):
        outcome = run.attempt(intent)
        assert outcome.verdict.complete
        assert Counter(row["word"] for row in outcome.rows["rows"]) == wanted
        assert all(row["n"] == known[row["word"]] for row in outcome.rows["rows"])
        for pid in executors():
            os.kill(pid, signal.SIGKILL)
        until(lambda: len(executors()) == 2, "two new executors", 60)


def test_executors_that_are_lost_are_told_and_blame_no_root(windows):
    """With an executor its notes are gone, so nothing is known about any root."""
    run = windows(ENDING)
    with pytest.raises(AttemptDied) as died:
        run.attempt(run.plan())
    assert "ExecutorLostFailure" in died.value.reason
    assert died.value.evidence is Evidence.NONE
    assert not died.value.member_lost


def test_executors_that_go_between_attempts_are_missed_by_none(windows, spark, tmp_path):
    """Nothing of the attempt before is lost with one, and the next one blames nobody."""

    def until_there_are(count):
        """Processes, and those of them that Spark knows, which is a moment later."""
        there = f"{count} executors"
        until(lambda: len(executors()) == len(known(spark.sparkContext)) == count, there, 120.0)

    run = windows(spec("gates:split", "{name: n, function: count}"))
    intent = run.plan()
    until_there_are(2)
    for count in (1, 2):
        have_executors(spark.sparkContext, count)
        outcome = run.attempt(intent)
        assert {r["word"]: r["n"] for r in outcome.rows["rows"]} == WORDS
        found = find_winners(run.shape, outcome.reports.values(), len(LINES))
        assert isinstance(found, Winners)
        assert outcome.verdict.complete
        until_there_are(count)


def test_what_the_api_server_says_against_executors_is_kept_and_not_logged(spark, capfd, caplog):
    java = spark.sparkContext._jvm
    refusals = Refusals(spark.sparkContext)
    logger = java.org.apache.logging.log4j.LogManager.getLogger(_ALLOCATOR)

    def refused(text):
        logger.error("Failed to create executor pod 1.", java.java.lang.RuntimeException(text))

    refused("not of this world: \U0001d11e,\nin two lines")
    refused("forbidden")
    assert refusals.drain() == ["not of this world: \U0001d11e,\nin two lines", "forbidden"]
    assert refusals.drain() == []
    refused("forbidden")
    logger.warn("too little to tell", java.java.lang.RuntimeException("nothing"))
    logger.error("something else")
    assert refusals.drain() == ["forbidden"]
    assert [record.message for record in caplog.records] == ["something else"]
    assert "Failed to create" not in "".join(capfd.readouterr())
