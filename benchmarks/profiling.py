"""Where the CPU of a window goes: ``make profile NAME=wordcount`` (or ``function``, ``small``,
``shuffle``, ``grouped``).

First rounds are counted by the kernel's own clocks: CPU of every process, of it in the kernel, and
of the JVM's threads by what they are for. Then rounds are sampled by py-spy (Python and native
stacks, threads that are on a core), which slows them down, so that samples only tell how a
process divides what was counted before. Output are two tables in Markdown, for people and
documents, and a flame graph of all processes as SVG below ``benchmarks/out/profile``. Waiting in a
system call is no CPU and is left out of the samples.

What a run counted is compared with a count by plain Python, as everywhere in benchmarks. py-spy
attaches to processes: it needs their user, and on most machines root.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpus import Corpus, corpus
from flames import Stacks, read_raw, step_of, write_svg
from measure import check, machine, stop_cleanly
from shuffle import counting
from sides import MillraceSide
from threads import Usage, difference, usage_of
from wordcount import OUT, SMALL_LINES, word_count

RATE_HZ = 199
PYTHON_ROLES = ("pythonWorker", "driver", "acker", "pythonDaemon", "supervisor")
SHOWN_MS = 0.005
"""Rows of less CPU a window are left out of the tables, in shares of what the run spent."""


@dataclass(frozen=True)
class Case:
    """What is profiled: ``spec`` over windows of ``lines`` lines, ``windows`` of them a round."""

    spec: Mapping[str, Any]
    text: str
    lines: int
    windows: int
    warmups: int
    rounds: int
    at_once: bool = True
    """Whether each window has a file of its own; else one file holds a round."""


CASES: dict[str, Callable[[], Case]] = {
    "wordcount": lambda: Case(word_count(), "licences", 200_000, 6, 6, 5),
    "function": lambda: Case(word_count(function=True), "licences", 200_000, 6, 6, 5),
    "small": lambda: Case(
        word_count(window=SMALL_LINES), "licences", SMALL_LINES, 100, 4, 3, at_once=False
    ),
    "shuffle": lambda: Case(counting(20_000), "uniform20k", 20_000, 4, 3, 5),
    "grouped": lambda: Case(counting(20_000, "totals"), "licences", 20_000, 4, 3, 5),
}


def main() -> None:
    """Profile and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=CASES, nargs="?", default="wordcount")
    parser.add_argument("--rounds", type=int, help="counted rounds, and as many sampled ones")
    parser.add_argument("--keep", action="store_true", help="leave outputs and logs in out/")
    options = parser.parse_args()
    stop_cleanly()
    case = CASES[options.name]()
    rounds = options.rounds or case.rounds
    folder = OUT / "profile" / options.name
    shutil.rmtree(folder, ignore_errors=True)
    print(machine())
    load = os.getloadavg()[0]
    texts = corpus_of(case)
    side = MillraceSide(options.name, case.spec, folder)
    try:
        for _ in range(case.warmups):
            one_round(side, case, texts)
        counted = list(count(side, case, texts, rounds))
        stacks = sample(side, case, texts, rounds, folder / "samples")
    finally:
        side.stop()
    fed = Counter(dict.fromkeys(texts.files, case.warmups + 2 * rounds))
    check(side, fed, changes=case.at_once)
    windows = rounds * case.windows
    usage = {name: used.over(windows) for name, used in total(counted).items()}
    print(f"\n{options.name}: ms of CPU for each of {windows} windows of {case.lines:,} lines")
    print(f"load of the machine {load:.1f} to {os.getloadavg()[0]:.1f}\n")
    print(process_table(usage))
    print()
    print(step_table(stacks, usage))
    picture = OUT / "profile" / f"{options.name}.svg"
    write_svg(picture, f"{options.name}: CPU of a window", scaled(stacks, usage))
    print(f"\nflame graph: {picture.relative_to(OUT.parent.parent)}")
    if not options.keep:
        shutil.rmtree(folder, ignore_errors=True)


def corpus_of(case: Case) -> Corpus:
    """A file for each window, or one for all of a round."""
    if case.at_once:
        return corpus(case.text, OUT / "corpora", case.windows, case.lines)
    return corpus(case.text, OUT / "corpora", 1, case.lines * case.windows)


def one_round(side: MillraceSide, case: Case, texts: Corpus) -> None:
    """All windows of a round, to their publication."""
    if case.at_once:
        done = side.round(texts.files)
        print(f"  window {done.window_s * 1e3:7.1f} ms", flush=True)
    else:
        opened = side.small_round(texts.files[0], case.windows)
        print(f"  open to published p50 {statistics.median(opened) * 1e3:7.1f} ms", flush=True)


# -- counted rounds


def count(side: MillraceSide, case: Case, texts: Corpus, rounds: int) -> Iterator[dict[str, Usage]]:
    """What each process and group of threads spent in each round."""
    for _ in range(rounds):
        before = usage_of(side.processes())
        one_round(side, case, texts)
        yield difference(before, usage_of(side.processes()))


def total(rounds: Sequence[Mapping[str, Usage]]) -> dict[str, Usage]:
    """Sums over rounds, by name."""
    found: dict[str, Usage] = {}
    for one in rounds:
        for name, used in one.items():
            found[name] = found.get(name, Usage()) + used
    return found


def process_table(usage: Mapping[str, Usage]) -> str:
    """CPU by process and, of a JVM, by group of threads."""
    whole = sum(used.all_s for used in usage.values())
    lines = ["| process | CPU | in the kernel | share |", "| --- | ---: | ---: | ---: |"]
    for name, used in sorted(usage.items(), key=lambda item: -item[1].all_s):
        if used.all_s >= SHOWN_MS * whole:
            lines.append(
                f"| {name} | {used.all_s * 1e3:.2f} | {max(0.0, used.system_s) * 1e3:.2f} | "
                f"{used.all_s / whole:.0%} |"
            )
    kernel = sum(used.system_s for used in usage.values())
    lines.append(f"| all | {whole * 1e3:.2f} | {kernel * 1e3:.2f} | |")
    return "\n".join(lines)


# -- sampled rounds


def sample(
    side: MillraceSide, case: Case, texts: Corpus, rounds: int, folder: Path
) -> dict[str, Stacks]:
    """Stacks of every Python process, by its name, while rounds run."""
    folder.mkdir(parents=True)
    seen = [row for row in side.processes() if row["role"] in PYTHON_ROLES]
    with spies(seen, folder):
        for _ in range(rounds):
            one_round(side, case, texts)
    return {row["name"]: read_raw(folder / f"{row['pid']}.raw") for row in seen}


@contextmanager
def spies(processes: Sequence[Mapping[str, Any]], folder: Path) -> Iterator[None]:
    """A py-spy on each process, which writes what it has seen when this ends."""
    spy = Path(sys.executable).parent / "py-spy"
    started = []
    for row in processes:
        command = [str(spy), "record", "--pid", str(row["pid"]), "--native", "--nolineno"]
        command += ["--full-filenames", "--format", "raw", "--rate", str(RATE_HZ)]
        command += ["--duration", "unlimited", "--output", str(folder / f"{row['pid']}.raw")]
        with (folder / f"{row['pid']}.log").open("w") as log:
            started.append(subprocess.Popen(command, stdout=log, stderr=log))
    try:
        yield
        if any(process.poll() is not None for process in started):
            raise SystemExit(f"py-spy could not watch every process; see the logs in {folder}")
    finally:
        for process in started:
            process.send_signal(signal.SIGINT)
        for process in started:
            process.wait(120)


def step_table(stacks: Mapping[str, Stacks], usage: Mapping[str, Usage]) -> str:
    """What each process does, in shares of its samples times the CPU counted before."""
    found: dict[tuple[str, str], list[float]] = {}
    for name, seen in stacks.items():
        samples = sum(seen.values())
        if not samples or name not in usage:
            continue
        for stack, times in seen.items():
            step, native = step_of(stack)
            spent = found.setdefault((kind_of(name), step), [0.0, 0.0])
            spent[native] += usage[name].all_s * times / samples
    whole = sum(used.all_s for used in usage.values())
    lines = [
        "| process | step | Python | native | together |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for (kind, step), (python, native) in sorted(found.items(), key=lambda i: -sum(i[1])):
        if python + native >= SHOWN_MS * whole:
            lines.append(
                f"| {kind} | {step} | {python * 1e3:.2f} | {native * 1e3:.2f} | "
                f"{(python + native) * 1e3:.2f} |"
            )
    return "\n".join(lines)


def kind_of(name: str) -> str:
    """Processes of one kind together: ``pythonWorker-1`` is a ``pythonWorker``."""
    return name.partition("-")[0]


def scaled(
    stacks: Mapping[str, Stacks], usage: Mapping[str, Usage]
) -> dict[tuple[str, ...], float]:
    """Stacks of all processes below one root, in ms of CPU a window."""
    found: dict[tuple[str, ...], float] = {}
    for name, used in usage.items():
        seen = stacks.get(name, {})
        samples = sum(seen.values())
        if not samples:
            found[tuple(name.split(": "))] = used.all_s * 1e3
        for stack, times in seen.items():
            path = (name, *(frame.label for frame in stack))
            found[path] = found.get(path, 0.0) + used.all_s * 1e3 * times / samples
    return found


if __name__ == "__main__":
    main()
