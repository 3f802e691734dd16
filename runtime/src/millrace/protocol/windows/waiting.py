"""When the replays of the committed record are due, on the monotonic clock of this process.

A wall clock that jumps neither hurries nor delays them. Nothing here outlives the process: the
next driver finds the replays in the record and lets each wait its whole delay again, so none is
ever later than that after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable

from millrace.protocol.types import Replay

Tree = tuple[str, int, int, int]


class Waiting:
    """Due times of replays; times are monotonic seconds."""

    def __init__(self) -> None:
        self._due_s: dict[Tree, float] = {}
        self._replays: tuple[Replay, ...] = ()

    def update(self, replays: tuple[Replay, ...], now_s: float) -> None:
        """The replays of a record that is committed: new ones begin to wait."""
        if replays is self._replays:
            return
        self._replays = replays
        known = self._due_s
        self._due_s = {
            tree: known.get(tree, now_s + replay.delay_s)
            for replay in replays
            for tree in (_tree(replay),)
        }

    def due(self, replays: Iterable[Replay], now_s: float, limit: int) -> tuple[Replay, ...]:
        """Replays for the next window: those due, a suspected killer always alone.

        One that no committed record holds yet has not begun to wait.
        """
        ready = [r for r in replays if self._due_s.get(_tree(r), now_s + r.delay_s) <= now_s]
        together = [r for r in ready if not r.alone]
        return tuple(together[:limit]) if together else tuple(ready[:1])

    def next_s(self) -> float | None:
        """When the earliest replay is due, or None."""
        return min(self._due_s.values(), default=None)


def _tree(replay: Replay) -> Tree:
    return replay.source, replay.partition, replay.offset, replay.number
