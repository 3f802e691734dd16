"""What the driver's state machine needs to know of a topology."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.protocol.cohorts import NO_LIMIT, DeadLimit
from millrace.protocol.record import Backoff
from millrace.protocol.types import Components, Guarantee


@dataclass(frozen=True, slots=True)
class Settings:
    """The same for the whole life of a driver, but for ``max_records`` (``Windows.resize``)."""

    uid: str
    guarantee: Guarantee
    tracking: bool
    backoff: Backoff
    max_records: int
    copies: int = 1
    key_groups: int = 128
    max_unpublished: int = 4
    max_waiting: int = 200_000
    emits_final: bool = False
    callbacks: bool = False
    dead_limit: DeadLimit = NO_LIMIT
    learners: bool = False
    """Servers that join learn the objects while windows go on."""
    components: Components | None = None
    """What the topology consists of; None where it is never edited."""
    restores: bool = False
    """End the driver where all copies of an object are gone for good, so that whoever started it
    can restore a snapshot; else that waits for a file that holds it."""
    prepares_from: int | None = None
    """Windows of at least so many roots are prepared while the one before runs; None: no window.
    What of such a window can run before its turn is for whoever runs it to say."""
    drop_removed: bool = False
    """Give up what sealed windows still have to show on sinks that were removed."""
    letters_together: int = 256
    """At most so many dead letters, those that were taken out too, stand in one object together,
    if they are of several windows; 0: those of each window in its own."""
