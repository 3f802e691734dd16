"""A replay waits at least as long as its back-off says, whatever the wall clock shows.

That nothing waits for ever is liveness, which every run is judged by.
"""

from __future__ import annotations

from collections.abc import Callable

from millrace.simulate import history as h
from millrace.simulate.parts.workload import Root, root_of, roots_of

TOLERANCE_S = 1e-6


class Pauses:
    """Asked at every commit; measures in the time of the simulated world."""

    def __init__(self, history: h.History, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._until_s: dict[tuple[Root, int], float] = {}
        history.listen(h.Commit, self._committed)

    def _committed(self, entry: h.Commit) -> None:
        now_s = self._now_s()
        for intent in entry.after.intents:
            for tree in roots_of(intent):
                if now_s < self._until_s.pop(tree, now_s) - TOLERANCE_S:
                    raise h.ViolationError("pauses", f"{tree} is replayed before it is due")
        for replay in entry.after.replays:
            tree = (root_of(replay), replay.number)
            self._until_s.setdefault(tree, now_s + replay.delay_s)
