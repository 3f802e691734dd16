"""What an edit of a topology does to its record: one change, applied before anything runs.

Which components a record was last written for is part of it, so the crash rule is simple: a driver
that dies before the write is followed by one that makes the same change, one that dies behind it by
one that finds nothing to do. An edit waits until everything that is sealed has been shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from millrace.protocol.types import Components, Intent, Record


@dataclass(frozen=True, slots=True)
class Pruned:
    """What an edit takes out of a record: names of what is gone, and counts of roots.

    ``sources`` and ``processors`` had something in the record; ``open`` roots were in open
    windows, ``replays`` waited for theirs.
    """

    sources: tuple[str, ...] = ()
    processors: tuple[str, ...] = ()
    open: int = 0
    replays: int = 0


def apply_edit(record: Record, components: Components) -> tuple[Record, Pruned]:
    """The record for an edited topology, without whatever belongs to components that are gone.

    Open windows keep their other roots; one without any is sealed empty. Dead letters stay, to be
    looked at and dropped. The second time nothing changes.
    """
    before = record.components
    sources = _kept(before.sources if before else None, components.sources)
    processors = _kept(before.processors if before else None, components.processors)
    intents = tuple(_without(intent, sources) for intent in record.intents)
    replays = tuple(r for r in record.replays if r.source in sources)
    lost_open = sum(i.roots for i in record.intents) - sum(i.roots for i in intents)
    lost_replays = len(record.replays) - len(replays)
    named = {*record.offsets, *(r.source for r in record.replays)}
    for intent in record.intents:
        named |= {r.source for r in intent.ranges} | {r.source for r in intent.replays}
    since = {name: record.sealed for name in components.sources if name not in sources}
    edited = replace(
        record,
        intents=intents,
        replays=replays,
        offsets={name: at for name, at in record.offsets.items() if name in sources},
        chains={name: chain for name, chain in record.chains.items() if name in processors},
        totals=replace(record.totals, dropped=record.totals.dropped + lost_open + lost_replays),
        components=components,
        since={**{n: w for n, w in record.since.items() if n in sources}, **since},
    )
    gone = tuple(sorted(name for name, chain in record.chains.items() if name not in processors))
    return edited, Pruned(tuple(sorted(named - sources)), gone, lost_open, lost_replays)


def _kept(before: Mapping[str, int] | None, now: Mapping[str, int]) -> set[str]:
    return {n for n, number in now.items() if number == (0 if before is None else before.get(n))}


def _without(intent: Intent, sources: set[str]) -> Intent:
    ranges = tuple(r for r in intent.ranges if r.source in sources)
    replays = tuple(r for r in intent.replays if r.source in sources)
    return replace(intent, ranges=ranges, replays=replays)


def removed_outputs(record: Record, components: Components | None) -> dict[str, int]:
    """Sinks that ``components`` no longer has and sealed windows still wait for: name → number."""
    if components is None:
        return {}
    before = record.components
    waiting = {staged.sink for one in record.unpublished for staged in one.staged}
    numbers = {n: before.sinks.get(n, 0) if before else 0 for n in waiting}
    return {n: at for n, at in sorted(numbers.items()) if components.sinks.get(n) != at}


def waiting_rows(record: Record, sink: str) -> tuple[int, str]:
    """How many rows of sealed windows a sink has still to show, and that in words."""
    waiting = [
        (one.window, staged.rows)
        for one in record.unpublished
        for staged in one.staged
        if staged.sink == sink
    ]
    rows = sum(count for _, count in waiting)
    return rows, f"{rows} rows of windows {waiting[0][0]} to {waiting[-1][0]}"


def told(record: Record, components: Components, drop_removed: bool) -> tuple[str, bool]:
    """What ``apply_edit`` is about to do, for people, and whether it loses anything; "" for
    nothing. With ``drop_removed`` what removed sinks were still to show is lost, too."""
    pruned = apply_edit(record, components)[1]
    found = [
        *(f"source {name!r} is gone with its read position" for name in pruned.sources),
        *(f"the state of {name!r} is dropped" for name in pruned.processors),
    ]
    lost = pruned.open + pruned.replays
    if lost:
        found.append(
            f"{pruned.open} open roots and {pruned.replays} replays of what is gone are dropped"
        )
    for name in removed_outputs(record, components) if drop_removed else ():
        rows, text = waiting_rows(record, name)
        found.append(f"{text}, not yet confirmed by sink {name!r}, are given up")
        lost += rows
    return (f"the topology was edited: {'; '.join(found)}" if found else ""), bool(lost)
