"""Chains of state objects: what of one matters for some key groups, and when it is too long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from millrace.protocol.types import Segment

MAX_DELTAS = 32
"""Longest chain of deltas: each is one more object to read, and a line in the record."""

MOST_DELTAS = 128
BYTES_PER_DELTA = 256 << 10
"""Where the bases are large a chain may be longer, by so many bytes of them for each delta, up to
the most: small windows would write all of the state again and again."""

MOST_LINES = 1024
"""How many deltas one processor may have because of that, all tasks together: every seal writes the
record to every state server, with some 200 bytes for each."""

PATIENCE = 2
"""How many times as long a chain may be before a state that is not whole is loaded for a base."""

MIN_COMPACT_BYTES = 256 << 10
DELTAS_PER_BASE = 2.0
"""A base is written once the deltas weigh this much more than the base before them."""

PART_BYTES = 8 << 20
MOST_PARTS = 16
"""A large state gets its base in parts, one with each window: as many bytes as here, or so many
parts where that would be more. A window that wrote all of it would hold up the next ones."""


@dataclass(frozen=True, slots=True)
class Link:
    """A segment as far as it counts for some key groups: ``groups`` are those it still serves."""

    segment: Segment
    groups: int

    def same(self, other: Link) -> bool:
        mine, its = self.segment, other.segment
        return (mine.name, mine.digest, self.groups) == (its.name, its.digest, other.groups)


def links(chain: Sequence[Segment], groups: int) -> tuple[Link, ...]:
    """The part of a chain that matters for a mask of key groups, oldest first.

    A base takes its groups away from every segment before it.
    """
    found: list[Link] = []
    wanted = groups
    for segment in reversed(chain):
        serves = segment.groups & wanted
        if serves:
            found.append(Link(segment, serves))
        if segment.base:
            wanted &= ~segment.groups
    return tuple(reversed(found))


def should_compact(
    chain: Sequence[Segment], groups: int, *, whole: bool = True, learning: bool = False
) -> bool:
    """Whether a task that holds ``groups`` should write a base instead of one more delta.

    One that does not have the ``whole`` state would have to load it first, and waits for
    ``PATIENCE`` times as much of everything. While servers are ``learning`` what there is, a base
    would be one more thing to be learned: then a chain may be as long as that of a large state, and
    no heavier.
    """
    parts = links(chain, groups)
    deltas = [link.segment.size_bytes for link in parts if not link.segment.base]
    bases = sum(link.segment.size_bytes for link in parts if link.segment.base)
    worthwhile = MOST_DELTAS if learning else min(MOST_DELTAS, bases // BYTES_PER_DELTA)
    longest = max(MAX_DELTAS, min(worthwhile, _share(chain, groups)))
    patience = 1 if whole else PATIENCE
    if len(deltas) >= patience * longest:
        return True
    return sum(deltas) > patience * max(MIN_COMPACT_BYTES, DELTAS_PER_BASE * bases)


def _share(chain: Sequence[Segment], groups: int) -> int:
    """How many of ``MOST_LINES`` are those of a task that holds ``groups``."""
    everything = groups
    for segment in chain:
        everything |= segment.groups
    return MOST_LINES * groups.bit_count() // max(1, everything.bit_count())


def part_for_base(chain: Sequence[Segment], groups: int, delta_bytes: int = 0) -> int:
    """Those of some key groups (mask) that the next base is to be of, where one is due.

    All of a small state. Else those whose base is the oldest, as far as deltas lie over it, and so
    many that a base has about as many bytes as a part, or as ``delta_bytes`` if they are more: what
    is written beside it would outgrow it otherwise.
    """
    parts = links(chain, groups)
    stored = sum(link.segment.size_bytes for link in parts)
    part_bytes = max(PART_BYTES, stored // MOST_PARTS, delta_bytes)
    count = -(-groups.bit_count() * part_bytes // max(stored, 1))
    if count >= groups.bit_count():
        return groups
    based = dict.fromkeys(bits(groups), 0)
    behind = 0
    for link in parts:
        if link.segment.base:
            based.update(dict.fromkeys(bits(link.groups), link.segment.window))
        else:
            behind |= link.groups
    oldest = sorted(bits(behind), key=lambda group: based[group])
    return sum(1 << group for group in oldest[:count])


def bits(mask: int) -> Iterator[int]:
    """The key groups of a mask, ascending."""
    return (group for group in range(mask.bit_length()) if mask >> group & 1)
