"""Chains of state objects: what of one matters for some key groups, and when it is too long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millrace.protocol.types import Segment

MAX_DELTAS = 32
"""Longest chain of deltas: each is one more object to read, and a line in the record."""

MIN_COMPACT_BYTES = 256 << 10
DELTAS_PER_BASE = 2.0
"""A base is written once the deltas weigh this much more than the base before them."""


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
    chain: Sequence[Segment], groups: int, max_deltas: int = MAX_DELTAS, patience: int = 1
) -> bool:
    """Whether a task that holds ``groups`` should write a base instead of one more delta.

    All limits are ``patience`` times as high.
    """
    parts = links(chain, groups)
    deltas = [link.segment.size_bytes for link in parts if not link.segment.base]
    bases = sum(link.segment.size_bytes for link in parts if link.segment.base)
    if len(deltas) >= patience * max_deltas:
        return True
    return sum(deltas) > patience * max(MIN_COMPACT_BYTES, DELTAS_PER_BASE * bases)
