"""Spark's Python daemon forks workers and, when one has ended, whoever tells of it."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

WAIT_S = 60.0

DAEMON = """
import os
import signal
import sys
import threading

from millrace.engine.task import blackbox, daemon, deaths
from millrace.engine.task.blackbox import Recipient
from millrace.protocol.types import AttemptId, Stamp, TaskId
from millrace.state.client import StateAddress
from millrace.state.servers import StateAccess

AT, WORKERS = sys.argv[1], 3
told_from, told_to = os.pipe()
deaths.tell = lambda death, recipient: os.write(told_to, b"%d" % death.exit_code)
os.closerange = lambda low, high: None
die_from, die_to = os.pipe()


def ends_now():
    # A worker ends within a fork of the daemon, which hears of it there.
    if os.getpid() == daemon_pid and dying:
        os.write(die_to, b"!")
        dying.pop()
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        for _ in range(100):
            pass


dying = []
daemon_pid = os.getpid()
held = threading.Lock()
# Of those before a fork the last one comes first: the lock is held while a worker ends.
os.register_at_fork(**{AT: ends_now})
os.register_at_fork(before=held.acquire, after_in_parent=held.release, after_in_child=held.release)
daemon._watch_children()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
servers = (StateAddress("s", "redis://127.0.0.1:1", "r", "p"),)
access = StateAccess("uid", Stamp(1, 1), servers, (("s",),))


def worker(code):
    pid = os.fork()
    if pid == 0:
        to = Recipient.of(access, access.stamp, AttemptId(1, 1, 1), TaskId(0, 0, code), 0)
        blackbox.mine.write_recipient(to.encode())
        os.read(die_from, 1)
        os._exit(code)


worker(1)
for code in range(2, WORKERS + 1):
    dying.append(code)
    worker(code)
os.write(die_to, b"!")
heard = [os.read(told_from, 1).decode() for _ in range(WORKERS)]
print(*sorted(heard))
"""


@pytest.mark.parametrize("at", ["before", "after_in_parent"])
def test_a_worker_that_ends_within_a_fork_of_another_holds_up_nobody(at: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DAEMON, at],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    assert done.stdout.split() == ["1", "2", "3"], done.stderr


KILLED = """
import os, signal, time
from millrace.engine.task import daemon
daemon._watch_children()
signal.signal(signal.SIGHUP, signal.SIG_IGN)
if os.fork() == 0:
    print(os.getpid(), flush=True)
    while True:
        time.sleep(60)
signal.pause()
"""


def test_a_worker_ends_with_a_daemon_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        worker = os.pidfd_open(int(daemon.stdout.readline()))
        try:
            assert select.select([worker], [], [], 0)[0] == []
            daemon.kill()
            ended = select.select([worker], [], [], WAIT_S)[0]
            if not ended:
                signal.pidfd_send_signal(worker, signal.SIGKILL)
            assert ended == [worker]
        finally:
            os.close(worker)


WITH_CHILD = """
import os, signal
import pyspark.worker
from millrace.engine.task import daemon


def task(infile, outfile):
    # User code leaves a process behind, and the worker is ended.
    if os.fork() == 0:
        signal.pause()
    os.kill(os.getpid(), signal.SIGALRM)


pyspark.worker.main = task
daemon._prepare = daemon._keep_secrets = lambda: None
daemon.main()
"""


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path leaves room for the name of a socket."""
    with tempfile.TemporaryDirectory(prefix="mr") as folder:
        yield Path(folder)


def test_spark_hears_of_the_end_of_a_worker_that_has_children(short: Path) -> None:
    environment = {
        **os.environ,
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(short),
    }
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", WITH_CHILD]
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe) as daemon:
        try:
            assert daemon.stdout is not None
            length = int.from_bytes(daemon.stdout.read(4), "big")
            place = daemon.stdout.read(length).decode()
            with socket.socket(socket.AF_UNIX) as spark:
                spark.settimeout(WAIT_S)
                spark.connect(place)
                assert len(spark.recv(4)) == 4  # the worker's pid
                assert spark.recv(1) == b""
        finally:
            # With the process that user code left.
            with suppress(ProcessLookupError):
                os.killpg(daemon.pid, signal.SIGKILL)
            daemon.kill()
