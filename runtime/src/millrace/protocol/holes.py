"""Offsets of a range that carry no record, and when it is believed that they carry none.

A range may hold such offsets: marks of transactions, records that were aborted or compacted away.
They have sequence numbers like any other, so that a root's number never depends on them, and a
source task counts what it read as records and *holes*. Only what a source says itself is a hole;
what is missing without a word is a short read (``winners``). A hole is seeded with nothing, so a
tuple under its number leaves the verdict incomplete like any that is too many.

A claim is believed unless somebody knows better:

- tasks of one attempt that read the same roots, losers too, must claim the same;
- an attempt must claim what the one before it claimed, if there was one in this driver's life. If
  it does not, it does not count, and the window runs again: what two in a row claim is believed,
  for records may really go between two attempts (compaction);
- a replay is of a record that was read before: it is never a hole.

Runs are (first, count) of sequence numbers, rising, here and in reports.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise

from millrace.protocol.types import Intent, TaskReport
from millrace.protocol.winners import Winners

Runs = tuple[tuple[int, int], ...]


def doubt(
    winners: Winners, reports: Iterable[TaskReport], intent: Intent, before: Runs | None
) -> str:
    """Why the holes that the winners claim are not to be believed; empty if they are.

    ``before`` is what the attempt before claimed, None if there was none.
    """
    claimed = joined(winners.holes())
    told = [report for report in reports if report.roots_read]
    if not claimed and not before and not any(report.holes for report in told):
        return ""
    fresh = intent.roots - len(intent.replays)
    if claimed and sum(claimed[-1]) > fresh:
        return "a replay was read as a hole, and the record that it is of was read before"
    for report in told:
        other = joined(report.holes)
        if any(clipped(other, run) != clipped(claimed, run) for run in joined(report.roots_read)):
            return f"two tasks do not agree on holes: {_difference(intent, claimed, other)}"
        if sum(n for run in joined(report.roots_read) for _, n in clipped(other, run)) != sum(
            n for _, n in other
        ):
            return "a task claims holes among roots that it did not read"
    if before is not None and claimed != before:
        return (
            f"{_difference(intent, claimed, before)}: an attempt before this one had it otherwise, "
            "and two in a row have to agree"
        )
    return ""


def joined(runs: Iterable[tuple[int, int]]) -> Runs:
    """The same numbers in as few runs as possible."""
    found: list[tuple[int, int]] = []
    for first, count in sorted(runs):
        if count and found and sum(found[-1]) >= first:
            before, end = found[-1][0], max(sum(found[-1]), first + count)
            found[-1] = (before, end - before)
        elif count:
            found.append((first, count))
    return tuple(found)


def clipped(runs: Runs, to: tuple[int, int]) -> Runs:
    """What of some joined runs lies in a run."""
    low, high = to[0], sum(to)
    # That before the first that begins inside may reach into it.
    some = runs[max(bisect_left(runs, (low,)) - 1, 0) : bisect_left(runs, (high,))]
    bounds = ((max(first, low), min(first + count, high)) for first, count in some)
    return tuple((first, end - first) for first, end in bounds if first < end)


def less(runs: Runs, others: Runs) -> Runs:
    """What of some joined runs is in none of others, which are joined, too."""
    found: list[tuple[int, int]] = []
    for first, count in runs:
        at = first
        for low, length in clipped(others, (first, count)):
            found.append((at, low - at))
            at = low + length
        found.append((at, first + count - at))
    return tuple(run for run in found if run[1])


def split(runs: Runs | None, at: int) -> tuple[Runs | None, Runs | None]:
    """What a claim says of the first ``at`` numbers and of those from there on, anew from 0."""
    if runs is None:
        return None, None
    last = max((sum(run) for run in runs), default=0)
    high = clipped(runs, (at, max(last - at, 0)))
    return clipped(runs, (0, at)), tuple((first - at, count) for first, count in high)


def numbers(runs: Iterable[tuple[int, int]]) -> Iterable[int]:
    """The single numbers of runs."""
    return (number for first, count in runs for number in range(first, first + count))


def _difference(intent: Intent, one: Runs, other: Runs) -> str:
    """The first root that is a hole in one of two claims alone."""
    edges = sorted({b for runs in (one, other) for run in runs for b in (run[0], sum(run))})
    for low, high in pairwise(edges):
        if clipped(one, (low, high - low)) != clipped(other, (low, high - low)):
            return _place(intent, low)
    return "nothing"


def _place(intent: Intent, sequence: int) -> str:
    first = 0
    for piece in intent.ranges:
        if sequence < first + piece.count:
            offset = piece.start + sequence - first
            return f"offset {offset} of source {piece.source!r} (partition {piece.partition:016x})"
        first += piece.count
    return f"root {sequence}"
