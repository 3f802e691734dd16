"""The task that stays: it runs window attempts that are one task each (``jobs.resident``)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from queue import SimpleQueue
from threading import Thread
from typing import Any

from pyspark import TaskContext

from millrace.engine.program.link import Caller, Place, TaskLink, Work, call
from millrace.engine.task.stay.ahead import Aheads, go_on
from millrace.engine.task.stay.lanes import lanes_for
from millrace.engine.task.worker import FirstPass, Job, load_job
from millrace.threads import switch_often

log = logging.getLogger("millrace.worker")


class ResidentTask:
    """Runs window attempts that are one task each, one behind the other, until its driver ends it.

    It connects to its driver at ``place``, as the task ``number``. An attempt that fails ends it
    as it would end a task of its own. The first time Spark runs it once more, and the driver sends
    the attempt again. First passes of attempts whose turn has not come run beside (``ahead``).
    """

    def __init__(self, place: Place, number: int) -> None:
        self._place = place
        self._number = number

    def __call__(self, partition: int, nothing: Iterable[bytes]) -> Iterator[Any]:
        list(nothing)
        switch_often()
        context = TaskContext.get()
        run = context.attemptNumber() if context is not None else 0
        # The connection ends first: the driver need not wait for a first pass that hangs.
        with Aheads() as aheads, call(self._place, Caller(self._number, run)) as driver:
            mail = _Mail(driver, aheads)
            while (work := mail.next()) is not None:
                job = load_job(work.job)
                driver.send("begun", job.plan.id)
                driver.send("made", (job.plan.id, _run(job, work, partition, aheads)))
        return iter(())


def _run(job: Job, work: Work, partition: int, aheads: Aheads) -> list[Any]:
    parcels = aheads.take(job)
    if not parcels and lanes_for(job.plan.intent.roots, work.lanes) > 1:
        # Its turn has come, and nobody has begun with it: cores are free for that.
        aheads.begin(job.plan.id, work)
        parcels = aheads.take(job)
    if parcels:
        return go_on(job, parcels)
    return list(FirstPass(work.job)(partition, [work.share]))


class _Mail:
    """What the driver sends. From the first attempt on that is to be begun ahead a thread reads it,
    also while another one runs; until then the task does so itself, which is sooner."""

    def __init__(self, driver: TaskLink, aheads: Aheads) -> None:
        self._driver = driver
        self._aheads = aheads
        self._inbox: SimpleQueue[Work | BaseException | None] | None = None

    def next(self) -> Work | None:
        """The attempt whose turn has come; None where no more comes. Raises as ``receive``."""
        while self._inbox is None:
            work: Work | None = self._driver.receive("work")
            if work is None or not work.ahead:
                return work
            self._begin(work)
            self._read_on()
        found = self._inbox.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def _read_on(self) -> None:
        inbox: SimpleQueue[Work | BaseException | None] = SimpleQueue()
        reader = Thread(target=self._read, args=(inbox,), name="resident-link", daemon=True)
        try:
            reader.start()
        except RuntimeError as error:
            log.warning("no first pass is begun while another attempt runs: %s", error)
        else:
            self._inbox = inbox

    def _read(self, inbox: SimpleQueue[Work | BaseException | None]) -> None:
        try:
            while (work := self._driver.receive("work")) is not None:
                if work.ahead:
                    self._begin(work)
                else:
                    inbox.put(work)
        except BaseException as error:  # noqa: BLE001 the boundary of a thread: the task raises it
            inbox.put(error)
        else:
            inbox.put(None)

    def _begin(self, work: Work) -> None:
        try:
            self._aheads.begin(load_job(work.job).plan.id, work)
        except Exception as error:  # noqa: BLE001
            # It is worth a try and no more; whatever it was comes again where the attempt is run.
            log.warning("a first pass is not begun ahead: %s", error)
