"""A count by key whose state has a given size, and what the benchmarks of recovery, of scaling and
of snapshots do with it.

State is counted as keys of 100 bytes with a total of 8, most of which does not compress. A line
names many keys; once the state is there, a window is a line that touches ten of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import redis
from recovery_functions import KEY_BYTES
from sides import HERE, MillraceSide

TOTAL_BYTES = 8
KEYS_A_LINE = 5_000
LINES_A_WINDOW = 40
TOUCHED = 10
LIMIT_S = 600.0


def lines_of(size_mb: int) -> int:
    """How many lines a state of that size is fed with."""
    return max(1, round(size_mb * 1e6 / (KEY_BYTES + TOTAL_BYTES) / KEYS_A_LINE))


def fill(side: MillraceSide, folder: Path, size_mb: int) -> int:
    """Feed a state of that size and wait until it is shown; how many roots that were."""
    roots = lines_of(size_mb)
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


def recovered_at(side: MillraceSide) -> float:
    """When, by the wall clock, the last driver said that it has its view and the record."""
    lines = (side.workdir / "events.jsonl").read_text().splitlines()
    events = (json.loads(line) for line in lines)
    return max(float(e["time"]) for e in events if e["kind"] == "DriverRecovered")


def sent_bytes(side: MillraceSide) -> int:
    """What the state servers have sent, by their own counts."""
    proposal = json.loads((side.workdir / "proposal.json").read_text())
    sent = 0
    for member in [*proposal["members"], *(proposal.get("leaving") or ())]:
        password = (side.workdir / member["name"] / "password").read_text().strip()
        with redis.Redis.from_url(member["url"], password=password) as client:
            sent += int(client.info("stats")["total_net_output_bytes"])
    return sent


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


def stood_by(side: MillraceSide) -> int:
    """How many drivers have stood by so far, with all of it up."""
    lines = (side.workdir / "events.jsonl").read_text().splitlines()
    return sum(json.loads(line)["kind"] == "StandbyReady" for line in lines)


def wait_until(side: MillraceSide, condition: Callable[[], bool]) -> None:
    """Raises ``SystemExit`` where that takes too long."""
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{side.name}: stood still for {LIMIT_S:.0f} s; see {side.workdir}")
        time.sleep(0.05)


def check(output: Path, lines: int, files: str = "part-*", key: str = "key") -> None:
    """The keys that every such line touched were counted once for each, and once at first.

    ``files`` are those of the output, ``key`` is the column of the key in them.
    """
    last: dict[str, int] = {}
    for part in sorted(output.glob(files)):
        for line in part.read_text().splitlines():
            row: dict[str, Any] = json.loads(line)
            if row["n"] > 1 or row[key] in last:
                last[row[key]] = max(row["n"], last.get(row[key], 0))
    if len(last) != TOUCHED or set(last.values()) != {lines + 1}:
        raise SystemExit(f"{output}: {TOUCHED} keys were fed {lines + 1} times, counted: {last}")


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
