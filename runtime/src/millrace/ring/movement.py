"""What a change of members moves, what it had to move, and how even shares are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from millrace.errors import ProtocolError

Owners = str | Collection[str]
"""The one owner of a unit, or all of its owners."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What moved between two placements of the same units.

    ``units`` are those with an owner that they did not have, rising; ``moves`` counts such owners,
    which is the same number where a unit has one. ``least`` is how many moves no placement with
    shares that differ by one could have done without; with several owners a unit it may be less
    than what is possible, since nodes and the owners of one unit must differ.
    """

    units: tuple[int, ...]
    moves: int
    least: int


def diff(
    before: Sequence[Owners], after: Sequence[Owners], members: Iterable[str] = ()
) -> Difference:
    """What moved from ``before`` to ``after``.

    ``members`` names those among which ``after`` shares out, where some of them have nothing.
    Raises ``ProtocolError`` when the two are about different numbers of units.
    """
    if len(before) != len(after):
        raise ProtocolError(
            f"ring: a placement of {len(before)} units cannot be compared with one of {len(after)}"
        )
    gained = [_set(new) - _set(old) for old, new in zip(before, after, strict=True)]
    units = tuple(unit for unit, names in enumerate(gained) if names)
    placed = [name for new in after for name in _set(new)]
    alive = {*placed, *members}
    held = Counter(name for old in before for name in _set(old))
    least = len(placed) - most_kept(len(placed), [held[name] for name in alive])
    return Difference(units, sum(map(len, gained)), least)


def most_kept(units: int, held: Sequence[int]) -> int:
    """How many of ``units`` may stay where they are, if shares are to differ by one at most.

    ``held`` is what each member has now. Those that have more than the smaller share keep the
    larger one, as far as there are larger ones.
    """
    if not held:
        return 0
    floor, larger = divmod(units, len(held))
    above = sum(one > floor for one in held)
    return sum(min(one, floor) for one in held) + min(above, larger)


def largest_share(loads: Collection[int]) -> float:
    """The largest load in parts of the mean, 1.0 where all are equal; of nothing at all it is 1."""
    total = sum(loads)
    return max(loads) * len(loads) / total if total else 1.0


def _set(owners: Owners) -> frozenset[str]:
    return frozenset((owners,)) if isinstance(owners, str) else frozenset(owners)
