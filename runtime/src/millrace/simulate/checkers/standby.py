"""A driver that stands by does nothing until it is told that the one before is gone."""

from __future__ import annotations

from millrace.simulate import history as h


class StandsByIdle:
    """Asked after every action of every driver."""

    def __init__(self, history: h.History) -> None:
        self._waiting: set[int] = set()
        history.listen(h.StandsBy, lambda entry: self._waiting.add(entry.number))
        history.listen(h.TakesOver, lambda entry: self._waiting.discard(entry.number))
        history.listen(h.Acted, self._acted)

    def _acted(self, entry: h.Acted) -> None:
        if entry.number in self._waiting:
            raise h.ViolationError("standby", f"driver {entry.number} acts and only stands by")
