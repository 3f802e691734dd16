"""``millrace run`` with a stand-in driver and acker, and a real state server.

Usage: standin_run.py FOLDER [SERVERS]. The last line is the result as JSON.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from millrace.clock import SystemClock
from millrace.errors import ExitCode, MillraceError
from millrace.homes.documents import RunEvent, Scale
from millrace.local.ackers import AckerPlan
from millrace.local.children import ProcessSpec
from millrace.local.files import Watched
from millrace.local.logs import Display
from millrace.local.scale import Scaling
from millrace.local.servers import Embedded, RunPasswords
from millrace.local.supervisor import RunPlan, RunResult, Supervisor
from millrace.local.takeover import Holder, take_over
from millrace.local.workdir import open_folder
from millrace.protocol.ackerload import AckerBounds
from millrace_e2e.embedded import sockets

TREE = Path(__file__).with_name("standin_tree.py")


def say(document: dict[str, Any]) -> None:
    """A line in one piece: what processes print comes in threads of its own."""
    sys.stdout.write(f"{json.dumps(document)}\n")
    sys.stdout.flush()


class Printer:
    def event(self, event: RunEvent) -> None:
        say(asdict(event))

    def progress(self) -> None:
        return

    def output(self, line: str) -> None:
        say({"output": line})


class FullDisk(Printer):
    """A display that cannot show anything, and one that could then."""

    def __init__(self, outputs: int) -> None:
        self._outputs = outputs

    def event(self, event: RunEvent) -> None:
        super().event(event)
        raise OSError(errno.ENOSPC, "No space left on device")

    def progress(self) -> None:
        raise OSError(errno.EIO, "Input/output error")

    def output(self, line: str) -> None:
        self._outputs -= 1
        if self._outputs >= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().output(line)


def printer() -> Printer:
    """As ``STANDIN_FULL`` says: how many lines of the driver do not go on the disk."""
    outputs = os.environ.get("STANDIN_FULL")
    return Printer() if outputs is None else FullDisk(int(outputs))


def specification(role: str, name: str, folder: Path) -> ProcessSpec:
    script = os.environ.get("STANDIN_DRIVER", str(TREE)) if role == "driver" else str(TREE)
    if role == "driver" and "STANDIN_DRIVER_FOLDER" in os.environ:
        folder = Path(os.environ["STANDIN_DRIVER_FOLDER"])
    command = (sys.executable, script, role)
    return ProcessSpec(name, role, command, folder=folder, tree=role == "driver")


def standby(folder: Path) -> ProcessSpec:
    driver = specification("driver", "driver", folder)
    ready = folder / "standby.ready"
    command = (sys.executable, os.environ["STANDIN_DRIVER"], "standby", str(ready))
    return replace(
        driver,
        name="standby",
        role="standby",
        command=command,
        ready=ready,
        ordered=True,
        expendable=True,
    )


def run(folder_path: Path, servers: int) -> RunResult:
    clock = SystemClock()
    folder = open_folder(folder_path, "standin", Path("topology.yaml"), clock)

    def waiting(holder: Holder) -> None:
        say({"waiting": holder.pid})

    answer_s = float(os.environ.get("ANSWER_S", "15"))
    lease = take_over(folder.path, waiting, answer_s)
    passwords, scratch = RunPasswords(folder.path, folder.uid), sockets()
    plan = RunPlan(
        [Embedded(f"state-{n}", folder.path, scratch, passwords) for n in range(servers)],
        AckerPlan(
            lambda _, count: [
                specification("acker", f"acker-{n}", folder.path) for n in range(count)
            ],
            1,
            AckerBounds(1, 4),
        ),
        lambda _: specification("driver", "driver", folder.path),
        Scaling(
            copies=1,
            wanted=frozenset(f"state-{n}" for n in range(servers)),
            make=lambda name: Embedded(name, folder.path, scratch, passwords),
            view=lambda: None,
            asked=Watched(folder.scale, Scale).look,
            refusal=lambda _: "",
        ),
        (lambda _: standby(folder.path)) if "STANDIN_STANDBY" in os.environ else None,
    )
    try:
        return Supervisor(folder, lease, plan, Display(printer()), clock).run()
    finally:
        lease.release()


def main() -> int:
    servers = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    try:
        result = run(Path(sys.argv[1]), servers)
    except MillraceError as error:
        result = RunResult(error.exit_code, type(error).__name__, str(error))
    except KeyboardInterrupt:
        result = RunResult(ExitCode.INTERRUPTED, "interrupted")
    say(asdict(result))
    return result.code


if __name__ == "__main__":
    sys.exit(main())
