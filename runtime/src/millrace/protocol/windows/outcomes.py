"""What the end of a window attempt comes to, from what its tasks and the ackers say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millrace.protocol import cohorts
from millrace.protocol.record import Outcome, failed_roots
from millrace.protocol.types import Cohort, Intent, Roots, Segment, Staged, Verdict
from millrace.protocol.windows.causes import causes, told
from millrace.protocol.windows.decide import Judged
from millrace.protocol.windows.doing import SealDraft
from millrace.protocol.winners import Winners


def judged(
    intent: Intent, winners: Winners, verdict: Verdict | None, max_replays: int | None
) -> Judged:
    """What tasks and ackers say; ``max_replays`` is None where roots are not replayed.

    Nobody failed on a root that only lost tuples: it is replayed as long as it may be, and then
    stops the run rather than being blamed.
    """
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
        max_replays is not None
        and any(_replays(intent, root.sequence) >= max_replays for root in lost),
    )


def _replays(intent: Intent, sequence: int) -> int:
    """How often the root has been replayed with this attempt."""
    replay = sequence - (intent.roots - len(intent.replays))
    return intent.replays[replay].number if replay >= 0 else 0


def too_many(held: Sequence[Cohort], draft: SealDraft, limit: cohorts.DeadLimit) -> str:
    """Why a window may not be sealed with so many dead letters; empty if it may."""
    intent, letters = draft.progress.intent, draft.letters
    after = cohorts.judge(held, intent, draft.replays, letters, draft.holes)
    worst = cohorts.worst(after, intent, letters, limit)
    if worst is None:
        return ""
    return (
        f"window {intent.window} is not sealed: {worst.dead} of {worst.done + worst.dead} roots "
        "that were read or replayed together fail for good, more than spec.deadLetters.maxShare "
        f"({limit.percent}%) allows: {told(causes(letters))}. Nothing is lost; mend the cause and "
        'run again, or raise spec.deadLetters.maxShare ("100%" makes a dead letter of each)'
    )


def outputs(
    winners: Winners | None,
) -> tuple[tuple[tuple[str, Segment], ...], tuple[Staged, ...]]:
    """State segments by processor, and staged rows in the order in which sinks show them."""
    if winners is None:
        return (), ()
    segments = tuple(s for report in winners.reports for s in report.segments)
    # Of one sink they stay in the order of passes and partitions: that of their records.
    staged = sorted((s for report in winners.reports for s in report.staged), key=lambda s: s.sink)
    return segments, tuple(staged)


def outcome_of(draft: SealDraft, told: bool) -> Outcome:
    """What is sealed; with ``told`` its roots stay with the record, for who is told of them."""
    segments, staged = outputs(draft.winners)
    return Outcome(
        segments,
        staged,
        draft.replays,
        draft.dead,
        draft.dropped,
        _roots(draft) if told else None,
        draft.letters,
        draft.holes,
        draft.carried,
    )


def _roots(draft: SealDraft) -> Roots | None:
    """What became of them; None where AtMostOnce drops some and nobody knows which."""
    intent, failed = draft.progress.intent, draft.progress.failed
    if draft.dropped > len(failed):
        return None
    aside = draft.replays
    if draft.dropped:
        dropped = failed_roots(intent, failed.values(), lambda *_: None)
        aside = tuple(root for root, _ in dropped)
    # The record is written with every window: it stays small without traces.
    letters = tuple(replace(letter, trace="") for letter in draft.letters)
    return Roots(intent, aside, letters)
