"""What the benchmark of recovery kills: a run of Millrace, and plain Structured Streaming.

Both keep what they have on disk, so that a benchmark that was broken off goes on with them.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
from keyedrun import (
    KEYS_A_LINE,
    LINES_A_WINDOW,
    TOUCHED,
    check,
    driver_pid,
    fill,
    lines_of,
    one_line,
    recovered_at,
    sent_bytes,
    spec,
    stood_by,
    wait_for,
    wait_until,
)
from recovery_functions import key_bytes
from sides import BaselineSide, MillraceSide

SERVERS, COPIES = 3, 2
EXECUTORS = 2
WARM_WINDOWS = 6
SETTLED_S = 2.0
"""How long all of a run is there before the next kill."""

PHASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "standby": {"standby": 1},
    "executors": {"executors": {"instances": EXECUTORS, "cores": 1, "memory": "1g"}},
}
"""How a run is started for some kinds of kills: by what its topology says."""

KINDS = {
    "acker": "plain",
    "state_server": "plain",
    "driver": "plain",
    "driver_standby": "standby",
    "executor": "executors",
}
"""Kinds of kills, in the order in which they come, and the phase of each."""

_ROLES = {"acker": "acker", "state_server": "state"}


class Topology:
    """One run of Millrace with a state of so many MB, which takes kills of every kind."""

    def __init__(self, folder: Path, size_mb: int) -> None:
        self.size_mb = size_mb
        self._folder = folder
        self._side: MillraceSide | None = None
        self._stood_by = 0

    def start(self, phase: str) -> None:
        """Go on as a phase wants it; the first time the state is fed."""
        asked = PHASES[phase]
        found = spec()
        found["stateServers"] = {"replicas": SERVERS, "copies": COPIES}
        found["ackers"] = {"replicas": 1}
        found["spark"] = {"executors": asked.get("executors", {"instances": 0})}
        standby = asked.get("standby", 0)
        events = self._folder / "work" / "events.jsonl"
        begun = events.exists()
        self._side = MillraceSide(f"recovery-{self.size_mb}", found, self._folder, standby)
        wait_until(self._side, events.exists)
        self._stood_by = stood_by(self._side) + standby
        if not begun:
            fill(self._side, self._folder, self.size_mb)

    def stop(self) -> None:
        if self._side is not None:
            self._side.stop()
            self._side = None

    def kill(self, kind: str, number: int) -> dict[str, float]:
        """Kill a process of a kind, the ``number``-th time; what passed until the window of a line
        that arrived with it was shown."""
        side = self._required()
        self._settle(KINDS[kind])
        idle = self._worked()
        self._warm()
        before, window = driver_pid(side), side.shown() + 1
        pid = before if kind.startswith("driver") else self._victim(kind, number, idle)
        sent, cpu_s = sent_bytes(side), side.cpu_s()
        begin_s = time.time()
        os.kill(pid, signal.SIGKILL)
        side.feed([one_line(self._folder)])
        side.expect(window)
        found = {"s": time.time() - begin_s}
        wait_for(side, self._roots())
        found["cpu_s"] = side.cpu_s() - cpu_s
        if kind.startswith("driver"):
            found |= {
                "view_s": recovered_at(side) - begin_s,
                "read_kb": (sent_bytes(side) - sent) / 1000,
            }
        self._stood_by += kind == "driver_standby"
        return found

    def check(self) -> int:
        """Compare what was counted with what was fed; how many lines that were."""
        lines = self._fed() - 1
        check(self._folder / "output", lines)
        return lines

    # -- helpers

    def _required(self) -> MillraceSide:
        assert self._side is not None, "not started"
        return self._side

    def _fed(self) -> int:
        """Files that have arrived; the first one is the state."""
        return sum(1 for _ in (self._folder / "input").iterdir())

    def _roots(self) -> int:
        return lines_of(self.size_mb) + self._fed() - 1

    def _warm(self) -> None:
        """Some windows, so that the next one finds everything ready, whichever executor runs it."""
        side = self._required()
        for _ in range(WARM_WINDOWS):
            side.feed([one_line(self._folder)])
            wait_for(side, self._roots())

    def _settle(self, phase: str) -> None:
        """Wait until all of the run is there, and has been for a moment."""
        side = self._required()
        since_s = time.monotonic()

        def settled() -> bool:
            nonlocal since_s
            if not self._whole(phase):
                since_s = time.monotonic()
            return time.monotonic() - since_s >= SETTLED_S

        wait_until(side, settled)

    def _whole(self, phase: str) -> bool:
        side = self._required()
        view = json.loads((side.workdir / "view.json").read_text())["view"]
        value = json.loads(view)["value"]
        if value["phase"] != "open" or len(value["target"]) != SERVERS:
            return False
        if PHASES[phase].get("standby") and stood_by(side) < self._stood_by:
            return False
        if len(self._pids("acker")) != 1:
            return False
        return "executors" not in PHASES[phase] or len(self._pids("executor")) == EXECUTORS

    def _pids(self, role: str) -> list[int]:
        side = self._required()
        rows = sorted(side.processes(), key=lambda row: str(row["name"]))
        return [row["pid"] for row in rows if row["role"] == role]

    def _worked(self) -> dict[int, float]:
        """What the Python workers of each executor have spent, in seconds of CPU."""
        found = {}
        for pid in self._pids("executor"):
            below = psutil.Process(pid).children(recursive=True)
            found[pid] = sum(sum(one.cpu_times()[:2]) for one in below)
        return found

    def _victim(self, kind: str, number: int, idle: dict[int, float]) -> int:
        """Of executors the one that worked most since ``idle``, of others one after the other."""
        if kind == "executor":
            worked = self._worked()
            return max(worked, key=lambda pid: worked[pid] - idle.get(pid, 0.0))
        found = self._pids(_ROLES[kind])
        return found[number % len(found)]


class SparkRun:
    """Plain Structured Streaming that counts the same keys, with RocksDB and a checkpoint."""

    def __init__(self, folder: Path, size_mb: int) -> None:
        self.size_mb = size_mb
        self._folder = folder
        self._side: BaselineSide | None = None

    def start(self) -> None:
        """Start the query, or have it go on; the first time its state is fed."""
        begun = (self._folder / "input").exists()
        self._side = BaselineSide("spark", "keys", "rocksdb", self._folder)
        if not begun:
            for first in range(0, lines_of(self.size_mb), LINES_A_WINDOW):
                count = min(LINES_A_WINDOW, lines_of(self.size_mb) - first)
                self._one_batch(self._keys(first, count))
        self._one_batch(self._line())

    def stop(self) -> None:
        if self._side is not None:
            self._side.stop()
            self._side = None

    def kill(self) -> dict[str, float]:
        """Kill all of it, start it again at once; until the changed totals of a line that arrived
        with it are written."""
        assert self._side is not None
        begin_s = time.monotonic()
        self._side.kill()
        self._side.arrive([self._line()])
        self._side = BaselineSide("spark", "keys", "rocksdb", self._folder)
        ended_s = self._side.expect(1)
        cpu_s = self._side.cpu_s()
        return {"s": ended_s - begin_s, "cpu_s": cpu_s}

    def check(self) -> int:
        """Compare what was counted with what was fed; how many lines that were."""
        fills = -(-lines_of(self.size_mb) // LINES_A_WINDOW)
        lines = sum(1 for _ in (self._folder / "input").iterdir()) - fills
        check(self._folder / "output", lines, "batch-*/part-*", "word")
        return lines

    def _one_batch(self, file: Path) -> None:
        assert self._side is not None
        self._side.arrive([file])
        self._side.expect(1)

    def _keys(self, first: int, lines: int) -> Path:
        """The keys that so many lines name to Millrace, one a line."""
        rows = [key_bytes((first + n) * KEYS_A_LINE, KEYS_A_LINE) for n in range(lines)]
        path = self._folder / "fed.txt"
        path.write_bytes(b"".join(bytes(row) + b"\n" for block in rows for row in block))
        return path

    def _line(self) -> Path:
        """The keys of a line that touches some."""
        path = self._folder / "one.txt"
        path.write_bytes(b"".join(bytes(row) + b"\n" for row in key_bytes(0, TOUCHED)))
        return path
