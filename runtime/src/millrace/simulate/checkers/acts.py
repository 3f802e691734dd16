"""Rule 4: only a committed record may be acted on, and what is committed is not run again."""

from __future__ import annotations

from millrace.protocol import events as e
from millrace.protocol.types import AttemptId
from millrace.simulate import history as h
from millrace.simulate.checkers.ledger import Ledger
from millrace.simulate.cluster import ViewStore


class Acts:
    """Asked after every action of every driver, zombies included."""

    def __init__(self, history: h.History, store: ViewStore, ledger: Ledger) -> None:
        self._store = store
        self._ledger = ledger
        self._seen: set[AttemptId] = set()
        history.listen(h.Acted, self._acted)

    def _acted(self, entry: h.Acted) -> None:
        action = entry.action
        if isinstance(action, e.Run):
            self._run(entry.execution, action)
        elif isinstance(action, e.Publish):
            if self._ledger.sealed.get(action.sealed.window) != action.sealed:
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
        if self._store.view is None or self._store.view.execution != execution:
            return
        if record is None or not record.intents or record.intents[0] != plan.intent:
            raise h.ViolationError("I1", f"{plan.id} does not run the first open window")
        if record.chains != plan.chains:
            raise h.ViolationError(
                "I2", f"{plan.id} does not start from the state of the last window"
            )
