"""Independent judges of a run, one module for each kind of truth.

They listen to the history; a broken invariant raises ``ViolationError`` at the action that broke
it. None of them looks into the machines that it judges.
"""

from __future__ import annotations

from collections.abc import Callable

from millrace.simulate import history as h
from millrace.simulate.checkers.acts import Acts
from millrace.simulate.checkers.blame import Blame
from millrace.simulate.checkers.bound import Bound
from millrace.simulate.checkers.contents import Contents
from millrace.simulate.checkers.deadshare import DeadShare
from millrace.simulate.checkers.durability import Durability, Leftovers
from millrace.simulate.checkers.edits import Edits
from millrace.simulate.checkers.ledger import Ledger
from millrace.simulate.checkers.pauses import Pauses
from millrace.simulate.checkers.places import Places
from millrace.simulate.checkers.promises import Promises
from millrace.simulate.checkers.restores import Restores
from millrace.simulate.checkers.shown import ShownWindows
from millrace.simulate.checkers.spread import LetIn, Spared, Spread
from millrace.simulate.checkers.stamps import Stamps
from millrace.simulate.checkers.standby import StandsByIdle
from millrace.simulate.checkers.teaching import Teaching
from millrace.simulate.checkers.times import Times
from millrace.simulate.checkers.unreadable import Unreadable
from millrace.simulate.checkers.verdicts import VerdictTruth
from millrace.simulate.options import Options
from millrace.simulate.parts.cluster import Cluster, ViewStore
from millrace.simulate.parts.sinks import Sink
from millrace.simulate.parts.workload import Workload


class Checkers:
    """All judges of one run; ``finish`` asks for what must hold once the input is drained."""

    def __init__(
        self,
        history: h.History,
        options: Options,
        workload: Workload,
        cluster: Cluster,
        store: ViewStore,
        sinks: dict[str, Sink],
        now_s: Callable[[], float],
    ) -> None:
        self.ledger = Ledger(history)
        self.stamps = Stamps(history, cluster)
        self.durability = Durability(history, cluster, self.ledger)
        self.places = Places(history, options, workload)
        self.contents = Contents(history, options, workload)
        self.acts = Acts(history, store, self.ledger)
        self.verdicts = VerdictTruth(history, workload)
        self.dead_share = DeadShare(history, options, workload)
        self.unreadable = Unreadable(history, workload)
        self.shown = ShownWindows(history, self.ledger, tuple(sinks))
        self.promises = Promises(history, options, workload, tuple(sinks))
        self.blame = Blame(history, workload)
        self.edits = Edits(history, workload, tuple(sinks))
        self.pauses = Pauses(history, now_s)
        self.times = Times(history)
        self.standby = StandsByIdle(history)
        self.restores = Restores(history, options)
        self.teaching = Teaching(history)
        self.spread = Spread(history, options.copies, now_s)
        self.spared = Spared(history, options.copies, cluster)
        self.let_in = LetIn(cluster, store)
        self.leftovers = Leftovers(options, cluster, store)
        if options.poison_only:
            self.bound = Bound(history, workload)

    def finish(self) -> None:
        self.shown.finish()
        self.promises.finish(self.ledger.record)
        self.leftovers.finish(self.ledger.record)
