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

_started: list[subprocess.Popen[bytes]] = []
"""They end with their standard input, which this process holds open."""


def place() -> dict[str, str]:
    """What the JVM has in its environment, so that the daemon it starts finds the one ahead."""
    return {PLACE_VARIABLE: str(_path())}


def start(conf: Mapping[str, str]) -> None:
    """Start one under Spark's configuration. Where that cannot be, the JVM's is the only one."""
    path = _path()
    for_workers = {
        key.removeprefix(_FOR_WORKERS): value
        for key, value in conf.items()
        if key.startswith(_FOR_WORKERS)
    }
    # As Spark itself sets them.
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": conf.get("spark.task.cpus", "1"),
        **for_workers,
    }
    try:
        path.unlink(missing_ok=True)
        with handover.listening(str(path)) as listener:
            descriptor = listener.fileno()
            command = [sys.executable, "-m", "millrace.engine.task.daemon", AHEAD, str(descriptor)]
            _started.append(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, env=environment, pass_fds=[descriptor]
                )
            )
    except OSError as error:
        log.warning("no daemon of Python workers is started ahead: %s", error)


def _path() -> Path:
    return private_folder() / f"daemon-{os.getpid()}.sock"
