"""Shows sealed windows on the sinks, one after the other, beside the running window."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from millrace import crash
from millrace.engine.driver.callbacks import Callbacks
from millrace.engine.driver.errands import Patience
from millrace.engine.driver.retired import RetiredSinks
from millrace.errors import FencedError, MillraceError, SinkError, error_text, message_of
from millrace.ids import NO_WINDOW, Execution, WindowNumber
from millrace.protocol import events as e
from millrace.protocol.record import behind
from millrace.protocol.types import Mark, Record, Sealed, TaskReport
from millrace.sinks.base import Sink

log = logging.getLogger(__name__)


class Publisher:
    """One thread that answers ``FenceSinks`` and ``Publish`` actions through ``post``.

    ``tell`` is told, on that thread, of what no answer depends on, and ``fail`` of an error that
    the driver cannot go on with.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        callbacks: Callbacks,
        post: Callable[[e.Event], None],
        retired: RetiredSinks,
        tell: Callable[[e.Notify], object],
        fail: Callable[[Exception], None],
    ) -> None:
        self._sinks = sinks
        # Windows are shown beside the running one, whose rows are verified on another thread.
        self._turns = {sink.name: threading.Lock() for sink in sinks}
        self._callbacks = callbacks
        self._post = post
        self._retired = retired
        self._tell = tell
        self._fail = fail
        self._patience = Patience()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="publisher")

    def stop(self) -> None:
        """Wait for the window that is being published."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def fence(self, execution: Execution, record: Record) -> None:
        self._thread.submit(self._guarded, NO_WINDOW, lambda: self._fence(execution, record))

    def publish(self, sealed: Sealed, execution: Execution) -> Future[None]:
        """What is returned is done when the window has had its turn, shown or not."""

        def show() -> None:
            self._publish(sealed, execution)

        return self._thread.submit(self._guarded, sealed.window, show)

    def verify(self, reports: Iterable[TaskReport]) -> None:
        """Check staged outputs before they are sealed; called from the attempt's thread.

        Waits for a window that the sink shows: the next one could not be shown before anyway.
        Raises ``SinkError`` for one that is damaged.
        """
        staged = [one for report in reports for one in report.staged]
        for sink in self._sinks:
            mine = [one for one in staged if one.sink == sink.name]
            if mine:
                with self._turns[sink.name]:
                    sink.verify(mine)

    def discard(self, forget: e.Forget) -> None:
        """Drop staged leftovers of ended attempts that no committed record names."""
        self._thread.submit(self._discard, forget)

    def _fence(self, execution: Execution, record: Record) -> None:
        old = self._retired.open(record)
        marks, untold = self._marks([*old, *self._sinks])
        ahead = behind(record, marks)
        if ahead is not None:
            self._post(e.SinkRefused(ahead, fenced=False, behind=True))
            return
        for sink in old:
            with self._retired.explained(sink.name):
                sink.fence(execution)
        for sink in self._sinks:
            with self._turns[sink.name]:
                sink.fence(execution)
        self._post(e.SinksFenced(execution, untold))

    def _marks(self, sinks: Sequence[Sink]) -> tuple[list[Mark], tuple[str, ...]]:
        """What the sinks show, and the names of those that cannot tell."""
        marks, untold = [], []
        for sink in sinks:
            try:
                shown = sink.last_shown()
            except NotImplementedError:
                untold.append(sink.name)
            else:
                if shown is not None:
                    window, digest = shown
                    marks.append(Mark(sink.name, WindowNumber(window), digest))
        return marks, tuple(untold)

    def _publish(self, sealed: Sealed, execution: Execution) -> None:
        removed, shares = self._retired.shares(sealed, self._sinks)
        for sink, mine in removed:
            with self._retired.explained(sink.name):
                sink.publish(sealed, mine, execution)
        for sink, mine in shares:
            with self._turns[sink.name]:
                sink.publish(sealed, mine, execution)
        if sealed.roots is not None:
            self._callbacks.tell(sealed.window, sealed.roots)
        crash.reached("driver.published")
        self._post(e.Published(sealed.window))

    def _discard(self, forget: e.Forget) -> None:
        for sink in self._sinks:
            try:
                with self._turns[sink.name]:
                    sink.discard(forget.covers)
            except BaseException as error:
                # The boundary of a sink's code: what is left is found by the next sweep, and no
                # window waits for it.
                log.exception("discarding leftovers of sink %s", sink.name)
                reason = f"sink {sink.name} keeps what ended attempts staged: {error_text(error)}"
                self._tell(e.Notify("LeftoversKept", reason, warning=True))

    def _guarded(self, window: WindowNumber, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 the boundary of a sink's code
            self._failed(window, error)
        else:
            self._patience.worked()

    def _failed(self, window: WindowNumber, error: BaseException) -> None:
        """A window that cannot be shown is tried again, as long as that may help."""
        if not isinstance(error, MillraceError):
            what = f"showing window {window}" if window else "preparing the sinks"
            log.error("%s", what, exc_info=error)
            self._post(e.PublishFailed(window, error_text(error)))
            given_up = self._patience.failed(what, error)
            if given_up is not None:
                self._fail(given_up)
            return
        self._patience.worked()
        if error.retryable:
            self._post(e.PublishFailed(window, message_of(error)))
        elif isinstance(error, FencedError | SinkError):
            self._post(e.SinkRefused(message_of(error), fenced=isinstance(error, FencedError)))
        else:
            self._fail(error)
