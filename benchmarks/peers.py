"""Word count beside Flink, Bytewax and Spark, exactly once: ``make bench NAME=peers``.

All sides are alive at once and work in turn on copies of the same files of 200,000 lines, about two
million words each, with both cores: Millrace with a parallelism of two, Spark as ``local[2]``,
Flink with two slots in one JVM, Bytewax as two processes. Each puts out changed totals as JSON
lines, under a snapshot every 100 ms (``--checkpoint-ms``), which is Millrace's ``maxInterval``, or
with what has come until a longer step is done. That is for Bytewax a file in each process, and for
Millrace a window of at most four files (``--window-lines``): about as long a time. What is compared
are totals, not how often they are shown. Flink and Bytewax are stopped while another side works.

Sides: ``millrace`` (tracked, ``examples/wordcount`` with the declared split), ``flink_sql``
(mini-batches, aggregation in two phases), ``flink_combined`` (DataStream with an operator that
counts before the exchange, written for speed), ``bytewax`` (counts a file before the exchange) and
``spark`` (``explode(split)`` in the JVM, state in memory).

A round's time goes from the arrival of its files to the moment at which this program has read the
last of the marks that end them among the totals. CPU is that of all processes of a side, read a
little later. After each round all totals are compared with a count by plain Python, and a wrong one
ends the run. Ratios are medians of the ratios of rounds that ran next to each other:
``vs_flink_sql`` is how many times the throughput of Flink SQL Millrace's is, ``vs_flink_sql_cpu``
how many times Millrace's CPU is in what Flink SQL takes for the same words. The keys of 490,000
distinct words end in ``_500k``.

``arrival``: the times of ``NAME=arrival``, from the arrival of 100 lines to their totals, with
Flink's checkpoints every 100 ms and, in sides ending in ``_20ms``, every 20. Millrace gets lines as
an append to one file, a peer as a new file.

The last line is one JSON object. A peer that cannot run here has null, and is named as the program
ends with status 1.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from arrival import POLLING, Appending, Watched, endless, percentile, spread
from corpus import corpus
from measure import check, last_line, machine, stop_cleanly
from peerprograms import PeerMissingError
from peerrounds import Done, Runner, Side, Texts, rest, stop, totals_of, wake
from peersides import BytewaxSide, FlinkSide, PeerSide
from sides import BaselineSide, MillraceSide
from wordcount import OUT, word_count

LEAST_ROUNDS = 5
CHECKPOINT_MS = 100
WINDOW_LINES = 800_000
FAST_CHECKPOINT_MS = 20


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    options = parsed(arguments)
    stop_cleanly()
    print(machine())
    run = OUT / "peers"
    shutil.rmtree(run, ignore_errors=True)
    result: dict[str, float | None] = {"checkpoint_ms": options.checkpoint_ms}
    result["window_lines"] = options.window_lines
    missing: dict[str, str] = {}
    makers = throughput_sides(options.checkpoint_ms, options.window_lines)
    parts = {
        "licences": ("licences", "", options.windows, options.warmups),
        "large": ("uniform", "_500k", options.large_windows, options.large_warmups),
    }
    for part, (name, suffix, windows, warmups) in parts.items():
        if options.only in (None, part):
            texts = Texts(corpus(name, OUT / "corpora", windows))
            chosen = {key: make for key, make in makers.items() if key in options.sides}
            done = race(chosen, texts, run / name, options.rounds, warmups, missing)
            result.update(ratios(done, options.sides, suffix))
    if options.only in (None, "arrival"):
        result.update(arrivals(run / "arrival", options, missing))
    if not options.keep:
        shutil.rmtree(run, ignore_errors=True)
    last_line({key: value if value is None else round(value, 3) for key, value in result.items()})
    if missing:
        raise SystemExit("\n".join(f"missing: {name}: {why}" for name, why in missing.items()))


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--rounds", type=int, default=LEAST_ROUNDS, help=f"measured ones, at least {LEAST_ROUNDS}"
    )
    parser.add_argument("--warmups", type=int, default=4, help="rounds that do not count")
    parser.add_argument("--large-warmups", type=int, default=2, help="the same for 490,000 words")
    parser.add_argument("--windows", type=int, default=24, help="files of a round")
    parser.add_argument("--large-windows", type=int, default=4, help="the same for 490,000 words")
    parser.add_argument("--arrivals", type=int, default=100, help="arrivals of a round")
    parser.add_argument(
        "--checkpoint-ms",
        type=int,
        default=CHECKPOINT_MS,
        help="between snapshots of Flink and Bytewax, where a side has no time of its own",
    )
    parser.add_argument(
        "--window-lines",
        type=int,
        default=WINDOW_LINES,
        help="the most of one of Millrace's windows; 200000 is one file",
    )
    parser.add_argument("--sides", nargs="+", choices=tuple(throughput_sides()), metavar="SIDE")
    parser.add_argument("--only", choices=["licences", "large", "arrival"], help="one part alone")
    parser.add_argument("--keep", action="store_true", help="leave outputs and logs in out/")
    options = parser.parse_args(arguments)
    if options.rounds < LEAST_ROUNDS:
        parser.error(f"--rounds is {options.rounds}; medians are of at least {LEAST_ROUNDS}")
    for name in ("windows", "large_windows", "checkpoint_ms", "window_lines"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if options.arrivals < 2:
        parser.error("--arrivals must be at least 2")
    options.sides = ["millrace", *(name for name in options.sides or throughput_sides())]
    options.sides = list(dict.fromkeys(options.sides))
    return options


def throughput_sides(
    checkpoint_ms: int = CHECKPOINT_MS, window_lines: int = WINDOW_LINES
) -> dict[str, Callable[[Path], Side]]:
    """What is compared, by name; each is made in the folder that is given. ``checkpoint_ms``: of
    those that take snapshots by the clock."""
    polling = {POLLING: "100ms"}
    return {
        "millrace": lambda at: MillraceSide("millrace", word_count(window_lines), at),
        "flink_sql": lambda at: FlinkSide("flink_sql", "sql", at, checkpoint_ms),
        "flink_combined": lambda at: FlinkSide("flink_combined", "combined", at, checkpoint_ms),
        "bytewax": lambda at: BytewaxSide("bytewax", at, checkpoint_ms),
        "spark": lambda at: BaselineSide("spark", "jvm", "memory", at, polling),
    }


def started(
    makers: Mapping[str, Callable[[Path], Side]], folder: Path, missing: dict[str, str]
) -> Iterator[Side]:
    """Each side in a folder of its own; what cannot run here is said and noted in ``missing``."""
    for name, make in makers.items():
        try:
            side = make(folder / name)
        except PeerMissingError as why:
            print(f"  {name} is left out: {why}", flush=True)
            missing[name] = str(why)
            continue
        rest(side)
        yield side


def race(
    makers: Mapping[str, Callable[[Path], Side]],
    texts: Texts,
    folder: Path,
    rounds: int,
    warmups: int,
    missing: dict[str, str],
) -> dict[str, list[Done]]:
    """Interleaved rounds of all sides; the warm-ups are left out of what is returned."""
    print(
        f"\n{texts.name}: rounds of {texts.words:,} words, {len(texts.counts):,} distinct",
        flush=True,
    )
    sides: list[Side] = []
    found: dict[str, list[Done]] = {}
    try:
        runners = []
        for side in started(makers, folder, missing):
            sides.append(side)
            runners.append(Runner(side, texts, totals_of(side)))
        for number in range(warmups + rounds):
            for runner in runners:
                done = runner.round(number)
                kind = "warm-up" if number < warmups else "round"
                print(f"  {kind} {number:2d} {figures(runner.side.name, [done])}", flush=True)
                if number >= warmups:
                    found.setdefault(runner.side.name, []).append(done)
    finally:
        for side in sides:
            stop(side)
    for name, all_done in found.items():
        print(f"  {figures(name, all_done)}")
    return found


def figures(name: str, done: Sequence[Done]) -> str:
    """Medians, for people."""
    rate = statistics.median(one.words_per_s for one in done)
    cpu_s = statistics.median(one.step_cpu_s for one in done)
    return f"{name:15s} {rate:12,.0f} words/s, {cpu_s * 1e3:7.0f} ms of CPU for 2 million words"


def ratios(
    found: Mapping[str, Sequence[Done]], names: Iterable[str], suffix: str
) -> dict[str, float | None]:
    """What the last line tells of one vocabulary; null for sides that are missing."""
    result: dict[str, float | None] = {}
    ours = found["millrace"]
    for name in names:
        theirs = found.get(name)
        rate = theirs and statistics.median(one.words_per_s for one in theirs)
        cpu_s = theirs and statistics.median(one.step_cpu_s for one in theirs)
        result[f"{name}_words_per_s{suffix}"] = rate or None
        result[f"{name}_cpu_s{suffix}"] = cpu_s or None
        if name != "millrace":
            pairs = list(zip(theirs, ours, strict=True)) if theirs else []
            wall = [a.wall_s / b.wall_s for a, b in pairs]
            cpu = [a.cpu_s / b.cpu_s for a, b in pairs]
            result[f"vs_{name}{suffix}"] = statistics.median(wall) if wall else None
            result[f"vs_{name}_cpu{suffix}"] = statistics.median(cpu) if cpu else None
    return result


class Coming(Watched):
    """A peer, which reads whole files."""

    def __init__(self, side: PeerSide) -> None:
        super().__init__(side, totals_of(side))
        self._peer = side
        self._folder = side.folder

    def feed(self, text: bytes) -> None:
        self._peer.alive()
        draft = self._folder / "piece.txt"
        draft.write_bytes(text)
        draft.rename(self._folder / "input" / f"00000-{len(self.fed):05d}.txt")


def arrivals(
    folder: Path, options: argparse.Namespace, missing: dict[str, str]
) -> dict[str, float | None]:
    """From the arrival of 100 lines to their totals, in milliseconds."""
    print("\nfrom the arrival of 100 lines to their totals", flush=True)
    chosen = options.sides
    makers = {
        name: make
        for name, make in arrival_sides(options.checkpoint_ms).items()
        if name.removesuffix("_20ms") in chosen
    }
    lines = endless(corpus("licences", OUT / "corpora", 1).files[0])
    watched: list[Watched] = []
    times: dict[str, list[list[float]]] = {}
    try:
        for side in started(makers, folder, missing):
            watched.append(Appending(side) if isinstance(side, MillraceSide) else Coming(side))
        for number in range(options.warmups + options.rounds):
            for one in watched:
                wake(one.side)
                found = [one.arrival(lines) * 1e3 for _ in range(options.arrivals)]
                rest(one.side)
                print(f"  {number:2d} {one.name:20s} {spread(found)}", flush=True)
                if number >= options.warmups:
                    times.setdefault(one.name, []).append(found)
    finally:
        for one in watched:
            stop(one.side)
    for one in watched:
        fed = folder / f"{one.name}-fed.txt"
        fed.write_bytes(b"".join(one.fed))
        check(one.side, {fed: 1}, changes=False)
    result: dict[str, float | None] = {}
    for name in makers:
        prefix = "arrival" if name == "millrace" else f"arrival_{name}"
        rounds = times.get(name)
        p50 = rounds and statistics.median(statistics.median(r) for r in rounds)
        p99 = rounds and statistics.median(percentile(r, 99) for r in rounds)
        result[f"{prefix}_p50_ms"], result[f"{prefix}_p99_ms"] = p50 or None, p99 or None
    return result


def arrival_sides(checkpoint_ms: int = CHECKPOINT_MS) -> dict[str, Callable[[Path], Any]]:
    """As ``throughput_sides``; Spark's times are those of ``NAME=arrival``."""
    fast = FAST_CHECKPOINT_MS
    sides = throughput_sides(checkpoint_ms)
    return {
        **{name: sides[name] for name in ("millrace", "flink_sql", "flink_combined", "bytewax")},
        "flink_combined_20ms": lambda at: FlinkSide("flink_combined_20ms", "combined", at, fast),
        "bytewax_20ms": lambda at: BytewaxSide("bytewax_20ms", at, fast),
    }


if __name__ == "__main__":
    main()
