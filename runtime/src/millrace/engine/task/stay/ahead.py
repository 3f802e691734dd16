"""First passes of window attempts whose turn has not come, beside the task that runs another one.

Such a pass reads input and runs compiled steps up to where tuples are combined by key; it keeps no
state, shows nothing and calls no code of the user's (``jobs.firstpass``). It is a task of its own
to the ackers, and what it made waits in memory for the passes behind it, which run when the
attempt's turn has come. It is worth a try and no more: one that fails, or takes too long, is left
out of the account, and the attempt runs as if there had been none, with its notes and time-outs.

It works on a second thread, with notes that nobody reads: whatever ends the process meanwhile is
told of the attempt whose turn it is. So a driver takes such an end for one that says nothing of
either (``jobs.resident.BesideError``).
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from dataclasses import replace
from typing import Self

from pyspark import TaskContext

from millrace import crash
from millrace.engine.program.link import Work
from millrace.engine.program.program import Component
from millrace.engine.task.blackbox import Box
from millrace.engine.task.exchange import Parcel
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

_AHEAD = 1 << 40
"""Added to the number of Spark's task: the attempt may run as a whole in that very task, and is
another one to the ackers then. Spark counts its tasks from 0."""


class Aheads:
    """First passes, one behind the other, on one thread. ``begin`` from any thread, ``take`` and
    the end from one other."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._begun: dict[AttemptId, Future[Parcel]] = {}
        self._side = _Side()
        self._stuck = False
        """A pass has taken too long: whatever would come behind it had to wait, too."""

    def begin(self, attempt: AttemptId, work: Work) -> None:
        """Raises ``RuntimeError`` where no thread can be had."""
        if not self._stuck:
            self._begun[attempt] = self._thread.submit(self._side.first_pass, work)

    def take(self, job: Job) -> Parcel | None:
        """What the first pass of an attempt made; None where there was none, or nothing came of it.

        Waits for it, as long as one tuple may take. Those of windows before are forgotten.
        """
        mine = self._begun.pop(job.plan.id, None)
        for attempt in list(self._begun):  # another thread may add to them
            if attempt.window <= job.plan.id.window:
                self._begun.pop(attempt).cancel()
        if mine is None or self._stuck:
            return None
        try:
            return mine.result(toolbox_of(job).program.tuple_timeout_s)
        except LateError:
            self._stuck = True
            log.warning(
                "the first pass of %s, begun ahead, takes too long; none is in this task any more",
                job.plan.id,
            )
        except Exception as error:  # noqa: BLE001
            # Whatever it was comes again where the attempt is run, and is told there.
            log.info("the first pass of %s was begun ahead in vain: %s", job.plan.id, error)
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)


def go_on(job: Job, parcel: Parcel) -> list[bytes]:
    """Run all passes of an attempt behind its first one; the encoded reports of both tasks."""
    with marked_errors(job.plan.id), TaskRun.of_spark(job, 1, 0) as running:
        running.run.open()
        running.run.receive([parcel])
        made = running.complete((parcel.header.task,), relayed=parcel.header.reports)
    return [encode_reports(made)]


class _Side:
    """Where first passes run: what they would share with the task's own is their own here."""

    def __init__(self) -> None:
        self._bench = Bench(Box(None, None))
        """Of each pass in turn; its notes nobody reads."""
        self._sources: dict[str, Source] = {}

    def first_pass(self, work: Work) -> Parcel:
        """Run the first pass of an attempt, and tell the ackers; what it made."""
        job = load_job(work.job)
        toolbox = toolbox_of(job)
        toolbox.memory.check()
        self._bench.box = Box(None, None)
        mine = task_id(TaskContext.get(), 0, 0)
        task = replace(mine, task_attempt=mine.task_attempt + _AHEAD)
        tools = _Tools(toolbox, self._sources)
        passes = toolbox.program.passes[:1]
        with TaskRun(job, toolbox, task, passes, 1, self._bench, tools) as running:
            running.run.open()
            runs = tuple(running.run.read(decode_pieces(work.share)))
            (parcel,) = running.parcels(roots_read=runs)
        crash.reached("worker.ahead")
        return parcel


class _Tools:
    """The tools of a first pass: sources of its own, and tables."""

    def __init__(self, toolbox: ProcessToolbox, sources: dict[str, Source]) -> None:
        self._toolbox = toolbox
        self._sources = sources

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
