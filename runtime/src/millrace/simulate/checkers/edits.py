"""An edit of the topology: one record change behind everything that is sealed and shown, and from
then on the record knows nothing of what is gone.
"""

from __future__ import annotations

from millrace.protocol.types import Components, Record
from millrace.simulate import history as h
from millrace.simulate.parts.workload import Workload, roots_of


class Edits:
    """Asked at every commit of a run whose topology is edited."""

    def __init__(self, history: h.History, workload: Workload, sinks: tuple[str, ...]) -> None:
        self._wanted = workload.edits
        self._sinks = sinks
        self._confirmed: set[tuple[str, int]] = set()
        history.listen(h.SinkConfirmed, self._confirm)
        history.listen(h.Commit, self._committed)

    def _confirm(self, entry: h.SinkConfirmed) -> None:
        self._confirmed.add((entry.sink, entry.window))

    def _committed(self, entry: h.Commit) -> None:
        before, after = entry.before, entry.after
        now = self._number(after.components)
        if before is not None and before.components != after.components:
            if self._number(before.components) > now:
                raise h.ViolationError("edit", f"{after.tag} goes back behind an edit")
            self._shown(before)
        if now >= 0:
            self._names(after, self._wanted[now])

    def _number(self, components: Components | None) -> int:
        return -1 if components is None else self._wanted.index(components)

    def _shown(self, record: Record) -> None:
        for one in record.unpublished:
            for sink in self._sinks:
                if (sink, one.window) not in self._confirmed:
                    raise h.ViolationError("edit", f"made before {sink} shows window {one.window}")

    def _names(self, record: Record, components: Components) -> None:
        named = {*record.offsets, *(replay.source for replay in record.replays)}
        for intent in record.intents:
            named |= {root[0] for root, _ in roots_of(intent)}
        lost = named - set(components.sources)
        if lost:
            raise h.ViolationError("edit", f"{record.tag} still holds something of {sorted(lost)}")
