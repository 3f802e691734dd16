"""Keeps a driver ready beside the one that runs, to take over the moment that one is gone.

===============================  ===============================================================
what happens                     what follows
===============================  ===============================================================
a driver has sealed a window,    one is started that stands by: two that start beside each other
or has nothing to do             would both be late
the driver ends                  the one that stands by is told to take over, ready or not, and
                                 has the driver's post from then on; the next one is started
                                 when it has sealed a window
it does not answer, told         it is killed, as a driver that ended: another one is started
the one that stands by ends, or  it is started again, after longer and longer waits where none
cannot be started                of them gets ready; the run goes on without
memory is short                  none is started; the kernel ends it before the others; where one
                                 or the driver dies soon after its start, and the kernel has ended
                                 something for want of memory, the next one waits longer
the run ends                     it is killed: it holds nothing
===============================  ===============================================================

The driver's end is seen, never guessed: nobody is told to take over from one that may only be slow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from millrace.clock import Clock
from millrace.homes.documents import Status
from millrace.homes.restarts import (
    STANDBY_DELAYS_S,
    STANDBY_EARLY_PATIENCE_S,
    STANDBY_PATIENCE_S,
    wait_s,
)
from millrace.homes.settings import TAKE_OVER, answer_to
from millrace.local.children import ProcessSpec
from millrace.local.crew import Crew, Death
from millrace.local.standby.memory import killed_for_memory, room_bytes, treat_like_guard
from millrace.state.client import StateAddress

STANDBY = "standby"

IDLE_S = 1.0
"""So long has a driver that has recovered nothing to do, before the next one is started."""

SOON_S = 60.0
"""Who dies so soon after one was begun, while the kernel ended processes for want of memory, died
of that start. The first time may be chance; from then on the waits are those above."""

Tell = Callable[[str, str], object]
"""Tells of an event: its kind and its text."""


class StandbyKeeper:
    """Used from the supervisor's main thread; the processes are the crew's.

    ``spec`` gives the specification of the process for the servers at hand, None keeps no driver
    ready. ``driver`` is the name of the driver's post, ``status`` reads the driver's figures;
    ``needed_bytes`` of memory must be there before one is started, as far as ``room`` can tell;
    ``killed`` counts what the kernel has ended for want of it.
    """

    def __init__(
        self,
        spec: Callable[[Sequence[StateAddress]], ProcessSpec] | None,
        crew: Crew,
        driver: str,
        status: Callable[[], Status],
        clock: Clock,
        tell: Tell,
        warn: Tell,
        needed_bytes: int = 0,
        room: Callable[[], int | None] = room_bytes,
        killed: Callable[[], int | None] = killed_for_memory,
    ) -> None:
        self._spec = spec
        self._crew = crew
        self._driver = driver
        self._status = status
        self._clock = clock
        self._tell = tell
        self._warn = warn
        self._needed_bytes = needed_bytes
        self._room = room
        self._killed = killed
        self._lacks_room = False
        self._fruitless = 0
        self._due_s = 0.0
        self._begun: tuple[float, int | None] | None = None
        self._cost = 0
        self._ready = False
        self._idle_s: float | None = None
        self._told: tuple[int, float] | None = None
        self._answer: Path | None = None

    def look(self, addresses: Sequence[StateAddress], sealed_before: int) -> None:
        """Start one where it is time, and watch whom was told to take over; ``sealed_before`` is
        the last window that was sealed when the driver began."""
        if self._spec is None:
            return
        if self._told is not None:
            self._look_at_heir(*self._told)
        if self._crew.child(STANDBY) is not None:
            self._idle_s = None
            self._crew.want(self._spec(addresses), {})  # another one where that has changed
            self._look_whether_ready()
        elif (
            self._driver_works(sealed_before)
            and self._clock.monotonic_s() >= self._due_s
            and self._has_room()
        ):
            self._ready = False
            self._begun = (self._clock.monotonic_s(), self._killed())
            self._crew.want(self._spec(addresses), {})

    def take_over(self) -> int:
        """The driver is gone: tell the one that stands by, and give it the driver's post.

        Its pid, or 0 where there is none.
        """
        self._judge_start()
        now_s = self._clock.monotonic_s()
        self._due_s = max(self._due_s, now_s + self._pause_s())
        if self._crew.child(STANDBY) is None:
            return 0
        ready = self._crew.posts[STANDBY].spec.ready
        assert ready is not None
        self._answer = answer_to(ready)
        with suppress(OSError):
            self._answer.unlink(missing_ok=True)
        patience_s = STANDBY_PATIENCE_S if ready.exists() else STANDBY_EARLY_PATIENCE_S
        child = self._crew.hand_over(STANDBY, self._driver)
        # Before it claims anything: from then on the run depends on it.
        treat_like_guard(child.guard)
        child.order(TAKE_OVER)
        self._told = (child.pid, now_s + patience_s)
        self._fruitless, self._due_s = 0, now_s + self._pause_s()
        return child.pid

    def ended(self, death: Death) -> None:
        """One that stood by has ended: without progress each further start waits longer."""
        self._look_whether_ready()
        # Where memory runs out it is the first to be killed, ready or not.
        self._judge_start()
        pause_s = self._wait(0 if self._ready else self._fruitless + 1, self._pause_s())
        why = f": {death.cause}" if death.cause and death.code > 0 else ""
        self._warn(
            "StandbyEnded",
            f"the driver that stands by (process {death.pid}) ended with {death.how}{why}; "
            f"another one is started{f' in {pause_s:g} s' if pause_s else ''}",
        )

    def not_started(self, error: Exception) -> None:
        """One that was to stand by could not even be started, which ends nothing."""
        wait_s = self._wait(self._fruitless + 1)
        self._warn(
            "StandbyEnded",
            f"a driver that is to stand by cannot be started: {error}; that is tried again in "
            f"{wait_s:g} s",
        )

    def dismiss(self) -> None:
        """End it, and start none any more: the run ends."""
        self._spec = None
        if STANDBY in self._crew.posts:
            self._crew.end([STANDBY], 0.0)

    def _driver_works(self, sealed_before: int) -> bool:
        driver, status = self._crew.child(self._driver), self._status()
        if driver is None or status.pid != driver.pid or status.spark != "running":
            self._idle_s = None
            return False
        if (status.sealed or 0) > sealed_before:
            return True
        # One that recovers, or waits before it tries a window again, has no window either.
        idle = status.state == "running" and status.window is None and not status.lag_records
        now_s = self._clock.monotonic_s()
        if not idle:
            self._idle_s = None
        elif self._idle_s is None:
            self._idle_s = now_s
        return self._idle_s is not None and now_s - self._idle_s >= IDLE_S

    def _judge_start(self) -> None:
        """Whether the last start cost a life, its own or the driver's: count those in a row."""
        if self._begun is None:
            return
        (begun_s, before), self._begun = self._begun, None
        now = self._killed()
        for_memory = before is None or now is None or now > before
        soon = self._clock.monotonic_s() - begun_s < SOON_S
        self._cost = self._cost + 1 if soon and for_memory else 0

    def _pause_s(self) -> float:
        """What the starts that cost a life ask for."""
        return wait_s(STANDBY_DELAYS_S, max(0, self._cost - 1))

    def _wait(self, fruitless: int, least_s: float = 0.0) -> float:
        """Start none for a while, after so many in a row that did not get ready; how long."""
        self._fruitless = fruitless
        now_s = self._clock.monotonic_s()
        self._due_s = max(self._due_s, now_s + max(wait_s(STANDBY_DELAYS_S, fruitless), least_s))
        return self._due_s - now_s

    def _has_room(self) -> bool:
        room = self._room() if self._needed_bytes else None
        lacks = room is not None and room < self._needed_bytes
        if lacks:
            self._due_s = self._clock.monotonic_s() + STANDBY_DELAYS_S[1]
        if lacks and not self._lacks_room:
            self._warn(
                "StandbyLacksRoom",
                f"no driver stands by: {(room or 0) >> 20} MiB of memory are free here, and its "
                f"heap alone takes {self._needed_bytes >> 20} MiB (spec.spark.driver.memory); one "
                "is started when there is room",
            )
        self._lacks_room = lacks
        return not lacks

    def _look_whether_ready(self) -> None:
        post = self._crew.posts[STANDBY]
        if self._ready or post.spec.ready is None or not post.spec.ready.exists():
            return
        self._ready, self._fruitless = True, 0
        if post.child is not None:
            self._tell("StandbyReady", f"a driver stands by (process {post.child.pid})")

    def _look_at_heir(self, pid: int, until_s: float) -> None:
        driver = self._crew.child(self._driver)
        answered = self._answer is not None and self._answer.exists()
        if driver is None or driver.pid != pid or answered or self._status().pid == pid:
            # From now on it is a driver like any other: nobody judges how fast that is.
            self._told = None
        elif self._clock.monotonic_s() >= until_s:
            self._told = None
            self._warn(
                "StandbySilent",
                f"process {pid} stood by and does not take over; it is killed, and a driver is "
                "started",
            )
            driver.kill()
