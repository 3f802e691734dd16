"""From the arrival of 100 lines to their totals in the sink: ``make bench NAME=arrival``.

A tracked word count under ExactlyOnce waits for input. 100 lines are appended to its file with one
write; each has a word that no lines before it had. What is measured goes from before that write to
the moment at which this program has read that word's total in a file of the sink, under its final
name. Then a pause of a random length up to 100 ms, and the next 100 lines. Beside it, in turn,
plain Structured Streaming with the settings of ``baseline.py``, asking for new files without a
pause, gets such lines as a file that is moved in: it does not read what is appended.

The last line is one JSON object, in milliseconds. At the end all totals are compared with a count
by plain Python.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from corpus import corpus
from inotify_simple import INotify, flags
from measure import check, last_line, machine, stop_cleanly
from sides import BaselineSide, MillraceSide
from wordcount import OUT, word_count

LINES = 100
LONGEST_PAUSE_S = 0.1
LATE_S = 60.0
POLLING = "spark.sql.streaming.pollingDelay"
APPEARS = flags.MOVED_TO | flags.CREATE


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--arrivals", type=int, default=100, help="in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warmups", type=int, default=2, help="rounds that do not count")
    parser.add_argument("--keep", action="store_true", help="leave outputs and logs in out/")
    options = parser.parse_args()
    stop_cleanly()
    print(machine())
    run = OUT / "arrival"
    shutil.rmtree(run, ignore_errors=True)
    lines = endless(corpus("licences", OUT / "corpora", 1).files[0])
    sides: list[Watched] = []
    times: dict[str, list[list[float]]] = {}
    try:
        sides.append(Appending(MillraceSide("millrace", word_count(), run / "millrace")))
        spark = BaselineSide("jvm", "jvm", "memory", run / "jvm", {POLLING: "0ms"})
        sides.append(Moving(spark, run / "piece.txt"))
        for number in range(options.warmups + options.rounds):
            for side in sides:
                found = [side.arrival(lines) * 1e3 for _ in range(options.arrivals)]
                print(f"  {number:2d} {side.name:10s} {spread(found)}", flush=True)
                if number >= options.warmups:
                    times.setdefault(side.name, []).append(found)
    finally:
        for side in sides:
            side.side.stop()
    for side in sides:
        fed = run / f"{side.name}-fed.txt"
        fed.write_bytes(b"".join(side.fed))
        check(side.side, {fed: 1}, changes=False)
    result: dict[str, float] = {}
    for name, rounds in times.items():
        prefix = "arrival" if name == "millrace" else f"arrival_{name}"
        result[f"{prefix}_p50_ms"] = statistics.median(statistics.median(r) for r in rounds)
        result[f"{prefix}_p99_ms"] = statistics.median(percentile(r, 99) for r in rounds)
    if not options.keep:
        shutil.rmtree(run, ignore_errors=True)
    last_line({name: round(value, 1) for name, value in result.items()})


class Watched:
    """A side, what it was fed, and the files of its sink as they come."""

    def __init__(self, side: Any, shown: Any = None) -> None:
        self.side = side
        self.name: str = side.name
        self.fed: list[bytes] = []
        self._shown = shown or Shown(side.output)
        self._random = random.Random(7)

    def arrival(self, lines: Iterator[bytes]) -> float:
        """Seconds from the write to the totals."""
        last = f"arrival{len(self.fed):06d}".encode()
        text = b"".join(next(lines) + b" " + last + b"\n" for _ in range(LINES))
        self.fed.append(text)
        time.sleep(self._random.uniform(0.0, LONGEST_PAUSE_S))
        begin_s = time.monotonic()
        self.feed(text)
        while not any(b'"%b"' % last in lines for lines in self._shown.more()):
            if time.monotonic() - begin_s > LATE_S:
                raise SystemExit(f"{self.name}: no totals {LATE_S:.0f} s after their lines")
        taken_s = time.monotonic() - begin_s
        self.settle()
        return taken_s

    def feed(self, text: bytes) -> None:
        raise NotImplementedError

    def settle(self) -> None:
        """Wait for what the side does behind its totals."""


class Appending(Watched):
    """Millrace, which reads what is appended."""

    def __init__(self, side: MillraceSide) -> None:
        super().__init__(side)
        self._file = (side.output.parent / "input" / "lines.txt").open("ab", buffering=0)

    def feed(self, text: bytes) -> None:
        self._file.write(text)


class Moving(Watched):
    """Structured Streaming, which reads whole files."""

    def __init__(self, side: BaselineSide, piece: Path) -> None:
        super().__init__(side)
        self._spark = side
        self._piece = piece

    def feed(self, text: bytes) -> None:
        self._piece.write_bytes(text)
        self._spark.begin([self._piece])

    def settle(self) -> None:
        self._spark.end()


class Shown:
    """Files that appear in a folder and in its folders, under names that readers take."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._inotify = INotify()
        self._folders = {self._inotify.add_watch(folder, APPEARS): folder}

    def more(self) -> Iterator[bytes]:
        """What is in those of the next second, as soon as there is one."""
        for event in self._inotify.read(timeout=1000):
            path = self._folders[event.wd] / event.name
            if event.name[0] in "._":
                continue
            if event.mask & flags.ISDIR:
                self._folders[self._inotify.add_watch(path, APPEARS)] = path
                for file in path.iterdir():
                    if file.name[0] not in "._":
                        yield file.read_bytes()
            else:
                yield path.read_bytes()


def endless(file: Path) -> Iterator[bytes]:
    """Its lines, without their ends, over and over."""
    return itertools.cycle(file.read_bytes().splitlines())


def spread(times: Sequence[float]) -> str:
    """For people, in milliseconds."""
    return f"p50 {statistics.median(times):6.1f}, p99 {percentile(times, 99):6.1f} ms"


def percentile(times: Sequence[float], percent: int) -> float:
    return statistics.quantiles(times, n=100)[percent - 1]


if __name__ == "__main__":
    main()
