"""Deletes what a topology took by itself, and what it did not finish, once it has had its time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from millrace.errors import SnapshotError
from millrace.protocol.types import Record
from millrace.snapshots.places import Place
from millrace.snapshots.reading import Entry, delete, discard
from millrace.snapshots.retention import Retention, leftovers, outdated, successor
from millrace.snapshots.timelines import Fork, line_to


def clean(
    place: Place,
    found: Sequence[Entry],
    record: Record,
    retention: Retention,
    forks: Callable[[], Iterable[Fork]],
    now_s: float,
) -> None:
    """Clean up behind ``record``, whose driver writes nothing to the place meanwhile.

    Raises ``MillraceError`` where something cannot be deleted, and what ``forks`` raises; also
    where the driver was replaced, which deletes no snapshot then.
    """
    for name in leftovers(found, record):
        discard(place, name)
    if all(entry.manifest is None for entry in found):
        return
    known = tuple(forks())
    later = successor(found, record, known)
    if later is not None:
        raise SnapshotError(
            f"{later}, and the driver of execution {record.tag.execution} deletes none any more"
        )
    failed: list[SnapshotError] = []
    for name in outdated(found, record, retention, now_s, line_to(known, record.tag.timeline)):
        try:
            delete(place, name)
        except SnapshotError as error:
            if error.retryable:
                raise
            failed.append(error)  # others may be deleted all the same
    if failed:
        raise failed[0]
