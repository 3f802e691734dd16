"""Every process of a run with its role: the supervisor's list, and what is below the driver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from millrace import checked
from millrace.engine.task.daemon import AHEAD
from millrace.homes.documents import ProcessTable, decode_processes
from millrace.local.processes import ProcessId
from millrace.local.workdir import WorkFolder

DRIVER = "driver"
"""Whose processes need no word more; one that stands by has the same below it."""

EXECUTOR_CLASS = "CoarseGrainedExecutorBackend"
"""What the command line of a Spark executor holds."""


@dataclass(frozen=True, slots=True)
class Row:
    """One living process.

    ``role`` is supervisor, state, acker, driver, standby, guard, jvm, executor, pythonDaemon,
    pythonWorker or other; ``started`` is wall-clock time in seconds.
    """

    role: str
    name: str
    pid: int
    started: float
    restarts: int = 0
    rss_bytes: int = 0

    def document(self) -> dict[str, Any]:
        """As ``status --json`` shows it."""
        plain = asdict(self)
        plain["rssBytes"] = plain.pop("rss_bytes")
        return plain


@dataclass(frozen=True, slots=True)
class Seen:
    """A process below the driver, as found."""

    pid: int
    parent: int
    command: tuple[str, ...]


def process_rows(folder: WorkFolder) -> list[Row]:
    """All living processes of the run in a work folder; empty where nothing runs."""
    rows: list[Row] = []
    for entry in _listed(folder.processes).processes:
        if not ProcessId(entry.pid, entry.ticks).alive:
            continue
        rows.append(_row(entry.role, entry.name, entry.pid, entry.restarts))
        if entry.guard:
            rows.append(_row("guard", f"guard of {entry.name}", entry.guard))
            below = _below(entry.guard, leave_out=entry.pid)
            of = "" if entry.role == DRIVER else f" of {entry.name}"
            rows += [_row(role, f"{name}{of}", pid) for role, name, pid in roles_of(below)]
    return [row for row in rows if row.started]


def _listed(file: Path) -> ProcessTable:
    """The supervisor's list; one that is damaged tells nothing. Raises ``NewerFormatError``."""
    try:
        return decode_processes(file.read_bytes())
    except (OSError, checked.DamagedError):
        return ProcessTable()


def roles_of(processes: Iterable[Seen]) -> list[tuple[str, str, int]]:
    """(role, name, pid) of what Spark starts below a driver.

    A JVM is a driver's or an executor's by its command line; a Python process that a JVM or, ahead
    of that, the driver started is a daemon, one that was forked by a daemon (or outlived it) is a
    worker.
    """
    seen = {process.pid: process for process in processes}
    counts: dict[str, int] = {}
    found = []
    for process in sorted(seen.values(), key=lambda p: p.pid):
        role = _role(process, seen)
        number = counts.get(role, 0)
        counts[role] = number + 1
        found.append((role, f"{role}-{number}", process.pid))
    return found


def _role(process: Seen, seen: Mapping[int, Seen]) -> str:
    program = _program(process)
    if program == "java":
        executor = any(EXECUTOR_CLASS in part for part in process.command)
        return "executor" if executor else "jvm"
    if _of_workers(process):
        parent = seen.get(process.parent)
        if parent is not None and _of_workers(parent):
            return "pythonWorker"
        of_jvm = parent is not None and _program(parent) == "java"
        return "pythonDaemon" if of_jvm or AHEAD in process.command else "pythonWorker"
    return "other"


def _of_workers(process: Seen) -> bool:
    return _program(process).startswith("python") and any("daemon" in p for p in process.command)


def _program(process: Seen) -> str:
    return process.command[0].rpartition("/")[2] if process.command else ""


def _below(guard: int, leave_out: int) -> list[Seen]:
    try:
        children = psutil.Process(guard).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    found = []
    for child in children:
        try:
            command = tuple(child.cmdline())
            if child.pid != leave_out and child.status() != psutil.STATUS_ZOMBIE:
                found.append(Seen(child.pid, child.ppid(), command))
        except psutil.NoSuchProcess:
            continue
    return found


def _row(role: str, name: str, pid: int, restarts: int = 0) -> Row:
    try:
        process = psutil.Process(pid)
        started, rss = process.create_time(), process.memory_info().rss
    except psutil.NoSuchProcess:
        # It ended while it was being looked at; rows without a start are left out.
        return Row(role, name, pid, 0.0)
    return Row(role, name, pid, round(started, 3), restarts, rss)
