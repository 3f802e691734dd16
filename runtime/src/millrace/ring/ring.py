"""The ring itself: virtual nodes on a circle of 2^32 positions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from millrace.errors import ProtocolError
from millrace.ring.hashing import DEFAULT_STRATEGY, POSITIONS, Strategy, position

DEFAULT_VIRTUAL_NODES = 64


@dataclass(frozen=True, slots=True)
class Ring:
    """Members and their virtual nodes ``name#1`` .. ``name#N``; immutable.

    The order and repetition of ``members`` do not matter. Raises ``ProtocolError`` when
    ``virtual_nodes`` is not positive.
    """

    members: tuple[str, ...]
    virtual_nodes: int
    strategy: Strategy
    _points: tuple[int, ...] = field(repr=False, compare=False)
    _names: tuple[str, ...] = field(repr=False, compare=False)

    def __init__(
        self,
        members: Iterable[str],
        virtual_nodes: int = DEFAULT_VIRTUAL_NODES,
        strategy: Strategy = DEFAULT_STRATEGY,
    ) -> None:
        if virtual_nodes < 1:
            raise ProtocolError(
                f"ring: virtualNodes is {virtual_nodes}; a member needs at least one virtual node"
            )
        names = tuple(sorted(set(members)))
        # Two virtual nodes may share a position: the name decides, so all rings agree.
        nodes = sorted(
            (position(f"{name}#{number}", strategy), name)
            for name in names
            for number in range(1, virtual_nodes + 1)
        )
        object.__setattr__(self, "members", names)
        object.__setattr__(self, "virtual_nodes", virtual_nodes)
        object.__setattr__(self, "strategy", strategy)
        object.__setattr__(self, "_points", tuple(point for point, _ in nodes))
        object.__setattr__(self, "_names", tuple(name for _, name in nodes))

    def owner(self, key: str) -> str:
        """The member whose virtual node is the first one clockwise from ``key``.

        Raises ``ProtocolError`` when the ring has no member.
        """
        return self.owner_at(position(key, self.strategy))

    def owner_at(self, at: int) -> str:
        """The member of the first virtual node at or behind position ``at``."""
        if not self._points:
            raise ProtocolError("ring: it has no member that could own anything; add a member")
        return self._names[bisect_left(self._points, at % POSITIONS) % len(self._points)]

    @property
    def points(self) -> tuple[tuple[int, str], ...]:
        """(position, member) of all virtual nodes, clockwise from position 0."""
        return tuple(zip(self._points, self._names, strict=True))

    def walk(self, key: str) -> Iterator[str]:
        """All members, each once, in the order met clockwise from ``key``."""
        start = bisect_left(self._points, position(key, self.strategy))
        seen: set[str] = set()
        for step in range(len(self._names)):
            name = self._names[(start + step) % len(self._names)]
            if name not in seen:
                seen.add(name)
                yield name

    def shares(self) -> Mapping[str, float]:
        """Part of the circle that each member owns; the parts add up to 1."""
        parts = dict.fromkeys(self.members, 0.0)
        before = self._points[-1] - POSITIONS if self._points else 0
        for point, name in zip(self._points, self._names, strict=True):
            parts[name] += (point - before) / POSITIONS
            before = point
        return parts
