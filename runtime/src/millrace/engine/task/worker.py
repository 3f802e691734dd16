"""What runs inside a Python worker: the entry points of tasks and what a process keeps.

A task is an importable callable with a few bytes; everything that takes time to make (the
program, user functions, sources, sinks, connections, state) stays with the process and is found
by the path of its kit.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, Self

from pyspark import SparkFiles, TaskContext
from pyspark.serializers import pack_long

from millrace.engine.program import signing
from millrace.engine.program.kit import Kit
from millrace.engine.program.kit import load as load_kit
from millrace.engine.program.program import Component, Pass
from millrace.engine.program.usercode import load_function, load_object, use_path
from millrace.engine.task import blackbox
from millrace.engine.task.acks import acks_of, send_acks
from millrace.engine.task.blackbox import Box, Note, Recipient
from millrace.engine.task.books import Books, Failures, NetPool
from millrace.engine.task.context import Task
from millrace.engine.task.exchange import Parcel, Transport, check_envelopes
from millrace.engine.task.faults import TaskError
from millrace.engine.task.memory import Garbage, WorkerExhaustedError, WorkerMemory, has_room
from millrace.engine.task.passes import PassRun, TaskOutput, headed
from millrace.engine.task.state import Services, StateHost, TaskState
from millrace.engine.task.steps.ends import Intake, Piece
from millrace.engine.task.steps.making import Toolbox
from millrace.engine.task.steps.matching import TableIndex
from millrace.errors import EngineError, MillraceError
from millrace.functions import FunctionSpec
from millrace.protocol.types import AttemptId, AttemptPlan, TaskId, TaskReport
from millrace.sinks import Sink, open_sink
from millrace.sinks.loader import sink_class
from millrace.sources import Source, open_source
from millrace.sources.loader import source_class
from millrace.state.keyed.keytable import Room
from millrace.topology.parts import Role
from millrace.tracking.collector import Messages


@dataclass(frozen=True, slots=True)
class Job:
    """One window attempt as every task of it gets it.

    ``kit`` is the path of the file with the program, or the name of one that Spark brings along;
    ``whole`` says that one task runs every pass.
    """

    kit: str
    plan: AttemptPlan
    services: Services
    whole: bool

    def encode(self) -> bytes:
        return signing.signed("job", self)


@dataclass(slots=True)
class Bench:
    """What one thread's tasks work with, one behind the other: the notes of what they do, and
    memory that stays."""

    box: Box
    nets: NetPool = field(default_factory=NetPool)
    rooms: dict[str, tuple[int, Room]] = field(default_factory=dict)


class ProcessToolbox:
    """User code, sources, sinks, tables and state caches of this process, for one program.

    ``folder`` has the files that came with the kit, ``tables`` are some that are in memory already.
    """

    intake = Intake()

    def __init__(
        self, kit: Kit, folder: Path, tables: Mapping[str, TableIndex] | None = None
    ) -> None:
        self.program = program = kit.program
        self.passwords = kit.passwords
        self.digest = kit.digest()
        use_path(program.code_path)
        self.bench = Bench(Box(blackbox.mine, program.tuple_timeout_s))
        self.memory = WorkerMemory()
        self.transport: Transport = load_object(program.transport, program.code_path)()
        self.states = StateHost()
        self._functions: dict[str, FunctionSpec] = {}
        self._folder = folder
        self._opening = Lock()
        self.tables = {n: one for n, one in (tables or {}).items() if n in program.tables}
        self.garbage = Garbage()

    def function(self, component: Component) -> FunctionSpec:
        if component.name not in self._functions:
            assert component.function is not None
            found = load_function(component.function, self.program.code_path)
            self._functions[component.name] = found
        return self._functions[component.name]

    def source(self, component: Component) -> Source:
        return open_source(component.connector)

    def sink(self, component: Component) -> Sink:
        return open_sink(component.connector)

    def table(self, name: str) -> TableIndex:
        with self._opening:
            if name not in self.tables:
                self.tables[name] = TableIndex(self._folder / name)
            return self.tables[name]

    def preload(self) -> None:
        """Import all code that the program names, of which nothing is made or called, and load its
        tables."""
        for component in self.program.components.values():
            if component.function is not None:
                self.function(component)
            elif component.role is Role.SOURCE:
                source_class(component.connector)
            elif component.role is Role.SINK:
                sink_class(component.connector)
        for name in self.program.tables:
            self.table(name)


_PROCESS: dict[str, ProcessToolbox] = {}
_MAKING = Lock()
"""Two threads may want the tools of a program that nobody has loaded yet."""
_JOBS: dict[str, Job] = {}
_JOBS_KEPT = 4
"""That of the attempt that runs, those whose first pass runs or waits, and one more."""


def load_job(data: bytes) -> Job:
    key = hashlib.blake2b(data, digest_size=16).hexdigest()
    job = _JOBS.get(key)
    if job is None:
        job = signing.verified("job", data)
        if len(_JOBS) >= _JOBS_KEPT:
            _JOBS.clear()
        _JOBS[key] = job
    return job


def encode_pieces(pieces: Sequence[Piece]) -> bytes:
    """One task's share of a window's roots."""
    return signing.signed("share", list(pieces))


def decode_pieces(data: bytes) -> list[Piece]:
    """Raises ``UnsignedError``."""
    return list(signing.verified("share", data))


def encode_reports(reports: Sequence[TaskReport]) -> bytes:
    """What a task of the last pass returns to the driver."""
    return signing.signed("report", list(reports))


def decode_reports(data: bytes) -> list[TaskReport]:
    """Raises ``UnsignedError``."""
    return list(signing.verified("report", data))


def toolbox_of(job: Job) -> ProcessToolbox:
    return _toolbox(job.kit)


def _toolbox(kit: str) -> ProcessToolbox:
    with _MAKING:
        return _found(kit)


def _found(kit: str) -> ProcessToolbox:
    toolbox = _PROCESS.get(kit)
    if toolbox is None:
        place = _place_of(kit)
        loaded = load_kit(place)
        toolbox = next(iter(_PROCESS.values()), None)
        if toolbox is not None and toolbox.digest == loaded.digest():
            # The servers are others; the state that this process keeps goes by the sealed chain.
            toolbox.passwords = loaded.passwords
        else:
            tables = toolbox.tables if toolbox is not None else None
            toolbox = ProcessToolbox(loaded, place.parent, tables)
        _PROCESS.clear()
        _PROCESS[kit] = toolbox
    return toolbox


def _place_of(kit: str) -> Path:
    """A bare name is that of a file which Spark brought."""
    return Path(kit) if os.path.isabs(kit) else Path(SparkFiles.get(kit))


def task_id(context: TaskContext | None, pass_no: int, partition: int) -> TaskId:
    """Who the task of this process is; outside Spark all are the same one."""
    return TaskId(pass_no, partition, context.taskAttemptId() if context is not None else 0)


def begin_task(toolbox: ProcessToolbox, job: Job, task: TaskId) -> None:
    """Note the task, should this process end in it."""
    services, context, a = job.services.known(toolbox.passwords), TaskContext.get(), job.plan.id
    run = context.attemptNumber() if context is not None else 0
    toolbox.bench.box.task(
        Note(os.getpid(), a.execution, a.window, a.attempt, task.pass_no, task.partition),
        Recipient.of(services.access, job.plan.stamp, a, task, run),
    )


class TaskRun:
    """One task attempt from its first to its last line: some ``passes`` that follow each other,
    over one of ``partitions`` shares of a window. Where ``held``, its ack messages go with its
    parcels, and are told by the task that takes those.
    """

    def __init__(
        self,
        job: Job,
        toolbox: ProcessToolbox,
        task: TaskId,
        passes: Sequence[Pass],
        partitions: int,
        bench: Bench,
        tools: Toolbox | None = None,
        held: bool = False,
    ) -> None:
        self._held = held
        self._began_s = monotonic()
        self.job = job
        self.toolbox = toolbox
        program, plan = toolbox.program, job.plan
        self.bench = bench
        self.partitions = partitions
        self.last = passes[-1].number == program.passes[-1].number
        roots = plan.intent.roots
        self.task = Task(
            program=program,
            plan=plan,
            id=task,
            partitions=partitions,
            books=Books(roots, plan.slices, program.tracking, bench.nets),
            failures=Failures(roots, {c.number: c.name for c in program.components.values()}),
            box=bench.box,
            memory=self.toolbox.memory,
            rooms=bench.rooms,
        )
        self.services = job.services.known(self.toolbox.passwords)
        self.state = TaskState(self.task, self.services.access, self.toolbox.states)
        self.run = PassRun(self.task, passes, tools or self.toolbox, self.state)

    @classmethod
    def of_spark(cls, job: Job, pass_no: int, partition: int) -> TaskRun:
        """The task that Spark runs: this pass, and all behind it where the job is one task."""
        toolbox, context = toolbox_of(job), TaskContext.get()
        program = toolbox.program
        if context is not None:
            toolbox.memory.check()
        task = task_id(context, pass_no, partition)
        begin_task(toolbox, job, task)
        passes = program.passes[pass_no : None if job.whole else pass_no + 1]
        partitions = 1 if job.whole else program.parallelism
        return cls(job, toolbox, task, passes, partitions, toolbox.bench)

    def complete(
        self,
        read: tuple[TaskId, ...] = (),
        roots_read: tuple[tuple[int, int], ...] = (),
        relayed: Iterable[TaskReport] = (),
        acks: Messages = (),
    ) -> list[Any]:
        """Bring the task to its end, when all input is in; ``acks`` are told with its own.

        Returns the reports for the driver, or (reader, envelope) pairs for the next pass. What
        leaves is booked before the ack messages are made, and they are written before a report
        leaves, or go with that of a task which runs every pass.
        """
        if self.last:
            output = self.run.finish()
            report, mine = self._told(output, read, roots_read)
            enclosed = send_acks(self.task, self.services, (*acks, *mine), self.job.whole)
            return [replace(report, acks=enclosed), *relayed]
        parcels = self.parcels(read, roots_read, relayed, acks)
        return list(self.toolbox.transport.send(parcels))

    def parcels(
        self,
        read: tuple[TaskId, ...] = (),
        roots_read: tuple[tuple[int, int], ...] = (),
        relayed: Iterable[TaskReport] = (),
        acks: Messages = (),
    ) -> list[Parcel]:
        """As ``complete``, of a task that another pass follows: what goes there."""
        output = self.run.finish()
        tables = self.run.parcels(self.partitions)
        report, mine = self._told(output, read, roots_read)
        made = headed(self.task.id, tables, (report, *relayed))
        if self._held:
            return [replace(one, acks=(*acks, *mine)) for one in made]
        send_acks(self.task, self.services, (*acks, *mine))
        return made

    def _told(
        self,
        output: TaskOutput,
        read: tuple[TaskId, ...],
        roots_read: tuple[tuple[int, int], ...],
    ) -> tuple[TaskReport, Messages]:
        """The task's report and its ack messages."""
        took_s = monotonic() - self._began_s
        messages = acks_of(self.task, self.services, roots_read)
        report = TaskReport(
            task=self.task.id,
            read=read,
            partitions=tuple(partition for partition, _ in messages),
            roots_read=roots_read,
            holes=self.run.holes(),
            segments=output.segments,
            staged=output.staged,
            failed=self.task.failures.failed,
            combined_failures=self.task.failures.combined,
            worked_s=self.task.box.worked_s,
            took_s=took_s,
        )
        return report, messages

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The task is over, whichever way."""
        try:
            self.run.close()
        finally:
            self.bench.box.idle()
            if self.bench is self.toolbox.bench:
                self.toolbox.garbage.after_task()


class FirstPass:
    """Reads the sources and runs pass 0; yields keys and envelopes, or the encoded reports."""

    def __init__(self, job: bytes) -> None:
        self._job = job

    def __call__(self, partition: int, payload: Iterable[bytes]) -> Iterator[Any]:
        job = load_job(self._job)
        pieces = [piece for data in payload for piece in decode_pieces(data)]
        with marked_errors(job.plan.id), TaskRun.of_spark(job, 0, partition) as running:
            running.run.open()
            runs = tuple(running.run.read(pieces))
            made = running.complete(roots_read=runs)
        yield from shuffled(running, made)


class NextPass:
    """Runs a later pass over the envelopes of the one before."""

    def __init__(self, job: bytes, pass_no: int) -> None:
        self._job = job
        self._pass_no = pass_no

    def __call__(self, partition: int, envelopes: Iterable[bytes]) -> Iterator[Any]:
        job = load_job(self._job)
        data = list(envelopes)
        with marked_errors(job.plan.id), TaskRun.of_spark(job, self._pass_no, partition) as running:
            run = running.run
            parcels = running.toolbox.transport.receive(data)
            del data
            tracked = running.toolbox.program.tracking
            check_envelopes(parcels, running.partitions, partition, tracked)
            read = tuple(sorted(p.header.task for p in parcels))
            relayed = {r.task: r for p in parcels for r in p.header.reports}
            run.open()
            run.receive(parcels)
            del parcels
            made = running.complete(read, relayed=relayed.values())
        yield from shuffled(running, made)


class Rehearsal:
    """A pass over nothing, so that its worker is forked and has imported what windows will need.

    It reads and writes nothing outside of the process. ``keyed`` where another pass follows.
    """

    def __init__(self, kit: str, keyed: bool) -> None:
        self._kit = kit
        self._keyed = keyed

    def __call__(self, partition: int, nothing: Iterable[bytes]) -> Iterator[Any]:
        list(nothing)
        rehearse(self._kit)
        if self._keyed:
            yield pack_long(partition)
        yield b""


def rehearse(kit: str) -> None:
    """Make this process ready for windows of a kit's program."""
    toolbox = _toolbox(kit)
    toolbox.preload()
    toolbox.garbage.after_task()


def shuffled(running: TaskRun, made: list[Any]) -> Iterator[Any]:
    """Results as Spark's shuffle takes them: key, value, key, value, ..., or the reports."""
    if running.last:
        yield encode_reports(made)
        return
    for reader, envelope in made:
        yield pack_long(reader)
        yield envelope


@contextmanager
def marked_errors(attempt: AttemptId) -> Iterator[None]:
    """Marks deliberate errors, so that the driver finds them in Spark's text.

    Whatever else went wrong in a process without memory, that is what it is about.
    """
    try:
        yield
    except MillraceError as error:
        raise TaskError(error, attempt) from error
    except WorkerExhaustedError:
        raise
    except Exception as error:
        if isinstance(error, MemoryError) or not has_room():
            raise TaskError(_out_of_memory(), attempt) from error
        raise


def _out_of_memory() -> MillraceError:
    """What it means that this process has no memory left: evidence where user code had tuples in
    hand, or had run out of it before."""
    toolbox = next(iter(_PROCESS.values()), None)
    memory = toolbox.memory if toolbox is not None else WorkerMemory()
    told = memory.exhausted()
    if memory.was_short or (toolbox is not None and toolbox.bench.box.in_hand):
        return told
    return EngineError(str(told))
