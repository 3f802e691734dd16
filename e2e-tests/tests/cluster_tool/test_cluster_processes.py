"""Which process is killed, and which of two at once goes first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from millrace_e2e.cluster import nodes
from millrace_e2e.cluster.layout import Layout
from millrace_e2e.cluster.locks import locked
from millrace_e2e.cluster.processes import Process, Processes, end
from millrace_e2e.waiting import until


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "600"])
    yield child
    child.kill()
    child.wait()


def test_the_process_that_was_meant_is_killed(sleeper: subprocess.Popen[bytes]) -> None:
    process = Process.of(sleeper.pid)
    assert process is not None
    assert process.runs
    end([process])
    assert not process.runs
    assert sleeper.wait() == -signal.SIGKILL


def test_a_process_that_has_got_the_number_since_is_not_killed(
    sleeper: subprocess.Popen[bytes],
) -> None:
    process = Process.of(sleeper.pid)
    assert process is not None
    for birth in (process.birth + "1", "another-boot " + process.birth.split()[1]):
        older = Process(sleeper.pid, birth)
        assert not older.runs
        end([older])
    assert process.runs


def test_a_process_runs_while_one_of_its_threads_does() -> None:
    """As long as that has not ended, it holds the ports of all."""
    ends = "import ctypes, sys, threading; threading.Thread(target=sys.stdin.read).start()"
    ends += "; libc = ctypes.CDLL(None); print('ends', flush=True); libc.syscall(EXIT, 0)"
    number = {"x86_64": 60, "aarch64": 93}[os.uname().machine]
    command = [sys.executable, "-c", ends.replace("EXIT", str(number))]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def state() -> str:
        return Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0]

    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ends\n"
        until(lambda: state() == "Z", "the end of its first thread", 10)
        process = Process.of(child.pid)
        assert process is not None
        end([process])
        assert Process.of(child.pid) is None
    finally:
        child.kill()
        child.communicate()


def test_a_zombie_and_nobody_do_not_run(sleeper: subprocess.Popen[bytes]) -> None:
    process = Process.of(sleeper.pid)
    assert process is not None
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert Process.of(sleeper.pid) is None
    sleeper.wait()
    assert Process.of(sleeper.pid) is None
    process.kill()


def test_the_child_of_a_process_is_found() -> None:
    script = "sleep 600 & echo $!; wait"
    parent = subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        number = int(parent.stdout.readline())
    process = Process.of(parent.pid)
    assert process is not None
    child = process.child()
    assert child is not None
    assert child.pid == number
    assert child.child() is None
    end([child, process])
    parent.wait()


def test_what_was_never_started_is_nobody(tmp_path: Path) -> None:
    processes = Processes(Layout(tmp_path))
    assert processes.all() == {}
    assert processes.running("etcd") is None
    processes.end(["etcd"])
    assert processes.last_words("etcd") == ""


HOLDER = """
import sys
from pathlib import Path
from millrace_e2e.cluster.locks import locked

with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
    if sys.argv[2] == "delete":
        Path(sys.argv[1]).unlink()
"""


def holder(lock: Path, then: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock), then],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def line_of(file: IO[str] | None) -> str:
    assert file is not None
    return file.readline()


def waits_for_lock(pid: int) -> bool:
    """Whether a process is blocked on a lock, as the kernel has it."""
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and f" {pid} " in line for line in lines)


@pytest.mark.parametrize("then", ["keep", "delete"])
def test_one_at_a_time_also_when_the_holder_deletes_the_file(tmp_path: Path, then: str) -> None:
    lock = tmp_path / "lock"
    first = holder(lock, then)
    assert line_of(first.stdout) == "held\n"
    second = holder(lock, "keep")
    while not waits_for_lock(second.pid):
        assert second.poll() is None
    first.communicate("\n")
    assert line_of(second.stdout) == "held\n"
    third = holder(lock, "keep")
    while not waits_for_lock(third.pid):
        assert third.poll() is None
    second.communicate("\n")
    assert line_of(third.stdout) == "held\n"
    third.communicate("\n")
    assert (first.returncode, second.returncode, third.returncode) == (0, 0, 0)


COMMAND = """
import sys
from pathlib import Path
from millrace_e2e.cluster.locks import locked
from millrace_e2e.cluster.processes import run

with locked(Path(sys.argv[1])):
    run("sh", "-c", f"read line < {sys.argv[2]}")
"""


def test_the_lock_is_held_until_a_command_of_its_holder_has_ended(tmp_path: Path) -> None:
    """The holder is killed amid a command, which waits on a pipe."""
    lock, pipe = tmp_path / "lock", tmp_path / "pipe"
    os.mkfifo(pipe)
    first = subprocess.Popen([sys.executable, "-c", COMMAND, str(lock), str(pipe)])
    # Opened when the command has opened its end, so it runs.
    with pipe.open("w") as gate:
        first.kill()
        first.wait()
        second = holder(lock, "keep")
        while not waits_for_lock(second.pid):
            assert second.poll() is None
        gate.write("\n")
    assert line_of(second.stdout) == "held\n"
    second.communicate("\n")


def test_the_lock_goes_with_its_holder(tmp_path: Path) -> None:
    first = holder(tmp_path / "lock", "keep")
    assert line_of(first.stdout) == "held\n"
    first.kill()
    first.communicate()
    with locked(tmp_path / "lock"):
        pass


def test_a_node_gets_as_much_of_busy_processors_as_several_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new control group counts as one process of the machine, and a node's pods all share it."""
    (node, *_) = Layout(tmp_path).nodes()
    group = tmp_path / "cpu" / node.namespace
    group.mkdir(parents=True)
    (group / "cpu.shares").write_text("1024")
    monkeypatch.setattr(nodes, "_HIERARCHIES", tmp_path)
    nodes._make_cgroups(node)
    assert int((group / "cpu.shares").read_text()) >= 4 * 1024
