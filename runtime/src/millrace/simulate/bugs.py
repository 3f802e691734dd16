"""Deliberate protocol bugs: the simulator must catch each of them, or its silence means nothing.

Every bug replaces one production part by a subclass that breaks one rule; nothing else changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

from millrace import ids
from millrace.protocol import acker as a
from millrace.protocol import events as e
from millrace.protocol import record as records
from millrace.protocol.acklog import Open
from millrace.protocol.driver import Driver
from millrace.protocol.membership import Membership, Owners, Standing
from millrace.protocol.record import Locate
from millrace.protocol.server import NotOwner, Reason, StampReply
from millrace.protocol.types import (
    AttemptId,
    CloseMarker,
    Evidence,
    Intent,
    Member,
    Phase,
    Record,
    Sealed,
    Stamp,
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
from millrace.protocol.winners import Winners
from millrace.simulate.machines import Machines
from millrace.simulate.parts.engine import Attempt, Task
from millrace.simulate.parts.flow import Ids
from millrace.simulate.parts.plainfold import PlainFold, PlainMessage
from millrace.simulate.parts.server import ServerModel
from millrace.simulate.world import World


@dataclass(frozen=True, slots=True)
class Bug:
    """``machines`` makes what a run with the bug consists of."""

    name: str
    breaks: str
    machines: Callable[[], Machines]


def _driver(
    windows: type[Windows] = Windows, membership: type[Membership] = Membership
) -> Machines:
    class Broken(Driver):
        def make_membership(self, owners: Owners) -> Membership:
            s = self.settings
            return membership(s.uid, s.copies, s.key_groups, owners)

        def make_windows(self, locate: Locate) -> Windows:
            return windows(self.settings, self.membership, locate)

    return Machines(driver=Broken)


# --- state servers


class NoStampCheck(ServerModel):
    """Takes writes whatever their stamp."""

    def _refuse(self, run_id: str, stamp: Stamp) -> NotOwner | None:
        return None if run_id == self.run_id else NotOwner(Reason.RUN_ID)


class NoRunIdCheck(ServerModel):
    """Takes messages that were meant for an earlier life of the server."""

    def stamp(self, run_id: str, stamp: Stamp) -> StampReply:
        return super().stamp(self.run_id, stamp)

    def _refuse(self, run_id: str, stamp: Stamp) -> NotOwner | None:
        return super()._refuse(self.run_id, stamp)


def _without_fsync(name: str, run_id: str) -> ServerModel:
    return ServerModel(name, run_id, fsync_always=False)


# --- membership


class NoWriteBack(Membership):
    """Acts on what it read, without making it final first."""

    def copied(self, event: e.Copied) -> list[e.Action]:
        assert self.view is not None
        due = self.standing is Standing.COPYING and event.stamp == self.stamp
        if due and self.view.phase is Phase.OPEN:
            self.standing = Standing.RECOVERED
            return []
        return super().copied(event)


class ClaimWithoutCas(Membership):
    """Believes in a claim that the view store has not confirmed."""

    def cas_lost(self, event: e.CasLost) -> list[e.Action]:
        if self.standing is Standing.CLAIMING and event.view == self._cas:
            return self._installed(event.view)
        return super().cas_lost(event)


class StaleMemberIsSource(Membership):
    """Reads the record from members that only join."""

    def _sources(self) -> list[Member]:
        return [m for m in self._to_stamp() if m in self._answers]


class ActsBeforeOpening(Membership):
    """Takes what a moving view recovered for final before the view is open."""

    def acknowledged(self, event: e.RecordAck) -> list[e.Action]:
        actions = super().acknowledged(event)
        if self.standing is Standing.OPENING:
            self.standing = Standing.RECOVERED
        return actions


class StaleFileIsSource(Membership):
    """Reads the record from a restarted server whatever the age of its file."""

    def _recent(self, record: Record | None) -> bool:
        return True


# --- windows


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
    """Replays what no replay can decode."""

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
    failed = {s: replace(f, unreadable=False) for s, f in progress.failed.items()}
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
    present = tuple(
        replace(one, removed=tuple(n for n in one.removed if n not in request.indexes))
        if one.name == request.segment
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


class NeverLooksUp(Driver):
    """Does not notice a successor while it waits for something."""

    def _watch(self) -> list[e.Action]:
        return []

    def _signs_of_life(self) -> list[e.Action]:
        return []


# --- tracking


class LosersApplied(a.AckerMachine[PlainMessage]):
    """Judges by whatever messages there are."""

    def drained(self, attempt: AttemptId, partition: int) -> list[a.AckerAction]:
        held, part = self._waiting(attempt, partition, a.Reading.DRAINING)
        if held is None or part is None:
            return []
        return self._judge(held, partition, part)


class RefusedMessageCounts(a.AckerMachine[PlainMessage]):
    """Judges a slice although a winner's message to it makes no sense."""

    def drained(self, attempt: AttemptId, partition: int) -> list[a.AckerAction]:
        _, part = self._waiting(attempt, partition, a.Reading.DRAINING)
        if part is not None:
            part.refused.clear()
        return super().drained(attempt, partition)


class _FlatFold(PlainFold):
    def __init__(self, opened: Open, partition: int) -> None:
        super().__init__(opened, partition)
        self._turn = dict.fromkeys(opened.edges, 0)


class _FlatIds(Ids):
    def child(self, parent: int, ordinal: int, edge: str) -> int:
        return ids.tuple_id(parent, ordinal, 0)


class _UnseededFold(PlainFold):
    def seed(self, marker: CloseMarker) -> None:
        self._excluded = marker.excluded


class _UnseededAttempt(Attempt):
    def messages(self, task: Task) -> list[PlainMessage]:
        for edge in [edge for edge in task.work.nets if edge.startswith(">")]:
            del task.work.nets[edge]
        return super().messages(task)


class _SameTreeFold(PlainFold):
    def seed(self, marker: CloseMarker) -> None:
        again = tuple(replace(replay, number=0) for replay in marker.intent.replays)
        intent = replace(marker.intent, replays=again)
        super().seed(replace(marker, intent=intent))


class _SameTreeIds(Ids):
    def root(self, root_id: int, replay: int) -> int:
        return super().root(root_id, 0)


def _acker(fold: Callable[[Open, int], PlainFold]) -> Callable[[str], a.AckerMachine[PlainMessage]]:
    return lambda name: a.AckerMachine(name, fold)


# --- workers


class AnswersUnasked(Attempt):
    """Answers for an attempt that nobody has begun, too."""

    def _say(self, event: e.Event) -> None:
        super()._say(event)
        if isinstance(event, e.RunDone):
            later = replace(event.id, attempt=ids.WindowAttempt(event.id.attempt + 1000))
            super()._say(replace(event, id=later))


class SealBeforeObjects(Attempt):
    """Reports state objects without waiting for their owners."""

    def _put(self, task: Task) -> None:
        super()._put(task)
        if task.waiting:
            self._next(self._acknowledge, task)

    def _put_done(self, task: Task) -> None:
        task.waiting -= 1


class ShortReadIsHole(Attempt):
    """Takes what a source did not give, without a word, for offsets without a record."""

    def holes(self, task: Task) -> list[int]:
        return sorted({*super().holes(task), *task.skipped})


BUGS: dict[str, Bug] = {
    bug.name: bug
    for bug in (
        Bug("no_stamp_check", "rule 7", lambda: Machines(server=NoStampCheck)),
        Bug("no_run_id_check", "rule 5", lambda: Machines(server=NoRunIdCheck)),
        Bug("no_fsync", "rule 23", lambda: Machines(server=_without_fsync)),
        Bug("no_write_back", "rule 9", lambda: _driver(membership=NoWriteBack)),
        Bug("claim_without_cas", "rule 8", lambda: _driver(membership=ClaimWithoutCas)),
        Bug("stale_member_is_source", "rule 14", lambda: _driver(membership=StaleMemberIsSource)),
        Bug("acts_before_opening", "rule 16", lambda: _driver(membership=ActsBeforeOpening)),
        Bug("act_before_commit", "rule 4", lambda: _driver(ActBeforeCommit)),
        Bug("ack_of_other_round_counts", "rule 3", lambda: _driver(AckOfOtherRoundCounts)),
        Bug("publish_before_seal", "rule 4", lambda: _driver(PublishBeforeSeal)),
        Bug("split_drops_boundary", "I1", lambda: _driver(SplitDropsBoundary)),
        Bug("intent_not_rerun", "I1", lambda: _driver(IntentNotRerun)),
        Bug("forget_too_early", "rule 22", lambda: _driver(ForgetTooEarly)),
        Bug("mark_before_confirm", "rule 20", lambda: _driver(MarkBeforeConfirm)),
        Bug("engine_failure_blames_roots", "blame", lambda: _driver(EngineFailureBlamesRoots)),
        Bug("engine_failure_is_forgotten", "blame", lambda: _driver(EngineFailureIsForgotten)),
        Bug("losses_blame_roots", "blame", lambda: _driver(LossesBlameRoots)),
        Bug("forgets_who_died", "dead share", lambda: _driver(ForgetsWhoDied)),
        Bug("allows_all_to_die", "dead share", lambda: _driver(AllowsAllToDie)),
        Bug("unreadable_replayed", "records", lambda: _driver(UnreadableReplayed)),
        Bug("unreadable_runs_again", "records", lambda: _driver(UnreadableRunsAgain)),
        Bug("edit_forgets_replays", "edit", lambda: _driver(EditForgetsReplays)),
        Bug("edit_applied_again", "edit", lambda: _driver(EditAppliedAgain)),
        Bug("edit_before_shown", "edit", lambda: _driver(EditBeforeShown)),
        Bug("plans_before_edit", "edit", lambda: _driver(PlansBeforeEdit)),
        Bug("ignores_further_sinks", "older copy", lambda: Machines(driver=IgnoresFurtherSinks)),
        Bug("stale_file_is_source", "rule 24", lambda: _driver(membership=StaleFileIsSource)),
        Bug("suspend_keeps_split", "rule 19", lambda: _driver(SuspendKeepsSplit)),
        Bug("any_letters_believed", "I4", lambda: _driver(AnyLettersBelieved)),
        Bug("letters_taken_twice", "I4", lambda: _driver(LettersTakenTwice)),
        Bug("uncovered_roots", "I1", lambda: _driver(UncoveredRoots)),
        Bug("reads_unchecked", "I3", lambda: _driver(ReadsUnchecked)),
        Bug("judged_count_unchecked", "I3", lambda: _driver(JudgedCountUnchecked)),
        Bug(
            "refused_message_counts",
            "I3",
            lambda: Machines(acker=lambda n: RefusedMessageCounts(n, PlainFold)),
        ),
        Bug("timers_by_wall_clock", "pauses", lambda: Machines(clock=World.wall_clock)),
        Bug("never_looks_up", "liveness", lambda: Machines(driver=NeverLooksUp)),
        Bug("losers_applied", "I3", lambda: Machines(acker=lambda n: LosersApplied(n, PlainFold))),
        Bug("id_without_edge", "I3", lambda: Machines(acker=_acker(_FlatFold), ids=_FlatIds)),
        Bug(
            "unseeded_roots",
            "I3",
            lambda: Machines(acker=_acker(_UnseededFold), attempt=_UnseededAttempt),
        ),
        Bug(
            "replay_keeps_tracking_id",
            "I3",
            lambda: Machines(acker=_acker(_SameTreeFold), ids=_SameTreeIds),
        ),
        Bug("answers_unasked", "machine", lambda: Machines(attempt=AnswersUnasked)),
        Bug("short_read_is_hole", "I3", lambda: Machines(attempt=ShortReadIsHole)),
        Bug("seal_before_objects", "rule 18", lambda: Machines(attempt=SealBeforeObjects)),
    )
}
"""All deliberate bugs by name, with what each breaks."""
