"""``millrace stop`` ends the run of a work folder and nothing else, and waits for that."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
from standins import running

from millrace.local.files import write_json
from millrace.local.processes import ProcessId
from millrace.local.stop import stop_run


def stop(folder, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "millrace.cli.app", "stop", "--workdir", str(folder), *options],
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_running_topology_is_stopped_and_waited_for(tmp_path) -> None:
    folder = tmp_path / "work"
    with running(folder) as run:
        run.up()
        done = stop(folder)
        assert (done.returncode, done.stderr) == (0, "")
        assert "standin is stopped" in done.stdout
        assert run.process.poll() is not None
        assert run.result()["reason"] == "asked"
    assert stop(folder).stdout == "standin is not running\n"


def test_a_wait_that_is_too_short_is_said(tmp_path) -> None:
    folder = tmp_path / "work"
    with running(folder) as run:
        run.up()
        supervisor = psutil.Process(run.pid)
        supervisor.suspend()
        try:
            done = stop(folder, "--timeout", "0.2")
            assert done.returncode == 1
            assert f"process {run.pid} has not ended within 0.2 s" in done.stderr
        finally:
            supervisor.resume()
        assert run.result()["reason"] == "asked"


def test_a_pid_that_another_process_has_by_now_is_left_alone(tmp_path) -> None:
    """This very process would end if it were signalled."""
    me = ProcessId.me()
    holder = {"generation": 1, "pid": me.pid, "ticks": me.ticks - 1}
    write_json(tmp_path / "run.lock", holder)
    assert stop_run(tmp_path, 1.0) is None
    assert os.getpid() == me.pid
