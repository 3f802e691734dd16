"""What a record costs, by the size of its window, by keys and by executors: ``make bench
NAME=scale``.

Every line is one key, drawn evenly out of as many as there are, and each window puts out the
changed total of every key that it touched, as JSON lines (ExactlyOnce, tracked, an acker process,
fsync at every seal). There is one topology for each size of a window and number of executor
processes; without any the driver's own process runs the tasks. It takes rounds of windows of one
key first, then of more. A round's figure is the time of a window in the midst of others
(``measure.Round``), and the CPU seconds of all processes. At the end
every total is compared with a count of what was fed, and every window must have put out each of its
keys once.

The last line is one JSON object: microseconds of a record by the clock and of CPU, by executors,
keys and lines, and ``worst_step``: how many times its cost in the next smaller windows a record
costs at most, by CPU and the same keys and executors. It is above 1 where windows become too large.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from measure import Round, check, last_line, machine, median_cpu_s, median_window_s, stop_cleanly
from sides import MillraceSide
from state import counting, key_lines, stored
from wordcount import OUT

WARM_WINDOWS = 24
"""Of each topology before any that counts: JVMs and workers compile in the first ones."""

LINES = (100, 1_000, 10_000, 100_000, 500_000, 2_000_000)
KEYS = (1, 1_000, 1_000_000)
EXECUTORS = (0, 1, 2)
PICTURE = OUT / "scale.png"


@dataclass(frozen=True, order=True)
class Point:
    """What was measured: executor processes (0: the driver's own), keys, lines of a window."""

    executors: int
    keys: int
    lines: int


@dataclass(frozen=True)
class Cost:
    """Microseconds of one record."""

    wall_us: float
    cpu_us: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of every point")
    parser.add_argument("--warmups", type=int, default=1, help="rounds that do not count")
    parser.add_argument("--lines", type=int, nargs="+", default=LINES, help="of a window")
    parser.add_argument("--keys", type=int, nargs="+", default=KEYS)
    parser.add_argument("--executors", type=int, nargs="+", default=EXECUTORS)
    parser.add_argument("--keep", action="store_true", help="leave outputs and logs in out/")
    options = parser.parse_args()
    stop_cleanly()
    print(machine())
    run, corpora = OUT / "scale", OUT / "corpora"
    shutil.rmtree(run, ignore_errors=True)
    corpora.mkdir(parents=True, exist_ok=True)
    costs: dict[Point, Cost] = {}
    for lines in options.lines:
        for executors in options.executors:
            folder = run / f"{lines}-{executors}"
            for keys, rounds in measured(folder, corpora, (lines, executors), options).items():
                point = Point(executors, keys, lines)
                costs[point] = cost = cost_of(rounds, lines)
                print(
                    f"  {executors} executors, {keys:>9,} keys, windows of {lines:>9,} lines: "
                    f"{cost.wall_us:9.2f} us by the clock, {cost.cpu_us:9.2f} us of CPU a record, "
                    f"load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
            if not options.keep:
                shutil.rmtree(folder, ignore_errors=True)
    plot(costs, PICTURE)
    print(f"picture: {PICTURE}")
    last_line(result_of(costs))


def measured(
    folder: Path, corpora: Path, size: tuple[int, int], options: argparse.Namespace
) -> dict[int, list[Round]]:
    """Rounds by number of keys of one topology, whose totals are then compared with the truth."""
    lines, executors = size
    found: dict[int, list[Round]] = {}
    fed: Counter[Path] = Counter()
    side = MillraceSide(f"scale-{lines}-{executors}", spec(lines, executors), folder)
    try:
        for keys in options.keys:
            files = [drawn(corpora, keys, lines, n) for n in range(windows_of(lines))]
            if not found:
                for _ in range(-(-WARM_WINDOWS // len(files))):
                    side.round(files)
                    fed.update(files)
            rounds = []
            for _ in range(options.warmups + options.rounds):
                rounds.append(side.round(files))
                fed.update(files)
            found[keys] = rounds[options.warmups :]
    finally:
        side.stop()
    check(side, fed)
    return found


def windows_of(lines: int) -> int:
    """Windows of a round: enough to measure small ones, few of those that take long."""
    return max(4, min(20, 2_000_000 // lines))


def spec(lines: int, executors: int) -> dict[str, Any]:
    """A count by line in windows of so many, with executor processes or without."""
    found = counting(copies=1)
    found["window"]["maxRecords"] = lines
    if executors:
        found["spark"] = {"executors": {"instances": executors}}
    return found


def drawn(folder: Path, keys: int, lines: int, number: int) -> Path:
    """A window of keys that are drawn evenly; the same from every run."""

    def make() -> bytes:
        random = np.random.default_rng([3, keys, lines, number])
        return key_lines(random.integers(0, keys, lines))

    return stored(folder / f"scale-{keys}-{lines}-{number}.txt", make)


def cost_of(rounds: Sequence[Round], lines: int) -> Cost:
    """Medians over the rounds of one point."""
    return Cost(median_window_s(rounds) / lines * 1e6, median_cpu_s(rounds) / lines * 1e6)


def result_of(costs: dict[Point, Cost]) -> dict[str, float]:
    """What the last line tells."""
    result: dict[str, float] = {}
    steps = []
    for point, cost in sorted(costs.items()):
        name = f"e{point.executors}_k{point.keys}_{point.lines}"
        result[f"{name}_us"], result[f"{name}_cpu_us"] = cost.wall_us, cost.cpu_us
    for executors, keys in sorted({(p.executors, p.keys) for p in costs}):
        line = [c for p, c in sorted(costs.items()) if (p.executors, p.keys) == (executors, keys)]
        steps += [after.cpu_us / before.cpu_us for before, after in pairwise(line)]
    if steps:
        result["worst_step"] = max(steps)
    return {name: round(value, 3) for name, value in result.items()}


def plot(costs: dict[Point, Cost], path: Path) -> None:
    """By the clock on the left, by CPU on the right."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, both = pyplot.subplots(1, 2, figsize=(11, 4.8), sharey=True)
    titles = ("by the clock", "of CPU, all processes")
    for axes, title, by_cpu in zip(both, titles, (False, True), strict=True):
        for executors, keys in sorted({(p.executors, p.keys) for p in costs}):
            points = [p for p in sorted(costs) if (p.executors, p.keys) == (executors, keys)]
            values = [costs[p].cpu_us if by_cpu else costs[p].wall_us for p in points]
            place = f"{executors} executors" if executors else "in the driver"
            axes.loglog(
                [p.lines for p in points],
                values,
                marker="o",
                linestyle=("-", "--", ":")[executors % 3],
                color=f"C{KEYS.index(keys) if keys in KEYS else 3}",
                label=f"{keys:,} keys, {place}",
            )
        axes.set_xlabel("lines of a window")
        axes.set_title(f"Microseconds of a record, {title}")
        axes.grid(alpha=0.3)
    both[1].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
