"""What a campaign needs of the place where a topology runs."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from millrace.chaos.plan import VictimKind


@dataclass(frozen=True, slots=True)
class Look:
    """A topology at one moment.

    ``sealed`` and ``published`` are the last window that is, 0 before the first. ``busy`` says
    that a window is under way, ``behind`` that input is known which no sealed window has; None
    where nobody can tell. ``ended`` is how a run that is over ended: drained, failed and so on.
    """

    sealed: int
    published: int
    busy: bool
    behind: bool | None
    execution: int | None = None
    ended: str | None = None

    @property
    def at_rest(self) -> bool:
        """Whether all that was fed is shown."""
        done = self.sealed == self.published and not self.busy and self.behind is False
        return self.ended == "drained" or (self.ended is None and done)


@dataclass(frozen=True, slots=True)
class Victim:
    """What was killed, and in which way: ``SIGKILL``, ``delete`` or ``force``."""

    name: str
    way: str


class Target(Protocol):
    """A topology that runs somewhere."""

    refused: Mapping[VictimKind, str]
    """Kinds that cannot be killed here, with the reason."""

    def look(self) -> Look:
        """How it stands. Raises ``MillraceError`` where that cannot be seen."""
        ...

    def kill(self, kind: VictimKind, chance: random.Random) -> Victim | None:
        """Kill one of a kind; None where there is none at the moment."""
        ...
