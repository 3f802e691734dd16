"""Objects have as many owners as the user asks for, soon after an edit asks for another number.

That they truly are on these is for ``durability``.
"""

from __future__ import annotations

from collections.abc import Callable

from millrace.protocol.types import Record, View
from millrace.simulate import history as h

SEALS = 8
"""Windows go on while the others learn what they are to hold, and some are sealed in no time."""

SOON_S = 14.0
"""One that is to join and is not heard of holds the lesson up until it is left out."""


class Spread:
    """Asked at every commit."""

    def __init__(self, history: h.History, copies: int, now_s: Callable[[], float]) -> None:
        self._wanted = copies
        self._now_s = now_s
        self._seals = 0
        self._since_s = 0.0
        history.listen(h.CopiesAsked, lambda entry: self._begin(entry.copies))
        history.listen(
            h.Commit, lambda entry: self._committed(entry.before, entry.after, entry.view)
        )

    def _begin(self, wanted: int) -> None:
        self._wanted, self._seals, self._since_s = wanted, 0, self._now_s()

    def _committed(self, before: Record | None, after: Record, view: View) -> None:
        due = min(self._wanted, len(view.target))
        if all(len(owners) == due for owners in view.owners):
            self._begin(self._wanted)
        elif before is not None and after.sealed > before.sealed:
            self._seals += 1
        if self._seals > SEALS and self._now_s() > self._since_s + SOON_S:
            raise h.ViolationError("copies", f"{due} copies are asked for, and made nowhere")
