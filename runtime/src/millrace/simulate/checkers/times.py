"""The time of windows: what expires in one has expired in all that follow, however a clock jumps.

A root's window keeps its time through attempts, splits and changes of drivers, and no window is
earlier than the one before it.
"""

from __future__ import annotations

from millrace.protocol.types import Record
from millrace.simulate import history as h
from millrace.simulate.parts.workload import roots_of


class Times:
    """Asked at every commit."""

    def __init__(self, history: h.History) -> None:
        self._latest_ms = 0
        history.listen(h.Commit, self._committed)
        history.listen(h.Restored, self._restored)

    def _committed(self, entry: h.Commit) -> None:
        open_before = self._times(entry.before) if entry.before is not None else {}
        for tree, time_ms in self._times(entry.after).items():
            if open_before.get(tree, time_ms) != time_ms:
                raise h.ViolationError(
                    "times", f"{tree} moved from {open_before[tree]} to {time_ms} ms"
                )
            if tree not in open_before:
                self._opened(tree, time_ms)

    def _restored(self, entry: h.Restored) -> None:
        self._latest_ms = entry.record.time_ms

    def _opened(self, tree: object, time_ms: int) -> None:
        if time_ms < self._latest_ms:
            raise h.ViolationError(
                "times", f"{tree} opens at {time_ms} ms, after {self._latest_ms} ms"
            )
        self._latest_ms = time_ms

    @staticmethod
    def _times(record: Record) -> dict[object, int]:
        return {tree: one.time_ms for one in record.intents for tree in roots_of(one)}
