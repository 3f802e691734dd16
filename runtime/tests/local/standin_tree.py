"""A driver's process tree without Spark: every process resists being ended in its own way.

driver: SIGTERM ends it as one that was asked to end. The file ``driver-exit`` has the codes that
its lives end with; 0 is said to be drained and 7 to be fenced, -1 and -7 are the same codes of
which nothing is said. jvm: a session of its own, ignores SIGTERM and the end of its standard input.
daemon: a process group of its own. workers: forked, ignore SIGHUP and SIGTERM.
Each appends ``role pid`` to the file ``tree`` of the current folder.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from millrace.errors import ExitCode
from millrace.homes import codec
from millrace.homes.documents import Status
from millrace.protocol.events import StopKind


def note(role: str) -> None:
    with Path("tree").open("a") as file:
        file.write(f"{role} {os.getpid()}\n")


def resist() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def forever() -> None:
    while True:
        signal.pause()


def driver() -> None:
    def stop(*_: object) -> None:
        os._exit(ExitCode.INTERRUPTED)

    signal.signal(signal.SIGTERM, stop)
    jvm = subprocess.Popen(
        [sys.executable, __file__, "jvm"], stdin=subprocess.PIPE, start_new_session=True
    )
    order = Path("driver-exit")
    if order.exists():
        code = json.loads(order.read_text())
        if len(code) > 1:
            order.write_text(json.dumps(code[1:]))
        print("2030-01-01 ERROR millrace.driver the source is gone", file=sys.stderr, flush=True)
        print("row 1\nrow 2\nrow 3", flush=True)
        said = {0: StopKind.DRAINED, int(ExitCode.FENCED): StopKind.FENCED}.get(code[0])
        if said is not None:
            figures = codec.encode(Status(os.getpid(), said.value, "running"))
            Path("status.json").write_text(json.dumps(figures))
        os._exit({-1: 0}.get(code[0], abs(code[0])))
    note("driver")
    print("shown on the console", flush=True)
    # Like a driver that loses its JVM.
    jvm.wait()
    os._exit(1)


def jvm() -> None:
    resist()
    subprocess.Popen([sys.executable, __file__, "daemon"])
    note("jvm")
    forever()


def daemon() -> None:
    os.setpgid(0, 0)
    resist()
    for _ in range(2):
        if os.fork() == 0:
            note("worker")
            forever()
    note("daemon")
    forever()


def acker() -> None:
    note("acker")
    forever()


if __name__ == "__main__":
    {"driver": driver, "jvm": jvm, "daemon": daemon, "acker": acker}[sys.argv[1]]()
