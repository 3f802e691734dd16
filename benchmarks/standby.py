"""From SIGKILL of a driver to the next visible result: ``make bench NAME=standby``.

The count by key of the benchmark of recovery, once without and once with a driver that stands by.
The driver is killed, one line arrives at once, and what is measured goes from the kill to the mark
with which the sink says that the window of that line is sealed and shown. Each kill but the first
waits until the next driver stands by, where there is one. What was counted is compared with what
was fed. Of drivers that start cold it is printed what they had reached when, by their own logs. The
last line is one JSON object of medians: seconds with and without, and of the steps.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import statistics
import time
from pathlib import Path
from typing import Any

from keyedrun import (
    check,
    driver_pid,
    fill,
    one_line,
    recovered_at,
    spec,
    stood_by,
    wait_for,
    wait_until,
)
from measure import last_line, machine, stop_cleanly
from sides import MillraceSide
from wordcount import OUT

from millrace.engine.driver.process import STARTED

STEP = re.compile(r"(?:, |: )([^,:]+) ([0-9.]+) s")


def main() -> None:
    """Measure both and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--size", type=int, default=1, help="of the state, in MB")
    parser.add_argument("--kills", type=int, default=10, help="with and without")
    parser.add_argument("--keep", action="store_true", help="leave outputs and logs in out/")
    options = parser.parse_args()
    stop_cleanly()
    print(machine())
    run = OUT / "standby"
    shutil.rmtree(run, ignore_errors=True)
    medians: dict[str, Any] = {}
    for name, standby in (("driver_standby_s", 1), ("driver_s", 0)):
        found = measured(run / name, options.size, options.kills, standby)
        medians[name] = round(statistics.median(found), 2)
        beside = "a driver that stands by" if standby else "none"
        print(
            f"  with {beside}: {medians[name]:.2f} s to the next result "
            f"({min(found):.2f} to {max(found):.2f})",
            flush=True,
        )
        if not standby:
            medians["steps_s"] = told_steps(run / name, found)
        if not options.keep:
            shutil.rmtree(run / name, ignore_errors=True)
    last_line(medians)


def measured(folder: Path, size_mb: int, kills: int, standby: int) -> list[float]:
    """Seconds from each kill to the window of the line that arrived with it."""
    side = MillraceSide(f"standby-{standby}", spec(), folder, standby)
    try:
        roots = fill(side, folder, size_mb)
        one = one_line(folder)
        found = []
        for kill in range(1, kills + 1):
            if standby:
                wait_until(side, lambda kill=kill: stood_by(side) >= kill)  # type: ignore[misc]
            found.append(killed(side, one, roots + kill))
    finally:
        side.stop()
    check(side.output, kills)
    return found


def told_steps(folder: Path, killed_s: list[float]) -> dict[str, float]:
    """Seconds from the kill to each step of a cold start, medians; prints them."""
    lines = logged(folder)[-len(killed_s) :]
    steps = [{name: float(at) for name, at in STEP.findall(line)} for line in lines]
    if len(steps) != len(killed_s):
        raise SystemExit(f"{folder}: {len(killed_s)} drivers started, {len(steps)} logs say how")
    begun = [whole_s - one["window shown"] for whole_s, one in zip(killed_s, steps, strict=True)]
    found = {"process begun": statistics.median(begun)}
    for name in steps[0]:
        pairs = zip(begun, steps, strict=True)
        found[name] = statistics.median(began_s + one[name] for began_s, one in pairs)
    for name, at_s in sorted(found.items(), key=lambda one: one[1]):
        print(f"    {at_s:6.2f} s  {name}", flush=True)
    return {name: round(at_s, 2) for name, at_s in found.items()}


def logged(folder: Path) -> list[str]:
    """What drivers told of their starts, oldest first."""
    files = sorted(folder.glob("work/logs/driver.log*"), key=lambda file: file.stat().st_mtime)
    text = "".join(file.read_text() for file in files)
    return [line for line in text.splitlines() if STARTED in line]


def killed(side: MillraceSide, file: Path, roots: int) -> float:
    """Kill the driver, feed one line; seconds until its window is shown."""
    before, window = driver_pid(side), side.shown() + 1
    begin_s = time.time()
    os.kill(before, signal.SIGKILL)
    side.feed([file])
    wait_for(side, roots)
    mark = side.output / "_millrace" / "windows" / f"{window:012d}.done"
    whole_s = mark.stat().st_mtime_ns / 1e9 - begin_s
    print(f"    {whole_s:.2f} s, the record after {recovered_at(side) - begin_s:.2f} s", flush=True)
    return whole_s


if __name__ == "__main__":
    main()
