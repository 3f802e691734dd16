"""Memory of every process over 10,000 small windows: ``make bench NAME=memory``.

A tracked word count under ExactlyOnce runs in windows of 20 lines. Once a second the resident
memory of the driver, its JVM, the acker, the state server and the Python workers is noted, and how
many keys the state server and how many files the work folder have; the JVM's heap is what its
collector says is left after each collection. A line is fitted by least squares to the last four
fifths of every series: its slope is what a window leaves behind.

Writes ``out/memory.png`` and ``out/memory.csv``. The last line is one JSON object: slopes in bytes,
keys or files a window, and ``bytes_per_root``, what the acker says that it held for each root it
judged.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from corpus import corpus
from measure import check, last_line, machine, stop_cleanly
from sides import MillraceSide
from wordcount import OUT, word_count

from millrace.errors import MillraceError
from millrace.local.inspect.reading import reachable
from millrace.local.workdir import find_folder

WARM = 0.2
"""Share of the windows at the beginning that is not looked at: caches fill, code is compiled."""

COLLECT_EARLY = "-XX:-G1UseAdaptiveIHOP -XX:InitiatingHeapOccupancyPercent=1"
"""The old generation is collected all the time, so that what is left is what is in use."""

_COLLECTION = re.compile(r"^\[([\d.]+)s\].*Pause.* \d+M->(\d+)M\(")
_LIST_S = 30.0

COUNTS = ("keys", "files")
"""Series that are no memory."""


@dataclass
class Series:
    """One process's memory: window numbers and bytes."""

    windows: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def settled(self) -> tuple[np.ndarray, np.ndarray]:
        """Windows and bytes behind the warm-up."""
        windows, sizes = np.array(self.windows, float), np.array(self.sizes, float)
        kept = windows >= WARM * windows.max(initial=0.0)
        return windows[kept], sizes[kept]

    def slope(self) -> float:
        """Bytes a window, by least squares; 0 for fewer than three points."""
        windows, sizes = self.settled()
        return float(np.polyfit(windows, sizes, 1)[0]) if len(windows) > 2 else 0.0


def main() -> None:
    """Measure, plot and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=10_000)
    parser.add_argument("--lines", type=int, default=20, help="lines of a window")
    parser.add_argument("--keep", action="store_true", help="leave outputs and logs in out/")
    options = parser.parse_args()
    stop_cleanly()
    print(machine())
    run = OUT / "memory"
    shutil.rmtree(run, ignore_errors=True)
    texts = corpus("licences", OUT / "corpora", 1, options.windows * options.lines)
    collections = run / "collections.log"
    spec = word_count(window=options.lines)
    spec["spark"] = {
        "conf": {"spark.driver.extraJavaOptions": f"-Xlog:gc:file={collections} {COLLECT_EARLY}"}
    }
    side = MillraceSide("memory", spec, run)
    try:
        series, clock = watch(side, texts.files[0], options.windows)
        bytes_per_root = status(side)["bytesPerRoot"]
    finally:
        side.stop()
    check(side, {texts.files[0]: 1}, changes=False)
    series["jvm heap"] = heap(collections, clock)
    write(series, OUT / "memory.csv")
    plot(series, OUT / "memory.png")
    for name, one in series.items():
        _, sizes = one.settled()
        unit, size = (name, 1) if name in COUNTS else ("MiB", 1 << 20)
        print(
            f"  {name:16s} {sizes[0] / size:8.1f} {unit} after a fifth, {sizes[-1] / size:8.1f} at "
            f"the end, {one.slope():10.3f} {'bytes' if unit == 'MiB' else unit} a window"
        )
    if not options.keep:
        shutil.rmtree(run, ignore_errors=True)
    slopes = {
        f"{name.replace(' ', '_')}_slope": round(one.slope(), 2) for name, one in series.items()
    }
    last_line({"windows": options.windows, **slopes, "bytes_per_root": bytes_per_root})


def watch(
    side: MillraceSide, file: Path, windows: int
) -> tuple[dict[str, Series], list[tuple[float, int]]]:
    """Feed the windows and note memory each second; also when (wall clock) which was shown."""
    series: dict[str, Series] = defaultdict(Series)
    clock: list[tuple[float, int]] = []
    side.feed([file])
    pids: dict[int, str] = {}
    listed = float("-inf")
    shown = 0
    while shown < windows:
        time.sleep(1)
        if time.monotonic() - listed > _LIST_S:
            listed = time.monotonic()
            pids = {row["pid"]: _name(row) for row in side.processes()}
        before, shown = shown, side.shown()
        clock.append((time.time(), shown))
        for pid, name in pids.items():
            try:
                size = psutil.Process(pid).memory_info().rss
            except psutil.Error:
                continue
            series[name].windows.append(shown)
            series[name].sizes.append(size)
        for name, count in counts(side).items():
            series[name].windows.append(shown)
            series[name].sizes.append(count)
        if shown // 1000 > before // 1000:
            print(f"  window {shown:,}", flush=True)
    return dict(series), clock


def counts(side: MillraceSide) -> dict[str, int]:
    """Keys of the state server, and files of the work folder."""
    files = sum(len(names) for _, _, names in os.walk(side.workdir))
    try:
        with reachable(find_folder(side.workdir)) as clients:
            return {"files": files, "keys": sum(int(one.redis.dbsize()) for one in clients)}
    except MillraceError:
        return {"files": files}


def _name(row: dict[str, Any]) -> str:
    names = {"pythonWorker": "worker", "pythonDaemon": "daemon"}
    role = names.get(row["role"], row["role"])
    number = str(row["name"]).rpartition("-")[2]
    return f"{role} {number}" if number.isdigit() and number != "0" else str(role)


def status(side: MillraceSide) -> dict[str, Any]:
    """``millrace status --json``."""
    command = [sys.executable, "-m", "millrace.cli.app", "status", "--json"]
    done = subprocess.run(
        [*command, "--workdir", str(side.workdir)], stdout=subprocess.PIPE, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def heap(log: Path, clock: Sequence[tuple[float, int]]) -> Series:
    """The JVM's heap behind each collection, from its log; windows by the time in it."""
    found = Series()
    if not log.exists() or not clock:
        return found
    # The log counts seconds from the start of the JVM, and was created then.
    times = [at for at, _ in clock]
    lines = log.read_text().splitlines()
    last = next((m for m in map(_COLLECTION.match, reversed(lines)) if m), None)
    if last is None:
        return found
    start = log.stat().st_mtime - float(lines[-1][1 : lines[-1].index("s]")])
    for match in filter(None, map(_COLLECTION.match, lines)):
        at = float(np.interp(start + float(match[1]), times, [w for _, w in clock]))
        found.windows.append(int(at))
        found.sizes.append(int(match[2]) << 20)
    return found


def write(series: dict[str, Series], path: Path) -> None:
    """All points as CSV."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["process", "window", "bytes"])
        for name, one in series.items():
            rows.writerows(zip([name] * len(one.sizes), one.windows, one.sizes, strict=True))


def plot(series: dict[str, Series], path: Path) -> None:
    """One line for each process."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5))
    for name, one in sorted(series.items()):
        if name in COUNTS:
            continue
        style = ":" if name == "jvm heap" else "-"
        axes.plot(one.windows, np.array(one.sizes) / 2**20, style, label=name, linewidth=1)
    axes.set_xlabel("window")
    axes.set_ylabel("MiB")
    axes.set_ylim(bottom=0)
    axes.set_title("Resident memory, and the JVM's heap after each collection")
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
