"""Rounds, medians, and the check that all sides counted the same."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import psutil
import pyarrow as pa
import pyarrow.json

SETTLE_S = 0.3
"""Behind the last end of a round, until CPU is read: what a window leaves to be cleared up costs
some, too."""

LEAST_WINDOWS = 3
"""Of a round: the first and the last are left out."""


@dataclass(frozen=True)
class Round:
    """One side's work on one round of windows, ``LEAST_WINDOWS`` at least; times by
    ``time.monotonic`` in seconds.

    ``ends[i]`` is when what window ``i`` changed was to be seen in the output. ``cpu_s`` is what
    all processes of the side spent on the round, what follows its last end included.
    """

    begin: float
    ends: Sequence[float]
    cpu_s: float

    @property
    def window_s(self) -> float:
        """Mean time of a window in the midst of others.

        The first one waits for the input to be noticed; beside the last none is begun, which
        makes it shorter than the others where windows overlap.
        """
        return (self.ends[-2] - self.ends[0]) / (len(self.ends) - 2)


def copied(files: Iterable[Path], folder: Path) -> list[Path]:
    """A copy of each file, to be moved to where a side looks for input.

    Several names of one file are one file to a source, so that links would be read once.
    """
    folder.mkdir(exist_ok=True)
    return [
        Path(shutil.copyfile(path, folder / f"{index:05d}")) for index, path in enumerate(files)
    ]


def round_windows(text: str) -> int:
    """The option for how many windows a round has. Raises ``ArgumentTypeError``."""
    if not text.isdecimal() or int(text) < LEAST_WINDOWS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from {LEAST_WINDOWS} on")
    return int(text)


class Side(Protocol):
    """One program under test, alive from its creation to ``stop`` and idle between rounds."""

    name: str
    output: Path

    def round(self, files: Sequence[Path]) -> Round:
        """Have the files processed, each as one window or several; blocks."""
        ...

    def stop(self) -> None: ...


def interleave(
    sides: Sequence[Side], files: Sequence[Path], rounds: int, warmups: int
) -> dict[str, list[Round]]:
    """A round of every side in turn, ``warmups + rounds`` times; the warm-ups are left out."""
    found: dict[str, list[Round]] = {side.name: [] for side in sides}
    for number in range(warmups + rounds):
        for side in sides:
            done = side.round(files)
            kind = "warm-up" if number < warmups else "round"
            print(
                f"  {kind} {number:2d} {side.name:22s} window {done.window_s * 1e3:7.0f} ms, "
                f"first {(done.ends[0] - done.begin) * 1e3:7.0f} ms, "
                f"CPU {done.cpu_s / len(files) * 1e3:7.0f} ms a window",
                flush=True,
            )
            if number >= warmups:
                found[side.name].append(done)
    return found


def median_window_s(rounds: Iterable[Round]) -> float:
    """Median over rounds of the time of one window, in seconds."""
    return statistics.median(r.window_s for r in rounds)


def median_cpu_s(rounds: Iterable[Round]) -> float:
    """Median over rounds of the CPU seconds of one window, over all processes of a side."""
    return statistics.median(r.cpu_s / len(r.ends) for r in rounds)


def ratio(slow: Sequence[Round], fast: Sequence[Round]) -> float:
    """How many times the throughput of ``slow`` is that of ``fast``: median of the rounds' ratios.

    Rounds of the same number ran next to each other, so a machine that slows down for a while
    slows both.
    """
    pairs = zip(slow, fast, strict=True)
    return statistics.median(a.window_s / b.window_s for a, b in pairs)


def totals_in(folder: Path) -> tuple[dict[str, int], int]:
    """The last total of every word in a folder of JSON lines (``word``, ``n``), and the rows.

    Totals only grow, so the last is the largest. Files that begin with ``_`` or ``.`` are left
    out, as any reader of such a folder does.
    """
    tables = []
    rows = 0
    for path in sorted(folder.rglob("*")):
        hidden = any(p[0] in "._" for p in path.relative_to(folder).parts)
        if hidden or not path.is_file() or not path.stat().st_size:
            continue
        table = pyarrow.json.read_json(path).select(["word", "n"])
        rows += table.num_rows
        tables.append(table)
        if len(tables) >= 16:
            tables = [_largest(tables)]
    if not tables:
        return {}, 0
    last = _largest(tables)
    return dict(zip(last["word"].to_pylist(), last["n"].to_pylist(), strict=True)), rows


def _largest(tables: list[pa.Table]) -> pa.Table:
    found = pa.concat_tables(tables).group_by("word").aggregate([("n", "max")])
    return found.rename_columns({"word": "word", "n_max": "n"})


def check(side: Side, fed: Mapping[Path, int], changes: bool = True) -> None:
    """Compare a side's output with a plain Python count of the files it was fed, how often each.

    ``changes``: every window must have put out each of its words once. Raises ``SystemExit``
    with the difference: the speed of a wrong result is worth nothing.
    """
    expected: Counter[bytes] = Counter()
    expected_rows = 0
    for path, times in fed.items():
        words = Counter(path.read_bytes().split())
        expected_rows += len(words) * times
        for word, count in words.items():
            expected[word] += count * times
    totals, rows = totals_in(side.output)
    wanted = {word.decode(): count for word, count in expected.items()}
    if totals != wanted:
        different = [w for w in wanted.keys() | totals.keys() if wanted.get(w) != totals.get(w)]
        some = {w: (wanted.get(w), totals.get(w)) for w in sorted(different)[:5]}
        raise SystemExit(
            f"{side.name} is wrong on {len(different)} of {len(wanted)} words "
            f"(expected, found): {some}"
        )
    if changes and rows != expected_rows:
        raise SystemExit(f"{side.name} put out {rows} changed totals, expected {expected_rows}")


class CpuClock:
    """CPU seconds of processes and all that is below them, also of those that ended meanwhile."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = list(pids)
        self._last: dict[tuple[int, float], float] = {}

    def read_s(self) -> float:
        """Never less than at the last call."""
        for pid in self._pids:
            try:
                top = psutil.Process(pid)
                family = [top, *top.children(recursive=True)]
            except psutil.Error:
                continue
            for process in family:
                try:
                    times = process.cpu_times()
                    key = (process.pid, process.create_time())
                except psutil.Error:
                    continue
                self._last[key] = times.user + times.system
        return sum(self._last.values())


def stop_cleanly() -> None:
    """Let SIGTERM end this program as Ctrl-C does, so that its sides are stopped."""

    def stop(number: int, _: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would leave sides behind
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, stop)


def machine() -> str:
    """The machine in one line, to stand beside figures."""
    model = platform.processor() or "unknown CPU"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{os.cpu_count()} cores of {model}, {memory:.0f} GiB, {platform.system()} "
        f"{platform.release()}, Python {platform.python_version()}, pyspark "
        f"{_version('pyspark')}, pyarrow {_version('pyarrow')}"
    )


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)


def last_line(values: Mapping[str, Any]) -> None:
    """The result as one JSON object, which ends a benchmark's output."""
    print(json.dumps(values), flush=True)
