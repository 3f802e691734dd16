"""A window of n roots with k that kill their worker ends within 3·(1 + 2k·ceil(log2 n)) runs, and
one in which nothing is wrong but records that cannot be decoded within one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

from millrace.protocol import events as e
from millrace.protocol.types import Intent
from millrace.simulate import history as h
from millrace.simulate.parts.workload import Root, RootKind, Workload, roots_of

Tree = tuple[Root, int]


@dataclass(slots=True)
class _Origin:
    """A window as it was opened; its halves count with it."""

    window: int
    limit: int
    runs: int = 0


def limit(roots: int, killers: int) -> int:
    """Most runs of a window; see ``protocol.decide``."""
    return 3 * (1 + 2 * killers * ceil(log2(max(roots, 1))))


class Bound:
    """For runs in which nothing fails but poisoned roots."""

    def __init__(self, history: h.History, workload: Workload) -> None:
        self._workload = workload
        self._origins: dict[Tree, _Origin] = {}
        history.listen(h.Commit, self._committed)
        history.listen(h.Acted, self._acted)

    def _committed(self, entry: h.Commit) -> None:
        for intent in entry.after.intents:
            listed = roots_of(intent)
            if listed and listed[0] not in self._origins:
                origin = self._origin(intent)
                self._origins.update(dict.fromkeys(listed, origin))

    def _origin(self, intent: Intent) -> _Origin:
        listed = roots_of(intent)
        kinds = [self._workload.kinds[root] for root, _ in listed]
        if set(kinds) <= {RootKind.GOOD, RootKind.UNREADABLE, RootKind.HOLE}:
            return _Origin(intent.window, 1)
        return _Origin(intent.window, limit(len(listed), sum(1 for kind in kinds if kind.deadly)))

    def _acted(self, entry: h.Acted) -> None:
        if not isinstance(entry.action, e.Run):
            return
        listed = roots_of(entry.action.plan.intent)
        if not listed:
            return
        origin = self._origins[listed[0]]
        origin.runs += 1
        if origin.runs > origin.limit:
            raise h.ViolationError(
                "bound",
                f"window {origin.window} is run {origin.runs} times, {origin.limit} allowed",
            )
