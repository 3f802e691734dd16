"""Declared processors against functions of Python: ``make bench NAME=native``.

Lines of JSON, an object of about 190 bytes each, are read into four columns, and one is summed by
another (1,000 keys). Sides: ``json`` (the declared processor) and ``function`` (``json.loads`` for
each line in a vectorised function, whose columns are made by pyarrow). Both are whole topologies
(ExactlyOnce, tracked, fsync at every seal), alive at once, with interleaved rounds as in
wordcount.py; their totals are compared with sums by plain Python.

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
    stop_cleanly,
    totals_in,
)
from sides import MillraceSide
from wordcount import OUT, word_count

CODE = Path(__file__).resolve().parent
ITEMS = 1_000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of every side")
    parser.add_argument("--warmups", type=int, default=3, help="rounds that do not count")
    parser.add_argument("--windows", type=int, default=4, help="windows of a round")
    parser.add_argument("--lines", type=int, default=100_000, help="lines of a window")
    parser.add_argument("--keep", action="store_true", help="leave outputs and logs in out/")
    options = parser.parse_args()
    stop_cleanly()
    print(machine())
    run = OUT / "native"
    shutil.rmtree(run, ignore_errors=True)
    files = [orders(OUT / "corpora", number, options.lines) for number in range(options.windows)]
    print(f"\nwindows of {options.lines:,} lines, load {os.getloadavg()[0]:.1f}")
    found = race(run, files, options)
    for name, rounds in found.items():
        print(
            f"  {name:10s} {options.lines / median_window_s(rounds):>12,.0f} lines/s, window "
            f"{median_window_s(rounds) * 1e3:5.0f} ms, CPU {median_cpu_s(rounds) * 1e3:5.0f} ms"
        )
    if not options.keep:
        shutil.rmtree(run, ignore_errors=True)
    pairs = zip(found["function"], found["json"], strict=True)
    result = {
        "json_vs_function": ratio(found["function"], found["json"]),
        "json_vs_function_cpu": statistics.median(slow.cpu_s / fast.cpu_s for slow, fast in pairs),
    }
    last_line({name: round(value, 3) for name, value in result.items()})


def race(run: Path, files: list[Path], options: argparse.Namespace) -> dict[str, list[Round]]:
    """Interleaved rounds of all sides, whose totals are then compared with the truth."""
    sides: list[MillraceSide] = []
    try:
        for name, settings in STEPS.items():
            sides.append(MillraceSide(name, reading(options.lines, settings), run / name))
        found = interleave(sides, files, options.rounds, options.warmups)
    finally:
        for side in sides:
            side.stop()
    expected = Counter[str]()
    for path in files:
        for line in path.read_bytes().splitlines():
            order = json.loads(line)["order"]
            expected[order["item"]] += order["count"] * (options.rounds + options.warmups)
    for side in sides:
        totals, _ = totals_in(side.output)
        if totals != expected:
            raise SystemExit(f"{side.name} is wrong: {totals_apart(totals, expected)}")
    return found


def totals_apart(totals: dict[str, int], expected: Counter[str]) -> list[tuple[str, Any, Any]]:
    """Some of the items whose totals differ, with what was found and what is right."""
    keys = sorted(totals.keys() | expected.keys())
    return [(k, totals.get(k), expected[k]) for k in keys if totals.get(k) != expected[k]][:5]


STEPS: dict[str, dict[str, Any]] = {
    "json": {
        "json": {
            "column": "value",
            "columns": [
                {"name": "word", "type": "string", "path": "order.item"},
                {"name": "n", "type": "long", "path": "order.count"},
                {"name": "amount", "type": "double"},
                {"name": "at", "type": "timestamp"},
            ],
        }
    },
    "function": {"function": "native_functions:read"},
}


def reading(lines: int, settings: dict[str, Any]) -> dict[str, Any]:
    """lines -> read -> sums by item -> files."""
    spec = word_count(window=lines)
    spec["code"] = {"path": str(CODE)}
    spec["processors"] = [
        {"name": "read", "inputs": [{"from": "lines"}], **settings},
        {
            "name": "counts",
            "inputs": [{"from": "read", "key": ["word"]}],
            "aggregate": {"columns": [{"name": "n", "function": "sum", "of": "n"}]},
        },
    ]
    return spec


def orders(folder: Path, number: int, lines: int) -> Path:
    """A file of JSON lines, the same from every run."""
    path = folder / f"orders-{lines}-{number:02d}.txt"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        rng = random.Random(number)
        draft = path.with_suffix(".draft")
        with draft.open("w") as file:
            for index in range(lines):
                file.write(json.dumps(_order(rng, index)) + "\n")
        os.replace(draft, path)
    return path


def _order(rng: random.Random, index: int) -> dict[str, Any]:
    return {
        "id": index,
        "at": f"2026-01-31T09:{index % 60:02d}:{rng.randrange(60):02d}.{rng.randrange(10**6):06d}Z",
        "customer": {"id": f"c{rng.randrange(10**6)}", "region": rng.choice(["north", "south"])},
        "order": {"item": f"item {rng.randrange(ITEMS)}", "count": rng.randint(1, 9)},
        "amount": rng.randrange(10**6) / 100,
        "tags": ["new", "web"][: rng.randrange(3)],
    }


if __name__ == "__main__":
    main()
