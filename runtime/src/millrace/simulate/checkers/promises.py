"""Section 1 of the design, at the end of a run: what was fed against what the sinks hold."""

from __future__ import annotations

from millrace.protocol.types import Guarantee, Record
from millrace.simulate import history as h
from millrace.simulate.options import Options
from millrace.simulate.parts.workload import Root, RootKind, Workload, root_of


class Promises:
    """Compares the feed with the rows that became visible, and with the dead letters."""

    def __init__(
        self, history: h.History, options: Options, workload: Workload, sinks: tuple[str, ...]
    ) -> None:
        self._history = history
        self._options = options
        self._workload = workload
        self._rows: dict[str, dict[Root, list[h.Row]]] = {sink: {} for sink in sinks}
        self._windows: dict[str, dict[int, list[h.Row]]] = {sink: {} for sink in sinks}
        self._dropped: set[Root] = set()
        self._hit: set[Root] = set()
        history.listen(h.Hit, lambda entry: self._hit.update(entry.roots))
        history.listen(h.Shown, self._shown)
        history.listen(h.Retracted, self._retracted)
        history.listen(h.LettersTaken, self._taken)

    def _shown(self, entry: h.Shown) -> None:
        self._windows[entry.sink].setdefault(entry.sealed.window, []).extend(entry.rows)

    def _retracted(self, entry: h.Retracted) -> None:
        shown = self._windows[entry.sink]
        self._windows[entry.sink] = {w: rows for w, rows in shown.items() if w <= entry.window}

    def _count(self) -> None:
        for sink, windows in self._windows.items():
            found = self._rows[sink]
            for row in (row for rows in windows.values() for row in rows):
                found.setdefault(row.root, []).append(row)

    def _taken(self, entry: h.LettersTaken) -> None:
        if not entry.request.replays:
            self._dropped |= {root_of(letter) for letter in entry.letters}

    def finish(self, record: Record | None) -> None:
        if record is None:
            raise h.ViolationError("end", "drained without a record")
        if record.intents or record.replays or record.unpublished:
            raise h.ViolationError("end", f"drained with something left: {record}")
        if self._options.emits_final and not record.finished:
            raise h.ViolationError("end", "drained without a final window")
        self._count()
        dead = self._dead(record)
        if self._options.guarantee is Guarantee.AT_MOST_ONCE:
            self._at_most_once(record)
            return
        for root in self._workload.roots:
            if not _live(root, record):
                self._removed(root)
                continue
            if self._workload.is_hole(root):
                self._empty(root, dead)
                continue
            gone = root in dead or root in self._dropped
            self._kept(root, gone)
            self._poison(root, gone)

    def _empty(self, root: Root, dead: set[Root]) -> None:
        """An offset without a record: nothing may have come of it."""
        if root in dead or any(found.get(root) for found in self._rows.values()):
            raise h.ViolationError("holes", f"{root} is no record, and something came of it")

    def _removed(self, root: Root) -> None:
        """Of a source that was removed, or never came: whole or not at all."""
        for sink, found in self._rows.items():
            rows = found.get(root, [])
            exact = self._options.guarantee is Guarantee.EXACTLY_ONCE
            if exact and rows and (_complete_sets(rows), len(rows)) != (1, rows[0].count):
                raise h.ViolationError("edit", f"{root}, removed, shows {len(rows)} rows on {sink}")

    def _dead(self, record: Record) -> set[Root]:
        return {
            root_of(letter)
            for one in record.dead
            for index, letter in enumerate(self._history.letters(one.name))
            if index not in one.removed
        }

    def _kept(self, root: Root, dead: bool) -> None:
        for sink, found in self._rows.items():
            sets = _complete_sets(found.get(root, []))
            if self._options.guarantee is Guarantee.EXACTLY_ONCE:
                rows = len(found.get(root, []))
                wanted = 0 if dead and not sets else len(self._workload.keys[root])
                if rows != wanted or (not dead and sets != 1) or (root in self._dropped and sets):
                    raise h.ViolationError("ExactlyOnce", f"{root} shows {rows} rows on {sink}")
            elif not dead and sets < 1:
                raise h.ViolationError("AtLeastOnce", f"{root} never shows as a whole on {sink}")

    def _poison(self, root: Root, gone: bool) -> None:
        kind = self._workload.kinds[root]
        good = kind in (RootKind.GOOD, RootKind.RAISES_ONCE)
        if not good and not gone:
            raise h.ViolationError("poison", f"{root} {kind.value} and is no dead letter")
        unlucky = kind is RootKind.RAISES_ONCE and root in self._hit
        if good and gone and not unlucky and root not in self._workload.mended:
            raise h.ViolationError("poison", f"{root} is a good root and a dead letter")

    def _due(self, root: Root, record: Record) -> bool:
        return _live(root, record) and not self._workload.is_hole(root)

    def _at_most_once(self, record: Record) -> None:
        for sink, found in self._rows.items():
            whole = 0
            for root, rows in found.items():
                if len({row.ordinal for row in rows}) != len(rows):
                    raise h.ViolationError("AtMostOnce", f"{root} shows twice on {sink}")
                whole += _complete_sets(rows) if _live(root, record) else 0
            lost = sum(1 for root in self._workload.roots if self._due(root, record)) - whole
            if lost > record.totals.dropped and not self._options.combined:
                raise h.ViolationError(
                    "AtMostOnce", f"{lost} roots lost on {sink}, {record.totals.dropped} counted"
                )


def _live(root: Root, record: Record) -> bool:
    """Whether the topology has the source of a root at the end."""
    return record.components is None or root[0] in record.components.sources


def _complete_sets(rows: list[h.Row]) -> int:
    """How often a root shows as a whole."""
    if not rows:
        return 0
    counts = [sum(1 for row in rows if row.ordinal == n) for n in range(rows[0].count)]
    return min(counts)
