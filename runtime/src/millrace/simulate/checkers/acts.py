"""Rule 4: only a committed record may be acted on, and what is committed is not run again."""

from __future__ import annotations

from millrace.protocol import events as e
from millrace.protocol.names import read_name
from millrace.protocol.types import AttemptId, Intent, Stamp, Tag
from millrace.simulate import history as h
from millrace.simulate.checkers.ledger import Ledger
from millrace.simulate.parts.cluster import ViewStore


class Acts:
    """Asked after every action of every driver, zombies included."""

    def __init__(self, history: h.History, store: ViewStore, ledger: Ledger) -> None:
        self._history = history
        self._store = store
        self._ledger = ledger
        self._seen: set[AttemptId] = set()
        self._prepared: dict[AttemptId, Intent] = {}
        self._ran: dict[Stamp, Intent] = {}
        self._first: dict[Stamp, Tag] = {}
        history.listen(h.Acted, self._acted)

    def _acted(self, entry: h.Acted) -> None:
        action = entry.action
        if isinstance(action, e.Prepare):
            self._prepared[action.plan.id] = action.plan.intent
        elif isinstance(action, e.Run):
            self._run(entry.execution, action)
        elif isinstance(action, e.SendRecord):
            self._written(action)
        elif isinstance(action, e.Publish):
            known = self._ledger.sealed.get(action.sealed.window) == action.sealed
            # One that a restore gave up may still be tried: a fence is in the way.
            if not known and action.sealed not in self._ledger.given_up:
                raise h.ViolationError(
                    "rule 4", f"window {action.sealed.window} is published and not committed"
                )
        elif isinstance(action, e.Committed) and action.record.tag not in self._ledger.tags:
            raise h.ViolationError("rule 4", f"{action.record.tag} is reported and not committed")

    def _run(self, execution: int, action: e.Run) -> None:
        plan, record = action.plan, self._ledger.record
        if plan.id in self._seen:
            raise h.ViolationError("rule 4", f"{plan.id} is run a second time")
        self._seen.add(plan.id)
        if action.prepared and self._prepared.pop(plan.id, None) != plan.intent:
            raise h.ViolationError("rule 4", f"{plan.id} goes on with what was not prepared for it")
        self._ran[plan.stamp] = plan.intent
        if self._store.view is None or self._store.view.execution != execution:
            return
        if record is None or not record.intents or record.intents[0] != plan.intent:
            raise h.ViolationError("I1", f"{plan.id} does not run the first open window")
        if record.chains != plan.chains:
            raise h.ViolationError(
                "I2", f"{plan.id} does not start from the state of the last window"
            )

    def _written(self, action: e.SendRecord) -> None:
        """What ran under one view decides nothing under another: its objects may lie elsewhere.

        The first record under a stamp is the write-back, which decides nothing.
        """
        before, after = self._ledger.record, action.record
        first = self._first.setdefault(action.stamp, after.tag)
        if before is None or first == after.tag or after.tag <= before.tag or not before.intents:
            return
        open_window = before.intents[0]
        split = after.sealed == before.sealed and len(after.intents) > len(before.intents)
        if split and self._ran.get(action.stamp) != open_window:
            raise h.ViolationError(
                "rule 19", f"window {open_window.window} is split for a run under another view"
            )
        if after.sealed > before.sealed:
            self._made_here(action, {s.name for s in after.unpublished[-1].staged})

    def _made_here(self, action: e.SendRecord, names: set[str]) -> None:
        record = action.record
        names |= {s.name for chain in record.chains.values() for s in chain}
        for name in names:
            made = read_name(name)
            assert made is not None
            plan = self._history.attempts[made.attempt].plan
            if made.attempt.window == record.sealed and plan.stamp != action.stamp:
                raise h.ViolationError("rule 18", f"{name} of another view is sealed")
