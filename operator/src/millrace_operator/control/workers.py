"""Those who work the queue off, and the look at all topologies that watches cannot take away.

A watch may be silent without anybody noticing. So every ``LOOK_S`` all topologies are listed and
looked at, by the same threads and through the same queue: as long as that goes on, reconciliation
turns, and what a watch hears only makes it faster.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from enum import Enum
from http import HTTPStatus
from typing import Final

from millrace.clock import Clock
from millrace.errors import MillraceError
from millrace.homes.stores import HomeAwayError
from millrace_operator.control.logs import about
from millrace_operator.control.metrics import Ended, Standings, Turns
from millrace_operator.control.queue import WorkQueue
from millrace_operator.control.reconciler import Reconciler
from millrace_operator.kube.acting import NotLeadingError
from millrace_operator.kube.objects import Objects, RefusedError, StaleError
from millrace_operator.kube.observing import Key, Orphans, awaited, topologies

log = logging.getLogger(__name__)

LOOK_S = 30.0
ORPHANS_S = 1.0
"""So long after one was heard of, all snapshots without a topology are looked at together."""

WORKERS = 4
_END_S = 20.0


class Everything(Enum):
    """The key under which all topologies are looked at."""

    ALL = "all topologies"

    def __str__(self) -> str:
        return self.value


ALL: Final = Everything.ALL
Work = Key | Orphans | Everything
Queue = WorkQueue[Work]


class Workers:
    """``start`` and ``stop`` from one thread; the rest from any."""

    def __init__(
        self,
        queue: Queue,
        reconciler: Reconciler,
        objects: Objects,
        namespaces: Sequence[str],
        clock: Clock,
    ) -> None:
        self._queue = queue
        self._reconciler = reconciler
        self._objects = objects
        self._namespaces = tuple(namespaces)
        self._clock = clock
        self.turns, self.standings = Turns(clock), Standings()
        self._threads: list[threading.Thread] = []
        self._looked_s = self._moved_s = float("-inf")
        self._listed_s = float("-inf")
        self._own = threading.local()

    def start(self, count: int = WORKERS) -> None:
        self._looked_s = self._moved_s = self._clock.monotonic_s()
        self.turns.begin()
        self._queue.add(ALL)
        for number in range(count):
            thread = threading.Thread(target=self._work, name=f"worker-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> bool:
        """Let work under way come to its end; whether it did in time."""
        self._queue.close()
        end_s = self._clock.monotonic_s() + _END_S
        for thread in self._threads:
            thread.join(max(0.0, end_s - self._clock.monotonic_s()))
        return not any(thread.is_alive() for thread in self._threads)

    def started(self) -> bool:
        """Whether there is work that could hang."""
        return self._looked_s > float("-inf")

    def looked_ago_s(self) -> float:
        """Seconds since all topologies were asked for last, with whatever answer."""
        return self._clock.monotonic_s() - self._looked_s

    def listed_ago_s(self) -> float:
        """Seconds since they were all listed last."""
        return self._clock.monotonic_s() - self._listed_s

    def moved_ago_s(self) -> float:
        """Seconds since work of any kind went on, or came to its end, last."""
        return self._clock.monotonic_s() - self._moved_s

    def beat(self) -> None:
        """The work of this thread, if it has any, was answered by the API server, or was told that
        no answer comes."""
        key: Work | None = getattr(self._own, "key", None)
        if key is not None:
            self._moved_s = self._clock.monotonic_s()
            self._queue.beat(key)

    def _work(self) -> None:
        while (key := self._queue.take()) is not None:
            with about(key):
                self.turn(key)

    def turn(self, key: Work) -> None:
        """One turn for a key that was taken; whatever happens, it is given back."""
        start_s = self._clock.monotonic_s()
        self._own.key = key
        ended = Ended.BUG
        try:
            ended = self._do(key)
        except NotLeadingError:
            ended = Ended.NOT_LEADING
        except StaleError as error:
            ended = Ended.STALE
            log.info("%s: %s; looked at again", key, error)
        except HomeAwayError as error:
            ended = Ended.AWAY
            log.warning("%s: %s", key, error)
            if error.status == HTTPStatus.INTERNAL_SERVER_ERROR:
                # As for what an admission webhook is to be asked about that is not there.
                self._tell(key, error)
        except MillraceError as error:
            ended = Ended.FAILED
            log.error("%s: %s", key, error)
            self._tell(key, error)
        except Exception:
            # The boundary of a thread: other topologies do not wait for what is wrong with one.
            log.exception("%s", key)
        finally:
            self._own.key = None
            self._moved_s = self._clock.monotonic_s()
            if ended in (Ended.DONE, Ended.NOT_LEADING):
                self._queue.done(key)
            else:
                self._queue.failed(key)
            if isinstance(key, Everything):
                self.turns.listed(ended)
            elif isinstance(key, Key):
                self.turns.reconciled(ended, self._clock.monotonic_s() - start_s)

    def _do(self, key: Work) -> Ended:
        match key:
            case Key():
                return self._reconcile(key)
            case Orphans(namespace):
                self._reconciler.tell_orphans(namespace)
            case Everything():
                return self._look()
        return Ended.DONE

    def _look(self) -> Ended:
        """At each namespace by itself: with one that is deleted go the rights in it, and the others
        do not wait for it."""
        self._looked_s = self._clock.monotonic_s()
        # Asked for before the list, so that one which fails does not end it.
        self._queue.add(ALL, LOOK_S)
        known = self.standings.keys()
        refused: list[RefusedError] = []
        asked: Sequence[tuple[str, ...]] = [(space,) for space in self._namespaces] or [()]
        for spaces in asked:
            try:
                known -= self._look_at(spaces)
            except RefusedError as error:
                refused.append(error)
        if len(refused) == len(asked):
            raise refused[0]
        for key in known:
            self.standings.tell(key, None)
        for one in refused:
            log.error("the topologies of a namespace are not seen to: %s", one)
        self._listed_s = self._clock.monotonic_s()
        return Ended.REFUSED if refused else Ended.DONE

    def _look_at(self, spaces: Sequence[str]) -> set[Key]:
        found = set(topologies(self._objects, spaces))
        for key in found:
            self._queue.add(key)
        for space in {key.namespace for key in awaited(self._objects, spaces) - found}:
            self._queue.add(Orphans(space))
        return found

    def _reconcile(self, key: Key) -> Ended:
        """Something of it that was refused is to be tried again."""
        result = self._reconciler.turn(key)
        self.standings.tell(key, result.status)
        if result.gone:
            self._queue.add(Orphans(key.namespace), ORPHANS_S)
        if result.again_s is not None:
            self._queue.add(key, result.again_s)
        return Ended.REFUSED if result.refused else Ended.DONE

    def _tell(self, key: Work, error: MillraceError) -> None:
        if not isinstance(key, Key):
            return
        try:
            status = self._reconciler.tell(key, error)
        except MillraceError as other:
            log.warning("%s: %s", key, other)
            return
        if status is not None:
            self.standings.tell(key, status)
