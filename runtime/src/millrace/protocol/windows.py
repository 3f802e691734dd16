"""One window after the other: plan, run, find_winners, decide, seal, publish, forget.

The machine holds three things: the last committed record, at most one record write on its way,
and at most one window attempt. ``advance`` is called after every event and starts whatever the
committed record allows; nothing is started while a write is on its way (rule 4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from millrace.ids import NO_WINDOW, WindowAttempt, WindowNumber
from millrace.protocol import cohorts, edits
from millrace.protocol import events as e
from millrace.protocol import record as records
from millrace.protocol.causes import causes, counted, told
from millrace.protocol.decide import (
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
from millrace.protocol.membership import Membership, RecordWrite
from millrace.protocol.names import LettersObject
from millrace.protocol.record import Opening, Outcome
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
    Replay,
    Roots,
    Segment,
    Staged,
    TaskReport,
    Verdict,
)
from millrace.protocol.waiting import Waiting
from millrace.protocol.winners import Inconsistent, Winners, find_winners

Change = Callable[[Record], Record]

SWEEP_WINDOWS = 256
"""How often objects of losing task attempts are looked for, in windows."""

HOLD_S = 1.0
"""Pause before a window runs again that met a lost state server."""


@dataclass(slots=True)
class Attempt:
    """The running window attempt."""

    id: AttemptId
    winners: Winners | None = None
    marker: CloseMarker | None = None


@dataclass(slots=True)
class SealDraft:
    """A window that may be sealed, and what it still waits for."""

    winners: Winners | None
    progress: Progress
    dropped: int
    replays: tuple[Replay, ...] = ()
    letters: tuple[Replay, ...] = ()
    name: str = ""
    dead: DeadSegment | None = None


@dataclass(slots=True)
class Ahead:
    """Input that the sources found behind the planned offsets."""

    token: int = 0
    asked: bool = False
    found: e.Planned | None = None
    drained: bool = False


@dataclass(slots=True)
class Forgettable:
    """What can be forgotten once the next record is committed."""

    attempts: list[AttemptId] = field(default_factory=list)
    sweep: bool = True


class Windows:
    """The machine of this module; ``Driver`` feeds it while the view is open."""

    def __init__(self, settings: Settings, membership: Membership, locate: records.Locate) -> None:
        self.settings = settings
        self.membership = membership
        self.locate = locate
        self.record: Record | None = None
        self.sinks_fenced = False
        self.draining = False
        self._write: RecordWrite | None = None
        self._progress: dict[WindowNumber, Progress] = {}
        self._attempt: Attempt | None = None
        self._ending: SealDraft | None = None
        self._splitting: SplitIt | None = None
        self._numbers: dict[WindowNumber, WindowAttempt] = {}
        self._ahead = Ahead()
        self._ended = Forgettable()
        self._publishing: WindowNumber | None = None
        self._retry_publish = False
        self._confirmed = NO_WINDOW
        self._requests: dict[str, e.DeadLetterRequest] = {}
        self._handlers: dict[type, Callable[..., list[e.Action]]] = {
            e.Planned: self._planned,
            e.PlanFailed: self._plan_failed,
            e.RunDone: self._run_done,
            e.RunDied: self._run_died,
            e.RunFailed: self._run_failed,
            e.VerdictGiven: self._verdict_given,
            e.VerdictLost: self._verdict_lost,
            e.DeadWritten: self._dead_written,
            e.SplitDone: self._split_done,
            e.Published: self._published,
            e.PublishFailed: self._publish_failed,
            e.DeadLetterRequest: self._requested,
            e.StopAsked: self._stop_asked,
        }
        self._now_s = 0.0
        self._waiting = Waiting()
        self._hold_until_s = 0.0
        self._woken_s: float | None = None
        self._interrupted = False

    # -- what the driver machine calls

    def resume(self, record: Record) -> list[e.Action]:
        """Go on from a record that has just been committed by a write-back."""
        self.record = record
        self._ahead = Ahead(token=self._ahead.token + 1)
        self._progress = {
            i.window: self._progress[i.window]
            for i in record.intents
            if i.window in self._progress and self._progress[i.window].intent == i
        }
        self._ended.sweep = True
        self._interrupted = bool(record.intents)
        return self._report(record)

    def _abandon(self, record: Record) -> list[e.Action]:
        """AtMostOnce: what was open when this driver began, or its members changed, is lost."""
        dropped = sum(i.roots for i in record.intents)
        text = f"{dropped} roots that were being processed are dropped (AtMostOnce)"
        notice = e.Notify("RootsDropped", text, record.intents[0].window, warning=True)
        return [notice, *self._change(records.abandon)]

    def suspend(self) -> list[e.Action]:
        """Give up the running attempt and any unfinished write: the members change."""
        actions = self._end_attempt(cancel=True)
        self._write = None
        self._ending = None
        self._splitting = None
        return actions

    def between(self) -> bool:
        """Whether no window attempt runs and no write is on its way."""
        return self._attempt is None and self._write is None and self._ending is None

    def waits(self) -> bool:
        """Whether something waits for state servers that it cannot name, other than a write."""
        letters = self._ending is not None
        judged = self._attempt is not None and self._attempt.marker is not None
        return letters or judged or self._retry_publish or self._now_s < self._hold_until_s

    def handle(self, event: e.Event, now_s: float) -> list[e.Action]:
        self._now_s = now_s
        return self._handlers[type(event)](event)

    def acknowledged(self, event: e.RecordAck) -> list[e.Action]:
        if self._write is None or not self._write.acknowledge(event):
            return []
        record = self._write.record
        self._write = None
        return self.committed(record)

    def resend(self) -> list[e.Action]:
        """Send again what has no answer yet."""
        actions: list[e.Action] = self._write.send() if self._write else []
        if self._ending is not None:
            actions += self._write_letters(self._ending)
        if self._attempt is not None and self._attempt.marker is not None:
            actions.append(e.AskVerdict(self._attempt.marker))
        if self._splitting is not None:
            assert self.record is not None
            actions.append(e.Split(self.record.intents[0], self._splitting.at))
        if self._retry_publish:
            self._retry_publish = False
            self._publishing = None
        return actions

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
        if self._write is not None:
            return actions
        if self._interrupted and self.settings.guarantee is Guarantee.AT_MOST_ONCE:
            self._interrupted = False
            return actions + self._abandon(record)
        if edited:
            return actions + self._edit(record)
        if self._attempt is None and self._ending is None and self._splitting is None:
            if record.intents:
                actions += self._begin(record.intents[0])
            else:
                actions += self._idle(record)
        return actions + self._ask_ahead(record)

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
        if any(one.window > self._confirmed for one in record.unpublished):
            return []
        text, loses = edits.told(record, components, self.settings.drop_removed)
        notice = e.Notify("TopologyEdited", text, record.sealed, warning=loses)
        return [*([notice] if text else []), *self._change(self.edited)]

    def edited(self, record: Record) -> Record:
        assert self.settings.components is not None
        return edits.apply_edit(record, self.settings.components)[0]

    # -- record writes

    def _change(self, change: Change) -> list[e.Action]:
        """Write the record that ``change`` makes of the committed one, with what is pending."""
        assert self.record is not None
        assert self._write is None
        changed = change(records.mark_published(self.record, self._confirmed))
        for request in self._requests.values():
            changed = records.take_letters(
                changed, request.segment, request.indexes, request.replays
            )
        self._requests = {}
        written = replace(changed, tag=self.membership.next_tag())
        view = self.membership.view
        assert view is not None
        self._write = RecordWrite.to(view.target, self.membership.stamp, written)
        return self._write.send()

    def committed(self, record: Record) -> list[e.Action]:
        """A record is final: act on it, and forget what it no longer needs."""
        previous = self.record
        assert previous is not None
        self.record = record
        if self._ahead.found is not None and self._ahead.found.offsets == record.offsets:
            self._ahead = Ahead(token=self._ahead.token + 1, drained=self._ahead.drained)
        known = {i.window for i in record.intents}
        self._progress = {w: p for w, p in self._progress.items() if w in known}
        self._numbers = {w: n for w, n in self._numbers.items() if w > record.sealed}
        return [*self._report(record), *self._forget(previous, record)]

    def _report(self, record: Record) -> list[e.Action]:
        return [e.Committed(record, self.membership.version)]

    def _forget(self, before: Record, now: Record) -> list[e.Action]:
        needed = records.needed_objects(now)
        names = tuple(sorted(records.needed_objects(before) - needed))
        attempts = tuple(self._ended.attempts)
        if now.sealed % SWEEP_WINDOWS == 0 and now.sealed > before.sealed:
            self._ended.sweep = True
        if not (names or attempts or self._ended.sweep):
            return []
        keep = needed if self._ended.sweep else None
        self._ended = Forgettable(sweep=False)
        return [e.Forget(self.membership.stamp, now.sealed, names, attempts, keep)]

    # -- planning

    def _ask_ahead(self, record: Record) -> list[e.Action]:
        ahead = self._ahead
        full = len(record.unpublished) > self.settings.max_unpublished
        if ahead.asked or ahead.drained or self.draining or full:
            return []
        ahead.asked = True
        return [e.Plan(ahead.token, record.offsets)]

    def _planned(self, event: e.Planned) -> list[e.Action]:
        if event.token != self._ahead.token or self._ahead.found is not None:
            return []
        self._ahead.drained = event.drained
        if event.ranges:
            self._ahead.found = event
        return []

    def _plan_failed(self, event: e.PlanFailed) -> list[e.Action]:
        return [e.Stop(e.StopKind.FAILED, event.text)] if event.token == self._ahead.token else []

    def _opening(self, record: Record) -> Opening | None:
        """The next window: due replays in a window of their own, else what was planned.

        Nothing new while very many replays wait, since all of them are part of the record.
        """
        if self.draining:
            return None
        replays = self._waiting.due(record.replays, self._now_s, self.settings.max_records)
        if replays:
            return Opening((), replays, record.offsets)
        found = self._ahead.found
        if found is None or len(record.replays) >= self.settings.max_waiting:
            return None
        return Opening(found.ranges, (), found.offsets)

    def _with_next(self, record: Record) -> Record:
        """Opening w+1 and sealing w are one write."""
        if record.intents:
            return record
        opening = self._opening(record)
        return records.open_next(record, opening) if opening is not None else record

    def _idle(self, record: Record) -> list[e.Action]:
        opening = self._opening(record)
        if opening is not None:
            return self._change(self._with_next)
        if self._requests or self._confirmed > record.published:
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
        if not self._ahead.drained or self._ahead.found is not None:
            return []
        if self.settings.emits_final and not record.finished:
            opening = Opening((), (), record.offsets, final=True)
            return self._change(lambda current: records.open_next(current, opening))
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
            return []
        number = WindowAttempt(self._numbers.get(intent.window, 0) + 1)
        self._numbers[intent.window] = number
        attempt = AttemptId(self.membership.execution, intent.window, number)
        self._attempt = Attempt(attempt)
        assert self.record is not None
        plan = AttemptPlan(
            attempt,
            self.membership.stamp,
            intent,
            frozenset(progress.failed),
            progress.uncombined,
            self.record.chains,
        )
        opened = [e.OpenLog(attempt, intent.roots)] if self.settings.tracking else []
        return [*opened, e.Run(plan)]

    def _finish_draining(self) -> list[e.Action]:
        assert self.record is not None
        if self._confirmed > self.record.published:
            return self._change(lambda current: current)
        if self.record.unpublished:
            return []
        return [e.Stop(e.StopKind.ASKED, _stopped_at(self.record))]

    def _run_done(self, event: e.RunDone) -> list[e.Action]:
        attempt = self._current(event.id)
        if attempt is None or attempt.winners is not None:
            return []
        progress = self._progress[event.id.window]
        found = find_winners(event.shape, event.reports, progress.intent.roots)
        if isinstance(found, Inconsistent):
            return self._judge(Died(found.reason, Evidence.NONE))
        attempt.winners = found
        if not self.settings.tracking:
            return self._judge(self._judged(found, None))
        attempt.marker = self.close_marker(attempt.id, progress, found, event.reports)
        return [e.AskVerdict(attempt.marker)]

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
        return CloseMarker(attempt, progress.intent, excluded, named, winners.roots_read())

    def _run_died(self, event: e.RunDied) -> list[e.Action]:
        if self._current(event.id) is None:
            return []
        if event.member_lost:
            notice = e.Notify("WindowHeldUp", event.reason, event.id.window, warning=True)
            self._hold_until_s = self._now_s + HOLD_S
            actions = [notice, *self._end_attempt(cancel=False), e.Wake(self._hold_until_s)]
            # What holds the window up may last: nothing may pile up until the next commit.
            assert self.record is not None
            return actions + self._forget(self.record, self.record)
        return self._judge(Died(event.reason, event.evidence))

    def _run_failed(self, event: e.RunFailed) -> list[e.Action]:
        return [e.Stop(e.StopKind.FAILED, event.text)] if self._current(event.id) else []

    def _verdict_given(self, event: e.VerdictGiven) -> list[e.Action]:
        verdict = event.verdict
        attempt = self._current(verdict.id)
        if attempt is None or attempt.marker is None:
            return []
        assert attempt.winners is not None
        judged = attempt.marker.intent.roots - len(attempt.marker.excluded)
        if verdict.complete + len(verdict.incomplete) != judged:
            # Roots that no acker has judged are not complete.
            verdict = replace(verdict, window_complete=False)
        return self._judge(self._judged(attempt.winners, verdict))

    def _verdict_lost(self, event: e.VerdictLost) -> list[e.Action]:
        attempt = self._current(event.id)
        if attempt is None or attempt.winners is None:
            return []
        notice = e.Notify("AckLogLost", "the ack log is gone", event.id.window, warning=True)
        return [notice, *self._end_attempt(cancel=False)]

    def _current(self, attempt: AttemptId) -> Attempt | None:
        if self._attempt is None or self._attempt.id != attempt:
            return None
        return self._attempt

    def _end_attempt(self, cancel: bool) -> list[e.Action]:
        if self._attempt is None:
            return []
        ended = self._attempt.id
        self._ended.attempts.append(ended)
        self._ended.sweep = True
        self._attempt = None
        return [e.Cancel(ended)] if cancel else []

    # -- deciding

    def _judged(self, winners: Winners, verdict: Verdict | None) -> Judged:
        """What tasks and ackers say. Nobody failed on a root that only lost tuples: it is
        replayed as long as it may be, and then stops the run rather than being blamed."""
        assert self._attempt is not None
        intent = self._progress[self._attempt.id.window].intent
        failed = {f.sequence: f for report in winners.reports for f in report.failed}
        incomplete = verdict.incomplete if verdict is not None else ()
        lost = tuple(root for root in incomplete if root.sequence not in failed)
        if verdict is not None and verdict.window_complete:
            # What the ackers found complete did go somewhere, whatever its source says. Of a slice
            # that misses a message they name no root at all.
            broken = {root.sequence for root in incomplete}
            for root in [f for s, f in failed.items() if s not in broken]:
                failed[root.sequence] = replace(root, unreadable=False)
        return Judged(
            tuple(failed.values()),
            tuple(c for report in winners.reports for c in report.combined_failures),
            verdict is None or verdict.window_complete,
            lost,
            any(self._is_last_try(intent, root.sequence) for root in lost),
        )

    def _is_last_try(self, intent: Intent, sequence: int) -> bool:
        """Whether the root is dead if it is set aside once more."""
        if self.settings.guarantee is Guarantee.AT_MOST_ONCE:
            return False
        replay = sequence - (intent.roots - len(intent.replays))
        done = intent.replays[replay].number if replay >= 0 else 0
        return done >= self.settings.backoff.max_replays

    def _judge(self, outcome: Judged | Died) -> list[e.Action]:
        attempt = self._attempt
        assert attempt is not None
        window = attempt.id.window
        decision = decide(self._progress[window], outcome, self.settings.guarantee)
        self._progress[window] = decision.progress
        if isinstance(decision, SealIt):
            self._ended.attempts.append(attempt.id)
            self._attempt = None
            return self._end_window(SealDraft(attempt.winners, decision.progress, decision.dropped))
        actions = self._end_attempt(cancel=isinstance(outcome, Died))
        if isinstance(decision, DropIt):
            text = f"window {window} is dropped (AtMostOnce): {decision.reason}"
            actions.append(e.Notify("RootsDropped", text, window, warning=True))
            dropped = decision.progress.intent.roots
            return actions + self._end_window(SealDraft(None, decision.progress, dropped))
        text = f"attempt {attempt.id.attempt} of window {window}: {decision.reason}"
        if isinstance(decision, RunAgain):
            return [*actions, *self._run_again(text, window, decision.pause_s)]
        if isinstance(decision, GiveUp):
            return [*actions, e.Stop(decision.kind, f"window {window}: {decision.reason}")]
        self._splitting = decision
        split = e.Split(decision.progress.intent, decision.at)
        return [*actions, e.Notify("WindowSplit", text, window, warning=True), split]

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
        splitting = self._splitting
        if splitting is None:
            return []
        assert self.record is not None
        whole = self.record.intents[0]
        if whole.window != event.window:
            return []
        if not records.is_cut(whole, splitting.at, event.first, event.second):
            # A late answer: the window has been split since, and its first half kept the number.
            return []
        self._splitting = None
        first = replace(event.first, window=event.window)
        second = replace(event.second, window=records.following(event.window))
        low, high = halves(splitting.progress, splitting.at, first, second)
        moved = {records.following(w): p for w, p in self._progress.items() if w > event.window}
        self._progress = {
            **{w: replace(p, intent=replace(p.intent, window=w)) for w, p in moved.items()},
            event.window: low,
            records.following(event.window): high,
        }
        return self._change(lambda current: self.split_record(current, first, second))

    def split_record(self, record: Record, first: Intent, second: Intent) -> Record:
        return records.split(record, first, second)

    def _end_window(self, ending: SealDraft) -> list[e.Action]:
        """All that failed is known: write dead letters first, if there are any, then seal."""
        self._ending = ending
        progress = ending.progress
        if self.settings.guarantee is Guarantee.AT_MOST_ONCE:
            # Roots that an attempt left out, since one before it broke, are lost with the others.
            ending.dropped = min(ending.dropped + len(progress.failed), progress.intent.roots)
            return self._seal(ending)
        ending.replays, ending.letters = records.set_aside(
            progress.intent, progress.failed.values(), self.settings.backoff, self.locate
        )
        if ending.letters:
            return self._too_many(ending) or self._write_letters(ending)
        return self._seal(ending)

    def _too_many(self, ending: SealDraft) -> list[e.Action]:
        """Stop before letters are sealed of which there are more than the user allows."""
        assert self.record is not None
        intent, letters, limit = ending.progress.intent, ending.letters, self.settings.dead_limit
        after = cohorts.judge(self.record.cohorts, intent, ending.replays, letters)
        worst = cohorts.worst(after, intent, letters, limit)
        if worst is None:
            return []
        judged = worst.done + worst.dead
        text = (
            f"window {intent.window} is not sealed: {worst.dead} of {judged} roots that were read "
            f"together fail for good, more than spec.deadLetters.maxShare ({limit.percent}%) "
            f"allows: {told(causes(letters))}. Nothing is lost; mend the cause and run again, or "
            'raise spec.deadLetters.maxShare ("100%" makes a dead letter of each)'
        )
        return [e.Stop(e.StopKind.DEAD_LETTERS, text)]

    def _write_letters(self, ending: SealDraft) -> list[e.Action]:
        """Write them under a name that no ending of this window under another view had: only an
        answer that is about the owners of today may seal."""
        stamp, window = self.membership.stamp, ending.progress.intent.window
        number = self._numbers.get(window, WindowAttempt(0))
        attempt = AttemptId(stamp.execution, window, number)
        ending.name = str(LettersObject(attempt, stamp.epoch))
        return [e.WriteDead(ending.name, stamp, window, ending.letters)]

    def _dead_written(self, event: e.DeadWritten) -> list[e.Action]:
        ending = self._ending
        if ending is None or event.name != ending.name:
            return []
        window = ending.progress.intent.window
        ending.dead = DeadSegment(event.name, window, len(ending.letters))
        dead = counted(len(ending.letters), "dead letter")
        text = f"window {window} is sealed with {dead}: {told(causes(ending.letters))}"
        return [e.Notify("DeadLetters", text, window, warning=True), *self._seal(ending)]

    def _seal(self, ending: SealDraft) -> list[e.Action]:
        segments, staged = _outputs(ending.winners)
        roots = None
        if self.settings.callbacks:
            # The record is written with every window: it stays small without traces.
            letters = tuple(replace(letter, trace="") for letter in ending.letters)
            roots = Roots(ending.progress.intent, ending.replays, letters)
        outcome = Outcome(
            segments,
            staged,
            ending.replays,
            ending.dead,
            ending.dropped,
            roots,
            ending.letters,
        )
        self._ending = None
        return self._change(lambda record: self._with_next(records.seal(record, outcome)))

    # -- publishing

    def _publish_next(self, record: Record) -> list[e.Action]:
        """Publish committed windows in order, one at a time (rule 4)."""
        if self._publishing is not None:
            return []
        for sealed in record.unpublished:
            if sealed.window > self._confirmed:
                self._publishing = sealed.window
                return [e.Publish(sealed, self.membership.execution)]
        return []

    def _published(self, event: e.Published) -> list[e.Action]:
        if event.window == self._publishing:
            self._publishing = None
            self._retry_publish = False
        self._confirmed = max(self._confirmed, event.window)
        return []

    def _publish_failed(self, event: e.PublishFailed) -> list[e.Action]:
        self._retry_publish = True
        return [e.Notify("PublishFailed", event.text, event.window, warning=True)]

    # -- requests

    def _requested(self, event: e.DeadLetterRequest) -> list[e.Action]:
        self._requests[event.token] = event
        return []

    def _stop_asked(self, _: e.StopAsked) -> list[e.Action]:
        self.draining = True
        self._splitting = None
        return self._end_attempt(cancel=True)


def _stopped_at(record: Record) -> str:
    text = f"stopped behind window {record.sealed}"
    return text if record.sealed else "stopped before a window was sealed"


def _outputs(
    winners: Winners | None,
) -> tuple[tuple[tuple[str, Segment], ...], tuple[Staged, ...]]:
    if winners is None:
        return (), ()
    segments = tuple(s for report in winners.reports for s in report.segments)
    staged = sorted(
        (s for report in winners.reports for s in report.staged), key=lambda s: (s.sink, s.name)
    )
    return segments, tuple(staged)
