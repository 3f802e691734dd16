"""Spark's daemon of Python workers, started while Spark comes up instead of with the first task."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from millrace.engine import handover
from millrace.engine.jobs.jvm import private_folder
from millrace.engine.task.daemon import AHEAD, PLACE_VARIABLE

log = logging.getLogger("millrace.driver")

_FOR_WORKERS = "spark.executorEnv."
_TASK_CPUS = "1"
"""Spark's own default."""

_started: list[subprocess.Popen[bytes]] = []
"""They end with their standard input, which this process holds open."""


def place() -> dict[str, str]:
    """What the JVM has in its environment, so that the daemon it starts finds the one ahead."""
    return {PLACE_VARIABLE: str(_path())}


def start(conf: Mapping[str, str]) -> None:
    """Start one under Spark's configuration. Where that cannot be, the JVM's is the only one."""
    for_workers = {
        key.removeprefix(_FOR_WORKERS): value
        for key, value in conf.items()
        if key.startswith(_FOR_WORKERS)
    }
    _start(_path(), conf.get("spark.task.cpus", _TASK_CPUS), for_workers)


def start_for_executor(folder: Path) -> dict[str, str]:
    """Start one for the JVM that this process becomes: it ends where that does. Returns what the
    JVM has in its environment, so that the daemon it starts finds the one ahead; that can be where
    none could be started, too."""
    path = folder / f"daemon-{os.getpid()}.sock"
    started = _start(path, _TASK_CPUS, {})
    if started is not None:
        assert started.stdin is not None
        # The end that holds it: Python would have it closed as another program takes over.
        os.set_inheritable(started.stdin.fileno(), True)
    return {PLACE_VARIABLE: str(path)}


def _start(
    path: Path, task_cpus: str, for_workers: Mapping[str, str]
) -> subprocess.Popen[bytes] | None:
    # As Spark itself sets them.
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": task_cpus,
        **for_workers,
    }
    try:
        path.unlink(missing_ok=True)
        with handover.listening(str(path)) as listener:
            descriptor = listener.fileno()
            command = [sys.executable, "-m", "millrace.engine.task.daemon", AHEAD, str(descriptor)]
            started = subprocess.Popen(
                command, stdin=subprocess.PIPE, env=environment, pass_fds=[descriptor]
            )
    except OSError as error:
        log.warning("no daemon of Python workers is started ahead: %s", error)
        return None
    _started.append(started)
    return started


def _path() -> Path:
    return private_folder() / f"daemon-{os.getpid()}.sock"
