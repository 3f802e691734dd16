"""Tracked word count against plain Structured Streaming: ``make bench NAME=wordcount``.

All sides are alive at once, each in processes of its own, and work in turn on the same files with
the same two cores; the others only poll meanwhile. A side's first rounds warm it up and do not
count. A round's figure is the time of a window in the midst of others (``measure.Round``). Ratios
are medians of the ratios of rounds that ran next to each other. At the end the output of every side
is compared with a count by plain Python.

Sides: ``jvm`` (explode and count in the JVM), ``python`` (the split in Python), both with the
state store that turns out faster; ``millrace`` (ExactlyOnce, tracked, an acker process, fsync at
every seal), ``function`` (the same, the split in a vectorised function) and ``untracked`` (with
tracking off). Every side writes the changed totals of each window as JSON lines.

The last line is one JSON object; the keys of the second vocabulary end in ``_500k``. ``--only
tracking`` has the two sides ``millrace`` and ``untracked`` of both alone, for many ``--rounds``.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from corpus import Corpus, corpus
from measure import (
    Round,
    Side,
    check,
    interleave,
    last_line,
    machine,
    median_cpu_s,
    median_window_s,
    ratio,
    round_windows,
    stop_cleanly,
)
from sides import BaselineSide, MillraceSide

OUT = Path(__file__).resolve().parent / "out"
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "wordcount"
STORES = ("memory", "rocksdb")
SMALL_LINES = 100


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of every side")
    parser.add_argument("--warmups", type=int, default=6, help="rounds that do not count")
    large = "the same for 500,000 words with all sides"
    parser.add_argument("--large-warmups", type=int, default=2, help=large)
    parser.add_argument("--windows", type=round_windows, default=12, help="windows of a round")
    parser.add_argument("--small-windows", type=int, default=200, help="windows of 100 lines")
    parser.add_argument("--draw", choices=["uniform", "zipf"], default="uniform")
    parts_of = ["licences", "large", "small", "tracking"]
    parser.add_argument("--only", choices=parts_of, help="one part alone")
    parser.add_argument("--keep", action="store_true", help="leave outputs and logs in out/")
    options = parser.parse_args()
    stop_cleanly()
    print(machine())
    run = OUT / "wordcount"
    shutil.rmtree(run, ignore_errors=True)
    result: dict[str, Any] = {}
    parts = {"licences": ("licences", ""), "large": (options.draw, "_500k")}
    for part, (name, suffix) in parts.items():
        if options.only not in (None, part, "tracking"):
            continue
        texts = corpus(name, OUT / "corpora", options.windows)
        if options.only == "tracking":
            found = tracking(texts, run / name, options.rounds, options.warmups)
        else:
            warmups = options.large_warmups if suffix else options.warmups
            found = throughput(texts, run / name, options.rounds, warmups)
        result.update({key + suffix: value for key, value in found.items()})
    if options.only in (None, "small"):
        texts = corpus("licences", OUT / "corpora", 1, SMALL_LINES * options.small_windows)
        result.update(small_windows(texts, run / "small", options))
    if not options.keep:
        shutil.rmtree(run, ignore_errors=True)
    last_line({name: round(value, 3) for name, value in result.items()})


def throughput(texts: Corpus, folder: Path, rounds: int, warmups: int) -> dict[str, float]:
    """Rates and ratios for one vocabulary."""
    words = len(texts.files[0].read_bytes().split())
    distinct = len(texts.words(texts.files[0]))
    print(
        f"\n{texts.name}: windows of {texts.lines:,} lines, {words:,} words, {distinct:,} distinct"
    )
    store = faster_store(texts, folder, min(3, rounds), warmups)
    untracked = word_count(tracking=False)
    sides: list[Callable[[], Side]] = [
        lambda: BaselineSide("jvm", "jvm", store, folder / "jvm"),
        lambda: BaselineSide("python", "arrow", store, folder / "python"),
        lambda: MillraceSide("millrace", word_count(), folder / "millrace"),
        lambda: MillraceSide("function", word_count(function=True), folder / "function"),
        lambda: MillraceSide("untracked", untracked, folder / "untracked"),
    ]
    found = race(sides, texts, rounds, warmups)
    for name, done in found.items():
        print(f"  {name:10s} {rates(texts, done)}")
    return {
        "vs_jvm": ratio(found["jvm"], found["millrace"]),
        "vs_python": ratio(found["python"], found["millrace"]),
        "vs_function": ratio(found["function"], found["millrace"]),
        "tracking_ratio": ratio(found["untracked"], found["millrace"]),
        "lines_per_s": texts.lines / median_window_s(found["millrace"]),
    }


def tracking(texts: Corpus, folder: Path, rounds: int, warmups: int) -> dict[str, float]:
    """What tracking costs, by the two sides that differ in nothing else, with nothing between their
    rounds: by the clock and by CPU."""
    print(f"\n{texts.name}: windows of {texts.lines:,} lines, with tracking and without")
    sides: list[Callable[[], Side]] = [
        lambda: MillraceSide("millrace", word_count(), folder / "millrace"),
        lambda: MillraceSide("untracked", word_count(tracking=False), folder / "untracked"),
    ]
    found = race(sides, texts, rounds, warmups)
    for name, done in found.items():
        print(f"  {name:10s} {rates(texts, done)}")
    tracked, untracked = found["millrace"], found["untracked"]
    pairs = zip(untracked, tracked, strict=True)
    return {
        "tracking_ratio": ratio(untracked, tracked),
        "tracking_cpu_ratio": statistics.median(off.cpu_s / on.cpu_s for off, on in pairs),
    }


def faster_store(texts: Corpus, folder: Path, rounds: int, warmups: int) -> str:
    """The state store with which the JVM plan is faster on this vocabulary."""
    sides = [
        lambda store=store: BaselineSide(f"jvm-{store}", "jvm", store, folder / f"jvm-{store}")
        for store in STORES
    ]
    found = race(sides, texts, rounds, warmups)
    times = {store: median_window_s(found[f"jvm-{store}"]) for store in STORES}
    store = min(times, key=lambda name: times[name])
    print(f"  the faster state store is {store}")
    return store


def race(
    makers: Sequence[Callable[[], Side]], texts: Corpus, rounds: int, warmups: int
) -> dict[str, list[Round]]:
    """Start the sides, measure interleaved rounds, compare their output with the truth."""
    sides: list[Side] = []
    try:
        for make in makers:
            sides.append(make())
        found = interleave(sides, texts.files, rounds, warmups)
    finally:
        for side in sides:
            side.stop()
    fed = Counter(dict.fromkeys(texts.files, rounds + warmups))
    for side in sides:
        check(side, fed)
    return found


def small_windows(texts: Corpus, folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """From open to published of windows of 100 lines, one behind the other, in milliseconds."""
    print(f"\nwindows of {SMALL_LINES} lines, one behind the other")
    spec = word_count(window=SMALL_LINES)
    millrace = MillraceSide("millrace-small", spec, folder / "millrace")
    spark = BaselineSide("jvm-small", "jvm", "memory", folder / "jvm")
    pieces = cut(texts.files[0], folder / "pieces")
    times: list[list[float]] = []
    batches: list[list[float]] = []
    try:
        for number in range(options.warmups + options.rounds):
            with spark.resting():  # it looks for files four times a second
                opened = millrace.small_round(texts.files[0], options.small_windows)
            before = len(spark.batches_ms)
            spark.round(pieces)
            batch = [float(b["triggerExecution"]) for b in spark.batches_ms[before:]]
            if number >= options.warmups:
                times.append([t * 1e3 for t in opened])
                batches.append(batch)
            print(
                f"  millrace p50 {statistics.median(opened) * 1e3:.1f} ms, jvm micro-batch p50 "
                f"{statistics.median(batch):.0f} ms",
                flush=True,
            )
    finally:
        millrace.stop()
        spark.stop()
    rounds = options.warmups + options.rounds
    check(millrace, {texts.files[0]: rounds}, changes=False)
    check(spark, {texts.files[0]: rounds}, changes=False)
    return {
        "small_window_p50_ms": statistics.median(statistics.median(t) for t in times),
        "small_window_jvm_p50_ms": statistics.median(statistics.median(b) for b in batches),
    }


def cut(file: Path, folder: Path) -> list[Path]:
    """A file for every 100 lines."""
    folder.mkdir(parents=True)
    lines = file.read_bytes().splitlines(keepends=True)
    pieces = []
    for start in range(0, len(lines), SMALL_LINES):
        pieces.append(folder / f"{start:08d}.txt")
        pieces[-1].write_bytes(b"".join(lines[start : start + SMALL_LINES]))
    return pieces


def word_count(
    window: int = 200_000, tracking: bool = True, function: bool = False
) -> dict[str, Any]:
    """The spec of examples/wordcount, over a folder into which files arrive, but for how lines are
    cut: by the declared ``split``, or as there by the example's ``function``."""
    split: dict[str, Any] = {"split": {"column": "value", "into": "word"}}
    if function:
        split = {"function": "wordcount:split"}
    return {
        "guarantee": "ExactlyOnce",
        "window": {"maxRecords": window, "maxInterval": "100ms"},
        "ackers": {"replicas": 1 if tracking else 0},
        "tracking": "On" if tracking else "Off",
        "parallelism": 2,
        "code": {"path": str(EXAMPLE)},
        "sources": [{"name": "lines", "files": {"path": "input", "format": "text", "watch": True}}],
        "processors": [
            {"name": "split", "inputs": [{"from": "lines"}], **split},
            {
                "name": "counts",
                "inputs": [{"from": "split", "key": ["word"]}],
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


def rates(texts: Corpus, rounds: Sequence[Round]) -> str:
    """Lines and words a second, for people."""
    window_s = median_window_s(rounds)
    lines = texts.lines / window_s
    words = len(texts.files[0].read_bytes().split()) / window_s
    return (
        f"{lines:12,.0f} lines/s {words:14,.0f} words/s {window_s * 1e3:8.0f} ms and "
        f"{median_cpu_s(rounds) * 1e3:8.0f} ms of CPU a window"
    )


if __name__ == "__main__":
    main()
