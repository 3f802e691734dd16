"""What keeps state servers from being of use, as the driver's machine has told it last.

Each is told once when it begins. It ends with ``StateServerBack``; a server that was left out also
with a later view that has it, or when it is not to be a member any more; one that was waited for
also with a view that is without it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from millrace.homes.documents import (
    SERVER_FULL,
    SERVER_LEFT_OUT,
    SERVER_TROUBLES,
    ServerTrouble,
)
from millrace.ids import Epoch
from millrace.protocol import events as e
from millrace.protocol.types import View

_BACK = "StateServerBack"


class ServerTroubles:
    """For one thread; ``now`` from any. ``view`` gives the one that the machine has now: that a
    server is left out is told before there is a view without it."""

    def __init__(self, view: Callable[[], View | None]) -> None:
        self._view = view
        self._known: dict[str, tuple[ServerTrouble, Epoch]] = {}
        self._proposed: frozenset[str] = frozenset()
        self.now: tuple[ServerTrouble, ...] | None = None

    def heard(self, notice: e.Notify) -> None:
        """Any notice."""
        if notice.server and notice.kind == _BACK:
            self._known.pop(notice.server, None)
        elif notice.server and notice.kind in SERVER_TROUBLES:
            view = self._view()
            trouble = ServerTrouble(notice.server, notice.kind, notice.text)
            self._known[notice.server] = (trouble, view.epoch if view is not None else Epoch(0))
        self._settle()

    def proposed(self, names: Collection[str]) -> None:
        """Who is to be a member."""
        self._proposed = frozenset(names)
        self._settle()

    def look(self) -> None:
        """The view may be another one."""
        if self._known:
            self._settle()

    def _settle(self) -> None:
        view = self._view()
        self._known = {
            name: (one, since)
            for name, (one, since) in self._known.items()
            if view is None or self._lasts(one, since, view)
        }
        self.now = tuple(one for _, (one, _) in sorted(self._known.items())) or None

    def _lasts(self, one: ServerTrouble, since: Epoch, view: View) -> bool:
        member = one.name in {member.name for member in view.target}
        if one.kind == SERVER_LEFT_OUT:
            return one.name in self._proposed and not (member and view.epoch > since)
        return member or (one.kind == SERVER_FULL and one.name in self._proposed)
