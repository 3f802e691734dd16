"""What is left of a worker that died: its notes, how it ended, and how that is told."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest

from millrace.engine.task import blackbox, deaths
from millrace.engine.task.blackbox import NOTE_BYTES, Box, Note, Page, Recipient
from millrace.engine.task.deaths import Death
from millrace.engine.task.steps.classes import ClassStep
from millrace.engine.task.steps.keyed import KeyedInput
from millrace.functions import StateMigration
from millrace.protocol.names import read_name
from millrace.protocol.types import AttemptId, Stamp, TaskId
from millrace.state.client import StateAddress
from millrace.state.keyed import blobs
from millrace.state.keyed.dictstate import DictState
from millrace.state.servers import StateAccess
from millrace_e2e import processes

ATTEMPT = AttemptId(3, 9, 1)
SERVERS = tuple(StateAddress(f"s{n}", f"redis://10.0.0.{n}:1", f"run{n}", "hush") for n in (1, 2))
ACCESS = StateAccess("uid", Stamp(4, 3), SERVERS, (("s2",),))


def recipient():
    return Recipient.of(ACCESS, ACCESS.stamp, ATTEMPT, TaskId(0, 1, 77), 1)


@pytest.fixture
def page():
    made = Page()
    yield made
    made.close()


def a_worker(page, end):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest's own time-out has a handler
    box = Box(page, timeout_s=0.05)
    box.task(Note(os.getpid(), 3, 9, 1, 0, 1), recipient())
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


def leave_as_if_done(box):
    os._exit(0)


def killed_by_a_signal_without_a_name(box):
    os.kill(os.getpid(), signal.SIGRTMIN + 3)


def ended_in_order(box):
    box.end()
    box.idle()


def killed_after_its_task(box):
    ended_in_order(box)
    killed(box)


def outlive(page, end):
    """Run a worker to its end; its pid, and what the daemon has to tell of it."""
    process = multiprocessing.get_context("fork").Process(target=a_worker, args=(page, end))
    process.start()
    _, status = os.waitpid(process.pid, 0)
    return process.pid, deaths.within_a_task(process.pid, status, page)


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (loop_for_ever, "no progress within tupleTimeout (30 s)"),
        (wait_in_c, "no progress within tupleTimeout (30 s)"),
        (leave, "exit code 7"),
        (killed, "SIGKILL"),
        (leave_as_if_done, "exit code 0"),
        (killed_by_a_signal_without_a_name, f"killed by signal {signal.SIGRTMIN + 3}"),
    ],
)
def test_the_cause_of_a_death_is_told(page, end, told):
    pid, (death, to) = outlive(page, end)
    assert (death.note.window, death.note.processor, death.note.roots) == (9, "split", (4, 8))
    text = deaths.describe(death, 30.0)
    assert told in text
    assert f"process {pid} ended in processor 'split' (pass 0, partition 1, roots 4 to 8)" in text
    assert (to.name, to.servers) == (f"3.9.1.0.1.77/death/{pid}", SERVERS[1:])
    assert to.access() == replace(ACCESS, addresses=SERVERS[1:])
    assert death.run == 1


def migrating(hook):
    """A worker that reads state of other columns, the way that a keyed step does."""

    def end(box):
        box.end()
        columns = [[pa.field(name, pa.int64())] for name in ("n", "m")]
        keys, old, new = (pa.schema(fields) for fields in ([pa.field("k", pa.int64())], *columns))
        held = DictState(keys, old, 8)
        held.begin()
        for row in held.find([pa.array(range(3))]).tolist():
            held.values[row]["n"] = row
        known = [StateMigration((("n", "long"),), hook)]
        component = SimpleNamespace(name="split", state=())
        given = KeyedInput(SimpleNamespace(box=box), component, None, known)
        DictState(keys, new, 8, migrations=given.migrations).apply(blobs.read(held.base().data))
        box.idle()

    return end


@pytest.mark.parametrize(
    ("hook", "told"),
    [
        (lambda state: loop_for_ever(None), "no progress within tupleTimeout (30 s)"),
        (lambda state: leave(None), "exit code 7"),
    ],
)
def test_a_migration_that_does_not_return_is_told_and_blames_no_root(page, hook, told):
    pid, (death, _) = outlive(page, migrating(hook))
    assert told in deaths.describe(death, 30.0)
    assert f"process {pid} ended in processor 'split' (" in deaths.describe(death, 30.0)
    assert not death.blames(ATTEMPT)


def test_a_class_that_does_not_close_is_told_and_blames_no_root(page):
    def close(box):
        box.begin("split", (4, 8), batch=True)  # it failed in the middle of a batch
        component = SimpleNamespace(name="split", output=pa.schema([pa.field("n", pa.int64())]))
        instance = SimpleNamespace(close=lambda: wait_in_c(box))
        ClassStep(SimpleNamespace(box=box), component, None, instance).close()

    pid, (death, _) = outlive(page, close)
    assert (death.signal, death.note.roots) == (signal.SIGALRM, None)
    assert f"process {pid} ended in processor 'split' (" in deaths.describe(death, 30.0)
    assert not death.blames(ATTEMPT)


def test_each_key_of_a_migration_has_its_time():
    calls = []
    box = SimpleNamespace(
        begin=calls.append,
        progress=lambda: calls.append("next"),
        end=lambda: calls.append("end"),
        idle=lambda: None,
    )
    migrating(lambda state: calls.append("called"))(box)
    assert calls == ["end", "split", *["next", "called"] * 3, "end"]


@pytest.mark.parametrize("end", [ended_in_order, killed_after_its_task])
def test_an_end_outside_of_any_task_is_no_death(page, end):
    assert outlive(page, end)[1] is None


def test_between_batches_the_clock_stands(page):
    box = Box(page, timeout_s=0.05)
    box.begin("split")
    box.end()
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
    assert page.note().processor == ""
    box.idle()
    assert not page.note().busy


def test_how_long_user_code_has_had_tuples_is_kept_for_each_task(page):
    seconds = iter([10.0, 10.5, 20.0, 20.25, 30.0, 30.0])
    box = Box(page, timeout_s=None, monotonic_s=lambda: next(seconds))
    note = Note(os.getpid(), 3, 9, 1, 0, 1)
    box.task(note)
    for _ in range(2):
        box.begin("split", (4, 8), batch=True)
        box.end()
    assert box.worked_s == 0.75
    box.begin("split")  # without any
    box.end()
    assert box.worked_s == 0.75
    box.begin("split", batch=True)
    box.task(note)
    box.end()
    assert box.worked_s == 0.0


def test_half_a_note_is_no_note_and_another_processes_is_none_of_this(page):
    assert page.note() is None
    box = Box(page, None)
    box.task(Note(os.getpid(), 3, 9, 1, 0, 1), recipient())
    assert page.note() is not None
    told, _ = deaths.within_a_task(os.getpid() + 1, signal.SIGKILL, page)
    assert told.note is None
    page.write_note(b'{"pid"')
    assert page.note() is None
    told, _ = deaths.within_a_task(os.getpid(), signal.SIGKILL, page)
    assert (told.note, told.signal) == (None, signal.SIGKILL)
    page.write_note(b'{"pid": 1}' + b" " * NOTE_BYTES)
    assert page.note() is None
    assert page.recipient() is not None


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
    assert Death(1, 7, number, NOTE).blames(ATTEMPT)


@pytest.mark.parametrize("note", NO_EVIDENCE.values(), ids=NO_EVIDENCE)
def test_any_other_death_is_evidence_of_nothing(note):
    assert not Death(1, 7, 0, note).blames(ATTEMPT)


def test_the_death_that_explains_the_others_is_the_one_that_spark_did_not_bring_about():
    killed = Death(1, 0, signal.SIGKILL, NOTE)
    own = Death(2, 9, 0, replace(NOTE, pid=2, batch=False))
    untold = Death(3, 1, 0, None)
    assert deaths.main_cause([untold, killed, own], ATTEMPT) is own
    assert deaths.main_cause([untold, killed], ATTEMPT) is killed
    assert deaths.main_cause([untold], ATTEMPT) is untold
    assert deaths.main_cause([], ATTEMPT) is None


@pytest.mark.parametrize("note", [None, NOTE], ids=["unknown", "known"])
def test_a_death_is_believed_under_its_own_name_and_if_signed(note):
    name = recipient().name
    death = Death(1, 0, signal.SIGSEGV, note, run=1)
    data = deaths.encode(name, death)
    assert deaths.decode(name, data) == death
    assert deaths.decode(name.replace("3.9.1", "3.9.2"), data) is None
    for at in range(len(data)):
        assert deaths.decode(name, data[:at]) is None
        assert deaths.decode(name, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None


def test_the_name_says_whose_death_it_is():
    name = read_name(recipient().name)
    assert (name.attempt, name.task) == (ATTEMPT, TaskId(0, 1, 77))
    assert name.component == str(os.getpid())


def test_without_memory_for_a_page_a_worker_has_no_notes(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOMEM, "no memory left")

    monkeypatch.setattr(os, "posix_fallocate", full)
    from millrace.engine.task import daemon

    assert daemon._page() is None
    assert blackbox.mine is None
    Box(daemon._page(), None).begin("split", (4, 8), batch=True)


LIVING = """
import os, sys
from millrace.engine.task.blackbox import Box, Note, Page
box = Box(Page(), None)
box.task(Note(os.getpid(), 3, 9, 1, 0, 1))
print("ready", flush=True)
sys.stdin.read()
"""


def test_the_note_of_a_living_worker_is_seen_from_outside(tmp_path):
    """By who kills workers that have work in flight, say."""
    environment = {**os.environ, processes.MARK: str(tmp_path)}
    command = [sys.executable, "-c", LIVING]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe) as worker:
        assert worker.stdout.readline() == b"ready\n"
        assert processes.notes(tmp_path) == [processes.Note(worker.pid, 3, 9, 1, True)]
        worker.stdin.close()
        worker.wait()
    assert processes.notes(tmp_path) == []
