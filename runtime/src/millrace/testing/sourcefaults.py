"""A source whose processes die at each line of their code.

Lines between which nothing happened that others could notice are tried once (``testing.effects``).
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millrace.protocol.types import RootRange
from millrace.testing import wire
from millrace.testing.findings import BrokenError, Check
from millrace.testing.lines import chosen
from millrace.testing.processes import Outcome
from millrace.testing.walks import Feed, SourceCopy, Walk

LOOKS = 10
"""Deaths between two looks at what they left."""

Act = Callable[[SourceCopy, dict[str, Any]], Outcome]


class SourceFaults:
    """The checks; each is a method that raises ``BrokenError``."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def checks(self) -> list[Check]:
        """All of them."""
        return [
            Check(self.death_in_plan, ("crash",)),
            Check(self.death_in_read, ("crash",)),
            Check(self.death_in_on_ack, ("crash",)),
        ]

    def death_in_plan(self) -> None:
        def act(copy: SourceCopy, step: dict[str, Any]) -> Outcome:
            return copy.process.ask("plan", offsets=None, max_records=self._feed.portion, **step)

        self._killed("plan()", act, first=0)

    def death_in_read(self) -> None:
        piece = self._pieces()[0]

        def act(copy: SourceCopy, step: dict[str, Any]) -> Outcome:
            return copy.process.ask("read", piece=wire.pack(piece), **step)

        self._killed("read()", act, first=0)

    def death_in_on_ack(self) -> None:
        packed = [wire.pack(piece) for piece in self._pieces()]

        def act(copy: SourceCopy, step: dict[str, Any]) -> Outcome:
            return copy.process.ask("on_ack", window=1, ranges=packed, failed=[], **step)

        self._killed("on_ack()", act, first=1)

    def _pieces(self) -> list[RootRange]:
        """The ranges of the first window."""
        pieces = list(self._feed.walk_of(self._feed.portion, 1).plans[0].ranges)
        if not pieces:
            raise BrokenError("crash", "plan() gives nothing any more from the beginning")
        return pieces

    def _killed(self, name: str, act: Act, first: int) -> None:
        """Kill ``act`` at each of its lines; plans from number ``first`` on must stay the same."""
        walk = self._feed.walk_of(self._feed.portion, 3)
        with self._feed.copy() as copy:
            counted = act(copy, {"step": "count for kill"})
        places = counted.places
        points = chosen(places, counted.parts)
        for number, at in enumerate(points):
            with self._feed.copy() as copy:
                act(copy, {"step": "kill", "at_line": at})
            # A source that changes something leaves it changed, so that a look now and then is
            # enough to see it.
            if number % LOOKS == LOOKS - 1 or at == points[-1]:
                file, line = places[at]
                code = linecache.getline(file, line).strip()
                where = f"at {Path(file).name}:{line} `{code}` and at lines that run before it"
                self._look(walk, first, f"after processes died in {name} {where}")

    def _look(self, walk: Walk, first: int, when: str) -> None:
        try:
            with self._feed.elsewhere() as copy:
                for start, plan in list(zip(walk.starts, walk.plans, strict=True))[first:]:
                    again = copy.plan(start, self._feed.portion)
                    if again.names != plan.names:
                        raise BrokenError(
                            "crash", f"plan() gives {again.names}, before it gave {plan.names}"
                        )
                    self._feed.compare(copy, again, "crash", "read by another process")
        except BrokenError as broken:
            rule = broken.rule if broken.rule == "returns" else "crash"
            raise BrokenError(rule, f"{when}: {broken}") from None
