"""Runs window attempts in Spark.

A window that is soon done (``sizes``) is one task that runs every pass, in the worker of a task
that stays (``resident``) where nothing of it is computed in the JVM; another one is one job whose
stages are the passes, joined by envelopes. Nothing is cached, nothing runs twice.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.core.rdd import RDD
from pyspark.errors import PySparkException
from pyspark.serializers import NoOpSerializer

from millrace.engine.jobs.evidence import (
    blames_a_row,
    sql_states,
    thrown_by,
    worker_gone,
)
from millrace.engine.jobs.executors import executors
from millrace.engine.jobs.firstpass import (
    AheadRun,
    FirstPassRun,
    Prepared,
    lanes_of,
    reads_only,
    runs_beside,
)
from millrace.engine.jobs.jvm import private_folder
from millrace.engine.jobs.notices import await_deaths
from millrace.engine.jobs.resident import BesideError, NotResidentError, Resident
from millrace.engine.jobs.session import FOLDER, SHIPPED, cores_each, sql_session
from millrace.engine.jobs.shares import share
from millrace.engine.jobs.sizes import FEW_ROOTS, MOST_ROOTS, WindowSizes
from millrace.engine.program import kit as kit_files
from millrace.engine.program.kit import Kit
from millrace.engine.program.link import LISTENS, Place, Work
from millrace.engine.program.program import Program
from millrace.engine.program.signing import UnsignedError
from millrace.engine.program.sql import add_step, frame_schema, jvm_chain
from millrace.engine.task import deaths
from millrace.engine.task.faults import find_error, short_reason
from millrace.engine.task.sqlstage import (
    RESULT_SCHEMA,
    FramePass,
    FrameReader,
    FrameRehearsal,
    keyed,
    values,
)
from millrace.engine.task.state import Services
from millrace.engine.task.worker import (
    FirstPass,
    Job,
    NextPass,
    Rehearsal,
    decode_reports,
    encode_pieces,
)
from millrace.errors import EngineError, MillraceError, StateServerError, UserCodeError
from millrace.protocol.types import (
    AttemptId,
    AttemptPlan,
    Evidence,
    Intent,
    TaskReport,
)
from millrace.sources.base import Source
from millrace.state.errors import ObjectTooLargeError, OutOfMemoryError, UnreachableError
from millrace.tracking.log import AckLogAwayError, AckLogFullError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

log = logging.getLogger("millrace.driver")

Entry = Callable[[int, Iterable[bytes]], Iterator[Any]]
"""A pass in a task, of (partition, what comes in)."""

Frames = Callable[[Iterable[Any]], Iterator[Any]]
"""One end, in a Python worker, of a pass with SQL steps: batches in, batches out."""


class AttemptDied(Exception):  # noqa: N818 an outcome of an attempt, not a fault of ours
    """A window attempt ended without results.

    ``member_lost``: something outside the attempt was away or full (a state server, a sink's
    disk); ``full`` names a state server that has no memory left, ``away`` one that a task did not
    reach. ``evidence`` is what the end says about the window's roots. ``ended``: the driver ended
    it itself, for settings that have changed.
    """

    def __init__(
        self,
        reason: str,
        member_lost: bool = False,
        evidence: Evidence = Evidence.NONE,
        full: str = "",
        away: str = "",
        ended: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.member_lost = member_lost
        self.evidence = evidence
        self.full = full
        self.away = away
        self.ended = ended


class SparkGone(Exception):  # noqa: N818 the same
    """Spark itself has ended: this process can run nothing any more."""


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """Reports of all tasks whose output was used; ``shape[k]`` counts the tasks of pass k."""

    shape: tuple[int, ...]
    reports: tuple[TaskReport, ...]


class AttemptRunner:
    """Runs attempts of one program, one at a time; ``cancel`` may come from another thread, and so
    may ``prepare`` of the attempt that is next.

    ``services`` says how tasks reach the state servers and the ack log, and is asked for each
    attempt, since the view may have changed. ``reached`` is told each step of one. No window of
    more than ``most_roots`` is one task.
    """

    def __init__(
        self,
        spark: SparkContext,
        program: Program,
        sources: Mapping[str, Source],
        services: Callable[[], Services],
        most_roots: int = MOST_ROOTS,
        reached: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._context = spark
        self._session: SparkSession | None = None
        self._program = program
        self._sources = sources
        self._services = services
        self._cores = cores_each(spark.getConf())
        self._lanes = lanes_of(program, self._cores)
        self._sizes = WindowSizes(most_roots, self._lanes)
        self._reached = reached
        self._submitted: Callable[[], None] = lambda: None
        """Of the attempt that runs. Not for ``_results``: rehearsals go through that, too."""
        self._current: AttemptId | None = None
        jvm = self._context._jvm
        assert jvm is not None
        spark_conf = self._context._jsc.sc().conf()
        self._serializer = jvm.org.apache.spark.serializer.JavaSerializer(spark_conf)
        self._cancelled: set[AttemptId] = set()
        self._folder = Path(self._context.getConf().get(FOLDER))
        self._shipped = self._context.getConf().get(SHIPPED) == "true"
        self._kits: dict[tuple[tuple[str, str], ...], tuple[Program, str]] = {}
        self._brought: set[str] = set()
        self._packing = threading.Lock()
        self._resident = Resident(spark, _place(spark), program.uid)

    def use(self, program: Program) -> None:
        """Run the attempts from now on by it; for the thread that calls ``run``."""
        if program != self._program:
            self._program = program
            self._lanes = lanes_of(program, self._cores)
            self._sizes.forget(self._lanes)

    def most_tasks(self, roots: int, parallelism: int) -> int:
        """How many tasks a window of at most so many roots has at a time."""
        return 1 if self._one_task(roots, parallelism) else parallelism

    def as_one(self, roots: int) -> bool:
        """Whether a window of so many roots, few of them replays, would be one task now. What
        windows ahead take may change that until it runs."""
        return self._one_task(roots, self._program.parallelism)

    def prepare(self, plan: AttemptPlan) -> Prepared | None:
        """Begin with the first pass of an attempt, while another attempt runs or is judged.

        None where that pass keeps state, shows something, or runs in the JVM, or where the attempt
        is one task and calls code of the user's: all of it then runs when its turn has come. Raises
        what ``run`` raises.
        """
        program = self._program
        if not reads_only(program):
            return None
        services = self._services()
        if self._is_whole(plan.intent):
            return self._ahead(program, plan, services) if runs_beside(program) else None
        try:
            job = Job(self._kit(program, services.passwords), plan, services, False).encode()
            self._own_jobs(plan.id)
            payload = self._payload(plan.intent, program.parallelism)
            first = self._context.parallelize(payload, len(payload))
            pairs = self._keyed(first.mapPartitionsWithIndex(FirstPass(job)), len(payload))
            # What a plan of SQL does for each of its exchanges, where it adapts to their sizes.
            end = self._context._jsc.sc().submitMapStage(pairs.rdd().dependencies().head())
            if plan.id in self._cancelled:
                self.drop(plan.id)  # what is cancelled before it comes goes for jobs alone
            return FirstPassRun(program, end, self._values(pairs))
        except (Py4JError, PySparkException, OSError) as error:
            raise self._failed(plan, services, error) from error

    def _ahead(self, program: Program, plan: AttemptPlan, services: Services) -> AheadRun | None:
        """Begin with an attempt in the task that stays, where there is one."""
        kit = self._kit(program, services.passwords)
        job = Job(kit, plan, services, True).encode()
        (share,) = self._payload(plan.intent, 1)
        told = self._resident.ahead(kit, plan.id, Work(job, share, True, self._lanes))
        return AheadRun() if told else None

    def run(
        self,
        plan: AttemptPlan,
        first: Prepared | None = None,
        submitted: Callable[[], None] = lambda: None,
    ) -> AttemptResult:
        """Run one attempt to its end; ``first`` is what ``prepare`` has begun of it. ``submitted``
        is called each time that this is about to wait for others who work on it; never where it
        ends before.

        Raises ``AttemptDied``, or another ``MillraceError`` where running again cannot help
        (a source that lost its data, a sink that refuses).
        """
        staged = first if isinstance(first, FirstPassRun) else None
        whole = staged is None and self._is_whole(plan.intent)
        services = self._services()
        self._cancelled &= {plan.id}  # others are over
        self._submitted = submitted
        try:
            return self._run(plan, whole, services, staged)
        except BaseException as error:
            if staged is not None:
                self.drop(plan.id)  # it may run on, and nobody waits for it any more
            if whole and plan.intent.roots > FEW_ROOTS and plan.id not in self._cancelled:
                again = self._as_several(plan.intent, error)
                if again is not None:
                    raise again from error
            raise

    def _is_whole(self, intent: Intent) -> bool:
        """Whether one task runs all of a window. A replay is read by itself, which takes as long as
        thousands of records of a range."""
        few = len(intent.replays) <= FEW_ROOTS
        return few and self.as_one(intent.roots)

    def _one_task(self, roots: int, parallelism: int) -> bool:
        """As ``WindowSizes``; a larger window only where that costs no job of Spark's."""
        costs_job = bool(self._program.sql_steps) or self._resident.rests
        return not (costs_job and roots > FEW_ROOTS) and self._sizes.one_task(roots, parallelism)

    def _as_several(self, intent: Intent, error: BaseException) -> AttemptDied | None:
        """What has a larger window, which failed as one task, run again as several, if that may
        help. They may have room for what one had none for, so it says nothing of the roots."""
        died = isinstance(error, AttemptDied) and not (error.member_lost or error.ended)
        if not (died or isinstance(error, ObjectTooLargeError)):
            return None
        self._sizes.died(intent.roots)
        log.info("larger windows are several tasks for a while, since one ended: %s", error)
        return AttemptDied(str(error))

    def _run(
        self, plan: AttemptPlan, whole: bool, services: Services, first: FirstPassRun | None
    ) -> AttemptResult:
        program = self._program
        tasks = 1 if whole else program.parallelism
        kit = self._kit(program, services.passwords)
        job = Job(kit, plan, services, whole).encode()
        self._reached("kit stored")
        self._current = plan.id
        in_resident = whole and not program.sql_steps
        try:
            if not in_resident:
                self._resident.end()  # its slot is needed
            if first is not None:
                self._own_jobs(plan.id)
                reports = self._go_on(job, first)
            else:
                payload = self._payload(plan.intent, tasks)
                made = None
                if in_resident:
                    lanes = 1 if self._resident.alone else self._lanes
                    work = Work(job, payload[0], lanes=lanes)
                    made = self._in_resident(kit, plan, services, work)
                if made is None:
                    self._own_jobs(plan.id)
                    made = self._collect(job, payload, whole)
                reports = _decoded(made)
        except UnsignedError as error:
            raise AttemptDied(str(error)) from error
        except (Py4JError, PySparkException, OSError) as error:
            raise self._failed(plan, services, error) from error
        used = tuple({r.task: r for r in reports}.values())
        # One task may have found its first pass done by others.
        shape = _shape(used) if whole else (tasks,) * len(program.passes)
        self._sizes.ran(plan.intent, shape, used, whole=whole)
        return AttemptResult(shape, used)

    def cancel(self, attempt: AttemptId) -> None:
        """End this attempt soon, if it runs or is about to; its ``run`` raises ``AttemptDied``."""
        self._cancelled.add(attempt)
        # Jobs that the attempt is about to start count too.
        self._context._jsc.sc().cancelJobGroupAndFutureJobs(self._group(attempt))
        self._resident.cancel(attempt)

    def rest(self) -> None:
        """Leave no task in an executor, for one may go; between two attempts."""
        self._resident.end()

    def drop(self, attempt: AttemptId) -> None:
        """End what ``prepare`` has begun of an attempt that is not run. In the task that stays a
        first pass runs to its end, for nobody."""
        self._context._jsc.sc().cancelJobGroup(self._group(attempt))

    def cancel_all(self) -> None:
        """End what runs, for this process ends."""
        if self._current is not None:
            self.cancel(self._current)
        self._resident.close()

    def _own_jobs(self, attempt: AttemptId) -> None:
        """The jobs of this thread from now on are the attempt's."""
        group = self._group(attempt)
        self._context.setJobGroup(group, group, interruptOnCancel=True)

    def _group(self, attempt: AttemptId) -> str:
        return f"millrace-{self._program.uid}-{attempt}"

    def _spark_ended(self) -> bool:
        """Whether the JVM that this process started is gone, or has stopped its session."""
        process = getattr(self._context._gateway, "proc", None)
        if process is not None and process.poll() is not None:
            return True
        try:
            return bool(self._context._jsc.sc().isStopped())
        except (Py4JError, OSError):
            return True

    def _kit(self, program: Program, passwords: Mapping[str, str]) -> str:
        """Where tasks find the kit; where they share no folder with the driver, Spark brings it
        to them, over connections that are encrypted, onto the disk of their own pod."""
        key = tuple(sorted(passwords.items()))
        with self._packing:
            packed, name = self._kits.get(key, (None, ""))
            if packed is not program:
                name = self._pack(program, passwords)
                self._kits[key] = program, name
        return name

    def _pack(self, program: Program, passwords: Mapping[str, str]) -> str:
        try:
            path = kit_files.store(Kit(program, passwords), self._folder)
        except OSError as error:
            text = f"{self._folder} cannot be written ({error.strerror}); make room there"
            raise AttemptDied(text, member_lost=True) from error
        if self._shipped:
            for one in (*(path.with_name(name) for name in program.tables), path):
                self._ship(one)
        return path.name if self._shipped else str(path)

    def _ship(self, path: Path) -> None:
        """Have Spark bring a file, whose name tells its content, to whoever runs a task."""
        if path.name in self._brought:
            return
        try:
            self._context.addFile(str(path))
        except Py4JError as error:
            raise AttemptDied(short_reason(str(error))) from error
        self._brought.add(path.name)

    def _failed(self, plan: AttemptPlan, services: Services, error: Exception) -> Exception:
        if self._spark_ended():
            return SparkGone("Spark's JVM has ended; the driver is started again")
        return self._reason(plan, services, error)

    # -- rehearsals

    def spare_executors(self) -> frozenset[str]:
        """Those among which is the one that small windows run on, where it is not the only one."""
        here = executors(self._context) if self._resident.stays else frozenset()
        return here if len(here) > 1 else frozenset()

    def rehearse_on(self, count: int) -> None:
        """Run a task over nothing on each of so many executors, so that whichever small windows
        run on next has a worker with the user's code. From any thread, beside an attempt.

        Raises what Spark and the user's code raise.
        """
        kit = self._kit(self._program, self._services().passwords)
        group = f"millrace-{self._program.uid}-rehearsal"
        self._context.setJobGroup(group, group, interruptOnCancel=True)
        # Spark gives each executor with a free slot one of them before it gives any a second.
        tasks = self._context.parallelize([b""] * count, count)
        self._results(tasks.mapPartitionsWithIndex(Rehearsal(kit, keyed=False)))

    def rehearse(self) -> None:
        """Run a job of one task and one of all passes, over nothing, so that the next one finds the
        JVM, the workers and the user's code ready. Nothing is read, and no server is asked.

        Raises what Spark and the user's code raise.
        """
        kit = self._kit(self._program, {})
        for whole in (True, False):
            passes = 1 if whole else len(self._program.passes)
            payload = [b""] * (1 if whole else self._program.parallelism)
            entries = [Rehearsal(kit, keyed=number + 1 < passes) for number in range(passes)]
            ends = FrameRehearsal(kit), FrameRehearsal(kit)
            self._results(self._chained(payload, entries, ends))

    # -- jobs

    def _payload(self, intent: Intent, tasks: int) -> list[bytes]:
        return [encode_pieces(part) for part in share(intent, tasks, self._sources)]

    def _go_on(self, job: bytes, first: FirstPassRun) -> list[TaskReport]:
        """Run the passes behind the first. Raises ``AttemptDied`` where that ran otherwise."""
        if first.program != self._program:
            reason = "its first pass ran by settings that have changed since"
            raise AttemptDied(reason, ended=True)
        self._submitted()
        first.end.get()
        rdd, tasks = first.moved, self._program.parallelism
        for number in range(1, len(self._program.passes)):
            moved = rdd if number == 1 else self._exchange(rdd, tasks)
            rdd = moved.mapPartitionsWithIndex(NextPass(job, number))
        reports = _decoded(self._results(rdd))
        if any(r.segments or r.staged for r in reports if r.task.pass_no == 0):
            # Of whatever state there was when it began. The next attempt runs whole.
            raise AttemptDied("its first pass, which ran beside another window, keeps state")
        return reports

    def _in_resident(
        self, kit: str, plan: AttemptPlan, services: Services, work: Work
    ) -> list[bytes] | None:
        """What the task that stays makes of an attempt; None where there is none."""
        cancelled = self._cancelled
        self._reached("job submitted")
        self._submitted()
        try:
            return self._resident.run(kit, plan.id, work, lambda: plan.id in cancelled)
        except NotResidentError:
            return None
        except BesideError as error:
            if self._spark_ended():
                raise self._failed(plan, services, error) from error
            raise AttemptDied(str(error), ended=True) from error
        except EngineError as error:
            raise self._failed(plan, services, error) from error

    def _collect(self, job: bytes, payload: list[bytes], whole: bool) -> list[bytes]:
        passes = 1 if whole else len(self._program.passes)
        entries: list[Entry] = [
            FirstPass(job),
            *(NextPass(job, number) for number in range(1, passes)),
        ]
        ends = FrameReader(job, payload), FramePass(job, payload)
        chained = self._chained(payload, entries, ends)
        self._submitted()
        return self._results(chained)

    def _chained(
        self, payload: list[bytes], entries: Sequence[Entry], ends: tuple[Frames, Frames]
    ) -> RDD[Any]:
        """One pass behind the other; the first is run by ``ends`` where it has SQL steps."""
        if self._program.sql_steps:
            rdd = self._through_jvm(len(payload), ends, last=len(entries) == 1)
        else:
            rdd = self._context.parallelize(payload, len(payload))
            rdd = rdd.mapPartitionsWithIndex(entries[0])
        for entry in entries[1:]:
            rdd = self._exchange(rdd, len(payload)).mapPartitionsWithIndex(entry)
        return rdd

    def _results(self, rdd: RDD[Any]) -> list[bytes]:
        """Run the job. Spark examines the classes of a plain ``collect`` anew each time."""
        rdd._bypass_serializer = True  # else Spark pickles what is bytes already
        self._reached("job submitted")
        return list(rdd._jrdd.collectAsync().get())

    def _through_jvm(self, count: int, ends: tuple[Frames, Frames], last: bool) -> RDD[Any]:
        """The first pass with SQL steps, which run in the JVM between two Python workers."""
        reader, rest = ends
        if self._session is None:
            self._session = sql_session(self._context)
        frame = self._session.range(0, count, 1, count)
        frame = frame.mapInArrow(reader, frame_schema(self._program))
        for before, step in jvm_chain(self._program):
            frame = add_step(frame, before, step)
        frame = frame.mapInArrow(rest, RESULT_SCHEMA)
        return frame.rdd.mapPartitions(values if last else keyed)

    def _exchange(self, rdd: RDD[Any], partitions: int) -> RDD[Any]:
        """Move (reader, envelope) pairs; both are bytes already, Spark serialises nothing."""
        return self._values(self._keyed(rdd, partitions))

    def _keyed(self, rdd: RDD[Any], partitions: int) -> Any:
        """The pairs in the partitions of their readers, in the JVM."""
        rdd._bypass_serializer = True
        jvm = self._context._jvm
        assert jvm is not None
        pairs = jvm.PairwiseRDD(rdd._jrdd.rdd()).asJavaPairRDD()
        moved = pairs.partitionBy(jvm.PythonPartitioner(partitions, 0))
        # Kryo, chosen for arrays of bytes, takes a millisecond to set up for each task and file.
        moved.rdd().setSerializer(self._serializer)
        return moved

    def _values(self, pairs: Any) -> RDD[Any]:
        """The envelopes of such pairs."""
        jvm = self._context._jvm
        assert jvm is not None
        return RDD(jvm.PythonRDD.valueOfPair(pairs), self._context, NoOpSerializer())

    def _reason(
        self, plan: AttemptPlan, services: Services, failure: Exception
    ) -> MillraceError | AttemptDied:
        """What a failed job means."""
        attempt = plan.id
        if attempt in self._cancelled:
            return AttemptDied("cancelled")
        text = str(failure)
        error = find_error(text, attempt)
        if error is not None and error.retryable:
            full, away = _full(error, services), _away(error, services)
            return AttemptDied(str(error), member_lost=True, full=full, away=away)
        if isinstance(error, UserCodeError):
            return AttemptDied(str(error), evidence=Evidence.USER_CODE)
        if isinstance(error, EngineError):
            return AttemptDied(str(error))
        if error is not None:
            return error
        chain = thrown_by(failure)
        if self._program.sql_steps and blames_a_row(sql_states(chain)):
            return AttemptDied(short_reason(text), evidence=Evidence.ROW)
        if not worker_gone(chain):
            return AttemptDied(short_reason(text))
        return self._worker_ended(plan, services, short_reason(text))

    def _worker_ended(self, plan: AttemptPlan, services: Services, said: str) -> AttemptDied:
        """What the end of a worker means, by what was told of it; ``said`` is Spark's word."""
        try:
            told = await_deaths(services.access, plan, lambda: plan.id not in self._cancelled)
        except StateServerError as error:
            # Evidence may have been lost with it: the window waits until the server is back.
            return AttemptDied(f"{said}; how its worker ended is not known: {error}", True)
        death = deaths.main_cause(told, plan.id)
        if death is None:
            # Who would have told of it is gone, too; no root is blamed for that alone.
            return AttemptDied(said)
        text = deaths.describe(death, self._program.tuple_timeout_s)
        blamed = Evidence.USER_CODE if death.blames(plan.id) else Evidence.NONE
        return AttemptDied(text, evidence=blamed)


def _place(spark: SparkContext) -> Place:
    """Where a driver listens for its task that stays."""
    told = spark.getConf().get(LISTENS)
    if told:
        return Place.of(told)
    return Place(str(private_folder() / f"resident-{os.getpid()}.sock"))


def _shape(reports: Sequence[TaskReport]) -> tuple[int, ...]:
    """How many partitions each pass had."""
    found: dict[int, int] = defaultdict(int)
    for report in reports:
        task = report.task
        found[task.pass_no] = max(found[task.pass_no], task.partition + 1)
    return tuple(max(1, found[number]) for number in range(max(found, default=0) + 1))


def _decoded(made: Iterable[bytes]) -> list[TaskReport]:
    """Raises ``UnsignedError``."""
    return [report for data in made for report in decode_reports(data)]


def _full(error: MillraceError, services: Services) -> str:
    """Name of the state server that an error says is full, if it says that."""
    if isinstance(error, AckLogFullError) and services.log is not None:
        return services.log.name
    return error.server if isinstance(error, OutOfMemoryError) else ""


def _away(error: MillraceError, services: Services) -> str:
    """Name of the state server that an error says was not reached, if it says that."""
    if isinstance(error, AckLogAwayError) and services.log is not None:
        return services.log.name
    return error.server if isinstance(error, UnreachableError) else ""
