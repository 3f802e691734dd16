"""Workers of the kit that are forked from one that has imported all of it already."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

PROGRAM = """
import os, socket, sys
from contextlib import suppress

import pyarrow
from millrace.testing import worker

pyarrow.array(["warm"])  # which looks for pandas
link = socket.socket(fileno=int(sys.argv[1]))
while True:
    told, pipes, _, _ = socket.recv_fds(link, 1, 2)
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG if told else 0)[0]:
            pass
    if not told:
        break
    pid = os.fork()
    if pid == 0:
        link.close()
        for number, pipe in enumerate(pipes):
            os.dup2(pipe, number)
            os.close(pipe)
        worker.main()
        os._exit(0)
    for pipe in pipes:
        os.close(pipe)
    link.send(pid.to_bytes(4, "big"))
"""


class Forked:
    """What the kit knows of a process that it has started."""

    def __init__(self, pid: int, stdin: int, stdout: int) -> None:
        self.stdin = open(stdin, "wb")  # noqa: SIM115 the kit closes it
        self.stdout = open(stdout, "rb")  # noqa: SIM115 and this
        self._process = os.pidfd_open(pid)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)

    def wait(self) -> None:
        select.select([self._process], [], [])
        os.close(self._process)


class Forks:
    """Starts workers; those of each seed of ``hash()`` have a process that they are forked from."""

    PIPE = subprocess.PIPE

    def __init__(self) -> None:
        self._begun: dict[str, tuple[subprocess.Popen[bytes], socket.socket]] = {}

    def Popen(  # noqa: N802 as the kit calls it
        self, command: list[str], *, stdin: int, stdout: int, env: Mapping[str, str]
    ) -> Forked:
        assert command == [sys.executable, "-P", "-m", "millrace.testing.worker"]
        seed = env["PYTHONHASHSEED"]
        if seed not in self._begun:
            self._begun[seed] = self._begin(env)
        _, link = self._begun[seed]
        (asks, to), (answers, told) = os.pipe(), os.pipe()
        socket.send_fds(link, [b"."], [asks, told])
        os.close(asks)
        os.close(told)
        return Forked(int.from_bytes(link.recv(4), "big"), to, answers)

    def _begin(self, env: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
        mine, other = socket.socketpair()
        with other:
            command = [sys.executable, "-c", PROGRAM, str(other.fileno())]
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, env=dict(env), pass_fds=[other.fileno()]
            )
        return process, mine

    def close(self) -> None:
        for process, link in self._begun.values():
            link.close()
            process.wait()
