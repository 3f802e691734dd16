"""I1 and I4: every root is in exactly one place, and moves only where it may.

The places of a root: not yet read, in an open window, waiting for its replay, dead, or gone
(sealed, or dropped where that is promised). From one committed record to the next only these
moves are allowed::

    unread -> open -> open (split) -> gone | replay | dead     replay -> open
    dead -> replay | gone, if the user asked for it
    unread | open | replay -> gone, with the edit that removes the source

A replay that is due at once goes from one window straight into the next, as a new tree.
"""

from __future__ import annotations

from millrace.protocol.types import Guarantee, Record
from millrace.simulate import history as h
from millrace.simulate.options import Options
from millrace.simulate.parts.workload import Root, Workload, root_of, roots_of

UNREAD, REPLAY, DEAD, GONE = "unread", "replay", "dead", "gone"


class Places:
    """Asked at every commit."""

    def __init__(self, history: h.History, options: Options, workload: Workload) -> None:
        self._history = history
        self._options = options
        self._workload = workload
        self._before: dict[Root, object] = dict.fromkeys(workload.roots, UNREAD)
        self._trees: dict[Root, int] = {}
        self._asked: set[Root] = set()
        self._dropped_letters: set[Root] = set()
        self._gone_sources: set[str] = set()
        self._unread_gone: set[Root] = set()
        self.gone = 0
        history.listen(h.Commit, self._committed)
        history.listen(h.LettersTaken, self._taken)
        history.listen(h.Restored, self._restored)

    def _taken(self, entry: h.LettersTaken) -> None:
        self._asked |= {root_of(letter) for letter in entry.letters}
        if not entry.request.replays:
            self._dropped_letters |= {root_of(letter) for letter in entry.letters}

    def _committed(self, entry: h.Commit) -> None:
        self._gone_sources |= self._removed(entry)
        after = self._places(entry.after)
        sealing = self._sealing(entry)
        abandoned = self._abandoned(entry)
        removed = self._removed(entry)
        trees = _trees(entry.after)
        for root in self._workload.roots:
            old, new = self._before[root], after.get(root, GONE)
            again = trees.get(root, 0) == self._trees.get(root, 0) + 1
            if old == sealing and again and new == entry.after.sealed + 1:
                continue
            if root[0] in removed and old in (UNREAD, REPLAY, DEAD) and new in (GONE, old):
                self._unread_gone |= {root} if old == UNREAD else set()
                continue
            abandoned_here = abandoned or root[0] in removed
            if old != new and not self._may_move(root, old, new, sealing, abandoned_here):
                raise h.ViolationError(
                    "I4", f"{root} went from {old} to {new} with {entry.after.tag}"
                )
        self._trees.update(trees)
        self._before = {root: after.get(root, GONE) for root in self._workload.roots}
        self._totals(entry.after)

    def _restored(self, entry: h.Restored) -> None:
        """Every root is where it was when the snapshot was taken."""
        after = self._places(entry.record)
        self._before = {root: after.get(root, GONE) for root in self._workload.roots}
        self._trees = _trees(entry.record)
        self._totals(entry.record)

    def _places(self, record: Record) -> dict[Root, object]:
        found: dict[Root, object] = {}

        def put(root: Root, place: object) -> None:
            if root in found:
                raise h.ViolationError("I4", f"{root} is {found[root]} and {place} in {record.tag}")
            found[root] = place

        for feed in self._workload.feeds:
            if feed.source in self._gone_sources:
                continue
            offsets = record.offsets.get(feed.source) or {}
            for offset in range(offsets.get(str(feed.partition), 0), len(feed.arrivals)):
                put((feed.source, feed.partition, offset), UNREAD)
        for intent in record.intents:
            for root, _ in roots_of(intent):
                put(root, intent.window)
        for replay in record.replays:
            put(root_of(replay), REPLAY)
        for dead in record.dead:
            letters = self._history.letters(dead.name)
            if len(letters) != dead.count:
                raise h.ViolationError(
                    "I4", f"{dead.name} has {len(letters)} letters and not {dead.count}"
                )
            for index, letter in enumerate(letters):
                if index not in dead.removed:
                    put(root_of(letter), DEAD)
        return found

    def _removed(self, entry: h.Commit) -> set[str]:
        """Sources that went with this commit."""
        before, after = entry.before, entry.after
        if before is None or before.components is None or after.components is None:
            return set()
        return set(before.components.sources) - set(after.components.sources)

    def _sealing(self, entry: h.Commit) -> int | None:
        """The window that this commit seals; always the first open one, and one at a time."""
        before, after = entry.before, entry.after
        if before is None or after.sealed == before.sealed:
            return None
        if not before.intents or before.intents[0].window != after.sealed:
            raise h.ViolationError("I1", f"window {after.sealed} is sealed and was not open")
        return after.sealed

    def _abandoned(self, entry: h.Commit) -> bool:
        if entry.before is None or self._options.guarantee is not Guarantee.AT_MOST_ONCE:
            return False
        lost = sum(intent.roots for intent in entry.before.intents)
        counted = entry.after.totals.dropped - entry.before.totals.dropped
        return not entry.after.intents and counted == lost

    def _may_move(
        self, root: Root, old: object, new: object, sealing: int | None, abandoned: bool
    ) -> bool:
        if old in (UNREAD, REPLAY):
            return isinstance(new, int)
        if isinstance(old, int):
            if old == sealing or abandoned:
                return not isinstance(new, int) and new != UNREAD
            return isinstance(new, int)
        if old == DEAD:
            return root in self._asked and new in (REPLAY, GONE)
        return False

    def _totals(self, record: Record) -> None:
        gone = sum(1 for p in self._before.values() if p == GONE)
        dead = sum(1 for p in self._before.values() if p == DEAD)
        gone -= sum(1 for root in self._unread_gone if self._before[root] == GONE)
        by_user = sum(1 for r in self._dropped_letters if self._before[r] == GONE)
        # Nobody knows which offsets of a window that is given up carry no record.
        holes = sum(1 for r, p in self._before.items() if p == GONE and self._workload.is_hole(r))
        totals = record.totals
        counted = totals.roots + totals.dropped
        if not gone - by_user - holes <= counted <= gone or totals.dead != dead:
            raise h.ViolationError("totals", f"{totals} with {gone} roots gone and {dead} dead")


def _trees(record: Record) -> dict[Root, int]:
    """Replay numbers of the roots that are open or wait for their replay."""
    found = {root: number for intent in record.intents for root, number in roots_of(intent)}
    found.update({root_of(replay): replay.number for replay in record.replays})
    return found
