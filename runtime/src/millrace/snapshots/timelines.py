"""The timelines of a topology: which restore began each, and what of the one before counts in it.

``timelines.json`` of the work folder holds one entry for each restore, written before the view is
claimed for the new timeline; on a cluster that is a key beside the view, written with the claim. An
entry of a timeline that no view ever had is written over by the next restore, or leads nowhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from millrace import checked, durable
from millrace.errors import NewerFormatError, WorkFolderError
from millrace.homes import codec

FILE = "timelines.json"

_FIRST = 1


@dataclass(frozen=True, slots=True)
class Fork:
    """Timeline ``timeline`` goes on behind ``window`` of the timeline ``parent``.

    ``last`` is the last window of the timeline before that was sealed or shown, None where nothing
    was given up. ``lost``: all copies of some state were gone; else somebody asked for the restore.
    ``at_s`` is wall-clock time in seconds.
    """

    __pydantic_config__ = codec.STRICT

    timeline: int
    parent: int
    window: int
    snapshot: str
    last: int | None
    lost: bool
    at_s: float


@dataclass(frozen=True, slots=True)
class Timelines:
    """All restores of a work folder, the oldest first."""

    __pydantic_config__ = codec.STRICT

    forks: tuple[Fork, ...] = ()


def read(path: Path) -> tuple[Fork, ...]:
    """The restores of the work folder ``path``; none where none was noted.

    Raises ``WorkFolderError`` for a damaged document, ``NewerFormatError``.
    """
    file = path / FILE
    try:
        return codec.decode(Timelines, file.read_bytes()).forks
    except FileNotFoundError:
        return ()
    except NewerFormatError as error:
        raise NewerFormatError(f"{file}: {error}") from error
    except (OSError, checked.DamagedError) as error:
        raise WorkFolderError(
            f"{file}: cannot be read ({error}), so it is not known which snapshots belong to what "
            "the sinks show; bring it back from a copy, or start over with --fresh"
        ) from error


def decoded(text: str | None) -> tuple[Fork, ...]:
    """The restores in a document; none where there is none. Raises ``WorkFolderError`` for a
    damaged one, ``NewerFormatError``."""
    try:
        return () if text is None else codec.decode(Timelines, text).forks
    except checked.DamagedError as error:
        raise WorkFolderError(
            f"the timelines of the topology cannot be read ({error}), so it is not known which "
            "snapshots belong to what the sinks show; bring its ConfigMap back from a copy"
        ) from error


def encoded(forks: Iterable[Fork], fork: Fork) -> str:
    """A document with one restore more."""
    others = tuple(one for one in forks if one.timeline != fork.timeline)
    return json.dumps(codec.encode(Timelines((*others, fork))))


def note(path: Path, fork: Fork) -> None:
    """Add a restore durably. Raises as ``read``, and ``OSError``."""
    others = tuple(one for one in read(path) if one.timeline != fork.timeline)
    document = codec.encode(Timelines((*others, fork)))
    durable.replace(path / FILE, (json.dumps(document, indent=1) + "\n").encode())


@dataclass(frozen=True, slots=True)
class Line:
    """What led to a timeline. ``limits`` is the last window that counts of each timeline on the
    way, None for the present one; ``whole``: the way is known from the first timeline on."""

    limits: Mapping[int, int | None]
    whole: bool

    def has(self, timeline: int, window: int) -> bool:
        """Whether a window of a timeline is known to be on the way."""
        if timeline not in self.limits:
            return False
        limit = self.limits[timeline]
        return limit is None or window <= limit

    def lacks(self, timeline: int, window: int) -> bool:
        """Whether it is known not to be; of restores that were never noted nothing is known."""
        return not self.has(timeline, window) and (self.whole or timeline in self.limits)


def line_to(forks: Iterable[Fork], timeline: int) -> Line:
    """The way to a timeline."""
    known = {fork.timeline: fork for fork in forks}
    limits: dict[int, int | None] = {timeline: None}
    limit: int | None = None
    while timeline in known and known[timeline].parent < timeline:
        fork = known[timeline]
        limit = fork.window if limit is None else min(limit, fork.window)
        timeline = fork.parent
        limits[timeline] = limit
    return Line(limits, whole=timeline == _FIRST)
