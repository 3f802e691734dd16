"""What a snapshot of a large state costs, and a restore of it: ``make bench NAME=snapshot``.

A count by key under ExactlyOnce is fed until its state has the size that is asked for. Then a line
that touches ten keys arrives every 100 ms, and snapshots are taken. What is measured is the longest
time between two windows that the sink shows, from before the command until it says that the
snapshot is there; beside that the longest one of a time as long in which none is taken, behind it,
which is what lines, windows and the machine do. ``stall`` is how much longer it is with a snapshot.

Then the run is ended and started again, in turns as it is and after the snapshot was restored into
its work folder. What is measured goes from the start of the first command, ``snapshot restore`` or
``run``, to the mark with which the sink says that the next window is sealed and shown. Both wait
for the JVM and for Spark.

What was counted is compared with what was fed. The last line is one JSON object of medians.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from keyedrun import check, one_line, spec, wait_for, wait_until
from measure import last_line, machine, stop_cleanly
from scaling import BEHIND_S, Feeder
from sides import MillraceSide
from wordcount import OUT

NAME = "measured"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--size", type=int, default=100, help="of the state, in MB")
    parser.add_argument("--rounds", type=int, default=5, help="snapshots, and starts of both kinds")
    parser.add_argument("--keep", action="store_true", help="leave outputs and logs in out/")
    options = parser.parse_args()
    stop_cleanly()
    print(f"{machine()}, load {os.getloadavg()[0]:.1f}")
    run = OUT / "snapshot"
    shutil.rmtree(run, ignore_errors=True)
    found: dict[str, list[float]] = {}
    side = started(run)
    try:
        feeder = Feeder(side, run)
        feeder.fill(options.size)
        with feeder:
            feeder.wait(2 * BEHIND_S)
            for number in range(options.rounds):
                note(found, taken(side, feeder, f"{NAME}-{number}"))
        feeder.drain()
    finally:
        side.stop()
    fed = feeder.fed
    # One of before would take windows back, and those behind it could not be restored any more.
    newest = f"{NAME}-{options.rounds - 1}"
    for _ in range(options.rounds):
        for name in ("", newest):
            fed += 1
            note(found, first_window(run, name, feeder.roots + fed))
    check(run / "output", fed)
    if not options.keep:
        shutil.rmtree(run, ignore_errors=True)
    medians = {name: round(statistics.median(values), 2) for name, values in found.items()}
    for name, values in found.items():
        print(f"  {name}: {medians[name]} ({min(values):.2f} to {max(values):.2f})")
    last_line({"size_mb": options.size, **medians})


def note(found: dict[str, list[float]], figures: dict[str, float]) -> None:
    """Add a round's figures and print them."""
    for name, value in figures.items():
        found.setdefault(name, []).append(value)
    told = ", ".join(f"{name} {value:.2f}" for name, value in figures.items())
    print(f"    {told}, load {os.getloadavg()[0]:.1f}", flush=True)


def topology() -> dict[str, Any]:
    """That of the benchmark of recovery, with windows that come as lines do."""
    found = spec()
    found["window"]["maxInterval"] = "10ms"
    return found


def started(run: Path) -> MillraceSide:
    return MillraceSide("snapshot", topology(), run)


def millrace(side_folder: Path, *arguments: str) -> None:
    """A command about the run in a folder."""
    command = [sys.executable, "-m", "millrace.cli.app", *arguments]
    work = ["--workdir", str(side_folder / "work")]
    done = subprocess.run([*command, *work], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.stdout}{done.stderr}")


def taken(side: MillraceSide, feeder: Feeder, name: str) -> dict[str, float]:
    """One snapshot, and a time without one, of the same length."""
    begun_s = time.time()
    millrace(side.workdir.parent, "snapshot", "create", "--name", name)
    ended_s = time.time()
    longest = feeder.longest_ms(begun_s, ended_s)
    _, over_s = feeder.wait(ended_s - begun_s + BEHIND_S)
    quiet = feeder.longest_ms(ended_s + BEHIND_S, over_s)
    manifest = side.workdir / "snapshots" / name
    size = sum(file.stat().st_size for file in manifest.rglob("*") if file.is_file())
    return {
        "took_s": ended_s - begun_s,
        "longest_ms": longest,
        "without_ms": quiet,
        "stall_ms": max(0.0, longest - quiet),
        "snapshot_mb": size / 1e6,
    }


def first_window(run: Path, name: str, roots: int) -> dict[str, float]:
    """Start the run, after a restore where a snapshot is named; until its first window is shown."""
    line = one_line(run)
    arrived = run / "input"
    there = sum(1 for _ in arrived.iterdir())
    shutil.copyfile(line, arrived / f"{there:05d}-00000.txt")
    begun_s = time.time()
    if name:
        millrace(run, "snapshot", "restore", name, "-t", str(run / "topology.yaml"))
    restored_s = time.time()
    side = started(run)
    try:
        wait_until(side, lambda: begun_to_show(run, restored_s))
        shown_s = time.time()
        wait_for(side, roots)
    finally:
        side.stop()
    if not name:
        return {"cold_s": shown_s - begun_s}
    return {"restored_s": shown_s - begun_s, "restore_s": restored_s - begun_s}


def begun_to_show(run: Path, behind_s: float) -> bool:
    """Whether a window was shown since a moment, by the lists of their files: the marks behind them
    are names of a file that is older."""
    lists = (run / "output" / "_millrace" / "windows").glob("*.json")
    return any(one.stat().st_mtime_ns / 1e9 > behind_s for one in lists)


if __name__ == "__main__":
    main()
