"""Keyed updates against Structured Streaming's state stores: ``make bench NAME=state``.

Every line is one key, and every window of 200,000 lines puts out the changed total of each key it
touched, as JSON lines. All sides count the same files: Structured Streaming's ``groupBy().count()``
with its in-memory store and with RocksDB, ``applyInPandasWithState``, and Millrace (ExactlyOnce,
tracked, fsync at every seal) with one, two and three copies of its state on as many servers. One
process of each side goes through everything: it is filled with 10,000 keys and measured with
uniform and with Zipf draws (1/rank) from them, then filled up to 1,000,000 keys and measured again.
At the end every total of every side is compared with a count of what it was fed, and every window
must have put out each of its keys once.

Rounds of all sides interleave; a round's figure is the time of a window in the midst of others
(``measure.Round``), and the CPU seconds of all processes of the side. ``applyInPandasWithState``
calls a function for every key, takes many times as long as the others, and has rounds of its own
number.

The last line is one JSON object. ``vs_best_1e4`` and ``vs_best_1e6``: how many times the updates
of the best of the other sides Millrace with one copy makes, by the clock; the lesser one of both
draws, each the median of ratios of rounds that ran next to each other. ``_cpu``: the same by CPU
seconds; ``_mean``: by the sum over all rounds; ``_r2`` and ``_r3``: with so many copies.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measure import (
    Round,
    Side,
    last_line,
    machine,
    median_cpu_s,
    median_window_s,
    round_windows,
    stop_cleanly,
    totals_in,
)
from sides import BaselineSide, MillraceSide
from wordcount import OUT, word_count

LINES = 200_000
SIZES = {"1e4": 10_000, "1e6": 1_000_000}
DRAWS = ("uniform", "zipf")
COPIES = (1, 2, 3)
PANDAS = "pandas"
OTHERS = ("memory", "rocksdb", PANDAS)
PANDAS_WINDOWS = 3
"""Of its rounds: the fewest of which one is in the midst of others."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of every side")
    parser.add_argument("--warmups", type=int, default=2, help="rounds that do not count")
    parser.add_argument("--windows", type=round_windows, default=6, help="windows of a round")
    parser.add_argument("--pandas-rounds", type=int, default=1, help="applyInPandasWithState's")
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--sides", nargs="+", default=[*OTHERS, *(f"r{c}" for c in COPIES)])
    parser.add_argument("--keep", action="store_true", help="leave outputs and logs in out/")
    options = parser.parse_args()
    stop_cleanly()
    print(machine())
    run = OUT / "state"
    shutil.rmtree(run, ignore_errors=True)
    corpora = OUT / "corpora"
    corpora.mkdir(parents=True, exist_ok=True)
    race = Race(run, options)
    result: dict[str, float] = {}
    try:
        race.start()
        for size in options.sizes:
            race.fill(filling(corpora, SIZES[size]))
            found = {}
            for draw in DRAWS:
                print(f"\n{size} keys, {draw}; load {os.getloadavg()[0]:.1f}", flush=True)
                files = [drawn(corpora, draw, SIZES[size], n) for n in range(options.windows)]
                found[draw] = race.run(files)
                show(found[draw])
            result |= compared(size, found)
    finally:
        race.stop()
    race.check()
    if not options.keep:
        shutil.rmtree(run, ignore_errors=True)
    last_line({name: round(value, 3) for name, value in result.items()})


class Race:
    """All sides, alive at once, and what each of them was fed."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._folder = folder
        self._options = options
        self._sides: list[Side] = []
        self._fed: dict[str, Counter[Path]] = {}

    def start(self) -> None:
        """Bring the sides up, one after the other."""
        for name in self._options.sides:
            self._sides.append(side_of(name, self._folder / name))
            self._fed[name] = Counter()

    def stop(self) -> None:
        for side in self._sides:
            side.stop()

    def fill(self, files: Sequence[Path]) -> None:
        """Have every side take these files once; not measured."""
        for side in self._sides:
            done = self._round(side, files)
            print(f"  filled {side.name}: {done.ends[-1] - done.begin:.1f} s", flush=True)

    def run(self, files: Sequence[Path]) -> dict[str, list[Round]]:
        """Measured rounds by side."""
        options = self._options
        found: dict[str, list[Round]] = {side.name: [] for side in self._sides}
        for number in range(options.warmups + options.rounds):
            for side in self._sides:
                mine = files
                if side.name == PANDAS:
                    if not options.warmups <= number < options.warmups + options.pandas_rounds:
                        continue
                    mine = files[:PANDAS_WINDOWS]
                done = self._round(side, mine)
                warm = number < options.warmups
                print(
                    f"  {'warm-up' if warm else 'round'} {number} {side.name:8s} "
                    f"{done.window_s * 1e3:7.0f} ms and {done.cpu_s / len(mine) * 1e3:7.0f} ms of "
                    f"CPU a window, load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
                if not warm:
                    found[side.name].append(done)
        return found

    def check(self) -> None:
        """Compare every side's output with plain counts of what it was fed."""
        counted: dict[Path, Counter[bytes]] = {}
        for side in self._sides:
            fed = self._fed[side.name]
            for file in fed.keys() - counted.keys():
                counted[file] = Counter(file.read_bytes().split())
            expected: Counter[bytes] = Counter()
            rows = 0
            for file, times in fed.items():
                rows += len(counted[file]) * times
                for key, count in counted[file].items():
                    expected[key] += count * times
            compare(side, {key.decode(): count for key, count in expected.items()}, rows)

    def _round(self, side: Side, files: Sequence[Path]) -> Round:
        self._fed[side.name].update(files)
        return side.round(files)


def compare(side: Side, expected: Mapping[str, int], rows: int) -> None:
    """Raises ``SystemExit`` with the difference."""
    totals, found = totals_in(side.output)
    wrong = [k for k in expected.keys() | totals.keys() if expected.get(k) != totals.get(k)]
    if wrong:
        some = {k: (expected.get(k), totals.get(k)) for k in sorted(wrong)[:5]}
        raise SystemExit(f"{side.name} is wrong on {len(wrong)} keys (expected, found): {some}")
    if found != rows:
        raise SystemExit(f"{side.name} put out {found} changed totals, expected {rows}")
    print(f"  {side.name}: {len(totals):,} totals in {found:,} rows are right", flush=True)


def side_of(name: str, folder: Path) -> Side:
    """A side by its name."""
    if name == PANDAS:
        return BaselineSide(name, "keyspandas", "memory", folder)
    if name in OTHERS:
        return BaselineSide(name, "keys", name, folder)
    return MillraceSide(name, counting(int(name.removeprefix("r"))), folder)


def counting(copies: int) -> dict[str, Any]:
    """A count by line, with its state on so many servers."""
    spec = word_count(window=LINES)
    del spec["code"]
    spec["stateServers"] = {"replicas": copies, "copies": copies}
    spec["processors"] = [
        {
            "name": "counts",
            "inputs": [{"from": "lines", "key": ["word"], "columns": {"word": "value"}}],
            "aggregate": {"emit": "changes", "columns": [{"name": "n", "function": "count"}]},
        }
    ]
    return spec


def key_lines(numbers: np.ndarray) -> bytes:
    """One key a line: ten characters each."""
    digits = numbers[:, None] // 10 ** np.arange(8, -1, -1) % 10
    rows = np.full((len(numbers), 11), ord("\n"), np.uint8)
    rows[:, 0] = ord("k")
    rows[:, 1:10] = digits + ord("0")
    return rows.tobytes()


def filling(folder: Path, keys: int) -> list[Path]:
    """Files that touch every key, in an order of chance."""
    order = np.random.default_rng([1, keys]).permutation(keys)
    windows = max(1, keys // LINES)
    numbers = np.resize(order, windows * LINES).reshape(windows, LINES)
    return [
        stored(folder / f"state-fill-{keys}-{at}.txt", lambda own=own: key_lines(own))
        for at, own in enumerate(numbers)
    ]


def drawn(folder: Path, draw: str, keys: int, number: int) -> Path:
    """A window of keys that are drawn at random."""

    def make() -> bytes:
        random = np.random.default_rng([2, DRAWS.index(draw), keys, number])
        if draw == "uniform":
            return key_lines(random.integers(0, keys, LINES))
        shares = np.cumsum(1.0 / np.arange(1, keys + 1))
        ranks = np.searchsorted(shares, random.random(LINES) * shares[-1])
        return key_lines(np.minimum(ranks, keys - 1))

    return stored(folder / f"state-{draw}-{keys}-{number}.txt", make)


def stored(path: Path, make: Callable[[], bytes]) -> Path:
    """A file that is made where it is missing."""
    if not path.exists():
        draft = path.with_suffix(".draft")
        draft.write_bytes(make())
        os.replace(draft, path)
    return path


def show(found: Mapping[str, Sequence[Round]]) -> None:
    """Rates of every side."""
    for name, rounds in found.items():
        if rounds:
            wall_s, cpu_s = median_window_s(rounds), median_cpu_s(rounds)
            print(
                f"  {name:8s} {LINES / wall_s:12,.0f} updates/s, {LINES / cpu_s:12,.0f} a second "
                f"of CPU, {wall_s * 1e3:6.0f} ms and {cpu_s * 1e3:6.0f} ms of CPU a window",
                flush=True,
            )


def compared(size: str, found: Mapping[str, Mapping[str, Sequence[Round]]]) -> dict[str, float]:
    """Rates and ratios of one number of keys."""
    result: dict[str, float] = {}
    for draw, sides in found.items():
        for name, rounds in sides.items():
            if rounds:
                result[f"{name}_{size}_{draw}_per_s"] = LINES / median_window_s(rounds)
                result[f"{name}_{size}_{draw}_per_cpu_s"] = LINES / median_cpu_s(rounds)
    for copies in COPIES:
        own = f"r{copies}"
        end = "" if copies == 1 else f"_{own}"
        lists = [(best(sides), sides.get(own, ())) for sides in found.values()]
        if all(other and mine for other, mine in lists):
            result[f"vs_best_{size}{end}"] = min(ratio(*pair, _wall) for pair in lists)
            result[f"vs_best_{size}{end}_cpu"] = min(ratio(*pair, _cpu) for pair in lists)
            result[f"vs_best_{size}{end}_mean"] = min(mean_ratio(*pair) for pair in lists)
    return result


def best(sides: Mapping[str, Sequence[Round]]) -> Sequence[Round]:
    """Rounds of the fastest of the other sides."""
    others = [sides[name] for name in OTHERS if sides.get(name)]
    return min(others, key=median_window_s, default=())


def ratio(other: Sequence[Round], mine: Sequence[Round], figure: Callable[[Round], float]) -> float:
    """Median of the ratios of rounds that ran next to each other."""
    pairs = zip(other, mine, strict=False)
    return statistics.median(figure(a) / figure(b) for a, b in pairs)


def mean_ratio(other: Sequence[Round], mine: Sequence[Round]) -> float:
    """By all rounds together, with what comes only now and then, such as a new base."""
    pairs = list(zip(other, mine, strict=False))
    return sum(_wall(a) for a, _ in pairs) / sum(_wall(b) for _, b in pairs)


def _wall(one: Round) -> float:
    return one.window_s


def _cpu(one: Round) -> float:
    return one.cpu_s / len(one.ends)


if __name__ == "__main__":
    main()
