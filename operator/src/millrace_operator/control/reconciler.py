"""One turn for one topology: observe, plan, act."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from millrace.clock import Clock
from millrace.errors import MillraceError
from millrace.homes.pods import TOPOLOGY_LABEL
from millrace.homes.stores import HomeAwayError
from millrace.topology.model import KIND
from millrace_operator.api.resources import Phase, TopologyStatus
from millrace_operator.api.settings import OperatorSettings
from millrace_operator.kube import kinds, reading
from millrace_operator.kube.acting import (
    Acting,
    NotLeadingError,
    write_snapshot,
    write_status,
)
from millrace_operator.kube.events import announce, relay
from millrace_operator.kube.incarnations import Incarnations
from millrace_operator.kube.objects import Objects, owner_uid
from millrace_operator.kube.observing import Key, Seen, Turn, observe, orphans
from millrace_operator.reconcile.actions import Announce, Propose, WriteStatus
from millrace_operator.reconcile.conditions import RECONCILE_FAILED, cut, failed_status
from millrace_operator.reconcile.observe import Moment
from millrace_operator.reconcile.plan import plan
from millrace_operator.reconcile.snapshots import plan_orphans

RESYNC_S = 600.0
"""After so long children are applied though they look unchanged: somebody may have edited them."""

PROPOSED_S = 5.0
"""So long after a proposal it is seen whether the driver follows it: no watch tells of that."""

TOLD_S = 3600.0
"""The API server forgets events after an hour."""

AWAY_TURNS = 5
"""So many turns in a row an API server's own failure ends before a condition says so: most are over
in seconds, but not that of an admission webhook which is not there."""

MOST_TOLD = 50
"""Events of the driver that one turn passes on; of more the newest, all of them are in its log."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a turn. ``again_s``: look again then, whatever is heard; ``refused``: some of
    it is to be tried again, after a growing pause; ``gone``: there is no such topology;
    ``status``: where it stands, None where it is gone."""

    again_s: float | None = None
    refused: bool = False
    gone: bool = False
    status: TopologyStatus | None = field(default=None, compare=False)


@dataclass(slots=True)
class _Memory:
    """Kept from one turn to the next; nothing that must not be lost."""

    applied_s: float
    uid: str = ""
    refusals: dict[str, str] = field(default_factory=dict)
    relayed: frozenset[str] = frozenset()
    failures: int = 0
    """Of the last turns in a row, those whose failure was to be told."""


@dataclass(slots=True)
class Reconciler:
    """Turns for all topologies; safe for several threads, of which one at a time has a key.
    ``secret`` makes texts that nobody can guess, of 32 to 128 letters and digits."""

    objects: Objects
    incarnations: Incarnations
    settings: OperatorSettings
    clock: Clock
    secret: Callable[[], str]
    leading: Callable[[], bool]
    _memories: dict[Key, _Memory] = field(default_factory=dict)

    def turn(self, key: Key) -> Result:
        """Bring one topology closer to what it is to be. Raises ``MillraceError``."""
        start_s = self.clock.monotonic_s()
        memory = self._memory(key, start_s)
        now = datetime.fromtimestamp(self.clock.now_s(), UTC)
        resync = start_s - memory.applied_s >= RESYNC_S
        seen = observe(
            self.objects, self.incarnations, key, Turn(now, dict(memory.refusals), resync)
        )
        if seen is None:
            self._end_pods(key, memory.uid)
            self._forget(key)
            return Result(gone=True)
        memory.uid = seen.observed.resource.uid
        self._relay(seen, memory, now)
        moment = Moment(now, self.secret(), self.secret(), self.secret())
        made = plan(seen.observed, self.settings, moment)
        acting = Acting(self.objects, seen, now, self.clock, self.leading)
        try:
            acting.carry_out(made.actions)
            acting.carry_out(made.at_end)
        finally:
            memory.refusals = _refused(seen, memory, acting)
        if resync:
            memory.applied_s = start_s
        memory.failures = 0
        again_s = made.wait_s
        if any(isinstance(action, Propose) for action in made.actions):
            again_s = min(PROPOSED_S, math.inf if again_s is None else again_s)
        actions = (*made.actions, *made.at_end)
        told = [action.status for action in actions if isinstance(action, WriteStatus)]
        status = [seen.observed.resource.status, *told][-1]
        if seen.observed.resource.deleting:
            # Nothing is written any more, and the phase that was is no phase of one that goes.
            status = status.model_copy(update={"phase": Phase.DELETING})
        return Result(again_s, bool(acting.refusals), status=status)

    def tell_orphans(self, namespace: str) -> None:
        """Tell of snapshots whose topologies are not there. Raises ``MillraceError``."""
        now = datetime.fromtimestamp(self.clock.now_s(), UTC)
        for action in plan_orphans(orphans(self.objects, namespace), now):
            if not self.leading():
                raise NotLeadingError("this operator leads no more")
            write_snapshot(self.objects, namespace, action, now)

    def tell(self, key: Key, error: MillraceError) -> TopologyStatus | None:
        """Tell the topology's user why a turn fails until somebody acts: by an event, and in the
        status until a turn comes to its end; what stands there then, None where it is left alone.
        Raises as ``Objects``."""
        found = self.objects.get(kinds.one(KIND, key.namespace, key.name))
        if found is None:
            return None
        resource = reading.resource_of(found)
        now = datetime.fromtimestamp(self.clock.now_s(), UTC)
        announce(self.objects, resource, Announce(RECONCILE_FAILED, str(error), warning=True), now)
        memory = self._memory(key, self.clock.monotonic_s())
        memory.failures += 1
        passing = isinstance(error, HomeAwayError) and memory.failures < AWAY_TURNS
        if passing or resource.deleting or resource.unread or resource.paused:
            return None
        status = failed_status(resource.status, cut(str(error)), resource, now)
        if status != resource.status and self.leading():
            version = found["metadata"]["resourceVersion"]
            write_status(self.objects, resource, version, status)
        return status

    def _memory(self, key: Key, now_s: float) -> _Memory:
        return self._memories.setdefault(key, _Memory(now_s - RESYNC_S * _share(key)))

    def _relay(self, seen: Seen, memory: _Memory, now: datetime) -> None:
        """Events of the driver become those of the topology, each once. A new operator does not
        know which were: those of the last hour are sent again, under the names that they have."""
        since_s = self.clock.now_s() - TOLD_S
        new = [n for n, e in seen.told.items() if n not in memory.relayed and e.time > since_s]
        for name in new[-MOST_TOLD:]:
            if self.leading():
                relay(self.objects, seen.observed.resource, name, seen.told[name], now)
        memory.relayed = frozenset(seen.told)

    def _end_pods(self, key: Key, uid: str) -> None:
        """Its pods end at once. The cluster's garbage collector comes to them too, and to all that
        no operator has known, but is slow where many topologies go. Those that are to outlive it
        (``--cascade=orphan``) have no owner any more."""
        if not uid:
            return
        for pod in self.objects.heads("Pod", key.namespace, f"{TOPOLOGY_LABEL}={key.name}"):
            if owner_uid(pod) == uid and self.leading():
                place = kinds.one("Pod", key.namespace, pod["metadata"]["name"])
                self.objects.delete(place, pod["metadata"]["uid"])

    def _forget(self, key: Key) -> None:
        memory = self._memories.pop(key, None)
        if memory is not None:
            self.incarnations.forget(memory.uid)


def _share(key: Key) -> float:
    """From 0 to 1, and of each its own: an operator that starts is not to apply the children of
    all topologies before it has seen the last one's pods."""
    return zlib.crc32(str(key).encode()) / 2**32


def _refused(seen: Seen, memory: _Memory, acting: Acting) -> dict[str, str]:
    """Pods that were refused when they were asked for last. Ackers and state servers are asked for
    at each turn; a driver, of which the status has the name, only when its pause is over."""
    driver = seen.observed.resource.status.driver
    waits = {driver.pod} if driver is not None else set()
    # Of one that an API server failed at nobody knew whether it was made.
    waits -= {pod.name for pod in seen.observed.pods}
    kept = {n: t for n, t in memory.refusals.items() if n in waits and n not in acting.created}
    return kept | acting.refusals
