"""A snapshot has all that its record names, and a restore brings back a record that was committed,
as it was, only where state was lost. Nor is an older copy spoken of where none was put back.
"""

from __future__ import annotations

from dataclasses import replace

from millrace.ids import NO_WINDOW
from millrace.protocol.record import mark_published
from millrace.protocol.types import Record, Tag
from millrace.simulate import history as h
from millrace.simulate.checkers.durability import named
from millrace.simulate.options import Options


class Restores:
    """Asked at every snapshot and restore, and whenever a driver says that state is lost."""

    def __init__(self, history: h.History, options: Options) -> None:
        self._lost = options.lost_s is None
        self._old_files = options.chaos.stale_s > 0.0
        self._known: dict[int, list[Record]] = {}
        self._executions: dict[int, int] = {}
        self._restore = 0
        history.listen(h.Commit, self._committed)
        history.listen(h.SnapshotTaken, self._taken)
        history.listen(h.StateGone, self._gone)
        history.listen(h.Claimed, self._claimed)
        history.listen(h.DriverGone, self._ended)
        history.listen(h.Restored, self._restored)

    def _committed(self, entry: h.Commit) -> None:
        found = self._known.setdefault(entry.after.sealed, [])
        found.append(_bare(entry.after, entry.after.tag))

    def _taken(self, entry: h.SnapshotTaken) -> None:
        lacking = sorted(named(entry.record).keys() - entry.names)
        if lacking:
            raise h.ViolationError("snapshot", f"{entry.record.tag} is kept without {lacking}")

    def _gone(self, entry: h.StateGone) -> None:
        self._lost = True

    def _claimed(self, entry: h.Claimed) -> None:
        self._executions[entry.number] = entry.execution

    def _ended(self, entry: h.DriverGone) -> None:
        """One that was stopped says it late, when it wakes up behind the restore."""
        late = self._executions.get(entry.number, 0) < self._restore
        if entry.how == "lost" and not self._lost and not late:
            raise h.ViolationError("lost", f"driver {entry.number} says so, and nothing was")
        if entry.how == "behind" and not self._old_files:
            raise h.ViolationError(
                "older copy", f"driver {entry.number} says so, and none was made"
            )

    def _restored(self, entry: h.Restored) -> None:
        self._lost = False
        record = entry.record
        self._restore = record.tag.execution
        if not any(record == _begun_with(one, record.tag) for one in self._of(record)):
            raise h.ViolationError("restore", f"{record} was never committed")
        # What lies behind it is given up, and none of it may come back.
        self._known = {w: found for w, found in self._known.items() if w <= record.sealed}

    def _of(self, record: Record) -> list[Record]:
        return self._known.get(record.sealed, [])


def _begun_with(record: Record, tag: Tag) -> Record:
    """The first record of a timeline; nobody carries letters over into that."""
    return replace(record, tag=tag, last_dead=NO_WINDOW)


def _bare(record: Record, tag: Tag) -> Record:
    """A record as a snapshot has it: all of its windows are shown."""
    return replace(mark_published(record, record.sealed), tag=tag)
