"""A task that stays, so that a small window costs no job of Spark's.

A job has to be made in Python and planned in the JVM, its task sent, started and its result taken
back: that is most of a window of a hundred lines. So one job of one task is kept running, in a slot
of an executor, and windows that are one task go to its worker over a connection
(``engine.program.link``). Such a job is a *stay*::

    none    a small window comes: the job is submitted, its worker connects         -> ready
            it ends before its worker connects: the window is a job of its own      -> none
    ready   a window is sent, its reports come back                                 -> ready
            its worker or executor ends: Spark runs the task once more              -> again
            a larger window or another kit comes, executors are to go: it is ended  -> none
    again   the window under way, if there is one, is sent once more                -> again
            the next window comes: it is ended, and another is begun                -> ready
            its worker ends a second time: the job has failed                       -> none
    any     the attempt that it has is cancelled: so is the job                     -> none

A failed stay is the end of the window attempt only where that has begun as often as Spark would run
a task of its own: what befell the worker before says nothing about its roots. In all other cases
the attempt is a job of its own (``NotResidentError``). After a few stays without a connection, one
behind the other, none is begun for a while: a firewall may be in the way.

Meanwhile it may be told to begin with the first pass of the attempt that comes next
(``task.stay.ahead``); not behind the end of a worker that had one, for a while.

If the driver dies, connections and workers end with it.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import BoundedSemaphore, Condition, Thread, Timer
from typing import TYPE_CHECKING

from millrace.engine.jobs.session import MAX_TASK_FAILURES
from millrace.engine.program.link import Caller, LinkError, Place, TaskLink, Work, answer
from millrace.engine.task.faults import short_reason
from millrace.engine.task.stay.resident import ResidentTask
from millrace.errors import EngineError
from millrace.protocol.types import AttemptId

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger("millrace.driver")

LOST_S = 10.0
"""How long Spark may take to run a task again whose connection has ended, and a task to end that
was told to; it is cancelled then."""

CONNECTED = "small windows run in a task that stays"
"""What a driver logs of the first one."""

TRIES = 3
"""Stays one behind the other without a connection, until none is begun for a while."""

_CLOSE_S = 1.0
"""What a task has to end in when its driver does: Spark's JVM calls it an error if nobody is there
any more to hear of it."""

_SHORTEST_REST_S, _LONGEST_REST_S = 60.0, 3600.0
_SHORTEST_ALONE_S, _LONGEST_ALONE_S = 60.0, 600.0
"""For so long no first pass runs beside another attempt where a worker has ended that had one: each
further time for twice as long."""

_FORGIVEN = 300
"""So many attempts that were begun ahead, and that is as at the beginning."""

_PAUSE_S = 0.1
_GREETINGS = 16
"""So many connections may be about to prove who they are."""


class NotResidentError(EngineError):
    """There is no task that stays; the window is a job of its own."""


class BesideError(EngineError):
    """A worker has ended that had begun with the next attempt beside this one. Which of them it was
    nobody can know, so it says nothing of either: this one is to run again, with none beside it."""


@dataclass(slots=True)
class _Stay:
    """One job of Spark's, from its submission to its end.

    ``runs`` counts Spark's runs of its task up to the last that has connected, ``attempt`` is what
    it works on, ``aheads`` are those whose first pass its worker was to begin with, ``beside``:
    one has ended that had begun with one behind ``attempt``. What is ``doomed`` is not used any
    more.
    """

    number: int
    kit: str
    group: str
    link: TaskLink | None = None
    runs: int = 0
    attempt: AttemptId | None = None
    aheads: set[AttemptId] = field(default_factory=set)
    beside: bool = False
    doomed: bool = False
    over: bool = False
    failure: Exception | None = field(default=None, repr=False)
    ending: Timer | None = None


class Resident:
    """Runs window attempts in a task that stays: ``run`` from one thread, ``end`` from that one or
    when it is done, ``cancel`` and ``close`` from any.

    ``place`` is where it listens for its task, ``name`` what groups of jobs are called.
    """

    def __init__(self, context: SparkContext, place: Place, name: str) -> None:
        self._context = context
        self._place = place
        self._name = name
        self._change = Condition()
        self._greetings = BoundedSemaphore(_GREETINGS)
        self._listener: socket.socket | None = None
        self._stay: _Stay | None = None
        self._newest: _Stay | None = None
        self._begun = 0
        self._misses = 0
        self._rests_until_s = 0.0
        self._alone_until_s, self._alone_s = 0.0, _SHORTEST_ALONE_S
        self._well = 0
        self._closed = False
        self._told = False

    def run(
        self, kit: str, attempt: AttemptId, work: Work, is_cancelled: Callable[[], bool]
    ) -> list[bytes]:
        """What the task made of an attempt.

        Raises ``NotResidentError`` where the attempt has to be a job of its own, else what a job
        would raise; ``EngineError`` where ``is_cancelled`` says that it comes too late.
        """
        if is_cancelled():
            raise EngineError("cancelled")
        stay = self._ready(kit)
        with self._change:
            stay.attempt, stay.beside = attempt, False  # from here on ``cancel`` finds it
        begun = 0
        try:
            while True:
                if is_cancelled():
                    raise EngineError("cancelled")
                link = self._link(stay, begun, is_cancelled)
                try:
                    link.send("work", work)
                    _same(attempt, link.receive("begun"))
                    begun += 1
                    said, made = link.receive("made")
                    _same(attempt, said)
                    self._went_well(stay, attempt)
                    return list(made)
                except LinkError:
                    self._lost(stay, link)
                    if stay.beside and not is_cancelled():
                        text = "its worker has ended, which had begun with the next window, too"
                        raise BesideError(text) from None
        except BaseException:
            self._doom(stay)
            raise
        finally:
            with self._change:
                stay.attempt = None

    def ahead(self, kit: str, attempt: AttemptId, work: Work) -> bool:
        """Have the task begin with the first pass of an attempt whose turn has not come; from any
        thread. Whether it was told: what comes of it shows when the attempt is run."""
        with self._change:
            stay = self._stay
            if stay is None or stay.kit != kit or stay.doomed or stay.runs != 1:
                return False
            link = stay.link
            if link is None or self.alone:
                return False
            stay.aheads.add(attempt)
        try:
            link.send("work", work)
        except LinkError:
            return False
        return True

    @property
    def stays(self) -> bool:
        """Whether there is a task for the next small window."""
        with self._change:
            stay = self._stay
            return stay is not None and stay.link is not None and not stay.doomed

    @property
    def rests(self) -> bool:
        """Whether none is begun for a while."""
        return self._closed or time.monotonic() < self._rests_until_s

    @property
    def alone(self) -> bool:
        """Whether no first pass is begun beside another window for a while."""
        return time.monotonic() < self._alone_until_s

    def cancel(self, attempt: AttemptId) -> None:
        """End the task, if it works on this attempt."""
        with self._change:
            stay = self._stay
            if stay is None or stay.attempt != attempt:
                return
            stay.doomed, self._stay = True, None
        self._cancel_job(stay)

    def end(self) -> None:
        """End the task in order; returns at once."""
        with self._change:
            stay, self._stay = self._stay, None
            if stay is None or stay.over or stay.doomed:
                return
            stay.doomed = True
            link = stay.link
            stay.ending = Timer(LOST_S, self._cancel_job, (stay,))
            stay.ending.daemon = True
        try:
            if link is None:
                raise LinkError("it has not connected")
            link.send("work", None)
            stay.ending.start()
        except (LinkError, RuntimeError):
            self._cancel_job(stay)

    def close(self) -> None:
        """End it, and listen no more; when that is done, or a second later."""
        with self._change:
            self._closed = True
            listener, self._listener = self._listener, None
            newest = self._newest
        self.end()
        if listener is not None:
            _shut(listener)
        if newest is not None:  # it may have been cancelled just now
            with self._change:
                self._change.wait_for(lambda: newest.over, _CLOSE_S)

    # -- the job

    def _ready(self, kit: str) -> _Stay:
        """The stay for a window. Raises ``NotResidentError``."""
        with self._change:
            stay = self._stay
            # One that Spark would run again if its worker ended.
            lasts = stay is not None and not stay.over and stay.runs < MAX_TASK_FAILURES
        if stay is not None and lasts and stay.kit == kit:
            return stay
        self.end()
        if self.rests:
            raise NotResidentError("none is begun for a while")
        try:
            return self._begin(kit)
        except (OSError, RuntimeError) as error:  # no room for a socket or a thread
            self._missed(f"none can be begun: {error}")
            raise NotResidentError(str(error)) from error

    def _begin(self, kit: str) -> _Stay:
        """Raises ``OSError`` and ``RuntimeError``."""
        self._listen()
        self._begun += 1
        number = self._begun
        stay = _Stay(number, kit, f"millrace-{self._name}-resident-{number}")
        with self._change:
            self._stay = self._newest = stay
        try:
            Thread(target=self._job, args=(stay,), name="resident", daemon=True).start()
        except RuntimeError:
            with self._change:
                stay.over, self._stay = True, None
            raise
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
            if link is not None:
                self._worker_ended(stay)
            self._change.notify_all()
        if link is not None:
            link.close()
        if stay.ending is not None:
            stay.ending.cancel()

    def _link(self, stay: _Stay, begun: int, is_cancelled: Callable[[], bool]) -> TaskLink:
        """The connection of its task, when there is one; ``begun``: so often the attempt has."""
        with self._change:
            # The first one has to wait for a slot.
            patience_s = LOST_S if stay.runs else None
            self._change.wait_for(lambda: stay.over or stay.link is not None, patience_s)
            if stay.link is not None and not stay.doomed:
                self._misses = 0
                if not self._told:
                    log.info(CONNECTED)
                    self._told = True
                return stay.link
        if is_cancelled():
            raise EngineError("cancelled")
        if begun >= MAX_TASK_FAILURES:
            raise stay.failure or EngineError("the task has ended")
        if not (stay.runs or stay.doomed):
            self._missed(f"its task has not connected: {short_reason(str(stay.failure))}")
        raise NotResidentError("its task has ended")

    def _lost(self, stay: _Stay, link: TaskLink) -> None:
        link.close()
        with self._change:
            if stay.link is link:
                stay.link = None
                self._worker_ended(stay)

    def _worker_ended(self, stay: _Stay) -> None:
        """One run of its task is over, and what its worker had begun with is gone; that may have
        been what it died of, as for want of memory. Once for each run."""
        if stay.aheads and not stay.doomed:
            self._alone_until_s = time.monotonic() + self._alone_s
            self._alone_s, self._well = min(2 * self._alone_s, _LONGEST_ALONE_S), 0
        mine = stay.attempt
        stay.beside = mine is not None and any(a.window > mine.window for a in stay.aheads)
        stay.aheads.clear()

    def _went_well(self, stay: _Stay, attempt: AttemptId) -> None:
        with self._change:
            self._well += attempt in stay.aheads
            if self._well >= _FORGIVEN:
                self._alone_s = _SHORTEST_ALONE_S
            stay.aheads = {a for a in stay.aheads if a.window > attempt.window}

    def _missed(self, why: str) -> None:
        self._misses += 1
        if self._misses >= TRIES:
            rest_s = min(_LONGEST_REST_S, _SHORTEST_REST_S * 2 ** (self._misses - TRIES))
            self._rests_until_s = time.monotonic() + rest_s
            log.warning(
                "small windows are Spark jobs of their own for %.0f s, a task that stays is not to "
                "be had: %s",
                rest_s,
                why,
            )

    def _doom(self, stay: _Stay) -> None:
        """Nothing runs in it any more."""
        with self._change:
            stay.doomed = True
            if self._stay is stay:
                self._stay = None
        self._cancel_job(stay)

    def _cancel_job(self, stay: _Stay) -> None:
        if stay.over:
            return
        try:
            # It may be about to be submitted.
            self._context._jsc.sc().cancelJobGroupAndFutureJobs(stay.group)
        except Exception as error:  # noqa: BLE001
            # In a JVM that is gone nothing runs any more, which the attempt hears from its job.
            log.info("what ran in a task that stays is not cancelled: %s", error)

    # -- connections

    def _listen(self) -> None:
        """Raises ``OSError`` and ``RuntimeError``."""
        if self._listener is not None:
            return
        listener = self._place.listen()
        try:
            thread = Thread(
                target=self._accept, args=(listener,), name="resident-links", daemon=True
            )
            with self._change:
                self._listener = listener
            thread.start()
        except BaseException:
            self._listener = None
            listener.close()
            raise

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
            if not self._greetings.acquire(blocking=False):
                log.warning("a connection is refused: %d others prove who they are", _GREETINGS)
                connection.close()
                continue
            try:
                Thread(target=self._greet, args=(connection,), name="greeting", daemon=True).start()
            except RuntimeError:
                self._greetings.release()
                connection.close()

    def _greet(self, connection: socket.socket) -> None:
        try:
            link, caller = answer(connection)
        except Exception as error:  # noqa: BLE001
            # The boundary of a thread: whoever it was, others are listened to.
            log.warning("a connection is not of this run: %s", error)
            connection.close()
            return
        finally:
            self._greetings.release()
        self._connected(link, caller)

    def _connected(self, link: TaskLink, caller: Caller) -> None:
        """A task has connected; an earlier run of it gets nothing any more."""
        old: TaskLink | None = link
        with self._change:
            stay = self._stay
            mine = stay is not None and not stay.over and stay.number == caller.number
            if stay is not None and mine and caller.run + 1 >= stay.runs:
                if stay.link is not None:
                    self._worker_ended(stay)
                old, stay.link = stay.link, link
                stay.runs = caller.run + 1
                self._change.notify_all()
        if old is not None:
            old.close()


def _same(attempt: AttemptId, said: AttemptId) -> None:
    if said != attempt:
        raise EngineError(f"the task answered with attempt {said} instead of {attempt}")


def _shut(listener: socket.socket) -> None:
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)  # wakes who waits for a connection
    listener.close()
