"""Whether the operator is well: what its probes are told."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from millrace.health import Answer
from millrace.homes import pods
from millrace_operator.control.workers import ALL, Queue, Workers
from millrace_operator.kube.lease import Lease

LIVE_S = 180.0
"""All topologies are asked for every 30 s, and every answer is waited for for seconds: so long
without either is no load, but a hang."""

READY_S = 90.0
STANDS_BY_S = 30.0


class Health:
    """``watching`` says whether kopf's watches run. Without a Lease this operator always leads."""

    def __init__(
        self,
        lease: Lease | None,
        queue: Queue,
        workers: Workers,
        watching: Callable[[], bool],
    ) -> None:
        self._lease = lease
        self._queue = queue
        self._workers = workers
        self._watching = watching

    def questions(self) -> Mapping[str, Callable[[], Answer]]:
        return {pods.LIVE_PATH: self.live, pods.READY_PATH: self.ready}

    def live(self) -> Answer:
        """Good while reconciliation goes on. An API server that is away, or slow, is no reason to
        be started again, and many topologies are none: to wait for a turn is not to hang. One whose
        turns at the Lease hang never leads again."""
        if self._lease is not None and (turned_s := self._lease.turned_ago_s()) > LIVE_S:
            return Answer(False, f"the last turn at the Lease began {turned_s:.0f} s ago")
        if not self._leads():
            return Answer(True, "stands by")
        if not self._workers.started():
            return Answer(True, "leads, and is about to begin")
        moved_s, silent_s = self._workers.moved_ago_s(), self._queue.silent_s()
        looked_s = self._workers.looked_ago_s()
        if moved_s > LIVE_S:
            return Answer(False, f"no topology was worked at for {moved_s:.0f} s")
        if silent_s > LIVE_S:
            return Answer(False, f"the work at a topology stands still for {silent_s:.0f} s")
        if looked_s > LIVE_S and not self._queue.holds(ALL):
            return Answer(False, f"all topologies were looked at {looked_s:.0f} s ago")
        return Answer(True, f"all topologies were looked at {looked_s:.0f} s ago")

    def ready(self) -> Answer:
        """Good while topologies are seen to, or would be as soon as another operator ends."""
        if self._lease is not None and not self._leads():
            ago_s = self._lease.answered_ago_s()
            if ago_s > STANDS_BY_S:
                return Answer(False, "the API server does not say who leads")
            return Answer(True, "stands by for another operator")
        ago_s = self._workers.listed_ago_s()
        if ago_s > READY_S:
            return Answer(False, "topologies cannot be listed; are the definitions installed?")
        if not self._watching():
            return Answer(False, "the watches have not begun")
        return Answer(True, f"topologies were listed {ago_s:.0f} s ago")

    def _leads(self) -> bool:
        return self._lease is None or self._lease.leads()
