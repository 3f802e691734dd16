"""CPU of processes and of the JVM's threads, by the kernel's own clocks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_GROUPS = (
    ("Executor task", "tasks"),
    ("C1 Compiler", "compilers"),
    ("C2 Compiler", "compilers"),
    ("GC", "collector"),
    ("G1", "collector"),
    ("VM ", "VM"),
    ("stdout writer", "writers to workers"),
    ("Thread-", "calls from the driver"),
    ("dag-scheduler", "scheduler"),
    ("dispatcher", "scheduler"),
    ("task-result", "scheduler"),
    ("shuffle", "shuffle"),
    ("block-manager", "shuffle"),
)
"""Beginnings of the names of threads, which the kernel cuts after 15 characters."""


@dataclass(frozen=True)
class Usage:
    """Seconds of CPU; ``system_s`` of them in the kernel."""

    all_s: float = 0.0
    system_s: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.all_s + other.all_s, self.system_s + other.system_s)

    def __sub__(self, other: Usage) -> Usage:
        return Usage(self.all_s - other.all_s, self.system_s - other.system_s)

    def over(self, count: int) -> Usage:
        """One of ``count`` equal parts."""
        return Usage(self.all_s / count, self.system_s / count)


def usage_of(processes: Iterable[Mapping[str, Any]]) -> dict[str, Usage]:
    """What processes (rows of ``millrace status --json``) have spent so far.

    A JVM is divided by its threads, ``NAME: group``; those that have ended are a group too.
    """
    found: dict[str, Usage] = {}
    for row in processes:
        try:
            whole = _usage(Path(f"/proc/{row['pid']}/stat"))
            parts = _threads(row["pid"]) if row["role"] in ("jvm", "executor") else {}
        except OSError:
            continue
        if not parts:
            found[row["name"]] = whole
            continue
        ended = whole
        for group, used in parts.items():
            found[f"{row['name']}: {group}"] = used
            ended = ended - used
        found[f"{row['name']}: ended threads"] = ended
    return found


def difference(before: Mapping[str, Usage], after: Mapping[str, Usage]) -> dict[str, Usage]:
    """What was spent in between; a process that is new began at nothing."""
    return {name: used - before.get(name, Usage()) for name, used in after.items()}


def _threads(pid: int) -> dict[str, Usage]:
    found: dict[str, Usage] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            group = _group((task / "comm").read_text().strip())
            used = _usage(task / "stat")
        except OSError:  # it has just ended
            continue
        found[group] = found.get(group, Usage()) + used
    return found


def _group(name: str) -> str:
    for beginning, group in _GROUPS:
        if name.startswith(beginning):
            return group
    return "other threads"


def _usage(stat: Path) -> Usage:
    # Names may hold spaces and brackets; the fields behind the last one are plain.
    fields = stat.read_text().rpartition(")")[2].split()
    user, system = int(fields[11]) * _TICK_S, int(fields[12]) * _TICK_S
    return Usage(user + system, system)
