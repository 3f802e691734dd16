"""What a campaign needs of the place where a topology runs."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from millrace.chaos.plan import VictimKind
from millrace.homes.documents import Status


@dataclass(frozen=True, slots=True)
class Look:
    """A topology at one moment, as its driver tells it.

    ``sealed`` and ``published`` are the last window that is, 0 before the first. ``working``: a
    driver that lives has a window under way, or knows of records that wait for one. ``idle``: one
    that lives has nothing to do, and nothing waits, neither records nor replays. Between the two
    nobody can tell, as while a driver starts. ``told_s`` is the wall-clock time at which ``sealed``
    was so, ``figures_s`` that of the figures which say the rest; 0 while a driver that has read no
    record yet repeats those of the one before.
    ``roots`` are those that are done with, be they processed, dead letters or dropped.
    ``ended`` is how a run that is over ended: drained, failed and so on.
    """

    sealed: int
    published: int
    working: bool
    idle: bool
    told_s: float = 0.0
    figures_s: float = 0.0
    roots: int = 0
    dead_letters: int = 0
    ended: str | None = None

    @property
    def at_rest(self) -> bool:
        """Whether all that was fed is shown."""
        if self.ended is not None:
            return self.ended == "drained"
        return self.idle and self.sealed == self.published


def look_of(figures: Status, lives: bool, ended: str | None) -> Look:
    """What figures say, where the driver that wrote them ``lives``: those of one that is gone say
    nothing about what the next one has to do."""
    waiting = bool(figures.lag_records or figures.pending_replays)
    speaks = lives and figures.state == figures.spark == "running"
    known = figures.lag_records is not None and figures.pending_replays is not None
    told_s = figures.updated or 0.0 if figures.own else 0.0
    return Look(
        sealed=figures.sealed or 0,
        published=figures.published or 0,
        working=lives and (figures.window is not None or waiting),
        idle=speaks and known and figures.window is None and not waiting,
        told_s=told_s,
        figures_s=told_s,
        roots=roots_read(figures),
        dead_letters=figures.dead_letters or 0,
        ended=ended,
    )


def roots_read(figures: Status) -> int:
    """How many roots are done with, each counted once, whatever became of it."""
    totals = figures.totals
    return 0 if totals is None else totals.roots + totals.dead + totals.dropped


@dataclass(frozen=True, slots=True)
class Victim:
    """What was killed, and in which way: ``SIGKILL``, ``delete``, ``force`` (deleted without
    grace) or ``command`` (the caller's own, for a node)."""

    name: str
    way: str

    @property
    def seen_to_end(self) -> bool:
        """Whether it had ended when the strike was over. Of a deletion it is only known that the
        API server accepted it: a pod may serve on, for its grace period at most, or where its node
        hears nothing until that is gone itself. A node has ended as far as the command for it says
        so (``Target.ended``)."""
        return self.way not in ("delete", "force")


class Target(Protocol):
    """A topology that runs somewhere."""

    refused: Mapping[VictimKind, str]
    """Kinds that cannot be killed here, with the reason."""

    def look(self) -> Look:
        """How it stands. Raises ``MillraceError`` where that cannot be seen."""
        ...

    def kill(self, kind: VictimKind, chance: random.Random) -> Victim | None:
        """Kill one of a kind; None where there is none at the moment. Of several kinds at once it
        is asked by as many threads."""
        ...

    def ended(self, victim: Victim) -> bool | None:
        """Whether a strike counts: not so one behind which nothing of its victim was seen to end;
        None while that may still be seen."""
        ...
