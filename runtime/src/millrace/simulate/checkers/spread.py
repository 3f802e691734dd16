"""Objects have as many owners as the user asks for, soon after an edit asks for another number.

That they truly are on these is for ``durability``.
"""

from __future__ import annotations

from millrace.protocol.types import Record, View
from millrace.simulate import history as h

MOST = 12
"""Windows may be sealed so often while the others learn what they are to hold."""


class Spread:
    """Asked at every seal."""

    def __init__(self, history: h.History, copies: int) -> None:
        self._wanted = copies
        self._sealed = 0
        history.listen(h.CopiesAsked, self._asked)
        history.listen(
            h.Commit, lambda entry: self._committed(entry.before, entry.after, entry.view)
        )

    def _asked(self, entry: h.CopiesAsked) -> None:
        self._wanted, self._sealed = entry.copies, 0

    def _committed(self, before: Record | None, after: Record, view: View) -> None:
        due = min(self._wanted, len(view.target))
        if all(len(owners) == due for owners in view.owners):
            self._sealed = 0
        elif before is not None and after.sealed > before.sealed:
            self._sealed += 1
        if self._sealed > MOST:
            raise h.ViolationError("copies", f"{due} copies are asked for, and made nowhere")
