"""From SIGKILL of a driver to the next visible result: ``make bench NAME=standby``.

The count by key of the benchmark of recovery, once without and once with a driver that stands by.
The driver is killed, one line arrives at once, and what is measured goes from the kill to the mark
with which the sink says that the window of that line is sealed and shown. Each kill but the first
waits until the next driver stands by, where there is one. What was counted is compared with what
was fed. Of drivers that start cold a table says what they had reached when, by their own logs, what
filled the time, and what their processes had used of CPU until then. The last line is one JSON
object of medians: seconds with and without, and of the steps.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import time
from contextlib import nullcontext
from dataclasses import dataclass
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
from startsteps import Seen, Start, Watch, print_table, rows_of
from wordcount import OUT

from millrace.engine.driver.process import STARTED


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
        kills = measured(run / name, options.size, options.kills, standby)
        found = [kill.whole_s for kill in kills]
        medians[name] = round(statistics.median(found), 2)
        beside = "a driver that stands by" if standby else "none"
        print(
            f"  with {beside}: {medians[name]:.2f} s to the next result "
            f"({min(found):.2f} to {max(found):.2f})",
            flush=True,
        )
        if not standby:
            rows = rows_of(starts(run / name, kills))
            print_table(rows)
            medians["steps_s"] = {row.step: round(row.at_s, 2) for row in rows}
        if not options.keep:
            shutil.rmtree(run / name, ignore_errors=True)
    last_line(medians)


@dataclass(frozen=True, slots=True)
class Kill:
    """When a driver was killed, by the wall clock, the seconds until the window of the line that
    arrived with it was shown, and what was seen of the next driver meanwhile."""

    at_s: float
    whole_s: float
    seen: Seen


def measured(folder: Path, size_mb: int, kills: int, standby: int) -> list[Kill]:
    """Each kill."""
    side = MillraceSide(f"standby-{standby}", spec(), folder, standby)
    try:
        roots = fill(side, folder, size_mb)
        one = one_line(folder)
        found = []
        for kill in range(1, kills + 1):
            if standby:
                wait_until(side, lambda kill=kill: stood_by(side) >= kill)  # type: ignore[misc]
            found.append(killed(side, one, roots + kill, cold=not standby))
    finally:
        side.stop()
    check(side.output, kills)
    return found


def starts(folder: Path, kills: list[Kill]) -> list[Start]:
    """The start of the driver behind each kill."""
    lines = logged(folder)[-len(kills) :]
    if len(lines) != len(kills):
        raise SystemExit(f"{folder}: {len(kills)} drivers started, {len(lines)} logs say how")
    pairs = zip(kills, lines, strict=True)
    return [Start(kill.at_s, kill.whole_s, line, kill.seen) for kill, line in pairs]


def logged(folder: Path) -> list[str]:
    """What drivers told of their starts, oldest first."""
    files = sorted(folder.glob("work/logs/driver.log*"), key=lambda file: file.stat().st_mtime)
    text = "".join(file.read_text() for file in files)
    return [line for line in text.splitlines() if STARTED in line]


def killed(side: MillraceSide, file: Path, roots: int, *, cold: bool) -> Kill:
    """Kill the driver, feed one line, and wait until its window is shown."""
    before, window = driver_pid(side), side.shown() + 1
    with Watch(side.pid, before) if cold else nullcontext(Seen()) as seen:
        begin_s = time.time()
        os.kill(before, signal.SIGKILL)
        side.feed([file])
        side.expect(window)
        whole_s = time.time() - begin_s
        wait_for(side, roots)
    print(f"    {whole_s:.2f} s, the record after {recovered_at(side) - begin_s:.2f} s", flush=True)
    return Kill(begin_s, whole_s, seen)


if __name__ == "__main__":
    main()
