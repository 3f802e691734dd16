"""How long windows stand still while servers and ackers come and go: ``make bench NAME=scaling``.

A count by key under ExactlyOnce is fed until its state has the size that is asked for. Then a line
that touches ten keys arrives every 100 ms, and ``millrace scale`` makes the run larger and smaller.
What is measured is the longest time between two windows that the sink shows, from before a command
until a second after it has said that the run has its new size; beside that the longest one of a
time of quiet, which is what the machine itself does, and how long the command took.

``moved`` are the copies of key groups that have another owner after a change, ``least`` the fewest
that could have: what those that join must get for an even share, or what those that leave had.

What was counted is compared with what was fed. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keyedrun import check, fill, one_line, spec, wait_for
from measure import last_line, machine, stop_cleanly
from sides import MillraceSide
from wordcount import OUT

EVERY_S = 0.1
LOOK_S = 0.002
QUIET_S = 5.0
BEHIND_S = 1.0
KEY_GROUPS = 128
STEPS = (
    (("ackers", 2), ("ackers", 6), ("ackers", 3)),
    (
        ("state-servers", 1),
        ("state-servers", 4),
        ("state-servers", 2),
    ),
)


def main() -> None:
    """Scale and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--size", type=int, default=100, help="of the state, in MB")
    parser.add_argument("--rounds", type=int, default=3, help="of every change")
    parser.add_argument("--keep", action="store_true", help="leave outputs and logs in out/")
    options = parser.parse_args()
    stop_cleanly()
    print(machine())
    run = OUT / "scaling"
    shutil.rmtree(run, ignore_errors=True)
    side = MillraceSide("scaling", scalable(), run)
    feeder = Feeder(side, run)
    changes: list[Change] = []
    try:
        feeder.fill(options.size)
        with feeder:
            quiet_ms = [feeder.longest_ms(*feeder.wait(QUIET_S)) for _ in range(options.rounds)]
            print(f"  nothing changes: longest {statistics.median(quiet_ms):.0f} ms", flush=True)
            for _ in range(options.rounds):
                changes += one_round(side, feeder)
        feeder.drain()
    finally:
        side.stop()
    check(side.output, feeder.fed)
    if not options.keep:
        shutil.rmtree(run, ignore_errors=True)
    report(options.size, quiet_ms, changes)


@dataclass(frozen=True)
class Change:
    """What one command did; ``moved`` and ``least`` of state servers alone."""

    what: str
    stall_ms: float
    took_s: float
    moved: int = 0
    least: int = 0


class Feeder:
    """Lets a line arrive every tenth of a second while it is entered.

    ``roots`` are the lines of the state, ``fed`` those that arrived since.
    """

    def __init__(self, side: MillraceSide, folder: Path) -> None:
        self.fed = 0
        self._side = side
        self._folder = folder
        self.roots = 0
        self._over = threading.Event()
        self._shown_s: list[float] = []
        self._threads = [threading.Thread(target=one) for one in (self._run, self._watch)]

    def fill(self, size_mb: int) -> None:
        """Feed the state."""
        self.roots = fill(self._side, self._folder, size_mb)

    def __enter__(self) -> Feeder:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def drain(self) -> None:
        """Wait until all of it is shown."""
        wait_for(self._side, self.roots + self.fed)

    def wait(self, pause_s: float) -> tuple[float, float]:
        """Let time pass; when that began and ended."""
        begun = time.time()
        time.sleep(pause_s)
        return begun, time.time()

    def longest_ms(self, begun: float, ended: float) -> float:
        """The longest time between two windows that were shown one after the other."""
        inside = [at for at in tuple(self._shown_s) if begun - 10 * EVERY_S <= at <= ended]
        gaps = [b - a for a, b in itertools.pairwise(inside)]
        return 1000 * max([*gaps, ended - inside[-1] if inside else ended - begun])

    def _run(self) -> None:
        one = one_line(self._folder)
        while not self._over.wait(EVERY_S):
            self._side.feed([one])
            self.fed += 1

    def _watch(self) -> None:
        """Note when windows are shown; the sink keeps the marks of the last few."""
        last = self._side.shown()
        while not self._over.wait(LOOK_S):
            now = self._side.shown()
            if now > last:
                self._shown_s.append(time.time())
            last = now


def one_round(side: MillraceSide, feeder: Feeder) -> list[Change]:
    """Every change once, and back to where it began."""
    found = []
    for steps in STEPS:
        for (_, before), (what, count) in itertools.pairwise(steps):
            found.append(changed(side, feeder, what, before, count))
            one = found[-1]
            print(f"    {one.what}: longest {one.stall_ms:.0f} ms, {one.took_s:.1f} s", flush=True)
        what, first = steps[0]
        scale(side, what, first)
        feeder.wait(BEHIND_S)
    return found


def changed(side: MillraceSide, feeder: Feeder, what: str, before: int, count: int) -> Change:
    """Scale once."""
    owned = owners(side)
    begun = time.time()
    scale(side, what, count)
    took_s = time.time() - begun
    _, ended = feeder.wait(BEHIND_S)
    stall_ms = feeder.longest_ms(begun, ended)
    name = f"{what} {before} to {count}"
    if what == "ackers":
        return Change(name, stall_ms, took_s)
    return Change(name, stall_ms, took_s, *shares(owned, owners(side)))


def scale(side: MillraceSide, what: str, count: int) -> None:
    """As a user asks for it."""
    command = [sys.executable, "-m", "millrace.cli.app", "scale", f"--{what}", str(count)]
    subprocess.run(
        [*command, "--workdir", str(side.workdir), "--timeout", "300"],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def owners(side: MillraceSide) -> list[list[str]]:
    """Of every key group, by the view's document."""
    document = json.loads((side.workdir / "view.json").read_text())["view"]
    found: list[list[str]] = json.loads(document)["value"]["owners"]
    return found


def shares(before: list[list[str]], after: list[list[str]]) -> tuple[int, int]:
    """Copies of key groups that moved, and the fewest that could have."""
    pairs = zip(before, after, strict=True)
    moved = sum(len(set(new) - set(old)) for old, new in pairs)
    had = Counter(name for old in before for name in old)
    has = Counter(name for new in after for name in new)
    even = sum(has.values()) // len(has)
    joined = sum(even for name in has if name not in had)
    left = sum(count for name, count in had.items() if name not in has)
    return moved, max(joined, left)


def scalable() -> dict[str, Any]:
    """The topology of the recovery benchmark, with windows that come as lines do."""
    found = spec()
    found["window"]["maxInterval"] = "10ms"
    found["keyGroups"] = KEY_GROUPS
    found["ackers"] = {"replicas": 2}
    found["stateServers"] = {"replicas": 1, "copies": 1}
    return found


def report(size_mb: int, quiet_ms: list[float], changes: list[Change]) -> None:
    """Print medians."""
    figures: dict[str, Any] = {"size_mb": size_mb, "quiet_ms": round(statistics.median(quiet_ms))}
    for name in dict.fromkeys(change.what for change in changes):
        own = [change for change in changes if change.what == name]
        stall_ms = statistics.median(change.stall_ms for change in own)
        took_s = statistics.median(change.took_s for change in own)
        key = name.replace(" ", "_").replace("-", "_")
        figures[f"{key}_stall_ms"] = round(stall_ms)
        figures[f"{key}_took_s"] = round(took_s, 1)
        moves = f", moved {own[0].moved} of at least {own[0].least}" if own[0].least else ""
        if own[0].least:
            figures[f"{key}_moved"], figures[f"{key}_least"] = own[0].moved, own[0].least
        print(f"  {name}: longest {stall_ms:.0f} ms, took {took_s:.1f} s{moves}", flush=True)
    last_line(figures)


if __name__ == "__main__":
    main()
