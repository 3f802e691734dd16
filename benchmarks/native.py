"""Declared processors against functions of Python: ``make bench NAME=native``.

``json``: lines of JSON, an object of about 190 bytes each, are read into four columns, and one is
summed by another (1,000 keys), by the declared processor, and by a vectorised function that calls
``json.loads`` for each line and has pyarrow make the columns.

``lookup``: each line is one of 100,000 names, its region (one of 50) is found in a table with a row
for each, and names are counted by region, by the declared processor over a CSV file, and by a
vectorised function over a ``dict``.

Both sides of a part are whole topologies (ExactlyOnce, tracked, fsync at every seal), alive at
once, with interleaved rounds as in wordcount.py; their totals are compared with those of plain
Python.

The last line is one JSON object: how many times the throughput of the function that of the
declared processor is, and how many times its CPU the function takes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import (
    Round,
    interleave,
    last_line,
    machine,
    median_cpu_s,
    median_window_s,
    ratio,
    round_windows,
    stop_cleanly,
    totals_in,
)
from native_functions import REGIONS
from sides import MillraceSide
from wordcount import OUT, word_count

TABLE = "regions.csv"
CODE = Path(__file__).resolve().parent
ITEMS = 1_000


@dataclass(frozen=True)
class Part:
    """One declared processor, ``settings``, against a function of ``native_functions``.

    ``line`` makes a line of the input, ``counted`` says what a line adds to which total.
    """

    name: str
    settings: dict[str, Any]
    function: str
    total: dict[str, str]
    line: Callable[[random.Random, int], str]
    counted: Callable[[str], tuple[str, int]]

    @property
    def sides(self) -> dict[str, dict[str, Any]]:
        """The processor of each side."""
        return {self.name: {self.name: self.settings}, "function": {"function": self.function}}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of every side")
    parser.add_argument("--warmups", type=int, default=3, help="rounds that do not count")
    parser.add_argument("--windows", type=round_windows, default=4, help="windows of a round")
    parser.add_argument("--lines", type=int, default=100_000, help="lines of a window")
    parser.add_argument("--only", choices=list(PARTS), help="one part alone")
    parser.add_argument("--keep", action="store_true", help="leave outputs and logs in out/")
    options = parser.parse_args()
    stop_cleanly()
    print(machine())
    run = OUT / "native"
    shutil.rmtree(run, ignore_errors=True)
    result: dict[str, float] = {}
    for part in PARTS.values():
        if options.only in (None, part.name):
            result |= compared(part, run / part.name, options)
    if not options.keep:
        shutil.rmtree(run, ignore_errors=True)
    last_line({name: round(value, 3) for name, value in result.items()})


def compared(part: Part, run: Path, options: argparse.Namespace) -> dict[str, float]:
    """The ratios of one part."""
    numbers = range(options.windows)
    files = [drawn(part, OUT / "corpora", number, options.lines) for number in numbers]
    print(f"\n{part.name}: windows of {options.lines:,} lines, load {os.getloadavg()[0]:.1f}")
    found = race(part, run, files, options)
    for name, rounds in found.items():
        print(
            f"  {name:10s} {options.lines / median_window_s(rounds):>12,.0f} lines/s, window "
            f"{median_window_s(rounds) * 1e3:5.0f} ms, CPU {median_cpu_s(rounds) * 1e3:5.0f} ms"
        )
    pairs = zip(found["function"], found[part.name], strict=True)
    return {
        f"{part.name}_vs_function": ratio(found["function"], found[part.name]),
        f"{part.name}_vs_function_cpu": statistics.median(a.cpu_s / b.cpu_s for a, b in pairs),
    }


def race(
    part: Part, run: Path, files: list[Path], options: argparse.Namespace
) -> dict[str, list[Round]]:
    """Interleaved rounds of both sides, whose totals are then compared with the truth."""
    sides: list[MillraceSide] = []
    try:
        for name, step in part.sides.items():
            (run / name).mkdir(parents=True)
            write_regions(run / name / TABLE)
            sides.append(MillraceSide(name, topology(part, options.lines, step), run / name))
        found = interleave(sides, files, options.rounds, options.warmups)
    finally:
        for side in sides:
            side.stop()
    expected = Counter[str]()
    for path in files:
        for line in path.read_text().splitlines():
            key, count = part.counted(line)
            expected[key] += count * (options.rounds + options.warmups)
    for side in sides:
        totals, _ = totals_in(side.output)
        if totals != expected:
            raise SystemExit(f"{side.name} is wrong: {totals_apart(totals, expected)}")
    return found


def totals_apart(totals: dict[str, int], expected: Counter[str]) -> list[tuple[str, Any, Any]]:
    """Some of the items whose totals differ, with what was found and what is right."""
    keys = sorted(totals.keys() | expected.keys())
    return [(k, totals.get(k), expected[k]) for k in keys if totals.get(k) != expected[k]][:5]


def topology(part: Part, lines: int, step: dict[str, Any]) -> dict[str, Any]:
    """lines -> the step -> totals by word -> files."""
    spec = word_count(window=lines)
    spec["code"] = {"path": str(CODE)}
    spec["processors"] = [
        {"name": "read", "inputs": [{"from": "lines"}], **step},
        {
            "name": "counts",
            "inputs": [{"from": "read", "key": ["word"]}],
            "aggregate": {"columns": [{"name": "n", **part.total}]},
        },
    ]
    return spec


def drawn(part: Part, folder: Path, number: int, lines: int) -> Path:
    """A file of the lines of a part, the same from every run."""
    path = folder / f"native-{part.name}-{lines}-{number:02d}.txt"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        rng = random.Random(number)
        draft = path.with_suffix(".draft")
        with draft.open("w") as file:
            file.writelines(part.line(rng, index) + "\n" for index in range(lines))
        os.replace(draft, path)
    return path


def write_regions(path: Path) -> None:
    """The table that names are looked up in."""
    rows = "".join(f"{name},{region}\n" for name, region in REGIONS.items())
    path.write_text(f"name,region\n{rows}")


def _order(rng: random.Random, index: int) -> dict[str, Any]:
    return {
        "id": index,
        "at": f"2026-01-31T09:{index % 60:02d}:{rng.randrange(60):02d}.{rng.randrange(10**6):06d}Z",
        "customer": {"id": f"c{rng.randrange(10**6)}", "region": rng.choice(["north", "south"])},
        "order": {"item": f"item {rng.randrange(ITEMS)}", "count": rng.randint(1, 9)},
        "amount": rng.randrange(10**6) / 100,
        "tags": ["new", "web"][: rng.randrange(3)],
    }


def _of_order(line: str) -> tuple[str, int]:
    order = json.loads(line)["order"]
    return order["item"], order["count"]


PARTS = {
    part.name: part
    for part in (
        Part(
            name="json",
            settings={
                "column": "value",
                "columns": [
                    {"name": "word", "type": "string", "path": "order.item"},
                    {"name": "n", "type": "long", "path": "order.count"},
                    {"name": "amount", "type": "double"},
                    {"name": "at", "type": "timestamp"},
                ],
            },
            function="native_functions:read",
            total={"function": "sum", "of": "n"},
            line=lambda rng, index: json.dumps(_order(rng, index)),
            counted=_of_order,
        ),
        Part(
            name="lookup",
            settings={
                "table": {"path": TABLE, "schema": "name string, region string"},
                "key": [{"column": "value", "of": "name"}],
                "columns": [{"name": "word", "of": "region"}],
            },
            function="native_functions:look_up",
            total={"function": "count"},
            line=lambda rng, _: f"name {rng.randrange(len(REGIONS))}",
            counted=lambda line: (REGIONS[line], 1),
        ),
    )
}


if __name__ == "__main__":
    main()
