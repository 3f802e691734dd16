"""Drivers that take over from each other: they say that they work and do nothing else.

driver: says in the figures that it works; SIGTERM ends it as one that was asked to end, SIGUSR1 as
drained. standby: makes its file, and
is a driver when it reads ``take over``. Each has a child that resists, as a JVM would. Each appends
``role pid`` to the file ``tree`` of the current folder. What the file ``standby-does`` says keeps
one that stands by from getting ready (``fails``).
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
from millrace.homes.settings import TAKE_OVER
from millrace.protocol.events import StopKind

WILD = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"


def note(role: str) -> None:
    with Path("tree").open("a") as file:
        file.write(f"{role} {os.getpid()}\n")


def tell(state: str) -> None:
    figures = codec.encode(Status(os.getpid(), state, "running"))
    draft = Path(f"status.{os.getpid()}")
    draft.write_text(json.dumps(figures))
    draft.replace("status.json")


def drive() -> None:
    def stop(*_: object) -> None:
        os._exit(ExitCode.INTERRUPTED)

    def drained(*_: object) -> None:
        tell(StopKind.DRAINED.value)
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGUSR1, drained)
    print("driver on the console", flush=True)
    print("driver in the log", file=sys.stderr, flush=True)
    tell("running")
    note("driver")
    while True:
        signal.pause()


def stand_by(ready: Path) -> None:
    print("standby on the console", flush=True)
    print("standby in the log", file=sys.stderr, flush=True)
    order = Path("standby-does")
    if order.exists() and order.read_text() == "fails":
        note("failed")
        os._exit(1)
    ready.touch()
    note("standby")
    if os.read(0, 64) == TAKE_OVER:
        drive()


if __name__ == "__main__":
    subprocess.Popen([sys.executable, "-c", WILD])
    if sys.argv[1] == "driver":
        drive()
    stand_by(Path(sys.argv[2]))
