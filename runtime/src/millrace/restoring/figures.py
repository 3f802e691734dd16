"""What is told of a topology that was restored, until its next driver tells more."""

from __future__ import annotations

from millrace.homes.documents import Status
from millrace.protocol.record import dead_letters
from millrace.protocol.types import Record, View


def figures(record: Record, view: View, now_s: float) -> Status:
    """The figures of the first record of a timeline; ``now_s`` is wall-clock time in seconds."""
    return Status(
        uid=view.uid,
        execution=view.execution,
        epoch=view.epoch,
        phase=view.phase.value,
        sealed=record.sealed,
        published=record.published,
        totals=record.totals,
        pending_replays=len(record.replays),
        dead_letters=dead_letters(record),
        updated=now_s,
    )
