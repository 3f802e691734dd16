"""Where the time of a driver's cold start goes: its steps, and what its processes spend until each.

A driver's log tells when it had reached what; what its processes have used of CPU is looked up in
``/proc`` while it starts, every ``LOOK_S``, so a figure is that much too old at most.
"""

from __future__ import annotations

import os
import re
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LOOK_S = 0.04

STEP = re.compile(r"(?:, |: )([^,:]+) ([0-9.]+) s")

BEGUN, FORKED, SHOWN = "process begun", "worker forked", "window shown"

FILLS = {
    BEGUN: "the supervisor sees that the driver has ended, and starts another",
    "Python up": "Python starts and imports what Spark's settings take",
    "Spark begun": "the driver reads the topology",
    "Java launched": "the driver makes Spark's settings",
    "PySpark imported": "the driver starts the daemon of Python workers and imports PySpark, "
    "beside Java",
    "code imported": "the driver imports its own code, beside Java and the daemon",
    "JVM listens": "Java loads Spark's classes and opens its gateway, the daemon loads what "
    "workers need",
    "JVM up": "PySpark speaks with Java for the first time",
    "driver begun": "the driver goes on, beside Spark",
    "sources and sinks made": "the driver opens sources and sinks",
    "sinks prepared": "the driver prepares the sinks",
    "view claimed": "the driver reads the view and claims its execution",
    "servers stamped": "the state server takes the stamp and answers with the record",
    "record read": "the driver reads the record, looks for missing objects and writes it back",
    "window planned": "the source is asked what is new",
    "attempt begun": "the next intent is written, the ack log opened",
    "SparkContext made": "Java makes the context: its scheduler, its stores, its server of files",
    "Spark up": "Java is told how much to log, and its classes are looked up",
    "topology compiled": "the driver compiles the topology and loads the user's code",
    "runner made": "Java loads the serializer of envelopes",
    "kit stored": "the driver writes what tasks need to a file",
    "job submitted": "the driver cuts the window, Java gets the job's passes",
    FORKED: "Java plans its first job, starts the task and asks the daemon for a worker",
    "tasks done": "the worker loads the user's code and its key groups, runs the passes, writes "
    "state, output and acks",
    "window judged": "the acker folds the log and answers",
    "window sealed": "the state server writes the record to its disk",
    SHOWN: "the sink shows the window",
}
"""Of each step what fills the time before it, in the order in which steps are mostly reached."""

ROLES = ("driver", "JVM", "workers")

Use = Mapping[str, float]
"""Seconds of CPU by role."""


@dataclass(slots=True)
class Seen:
    """What was seen of one driver's processes: when (by the wall clock) which had used how much,
    and when the first Python worker was forked."""

    uses: list[tuple[float, Use]] = field(default_factory=list)
    forked_s: float | None = None

    def use(self, at_s: float) -> Use:
        """The last one that was seen until then; nothing before the first."""
        found: Use = dict.fromkeys(ROLES, 0.0)
        for seen_s, use in self.uses:
            if seen_s > at_s:
                break
            found = use
        return found


class Watch:
    """Looks at the driver below the process ``top`` that begins next, until the block is left."""

    def __init__(self, top: int, known: int) -> None:
        self._top = top
        self._known = known
        self._driver = 0
        self._used: dict[tuple[int, int], tuple[str, float]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self.seen = Seen()

    def __enter__(self) -> Seen:
        self._thread.start()
        return self.seen

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look_on(self) -> None:
        while not self._over.wait(LOOK_S):
            self._driver = self._driver or self._next_driver()
            if self._driver:
                self._look()

    def _next_driver(self) -> int:
        below = (pid for pid, _ in family(self._top) if pid not in (self._top, self._known))
        return next((pid for pid in below if runs(pid, "millrace.engine.driver.main")), 0)

    def _look(self) -> None:
        now_s, forks = time.time(), []
        roles: dict[int, str] = {}
        for pid, parent in family(self._driver):
            try:
                begun, used_s = ticks(pid)
            except OSError:
                continue
            roles[pid] = role = self._role(pid)
            self._used[pid, begun] = role, used_s
            if role == "workers" and roles.get(parent) == "workers":
                forks.append(begun / HERTZ + booted_s())
        use = dict.fromkeys(ROLES, 0.0)
        for role, used_s in self._used.values():
            use[role] += used_s
        self.seen.uses.append((now_s, use))
        if forks and self.seen.forked_s is None:
            self.seen.forked_s = min(forks)

    def _role(self, pid: int) -> str:
        if pid == self._driver:
            return "driver"
        if runs(pid, "millrace.engine.task.daemon"):
            return "workers"
        return "JVM" if Path(command(pid)[0]).name == "java" else "driver"


HERTZ = os.sysconf("SC_CLK_TCK")


def booted_s() -> float:
    """When the clock of the kernel's ticks was zero, by the wall clock."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def family(top: int) -> Iterator[tuple[int, int]]:
    """A process and all below it, parents first, each with its parent's id (0 for the first)."""
    waiting = [(top, 0)]
    while waiting:
        pid, parent = waiting.pop()
        yield pid, parent
        try:
            children = "".join(f.read_text() for f in Path(f"/proc/{pid}/task").glob("*/children"))
        except OSError:
            continue
        waiting += [(int(child), pid) for child in children.split()]


def command(pid: int) -> list[str]:
    """The words of its command line; an empty one for a process that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return [""]


def runs(pid: int, module: str) -> bool:
    """Whether it is a Python with this module as its program; what guards it names that, too."""
    return command(pid)[1:3] == ["-m", module]


def ticks(pid: int) -> tuple[int, float]:
    """When a process began, in ticks, and its seconds of CPU; see proc_pid_stat(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]), (int(fields[11]) + int(fields[12])) / HERTZ


@dataclass(frozen=True, slots=True)
class Start:
    """A cold start: the wall clock's ``killed_s``, the seconds from there until the window was
    shown, the driver's line about it, and what was seen meanwhile."""

    killed_s: float
    whole_s: float
    line: str
    seen: Seen

    def steps(self) -> dict[str, float]:
        """Seconds from the kill to each step."""
        told = {name: float(at) for name, at in STEP.findall(self.line)}
        begun_s = self.whole_s - told[SHOWN]
        found = {BEGUN: begun_s} | {name: begun_s + at for name, at in told.items()}
        if self.seen.forked_s is not None:
            found[FORKED] = self.seen.forked_s - self.killed_s
        return found


@dataclass(frozen=True, slots=True)
class Row:
    """Medians of one step over several starts."""

    step: str
    at_s: float
    use: Use


def rows_of(starts: Sequence[Start]) -> list[Row]:
    """One for each step that any of them told of, in their order."""
    reached = [start.steps() for start in starts]
    rows = []
    for name in dict.fromkeys(name for steps in reached for name in steps):
        pairs = zip(starts, reached, strict=True)
        of = [(start, steps[name]) for start, steps in pairs if name in steps]
        uses = [start.seen.use(start.killed_s + at_s) for start, at_s in of]
        use = {role: statistics.median(one[role] for one in uses) for role in ROLES}
        rows.append(Row(name, statistics.median(at_s for _, at_s in of), use))
    return sorted(rows, key=lambda row: row.at_s)


def print_table(rows: Sequence[Row], say: Callable[[str], None] = print) -> None:
    """As the table of the documentation: CPU is what each has used until the step, from its own
    begin."""
    cpu = " | ".join(f"CPU {role}" for role in ROLES)
    say(f"| seconds from the kill | after | step | what fills the time before it | {cpu} |")
    say(f"| ---: | ---: | --- | --- | {' | '.join(['---:'] * len(ROLES))} |")
    before_s = 0.0
    for row in rows:
        used = " | ".join(f"{row.use[role]:.2f}" for role in ROLES)
        after = f"{row.at_s - before_s:.2f}"
        say(f"| {row.at_s:.2f} | {after} | {row.step} | {FILLS.get(row.step, '')} | {used} |")
        before_s = row.at_s
