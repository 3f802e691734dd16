"""I2 at the seal: state after a window is state before it plus exactly what it shows, and it holds
all of every root that it does not set aside (I1), nothing of any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from millrace.protocol.types import Guarantee, Record, Segment
from millrace.simulate import history as h
from millrace.simulate.options import Options
from millrace.simulate.parts.flow import COUNT, OUT_SINK, materialise
from millrace.simulate.parts.workload import Root, Workload, root_of, roots_of

State = dict[str, tuple[h.Row, ...]]


class Contents:
    """Asked at every commit."""

    def __init__(self, history: h.History, options: Options, workload: Workload) -> None:
        self._history = history
        self._options = options
        self._workload = workload
        self._all = (1 << options.key_groups) - 1
        self._states: dict[str, State] = {}
        self._sealed: dict[int, dict[str, State]] = {}
        history.listen(h.Commit, self._committed)
        history.listen(h.Restored, self._restored)

    def _committed(self, entry: h.Commit) -> None:
        before, after = entry.before, entry.after
        if before is None or before.sealed == after.sealed:
            kept = self._after_edit(before, after) if before is not None else {}
            if before is not None and kept != after.chains:
                raise h.ViolationError("I2", f"state changed without a seal in {after.tag}")
            return
        shown = self._shown(after)
        aside = self._set_aside(before, after)
        self._state(after, shown.get(OUT_SINK, []), aside)
        self._sealed[after.sealed] = dict(self._states)
        broken = self._roots(before, after, shown, aside)
        self._callbacks(before, after, aside, broken)

    def _restored(self, entry: h.Restored) -> None:
        """State is what it was behind the snapshot's window, as it was sealed last."""
        window, chains = entry.record.sealed, entry.record.chains
        known = self._sealed.get(window, {})
        for processor in self._stateful():
            state = materialise(chains.get(processor, ()), self._all, self._history.contents)
            if state != known.get(processor, {}):
                raise h.ViolationError("I2", f"{processor} is not restored as of window {window}")
        self._states = dict(known)

    def _after_edit(self, before: Record, after: Record) -> Mapping[str, tuple[Segment, ...]]:
        """The chains of the record before, without those whose processor an edit replaced."""
        if before.components is None or after.components is None:
            return before.chains
        old, new = before.components.processors, after.components.processors
        gone = {name for name in old if new.get(name) != old[name]}
        for name in gone:
            self._states.pop(name, None)
        return {name: chain for name, chain in before.chains.items() if name not in gone}

    def _shown(self, record: Record) -> dict[str, list[h.Row]]:
        sealed = record.unpublished[-1]
        if sealed.window != record.sealed:
            raise h.ViolationError("I7", f"window {record.sealed} is sealed and will not be shown")
        shown: dict[str, list[h.Row]] = {}
        for staged in sealed.staged:
            shown.setdefault(staged.sink, []).extend(self._history.rows(staged.name))
        return shown

    def _state(self, record: Record, rows: list[h.Row], aside: set[Root]) -> None:
        """Effects of roots that are set aside may be partial, except under ``ExactlyOnce``."""
        partial = aside if self._options.guarantee is not Guarantee.EXACTLY_ONCE else set()
        wanted = Counter(row for row in rows if row.root not in partial)
        for processor in self._stateful():
            chain = record.chains.get(processor, ())
            state = materialise(chain, self._all, self._history.contents)
            gained = self._added(processor, self._states.get(processor, {}), state)
            added = Counter(row for row in gained if row.root not in partial)
            if added != wanted:
                raise h.ViolationError(
                    "I2",
                    f"window {record.sealed}: {processor} gained {added - wanted} over what is "
                    f"shown and lacks {wanted - added}",
                )
            self._states[processor] = state

    def _stateful(self) -> tuple[str, ...]:
        return (COUNT,) if self._options.passes < 3 else (COUNT, "totals")

    def _added(self, processor: str, before: State, after: State) -> Iterable[h.Row]:
        for key, rows in before.items():
            if after.get(key, ())[: len(rows)] != rows:
                raise h.ViolationError("I2", f"{processor}: rows of key {key} were changed or lost")
        for key, rows in after.items():
            old = len(before.get(key, ()))
            for place in range(old, len(rows)):
                if processor == COUNT and rows[place].place != place:
                    raise h.ViolationError(
                        "I2", f"{processor}: {rows[place]} at place {place} of {key}"
                    )
                yield rows[place]

    def _roots(
        self, before: Record, after: Record, shown: dict[str, list[h.Row]], aside: set[Root]
    ) -> set[Root]:
        """Each root of the window is in it whole or, as far as promised, not at all. Those that are
        neither, which only AtMostOnce may have."""
        inside = {root for root, _ in roots_of(before.intents[0])}
        dropped = after.totals.dropped - before.totals.dropped
        at_most = self._options.guarantee is Guarantee.AT_MOST_ONCE
        broken: set[Root] = set()
        for sink in self._sinks():
            found: dict[Root, list[h.Row]] = {}
            for row in shown.get(sink, ()):
                found.setdefault(row.root, []).append(row)
            for root in found:
                if root not in inside:
                    raise h.ViolationError(
                        "I1", f"window {after.sealed} shows {root}, not one of its own"
                    )
            for root in sorted(inside):
                rows = found.get(root, [])
                why = self._judge(rows, root in aside)
                if self._workload.is_hole(root):
                    why = "is no record and shown or set aside" if rows or root in aside else None
                if why is not None and not at_most:
                    raise h.ViolationError("I1", f"window {after.sealed}, {sink}: {root} {why}")
                if why is not None:
                    broken.add(root)
        if at_most and _uncounted(len(broken), dropped, self._options):
            raise h.ViolationError("drops", f"window {after.sealed}: {broken}, counted {dropped}")
        return broken

    def _callbacks(
        self, before: Record, after: Record, aside: set[Root], broken: set[Root]
    ) -> None:
        """What sources are told of a window's roots."""
        told = after.unpublished[-1].roots
        if not self._options.callbacks:
            return
        dropped = after.totals.dropped - before.totals.dropped
        if told is None and dropped:
            return
        if told is None or told.intent != before.intents[0]:
            raise h.ViolationError("callbacks", f"window {after.sealed} tells of other roots")
        named = {root_of(one) for one in (*told.replays, *told.letters)}
        if not aside | broken <= named or len(named - aside) != dropped:
            raise h.ViolationError("callbacks", f"window {after.sealed} tells of {told}")

    def _sinks(self) -> tuple[str, ...]:
        return (OUT_SINK, "sideout") if self._options.side else (OUT_SINK,)

    def _set_aside(self, before: Record, after: Record) -> set[Root]:
        aside = {root_of(replay) for replay in after.replays}
        aside |= {root for intent in after.intents for root, _ in roots_of(intent)}
        for dead in after.dead:
            if dead.window != after.sealed:
                continue
            # A letter of a window before that was taken out may be a root of this one.
            for index, letter in enumerate(self._history.letters(dead.name)):
                aside |= {root_of(letter)} if index not in dead.removed else set()
        return aside & {root for root, _ in roots_of(before.intents[0])}

    def _judge(self, rows: list[h.Row], aside: bool) -> str | None:
        if aside and self._options.guarantee is not Guarantee.EXACTLY_ONCE:
            return None
        if aside:
            return "is set aside and shown all the same" if rows else None
        ordinals = sorted(row.ordinal for row in rows)
        if len(set(ordinals)) != len(ordinals):
            return f"shows a tuple twice: {ordinals}"
        if len({row.salt for row in rows}) > 1:
            return "mixes several processings"
        if not rows or ordinals != list(range(rows[0].count)):
            return f"is sealed with tuples {ordinals} of {rows[0].count if rows else 'several'}"
        return None


def _uncounted(broken: int, dropped: int, options: Options) -> bool:
    """After a combine nobody knows how many roots a failed tuple was made of."""
    return broken > 0 and dropped == 0 if options.combined else broken > dropped
