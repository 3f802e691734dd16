"""Sinks that an edit removed while sealed windows still had to be shown there.

They are opened for these windows alone; once the windows are shown, the edit is applied and nothing
names them any more. A driver that dies in between is followed by one that opens them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from millrace.protocol.edits import removed_outputs, waiting_rows
from millrace.protocol.types import Components, Record, Sealed, Staged
from millrace.sinks.base import Sink, explained

Shares = list[tuple[Sink, list[Staged]]]


class RetiredSinks:
    """Used by the publisher's thread. With ``drop`` none is opened: their rows are given up.

    ``make`` gives the prepared sink of a name and number. Raises ``SinkError``.
    """

    def __init__(
        self, components: Components | None, drop: bool, make: Callable[[str, int], Sink]
    ) -> None:
        self._components = components
        self._drop = drop
        self._make = make
        self._waiting: dict[str, int] = {}
        self._sinks: dict[str, Sink] = {}
        self._until = 0
        self._what: dict[str, str] = {}

    def open(self, record: Record) -> list[Sink]:
        """The removed sinks that sealed windows of this record wait for."""
        self._until = record.sealed
        self._waiting = removed_outputs(record, self._components)
        for name, number in self._waiting.items() if not self._drop else ():
            self._what[name] = waiting_rows(record, name)[1]
            if name not in self._sinks:
                with self.explained(name):
                    self._sinks[name] = self._make(name, number)
        return list(self._sinks.values())

    def explained(self, name: str) -> AbstractContextManager[None]:
        """What goes wrong with a removed sink says why it is needed, and what else can be done."""
        return explained(
            f"Sink {name!r} is no longer in the file, but {self._what[name]} wait to be shown "
            "there: mend it and run again, or give these rows up with --drop-removed (on a cluster "
            "the annotation millrace.dev/drop-removed-sinks)"
        )

    def shares(self, sealed: Sealed, sinks: Sequence[Sink]) -> tuple[Shares, Shares]:
        """Removed sinks and today's with their parts of a window; a new sink of the same name has
        no part in what was staged for the removed one."""
        old = self._waiting if sealed.window <= self._until else {}
        named: dict[str, list[Staged]] = {}
        for staged in sealed.staged:
            named.setdefault(staged.sink, []).append(staged)
        removed = [(sink, named[n]) for n, sink in self._sinks.items() if n in old and n in named]
        now = [(s, [] if s.name in old else named.get(s.name, [])) for s in sinks]
        return removed, now
