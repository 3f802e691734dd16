"""What becomes of a window attempt: seal it, run it again, split the window, or stop.

A root is blamed only on evidence about it. What says nothing about roots (the engine, a connector
or Spark failed, a tuple was lost) neither splits a window nor counts as one of its runs: it is run
again a few times, each after a longer pause, and then the run stops with nothing sealed.

A window may be run at most three times on evidence before it is split, so a window of n roots
with k roots that kill their worker ends within 3 * (1 + 2k * ceil(log2 n)) such runs. What
happened beside others is no evidence about the only root that is left: its runs are counted anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from millrace.protocol.events import StopKind
from millrace.protocol.holes import Runs, split
from millrace.protocol.types import Evidence, FailedRoot, Guarantee, Intent
from millrace.protocol.windows.causes import causes, counted, told

MAX_RUNS = 3
MAX_FAILING_RUNS = 2
MAX_DEATHS = 2

BREAKAGE_PAUSES_S = (0.0, 0.5, 2.0, 8.0)
"""Pauses before a window runs again that no root is to blame for; behind the last one it stops."""

KILLED = "(worker)"
"""Stands for the processor where a root killed its worker and none can be named."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What is known about an open window from its attempts in this driver's life.

    ``failed`` are the roots known to fail, by sequence number. ``runs`` and ``deaths`` count
    attempts that say something about roots, ``breakages`` those in a row that do not. ``holes``
    is what the last attempt with winners claimed, None before there was one.
    """

    intent: Intent
    failed: Mapping[int, FailedRoot] = field(default_factory=dict)
    uncombined: Mapping[str, int] = field(default_factory=dict)
    runs: int = 0
    failing_runs: int = 0
    deaths: int = 0
    breakages: int = 0
    holes: Runs | None = None

    @property
    def remaining(self) -> int:
        return self.intent.roots - len(self.failed)


@dataclass(frozen=True, slots=True)
class Judged:
    """A finished attempt with consistent winners.

    ``failed`` are roots that somebody failed on, ``lost`` others whose tuples went astray. They
    are replayed as if they had failed, but not for ever: ``last_try`` if one has no replay left.
    """

    failed: tuple[FailedRoot, ...]
    combined_failures: tuple[tuple[str, int, str], ...]
    window_complete: bool
    lost: tuple[FailedRoot, ...] = ()
    last_try: bool = False


@dataclass(frozen=True, slots=True)
class Died:
    """An attempt without results."""

    reason: str
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class SealIt:
    """Seal with these failed roots set aside, or lost (AtMostOnce); ``dropped`` more are lost that
    nobody can name."""

    progress: Progress
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class DropIt:
    """AtMostOnce: give the window up, with the state as it was."""

    progress: Progress
    reason: str


@dataclass(frozen=True, slots=True)
class RunAgain:
    """Run it again, after ``pause_s`` seconds."""

    progress: Progress
    reason: str
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SplitIt:
    """Split after the first ``at`` roots."""

    progress: Progress
    at: int
    reason: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The window cannot be sealed and no root is to blame: stop, with ``kind`` as ``Stop`` has it.

    The user has to act, or a later run has more luck.
    """

    progress: Progress
    kind: StopKind
    reason: str


Decision = SealIt | DropIt | RunAgain | SplitIt | GiveUp


def decide(progress: Progress, outcome: Judged | Died, guarantee: Guarantee) -> Decision:
    """Decide after one more attempt; ``progress`` does not count it yet."""
    broken = _broken(outcome)
    if broken is not None:
        if isinstance(outcome, Judged):
            progress = _set_aside(progress, outcome.failed)
        return _after_breakage(progress, broken)
    progress = replace(progress, runs=progress.runs + 1, breakages=0)
    if isinstance(outcome, Died):
        return _after_death(progress, outcome.reason, guarantee)
    if outcome.combined_failures:
        return _after_combined_failure(progress, outcome, guarantee)
    failed = (*outcome.failed, *outcome.lost)
    if guarantee is Guarantee.AT_MOST_ONCE:
        return SealIt(_set_aside(progress, failed))
    if not failed:
        return SealIt(progress)
    progress = _set_aside(progress, failed)
    if guarantee is Guarantee.AT_LEAST_ONCE:
        return SealIt(progress)
    if all(root.unreadable for root in failed):
        # Nothing of them went anywhere: this attempt is what one without them would be.
        return SealIt(progress)
    progress = replace(progress, failing_runs=progress.failing_runs + 1)
    reason = f"{counted(len(failed), 'root')} failed: {told(causes(failed))}"
    if progress.failing_runs < MAX_FAILING_RUNS and progress.runs < MAX_RUNS:
        return RunAgain(progress, reason)
    return _narrow_others(progress, reason)


def _broken(outcome: Judged | Died) -> str | None:
    """What went wrong in an attempt that may not be sealed and says nothing about its roots."""
    if isinstance(outcome, Died):
        return outcome.reason if outcome.evidence is Evidence.NONE else None
    if outcome.combined_failures:
        return None
    if not outcome.window_complete:
        # Nothing can be said of the roots that no one blames, so partial effects may not be
        # sealed either.
        return "the window's own tuple tree is incomplete"
    if outcome.last_try:
        first = outcome.lost[0]
        lost = counted(len(outcome.lost), "root")
        return f"{lost} lost tuples: {first.processor}: {first.error}"
    return None


def _after_breakage(progress: Progress, reason: str) -> Decision:
    """The roots are the same next time, so that a failure that lasts stops before any is blamed."""
    done = progress.breakages
    if done >= len(BREAKAGE_PAUSES_S):
        return GiveUp(progress, StopKind.ENGINE, f"{reason} ({done + 1} attempts in a row)")
    again = replace(progress, breakages=done + 1)
    return RunAgain(again, reason, BREAKAGE_PAUSES_S[done])


def _after_death(progress: Progress, reason: str, guarantee: Guarantee) -> Decision:
    if guarantee is Guarantee.AT_MOST_ONCE:
        return DropIt(progress, reason)
    progress = replace(progress, deaths=progress.deaths + 1)
    if progress.deaths < MAX_DEATHS and progress.runs < MAX_RUNS:
        return RunAgain(progress, reason)
    return narrow(progress, reason)


def _after_combined_failure(progress: Progress, outcome: Judged, guarantee: Guarantee) -> Decision:
    processor, _, error = outcome.combined_failures[0]
    reason = f"{processor} failed on a combined tuple: {error}"
    if guarantee is Guarantee.AT_MOST_ONCE:
        progress = _set_aside(progress, (*outcome.failed, *outcome.lost))
        return SealIt(progress, dropped=min(len(outcome.combined_failures), progress.remaining))
    uncombined = dict(progress.uncombined)
    for name, groups, _ in outcome.combined_failures:
        uncombined[name] = uncombined.get(name, 0) | groups
    known = uncombined == progress.uncombined
    progress = replace(_set_aside(progress, outcome.failed), uncombined=uncombined)
    if not known and progress.runs < MAX_RUNS:
        return RunAgain(progress, reason)
    return _narrow_others(progress, reason) if outcome.failed else narrow(progress, reason)


def _narrow_others(progress: Progress, reason: str) -> Decision:
    """After a run that had somebody else to blame: the only root left is none the worse for it."""
    if progress.remaining <= 1:
        return RunAgain(progress, reason)
    return narrow(progress, reason)


def narrow(progress: Progress, reason: str) -> Decision:
    """Get closer to the root to blame: split, or blame the only one that is left."""
    if progress.intent.final:
        return GiveUp(progress, StopKind.FAILED, f"the final window cannot be run: {reason}")
    suspects = [s for s in range(progress.intent.roots) if s not in progress.failed]
    if len(suspects) > 1:
        return SplitIt(progress, suspects[len(suspects) // 2], reason)
    blamed = [FailedRoot(s, KILLED, reason) for s in suspects]
    return RunAgain(_set_aside(progress, blamed), reason)


def halves(progress: Progress, at: int, first: Intent, second: Intent) -> tuple[Progress, Progress]:
    """Carry what is known of a window over to its two halves."""
    low = {s: f for s, f in progress.failed.items() if s < at}
    holes = split(progress.holes, at)
    high = {s - at: replace(f, sequence=s - at) for s, f in progress.failed.items() if s >= at}
    return (
        Progress(first, failed=low, uncombined=progress.uncombined, holes=holes[0]),
        Progress(second, failed=high, uncombined=progress.uncombined, holes=holes[1]),
    )


def _set_aside(progress: Progress, failed: list[FailedRoot] | tuple[FailedRoot, ...]) -> Progress:
    known = dict(progress.failed)
    for root in failed:
        known.setdefault(root.sequence, root)
    changed = replace(progress, failed=known)
    if changed.remaining == 1 < progress.remaining:
        return replace(changed, runs=0, deaths=0)
    return changed
