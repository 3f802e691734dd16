"""How much of a state that a process kept is still of use for a later chain, by key group.

A group's part of a chain is the list of links that serve it. A kept state is of an ancestor of a
chain, as far as that group goes, if the chain's list begins with the one that the state was made
of. A base that is one of several parts makes all lists anew that it serves; it says which ones it
stands for (``Segment.covers``), so that whoever has read those need not read the base. It comes
before what its own window changed, which lies in a delta beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from millrace.state.keyed.chain import Link, bits
from millrace.state.keyed.chunks import digest_of

_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Common:
    """What a kept state has of a chain: the state of the key groups ``kept`` (mask) is of an
    ancestor, and ``has`` are, by the names of its segments, the groups that need them no more."""

    kept: int
    has: dict[str, int] = field(default_factory=dict)

    def missing(self, wanted: Sequence[Link]) -> list[Link]:
        """Those of some links of that chain, of these groups or more, that are to be read."""
        parts = (
            Link(one.segment, one.groups & ~self.has.get(one.segment.name, 0)) for one in wanted
        )
        return [part for part in parts if part.groups]


def common(mine: Sequence[Link], wanted: Sequence[Link], groups: int) -> Common:
    """What a state that was made of the links ``mine`` has of a chain's links ``wanted``, both to
    the same key groups (mask)."""
    if begins(wanted, mine):
        return Common(groups, {one.segment.name: one.groups for one in mine})
    covered = [_is_covered(mine, one, groups) for one in wanted]
    kept = 0
    has: dict[str, int] = {}
    for group in bits(groups):
        made_of = [_content(one) for one in mine if one.groups >> group & 1]
        its = [at for at, one in enumerate(wanted) if one.groups >> group & 1]
        if its and covered[its[0]]:
            known = its[:1]
        elif [_content(wanted[at]) for at in its[: len(made_of)]] == made_of:
            known = its[: len(made_of)]
        else:
            continue
        kept |= 1 << group
        for at in known:
            name = wanted[at].segment.name
            has[name] = has.get(name, 0) | 1 << group
    return Common(kept, has)


def begins(chain: Sequence[Link], start: Sequence[Link]) -> bool:
    """Whether the links of a chain begin with some others."""
    return len(start) <= len(chain) and all(
        mine.same(its) for mine, its in zip(start, chain, strict=False)
    )


def history(chain: Sequence[Link], groups: int) -> str:
    """Digest of what the state of some key groups (mask) was made of."""
    parts = (Link(one.segment, one.groups & groups) for one in chain)
    lines = (
        f"{one.segment.name} {one.segment.digest} {one.groups:x}\n" for one in parts if one.groups
    )
    return digest_of("".join(lines).encode())[:_DIGITS]


def _is_covered(mine: Sequence[Link], one: Link, groups: int) -> bool:
    segment = one.segment
    if not segment.covers or segment.groups & ~groups:
        return False
    return segment.covers == history(mine, segment.groups)


def _content(link: Link) -> tuple[str, str]:
    return link.segment.name, link.segment.digest
