"""A process that is asked for its stacks writes them, however busy it is, and is unharmed by it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from millrace.logs import stacks

_BUSY = """
import sys, threading, time
from millrace.logs import stacks

def deep(left):
    return deep(left - 1) if left else sorted(range(3), key=lambda each: -each)

def change_frames():
    # So deep that their memory is given back to the kernel, again and again.
    while True:
        deep(600)

sys.setswitchinterval(1e-5)
stacks.write_on_request()
for _ in range(2):
    threading.Thread(target=change_frames, daemon=True).start()
threading.Thread(target=sys.stdin.read).start()
print("busy", flush=True)
# A signal that comes just before a wait would be told after it.
while threading.active_count() > 3:
    time.sleep(0.001)
"""
_NATIVE = """
import itertools
from millrace.logs import stacks

stacks.write_on_request()
print("busy", flush=True)
sum(itertools.repeat(0))
"""
_ASKED = 100


@pytest.fixture
def started(tmp_path):
    """Starts a program whose standard error goes to the file; ends it."""
    begun = []

    def start(program: str) -> tuple[subprocess.Popen[str], Path]:
        log = tmp_path / "log"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        begun.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "busy\n"
        return process, log

    yield start
    for process in begun:
        process.kill()
        process.communicate()


def wait_for(log: Path, text: str, times: int) -> None:
    give_up = time.monotonic() + 30
    while log.read_text(errors="replace").count(text) < times:
        assert time.monotonic() < give_up, log.read_text(errors="replace")[-2000:]
        time.sleep(0.002)


def test_a_process_whose_threads_change_their_frames_writes_them_and_goes_on(started):
    process, log = started(_BUSY)
    for times in range(1, _ASKED + 1):
        process.send_signal(stacks.SIGNAL)
        wait_for(log, "Current thread", times)
        assert process.poll() is None
    process.communicate("", timeout=60)
    assert process.returncode == 0
    assert "change_frames" in log.read_text()


def test_a_process_that_hangs_in_native_code_answers_to_the_other_signal(started):
    process, log = started(_NATIVE)
    hangs = 'File "<string>", line 7 in <module>'
    asked = 0
    while hangs not in log.read_text():  # it may not have come there when it is asked first
        asked += 1
        process.send_signal(stacks.FORCED)
        wait_for(log, "Current thread", asked)
    before = log.stat().st_size
    process.send_signal(stacks.SIGNAL)
    process.send_signal(stacks.FORCED)
    wait_for(log, hangs, 2)
    assert b"_write" not in log.read_bytes()[before:]
    assert process.poll() is None


def test_the_signals_are_those_of_the_document():
    assert (stacks.SIGNAL, stacks.FORCED) == (signal.SIGUSR1, signal.SIGUSR2)
    text = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
    (row,) = (line for line in text.splitlines() if "kill -USR1 PID" in line)
    assert "kill -USR2 PID" in row
