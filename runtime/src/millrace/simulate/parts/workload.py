"""What is fed in: roots, when they arrive, what becomes of each, and which are poisoned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from random import Random

from millrace.ids import name_id, root_id
from millrace.protocol import events as e
from millrace.protocol.types import Components, Intent, Json, Replay, RootRange
from millrace.simulate.options import Options, Poison

CALM_S, LATE_S = 5.0, 120.0
"""How long after the storm the last two roots come, where they come late."""

Root = tuple[str, int, int]
"""(source, partition, offset)."""


class RootKind(str, Enum):
    """How a root behaves."""

    GOOD = "good"
    RAISES = "raises in its first processor"
    RAISES_LATE = "raises after the exchange"
    RAISES_ONCE = "raises the first time only"
    KILLS = "kills its worker"
    KILLS_LATE = "kills the worker after the exchange"
    COMBINE = "raises after a combine"
    UNREADABLE = "cannot be decoded"
    LASTING = "fails alike in its first processor"
    HOLE = "is an offset without a record"

    @property
    def deadly(self) -> bool:
        return self in (RootKind.KILLS, RootKind.KILLS_LATE)


@dataclass(slots=True)
class Feed:
    """One source partition; ``arrivals`` are rising times, in seconds."""

    source: str
    partition: int
    arrivals: list[float]


class Workload:
    """Everything about the roots of a run that is known before it starts."""

    def __init__(self, options: Options, rng: Random, start_s: float) -> None:
        self.options = options
        self.feeds = _feeds(options, rng, start_s)
        before = {feed.source for feed in self.feeds}
        self.edits: tuple[Components, ...] = ()
        if options.edit_s is not None:
            added = _added_feed(options, start_s)
            self.feeds.append(added)
            self.edits = _edits(options, sorted(before), added.source)
        self.roots: list[Root] = [
            (f.source, f.partition, offset) for f in self.feeds for offset in range(len(f.arrivals))
        ]
        self.keys: dict[Root, tuple[str, ...]] = {}
        self.kinds: dict[Root, RootKind] = {}
        self.ids: dict[Root, int] = {}
        self.raised: set[Root] = set()
        self.mended: set[Root] = set()
        self.index = {root: n for n, root in enumerate(self.roots)}
        for root in self.roots:
            self.keys[root] = tuple(f"k{rng.randrange(7)}" for _ in range(rng.randint(1, 3)))
            self.kinds[root] = _kind(options.poison, options.combined, rng)
            self.ids[root] = root_id(name_id(root[0]), root[1], root[2])
        self._dig(options)

    def _dig(self, options: Options) -> None:
        """Take the records of some offsets away."""
        rng = Random(f"dig/{options.seed}")
        for root in self.roots if options.holes else ():
            if rng.random() < options.holes:
                self.kinds[root] = RootKind.HOLE

    def is_hole(self, root: Root) -> bool:
        """Whether its offset carries no record."""
        return self.kinds[root] is RootKind.HOLE

    def mend(self, root: Root, rng: Random) -> None:
        """The user may have mended what made a root fail."""
        self.mended.add(root)
        if rng.random() < 0.5:
            self.kinds[root] = RootKind.GOOD

    def plan(
        self,
        action: e.Plan,
        now_s: float,
        max_records: int,
        components: Components | None = None,
    ) -> e.Planned | float | None:
        """The next roots behind the offsets that have arrived by now, at most so many, the
        time at which the next one does, or None if there will be no more."""
        feeds = [f for f in self.feeds if components is None or f.source in components.sources]
        offsets: dict[str, dict[str, int]] = {s: dict(at) for s, at in action.offsets.items()}
        for feed in feeds:
            offsets.setdefault(feed.source, {})
        room = max_records
        ranges: list[RootRange] = []
        upcoming: list[float] = []
        for feed in feeds:
            start = offsets[feed.source].get(str(feed.partition), 0)
            arrived = sum(1 for at in feed.arrivals if at <= now_s)
            count = min(room, arrived - start)
            if count > 0:
                room -= count
                ranges.append(RootRange(feed.source, feed.partition, start, count, {"at": start}))
                offsets[feed.source][str(feed.partition)] = start + count
            if start + max(count, 0) < len(feed.arrivals):
                upcoming.append(feed.arrivals[start + max(count, 0)])
        if ranges:
            return e.Planned(action.token, tuple(ranges), offsets, drained=not upcoming)
        return min(upcoming) if upcoming else None


def locate(piece: RootRange, index: int) -> Json:
    """Locator of one record of a range."""
    return {"at": piece.locator["at"] + index}


def roots_of(intent: Intent) -> list[tuple[Root, int]]:
    """(root, replay number) of an intent in the order of their sequence numbers."""
    found = [
        ((piece.source, piece.partition, offset), 0)
        for piece in intent.ranges
        for offset in range(piece.start, piece.start + piece.count)
    ]
    return found + [(root_of(replay), replay.number) for replay in intent.replays]


def root_of(replay: Replay) -> Root:
    return (replay.source, replay.partition, replay.offset)


def cut(intent: Intent, at: int) -> tuple[Intent, Intent]:
    """Two intents that together hold the roots of one, ``at`` of them in the first."""
    low: list[RootRange] = []
    high: list[RootRange] = []
    left = at
    for piece in intent.ranges:
        taken = min(max(left, 0), piece.count)
        if taken:
            low.append(_part(piece, 0, taken))
        if taken < piece.count:
            high.append(_part(piece, taken, piece.count - taken))
        left -= piece.count
    here = max(left, 0)
    return (
        replace(intent, ranges=tuple(low), replays=intent.replays[:here]),
        replace(intent, ranges=tuple(high), replays=intent.replays[here:]),
    )


def _part(piece: RootRange, skipped: int, count: int) -> RootRange:
    start = piece.start + skipped
    return RootRange(piece.source, piece.partition, start, count, {"at": start})


def _feeds(options: Options, rng: Random, start_s: float) -> list[Feed]:
    sources = ["a"] if rng.random() < 0.6 else ["a", "b"]
    feeds = [Feed(s, p, []) for s in sources for p in range(rng.choice((1, 1, 2)))]
    span_s = options.storm_s * rng.choice((0.3, 0.7, 0.9))
    arrivals = sorted(start_s + rng.random() * span_s for _ in range(options.roots))
    for at in arrivals:
        rng.choice(feeds).arrivals.append(at)
    if options.late and len(feeds[0].arrivals) > 1:
        calm_s = start_s + options.storm_s
        feeds[0].arrivals[-2:] = [calm_s + CALM_S, calm_s + LATE_S]
    return feeds


def _added_feed(options: Options, start_s: float) -> Feed:
    """The source that an edit brings; its input has been there from early on."""
    rng = Random(f"added/{options.seed}")
    span_s = options.storm_s * 0.9
    return Feed("c", 0, sorted(start_s + rng.random() * span_s for _ in range(rng.randint(3, 10))))


def _edits(options: Options, before: list[str], added: str) -> tuple[Components, ...]:
    """The topology before and behind its edit."""
    processors = dict.fromkeys(("split", "count", "side", "totals"), 0)
    sinks = dict.fromkeys(("out", "sideout"), 0)
    changed = {"totals" if options.passes > 2 else "count": 1} if options.reborn else {}
    sources = {**{name: 0 for name in before if name != "b"}, added: 1}
    return (
        Components(0, dict.fromkeys(before, 0), processors, sinks),
        Components(1, sources, {**processors, **changed}, sinks),
    )


def _kind(poison: Poison, combined: bool, rng: Random) -> RootKind:
    luck = rng.random()
    shares = (
        (poison.raises, RootKind.RAISES),
        (poison.raises_late, RootKind.RAISES_LATE),
        (poison.raises_once, RootKind.RAISES_ONCE),
        (poison.kills, RootKind.KILLS),
        (poison.kills_late, RootKind.KILLS_LATE),
        (poison.combine if combined else 0.0, RootKind.COMBINE),
        (poison.unreadable, RootKind.UNREADABLE),
        (poison.lasting, RootKind.LASTING),
    )
    for share, kind in shares:
        if luck < share:
            return kind
        luck -= share
    return RootKind.GOOD
