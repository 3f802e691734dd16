"""The driver's questions to the ackers: which window attempts are open, and who judged what."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from millrace import crash
from millrace.engine.driver.stores import Stores
from millrace.errors import FencedError, MillraceError, StateServerError, error_text
from millrace.protocol import events as e
from millrace.protocol.types import AttemptId, AttemptPlan, CloseMarker, Member
from millrace.tracking.control import AckControl
from millrace.tracking.log import AckerLoad, AckLog, AckLogLostError

log = logging.getLogger(__name__)

PATIENCE_S = 0.5
"""How long one look at the verdicts takes before it is asked what may hold them up."""

SILENCE_S = 10.0
"""How long ackers have not answered before that is told."""


class Verdicts:
    """Opens and closes window attempts in the ack log and posts the verdicts as events.

    The log lives on the first member of the view. A server that is away costs time, never an
    answer; ``tell`` is told of it, on another thread, and ``failed`` of an error that stops.
    """

    def __init__(
        self,
        stores: Stores,
        edges: Callable[[], Sequence[str]],
        post: Callable[[e.Event], None],
        tell: Callable[[e.Notify], object],
        virtual_nodes: int,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._stores = stores
        self._tell = tell
        self._silence_s = silence_s
        self._virtual_nodes = virtual_nodes
        self._edges = edges
        self._post = post
        self._ackers: tuple[str, ...] = ()
        self._absent: frozenset[str] = frozenset()
        self._control: AckControl | None = None
        self._log: AckLog | None = None
        self._where: tuple[Member, int] | None = None
        self._asked: AttemptId | None = None
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._beginning = threading.Lock()
        self._placing = threading.Lock()
        self._waiter = ThreadPoolExecutor(1, thread_name_prefix="verdict")

    def stop(self) -> None:
        self._stopped.set()
        self._waiter.shutdown(wait=True, cancel_futures=True)

    def members(self, ackers: tuple[str, ...]) -> None:
        """These ackers are alive. What cannot be told now is told with the next question."""
        self._ackers, self._absent = ackers, frozenset()
        with self._lock:
            control = self._control
        if control is not None:
            try:
                self._place(control)
            except (FencedError, StateServerError) as error:
                log.warning("placing the ack log's slices: %s", error)

    def ackers(self) -> tuple[str, ...]:
        """Those that slices of the log are given to."""
        with self._lock:
            control = self._control
        return () if control is None else control.ackers

    def loads(self) -> dict[str, AckerLoad]:
        """What ackers have used, by name. Raises ``StateServerError``."""
        with self._lock:
            found = self._log
        return {} if found is None else found.loads()

    def _place(self, control: AckControl) -> None:
        """Give slices to the ackers that are alive."""
        # Two threads do this: who looks last must be who is heard last.
        with self._placing:
            ackers = self._present()
            if ackers and control is self._control:
                control.set_ackers(ackers)

    def _present(self) -> tuple[str, ...]:
        """Those that the driver was told of, without those that are seen to be gone."""
        ackers, absent = self._ackers, self._absent
        return tuple(name for name in ackers if name not in absent)

    def _look(self) -> None:
        """See who is gone, whether or not anybody will say so. While none is connected all may
        come back, and where the server does not tell nobody counts as gone."""
        ackers, here = frozenset(self._ackers), self._reader().attending()
        gone = ackers - here if here is not None and here & ackers else frozenset()
        if gone - self._absent:
            log.warning(
                "not connected to the ack log: %s; other ackers judge in their place",
                ", ".join(sorted(gone)),
            )
        self._absent = gone

    def open(self, attempt: AttemptId, roots: int, one_task: bool) -> None:
        """Open an attempt in the log; ``one_task``: it is to be one. Raises ``StateServerError``,
        ``FencedError``."""
        control = self._begun()
        if self._absent:
            self._look()
        self._place(control)
        control.open(attempt, roots, one_task)

    def planned(self, plan: AttemptPlan) -> AttemptPlan:
        """The plan with as many slices as its attempt was opened with, if it was."""
        with self._lock:
            control = self._control
        try:
            return plan if control is None else replace(plan, slices=control.slices(plan.id))
        except AckLogLostError:
            return plan  # what its tasks write is refused, or nobody reads it

    def ask(self, marker: CloseMarker) -> None:
        """Name the winners and wait for the verdict, on another thread, until it is there.

        Asked again while that goes on, it does nothing.
        """
        if self._asked != marker.id:
            self._asked = marker.id
            self._waiter.submit(self._judge, marker)

    def give_up(self, attempt: AttemptId) -> None:
        """Nobody waits for this verdict any more."""
        if self._asked == attempt:
            self._asked = None

    def forget(self, attempts: Iterable[AttemptId]) -> None:
        """Delete what is in the log about ended attempts. Raises ``StateServerError``."""
        if self._control is not None:
            self._control.forget(attempts)

    def _judge(self, marker: CloseMarker) -> None:
        try:
            event = self._verdict(marker)
        except FencedError as error:
            event = e.SinkRefused(str(error), fenced=True)
        except AckLogLostError:
            event = e.VerdictLost(marker.id)
        except MillraceError as error:
            # A verdict in a newer format, say: no further attempt would be judged.
            event = e.RunFailed(marker.id, str(error), error.exit_code)
        except Exception as error:
            # The boundary of a thread: a verdict that nobody waits for would hold windows up.
            log.exception("waiting for the verdict on %s", marker.id)
            event = e.RunFailed(marker.id, error_text(error))
        if event is None:
            return
        if not isinstance(event, e.VerdictGiven):
            self.give_up(marker.id)  # whoever asks again is heard
        self._post(event)

    def _verdict(self, marker: CloseMarker) -> e.Event | None:
        """The verdict; None where nobody waits for it any more."""
        closed, asked_s = False, time.monotonic()
        said_s = asked_s
        while self._awaited(marker):
            try:
                if not closed:
                    control = self._begun()
                    slices = control.slices(marker.id)
                    control.close(marker)
                    crash.reached("driver.closed")
                    closed = True
                self._place(control)
                verdict = self._reader().wait_verdict(marker.id, slices, PATIENCE_S)
                if verdict is not None:
                    crash.reached("driver.judged")
                    control.judged(marker, verdict)
                    return e.VerdictGiven(verdict)
                self._look()
                now_s = time.monotonic()
                if now_s - said_s >= self._silence_s:
                    control.repeat()
                    said_s = now_s
                if now_s - asked_s >= self._silence_s:
                    silent = ", ".join(control.silent(marker.id))
                    self._held_up(marker, f"no answer yet from {silent}; see what their logs say")
            except AckLogLostError:
                raise
            except StateServerError as error:
                self._stopped.wait(PATIENCE_S)
                self._held_up(marker, str(error))
        return None

    def _held_up(self, marker: CloseMarker, why: str) -> None:
        if self._awaited(marker):
            window = marker.id.window
            text = f"the verdict on window {window} waits: {why}"
            self._tell(e.Notify("WindowHeldUp", text, window, warning=True))

    def _awaited(self, marker: CloseMarker) -> bool:
        return not self._stopped.is_set() and self._asked == marker.id

    def _reader(self) -> AckLog:
        with self._lock:
            assert self._log is not None
            return self._log

    def _begun(self) -> AckControl:
        """The control stream of this execution on the server that holds the log now."""
        member, execution = self._stores.log_member()
        ackers = self._ackers  # read once: the last one may go at any moment
        if not ackers:
            raise StateServerError("no acker is alive; windows wait until one is")
        # Not under the other lock: edges are known once Spark is up, and a server takes its time.
        with self._beginning:
            control = self._control
            if control is None or self._where != (member, execution):
                found = AckLog(self._stores.client(member).redis, self._stores.uid)
                control = AckControl(found, execution, self._edges(), self._virtual_nodes)
                control.begin(ackers)
                with self._lock:
                    self._log, self._control, self._where = found, control, (member, execution)
            return control
