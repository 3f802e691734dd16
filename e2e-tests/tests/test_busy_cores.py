"""Cores that are kept busy beside a command."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from millrace_e2e.busy import busy_cores
from millrace_e2e.waiting import until

END_S = 30.0
MODULE = (sys.executable, "-m", "millrace_e2e.busy")


def computed_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def spinning(parent: int) -> list[int]:
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(one) for one in listed]


def running(processes: list[int]) -> list[int]:
    return [one for one in processes if Path(f"/proc/{one}").exists()]


def test_each_core_computes_until_the_end() -> None:
    with busy_cores() as processes:
        assert len(processes) == len(os.sched_getaffinity(0))
        until(lambda: all(computed_s(one) > 0.2 for one in processes), "they compute", END_S)
    assert not running(processes)


def test_the_end_is_the_commands() -> None:
    done = subprocess.run([*MODULE, sys.executable, "-c", "raise SystemExit(7)"], check=False)
    assert done.returncode == 7
    assert subprocess.run(MODULE, check=False, capture_output=True).returncode == 2


def test_nothing_computes_once_its_parent_was_killed() -> None:
    with subprocess.Popen([*MODULE, sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as run:
        enough = len(os.sched_getaffinity(0)) + 1
        until(lambda: len(spinning(run.pid)) == enough, "both", END_S)
        processes = spinning(run.pid)
        run.send_signal(signal.SIGKILL)
    until(lambda: not running(processes), "all are gone", END_S)
