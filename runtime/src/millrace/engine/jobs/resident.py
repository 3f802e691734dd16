"""A task that stays, so that a small window costs no job of Spark's.

Of a window of a hundred lines most was the job: made in Python, planned in the JVM, its task sent,
started and its result taken back. So one job of one task is kept running, in a slot of an executor,
and windows that are one task go to its worker over a connection (``engine.program.link``)::

    none      a small window comes: the job is submitted, its worker connects     -> ready
    ready     a window is sent, its reports come back                              -> ready
              a larger window comes, or another kit: it is ended in order          -> none
              its worker or executor ends: Spark runs the task once more           -> ready, again
    again     the window under way is sent once more; when it is done: ended       -> none
              its worker ends a second time: the job has failed, and the window
              attempt with it, exactly as one that was a job of its own            -> none
    any       the attempt is cancelled: the job is, and the attempt has failed     -> none

If the driver dies, connections and workers end with it. Who cannot be reached by its worker (a
firewall, say) is told so by a job that failed before it connected, and runs jobs of their own.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import TYPE_CHECKING

from millrace.engine.program.link import Caller, LinkError, Place, TaskLink, Work, answer
from millrace.engine.task.worker import ResidentTask
from millrace.errors import EngineError
from millrace.protocol.types import AttemptId

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger("millrace.driver")

_TRIES = 3
"""Tasks one behind the other that did not connect, until no more are begun."""

_PAUSE_S = 0.1


class NotResidentError(EngineError):
    """There is no task that stays; the window is a job of its own."""


@dataclass(slots=True)
class _Stay:
    """One job of Spark's, from its submission to its end."""

    number: int
    kit: str
    group: str
    link: TaskLink | None = None
    runs: int = 0
    """How often Spark has begun its task, as far as it has connected."""
    attempt: AttemptId | None = None
    over: bool = False
    failure: Exception | None = field(default=None, repr=False)


class Resident:
    """Runs window attempts in a task that stays: ``run`` and ``end`` from one thread, ``cancel``
    from any.

    ``place`` is where it listens for its task, ``name`` what groups of jobs are called.
    """

    def __init__(self, context: SparkContext, place: Place, name: str) -> None:
        self._context = context
        self._place = place
        self._name = name
        self._change = Condition()
        self._listener: socket.socket | None = None
        self._stay: _Stay | None = None
        self._begun = 0
        self._misses = 0

    def run(
        self, kit: str, attempt: AttemptId, work: Work, is_cancelled: Callable[[], bool]
    ) -> list[bytes]:
        """What the task made of an attempt.

        Raises ``NotResidentError`` where none could be had, else what a job would raise; also
        where ``is_cancelled`` says, when the task is ready, that it comes too late.
        """
        stay = self._ready(kit)
        with self._change:
            stay.attempt = attempt
        try:
            while True:
                link = self._link(stay)
                if is_cancelled():
                    raise EngineError("cancelled")
                try:
                    link.send("work", work)
                    made = link.receive("made")
                except LinkError:
                    self._lost(stay, link)
                    continue
                if made is None or made[0] != attempt:
                    raise EngineError(f"the task answered with another attempt than {attempt}")
                return list(made[1])
        except BaseException:
            self._cancel(stay)
            raise
        finally:
            with self._change:
                stay.attempt = None
            if stay.runs > 1:
                self.end()  # one that Spark would run no second time

    def cancel(self, attempt: AttemptId) -> None:
        """End the task, if it works on this attempt."""
        with self._change:
            stay = self._stay
            works = stay is not None and stay.attempt == attempt
        if stay is not None and works:
            self._cancel(stay)

    def end(self) -> None:
        """End the task in order, as soon as it is idle; returns at once."""
        with self._change:
            stay, self._stay = self._stay, None
            link = stay.link if stay is not None else None
        if stay is None or stay.over:
            return
        try:
            if link is None:
                raise LinkError("it has not connected")
            link.send_end()
        except LinkError:
            self._cancel(stay)

    def close(self) -> None:
        """End it, and listen no more."""
        self.end()
        with self._change:
            listener, self._listener = self._listener, None
            self._misses = _TRIES
        if listener is not None:
            _shut(listener)

    # -- the job

    def _ready(self, kit: str) -> _Stay:
        stay = self._stay
        if stay is not None and (stay.over or stay.kit != kit or stay.runs > 1):
            self.end()
            stay = None
        if stay is None:
            if self._misses >= _TRIES:
                raise NotResidentError("no task has connected")
            stay = self._begin(kit)
        return stay

    def _begin(self, kit: str) -> _Stay:
        self._listen()
        self._begun += 1
        number = self._begun
        stay = _Stay(number, kit, f"millrace-{self._name}-resident-{number}")
        with self._change:
            self._stay = stay
        Thread(target=self._job, args=(stay,), name="resident", daemon=True).start()
        return stay

    def _job(self, stay: _Stay) -> None:
        failure: Exception | None = None
        try:
            self._context.setJobGroup(stay.group, stay.group, interruptOnCancel=True)
            entry = ResidentTask(self._place, stay.number)
            rdd = self._context.parallelize([b""], 1).mapPartitionsWithIndex(entry)
            rdd._bypass_serializer = True
            rdd._jrdd.collectAsync().get()
        except Exception as error:  # noqa: BLE001
            # The boundary of a thread: the attempt that waits for it raises it.
            failure = error
        with self._change:
            stay.over, stay.failure = True, failure
            link, stay.link = stay.link, None
            self._change.notify_all()
        if link is not None:
            link.close()

    def _link(self, stay: _Stay) -> TaskLink:
        """The connection of its task, when there is one."""
        with self._change:
            self._change.wait_for(lambda: stay.over or stay.link is not None)
            if stay.link is not None and not stay.over:
                self._misses = 0
                return stay.link
            if stay.runs:
                raise stay.failure or EngineError("the task has ended")
            self._misses += 1
            missed = f"the task has not connected: {stay.failure}"
            if self._misses == _TRIES:
                log.warning("small windows are jobs of their own: %s", missed)
        raise NotResidentError(missed) from stay.failure

    def _lost(self, stay: _Stay, link: TaskLink) -> None:
        link.close()
        with self._change:
            if stay.link is link:
                stay.link = None

    def _cancel(self, stay: _Stay) -> None:
        with self._change:
            if stay.over:
                return
        # It may be about to be submitted.
        self._context._jsc.sc().cancelJobGroupAndFutureJobs(stay.group)

    # -- connections

    def _listen(self) -> None:
        if self._listener is not None:
            return
        try:
            listener = self._place.listen()
        except OSError as error:
            self._misses = _TRIES
            log.warning("small windows are jobs of their own: nobody can connect: %s", error)
            raise NotResidentError(str(error)) from error
        self._listener = listener
        Thread(target=self._accept, args=(listener,), name="resident-links", daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                if self._listener is not listener:
                    return
                log.exception("waiting for tasks to connect")
                time.sleep(_PAUSE_S)
                continue
            try:
                link, caller = answer(connection)
            except EngineError as error:
                log.warning("a connection is not of this run: %s", error)
                connection.close()
                continue
            self._greet(link, caller)

    def _greet(self, link: TaskLink, caller: Caller) -> None:
        """A task has connected; an earlier run of it is over, whatever became of it."""
        with self._change:
            stay = self._stay
            if stay is None or stay.over or stay.number != caller.number:
                old: TaskLink | None = link
            else:
                old, stay.link = stay.link, link
                stay.runs = max(stay.runs, caller.run + 1)
                self._change.notify_all()
        if old is not None:
            old.close()


def _shut(listener: socket.socket) -> None:
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)  # wakes who waits for a connection
    listener.close()
