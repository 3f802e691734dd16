"""What is left of a worker that died: its notes and how it ended."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import pytest

from millrace.engine import blackbox
from millrace.engine.blackbox import Box, Note


def a_worker(folder, end):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest's own time-out has a handler
    box = Box(folder, timeout_s=0.05)
    box.task(Note(os.getpid(), 3, 9, 1, 0, 1))
    box.begin("split", (4, 8))
    end(box)


def loop_for_ever(box):
    while True:
        pass


def wait_in_c(box):
    time.sleep(60)


def leave(box):
    os._exit(7)


def killed(box):
    os.kill(os.getpid(), signal.SIGKILL)


def ended_in_order(box):
    box.end()
    box.idle()


def outlive(folder, end):
    """Run a worker to its end and record its status, as the daemon does."""
    process = multiprocessing.get_context("fork").Process(target=a_worker, args=(folder, end))
    process.start()
    _, status = os.waitpid(process.pid, 0)
    blackbox.record_death(folder, process.pid, status)
    return process.pid


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (loop_for_ever, "no progress within tupleTimeout (30 s)"),
        (wait_in_c, "no progress within tupleTimeout (30 s)"),
        (leave, "exit code 7"),
        (killed, "SIGKILL"),
    ],
)
def test_the_cause_of_a_death_is_told(tmp_path, end, told):
    pid = outlive(tmp_path, end)
    (death,) = blackbox.await_deaths(tmp_path, 5.0)
    assert (death.note.window, death.note.processor, death.note.roots) == (9, "split", (4, 8))
    text = blackbox.describe(death, 30.0)
    assert told in text
    assert f"process {pid} ended in processor 'split' (pass 0, partition 1, roots 4 to 8)" in text
    assert blackbox.collect(tmp_path) == []


def test_a_worker_that_ends_in_order_is_no_death(tmp_path):
    outlive(tmp_path, ended_in_order)
    assert blackbox.collect(tmp_path) == []


def test_between_batches_the_clock_stands(tmp_path):
    box = Box(tmp_path, timeout_s=0.05)
    box.begin("split")
    box.end()
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
    note = blackbox.read_note(tmp_path / f"{os.getpid()}.note")
    assert note.processor == ""
    box.idle()
    assert not blackbox.read_note(tmp_path / f"{os.getpid()}.note").busy


def test_half_a_note_is_no_note(tmp_path):
    file = tmp_path / "1.note"
    file.write_bytes(b'\x10\0\0\0{"pid"')
    assert blackbox.read_note(file) is None
    assert blackbox.read_note(tmp_path / "2.note") is None
