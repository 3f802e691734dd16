"""Deliberate protocol bugs: the simulator must catch each of them, or its silence means nothing.

Every bug replaces one production part by a subclass that breaks one rule; nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from millrace.protocol.acker import AckerMachine
from millrace.protocol.driver import Driver
from millrace.protocol.membership import Membership, Owners
from millrace.protocol.record import Locate
from millrace.protocol.windows.machine import Windows
from millrace.simulate.bugs import membership as m
from millrace.simulate.bugs import restores as r
from millrace.simulate.bugs import servers as sv
from millrace.simulate.bugs import windows as w
from millrace.simulate.bugs import work as k
from millrace.simulate.machines import Machines
from millrace.simulate.parts.plainfold import PlainFold, PlainMessage, read_enclosed
from millrace.simulate.parts.sinks import TransactionSink
from millrace.simulate.world import World


@dataclass(frozen=True, slots=True)
class Bug:
    """``machines`` makes what a run with the bug consists of."""

    name: str
    breaks: str
    machines: Callable[[], Machines]


def _acker(machine: type[AckerMachine[PlainMessage]]) -> Machines:
    return Machines(acker=lambda name: machine(name, PlainFold, read_enclosed))


def _driver(
    windows: type[Windows] = Windows, membership: type[Membership] = Membership
) -> Machines:
    class Broken(Driver):
        def make_membership(self, owners: Owners) -> Membership:
            s = self.settings
            return membership(
                s.uid,
                s.copies,
                s.key_groups,
                owners,
                learners=s.learners,
                restores=s.restores,
            )

        def make_windows(self, locate: Locate) -> Windows:
            return windows(self.settings, self.membership, locate)

    return Machines(driver=Broken)


BUGS: dict[str, Bug] = {
    bug.name: bug
    for bug in (
        Bug("no_stamp_check", "rule 7", lambda: Machines(server=sv.NoStampCheck)),
        Bug("no_run_id_check", "rule 5", lambda: Machines(server=sv.NoRunIdCheck)),
        Bug("no_fsync", "rule 23", lambda: Machines(server=sv.without_fsync)),
        Bug("no_write_back", "rule 9", lambda: _driver(membership=m.NoWriteBack)),
        Bug("claim_without_cas", "rule 8", lambda: _driver(membership=m.ClaimWithoutCas)),
        Bug("stale_member_is_source", "rule 14", lambda: _driver(membership=m.StaleMemberIsSource)),
        Bug("acts_before_opening", "rule 16", lambda: _driver(membership=m.ActsBeforeOpening)),
        Bug("forgets_last_open", "rule 1", lambda: _driver(membership=m.ForgetsLastOpen)),
        Bug("stamp_survives_restart", "rule 5", lambda: Machines(server=sv.StampSurvivesRestart)),
        Bug("stamp_goes_back", "rule 6", lambda: Machines(server=sv.StampGoesBack)),
        Bug("read_before_stamp", "rule 6", lambda: Machines(server=sv.ReadBeforeStamp)),
        Bug("no_tag_check", "rule 7", lambda: Machines(server=sv.NoTagCheck)),
        Bug("compares_windows", "rule 7", lambda: Machines(server=sv.ComparesWindows)),
        Bug("goes_on_with_some", "rule 10", lambda: _driver(membership=m.GoesOnWithSome)),
        Bug("suspects_nobody", "rule 10", lambda: _driver(membership=m.SuspectsNobody)),
        Bug(
            "takes_refusals_for_answers",
            "rule 10",
            lambda: _driver(membership=m.TakesRefusalsForAnswers),
        ),
        Bug(
            "waits_for_what_tasks_miss",
            "rule 10",
            lambda: _driver(membership=m.WaitsForWhatTasksMiss),
        ),
        Bug("leaves_out_too_many", "rule 10", lambda: _driver(membership=m.LeavesOutTooMany)),
        Bug("keeps_its_copies", "copies", lambda: _driver(membership=m.KeepsItsCopies)),
        Bug("counts_copies_to_come", "copies", lambda: _driver(membership=m.CountsCopiesToCome)),
        Bug("learner_is_source", "rule 11", lambda: _driver(membership=m.LearnerIsSource)),
        Bug("learner_is_complete", "rule 11", lambda: _driver(membership=m.LearnerIsComplete)),
        Bug("learner_takes_records", "rule 11", lambda: _driver(w.LearnerTakesRecords)),
        Bug("never_lets_in", "members", lambda: _driver(membership=m.NeverLetsIn)),
        Bug("teaches_for_ever", "teaching", lambda: _driver(membership=m.TeachesForEver)),
        Bug("leaver_ends_early", "rule 11", lambda: Machines(parting=k.at_once)),
        Bug("releases_too_many", "copies", lambda: Machines(releasing=k.whoever)),
        Bug("parts_with_all", "rule 10", lambda: _driver(membership=m.PartsWithAll)),
        Bug("target_may_be_silent", "rule 13", lambda: _driver(membership=m.TargetMayBeSilent)),
        Bug("reads_before_stamping", "rule 15", lambda: _driver(membership=m.ReadsBeforeStamping)),
        Bug("copies_nothing", "rule 15", lambda: _driver(membership=m.CopiesNothing)),
        Bug("writes_back_to_sources", "rule 15", lambda: _driver(membership=m.WritesBackToSources)),
        Bug("opens_anyhow", "rule 16", lambda: _driver(membership=m.OpensWhatIsNotItsOwn)),
        Bug("empty_is_beginning", "rule 17", lambda: _driver(membership=m.EmptyIsBeginning)),
        Bug("creates_over_state", "rule 17", lambda: _driver(membership=m.CreatesOverState)),
        Bug(
            "prunes_marks",
            "rule 21",
            lambda: Machines(sinks=(k.PrunesMarks, TransactionSink)),
        ),
        Bug("shows_unfenced", "rule 25", lambda: Machines(driver=w.ShowsUnfenced)),
        Bug("act_before_commit", "rule 4", lambda: _driver(w.ActBeforeCommit)),
        Bug("ack_of_other_round_counts", "rule 3", lambda: _driver(w.AckOfOtherRoundCounts)),
        Bug("publish_before_seal", "rule 4", lambda: _driver(w.PublishBeforeSeal)),
        Bug("goes_on_with_anything", "rule 4", lambda: _driver(w.GoesOnWithAnything)),
        Bug("split_drops_boundary", "I1", lambda: _driver(w.SplitDropsBoundary)),
        Bug("intent_not_rerun", "I1", lambda: _driver(w.IntentNotRerun)),
        Bug("forget_too_early", "rule 22", lambda: _driver(w.ForgetTooEarly)),
        Bug("forgets_nothing", "rule 22", lambda: _driver(w.ForgetsNothing)),
        Bug("mark_before_confirm", "rule 20", lambda: _driver(w.MarkBeforeConfirm)),
        Bug("engine_failure_blames_roots", "blame", lambda: _driver(w.EngineFailureBlamesRoots)),
        Bug("engine_failure_is_forgotten", "blame", lambda: _driver(w.EngineFailureIsForgotten)),
        Bug("losses_blame_roots", "blame", lambda: _driver(w.LossesBlameRoots)),
        Bug("forgets_who_died", "dead share", lambda: _driver(w.ForgetsWhoDied)),
        Bug("allows_all_to_die", "dead share", lambda: _driver(w.AllowsAllToDie)),
        Bug("unreadable_replayed", "records", lambda: _driver(w.UnreadableReplayed)),
        Bug("unreadable_runs_again", "records", lambda: _driver(w.UnreadableRunsAgain)),
        Bug("edit_forgets_replays", "edit", lambda: _driver(w.EditForgetsReplays)),
        Bug("edit_applied_again", "edit", lambda: _driver(w.EditAppliedAgain)),
        Bug("edit_before_shown", "edit", lambda: _driver(w.EditBeforeShown)),
        Bug("plans_before_edit", "edit", lambda: _driver(w.PlansBeforeEdit)),
        Bug("ignores_further_sinks", "older copy", lambda: Machines(driver=w.IgnoresFurtherSinks)),
        Bug("overlooks_older_view", "older copy", lambda: _driver(membership=m.OverlooksOlderView)),
        Bug("stale_file_is_source", "rule 24", lambda: _driver(membership=m.StaleFileIsSource)),
        Bug("suspend_keeps_split", "rule 19", lambda: _driver(w.SuspendKeepsSplit)),
        Bug("any_letters_believed", "I4", lambda: _driver(w.AnyLettersBelieved)),
        Bug("letters_taken_twice", "I4", lambda: _driver(w.LettersTakenTwice)),
        Bug("carries_nothing", "I4", lambda: Machines(process=k.CarriesNothing)),
        Bug("uncovered_roots", "I1", lambda: _driver(w.UncoveredRoots)),
        Bug("reads_unchecked", "I3", lambda: _driver(w.ReadsUnchecked)),
        Bug("judged_count_unchecked", "I3", lambda: _driver(w.JudgedCountUnchecked)),
        Bug("refused_message_counts", "I3", lambda: _acker(k.RefusedMessageCounts)),
        Bug("enclosed_beside_read", "I3", lambda: _acker(k.EnclosedBesideRead)),
        Bug("enclosed_once", "I3", lambda: _acker(k.EnclosedOnce)),
        Bug("time_goes_back", "times", lambda: _driver(w.TimeGoesBack)),
        Bug("halves_have_their_own_time", "times", lambda: _driver(w.HalvesHaveTheirOwnTime)),
        Bug("timers_by_wall_clock", "pauses", lambda: Machines(clock=World.wall_clock)),
        Bug("never_looks_up", "liveness", lambda: Machines(driver=w.NeverLooksUp)),
        Bug("losers_applied", "I3", lambda: _acker(k.LosersApplied)),
        Bug("id_without_edge", "I3", lambda: Machines(acker=k.acker(k.FlatFold), ids=k.FlatIds)),
        Bug(
            "unseeded_roots",
            "I3",
            lambda: Machines(acker=k.acker(k.UnseededFold), attempt=k.UnseededAttempt),
        ),
        Bug(
            "replay_keeps_tracking_id",
            "I3",
            lambda: Machines(acker=k.acker(k.SameTreeFold), ids=k.SameTreeIds),
        ),
        Bug("claims_while_waiting", "standby", lambda: Machines(process=k.ClaimsWhileWaiting)),
        Bug("never_takes_over", "standby", lambda: Machines(process=k.NeverTakesOver)),
        Bug("restore_forgets_replays", "restore", lambda: Machines(restore=r.ForgetsReplays)),
        Bug("restore_forgets_window", "restore", lambda: Machines(restore=r.ForgetsOpenWindow)),
        Bug("restores_what_was_left", "restore", lambda: Machines(restore=r.RestoresWhatWasLeft)),
        Bug("restores_unfenced", "rule 25", lambda: Machines(restore=r.RestoresUnfenced)),
        Bug("restore_keeps_timeline", "rule 17", lambda: Machines(restore=r.KeepsTimeline)),
        Bug("snapshot_tears", "snapshot", lambda: Machines(process=r.SnapshotTears)),
        Bug("snapshot_before_shown", "snapshot", lambda: Machines(process=r.SnapshotBeforeShown)),
        Bug("scale_loses_last", "rule 15", lambda: Machines(process=r.ScaleLosesLast)),
        Bug("answers_unasked", "machine", lambda: Machines(attempt=k.AnswersUnasked)),
        Bug("short_read_is_hole", "I3", lambda: Machines(attempt=k.ShortReadIsHole)),
        Bug("seal_before_objects", "rule 18", lambda: Machines(attempt=k.SealBeforeObjects)),
    )
}
"""All deliberate bugs by name, with what each breaks."""
