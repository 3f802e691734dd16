"""Placing a fixed number of units on members: even shares, least movement.

With few units the shares of a plain ring are too uneven, so the ring only says who is asked
first and the load is bounded by the integer ceiling of the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain

from millrace.errors import ProtocolError
from millrace.ring.hashing import DEFAULT_STRATEGY, Strategy
from millrace.ring.ring import DEFAULT_VIRTUAL_NODES, Ring


def assign(
    units: int,
    members: Iterable[str],
    previous: Sequence[str] | None = None,
    virtual_nodes: int = DEFAULT_VIRTUAL_NODES,
    strategy: Strategy = DEFAULT_STRATEGY,
    *,
    striped: bool = False,
) -> tuple[str, ...]:
    """Owner of each of the units 0 .. ``units``-1; the members' shares differ by at most one.

    No assignment with such shares moves fewer units away from ``previous`` (a list of ``units``
    names, some of which may be gone; a name that is no member owned nothing). Without
    ``previous`` the result depends on the set of members alone. Raises ``ProtocolError`` without
    a member or when ``previous`` has another length.

    A unit asks the ring for its owner. ``striped``: units ask the members in turn, in the ring's
    order, so that as many as there are members lie on different ones as long as nothing has moved.

    Source: Mirrokni, Thorup, Zadimoghaddam 2016, "Consistent hashing with bounded loads", with a
    bound of ceil(mean) for some members and floor(mean) for the rest, and a stored assignment
    where the paper would recompute.
    """
    ring = Ring(members, virtual_nodes, strategy)
    _check(units, ring, previous)
    held: dict[str, list[int]] = {name: [] for name in ring.members}
    for unit, owner in enumerate(previous or ()):
        if owner in held:
            held[owner].append(unit)
    order = tuple(ring.walk("stripes")) if striped else ring.members
    quota = _quotas(units, {name: len(held[name]) for name in order})
    placed: list[str | None] = [None] * units
    spare: dict[str, int] = {}
    ask = _in_turn(order) if striped else _around(ring)
    for name, mine in held.items():
        # What would rather lie elsewhere goes first, so a stored assignment drifts towards that.
        mine.sort(key=lambda unit: (next(ask(unit)) != name, unit))
        for unit in mine[: quota[name]]:
            placed[unit] = name
        spare[name] = quota[name] - min(quota[name], len(mine))
    return tuple(
        owner if owner is not None else _take(ask(unit), spare) for unit, owner in enumerate(placed)
    )


Ask = Callable[[int], Iterator[str]]
"""Whom a unit asks for room, in this order: every member once."""


def _around(ring: Ring) -> Ask:
    return lambda unit: ring.walk(f"unit/{unit}")


def _in_turn(order: Sequence[str]) -> Ask:
    def ask(unit: int) -> Iterator[str]:
        first = unit % len(order)
        return chain(order[first:], order[:first])

    return ask


def _check(units: int, ring: Ring, previous: Sequence[object] | None) -> None:
    if not ring.members:
        raise ProtocolError(f"ring: {units} units cannot be placed on no member; add a member")
    if previous is not None and len(previous) != units:
        raise ProtocolError(
            f"ring: the previous assignment names {len(previous)} units, this one {units}; "
            "the number of units is fixed"
        )


def _quotas(units: int, held: Mapping[str, int]) -> dict[str, int]:
    """Exact share of each member; those that hold most, then the first, have the larger one."""
    floor, larger = divmod(units, len(held))
    by_load = sorted(held, key=lambda name: -held[name])
    return {name: floor + (rank < larger) for rank, name in enumerate(by_load)}


def _take(asked: Iterator[str], spare: dict[str, int]) -> str:
    for name in asked:
        if spare[name] > 0:
            spare[name] -= 1
            return name
    raise AssertionError("the quotas add up to the number of units")


def owners(
    key_groups: int,
    members: Iterable[str],
    copies: int,
    nodes: Mapping[str, str] | None = None,
    previous: Sequence[Sequence[str]] | None = None,
) -> tuple[tuple[str, ...], ...]:
    """Owners of each key group: ``copies`` distinct members, or all where there are fewer.

    ``nodes`` says on which node a member lives (each on its own where it is not named); the
    owners of a group lie on different nodes as long as there are enough, and on as many as there
    are otherwise. Loads are as even as that allows and owners in ``previous`` stay where they
    can. Every group's owners are in alphabetical order. Raises ``ProtocolError`` without a
    member, without a copy or when ``previous`` has another length.
    """
    ring = Ring(members)
    _check(key_groups, ring, previous)
    if copies < 1:
        raise ProtocolError(f"ring: copies is {copies}; a key group needs at least one owner")
    placement = _Owners(ring, copies, nodes or {}, previous or [()] * key_groups)
    placement.fill()
    placement.even_out()
    return tuple(tuple(sorted(group)) for group in placement.groups)


class _Owners:
    """Owners while they are being chosen; ``groups[g]`` is a set of members."""

    def __init__(
        self,
        ring: Ring,
        copies: int,
        nodes: Mapping[str, str],
        previous: Sequence[Sequence[str]],
    ) -> None:
        self.ring = ring
        self.node = {name: nodes.get(name, f"member {name}") for name in ring.members}
        self.copies = min(copies, len(ring.members))
        self.spread = min(self.copies, len(set(self.node.values())))
        self.before = [frozenset(group) & self.node.keys() for group in previous]
        self.load = dict.fromkeys(ring.members, 0)
        self.rank = [
            {name: at for at, name in enumerate(ring.walk(f"group/{number}"))}
            for number in range(len(previous))
        ]
        self.groups: list[set[str]] = [self._kept(group) for group in self.before]
        self._moves: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
        """For a giver and a taker the groups that may move, as far as looked at, cheapest first."""
        for group in self.groups:
            for name in group:
                self.load[name] += 1

    def _kept(self, group: frozenset[str]) -> set[str]:
        """What may stay of a group's owners: enough room must be left to reach all nodes."""
        kept: set[str] = set()
        for name in sorted(group):
            if len(kept) < self.copies and self._allowed(kept, name):
                kept.add(name)
        return kept

    def _allowed(self, group: set[str], name: str) -> bool:
        """May ``name`` join ``group``, with ``spread`` nodes still within reach?"""
        if name in group:
            return False
        reached = len({self.node[one] for one in group} | {self.node[name]})
        return reached + (self.copies - len(group) - 1) >= self.spread

    def fill(self) -> None:
        """Give every group its full number of owners, in ring order below the mean load.

        Ring order, not the least loaded first: that would pair the same members again and
        again, and the loss of one would fall on its partner alone.
        """
        floor = len(self.groups) * self.copies // len(self.ring.members)
        for number, group in enumerate(self.groups):
            rank = self.rank[number]
            while len(group) < self.copies:
                name = min(
                    (one for one in self.ring.members if self._allowed(group, one)),
                    key=lambda one: (
                        max(self.load[one] - floor, -1),
                        one not in self.before[number],
                        rank[one],
                    ),
                )
                group.add(name)
                self.load[name] += 1

    def even_out(self) -> None:
        """Move groups from fuller to emptier members until no legal move helps.

        Each move lowers the sum of squared loads, so this ends.
        """
        while self._move_once():
            pass

    def _move_once(self) -> bool:
        by_load = sorted(self.load, key=lambda name: (self.load[name], name))
        for giver in reversed(by_load):
            for taker in by_load:
                if self.load[giver] - self.load[taker] < 2:
                    break
                found = self._best_move(giver, taker)
                if found is not None:
                    self._move(found, giver, taker)
                    return True
        return False

    def _best_move(self, giver: str, taker: str) -> int | None:
        """The group whose move costs least: one that ``giver`` did not own before, if any.

        Whether a group may move depends on its owners alone. So one that may not is looked at again
        only after it has got another one.
        """
        moves = self._moves.get((giver, taker))
        if moves is None:
            found = (n for n, group in enumerate(self.groups) if giver in group)
            moves = [self._cost(number, giver, taker) for number in found]
            heapify(moves)
            self._moves[giver, taker] = moves
        while moves:
            group = self.groups[moves[0][2]]
            if giver in group and self._allowed(group - {giver}, taker):
                return moves[0][2]
            heappop(moves)
        return None

    def _cost(self, number: int, giver: str, taker: str) -> tuple[int, int, int]:
        before, rank = self.before[number], self.rank[number]
        return (giver in before) - (taker in before), rank[taker] - rank[giver], number

    def _move(self, number: int, giver: str, taker: str) -> None:
        group = self.groups[number]
        group.remove(giver)
        group.add(taker)
        self.load[giver] -= 1
        self.load[taker] += 1
        for (one, other), moves in self._moves.items():
            if one in group and other not in group:
                heappush(moves, self._cost(number, one, other))
