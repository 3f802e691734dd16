"""Threads beside the driver's loop, each of which does its errands one after the other.

The loop never waits for a server, a file system or anyone's code: what blocks is an errand, and its
answer comes back as an event. Errands of one thread are done in the order in which they were asked
for, so the order of record writes at each state server is the order in which the machine asked.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Hashable

from millrace.errors import EngineError, error_text
from millrace.protocol import events as e
from millrace.protocol.types import Member
from millrace.protocol.windows.decide import BREAKAGE_PAUSES_S

Work = Callable[[], list[e.Event]]

MOST_IN_A_ROW = len(BREAKAGE_PAUSES_S) + 1
"""How often in a row what nobody thought of may go wrong, as for attempts of a window."""

GIVE_WAY_S = 0.005
"""What can wait gives way for so long at most: more than sinks and servers take that are near, and
less than a window does."""


class Patience:
    """Bounds how often something is tried again that fails in a way that nobody thought of.

    Two threads at once may count one failure too few: it comes again.
    """

    def __init__(self) -> None:
        self._failures = 0

    def worked(self) -> None:
        """It went as it may go, well or not: what was before is forgiven."""
        self._failures = 0

    def failed(self, what: str, error: BaseException) -> EngineError | None:
        """It failed; the error to end with once that is too often."""
        self._failures += 1
        if self._failures < MOST_IN_A_ROW:
            return None
        return EngineError(f"{what} failed {self._failures} times in a row: {error_text(error)}")


class Foreground:
    """What somebody waits for in this process just now: an attempt on its way to its task, a sealed
    window on its way to the sinks. Safe from any thread.

    One thread of Python works at a time, so what can wait calls ``give_way`` before it works.
    """

    def __init__(self) -> None:
        self._under_way: set[Hashable] = set()
        self._change = threading.Condition()

    def began(self, what: Hashable) -> None:
        with self._change:
            self._under_way.add(what)

    def over(self, what: Hashable) -> None:
        """It is over, or about to wait for another process; told twice it is over still."""
        with self._change:
            self._under_way.discard(what)
            if not self._under_way:
                self._change.notify_all()

    def give_way(self) -> None:
        """Wait until nothing is under way, ``GIVE_WAY_S`` at most."""
        with self._change:
            self._change.wait_for(lambda: not self._under_way, GIVE_WAY_S)


def as_failure(error: BaseException) -> Exception:
    """What the driver ends with for it: no code that runs on a thread may end the process."""
    return error if isinstance(error, Exception) else EngineError(error_text(error))


class Errands:
    """One thread. ``do`` and ``stop`` are for one thread, the loop's.

    ``post`` takes answers. ``fail`` takes an exception that an errand ended with: the driver
    cannot go on. The thread ends with its process, whatever it hangs in.
    """

    def __init__(
        self, name: str, post: Callable[[e.Event], None], fail: Callable[[Exception], None]
    ) -> None:
        self._name = name
        self._post = post
        self._fail = fail
        self._queue: queue.SimpleQueue[tuple[Hashable, Work] | None] = queue.SimpleQueue()
        self._known: set[Hashable] = set()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def do(self, key: Hashable, work: Work) -> None:
        """Do ``work`` after what was asked for before, and post what it answers.

        What waits or is under way already, by its ``key``, is not done twice: the machine asks
        again for whatever is unanswered.
        """
        if self._stopped or key in self._known:
            return
        self._known.add(key)
        self._queue.put((key, work))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Begin nothing more; what is under way is like a message on its way, and not awaited."""
        self._stopped = True
        self._queue.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait, behind ``stop``, for what is under way."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            errand = self._queue.get()
            if errand is None or self._stopped:
                return
            key, work = errand
            try:
                answers = work()
            except BaseException as error:  # noqa: BLE001 as of any thread: the loop raises it
                self._fail(as_failure(error))
                return
            finally:
                # Before the answer is known: who asks again because of it must be heard.
                self._known.discard(key)
            for event in answers:
                self._post(event)


class Couriers:
    """A thread for each state server, so that one that is slow holds up none of the others."""

    def __init__(self, post: Callable[[e.Event], None], fail: Callable[[Exception], None]) -> None:
        self._post = post
        self._fail = fail
        self._to: dict[Member, Errands] = {}

    def to(self, member: Member) -> Errands:
        """The thread of one incarnation. That of the one before goes on, since a view that changes
        asks both; those before it end."""
        if member not in self._to:
            before = [one for one in self._to if one.name == member.name]
            for one in before[:-1]:
                self._to.pop(one).stop()
            self._to[member] = Errands(f"to-{member.name}", self._post, self._fail)
        return self._to[member]

    def stop(self) -> None:
        for errands in self._to.values():
            errands.stop()
