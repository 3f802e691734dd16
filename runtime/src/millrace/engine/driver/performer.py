"""Carries out the driver machine's actions on real state servers, Spark, ackers and sinks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Lock, Thread
from typing import Any, assert_never

from millrace import crash
from millrace.engine.driver.errands import Couriers, Errands, Foreground, Patience, as_failure
from millrace.engine.driver.home.inbox import Mailbox
from millrace.engine.driver.home.journal import EventTeller
from millrace.engine.driver.home.reader import InboxReader
from millrace.engine.driver.letters import (
    CARRIED_BYTES,
    DamagedLettersError,
    carried_over,
    encode_letters,
)
from millrace.engine.driver.planner import CALL_END_S, Planner
from millrace.engine.driver.publisher import Publisher
from millrace.engine.driver.room import Room
from millrace.engine.driver.snapshots import SnapshotTaker
from millrace.engine.driver.stores import CopyProgress, GivenUpError, Stores
from millrace.engine.driver.verdicts import Verdicts
from millrace.engine.jobs.firstpass import Prepared
from millrace.engine.jobs.runner import (
    AttemptDied,
    AttemptResult,
    AttemptRunner,
    SparkGone,
)
from millrace.engine.jobs.sizes import FEW_ROOTS
from millrace.engine.program.cutting import cut_intent
from millrace.errors import (
    FencedError,
    MillraceError,
    NewerFormatError,
    SinkError,
    SourceAwayError,
    StateServerError,
    error_text,
)
from millrace.homes.stores import HomeAwayError, ViewStore
from millrace.ids import WindowNumber
from millrace.protocol import events as e
from millrace.protocol.types import (
    AttemptId,
    AttemptPlan,
    DeadSegment,
    Phase,
    Record,
    Stamp,
    View,
)
from millrace.sources.base import Source

log = logging.getLogger(__name__)

Post = Callable[[e.Event], None]


CANCEL_S = 5.0
"""How long the end waits for Spark to cancel what runs."""


@dataclass(frozen=True, slots=True)
class Equipment:
    """The real things that actions are carried out on."""

    view: ViewStore
    stores: Stores
    verdicts: Verdicts
    planner: Planner
    publisher: Publisher
    mailbox: Mailbox
    events: EventTeller
    sources: Mapping[str, Source]
    runner: Callable[[AttemptPlan], AttemptRunner]
    committed: Callable[[Record], None]
    running: Callable[[AttemptPlan], None]
    settle: Callable[[], None]
    foreground: Foreground
    snapshots: SnapshotTaker | None = None
    room: Room | None = None


@dataclass(frozen=True, slots=True)
class _Letters:
    """What is stored under ``name``; without its bytes once every owner has them."""

    name: str
    data: bytes | None
    carried: bool


class RealPerformer:
    """One method for each kind of action; see ``protocol.events`` for what each asks.

    Nothing here waits: what may block is done on a thread that posts the answer, or tells ``fail``
    of an error that the driver cannot go on with.
    """

    def __init__(self, equipment: Equipment, post: Post, fail: Callable[[Exception], None]) -> None:
        self._equipment = equipment
        self._post = post
        self._fail = fail
        self._copies = Patience()
        self._reading = Patience()
        self._view = Errands("view", post, fail)
        self._servers = Couriers(post, fail)
        self._asking = Errands("asking-sources", post, fail)
        self._cancelling = Errands("cancel", post, fail)
        self._reader = InboxReader(equipment.mailbox, post, self._inbox_away, fail)
        self._run_ends = False
        self._spark = ThreadPoolExecutor(1, thread_name_prefix="attempt")
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._prepared: dict[AttemptId, Future[Prepared | None]] = {}
        self._janitor = ThreadPoolExecutor(1, thread_name_prefix="janitor")
        self._active: AttemptRunner | None = None
        self._pending: set[AttemptId] = set()
        self._over: set[AttemptId] = set()
        self._unforgotten: set[AttemptId] = set()
        self._copying: tuple[Stamp, View] | None = None
        self._letters: _Letters | None = None
        """Of the last ``WriteDead``; for the thread alone that asks sources."""
        self._copies_change = Lock()
        self._moving: Stamp | None = None

    def perform(self, action: e.Action) -> list[e.Event]:
        match action:
            case e.ReadView():
                return self._read_view(action)
            case e.CasView():
                return self._cas_view(action)
            case e.SendStamp():
                return self._send_stamp(action)
            case e.SendRecord():
                return self._send_record(action)
            case e.CopyObjects():
                return self._copy_objects(action)
            case e.FenceSinks():
                return self._fence_sinks(action)
            case e.Plan():
                return self._plan(action)
            case e.OpenLog():
                return self._open_log(action)
            case e.Prepare():
                return self._prepare(action)
            case e.Run():
                return self._run(action)
            case e.Cancel():
                return self._cancel(action)
            case e.AskVerdict():
                return self._ask_verdict(action)
            case e.WriteDead():
                return self._write_dead(action)
            case e.Split():
                return self._split(action)
            case e.Publish():
                return self._publish(action)
            case e.Forget():
                return self._forget(action)
            case e.Notify():
                return self._notify(action)
            case e.Committed():
                return self._committed(action)
            case e.Stop():
                return self._stop(action)
            case e.Wake():
                return []  # the loop keeps the time
            case _:
                assert_never(action)

    def poll(self) -> list[e.Event]:
        self._reader.start()
        self._equipment.settle()
        if self._equipment.snapshots is not None:
            self._equipment.snapshots.look()
        return []

    def between(self, act: Callable[[], None]) -> None:
        """Do something while no attempt runs, beside the loop."""
        self._spark.submit(act)

    def close(self) -> None:
        """End the threads; a running attempt is cancelled."""
        if self._equipment.snapshots is not None:
            self._equipment.snapshots.stop()
        if self._equipment.room is not None:
            self._equipment.room.stop()
        for errands in (self._view, self._servers, self._asking, self._cancelling):
            errands.stop()
        if self._active is not None:
            ending = Thread(target=_cancel_all, args=(self._active,), name="end", daemon=True)
            ending.start()
            ending.join(CANCEL_S)
        self._reader.stop(self._run_ends)
        # What asks a source must not meet one that is closed.
        self._asking.join(CALL_END_S)
        self._equipment.planner.stop()
        self._equipment.verdicts.stop()
        self._equipment.publisher.stop()
        self._ahead.shutdown(wait=False, cancel_futures=True)
        self._spark.shutdown(wait=False, cancel_futures=True)
        self._janitor.shutdown(wait=True, cancel_futures=True)

    # -- the view and the servers

    def _read_view(self, action: e.ReadView) -> list[e.Event]:
        def read() -> list[e.Event]:
            try:
                return [e.ViewRead(*self._equipment.view.read(), action.token)]
            except HomeAwayError as error:
                return self._home_away(error)

        self._view.do(action, read)
        return []

    def _cas_view(self, action: e.CasView) -> list[e.Event]:
        def swap() -> list[e.Event]:
            if self._opens(action.view):
                crash.reached("driver.opening")
            try:
                version = self._equipment.view.cas(action.expected, action.view)
            except HomeAwayError as error:
                # It may have been replaced or not: the machine reads it to know.
                return [*self._home_away(error), e.CasLost(action.view)]
            if version is None:
                return [e.CasLost(action.view)]
            crash.reached("driver.claimed")
            self._view_changed(action.view)
            return [e.CasDone(version, action.view)]

        self._view.do(action, swap)
        return []

    def _opens(self, view: View) -> bool:
        """Whether this is the end of a view change of ours."""
        return view.phase is Phase.OPEN and self._moving == view.stamp()

    def _view_changed(self, view: View) -> None:
        if self._opens(view):
            crash.reached("driver.view-opened")
        elif view.phase is Phase.MOVING:
            crash.reached("driver.moving")
        self._moving = view.stamp() if view.phase is Phase.MOVING else None

    def _home_away(self, error: HomeAwayError) -> list[e.Event]:
        return self._notify(e.Notify("HomeAway", str(error), warning=True))

    def _inbox_away(self, error: HomeAwayError) -> None:
        self._home_away(error)

    def _send_stamp(self, action: e.SendStamp) -> list[e.Event]:
        def send() -> list[e.Event]:
            event = self._equipment.stores.stamp(action.member, action.stamp, action.held)
            crash.reached("driver.stamped")
            return [event]

        self._servers.to(action.member).do(("stamp", action.stamp, action.held), send)
        return []

    def _send_record(self, action: e.SendRecord) -> list[e.Event]:
        def send() -> list[e.Event]:
            event = self._equipment.stores.write_record(action.member, action.stamp, action.record)
            crash.reached("driver.record-sent")
            return [event]

        self._servers.to(action.member).do((action.stamp, action.record.tag), send)
        return []

    def _copy_objects(self, action: e.CopyObjects) -> list[e.Event]:
        # The machine asks again while it waits; one copy for a view is enough.
        with self._copies_change:
            begins = self._copying != (action.stamp, action.view)
            self._copying = action.stamp, action.view
        if begins:
            # A thread for each: the one before may wait for a server that the new view leaves out.
            Thread(target=self._copy, args=(action,), name="copy", daemon=True).start()
        return []

    def _copy(self, action: e.CopyObjects) -> None:
        def wanted() -> bool:
            return self._copying == (action.stamp, action.view)

        try:
            step = CopyProgress(action, self._notify)
            event = self._equipment.stores.copy(action, wanted, step)
            self._copies.worked()
        except GivenUpError:
            return
        except MillraceError as error:
            self._fail(error)
            return
        except BaseException as error:
            # The boundary of a thread: the machine asks for the copy again, and tells of it.
            log.exception("copying objects for %s", action.stamp)
            given_up = self._copies.failed("copying objects between state servers", error)
            if given_up is not None:
                self._fail(given_up)
                return
            event = e.CopyFailed(
                action.stamp, error_text(error), unexpected=True, planned=action.planned
            )
        with self._copies_change:
            if not wanted():
                return  # another view has taken its place: what is under way for that one goes on
            self._copying = None
        self._post(event)

    # -- windows

    def _plan(self, action: e.Plan) -> list[e.Event]:
        # What waits for a driver comes before it can find that nothing is left to do.
        self._reader.first(lambda: self._equipment.planner.ask(action))
        return []

    def _open_log(self, action: e.OpenLog) -> list[e.Event]:
        # On the attempt's own thread, since the edges are known once Spark has started; Spark's
        # jobs run on that thread one after the other.
        self._spark.submit(self._open_attempt, action)
        return []

    def _open_attempt(self, action: e.OpenLog) -> None:
        try:
            self._open(action.id, action.roots)
        except FencedError:
            pass  # which is told
        except MillraceError as error:
            # What Spark said at its start, say: the next attempt would hear the same.
            self._over.add(action.id)
            self._broke(action.id, error)
        except BaseException as error:
            # The boundary of a thread: an attempt that has no log has no verdict.
            log.exception("opening the ack log for %s", action.id)
            self._over.add(action.id)
            self._post(e.RunDied(action.id, error_text(error)))

    def _open(self, attempt: AttemptId, roots: int) -> None:
        """Open an attempt in the log. Raises ``StateServerError``, and ``FencedError``, which is
        posted as well."""
        try:
            one_task = self._active is not None and self._active.as_one(roots)
            self._equipment.verdicts.open(attempt, roots, one_task)
        except FencedError as error:
            self._post(e.SinkRefused(str(error), fenced=True))
            raise

    def _prepare(self, action: e.Prepare) -> list[e.Event]:
        self._prepared[action.plan.id] = self._ahead.submit(self._begin_ahead, action)
        return []

    def _begin_ahead(self, action: e.Prepare) -> Prepared | None:
        """Begin with an attempt whose turn has not come, of few roots with its log alone; what is
        raised here is told then."""
        plan = action.plan
        if action.tracked:
            self._open(plan.id, plan.intent.roots)
        crash.reached("driver.preparing")
        if self._active is None or plan.intent.roots <= FEW_ROOTS:
            return None
        return self._active.prepare(self._equipment.verdicts.planned(plan))

    def _give_up(self, attempt: AttemptId, prepared: Future[Prepared | None]) -> None:
        """What was prepared is of no use. Behind its beginning, or that would open it again."""
        if not prepared.cancel():
            self._ahead.submit(self._undo, attempt)

    def _undo(self, attempt: AttemptId) -> None:
        try:
            if self._active is not None:
                self._active.drop(attempt)
            self._equipment.verdicts.forget([attempt])
        except Exception as error:  # noqa: BLE001
            # The boundary of a thread: it ends unheard, and its entries go with the next execution.
            log.warning("giving up what was prepared of %s: %s", attempt, error_text(error))

    def _run(self, action: e.Run) -> list[e.Event]:
        crash.reached("driver.started")
        self._pending.add(action.plan.id)
        self._equipment.foreground.began(action.plan.id)
        self._spark.submit(self._attempt, action.plan)
        self._equipment.running(action.plan)
        self._equipment.planner.busy(True)
        return []

    def _attempt(self, plan: AttemptPlan) -> None:
        prepared = self._prepared.pop(plan.id, None)
        try:
            if plan.id not in self._over:  # else it ended before its turn came
                self._run_to_end(plan, prepared)
            elif prepared is not None:
                self._give_up(plan.id, prepared)
        except BaseException as error:  # noqa: BLE001 the boundary of a thread: the loop raises it
            self._fail(as_failure(error))
        finally:
            self._equipment.foreground.over(plan.id)
            self._pending.discard(plan.id)
            self._over.discard(plan.id)

    def _run_to_end(self, plan: AttemptPlan, prepared: Future[Prepared | None] | None) -> None:
        try:
            self._active = self._equipment.runner(plan)
            first = None if prepared is None else self._begun(plan, prepared)
            if first is not None:
                crash.reached("driver.prepared")
            planned = self._equipment.verdicts.planned(plan)
            result = self._active.run(
                planned, first, lambda: self._equipment.foreground.over(plan.id)
            )
            self._verify(result)
        except AttemptDied as died:
            said = (died.reason, died.member_lost, died.evidence, died.full)
            self._post(e.RunDied(plan.id, *said, away=died.away, ended=died.ended))
        except SourceAwayError as error:
            self._not_read(plan.id, error)
        except MillraceError as error:
            self._broke(plan.id, error)
        except SparkGone as error:
            # A root cannot be to blame, and no attempt can succeed: a new driver is needed.
            self._post(e.RunFailed(plan.id, str(error)))
        except BaseException as error:
            # The boundary of an attempt: whatever went wrong, the machine must hear of it.
            log.exception("window attempt %s", plan.id)
            self._post(e.RunDied(plan.id, error_text(error)))
        else:
            self._reading.worked()
            crash.reached("driver.ran")
            self._post(e.RunDone(plan.id, result.shape, result.reports))

    def _begun(self, plan: AttemptPlan, prepared: Future[Prepared | None]) -> Prepared | None:
        """What was begun of an attempt before its turn. A log that was away then may be back."""
        try:
            return prepared.result()
        except StateServerError as error:
            if not error.retryable:
                raise
        self._open(plan.id, plan.intent.roots)  # harmless where it was opened
        return None

    def _not_read(self, attempt: AttemptId, error: SourceAwayError) -> None:
        """A source may be there again when the window runs again: a few times, as for any other
        failure that no root is to blame for."""
        if error.retryable or self._reading.failed("reading", error) is not None:
            self._broke(attempt, error)
        else:
            self._post(e.RunDied(attempt, str(error)))

    def _broke(self, attempt: AttemptId, error: MillraceError) -> None:
        """An attempt ended with an error of ours: it runs again only where that may help."""
        if error.retryable:
            self._post(e.RunDied(attempt, str(error), member_lost=True))
        else:
            self._post(e.RunFailed(attempt, str(error), error.exit_code))

    def _verify(self, result: AttemptResult) -> None:
        try:
            self._equipment.publisher.verify(result.reports)
        except SinkError as error:
            raise AttemptDied(str(error), error.retryable) from error

    def _cancel(self, action: e.Cancel) -> list[e.Event]:
        self._equipment.verdicts.give_up(action.id)
        if action.id in self._pending:
            self._over.add(action.id)
            if self._active is not None:
                self._cancelling.do(action.id, self._cancelled(self._active, action.id))
        elif (prepared := self._prepared.pop(action.id, None)) is not None:
            self._give_up(action.id, prepared)
        return []

    @staticmethod
    def _cancelled(runner: AttemptRunner, attempt: AttemptId) -> Callable[[], list[e.Event]]:
        def cancel() -> list[e.Event]:
            runner.cancel(attempt)
            return []

        return cancel

    def _ask_verdict(self, action: e.AskVerdict) -> list[e.Event]:
        self._equipment.verdicts.ask(action.marker)
        # So near its end that what the next window is opened with can go into the same record.
        self._equipment.planner.busy(False)
        return []

    def _held_up(self, reason: str, window: WindowNumber) -> list[e.Event]:
        """Nothing comes of an action for now; the machine asks again."""
        return self._notify(e.Notify("WindowHeldUp", reason, window, warning=True))

    def _write_dead(self, action: e.WriteDead) -> list[e.Event]:
        """The machine asks again while it waits, and some owners may have the object by then: it is
        made once, and stored again as it is. Once all have it, nothing is written any more: it may
        be sealed, and what it was made of deleted."""

        def write() -> list[e.Event]:
            made = self._letters
            if made is None or made.name != action.name:
                self._letters = made = None  # the bytes of one that was never stored go first
                made = self._letters = self._made(action)
            if made.data is not None:
                try:
                    self._equipment.stores.put_everywhere(action.stamp, made.name, made.data)
                except StateServerError as error:
                    if not error.retryable:
                        raise
                    return self._held_up(
                        f"dead letters of window {action.window} wait: {error}", action.window
                    )
                self._letters = replace(made, data=None)
                crash.reached("driver.dead-written")
            return [e.DeadWritten(made.name, made.carried)]

        self._asking.do((action.name, action.stamp), write)
        return []

    def _made(self, action: e.WriteDead) -> _Letters:
        carried = [] if action.after is None else self._carried_over(action.after)
        data = encode_letters(action.letters, self._equipment.sources, carried)
        return _Letters(action.name, data, carried=bool(carried))

    def _carried_over(self, segment: DeadSegment) -> list[dict[str, Any]]:
        """The letters of a segment for the object that is to begin with them; none where they
        cannot be read now, or are too much.

        Nobody waits for a state server that is away: the window begins a segment of its own, which
        those behind it go on with. So a server that is away for a moment costs the record one
        segment more.
        """
        try:
            data = self._equipment.stores.fetch(segment.name, most_bytes=CARRIED_BYTES)
            return carried_over(segment, data)
        except (StateServerError, DamagedLettersError, NewerFormatError) as error:
            log.info("dead letters in %s are not carried over: %s", segment.name, error)
            return []

    def _split(self, action: e.Split) -> list[e.Event]:
        def cut() -> list[e.Event]:
            first, second = cut_intent(action.intent, action.at, self._equipment.sources)
            return [e.SplitDone(action.intent.window, first, second)]

        self._asking.do((action.intent.window, action.at), cut)
        return []

    # -- sinks

    def _fence_sinks(self, action: e.FenceSinks) -> list[e.Event]:
        self._equipment.publisher.fence(action.execution, action.record)
        return []

    def _publish(self, action: e.Publish) -> list[e.Event]:
        window = action.sealed.window
        self._equipment.foreground.began(window)
        shown = self._equipment.publisher.publish(action.sealed, action.execution)
        shown.add_done_callback(lambda _: self._equipment.foreground.over(window))
        return []

    def _forget(self, action: e.Forget) -> list[e.Event]:
        self._janitor.submit(self._delete, action)
        return []

    def _delete(self, action: e.Forget) -> None:
        self._equipment.foreground.give_way()
        try:
            self._delete_now(action)
        except MillraceError as error:
            self._fail(error)
        except Exception as error:
            # The boundary of a thread: what is left is found by the next sweep.
            log.exception("deleting what is superseded")
            text = f"superseded data stays for now: {error_text(error)}"
            self._notify(e.Notify("LeftoversKept", text, warning=True))
        crash.reached("driver.forgotten")

    def _delete_now(self, action: e.Forget) -> None:
        if self._equipment.snapshots is not None:
            action = self._equipment.snapshots.spared(action)
        self._unforgotten |= set(action.attempts)
        try:
            self._equipment.verdicts.forget(sorted(self._unforgotten))
            self._unforgotten.clear()
        except MillraceError as error:
            self._tried_again("deleting from the ack log, tried again later", error)
        try:
            self._equipment.stores.delete(action)
            if action.keep is not None:
                self._equipment.publisher.discard(action)
        except MillraceError as error:
            # What is left is found by the next sweep.
            self._tried_again("deleting superseded objects", error)

    def _tried_again(self, what: str, error: MillraceError) -> None:
        """Raises what waiting does not mend; whoever is fenced hears that elsewhere."""
        if not (error.retryable or isinstance(error, FencedError)):
            raise error
        log.warning("%s: %s", what, error)

    # -- telling

    def _notify(self, action: e.Notify) -> list[e.Event]:
        if self._equipment.events.add(action):
            log.log(logging.WARNING if action.warning else logging.INFO, action.text)
        return []

    def _committed(self, action: e.Committed) -> list[e.Event]:
        # Before what the record replaces is deleted.
        if self._equipment.snapshots is not None:
            self._equipment.snapshots.committed(action.record)
        self._reader.committed(action.record)
        self._equipment.planner.busy(bool(action.record.intents))
        self._equipment.committed(action.record)
        return []

    def _stop(self, action: e.Stop) -> list[e.Event]:
        failed = action.kind not in e.ORDERLY
        log.log(logging.ERROR if failed else logging.INFO, action.text)
        self._equipment.events.add(e.Notify("DriverStopped", action.text, warning=failed))
        self._run_ends = action.kind in (e.StopKind.DRAINED, e.StopKind.ASKED)
        return []


def _cancel_all(runner: AttemptRunner) -> None:
    try:
        runner.cancel_all()
    except Exception as error:  # noqa: BLE001
        # The boundary of a thread: in a JVM that is gone nothing runs any more.
        log.info("what ran is not cancelled: %s", error_text(error))
