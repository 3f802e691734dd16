"""A pod's process that ends takes along what it started, as the end of its container does."""

from __future__ import annotations

import os
import signal
import subprocess

from millrace_e2e.podprocess import WAIT_S, end_with
from millrace_e2e.waiting import until


def test_what_a_killed_process_leaves_behind_ends_with_it() -> None:
    script = "sleep 1000 & echo $!; kill -KILL $$"
    process = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    left = int(process.stdout.readline())
    assert process.wait(WAIT_S) == -signal.SIGKILL
    assert os.getpgid(left) == process.pid
    end_with(process)
    until(lambda: not running(left), "its child has ended", WAIT_S)
    process.stdout.close()
    end_with(process)  # nothing is left


def running(pid: int) -> bool:
    """Whether a process is there, and no zombie that nobody has waited for."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False
