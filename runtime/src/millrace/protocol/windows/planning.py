"""Finds the next input behind the planned offsets while the window before it runs.

Crash rule: what is found is nobody's until a record plans it, so it may be lost at any point.
"""

from __future__ import annotations

from collections.abc import Mapping

from millrace.protocol import events as e
from millrace.protocol.types import Json
from millrace.protocol.windows.doing import Surprise


class Planning:
    """One question to the sources at a time, told from older ones by its token.

    ``found`` is what they have; ``drained``: there will never be more behind it.
    """

    def __init__(self) -> None:
        self.found: e.Planned | None = None
        self.drained = False
        self._token = 0
        self._asked = False

    def restart(self) -> None:
        """Forget what was asked and found: another record counts."""
        self._next_question()
        self.drained = False

    def ask(self, offsets: Mapping[str, Json]) -> list[e.Action]:
        """Ask for what lies behind these offsets, unless that was done or is of no use."""
        if self._asked or self.drained:
            return []
        self._asked = True
        return [e.Plan(self._token, offsets)]

    def committed(self, offsets: Mapping[str, Json]) -> None:
        """A record with these planned offsets is committed: if it has what was found, go on."""
        if self.found is not None and self.found.offsets == offsets:
            self._next_question()

    def surprise(self, event: e.Planned | e.PlanFailed) -> Surprise | None:
        if event.token < self._token:
            return Surprise.LATE
        if event.token > self._token or not self._asked:
            return Surprise.BUG
        heard = isinstance(event, e.Planned) and self.found is not None
        return Surprise.DOUBLED if heard else None

    def planned(self, event: e.Planned) -> list[e.Action]:
        self.drained = event.drained
        if event.ranges:
            self.found = event
        return []

    def plan_failed(self, event: e.PlanFailed) -> list[e.Action]:
        return [e.Stop(e.StopKind.FAILED, event.text, event.code)]

    @property
    def nothing_left(self) -> bool:
        """Whether all input is planned and none will come."""
        return self.drained and self.found is None

    def _next_question(self) -> None:
        self._token += 1
        self._asked = False
        self.found = None
