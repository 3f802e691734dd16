"""Deliberate bugs of the machine of windows and of the driver around it."""

from __future__ import annotations

import itertools
from dataclasses import replace

from millrace.protocol import events as e
from millrace.protocol import record as records
from millrace.protocol.driver import Driver
from millrace.protocol.membership import Membership
from millrace.protocol.settings import Settings
from millrace.protocol.types import (
    AttemptId,
    AttemptPlan,
    Evidence,
    Intent,
    Record,
    Sealed,
    TaskId,
    Verdict,
)
from millrace.protocol.windows.decide import Died, Judged, Progress
from millrace.protocol.windows.doing import (
    Idle,
    Judging,
    Noting,
    SealDraft,
    Splitting,
    WindowEvent,
    Writing,
    WritingLetters,
)
from millrace.protocol.windows.machine import Change, Windows
from millrace.protocol.windows.preparing import Preparing
from millrace.protocol.winners import Winners


class ActBeforeCommit(Windows):
    """The first acknowledgement is enough."""

    def acknowledged(self, event: e.RecordAck) -> list[e.Action]:
        write = self.writing
        if write is None or (event.stamp, event.seq) != (write.stamp, write.record.tag.seq):
            return []
        self._become(Idle())
        return self.committed(write.record)


class AckOfOtherRoundCounts(Windows):
    """An acknowledgement counts for whatever is being written."""

    def acknowledged(self, event: e.RecordAck) -> list[e.Action]:
        write = self.writing
        if write is None:
            return []
        return super().acknowledged(e.RecordAck(event.member, write.stamp, write.record.tag.seq))


class PublishBeforeSeal(Windows):
    """Shows a window as soon as its verdict is good."""

    def _seal(self, draft: SealDraft) -> list[e.Action]:
        actions = super()._seal(draft)
        assert self.writing is not None
        sealed: Sealed = self.writing.record.unpublished[-1]
        return [e.Publish(sealed, self.membership.execution), *actions]


class SplitDropsBoundary(Windows):
    """The second half starts one root too late."""

    def split_record(self, record: Record, first: Intent, second: Intent) -> Record:
        head, *rest = second.ranges or (None,)
        if head is not None and second.roots > 1:
            cut = replace(head, start=head.start + 1, count=head.count - 1)
            pieces = (cut, *rest) if cut.count else tuple(rest)
            second = replace(second, ranges=tuple(p for p in pieces if p is not None))
        return super().split_record(record, first, second)


class TimeGoesBack(Windows):
    """A window has the time of the clock, though that was set back."""

    def _with_next(self, record: Record) -> Record:
        following = super()._with_next(record)
        if len(following.intents) == len(record.intents):
            return following
        opened = replace(following.intents[-1], time_ms=self.wall_ms())
        return replace(following, intents=(*following.intents[:-1], opened))


class HalvesHaveTheirOwnTime(Windows):
    """The halves of a window have the time of the split."""

    def split_record(self, record: Record, first: Intent, second: Intent) -> Record:
        halves = (replace(one, time_ms=self.wall_ms()) for one in (first, second))
        return super().split_record(record, *halves)


class IntentNotRerun(Windows):
    """Recovery goes on with the next input instead of the open window."""

    def resume(self, record: Record) -> list[e.Action]:
        return super().resume(replace(record, intents=()))


class ForgetTooEarly(Windows):
    """Deletes what a record no longer needs before that record is committed."""

    def _change(self, change: Change, doing: type[Writing] = Noting) -> list[e.Action]:
        actions = super()._change(change, doing)
        assert self.record is not None
        assert self.writing is not None
        written = self.writing.record
        unneeded = records.needed_objects(self.record) - records.needed_objects(written)
        stamp = self.membership.stamp
        return [e.Forget(stamp, written.sealed, tuple(sorted(unneeded)), ()), *actions]


class MarkBeforeConfirm(Windows):
    """Notes a window as published when it is only about to be."""

    def _publish_next(self, record: Record) -> list[e.Action]:
        actions = super()._publish_next(record)
        shown = self.publishing
        if shown.window is not None:
            shown.confirmed = max(shown.confirmed, shown.window)
        return actions


class EngineFailureBlamesRoots(Windows):
    """Takes every death for a death in user code, and blames the last root that is left."""

    def _run_died(self, event: e.RunDied) -> list[e.Action]:
        return super()._run_died(replace(event, evidence=Evidence.USER_CODE))


class EngineFailureIsForgotten(Windows):
    """Runs a window again that the engine fails, however often it has done so."""

    def _run_died(self, event: e.RunDied) -> list[e.Action]:
        self._progress = {w: replace(p, breakages=0) for w, p in self._progress.items()}
        return super()._run_died(event)


class LossesBlameRoots(Windows):
    """Makes a dead letter of a root whose tuples were lost once too often."""

    def _judged(self, attempt: AttemptId, winners: Winners, verdict: Verdict | None) -> Judged:
        return replace(super()._judged(attempt, winners, verdict), last_try=False)


class UnreadableReplayed(Windows):
    """Replays what no replay can help."""

    def _end_window(self, draft: SealDraft) -> list[e.Action]:
        return super()._end_window(replace(draft, progress=_readable(draft.progress)))


class UnreadableRunsAgain(Windows):
    """Runs a window again for records of which nothing went anywhere."""

    def _judge(
        self, attempt: AttemptId, outcome: Judged | Died, winners: Winners | None = None
    ) -> list[e.Action]:
        bad = isinstance(outcome, Judged) and any(f.unreadable for f in outcome.failed)
        progress = self._progress[attempt.window]
        if bad and not progress.runs:
            assert isinstance(outcome, Judged)
            self._progress[attempt.window] = replace(progress, runs=1)
            text = f"attempt {attempt.attempt} had something unreadable"
            again = e.Notify("WindowRunAgain", text, attempt.window, warning=True)
            return [*self._run_over(cancel=False), again]
        return super()._judge(attempt, outcome, winners)


class ForgetsWhoDied(Windows):
    """Counts dead letters from the start of a driver, so that each start allows a few more."""

    def resume(self, record: Record) -> list[e.Action]:
        return super().resume(replace(record, cohorts=()))


class AllowsAllToDie(Windows):
    """Seals dead letters whatever the limit."""

    def _too_many(self, draft: SealDraft) -> list[e.Action]:
        return []


def _readable(progress: Progress) -> Progress:
    failed = {s: replace(f, unreadable=False, lasting=False) for s, f in progress.failed.items()}
    return replace(progress, failed=failed)


class EditForgetsReplays(Windows):
    """Leaves the replays of removed sources in the queue."""

    def edited(self, record: Record) -> Record:
        return replace(super().edited(record), replays=record.replays)


class EditAppliedAgain(Windows):
    """Every driver applies the edit, whether the record shows it or not."""

    def resume(self, record: Record) -> list[e.Action]:
        return super().resume(replace(record, components=None))


class EditBeforeShown(Windows):
    """Does not wait until what is sealed is shown."""

    def _edit(self, record: Record) -> list[e.Action]:
        return self._change(self.edited)


class PlansBeforeEdit(Windows):
    """Plans behind offsets that are about to be pruned."""

    def advance(self, now_s: float) -> list[e.Action]:
        found = super().advance(now_s)
        return found if found or self.record is None else self._ask_ahead(self.record)


class IgnoresFurtherSinks(Driver):
    """Goes on although a sink shows more than the record knows."""

    def _sink_refused(self, event: e.SinkRefused) -> list[e.Action]:
        if event.behind:
            return self._sinks_fenced(e.SinksFenced(self.membership.execution))
        return super()._sink_refused(event)


class SuspendKeepsSplit(Windows):
    """Goes on with a split that was decided on the word of a run under another view."""

    def suspend(self) -> list[e.Action]:
        doing = self.doing
        actions = super().suspend()
        if isinstance(doing, Splitting):
            self.doing = doing
        return actions


class AnyLettersBelieved(Windows):
    """Takes any object of dead letters that was stored for the one that it waits for."""

    def handle(self, event: WindowEvent, now_s: float) -> list[e.Action]:
        if isinstance(event, e.DeadWritten) and isinstance(self.doing, WritingLetters):
            self.doing = replace(self.doing, name=event.name)
        return super().handle(event, now_s)


class LettersTakenTwice(Windows):
    """A letter that is gone already is taken again as long as others are left beside it."""

    def _change(self, change: Change, doing: type[Writing] = Noting) -> list[e.Action]:
        requests, self._requests = self._requests, {}

        def again(record: Record) -> Record:
            record = change(record)
            for request in requests.values():
                record = _take_again(record, request)
            return record

        return super()._change(again, doing)


def _take_again(record: Record, request: e.DeadLetterRequest) -> Record:
    asked = records.holding(record, request.segment)
    present = tuple(
        replace(one, removed=tuple(n for n in one.removed if n not in request.indexes))
        if one is asked
        else one
        for one in record.dead
    )
    forgetful = replace(record, dead=present)
    return records.take_letters(forgetful, request.segment, request.indexes, request.replays)


class UncoveredRoots(Windows):
    """Does not ask whether the source tasks have read every root of the window."""

    def _run_done(self, event: e.RunDone) -> list[e.Action]:
        intent = self._progress[event.id.window].intent
        shares = (((0, intent.roots),), *itertools.repeat((), len(event.reports)))
        first = [r for r in event.reports if r.task.pass_no == 0]
        told = dict.fromkeys(r.task.partition for r in first)
        covering = tuple(
            replace(r, roots_read=shares[min(1, sorted(told).index(r.task.partition))])
            if r.task.pass_no == 0
            else r
            for r in event.reports
        )
        return super()._run_done(replace(event, reports=covering))


class ReadsUnchecked(Windows):
    """Is content if all readers together have read every partition."""

    def _run_done(self, event: e.RunDone) -> list[e.Action]:
        read: dict[int, set[TaskId]] = {}
        for report in event.reports:
            read.setdefault(report.task.pass_no, set()).update(report.read)
        shared = (replace(r, read=tuple(sorted(read[r.task.pass_no]))) for r in event.reports)
        return super()._run_done(replace(event, reports=tuple(shared)))


class JudgedCountUnchecked(Windows):
    """Believes a verdict that does not speak of all roots."""

    def _verdict_given(self, event: e.VerdictGiven) -> list[e.Action]:
        assert isinstance(self.doing, Judging)
        judged = self.doing.marker.intent.roots - len(self.doing.marker.excluded)
        complete = judged - len(event.verdict.incomplete)
        return super()._verdict_given(e.VerdictGiven(replace(event.verdict, complete=complete)))


class GoesOnWithAnything(Windows):
    """Runs what is left of the attempt that was prepared, whatever window was opened instead."""

    def __init__(self, settings: Settings, membership: Membership, locate: records.Locate) -> None:
        super().__init__(settings, membership, locate)
        self.preparing = _TakesAnything()


class _TakesAnything(Preparing):
    def take(self, plan: AttemptPlan) -> bool:
        if self.plan is None or self.plan.id != plan.id:
            return False
        self.plan = None
        return True


class NeverLooksUp(Driver):
    """Does not notice a successor while it waits for something."""

    def _watch(self) -> list[e.Action]:
        return []

    def _signs_of_life(self) -> list[e.Action]:
        return []


class ShowsUnfenced(Driver):
    """Shows windows on sinks that may still serve an older execution."""

    def _recovered(self) -> list[e.Action]:
        self._fenced_sinks = self.windows.sinks_fenced = True
        return super()._recovered()


class LearnerTakesRecords(Windows):
    """Writes records to those that learn, too."""

    def _change(self, change: Change, doing: type[Writing] = Noting) -> list[e.Action]:
        actions = super()._change(change, doing)
        lesson, write = self.membership._lesson, self.writing
        if lesson is None or write is None:
            return actions
        more = [e.SendRecord(m, write.stamp, write.record) for m in lesson.stamped]
        return [*actions, *more]


class ForgetsNothing(Windows):
    """Lets everything lie that no record needs any more."""

    def _forget(self, before: Record, now: Record) -> list[e.Action]:
        return []
