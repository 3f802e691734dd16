"""What is prepared of the next window while the one before it runs or is judged.

The first attempt of a window may be opened in the ack log and begin with its first pass before any
record opens the window: that pass reads input, keeps no state and shows nothing. What comes behind
it waits for ``Run``, which names the same attempt, and comes only where a committed record has
opened just this window.

Crash rule: nothing here outlives the process, and nothing of it is in a record. What a driver that
died had prepared belongs to attempts of its execution, which nobody judges any more.
"""

from __future__ import annotations

from dataclasses import replace

from millrace.protocol import events as e
from millrace.protocol.types import AttemptPlan, Intent
from millrace.protocol.windows.forgetting import Forgetting


class Preparing:
    """At most one attempt, which is begun and not yet run."""

    def __init__(self) -> None:
        self.plan: AttemptPlan | None = None

    def begin(self, plan: AttemptPlan, tracked: bool) -> list[e.Action]:
        self.plan = plan
        return [e.Prepare(plan, tracked)]

    def intent_for(self, found: e.Planned) -> Intent | None:
        """The intent that was prepared for what sources found, so that a record opens just it."""
        plan = self.plan
        if plan is None or plan.intent.ranges != found.ranges:
            return None
        return plan.intent

    def take(self, plan: AttemptPlan) -> bool:
        """Whether just this was prepared; it is run then, and is prepared no more.

        Which state it starts from, and who learns what it writes, concerns what comes behind.
        """
        mine = self.plan
        if mine is None or replace(mine, chains=plan.chains, learning=plan.learning) != plan:
            return False
        self.plan = None
        return True

    def drop(self, forgetting: Forgetting) -> list[e.Action]:
        """Give up what was prepared: another window comes, or other members hold it."""
        if self.plan is None:
            return []
        attempt, self.plan = self.plan.id, None
        forgetting.given_up(attempt)
        return [e.Cancel(attempt)]
