"""Windows run inside the test process: the tasks of Spark's jobs without Spark.

Everything but Spark is real: sources, sinks, a state server with keyed state and the ack log. The
check of the ack messages shares nothing with the engine but the format of the messages.
"""

from __future__ import annotations

import json
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.engine.jobs.runner import share
from millrace.engine.program.compile import compile_topology
from millrace.engine.program.draft import CompileOptions
from millrace.engine.program.kit import Kit, store
from millrace.engine.program.program import Program
from millrace.engine.task import worker
from millrace.engine.task.blackbox import Box
from millrace.engine.task.faults import TaskError, find_error
from millrace.engine.task.state import Services
from millrace.engine.task.worker import (
    FirstPass,
    Job,
    NextPass,
    decode_reports,
    encode_pieces,
)
from millrace.errors import MillraceError, UserCodeError
from millrace.ids import name_id, root_id, tracking_id
from millrace.protocol.acklog import Open, SliceOwners, sequences
from millrace.protocol.types import (
    AttemptId,
    AttemptPlan,
    Intent,
    Sealed,
    Stamp,
    TaskReport,
)
from millrace.sinks import open_sink
from millrace.sources import open_source
from millrace.state.client import connect
from millrace.state.servers import StateAccess
from millrace.topology.load import parse
from millrace.tracking.log import AckLog
from millrace.tracking.message import AckMessage, decode, read_enclosed
from millrace_e2e.waiting import until

IDLE_S = 60.0
CODE = Path(__file__).parent / "code"
STAMP = Stamp(1, 1)
SLICES = 18
"""Of the ack log, as with six ackers."""

HEAD = """
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {name: test}
spec:
"""


def compiled(spec: str, folder: Path, uid: str, sql_schema=None, **changes) -> Program:
    """The program of a topology's ``spec`` (YAML text), whose paths start at ``folder``."""
    indented = "\n".join("  " + line for line in spec.strip("\n").splitlines())
    topology = parse(HEAD + indented, folder=folder, import_code=False)
    options = CompileOptions(uid, folder, CODE, sql_schema)
    return replace(compile_topology(topology, options), **changes)


def write_lines(folder: Path, lines: list[str], name: str = "a.txt") -> None:
    (folder / "texts").mkdir(exist_ok=True)
    (folder / "texts" / name).write_text("".join(line + "\n" for line in lines))


@dataclass
class Verdict:
    """What the ack messages of an attempt add up to."""

    incomplete: set[int]
    edges: dict[str, set[int]]
    window: dict[str, int]

    @property
    def complete(self) -> bool:
        return not self.incomplete and not self.window


@dataclass
class Outcome:
    """One attempt: reports by task, and what each sink staged."""

    intent: Intent
    reports: dict[object, TaskReport]
    rows: dict[str, list[dict]]
    verdict: Verdict

    @property
    def failed(self) -> dict[int, tuple[str, str]]:
        found = {f.sequence: f for r in self.reports.values() for f in r.failed}
        return {s: (f.processor, f.error) for s, f in sorted(found.items())}

    @property
    def combined(self) -> dict[str, int]:
        masks: dict[str, int] = {}
        for report in self.reports.values():
            for name, mask, _ in report.combined_failures:
                masks[name] = masks.get(name, 0) | mask
        return masks


@dataclass
class Windows:
    """Consecutive windows of one program against one state server."""

    program: Program
    address: object
    whole: bool = False
    chains: dict = field(default_factory=dict)
    offsets: dict = field(default_factory=dict)
    window: int = 0
    attempts: int = 0
    order: object = None
    current: AttemptId | None = None

    def __post_init__(self):
        client = connect(self.address, self.program.uid)
        client.stamp(STAMP)
        self.log = AckLog(client.redis, self.program.uid)
        self.log.append_control(1, SliceOwners.of(1, ["acker-0"]))
        owners = ((self.address.name,),) * self.program.key_groups
        access = StateAccess(self.program.uid, STAMP, (self.address,), owners)
        self.services = Services(access, self.address)
        self.sources = {s.name: open_source(s.connector) for s in self.program.sources}
        kit = Kit(self.program, self.services.passwords)
        self.kit = store(kit, Path(self.program.base_path) / "kit")
        for sink in self.program.sinks:
            open_sink(sink.connector).prepare(self.program.uid)

    def plan(self, max_records: int = 10**6, replays=()) -> Intent:
        ranges = []
        for name, source in self.sources.items():
            found = source.plan(self.offsets.get(name), max_records)
            self.offsets[name] = found.offsets
            ranges += found.ranges
        return Intent(self.window + 1, tuple(ranges), tuple(replays))

    def attempt(self, intent: Intent, excluded=(), uncombined: Mapping[str, int] | None = None):
        """Run one attempt of a window, every task once."""
        plan = self.announced(intent, excluded, uncombined)
        attempt = plan.id
        reports = self.run_tasks(plan)
        outcome = Outcome(intent, {r.task: r for r in reports}, {}, Verdict(set(), {}, {}))
        outcome.rows = self.staged_rows(outcome)
        if self.program.tracking:
            outcome.verdict = self.judge(attempt, intent, set(excluded), outcome.reports)
        return outcome

    def announced(
        self, intent: Intent, excluded=(), uncombined: Mapping[str, int] | None = None
    ) -> AttemptPlan:
        """The plan of another attempt, which is in the ack log."""
        self.attempts += 1
        self.current = attempt = AttemptId(1, intent.window, self.attempts)
        opened = Open(attempt, intent.roots, self.program.tracked_edges, SLICES)
        self.log.open(1, opened)
        self.log.append_control(1, opened)
        return AttemptPlan(
            attempt, STAMP, intent, frozenset(excluded), uncombined or {}, self.chains, SLICES
        )

    def run_tasks(self, plan: AttemptPlan) -> list[TaskReport]:
        job = Job(str(self.kit), plan, self.services, self.whole)
        worker.toolbox_of(job).bench.box = Box(None, None)  # pytest's own time-out uses the timer
        count = 1 if self.whole else self.program.parallelism
        data = job.encode()
        parts = [encode_pieces(p) for p in share(plan.intent, count, self.sources)]
        made = [list(FirstPass(data)(p, [parts[p]])) for p in range(count)]
        if not self.whole:
            for number in range(1, len(self.program.passes)):
                inboxes = self.move(made)
                made = [list(NextPass(data, number)(p, inboxes[p])) for p in range(count)]
        return [report for part in made for data in part for report in decode_reports(data)]

    def assert_too_large(self, column: str) -> None:
        """All that there is as one window is more than a column holds, and told as what narrows it;
        what is planned next begins at the beginning again."""
        with pytest.raises(TaskError) as caught:
            self.attempt(self.plan())
        error = self.error_in(caught.value)
        assert type(error) is UserCodeError
        assert f"column {column} is more than the 2 GiB" in str(error)
        self.offsets.clear()

    def error_in(self, failure: Exception) -> MillraceError | None:
        """The deliberate error that the last attempt failed with."""
        return find_error(str(failure), self.current)

    def move(self, made: list[list[bytes]]) -> list[list[bytes]]:
        """What Spark's shuffle does; ``order`` may rearrange what a reader gets."""
        inboxes: list[list[bytes]] = [[] for _ in made]
        for sent in made:
            for reader, envelope in zip(sent[::2], sent[1::2], strict=True):
                inboxes[int.from_bytes(reader, "big")].append(envelope)
        return [self.order(box) if self.order else box for box in inboxes]

    def seal(self, outcome: Outcome) -> None:
        """Keep the state and publish the output of an attempt."""
        self.window = outcome.intent.window
        for report in outcome.reports.values():
            for name, segment in report.segments:
                self.chains[name] = (*self.chains.get(name, ()), segment)
        staged = [s for r in outcome.reports.values() for s in r.staged]
        sealed = Sealed(self.window, f"window {self.window}", tuple(staged))
        for sink in self.program.sinks:
            mine = [s for s in staged if s.sink == sink.name]
            opened = open_sink(sink.connector)
            opened.fence(1)
            opened.publish(sealed, mine, 1)

    def go(self, **kwargs) -> Outcome:
        """Plan, run and seal one window."""
        outcome = self.attempt(self.plan(), **kwargs)
        self.seal(outcome)
        return outcome

    def staged_rows(self, outcome: Outcome) -> dict[str, list[dict]]:
        rows: dict[str, list[dict]] = {s.name: [] for s in self.program.sinks}
        for report in outcome.reports.values():
            for staged in report.staged:
                sink = open_sink(self.program.components[staged.sink].connector)
                path = sink._staged_path(staged.name)
                rows[staged.sink] += [json.loads(line) for line in path.read_text().splitlines()]
        return rows

    # -- the ackers' arithmetic, done over

    def judge(self, attempt: AttemptId, intent: Intent, excluded: set[int], winners) -> Verdict:
        values: dict[str, np.ndarray] = {}
        window: dict[str, int] = {}
        for partition, message in self.messages(attempt, winners.values()):
            if message.task in winners:
                self.fold(message, intent, partition, values)
                for edge, value in message.window_checks.items():
                    window[edge] = window.get(edge, 0) ^ value
        total = np.array(seeds(intent, excluded), np.uint64)
        broken: dict[str, set[int]] = {}
        for edge, net in values.items():
            if edge.startswith(">"):
                total ^= net
            elif net.any():
                broken[edge] = set(np.flatnonzero(net).tolist())
        incomplete = set(np.flatnonzero(total).tolist()).union(*broken.values())
        return Verdict(incomplete, broken, {e: v for e, v in window.items() if v})

    def messages(self, attempt: AttemptId, reports) -> Iterator[tuple[int, AckMessage]]:
        """What the tasks said of each slice, in the log and in their reports."""
        for partition in range(SLICES):
            key = self.log.slice_key(attempt, partition)
            for entries in self.log.read({key: "0-0"}).values():
                for _, fields in entries:
                    if b"m" in fields:  # else it is the entry that begins the slice
                        yield partition, decode(fields[b"m"])
        for report in reports:
            for partition, text in report.acks:
                yield partition, read_enclosed(text)

    def fold(self, message, intent, partition, values) -> None:
        mine = np.array(list(sequences(intent.window, partition, intent.roots, SLICES)), np.int64)
        for net in message.values(SLICES):
            assert net.edge in self.program.tracked_edges
            places = net.places
            if places is None:
                places = np.arange(net.low, net.low + len(net.values))
            total = values.setdefault(net.edge, np.zeros(intent.roots, np.uint64))
            total[mine[places]] ^= net.values


def seeds(intent: Intent, excluded: set[int]) -> list[int]:
    """Tracking id of every root, 0 for those that are excluded."""
    found = [
        tracking_id(root_id(name_id(r.source), r.partition, r.start + i), 0)
        for r in intent.ranges
        for i in range(r.count)
    ]
    found += [
        tracking_id(root_id(name_id(r.source), r.partition, r.offset), r.number)
        for r in intent.replays
    ]
    return [0 if at in excluded else value for at, value in enumerate(found)]


class SparkWindows(Windows):
    """Windows whose attempts are jobs of a Spark session."""

    def __init__(self, program, address, spark, small):
        super().__init__(program, address)
        from millrace.engine.jobs.runner import AttemptRunner

        self.shape: tuple[int, ...] = ()
        self.prepares = False
        self.prepared: Any = None
        self.between: Callable[[], object] = lambda: None
        """Called when a window is prepared, or is not, and has not run."""
        self.runner = AttemptRunner(
            spark.sparkContext, program, self.sources, lambda: self.services, small
        )

    def run_tasks(self, plan: AttemptPlan) -> list[TaskReport]:
        self.prepared = self.runner.prepare(plan) if self.prepares else None
        self.between()
        result = self.runner.run(plan, self.prepared)
        self.shape = result.shape
        return list(result.reports)

    def close(self) -> None:
        self.runner.cancel_all()

    def stay(self) -> Any:
        """The task that small windows run in, if there is one."""
        return self.runner._resident._stay

    def worker(self) -> int:
        """The process of its worker, by its connection."""
        connection = self.stay().link._connection
        told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", told)[0])


class WordWindows(SparkWindows):
    """Windows of words that are counted, and what they have to come to."""

    def __init__(self, *given):
        super().__init__(*given)
        self.fed: Counter[str] = Counter()

    def feed(self, *words: str) -> None:
        self.fed += Counter(words)
        folder = Path(self.program.base_path)
        write_lines(folder, list(words), f"{len(list(folder.glob('texts/*'))):06}.txt")

    def check(self, outcome: Outcome, *words: str) -> None:
        """A window of these words is complete and has their totals."""
        assert outcome.verdict.complete
        for row in outcome.rows["rows"]:
            assert row["n"] == self.fed[row["word"]]
        assert {row["word"] for row in outcome.rows["rows"]} == set(words)


def assert_idle(spark) -> None:
    """Spark runs nothing any more, or soon."""
    tracker = spark.sparkContext.statusTracker()
    until(lambda: not tracker.getActiveStageIds(), "the end of all tasks", IDLE_S)
