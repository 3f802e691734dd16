"""A driver that stands by: all of a driver's start that needs no execution, done ahead.

Spark's session is up, its Python workers are forked and have imported the user's code, and they are
kept so. Sources are made and asked for their columns, no more. Nothing is claimed, asked of a
server, read from a source or written where others read: the topology belongs to another driver,
until whoever watches that one says on this process's standard input that it is gone. Then this
process is a driver like any other and claims the next execution before all else (rule 8), so that
the other one is fenced even if it lives after all.

======================  =================================================================
what happens to it      what follows
======================  =================================================================
it dies, waiting        nothing but a slower start, should the driver die before the next
                        one is ready
it dies, told           it is a driver that died: rules 8 to 16
it hangs, told          whoever told it loses patience, kills it and starts a driver
it wakes up late        it claims an execution above all others, which are fenced by that
nobody is left to tell  its standard input ends, and it ends
======================  =================================================================
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from millrace import crash
from millrace.clock import Clock
from millrace.engine.driver.process import Start
from millrace.engine.jobs.runner import AttemptRunner
from millrace.engine.jobs.start import StartedSpark, start_spark
from millrace.engine.task.state import Services
from millrace.errors import MillraceError
from millrace.homes.settings import TAKE_OVER, answer_to
from millrace.homes.told import read_settings, read_topology
from millrace.homes.tuning import same_driver
from millrace.topology.model import StreamTopology

REHEARSALS = 6
"""How often an attempt is rehearsed at first: by then the JVM has compiled what it needs often."""

REHEARSE_EVERY_S = 20.0
"""Spark ends Python workers that had nothing to do for a minute, and the user's code with them."""

_LOOK_S = 1.0


def private_orders() -> int:
    """What was standard input, for this process alone: what it starts reads nothing from there."""
    orders = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return orders


class Standby:
    """``wait`` or ``keep_ready`` from the main thread, once. ``start`` then is a driver's
    (``DriverProcess``).

    ``settings`` is the file that the driver is told by, ``ready`` a file that is made as soon as
    all is up; another one is made beside it when it is told to take over (``answer_to``).
    ``rehearses``: there is somebody to run tasks, so that attempts can be rehearsed.
    Raises ``WorkFolderError``, ``NewerFormatError``.
    """

    def __init__(
        self,
        settings: Path,
        ready: Path,
        clock: Clock,
        start: Start = start_spark,
        *,
        rehearses: bool = True,
    ) -> None:
        self._file = settings
        self._told = told = read_settings(settings)
        self._topology = topology = read_topology(Path(told.topology))
        self._ready = ready
        self._clock = clock
        self._rehearses = rehearses
        self._taking_over = threading.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="standby")
        self._spark: Future[StartedSpark] = self._pool.submit(
            start, topology, told.uid, Path(told.folder), Path(told.workdir)
        )
        self._runner: AttemptRunner | None = None

    def wait(self, orders: int) -> bool:
        """Get ready and stay so; True once this is to be the driver, False if nobody can say so.

        Raises what the start of Spark, the compiler and the user's code raise, and
        ``MillraceError`` where the topology is not the one any more that is ready here.
        """
        poll = select.poll()
        poll.register(orders, select.POLLIN)
        self.keep_ready(lambda timeout_s: bool(poll.poll(timeout_s * 1000)))
        said = os.read(orders, 64)
        if said != TAKE_OVER:
            return False
        # Where that file cannot be made the figures say it, later.
        with suppress(OSError):
            answer_to(self._ready).touch()
        crash.reached("standby.told")
        self._check_topology()
        return True

    def keep_ready(self, ended: Callable[[float], bool]) -> None:
        """Get ready and stay so until ``ended`` says that it is over; that may take as many seconds
        to find out as it is given. Raises what the start of Spark, the compiler and the user's
        code raise."""
        warm = self._pool.submit(self._get_ready)
        rehearsed_s = self._clock.monotonic_s()
        while not ended(_LOOK_S):
            if not warm.done():
                continue
            warm.result()
            if self._rehearses and self._clock.monotonic_s() - rehearsed_s >= REHEARSE_EVERY_S:
                rehearsed_s = self._clock.monotonic_s()
                warm = self._pool.submit(self._rehearse)
        self._taking_over.set()

    def start(self, _topology: StreamTopology, _uid: str, _folder: Path, _: Path) -> StartedSpark:
        """The session and the program, as soon as they are there."""
        return self._spark.result()

    def _get_ready(self) -> None:
        self._spark.result()
        for _ in range(REHEARSALS if self._rehearses else 0):
            if self._taking_over.is_set():
                return
            self._rehearse()
        # The next one makes the same file: nobody may take this one's word for that one's.
        if not self._taking_over.is_set():
            self._ready.touch()
            crash.reached("standby.ready")

    def _rehearse(self) -> None:
        if self._runner is None:
            started = self._spark.result()
            self._runner = AttemptRunner(started.spark, started.program, {}, _no_services)
        self._runner.rehearse()

    def _check_topology(self) -> None:
        told = read_settings(self._file)
        same = replace(told, tuned=self._told.tuned) == self._told
        if not same or not same_driver(self._topology, read_topology(Path(told.topology))):
            raise MillraceError(
                f"{self._file}: the topology has been edited since this driver stands by; "
                "another one has to be started"
            )


def _no_services() -> Services:
    raise AssertionError("a rehearsal asks no server")
