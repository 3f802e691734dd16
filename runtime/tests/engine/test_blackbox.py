"""What is left of a worker that died: its notes and how it ended."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import time
from dataclasses import replace

import pytest

from millrace.engine.task import blackbox
from millrace.engine.task.blackbox import Box, Death, Note
from millrace.protocol.types import AttemptId


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


NOTE = Note(1, 3, 9, 1, 0, 1, "split", (4, 8), batch=True)
NO_EVIDENCE = {
    "no note": None,
    "no batch": replace(NOTE, batch=False),
    "task over": replace(NOTE, busy=False),
    "other attempt": replace(NOTE, attempt=2),
    "other window": replace(NOTE, window=8),
    "other execution": replace(NOTE, execution=2),
}


@pytest.mark.parametrize("number", [0, signal.SIGKILL, signal.SIGALRM])
def test_a_death_on_a_batch_of_the_attempt_is_evidence(number):
    assert Death(1, 7, number, NOTE).blames(AttemptId(3, 9, 1))


@pytest.mark.parametrize("note", NO_EVIDENCE.values(), ids=NO_EVIDENCE)
def test_any_other_death_is_evidence_of_nothing(note):
    assert not Death(1, 7, 0, note).blames(AttemptId(3, 9, 1))


def test_the_death_that_explains_the_others_is_the_one_that_spark_did_not_bring_about():
    killed = Death(1, 0, signal.SIGKILL, NOTE)
    own = Death(2, 9, 0, replace(NOTE, pid=2, batch=False))
    untold = Death(3, 1, 0, None)
    attempt = AttemptId(3, 9, 1)
    assert blackbox.main_cause([untold, killed, own], attempt) is own
    assert blackbox.main_cause([untold, killed], attempt) is killed
    assert blackbox.main_cause([untold], attempt) is untold
    assert blackbox.main_cause([], attempt) is None


def test_a_full_disk_leaves_no_note_of_an_earlier_process_with_this_number(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "no space left")

    file = tmp_path / f"{os.getpid()}.note"
    Box(tmp_path, None).begin("split", (1, 2), batch=True)
    assert blackbox.read_note(file).batch
    monkeypatch.setattr(os, "posix_fallocate", full)
    Box(tmp_path, None).begin("split", (4, 8), batch=True)
    assert not file.exists()
