"""As long as the user allows no more, no record is committed with too many dead letters.

Counted from the offsets and queues of the record alone, over all roots since the beginning: a run
reads fewer of them than one cohort has.
"""

from __future__ import annotations

from millrace.protocol.types import Record
from millrace.simulate import history as h
from millrace.simulate.options import Options
from millrace.simulate.parts.workload import Workload, roots_of

LEAST_JUDGED = 6
STOPS_BEFORE_RAISED = 2
"""How often a run stops for its dead letters before the user allows all of them."""


class DeadShare:
    """Asked at every commit."""

    def __init__(self, history: h.History, options: Options, workload: Workload) -> None:
        self._percent = options.dead_percent
        self._stops = 0
        self._workload = workload
        history.listen(h.Commit, self._committed)
        history.listen(h.DriverGone, self._ended)

    def _ended(self, entry: h.DriverGone) -> None:
        self._stops += entry.how == "deadLetters"

    def _committed(self, entry: h.Commit) -> None:
        if self._percent is None or self._stops >= STOPS_BEFORE_RAISED:
            return
        before, after = _dead(entry.before), _dead(entry.after)
        judged = _judged(entry.after) - self._holes(entry.after)
        if after > before and judged >= LEAST_JUDGED and after * 100 > self._percent * judged:
            raise h.ViolationError(
                "dead share", f"{after} of {judged} judged roots are dead, {self._percent}% allowed"
            )

    def _holes(self, record: Record) -> int:
        """Offsets without a record, of those that are read and judged."""
        read = {
            (source, int(partition), offset)
            for source, offsets in record.offsets.items()
            for partition, count in offsets.items()
            for offset in range(int(count))
        }
        read -= {root for intent in record.intents for root, _ in roots_of(intent)}
        return sum(self._workload.is_hole(root) for root in read)


def _dead(record: Record | None) -> int:
    return sum(one.count for one in record.dead) if record is not None else 0


def _judged(record: Record) -> int:
    read = sum(int(n) for offsets in record.offsets.values() for n in offsets.values())
    open_roots = sum(intent.roots for intent in record.intents)
    return read - open_roots - len(record.replays)
