"""What goes wrong between tasks: lost, doubled and unread tuples of one window attempt.

A fault that makes single roots incomplete is told to the history as a ``Hit`` of them.
"""

from __future__ import annotations

from millrace.protocol.types import AttemptPlan
from millrace.simulate import history as h
from millrace.simulate.options import Options
from millrace.simulate.parts.flow import Item, share_of
from millrace.simulate.parts.workload import roots_of
from millrace.simulate.world import World

Where = tuple[str, int]
"""(edge, partition of the reader)."""


class Transport:
    """Carries the envelopes of one window attempt."""

    def __init__(
        self, world: World, history: h.History, options: Options, plan: AttemptPlan
    ) -> None:
        self._world = world
        self._history = history
        self._options = options
        self._plan = plan

    def carry(self, envelopes: dict[Where, list[Item]], where: Where) -> list[Item]:
        """What a reader finds in one writer's envelope."""
        items = envelopes.get(where, [])
        if not items or not self._world.chance(self._options.chaos.tuple_lost):
            return items
        victim = self._world.rng.choice(items)
        self._hit(victim)
        if self._world.rng.random() < 0.3:
            return [*items, victim]
        if self._world.rng.random() < 0.5:
            _lose_everywhere(envelopes, victim)
        return [one for one in items if one is not victim]

    def short_read(self, partition: int) -> frozenset[int]:
        """Roots that a source task silently does not read."""
        return self._skipped(partition, self._options.chaos.short_read)

    def short_told(self, partition: int) -> frozenset[int]:
        """Roots that a source task does not read, as its report says."""
        skipped = self._skipped(partition, self._options.chaos.short_told)
        if skipped:
            self.hit_all()
        return skipped

    def _skipped(self, partition: int, probability: float) -> frozenset[int]:
        if not self._world.chance(probability):
            return frozenset()
        share = share_of(self._plan.intent.roots, partition, self._options.parallelism)
        if not share:
            return frozenset()
        lost = self._world.rng.choice(share)
        self._history.add(h.Hit(self._plan.id, (roots_of(self._plan.intent)[lost][0],)))
        return frozenset((lost,))

    def hit_all(self) -> None:
        """A fault of the whole attempt, which no root may be blamed for."""
        self._history.add(h.Note(f"attempt {self._plan.id} is hit as a whole"))

    def _hit(self, item: Item) -> None:
        """Roots in a combined tuple may lose their tuples to other consumers with it."""
        if item.sequence is None:
            self.hit_all()
        roots = sorted({row.root for row in item.members})
        self._history.add(h.Hit(self._plan.id, tuple(roots)))


def _lose_everywhere(envelopes: dict[Where, list[Item]], victim: Item) -> None:
    """A row is lost for all its consumers."""
    for items in envelopes.values():
        items[:] = [one for one in items if one is victim or one.members[:1] != victim.members[:1]]
