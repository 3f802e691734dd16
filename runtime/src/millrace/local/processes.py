"""Processes by identity: a pid alone may have been given to another process meanwhile.

Linux only: start times, environments and handles come from ``/proc`` and pidfds.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from millrace.guard import descendants, stat_fields
from millrace.local.workdir import MARK


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process of this machine; ``ticks`` is its start time in clock ticks since boot."""

    pid: int
    ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The process that has ``pid`` now; None if there is none or it is a zombie."""
        try:
            fields = stat_fields(pid)
        except OSError:
            return None
        return None if fields[0] in (b"Z", b"X") else cls(pid, int(fields[19]))

    @classmethod
    def me(cls) -> ProcessId:
        """This very process."""
        own = cls.of(os.getpid())
        assert own is not None
        return own

    @property
    def alive(self) -> bool:
        return ProcessId.of(self.pid) == self


def marked(folder: Path) -> list[ProcessId]:
    """Processes that were started for a run in ``folder``, this one and its parents left out.

    They are known by their environment, which children inherit, whatever their parent or
    session is now.
    """
    wanted = os.fsencode(f"{MARK}={folder}")
    mine = _ancestors()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in mine:
            continue
        try:
            environment = Path(f"/proc/{name}/environ").read_bytes()
        except OSError:
            continue
        if wanted in environment.split(b"\0"):
            process = ProcessId.of(int(name))
            if process is not None:
                found.append(process)
    return found


def _ancestors() -> set[int]:
    pids = set()
    pid = os.getpid()
    while pid > 0:
        pids.add(pid)
        try:
            fields = stat_fields(pid)
        except OSError:
            break
        pid = int(fields[1])
    return pids


def kill_all(processes: Iterable[ProcessId], timeout_s: float = 10.0) -> list[ProcessId]:
    """SIGKILL processes and wait until they are gone; those that are still there are returned."""
    handles: dict[int, ProcessId] = {}
    try:
        for process in processes:
            handle = _open_handle(process)
            if handle is not None:
                handles[handle] = process
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        return _await_end(handles, timeout_s)
    finally:
        for handle in handles:
            os.close(handle)


def kill_marked(folder: Path, keep: Iterable[int] = (), timeout_s: float = 10.0) -> list[ProcessId]:
    """Kill all that is left of runs in ``folder`` except ``keep`` and what is below these pids.

    Looks again after each round, for what was forked in between. Returns who was killed.
    """
    kept = set(keep)
    killed: list[ProcessId] = []
    end_s = time.monotonic() + timeout_s
    while True:
        # In this order: what a kept one forks after the look is not in it.
        there = marked(folder)
        spared = kept | {pid for one in kept for pid, _ in descendants(one)}
        found = [p for p in there if p.pid not in spared]
        if not found or time.monotonic() > end_s:
            return killed
        killed += found
        kill_all(found, timeout_s=max(0.1, end_s - time.monotonic()))


def _open_handle(process: ProcessId) -> int | None:
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return None
    if process.alive:
        return handle
    os.close(handle)
    return None


def _await_end(handles: dict[int, ProcessId], timeout_s: float) -> list[ProcessId]:
    """Wait for pidfds; a zombie counts as gone, its parent has yet to look at it."""
    poll = select.poll()
    left = dict(handles)
    for handle in left:
        poll.register(handle, select.POLLIN)
    end_s = time.monotonic() + timeout_s
    while left:
        remaining_s = end_s - time.monotonic()
        if remaining_s <= 0:
            break
        for handle, _ in poll.poll(remaining_s * 1000):
            poll.unregister(handle)
            del left[handle]
    return list(left.values())
