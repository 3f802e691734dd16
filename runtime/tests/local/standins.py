"""Starts runs with stand-ins and watches their processes from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil

RUN = Path(__file__).with_name("standin_run.py")
DEADLINE_S = 30.0

T = TypeVar("T")


def until(look: Callable[[], T], what: str, deadline_s: float = DEADLINE_S) -> T:
    """The first true answer of ``look``; fails after a generous deadline."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.04)
    raise AssertionError(f"not within {deadline_s:g} s: {what}")


class Run:
    """One supervisor with its processes."""

    def __init__(self, folder: Path, servers: int = 1, **environment: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, str(RUN), str(folder), str(servers)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def tree(self, role: str) -> list[int]:
        """Pids of a role that have ever been noted, oldest first."""
        try:
            lines = (self.folder / "tree").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [int(line.split()[1]) for line in lines if line.startswith(role)]

    def complete(self, lives: int = 1) -> bool:
        """Whether the ``lives``-th driver has its whole tree, each of which notes itself in its own
        time: a worker may before the daemon that forked it."""
        each = {"driver": 1, "jvm": 1, "daemon": 1, "worker": 2}
        return all(len(self.tree(role)) >= count * lives for role, count in each.items())

    def living(self, *roles: str) -> list[psutil.Process]:
        """The processes of the roles."""
        return [psutil.Process(pid) for role in roles for pid in self.tree(role)]

    def processes(self) -> dict[str, dict[str, Any]]:
        """``processes.json`` by name."""
        try:
            rows = json.loads((self.folder / "processes.json").read_text())["processes"]
        except FileNotFoundError:
            return {}
        return {row["name"]: row for row in rows}

    def up(self) -> None:
        """Wait until all processes run, and the supervisor's list says so."""
        until(self.complete, "the driver's tree")
        until(lambda: self.tree("acker"), "the acker")
        until(lambda: {"driver", "acker-0"} <= self.processes().keys(), "their rows in the list")

    def family(self) -> list[psutil.Process]:
        """Every process below the supervisor."""
        return psutil.Process(self.pid).children(recursive=True)

    def result(self) -> dict[str, Any]:
        """Wait for the end; the last line."""
        out, _ = self.process.communicate(timeout=DEADLINE_S)
        self.lines = [json.loads(line) for line in out.splitlines()]
        last: dict[str, Any] = self.lines[-1]
        return last


def alive(processes: list[psutil.Process]) -> list[str]:
    """Those that still run, described."""
    found = []
    for process in processes:
        try:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.cmdline())[-60:]}")
        except psutil.NoSuchProcess:
            continue
    return found


@contextmanager
def running(folder: Path, servers: int = 1, **environment: str) -> Iterator[Run]:
    """A run that is killed at the end, and whose processes must then be gone."""
    run = Run(folder, servers, **environment)
    try:
        yield run
    finally:
        family = run.family() if run.process.poll() is None else []
        if run.process.poll() is None:
            os.kill(run.pid, signal.SIGKILL)
        run.process.wait()
        if run.process.stdout is not None:
            run.process.stdout.close()
        until(lambda: not alive(family), f"the end of {alive(family)}")
