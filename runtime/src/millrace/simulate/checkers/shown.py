"""I7: what a sink shows of a window is what the sealed record names, once; and rules 20 and 25."""

from __future__ import annotations

from millrace.simulate import history as h
from millrace.simulate.checkers.ledger import Ledger


class ShownWindows:
    """Asked at every change of a sink and every commit."""

    def __init__(self, history: h.History, ledger: Ledger, sinks: tuple[str, ...]) -> None:
        self._ledger = ledger
        self._sinks = sinks
        self._parts: dict[tuple[str, int], list[str]] = {}
        self._confirmed: set[tuple[str, int]] = set()
        self._fences: set[tuple[str, int]] = set()
        history.listen(h.SinkFenced, self._fenced)
        history.listen(h.Shown, self._shown)
        history.listen(h.SinkConfirmed, self._confirm)
        history.listen(h.Commit, self._committed)
        self._taking_back = False
        history.listen(h.SnapshotTaken, self._kept)
        history.listen(h.Retracted, self._retracted)
        history.listen(h.Restored, self._restored)

    def _wanted(self, sink: str, window: int) -> list[str]:
        sealed = self._ledger.sealed.get(window)
        if sealed is None:
            raise h.ViolationError("I7", f"{sink} shows window {window}, which is not committed")
        return [staged.name for staged in sealed.staged if staged.sink == sink]

    def _fenced(self, entry: h.SinkFenced) -> None:
        self._fences.add((entry.sink, entry.execution))

    def _shown(self, entry: h.Shown) -> None:
        window = entry.sealed.window
        if (entry.sink, entry.execution) not in self._fences:
            raise h.ViolationError(
                "rule 25", f"{entry.sink} shows window {window} and still serves older executions"
            )
        shown = self._parts.setdefault((entry.sink, window), [])
        if entry.name in shown:
            raise h.ViolationError("I7", f"{entry.sink} shows {entry.name} twice")
        if entry.name not in self._wanted(entry.sink, window):
            raise h.ViolationError(
                "I7", f"{entry.sink} shows {entry.name}, not named by the record"
            )
        shown.append(entry.name)

    def _kept(self, entry: h.SnapshotTaken) -> None:
        """Whoever restores it shows nothing. One of a timeline that was left is of no use."""
        now, record = self._ledger.record, entry.record
        if self._taking_back or now is None or record.tag.timeline != now.tag.timeline:
            return
        for sink in self._sinks:
            for window in range(1, record.sealed + 1):
                if (sink, window) not in self._confirmed:
                    text = f"{record.tag} is kept, and {sink} does not show window {window}"
                    raise h.ViolationError("snapshot", text)

    def _retracted(self, entry: h.Retracted) -> None:
        self._taking_back = True
        sink, window = entry.sink, entry.window
        self._parts = {k: v for k, v in self._parts.items() if k[0] != sink or k[1] <= window}
        self._confirmed = {k for k in self._confirmed if k[0] != sink or k[1] <= window}

    def _restored(self, entry: h.Restored) -> None:
        """Every sink is fenced by then, and shows exactly what the record knows."""
        self._taking_back = False
        tag, sealed = entry.record.tag, entry.record.sealed
        for sink in self._sinks:
            if not any(one == sink and by >= tag.execution for one, by in self._fences):
                raise h.ViolationError("rule 25", f"{sink} still serves executions before {tag}")
            behind = [w for one, w in self._parts if one == sink and w > sealed]
            if behind:
                raise h.ViolationError("rule 25", f"{sink} shows windows {behind} behind {tag}")
            for window in range(1, sealed + 1):
                if (sink, window) not in self._confirmed:
                    raise h.ViolationError("rule 25", f"{sink} lacks window {window} of {tag}")

    def _confirm(self, entry: h.SinkConfirmed) -> None:
        shown = self._parts.get((entry.sink, entry.window), [])
        if sorted(shown) != sorted(self._wanted(entry.sink, entry.window)):
            raise h.ViolationError(
                "I7", f"{entry.sink} confirms window {entry.window} with {shown}"
            )
        self._confirmed.add((entry.sink, entry.window))

    def _committed(self, entry: h.Commit) -> None:
        before = entry.before.published if entry.before is not None else 0
        for window in range(before + 1, entry.after.published + 1):
            for sink in self._sinks:
                if (sink, window) not in self._confirmed:
                    raise h.ViolationError(
                        "rule 20", f"window {window} is marked, {sink} has not confirmed it"
                    )

    def finish(self) -> None:
        """At the end every sealed window is shown, whole, on every sink."""
        for window in self._ledger.sealed:
            for sink in self._sinks:
                if (sink, window) not in self._confirmed:
                    raise h.ViolationError("I7", f"{sink} never confirmed window {window}")
