"""From the start of a driver to its first sealed window: ``make bench NAME=recovery``.

A count by key under ExactlyOnce is fed until its state has the size that is asked for. Then the
driver is killed with SIGKILL, again and again; the supervisor starts the next one, and a window of
one line, which touches ten keys, waits for it. What is measured goes from the start of the new
process, by the kernel's account of it, to the mark with which the sink says that this window is
sealed and shown. Nothing is subtracted: most of it is the JVM and Spark. ``CPU`` is what all
processes of the run spent from the kill to that mark; other load on the machine matters less to it.

``view`` is how much of that passes until the driver says that it has the record, ``read`` the bytes
that the state server sends between the kill and the mark, by its own count: what the tasks of that
window read of the state, and what driver and ackers ask for meanwhile. The state server lives on;
how long one takes to come back is in the benchmark of loading.

State is counted as keys of 100 bytes with a total of 8, most of which does not compress. What was
counted is compared with what was fed. Topologies of all sizes run at once, and one after another
has its driver killed, so that other load on the machine meets all of them. The last line is one
JSON object: medians by size in seconds and kilobytes, and ``ratio``, the median of what a size took
to what the smallest one took beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import redis
from measure import last_line, machine, stop_cleanly
from recovery_functions import KEY_BYTES
from sides import HERE, MillraceSide
from wordcount import OUT

TOTAL_BYTES = 8
KEYS_A_LINE = 5_000
LINES_A_WINDOW = 40
TOUCHED = 10
LIMIT_S = 600.0


def main() -> None:
    """Measure every size and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 10, 100, 500], help="in MB")
    parser.add_argument("--kills", type=int, default=5, help="of each size's driver")
    parser.add_argument("--keep", action="store_true", help="leave outputs and logs in out/")
    options = parser.parse_args()
    stop_cleanly()
    print(machine())
    run = OUT / "recovery"
    shutil.rmtree(run, ignore_errors=True)
    with ExitStack() as stack:
        topologies = []
        for size in options.sizes:
            topologies.append(Topology(run / f"{size}", size))
            stack.callback(topologies[-1].side.stop)
            topologies[-1].fill()
        for _ in range(options.kills):
            for topology in topologies:
                topology.kill()
    for topology in topologies:
        check(topology.side.output, options.kills)
    if not options.keep:
        shutil.rmtree(run, ignore_errors=True)
    report(topologies)


class Topology:
    """One that runs, with a state of so many MB. All live at once and are killed in turns."""

    def __init__(self, folder: Path, size_mb: int) -> None:
        self.size_mb = size_mb
        self.side = MillraceSide(f"recovery-{size_mb}", spec(), folder)
        self.found: list[Recovery] = []
        self._folder = folder
        self._roots = 0

    def fill(self) -> None:
        """Feed it its state."""
        self._roots = fill(self.side, self._folder, self.size_mb)

    def kill(self) -> None:
        """Kill its driver once."""
        self._roots += 1
        self.found.append(killed(self.side, one_line(self._folder), self._roots))
        took = self.found[-1]
        print(f"    {self.size_mb} MB: {took.whole_s:.2f} s, {summary([took])}", flush=True)


def fill(side: MillraceSide, folder: Path, size_mb: int) -> int:
    """Feed a state of that size and wait until it is shown; how many roots that were."""
    roots = max(1, round(size_mb * 1e6 / (KEY_BYTES + TOTAL_BYTES) / KEYS_A_LINE))
    fed = folder / "fed.txt"
    fed.write_text("".join(f"{n * KEYS_A_LINE} {KEYS_A_LINE}\n" for n in range(roots)))
    side.feed([fed])
    wait_for(side, roots)
    return roots


def one_line(folder: Path) -> Path:
    """A file of one line, which touches some keys."""
    one = folder / "one.txt"
    one.write_text(f"0 {TOUCHED}\n")
    return one


def report(topologies: Sequence[Topology]) -> None:
    """Print medians, and what each size takes of the time of the smallest one beside it."""
    figures: dict[str, float] = {}
    smallest = [one.whole_s for one in topologies[0].found]
    for topology in topologies:
        whole = [one.whole_s for one in topology.found]
        ratios = [own / other for own, other in zip(whole, smallest, strict=True)]
        print(
            f"  {topology.size_mb:4d} MB: {statistics.median(whole):6.2f} s to the first sealed "
            f"window ({min(whole):.2f} to {max(whole):.2f}), {summary(topology.found)}",
            flush=True,
        )
        for name in ("whole_s", "cpu_s", "view_s", "read_kb"):
            values = [getattr(one, name) for one in topology.found]
            figures[f"{topology.size_mb}_mb_{name}"] = round(statistics.median(values), 2)
        figures[f"{topology.size_mb}_mb_ratio"] = round(statistics.median(ratios), 3)
    last_line(figures)


@dataclass(frozen=True)
class Recovery:
    """What passed from one kill to the next window."""

    whole_s: float
    cpu_s: float
    view_s: float
    read_kb: float


def summary(found: Sequence[Recovery]) -> str:
    """Medians in words."""

    def median(name: str) -> float:
        return statistics.median([getattr(one, name) for one in found])

    return (
        f"{median('cpu_s'):6.2f} s of CPU, view {median('view_s'):.2f} s, "
        f"read {median('read_kb'):.0f} KB"
    )


def killed(side: MillraceSide, file: Path, roots: int) -> Recovery:
    """Kill the driver, feed one line; until the next driver has shown its window."""
    before, window = driver_pid(side), side.shown() + 1
    os.kill(before, signal.SIGKILL)
    sent = sent_bytes(side)
    wait_until(side, lambda: not psutil.pid_exists(before))
    cpu_s = side.cpu_s()
    side.feed([file])
    wait_for(side, roots)
    cpu_s = side.cpu_s() - cpu_s
    read_kb = (sent_bytes(side) - sent) / 1000
    begun_s = psutil.Process(driver_pid(side, other_than=before)).create_time()
    mark = side.output / "_millrace" / "windows" / f"{window:012d}.done"
    whole_s = mark.stat().st_mtime_ns / 1e9 - begun_s
    return Recovery(whole_s, cpu_s, recovered_at(side) - begun_s, read_kb)


def recovered_at(side: MillraceSide) -> float:
    """When, by the wall clock, the last driver said that it has its view and the record."""
    lines = (side.workdir / "events.jsonl").read_text().splitlines()
    events = (json.loads(line) for line in lines)
    return max(float(e["time"]) for e in events if e["kind"] == "DriverRecovered")


def sent_bytes(side: MillraceSide) -> int:
    """What the state server has sent, by its own count."""
    proposal = (side.workdir / "proposal.json").read_text()
    found = re.search(r"redis://[\d.:]+", proposal)
    assert found is not None, proposal
    password = (side.workdir / "state-0" / "password").read_text().strip()
    with redis.Redis.from_url(found[0], password=password) as client:
        return int(client.info("stats")["total_net_output_bytes"])


def driver_pid(side: MillraceSide, other_than: int = 0) -> int:
    """The process id of the driver that lives now."""
    found = 0

    def lives() -> bool:
        nonlocal found
        found = side.status().get("pid", 0)
        return found not in (0, other_than) and psutil.pid_exists(found)

    wait_until(side, lives)
    return found


def wait_for(side: MillraceSide, roots: int) -> None:
    """Until so many roots are sealed and shown."""

    def shown() -> bool:
        found = side.status()
        sealed = found.get("totals", {}).get("roots", 0) >= roots
        return bool(sealed and found["published"] == found["sealed"])

    wait_until(side, shown)


def wait_until(side: MillraceSide, condition: Callable[[], bool]) -> None:
    """Raises ``SystemExit`` where that takes too long."""
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{side.name}: stood still for {LIMIT_S:.0f} s; see {side.workdir}")
        time.sleep(0.05)


def check(output: Path, kills: int) -> None:
    """The keys that every window touched were counted once for each, and once at first."""
    last: dict[str, int] = {}
    for part in sorted(output.glob("part-*")):
        for line in part.read_text().splitlines():
            row: dict[str, Any] = json.loads(line)
            if row["n"] > 1 or row["key"] in last:
                last[row["key"]] = max(row["n"], last.get(row["key"], 0))
    if len(last) != TOUCHED or set(last.values()) != {kills + 1}:
        raise SystemExit(f"{output}: {TOUCHED} keys were fed {kills + 1} times, counted: {last}")


def spec() -> dict[str, Any]:
    """A count of every key, of which only what a window changed is written."""
    return {
        "guarantee": "ExactlyOnce",
        "window": {"maxRecords": LINES_A_WINDOW, "maxInterval": "100ms"},
        "parallelism": 2,
        "code": {"path": str(HERE)},
        "sources": [{"name": "lines", "files": {"path": "input", "format": "text", "watch": True}}],
        "processors": [
            {
                "name": "spread",
                "inputs": [{"from": "lines"}],
                "function": "recovery_functions:spread",
            },
            {
                "name": "counts",
                "inputs": [{"from": "spread", "key": ["key"]}],
                "aggregate": {"emit": "changes", "columns": [{"name": "n", "function": "count"}]},
            },
        ],
        "sinks": [
            {
                "name": "totals",
                "inputs": [{"from": "counts"}],
                "files": {"path": "output", "format": "jsonLines"},
            }
        ],
    }


if __name__ == "__main__":
    main()
