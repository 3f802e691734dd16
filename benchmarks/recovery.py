"""From SIGKILL to the next window that is shown: ``make bench NAME=recovery``.

One topology for each size of state, a count by key under ExactlyOnce with two copies on three state
servers and one acker, takes kills of every kind: of its acker, of a state server, of the driver
(nobody stands by), of the driver while one stands by, and of that one of two executors which the
windows before it ran on. A line that touches ten keys arrives with each kill, and what is measured
goes from the kill to the mark with which the sink says that the window of this line is sealed and
shown. Nothing is subtracted: of a cold driver the JVM and Spark are most of it. Plain Structured
Streaming, which counts the same keys with RocksDB and a checkpoint on the disk, is killed as a
whole and started again at once; of it the time goes until the changed totals of its line are
written.

Before a kill all of a run has been there for two seconds, and six windows have gone through.
Topologies of all sizes are up at once and are killed in turns, so that other load on the machine
meets all of them. For drivers that stand by and for executors the run is ended in between and
started again with such a topology; its state stays.

``CPU`` is what all processes of the run spend from the kill to the mark; ``view`` is how much
passes until the driver says that it has the record, ``read`` what the state servers send meanwhile,
by their own counts. What was counted is compared with what was fed.

Every kill is a line in ``out/recovery/kills.jsonl``, and a benchmark that was broken off goes on
where it was; ``--fresh`` begins again. Writes ``out/recovery.png``. The last line is one JSON
object: for each kind of kill the median in seconds by size.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from killing import KINDS, PHASES, SparkRun, Topology
from measure import last_line, machine, stop_cleanly
from wordcount import OUT

SPARK = "spark_driver"
GOALS_S = {
    "acker": 2.0,
    "state_server": 2.0,
    "executor": 5.0,
    "driver": 6.0,
    "driver_standby": 1.5,
}

Kill = dict[str, Any]


def main() -> None:
    """Measure what is not yet measured, plot and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 10, 100], help="in MB")
    parser.add_argument("--kills", type=int, default=10, help="of each kind at each size")
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS, SPARK], default=[*KINDS, SPARK])
    parser.add_argument("--fresh", action="store_true", help="leave nothing of an earlier one")
    parser.add_argument("--keep", action="store_true", help="leave outputs and logs in out/")
    options = parser.parse_args()
    stop_cleanly()
    print(machine())
    run = OUT / "recovery"
    if options.fresh:
        shutil.rmtree(run, ignore_errors=True)
    run.mkdir(parents=True, exist_ok=True)
    book = Book(run / "kills.jsonl")
    for phase in PHASES:
        kinds = [kind for kind in options.kinds if KINDS.get(kind) == phase]
        measure(run, phase, kinds, options, book)
    if SPARK in options.kinds:
        measure_spark(run, options, book)
    report(book, options)
    plot(book, options, OUT / "recovery.png")
    for size in options.sizes:
        if any(kind in KINDS for kind in options.kinds):
            print(f"  {size} MB: {topology(run, size).check()} lines were counted once each")
        if SPARK in options.kinds:
            print(f"  {size} MB: {spark(run, size).check()} lines of Structured Streaming, too")
    if not options.keep:
        shutil.rmtree(run, ignore_errors=True)
    last_line(
        {
            f"{kind}_s": {f"{size}_mb": book.median(size, kind) for size in options.sizes}
            for kind in options.kinds
        }
    )


class Book:
    """Every kill as a line of a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.kills: list[Kill] = [json.loads(line) for line in lines]

    def add(self, size: int, kind: str, found: dict[str, float]) -> None:
        """Note a kill and print it."""
        figures = {name: round(value, 3) for name, value in found.items()}
        kill = {"size_mb": size, "kind": kind, "load": round(os.getloadavg()[0], 1), **figures}
        self.kills.append(kill)
        with self._path.open("a") as file:
            file.write(json.dumps(kill) + "\n")
        told = ", ".join(f"{name} {value}" for name, value in kill.items() if name != "size_mb")
        print(f"    {size} MB, {told}", flush=True)

    def of(self, size: int, kind: str) -> list[Kill]:
        return [one for one in self.kills if (one["size_mb"], one["kind"]) == (size, kind)]

    def values(self, size: int, kind: str, figure: str = "s") -> list[float]:
        return [float(one[figure]) for one in self.of(size, kind) if figure in one]

    def median(self, size: int, kind: str, figure: str = "s") -> float | None:
        values = self.values(size, kind, figure)
        return round(statistics.median(values), 2) if values else None


def topology(run: Path, size: int) -> Topology:
    return Topology(run / f"{size}", size)


def spark(run: Path, size: int) -> SparkRun:
    return SparkRun(run / f"{size}-spark", size)


def measure(
    run: Path, phase: str, kinds: Sequence[str], options: argparse.Namespace, book: Book
) -> None:
    """The kills of one phase that are missing."""
    sizes = [
        size
        for size in options.sizes
        if any(len(book.of(size, kind)) < options.kills for kind in kinds)
    ]
    with ExitStack() as stack:
        there = {}
        for size in sizes:
            there[size] = topology(run, size)
            stack.callback(there[size].stop)
            there[size].start(phase)
        for number in range(options.kills):
            for kind in kinds:
                for size in sizes:
                    if len(book.of(size, kind)) <= number:
                        book.add(size, kind, there[size].kill(kind, number))


def measure_spark(run: Path, options: argparse.Namespace, book: Book) -> None:
    """The kills of Structured Streaming that are missing."""
    sizes = [size for size in options.sizes if len(book.of(size, SPARK)) < options.kills]
    with ExitStack() as stack:
        there = {}
        for size in sizes:
            there[size] = spark(run, size)
            stack.callback(there[size].stop)
            there[size].start()
        for number in range(options.kills):
            for size in sizes:
                if len(book.of(size, SPARK)) <= number:
                    book.add(size, SPARK, there[size].kill())


def report(book: Book, options: argparse.Namespace) -> None:
    """Medians, the fewest and the most seconds."""
    for kind in options.kinds:
        for size in options.sizes:
            values = book.values(size, kind)
            if not values:
                continue
            more = [
                f"{name} {book.median(size, kind, f'{figure}')}"
                for name, figure in (
                    ("CPU s", "cpu_s"),
                    ("view s", "view_s"),
                    ("read KB", "read_kb"),
                    ("load", "load"),
                )
                if book.values(size, kind, figure)
            ]
            goal = f", goal {GOALS_S[kind]}" if kind in GOALS_S else ""
            print(
                f"  {kind:15s} {size:4d} MB: {statistics.median(values):6.2f} s "
                f"({min(values):.2f} to {max(values):.2f}, {len(values)} kills{goal}); "
                f"{', '.join(more)}",
                flush=True,
            )


def plot(book: Book, options: argparse.Namespace, path: Path) -> None:
    """Every kill as a point."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4.5))
    for at, size in enumerate(options.sizes):
        places, values = [], []
        for place, kind in enumerate(options.kinds):
            own = book.values(size, kind)
            spread = 0.12 / max(1, len(own))
            places += [place + 0.24 * (at - 1) + spread * n - 0.06 for n in range(len(own))]
            values += own
        axes.plot(places, values, "o", markersize=4, label=f"{size} MB", alpha=0.7)
    for place, kind in enumerate(options.kinds):
        if kind in GOALS_S:
            axes.hlines(GOALS_S[kind], place - 0.4, place + 0.4, colors="grey", linestyles=":")
    names = [kind.replace("_", " ") for kind in options.kinds]
    axes.set_xticks(range(len(names)), names)
    axes.set_yscale("log")
    axes.set_ylabel("seconds")
    axes.set_title("From SIGKILL to the next window that is shown; dotted: the goal")
    axes.legend(title="state")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
