"""The task that stays: it runs window attempts that are one task each (``jobs.resident``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from queue import SimpleQueue
from threading import Thread
from typing import Any

from pyspark import TaskContext

from millrace.engine.program.link import Caller, Place, TaskLink, Work, call
from millrace.engine.task.stay.ahead import Aheads, go_on
from millrace.engine.task.worker import FirstPass, load_job

Inbox = SimpleQueue[Work | BaseException | None]
"""Attempts whose turn has come, ``None`` behind the last, or why no more comes."""


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
        context = TaskContext.get()
        run = context.attemptNumber() if context is not None else 0
        with call(self._place, Caller(self._number, run)) as driver, Aheads() as aheads:
            inbox: Inbox = SimpleQueue()
            reading = (driver, inbox, aheads)
            Thread(target=_read, args=reading, name="resident-link", daemon=True).start()
            while (work := _next(inbox)) is not None:
                attempt = load_job(work.job).plan.id
                driver.send("begun", attempt)
                driver.send("made", (attempt, _run(work, partition, aheads)))
        return iter(())


def _run(work: Work, partition: int, aheads: Aheads) -> list[Any]:
    job = load_job(work.job)
    parcel = aheads.take(job)
    if parcel is not None:
        return go_on(job, parcel)
    return list(FirstPass(work.job)(partition, [work.share]))


def _read(driver: TaskLink, inbox: Inbox, aheads: Aheads) -> None:
    """Take what the driver sends, also while an attempt runs."""
    try:
        while (work := driver.receive("work")) is not None:
            if work.ahead:
                aheads.begin(work)
            else:
                inbox.put(work)
    except BaseException as error:  # noqa: BLE001 the boundary of a thread: the task raises it
        inbox.put(error)
    else:
        inbox.put(None)


def _next(inbox: Inbox) -> Work | None:
    found = inbox.get()
    if isinstance(found, BaseException):
        raise found
    return found
