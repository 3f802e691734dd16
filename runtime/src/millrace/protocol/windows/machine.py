"""One window after the other: plan, run, judge, decide, seal, publish, forget.

The machine holds the last committed record and the one thing that it is doing (``doing``): a window
attempt, what comes of it, or a record write on its way. ``advance`` is called after every event and
starts whatever the committed record allows; nothing is started while a write is on its way (rule
4). Planning ahead (``planning``), the first pass of what is planned (``preparing``) and showing
windows (``publishing``) go on beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from millrace.errors import ProtocolError
from millrace.ids import WindowAttempt, WindowNumber
from millrace.protocol import edits, holes
from millrace.protocol import events as e
from millrace.protocol import record as records
from millrace.protocol.membership import Membership, RecordWrite
from millrace.protocol.names import LettersObject
from millrace.protocol.record import NextWindow
from millrace.protocol.settings import Settings
from millrace.protocol.types import (
    AttemptId,
    AttemptPlan,
    CloseMarker,
    DeadSegment,
    Evidence,
    Guarantee,
    Intent,
    Record,
    TaskReport,
    Verdict,
)
from millrace.protocol.windows.causes import causes, counted, told
from millrace.protocol.windows.decide import (
    Died,
    DropIt,
    GiveUp,
    Judged,
    Progress,
    RunAgain,
    SealIt,
    SplitIt,
    decide,
    halves,
)
from millrace.protocol.windows.doing import (
    TRANSITIONS,
    Doing,
    Halving,
    Idle,
    Judging,
    Noting,
    Opening,
    Running,
    SealDraft,
    Sealing,
    Splitting,
    Surprise,
    WindowEvent,
    Writing,
    WritingLetters,
)
from millrace.protocol.windows.forgetting import Forgetting
from millrace.protocol.windows.outcomes import judged, outcome_of, too_many
from millrace.protocol.windows.planning import Planning
from millrace.protocol.windows.preparing import Preparing
from millrace.protocol.windows.publishing import Publishing
from millrace.protocol.windows.surprises import Awaited
from millrace.protocol.windows.waiting import Waiting
from millrace.protocol.winners import Inconsistent, Winners, find_winners

Change = Callable[[Record], Record]

OnBug = Callable[[str], None]
"""Told of an event that nobody can have asked for."""

MANY_DEAD = 10_000
"""So many objects of dead letters are told of, and each time that there are as many more."""

HOLD_S = 1.0
"""Pause before a window runs again that met a lost state server."""

FULL_HOLDS = 4
"""The pause doubles so often while a state server has no room: each try costs a whole attempt."""

TIGHT_S = 60.0
"""So long after a state server had no room no window is prepared, whose messages need some too."""


class Windows:
    """The machine of this module; ``Driver`` feeds it while the view is open.

    ``on_bug`` is the caller's: a running driver logs what it is told, the simulator ends. So is
    ``wall_ms``, the clock that windows get their times from.
    """

    def __init__(self, settings: Settings, membership: Membership, locate: records.Locate) -> None:
        self.settings = settings
        self.membership = membership
        self.locate = locate
        self.record: Record | None = None
        self.sinks_fenced = False
        self.draining = False
        self.on_bug: OnBug = _nobody_told
        self.wall_ms: Callable[[], int] = int
        self.doing: Doing = Idle()
        self.planning = Planning()
        self.preparing = Preparing()
        self.publishing = Publishing()
        self._progress: dict[WindowNumber, Progress] = {}
        self._numbers: dict[WindowNumber, WindowAttempt] = {}
        self._forgetting = Forgetting()
        self._requests: dict[str, e.DeadLetterRequest] = {}
        self._bugs_told: set[tuple[type, type]] = set()
        self._now_s = 0.0
        self._waiting = Waiting()
        self._hold_until_s = 0.0
        self._refused = 0
        self._tight_until_s = 0.0
        self._woken_s: float | None = None
        self._interrupted = False
        self._perhaps_run: tuple[Intent, ...] | None = None

    # -- what the driver machine calls

    def resume(self, record: Record) -> list[e.Action]:
        """Go on from a record that has just been committed by a write-back."""
        self.record = record
        self.planning.restart()
        self._progress = {
            i.window: self._progress[i.window]
            for i in record.intents
            if i.window in self._progress and self._progress[i.window].intent == i
        }
        self._forgetting.sweep()
        if self._perhaps_run is None:
            # Only the driver before this one knew which of them had begun.
            self._perhaps_run = record.intents
        self._interrupted = any(intent in self._perhaps_run for intent in record.intents)
        return [*self.preparing.drop(self._forgetting), *self._report(record)]

    def _to_abandon(self) -> bool:
        return self._interrupted and self.settings.guarantee is Guarantee.AT_MOST_ONCE

    def _abandon(self, record: Record) -> list[e.Action]:
        """AtMostOnce: what was open when this driver began, or ran as members changed, is lost."""
        dropped = sum(i.roots for i in record.intents)
        text = f"{dropped} roots that were being processed are dropped (AtMostOnce)"
        notice = e.Notify("RootsDropped", text, record.intents[0].window, warning=True)
        return [notice, *self._change(records.abandon)]

    def suspend(self) -> list[e.Action]:
        """Give up the running attempt and any unfinished write: the members change."""
        actions = self._end_attempt(cancel=True)
        actions += self.preparing.drop(self._forgetting)
        self._become(Idle())
        return actions

    def resize(self, max_records: int) -> WindowNumber | None:
        """Open windows of at most so many roots from now on, which is told of the first of them.

        What was found for the next one is forgotten. None while a record is on its way, which may
        open a window of the old size, or is about to take back the window that is open: nothing is
        changed then.
        """
        if self.record is None or self.writing is not None or self._to_abandon():
            return None
        self.settings = replace(self.settings, max_records=max_records)
        self.planning.restart()
        return records.next_window(self.record)

    def between(self) -> bool:
        """Whether no window attempt runs and no write is on its way."""
        return isinstance(self.doing, Idle | Splitting)

    def waits(self) -> bool:
        """Whether something waits for state servers that it cannot name, other than a write."""
        asked = isinstance(self.doing, WritingLetters | Judging)
        return asked or self.publishing.failed or self._now_s < self._hold_until_s

    @property
    def writing(self) -> RecordWrite | None:
        """The record that is on its way to the state servers."""
        return self.doing.write if isinstance(self.doing, Writing) else None

    @property
    def attempt(self) -> AttemptId | None:
        """The window attempt that runs or is judged."""
        return self.doing.attempt if isinstance(self.doing, Running | Judging) else None

    def acknowledged(self, event: e.RecordAck) -> list[e.Action]:
        write = self.writing
        if write is None or not write.acknowledge(event):
            return []
        self._become(Idle())
        return self.committed(write.record)

    def resend(self) -> list[e.Action]:
        """Send again what has no answer yet."""
        self.publishing.again()
        match self.doing:
            case Opening(write) | Halving(write) | Sealing(write) | Noting(write):
                return write.send()
            case WritingLetters() as writing:
                return [self._store_letters(writing)]
            case Judging(_, _, marker):
                return [e.AskVerdict(marker)]
            case Splitting(decision):
                assert self.record is not None
                return [e.Split(self.record.intents[0], decision.at)]
            case Idle() | Running():
                return []
            case _:
                assert_never(self.doing)

    def advance(self, now_s: float) -> list[e.Action]:
        """Start whatever the committed record allows."""
        self._now_s = now_s
        record = self.record
        assert record is not None
        self._waiting.update(record.replays, now_s)
        edited = self.settings.components not in (None, record.components)
        if not self.sinks_fenced:
            # Nothing is changed before the sinks agree that the record is the newest.
            return [] if edited else self._ask_ahead(record)
        actions = self._publish_next(record)
        if self.writing is not None:
            return actions
        if self._to_abandon():
            self._interrupted = False
            return actions + self._abandon(record)
        if edited:
            return actions + self._edit(record)
        if isinstance(self.doing, Idle):
            if record.intents:
                actions += self._begin(record.intents[0])
            else:
                actions += self._idle(record)
        return actions + self._ask_ahead(record) + self._prepare(record)

    # -- events

    def handle(self, event: WindowEvent, now_s: float) -> list[e.Action]:
        self._now_s = now_s
        surprise = self.surprise(event)
        if surprise is Surprise.BUG:
            self._tell_bug(event)
        return self._react(event) if surprise is None else []

    def _react(self, event: WindowEvent) -> list[e.Action]:
        match event:
            case e.Planned():
                return self.planning.planned(event)
            case e.PlanFailed():
                return self.planning.plan_failed(event)
            case e.RunDone():
                return self._run_done(event)
            case e.RunDied():
                return self._run_died(event)
            case e.RunFailed():
                return [e.Stop(e.StopKind.FAILED, event.text, event.code)]
            case e.VerdictGiven():
                return self._verdict_given(event)
            case e.VerdictLost():
                return self._verdict_lost(event)
            case e.DeadWritten():
                return self._dead_written(event)
            case e.SplitDone():
                return self._split_done(event)
            case e.Published():
                return self.publishing.published(event)
            case e.PublishFailed():
                return self.publishing.publish_failed(event)
            case e.DeadLetterRequest():
                self._requests[event.token] = event
                return []
            case e.StopAsked():
                return self._stop_asked()
            case _:
                assert_never(event)

    def surprise(self, event: WindowEvent) -> Surprise | None:
        """Why an event is not waited for (``doing.SURPRISES``); None for one that is."""
        match event:
            case e.Planned() | e.PlanFailed():
                return self.planning.surprise(event)
            case e.Published():
                return self.publishing.surprise(event)
            case e.PublishFailed() | e.DeadLetterRequest() | e.StopAsked():
                return None
            case _:
                return self._asked().surprise(event)

    def _asked(self) -> Awaited:
        return Awaited(self.doing, self.record, self.membership.execution, self._numbers)

    def _tell_bug(self, event: WindowEvent) -> None:
        """Nothing is done about what cannot be; that it came is told once."""
        what = type(event), type(self.doing)
        if what not in self._bugs_told:
            self._bugs_told.add(what)
            self.on_bug(f"{what[0].__name__} while {what[1].__name__}: nobody has asked for it")

    def _become(self, doing: Doing) -> None:
        """Do something else. Raises ``ProtocolError`` for a step that is not in the table."""
        step = type(self.doing), type(doing)
        if step == (Idle, Idle):
            return
        if step not in TRANSITIONS:
            raise ProtocolError(
                f"windows: {step[0].__name__} is not followed by {step[1].__name__}"
            )
        self.doing = doing

    # -- an edited topology

    def _edit(self, record: Record) -> list[e.Action]:
        """One record write before anything is planned or run under the new topology.

        What is sealed is shown first: what it is shown on may be gone afterwards.
        """
        components = self.settings.components
        assert components is not None
        if record.components is not None and record.components.edit > components.edit:
            text = (
                f"the record was written for edit {record.components.edit} of the topology, this "
                f"run knows {components.edit}: a newer run has taken over, or the work folder was "
                "put back from an older copy"
            )
            return [e.Stop(e.StopKind.FENCED, text)]
        if any(one.window > self.publishing.confirmed for one in record.unpublished):
            return []
        text, loses = edits.told(record, components, self.settings.drop_removed)
        notice = e.Notify("TopologyEdited", text, record.sealed, warning=loses)
        return [*([notice] if text else []), *self._change(self.edited)]

    def edited(self, record: Record) -> Record:
        assert self.settings.components is not None
        return edits.apply_edit(record, self.settings.components)[0]

    # -- record writes

    def _change(self, change: Change, doing: type[Writing] = Noting) -> list[e.Action]:
        """Write the record that ``change`` makes of the committed one, with what is pending."""
        assert self.record is not None
        changed = change(records.mark_published(self.record, self.publishing.confirmed))
        for request in self._requests.values():
            changed = records.take_letters(
                changed, request.segment, request.indexes, request.replays
            )
        self._requests = {}
        written = replace(changed, tag=self.membership.next_tag())
        view = self.membership.view
        assert view is not None
        write = RecordWrite.to(view.target, self.membership.stamp, written)
        self._become(doing(write))
        return write.send()

    def committed(self, record: Record) -> list[e.Action]:
        """A record is final: act on it, and forget what it no longer needs."""
        previous = self.record
        assert previous is not None
        self.record = record
        if record.sealed > previous.sealed:
            self._refused = 0
        self.planning.committed(record.offsets)
        known = {i.window for i in record.intents}
        self._progress = {w: p for w, p in self._progress.items() if w in known}
        self._numbers = {w: n for w, n in self._numbers.items() if w > record.sealed}
        return [
            *self._report(record),
            *self._forget(previous, record),
            *_piled_up(previous, record),
        ]

    def _report(self, record: Record) -> list[e.Action]:
        return [e.Committed(record, self.membership.version)]

    def _forget(self, before: Record, now: Record) -> list[e.Action]:
        return self._forgetting.next(self.membership.stamp, before, now)

    # -- planning

    def _ask_ahead(self, record: Record) -> list[e.Action]:
        full = len(record.unpublished) > self.settings.max_unpublished
        return [] if self.draining or full else self.planning.ask(record.offsets)

    def _opening(self, record: Record) -> NextWindow | None:
        """The next window: due replays in a window of their own, else what was planned.

        Nothing new while very many replays wait, since all of them are part of the record.
        """
        if self.draining:
            return None
        replays = self._waiting.due(record.replays, self._now_s, self.settings.max_records)
        if replays:
            return NextWindow((), replays, record.offsets, time_ms=self.wall_ms())
        found = self.planning.found
        if found is None or len(record.replays) >= self.settings.max_waiting:
            return None
        prepared = self.preparing.intent_for(found)
        time_ms = self.wall_ms() if prepared is None else prepared.time_ms
        return NextWindow(found.ranges, (), found.offsets, time_ms=time_ms)

    def _prepare(self, record: Record) -> list[e.Action]:
        """Begin with what was planned while the window before it runs or is judged, unless that
        may well be followed by another one: by one of replays, or by its own second half."""
        least, found = self.settings.prepares_from, self.planning.found
        if least is None or found is None or self.preparing.plan is not None:
            return []
        runs = isinstance(self.doing, Running | Judging) and len(record.intents) == 1
        # Beside a second attempt one more window could be what a worker dies of.
        if not runs or self._numbers[record.intents[0].window] > 1:
            return []
        if record.replays or self.draining or self._now_s < self._tight_until_s:
            return []
        if sum(r.count for r in found.ranges) < least:
            return []
        window = records.following(record.intents[0].window)
        if window in self._numbers:
            return []  # it was prepared once for something that has not come
        self._numbers[window] = WindowAttempt(1)
        time_ms = max(record.time_ms, self.wall_ms())
        intent = Intent(window, found.ranges, time_ms=time_ms)
        plan = self._attempt_plan(record, intent, WindowAttempt(1), Progress(intent))
        return self.preparing.begin(plan, self.settings.tracking)

    def _attempt_plan(
        self, record: Record, intent: Intent, number: WindowAttempt, progress: Progress
    ) -> AttemptPlan:
        return AttemptPlan(
            AttemptId(self.membership.execution, intent.window, number),
            self.membership.stamp,
            intent,
            frozenset(progress.failed),
            progress.uncombined,
            record.chains,
            learning=self.membership.learning,
        )

    def _with_next(self, record: Record) -> Record:
        """Opening w+1 and sealing w are one write."""
        if record.intents:
            return record
        opening = self._opening(record)
        return records.open_next(record, opening) if opening is not None else record

    def _idle(self, record: Record) -> list[e.Action]:
        opening = self._opening(record)
        if opening is not None:
            return self._change(self._with_next, Opening)
        if self._requests or self.publishing.confirmed > record.published:
            return self._change(lambda current: current)
        return self._finish(record)

    def _finish(self, record: Record) -> list[e.Action]:
        """Nothing is open: end if nothing will come, else wait for what is due."""
        if record.unpublished:
            return []
        if self.draining:
            return [e.Stop(e.StopKind.ASKED, _stopped_at(record))]
        due_s = self._waiting.next_s()
        if due_s is not None:
            return self._wake_at(due_s)
        if not self.planning.nothing_left:
            return []
        if self.settings.emits_final and not record.finished:
            opening = NextWindow((), (), record.offsets, final=True, time_ms=self.wall_ms())
            return self._change(lambda current: records.open_next(current, opening), Opening)
        return [e.Stop(e.StopKind.DRAINED, f"all input is processed, last window {record.sealed}")]

    def _wake_at(self, at_s: float) -> list[e.Action]:
        if self._woken_s == at_s:
            return []
        self._woken_s = at_s
        return [e.Wake(at_s)]

    # -- running

    def _begin(self, intent: Intent) -> list[e.Action]:
        progress = self._progress.setdefault(intent.window, Progress(intent))
        if progress.remaining == 0 and not intent.final:
            return self._end_window(SealDraft(None, progress, 0))
        if self.draining:
            return self._finish_draining()
        if self._now_s < self._hold_until_s:
            return self._make_room()
        assert self.record is not None
        self._perhaps_run = (intent,)
        number = self._numbers.get(intent.window, WindowAttempt(0))
        plan = self._attempt_plan(self.record, intent, number, progress)
        if self.preparing.take(plan):
            self._become(Running(plan.id))
            return [e.Run(plan, prepared=True)]
        dropped = self.preparing.drop(self._forgetting)
        number = WindowAttempt(number + 1)
        self._numbers[intent.window] = number
        plan = self._attempt_plan(self.record, intent, number, progress)
        self._become(Running(plan.id))
        opened = [e.OpenLog(plan.id, intent.roots)] if self.settings.tracking else []
        return [*dropped, *opened, e.Run(plan)]

    def _make_room(self) -> list[e.Action]:
        """While a state server is full: what sinks have shown is noted, and can then be deleted."""
        assert self.record is not None
        if self._refused and self.publishing.confirmed > self.record.published:
            return self._change(lambda current: current)
        return []

    def _finish_draining(self) -> list[e.Action]:
        assert self.record is not None
        if self.publishing.confirmed > self.record.published:
            return self._change(lambda current: current)
        if self.record.unpublished:
            return []
        return [e.Stop(e.StopKind.ASKED, _stopped_at(self.record))]

    def _run_done(self, event: e.RunDone) -> list[e.Action]:
        progress = self._progress[event.id.window]
        found = find_winners(event.shape, event.reports, progress.intent.roots)
        if isinstance(found, Inconsistent):
            return self._judge(event.id, Died(found.reason, Evidence.NONE))
        doubted = holes.doubt(found, event.reports, progress.intent, progress.holes)
        self._progress[event.id.window] = replace(progress, holes=holes.joined(found.holes()))
        if doubted:
            return self._judge(event.id, Died(doubted, Evidence.NONE))
        if not self.settings.tracking:
            return self._judge(event.id, self._judged(event.id, found, None), found)
        marker = self.close_marker(event.id, progress, found, event.reports)
        self._become(Judging(event.id, found, marker))
        return [e.AskVerdict(marker)]

    def close_marker(
        self,
        attempt: AttemptId,
        progress: Progress,
        winners: Winners,
        reports: tuple[TaskReport, ...],
    ) -> CloseMarker:
        """Name the winners; ``reports`` may hold losers too, which do not count."""
        named = tuple((r.task, r.partitions) for r in winners.reports)
        excluded = frozenset(progress.failed)
        read, empty = winners.roots_read(), winners.holes()
        return CloseMarker(attempt, progress.intent, excluded, named, read, empty, winners.acks())

    def _run_died(self, event: e.RunDied) -> list[e.Action]:
        if event.ended:
            # Nobody failed, so nothing counts, however often.
            text = f"attempt {event.id.attempt} of window {event.id.window}: {event.reason}"
            return [
                *self._run_over(cancel=True),
                e.Notify("WindowRunAgain", text, event.id.window),
            ]
        if event.member_lost:
            notice = e.Notify("WindowHeldUp", event.reason, event.id.window, warning=True)
            # That a server is full is told once, and not by every attempt.
            notices = [] if event.full else [notice]
            self._refused = min(self._refused + 1, FULL_HOLDS + 1) if event.full else 0
            if event.full:
                self._tight_until_s = self._now_s + TIGHT_S
            self._hold_until_s = self._now_s + HOLD_S * 2.0 ** max(self._refused - 1, 0)
            actions = [*notices, *self._run_over(cancel=False), e.Wake(self._hold_until_s)]
            # What holds the window up may last: nothing may pile up until the next commit.
            assert self.record is not None
            return actions + self._forget(self.record, self.record)
        return self._judge(event.id, Died(event.reason, event.evidence))

    def _verdict_given(self, event: e.VerdictGiven) -> list[e.Action]:
        assert isinstance(self.doing, Judging)
        verdict, marker, winners = event.verdict, self.doing.marker, self.doing.winners
        expected = marker.intent.roots - len(marker.excluded)
        if verdict.complete + len(verdict.incomplete) != expected:
            # Roots that no acker has judged are not complete.
            verdict = replace(verdict, window_complete=False)
        return self._judge(verdict.id, self._judged(verdict.id, winners, verdict), winners)

    def _verdict_lost(self, event: e.VerdictLost) -> list[e.Action]:
        notice = e.Notify("AckLogLost", "the ack log is gone", event.id.window, warning=True)
        return [notice, *self._run_over(cancel=False)]

    def _end_attempt(self, cancel: bool) -> list[e.Action]:
        """What the attempt that runs has written can be forgotten."""
        ended = self.attempt
        if ended is None:
            return []
        self._forgetting.given_up(ended)
        return [e.Cancel(ended)] if cancel else []

    def _run_over(self, cancel: bool) -> list[e.Action]:
        """End the attempt, for another one or for good."""
        actions = self._end_attempt(cancel)
        self._become(Idle())
        return actions

    # -- deciding

    def _judged(self, attempt: AttemptId, winners: Winners, verdict: Verdict | None) -> Judged:
        intent = self._progress[attempt.window].intent
        limited = self.settings.guarantee is not Guarantee.AT_MOST_ONCE
        most = self.settings.backoff.max_replays if limited else None
        return judged(intent, winners, verdict, most)

    def _judge(
        self, attempt: AttemptId, outcome: Judged | Died, winners: Winners | None = None
    ) -> list[e.Action]:
        window = attempt.window
        decision = decide(self._progress[window], outcome, self.settings.guarantee)
        self._progress[window] = decision.progress
        cancel = isinstance(outcome, Died)
        text = f"attempt {attempt.attempt} of window {window}: "
        match decision:
            case SealIt(progress, dropped):
                self._forgetting.sealed(attempt)
                return self._end_window(SealDraft(winners, progress, dropped))
            case DropIt(progress, reason):
                said = f"window {window} is dropped (AtMostOnce): {reason}"
                notice = e.Notify("RootsDropped", said, window, warning=True)
                draft = SealDraft(None, progress, progress.intent.roots)
                return [*self._end_attempt(cancel), notice, *self._end_window(draft)]
            case RunAgain(_, reason, pause_s):
                ended = self._run_over(cancel)
                return [*ended, *self._run_again(text + reason, window, pause_s)]
            case GiveUp(_, kind, reason):
                return [*self._run_over(cancel), e.Stop(kind, f"window {window}: {reason}")]
            case SplitIt(progress, at, reason):
                ended = self._end_attempt(cancel)
                self._become(Splitting(decision))
                notice = e.Notify("WindowSplit", text + reason, window, warning=True)
                return [*ended, notice, e.Split(progress.intent, at)]
            case _:
                assert_never(decision)

    def _run_again(self, text: str, window: WindowNumber, pause_s: float) -> list[e.Action]:
        if not pause_s:
            return [e.Notify("WindowRunAgain", text, window, warning=True)]
        self._hold_until_s = self._now_s + pause_s
        text = f"{text}; it runs again in {pause_s:g} s"
        notice = e.Notify("WindowRunAgain", text, window, warning=True)
        # What was written in vain may be much: it does not wait for the next commit.
        assert self.record is not None
        return [notice, e.Wake(self._hold_until_s), *self._forget(self.record, self.record)]

    def _split_done(self, event: e.SplitDone) -> list[e.Action]:
        assert isinstance(self.doing, Splitting)
        splitting = self.doing.decision
        first = replace(event.first, window=event.window)
        second = replace(event.second, window=records.following(event.window))
        low, high = halves(splitting.progress, splitting.at, first, second)
        moved = {records.following(w): p for w, p in self._progress.items() if w > event.window}
        self._progress = {
            **{w: replace(p, intent=replace(p.intent, window=w)) for w, p in moved.items()},
            event.window: low,
            records.following(event.window): high,
        }
        return self._change(lambda current: self.split_record(current, first, second), Halving)

    def split_record(self, record: Record, first: Intent, second: Intent) -> Record:
        return records.split(record, first, second)

    def _end_window(self, draft: SealDraft) -> list[e.Action]:
        """All that failed is known: write dead letters first, if there are any, then seal."""
        progress = draft.progress
        if self.settings.guarantee is Guarantee.AT_MOST_ONCE:
            # Those that failed are lost, also where an attempt before this one said so.
            dropped = min(draft.dropped + len(progress.failed), progress.intent.roots)
            return self._seal(replace(draft, dropped=dropped))
        replays, letters = records.set_aside(
            progress.intent, progress.failed.values(), self.settings.backoff, self.locate
        )
        draft = replace(draft, replays=replays, letters=letters)
        if letters:
            return self._too_many(draft) or self._write_letters(draft)
        return self._seal(draft)

    def _too_many(self, draft: SealDraft) -> list[e.Action]:
        """Stop before letters are sealed of which there are more than the user allows."""
        assert self.record is not None
        text = too_many(self.record.cohorts, draft, self.settings.dead_limit)
        return [e.Stop(e.StopKind.DEAD_LETTERS, text)] if text else []

    def _write_letters(self, draft: SealDraft) -> list[e.Action]:
        """Write them under a name that no ending of this window under another view had: only an
        answer that is about the owners of today may seal.

        What they stand behind is read from the committed record, which no other follows before the
        one that seals them.
        """
        assert self.record is not None
        stamp, window = self.membership.stamp, draft.progress.intent.window
        number = self._numbers.get(window, WindowAttempt(0))
        name = str(LettersObject(AttemptId(stamp.execution, window, number), stamp.epoch))
        most = self.settings.letters_together
        after = records.to_carry_over(self.record, len(draft.letters), most)
        writing = WritingLetters(draft, name, after)
        self._become(writing)
        return [self._store_letters(writing)]

    def _store_letters(self, writing: WritingLetters) -> e.Action:
        window, letters = writing.draft.progress.intent.window, writing.draft.letters
        return e.WriteDead(writing.name, self.membership.stamp, window, letters, writing.after)

    def _dead_written(self, event: e.DeadWritten) -> list[e.Action]:
        assert isinstance(self.doing, WritingLetters)
        draft, carried = self.doing.draft, event.carried and self.doing.after is not None
        window, letters = draft.progress.intent.window, draft.letters
        dead = counted(len(letters), "dead letter")
        text = f"window {window} is sealed with {dead}: {told(causes(letters))}"
        segment = DeadSegment(event.name, window, len(letters))
        stored = replace(draft, dead=segment, carried=carried)
        return [e.Notify("DeadLetters", text, window, warning=True), *self._seal(stored)]

    def _seal(self, draft: SealDraft) -> list[e.Action]:
        outcome = outcome_of(draft, self.settings.callbacks)
        return self._change(lambda record: self._with_next(records.seal(record, outcome)), Sealing)

    # -- publishing

    def _publish_next(self, record: Record) -> list[e.Action]:
        return self.publishing.next(record, self.membership.execution)

    # -- requests

    def _stop_asked(self) -> list[e.Action]:
        self.draining = True
        dropped = self.preparing.drop(self._forgetting)
        if not isinstance(self.doing, Running | Judging | Splitting):
            return dropped
        return [*dropped, *self._run_over(cancel=True)]


def _nobody_told(_: str) -> None:
    """Stands for the caller until it says what is to be done."""


def _stopped_at(record: Record) -> str:
    text = f"stopped behind window {record.sealed}"
    return text if record.sealed else "stopped before a window was sealed"


def _piled_up(before: Record, now: Record) -> list[e.Action]:
    """Each object of dead letters stays in the record, which is written with every window."""
    if len(now.dead) // MANY_DEAD <= len(before.dead) // MANY_DEAD:
        return []
    text = (
        f"{records.dead_letters(now):,} dead letters are held in {len(now.dead):,} objects, and "
        "whatever window is sealed takes longer for them: replay them or drop them "
        "(millrace dead-letters)"
    )
    return [e.Notify("DeadLettersPileUp", text, now.sealed, warning=True)]
