"""``millrace status`` of a living run, a killed one, and of nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millrace.cli.status import STATES
from millrace.clock import SystemClock
from millrace.engine.driver.home.journal import StatusBoard
from millrace.engine.driver.statistics import Statistics
from millrace.errors import ExitCode
from millrace.local.files import write_json
from millrace.local.inspect.table import Seen, roles_of
from millrace.local.processes import ProcessId
from millrace.local.takeover import take_over
from millrace.local.workdir import open_folder
from millrace.protocol.events import STOP_CODES, StopKind
from millrace.state.journalfiles import JournalFiles

FIGURES = {
    "state": "running",
    "execution": 3,
    "epoch": 1,
    "phase": "open",
    "sealed": 17,
    "published": 16,
    "totals": {"roots": 1234567, "windows": 17, "replays": 2, "dead": 1, "dropped": 0},
    "pendingReplays": 0,
    "deadLetters": 1,
    "rootsPerS": 1000.0,
    "lagRecords": 5,
    "window": {"number": 18, "attempt": 1, "roots": 100, "since": 0.0},
}


def status(*arguments: str, cwd: Path, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "millrace.cli.app", "status", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def document(*arguments: str, cwd: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(status("--json", *arguments, cwd=cwd))
    return found


@pytest.fixture
def work(tmp_path: Path) -> Path:
    path = tmp_path / ".millrace" / "counts"
    folder = open_folder(path, "counts", tmp_path / "t.yaml", SystemClock())
    write_json(folder.status, {**FIGURES, "pid": os.getpid()})
    return path


def test_a_living_run_shows_figures_and_processes(work: Path, tmp_path: Path) -> None:
    lease = take_over(work, lambda _: None)
    me = ProcessId.me()
    row = {"name": "driver", "pid": me.pid, "ticks": me.ticks, "guard": 0, "restarts": 2}
    gone = {"name": "acker-0", "role": "acker", "pid": me.pid, "ticks": 1, "restarts": 0}
    write_json(work / "processes.json", [{"role": "driver", **row}, gone])
    try:
        found = document(cwd=tmp_path)
        assert (found["alive"], found["state"], found["sealed"]) == (True, "running", 17)
        assert found["totals"]["roots"] == 1234567
        assert [(p["role"], p["pid"], p["restarts"]) for p in found["processes"]] == [
            ("driver", me.pid, 2)
        ]
        text = status(cwd=tmp_path)
        assert "1,234,567 roots in 17 windows" in text
        assert str(me.pid) in text
    finally:
        lease.release()


def test_how_full_limited_state_servers_are_is_shown(work: Path, tmp_path: Path) -> None:
    memory = [
        {"name": "state-0", "usedBytes": 64 << 20, "limitBytes": 64 << 20, "full": True},
        {"name": "state-1", "usedBytes": 5 << 20, "limitBytes": 0, "full": False},
    ]
    write_json(work / "status.json", {**FIGURES, "memory": memory})
    assert document(cwd=tmp_path)["memory"] == memory
    told = " ".join(status(cwd=tmp_path).split())
    assert "state memory state-0 uses 64.0 of 64.0 MiB (full: windows wait)" in told
    assert "state-1" not in told


def test_while_spark_is_starting_the_state_says_so(work: Path, tmp_path: Path) -> None:
    lease = take_over(work, lambda _: None)
    me = ProcessId.me()
    row = {"name": "driver", "pid": me.pid, "ticks": me.ticks, "guard": 0, "restarts": 0}
    write_json(work / "processes.json", [{"role": "driver", **row}])
    try:
        for spark, told in (("starting", "Spark is starting"), ("running", "is running (running)")):
            write_json(work / "status.json", {**FIGURES, "pid": me.pid, "spark": spark})
            assert document(cwd=tmp_path)["spark"] == spark
            assert told in status(cwd=tmp_path).splitlines()[0]
    finally:
        lease.release()


def test_the_driver_tells_when_spark_has_started(tmp_path: Path) -> None:
    journal = JournalFiles(tmp_path / "status.json", tmp_path / "events.jsonl")
    told = Statistics(StatusBoard(journal, SystemClock(), "uid"), SystemClock())
    assert journal.status().spark == "starting"
    told.spark_runs = lambda: True
    told.write(force=True)
    assert journal.status().spark == "running"


def test_a_run_that_was_killed_says_so(work: Path, tmp_path: Path) -> None:
    found = document(cwd=tmp_path)
    assert (found["alive"], found["state"], found["processes"]) == (False, "killed", [])
    write_json(work / "status.json", {**FIGURES, "state": "drained"})
    assert document("--workdir", str(work), cwd=tmp_path)["state"] == "drained"


def test_several_state_servers_are_named(work: Path, tmp_path: Path) -> None:
    assert "state-0" not in status(cwd=tmp_path)
    write_json(work / "status.json", {**FIGURES, "members": ["state-0", "state-2"]})
    assert "state-0, state-2" in status(cwd=tmp_path)
    assert document(cwd=tmp_path)["members"] == ["state-0", "state-2"]


def test_the_topology_file_names_the_work_folder(work: Path, tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("metadata: {name: counts}\nspec: {that: is not valid any more}")
    assert document(str(file), cwd=tmp_path)["name"] == "counts"


def test_without_a_run_the_error_says_what_to_do(tmp_path: Path) -> None:
    text = status(cwd=tmp_path, code=ExitCode.WORK_FOLDER)
    assert "--workdir" in text
    (tmp_path / "t.yaml").write_text("metadata: [")
    assert "t.yaml" in status("t.yaml", cwd=tmp_path, code=ExitCode.INVALID_TOPOLOGY)


def test_without_tracking_a_warning_is_shown(work: Path, tmp_path: Path) -> None:
    spec = {"tracking": "Off", "guarantee": "ExactlyOnce"}
    write_json(work / "topology.json", {"spec": spec})
    assert "goes unnoticed" in status(cwd=tmp_path)


def test_what_spark_starts_is_known_by_its_command_and_parent() -> None:
    java = "/usr/lib/jvm/bin/java"
    daemon = ("/v/bin/python3.11", "-m", "millrace.engine.task.daemon", "pyspark.worker")
    found = roles_of(
        [
            Seen(10, 5, (java, "-cp", "x", "org.apache.spark.deploy.SparkSubmit")),
            Seen(20, 10, (java, "org.apache.spark.executor.CoarseGrainedExecutorBackend")),
            Seen(30, 20, daemon),
            Seen(31, 30, daemon),
            Seen(32, 30, daemon),
            Seen(40, 1, daemon),  # its daemon is gone
            Seen(45, 5, (*daemon[:3], "ahead", "7")),
            Seen(46, 45, (*daemon[:3], "ahead", "7")),
            Seen(50, 5, ("bash", "spark-class")),
            Seen(60, 5, ()),
        ]
    )
    assert found == [
        ("jvm", "jvm-0", 10),
        ("executor", "executor-0", 20),
        ("pythonDaemon", "pythonDaemon-0", 30),
        ("pythonWorker", "pythonWorker-0", 31),
        ("pythonWorker", "pythonWorker-1", 32),
        ("pythonWorker", "pythonWorker-2", 40),
        ("pythonDaemon", "pythonDaemon-1", 45),
        ("pythonWorker", "pythonWorker-3", 46),
        ("other", "other-0", 50),
        ("other", "other-1", 60),
    ]


def test_every_end_of_a_driver_is_told_in_words() -> None:
    assert set(StopKind) <= set(STATES)


def test_every_end_of_a_driver_has_one_exit_code() -> None:
    assert set(STOP_CODES) == set(StopKind)
    codes = {kind: code for kind, code in STOP_CODES.items() if code is not None}
    assert set(StopKind) - set(codes) == {StopKind.FAILED}, "which has the code of its error"
    assert len(set(codes.values())) == len(codes), "and 0 is of what is drained alone"
