"""How many of the roots that were read together failed for good.

Replays come in windows of their own, long after the roots beside them were done, so what a window
ends with says little of the share that fails. A root is therefore counted with the *cohort* that
it was read in: consecutive windows, up to about ``COHORT_ROOTS`` roots. Cohorts are part of the
record and so outlive a driver: a run that stopped for its dead letters stops again, over the same
roots, until the cause is mended or the limit raised, and never a few letters further on.

The record keeps at most ``KEPT`` cohorts; old neighbours are merged, the more the older they are,
as in an exponential histogram, so that roots that are replayed for hours still find theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from millrace.ids import WindowNumber
from millrace.protocol.types import Cohort, Intent, Replay

COHORT_ROOTS = 1_000
KEPT = 24
LEAST_JUDGED = 100
"""Judged roots of a cohort below which nothing is said of it."""


@dataclass(frozen=True, slots=True)
class DeadLimit:
    """Most of a cohort's judged roots, in percent, that may become dead letters."""

    percent: int = 100
    least_judged: int = LEAST_JUDGED

    def exceeded(self, cohort: Cohort) -> bool:
        judged = cohort.done + cohort.dead
        return judged >= self.least_judged and cohort.dead * 100 > self.percent * judged


NO_LIMIT = DeadLimit()


def judge(
    cohorts: Sequence[Cohort],
    intent: Intent,
    replays: Iterable[Replay],
    letters: Iterable[Replay],
    holes: int = 0,
) -> tuple[Cohort, ...]:
    """The cohorts once a window is sealed with these roots set aside and dead; ``holes`` offsets
    of its ranges carry none.

    A replay whose cohort is not known counts with the roots that are read now.
    """
    fresh = sum(piece.count for piece in intent.ranges) - holes
    alone = sum(1 for replay in intent.replays if not replay.window)
    found = _with(cohorts, intent.window, fresh + alone)
    if not found:
        return ()
    read: Counter[WindowNumber] = Counter({intent.window: fresh})
    read.update(_windows(intent, intent.replays))
    waiting, dead = Counter(_windows(intent, replays)), Counter(_windows(intent, letters))
    for window in read:
        at = _place(found, window)
        done = read[window] - waiting[window] - dead[window]
        held = found[at]
        found[at] = replace(held, done=held.done + done, dead=held.dead + dead[window])
    return tuple(found)


def worst(
    cohorts: Sequence[Cohort], intent: Intent, letters: Iterable[Replay], limit: DeadLimit
) -> Cohort | None:
    """The cohort of one of the letters that exceeds the limit by most, if one does."""
    places = {_place(cohorts, window) for window in _windows(intent, letters)} if cohorts else set()
    over = [cohorts[at] for at in sorted(places) if limit.exceeded(cohorts[at])]
    return max(over, key=lambda one: one.dead / (one.done + one.dead), default=None)


def _windows(intent: Intent, roots: Iterable[Replay]) -> list[WindowNumber]:
    return [root.window or intent.window for root in roots]


def _with(cohorts: Sequence[Cohort], window: WindowNumber, roots: int) -> list[Cohort]:
    """The cohorts with roots that are read now."""
    found = list(cohorts)
    if not roots:
        return found
    if found and found[-1].roots < COHORT_ROOTS:
        found[-1] = replace(found[-1], roots=found[-1].roots + roots)
    else:
        found.append(Cohort(window, roots))
    while len(found) > KEPT:
        _merge(found)
    return found


def _merge(found: list[Cohort]) -> None:
    """Merge the two neighbours that are smallest for their age."""
    newer, best, lowest = 0, 0, float("inf")
    for at in range(len(found) - 2, -1, -1):
        size = found[at].roots + found[at + 1].roots
        weight = size / (newer + COHORT_ROOTS)
        if weight < lowest:
            best, lowest = at, weight
        newer += found[at + 1].roots
    old, new = found[best], found.pop(best + 1)
    found[best] = Cohort(
        old.window, old.roots + new.roots, old.done + new.done, old.dead + new.dead
    )


def _place(cohorts: Sequence[Cohort], window: WindowNumber) -> int:
    """The cohort that a window was read in; the oldest for what is older than all."""
    return max((at for at, one in enumerate(cohorts) if one.window <= window), default=0)
