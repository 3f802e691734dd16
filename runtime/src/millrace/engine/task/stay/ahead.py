"""First passes of window attempts whose turn has not come, beside the task that runs another one.

Such a pass reads input and runs compiled steps up to where tuples are combined by key; it keeps no
state, shows nothing and calls no code of the user's (``jobs.firstpass``). It is a task of its own
to the ackers, or several, one for each of its lanes (``lanes``), and what it made waits in memory,
with what the ackers are to be told of it, for the passes behind it, which run when the attempt's
turn has come. It is worth a try and no more: one that fails, or takes too long, is left out of the
account, and the attempt runs as if there had been none, with its notes and time-outs.

It works on threads of its own, with notes that nobody reads: whatever ends the process meanwhile is
told of the attempt whose turn it is. So a driver takes such an end for one that says nothing of
either (``jobs.resident.BesideError``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from contextlib import contextmanager
from dataclasses import replace
from typing import Self

from pyspark import TaskContext

from millrace import crash
from millrace.engine.program.link import Work
from millrace.engine.program.program import Component
from millrace.engine.task.blackbox import Box
from millrace.engine.task.exchange import Parcel
from millrace.engine.task.stay.lanes import ROWS, SharedReading, lanes_for
from millrace.engine.task.steps.ends import Intake, Piece
from millrace.engine.task.steps.matching import TableIndex
from millrace.engine.task.worker import (
    Bench,
    Job,
    ProcessToolbox,
    TaskRun,
    decode_pieces,
    encode_reports,
    load_job,
    marked_errors,
    task_id,
    toolbox_of,
)
from millrace.errors import EngineError
from millrace.functions import FunctionSpec
from millrace.protocol.types import AttemptId
from millrace.sinks import Sink
from millrace.sources import Source
from millrace.sources.loader import make_source

log = logging.getLogger("millrace.worker")

PATIENCE_S = 10.0
"""A first pass may take at least so long, however short the time is that one tuple may take."""

_AHEAD = 1 << 40
"""Added to the number of Spark's task: the attempt may run as a whole in that very task, and is
another one to the ackers then. Spark counts its tasks from 0."""


class Aheads:
    """First passes, one behind the other, on one thread. ``begin`` from any thread, ``take`` and
    the end from one other."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._begun: dict[AttemptId, Future[list[Parcel]]] = {}
        self._side = _Side()
        self._stuck = False
        """A pass has taken too long: whatever would come behind it had to wait, too."""

    def begin(self, attempt: AttemptId, work: Work) -> None:
        """Raises ``RuntimeError`` where no thread can be had."""
        if not self._stuck:
            self._begun[attempt] = self._thread.submit(self._side.first_pass, work)

    def take(self, job: Job) -> list[Parcel]:
        """What each lane of an attempt's first pass made; nothing where there was none, or nothing
        came of it.

        Waits for it, as long as one tuple may take, and ``PATIENCE_S`` at least. Those of windows
        before are forgotten.
        """
        mine = self._begun.pop(job.plan.id, None)
        for attempt in list(self._begun):  # another thread may add to them
            if attempt.window <= job.plan.id.window:
                self._begun.pop(attempt).cancel()
        if mine is None or self._stuck:
            return []
        try:
            return mine.result(max(PATIENCE_S, toolbox_of(job).program.tuple_timeout_s))
        except LateError:
            self._stuck = True
            self._side.stop()
            log.warning(
                "the first pass of %s, begun ahead, takes too long; none is in this task any more",
                job.plan.id,
            )
        except Exception as error:  # noqa: BLE001
            # Whatever it was comes again where the attempt is run, and is told there.
            log.info("the first pass of %s was begun ahead in vain: %s", job.plan.id, error)
        return []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._side.stop()
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._side.close()


def go_on(job: Job, parcels: Sequence[Parcel]) -> list[bytes]:
    """Run all passes of an attempt behind its first one; the encoded reports of all tasks."""
    with marked_errors(job.plan.id), TaskRun.of_spark(job, 1, 0) as running:
        running.run.open()
        running.run.receive(parcels)
        read = tuple(parcel.header.task for parcel in parcels)
        relayed = [report for parcel in parcels for report in parcel.header.reports]
        acks = tuple(message for parcel in parcels for message in parcel.acks)
        made = running.complete(read, relayed=relayed, acks=acks)
    return [encode_reports(made)]


class _Side:
    """Where first passes run: what they would share with the task's own is their own here."""

    def __init__(self) -> None:
        self._lanes: list[_Lane] = []
        self._threads: ThreadPoolExecutor | None = None
        self._reading = SharedReading()

    def first_pass(self, work: Work) -> list[Parcel]:
        """Run the first pass of an attempt; what each of its lanes made."""
        job = load_job(work.job)
        toolbox = toolbox_of(job)
        toolbox.memory.check()
        count = lanes_for(job.plan.intent.roots, work.lanes)
        while len(self._lanes) < count:
            self._lanes.append(_Lane(len(self._lanes)))
        pieces, self._reading = decode_pieces(work.share), SharedReading()
        given = job, toolbox, pieces, self._reading
        with self._together() as others:
            for one in self._lanes[1:count]:
                others.append(self._threads_of_lanes().submit(one.run, *given))
            parcels = [self._lanes[0].run(*given)]
            parcels += [one.result() for one in others]
        crash.reached("worker.ahead")
        return parcels

    def stop(self) -> None:
        """Nobody waits any more for the pass that runs; from any thread."""
        self._reading.stop()

    def close(self) -> None:
        """No first pass runs any more."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    @contextmanager
    def _together(self) -> Iterator[list[Future[Parcel]]]:
        """Lanes that end together: where one fails, what the others do is for nobody."""
        try:
            yield []
        except BaseException:
            self.stop()
            self.close()
            self._threads, self._lanes = None, []
            raise

    def _threads_of_lanes(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(thread_name_prefix="lane")
        return self._threads


class _Lane:
    """One of the tasks of each first pass, on whatever thread runs it."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._bench = Bench(Box(None, None))
        """Of each pass in turn; its notes nobody reads."""
        self._sources: dict[str, Source] = {}

    def run(
        self, job: Job, toolbox: ProcessToolbox, pieces: Sequence[Piece], reading: SharedReading
    ) -> Parcel:
        """Read what no other lane reads; what was made of that."""
        self._bench.box = Box(None, None)
        mine = task_id(TaskContext.get(), 0, self._number)
        task = replace(mine, task_attempt=mine.task_attempt + _AHEAD)
        tools = _Tools(toolbox, self._sources, reading)
        passes = toolbox.program.passes[:1]
        with TaskRun(job, toolbox, task, passes, 1, self._bench, tools, held=True) as running:
            running.run.open()
            runs = tuple(running.run.read(pieces))
            (parcel,) = running.parcels(roots_read=runs)
        return parcel


class _Tools:
    """The tools of a lane: sources of its own, of which it reads what others do not, and tables."""

    def __init__(
        self, toolbox: ProcessToolbox, sources: dict[str, Source], reading: SharedReading
    ) -> None:
        self._toolbox = toolbox
        self._sources = sources
        self.intake = Intake(reading, ROWS)

    def function(self, component: Component) -> FunctionSpec:
        raise EngineError(f"{component.name!r} is user code, which runs when its turn has come")

    def source(self, component: Component) -> Source:
        if component.name not in self._sources:
            self._sources[component.name] = make_source(component.connector)
        return self._sources[component.name]

    def sink(self, component: Component) -> Sink:
        raise EngineError(f"{component.name!r} is a sink, which is written when its turn has come")

    def table(self, name: str) -> TableIndex:
        return self._toolbox.table(name)
