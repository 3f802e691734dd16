"""One operator acts at a time: whoever holds a Lease of the API server.

The holder renews the Lease; others take it over when it has not changed for its whole duration by
their own monotonic clock, so that no two clocks are compared. One that has only just started need
not wait so long for what has run out before, as where the holder's node is gone: it asks the API
server how old the Lease is by the server's own times. Those of several API servers may differ, or
one may be put right by a jump: so that is believed of the first version alone that it sees, and
where the holder's pod is being deleted, as that of a lost node is, or nobody renews it for longer
than a holder takes to. No clock of a holder is compared with anything.

Every write stands under the Lease's ``resourceVersion``. The holder itself counts from before it
asked, and gives up earlier than others may take over. If in spite of that two operators act for a
moment, the conditions of ``kube.acting`` keep them from doing the same twice.

An operator that dies as holder is followed after the duration at the latest; one that ends gives
the Lease back.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from millrace.clock import Clock, SystemClock
from millrace.errors import MillraceError
from millrace.homes.stores import HomeAwayError
from millrace_operator.kube import kinds
from millrace_operator.kube.objects import Object, Objects, RefusedError, StaleError

log = logging.getLogger(__name__)

DURATION_S = 15
RENEW_WITHIN_S = 10.0
"""A holder that has not renewed for so long stops."""

SERVERS_DIFFER_S = 5.0
"""A Lease has run out by the times of API servers only so much later."""

TURN_S = 2.0
SOON_S = 0.5
"""The same where a Lease seems to have run out before this process saw it."""

UNRENEWED_S = 2.5
"""A holder takes a turn, and the time of an answer, to renew."""


def identity(pod: str) -> str:
    """Whom a Lease names as its holder: a process in a pod, unlike any other there."""
    return f"{pod}-{secrets.token_hex(4)}"


def pod_of(holder: str) -> str:
    """The name of the pod that ``identity`` was made with."""
    return holder.rpartition("-")[0]


class Move(StrEnum):
    """What follows from the Lease as it was read."""

    CREATE = "Create"
    RENEW = "Renew"
    TAKE = "Take"
    WAIT = "Wait"
    LOOK = "Look again soon"


@dataclass(frozen=True, slots=True)
class Watched:
    """A version of the Lease, and since when it is the same, by the monotonic clock; whether it is
    the ``first`` that this process has seen."""

    version: str
    since_s: float
    first: bool = False


def move(
    found: Object | None, me: str, watched: Watched, now_s: float, age_s: float | None = None
) -> Move:
    """Pure. ``watched`` is about the same version as ``found``, and so is ``age_s``, its age by the
    API server's times."""
    if found is None:
        return Move.CREATE
    spec = found.get("spec") or {}
    holder = spec.get("holderIdentity")
    if holder == me:
        return Move.RENEW
    if not holder:
        return Move.TAKE
    lasting_s = spec.get("leaseDurationSeconds") or DURATION_S
    silent_s = now_s - watched.since_s
    if silent_s > lasting_s:
        return Move.TAKE
    if watched.first and age_s is not None and age_s > lasting_s + SERVERS_DIFFER_S:
        return Move.TAKE if silent_s > UNRENEWED_S else Move.LOOK
    return Move.WAIT


class Lease:
    """``turn`` from one thread; ``leads`` from any. A Lease goes with the ``owner`` it was made
    with."""

    def __init__(
        self,
        objects: Objects,
        namespace: str,
        name: str,
        me: str,
        clock: Clock | None = None,
        owner: Object | None = None,
    ) -> None:
        self._objects = objects
        self._owner = owner
        self._namespace = namespace
        self._name = name
        self._me = me
        self._clock = clock or SystemClock()
        self._watched: Watched | None = None
        self.turns_s = TURN_S
        """How long after this turn the next one is due."""
        self._renewed_s: float | None = None
        self._answered_s = float("-inf")
        self._turned_s = self._clock.monotonic_s()

    def leads(self) -> bool:
        """Whether nobody else can hold the Lease now."""
        renewed_s = self._renewed_s
        return renewed_s is not None and self._clock.monotonic_s() - renewed_s < RENEW_WITHIN_S

    def answered_ago_s(self) -> float:
        """Seconds since the API server answered last."""
        return self._clock.monotonic_s() - self._answered_s

    def turned_ago_s(self) -> float:
        """Seconds since a turn began last, however it went."""
        return self._clock.monotonic_s() - self._turned_s

    def turn(self) -> None:
        """Take or renew the Lease if it is time. Raises as ``Objects``."""
        start_s = self._turned_s = self._clock.monotonic_s()
        path = kinds.one("Lease", self._namespace, self._name)
        found, age_s = self._objects.aged(path)
        self._answered_s = self._clock.monotonic_s()
        version = "" if found is None else found["metadata"]["resourceVersion"]
        before = self._watched
        if before is None or version != before.version:
            self._watched = Watched(version, self._answered_s, before is None)
        assert self._watched is not None
        next_move = move(found, self._me, self._watched, self._answered_s, age_s)
        if next_move is Move.LOOK and self._is_being_deleted(found):
            next_move = Move.TAKE
        self.turns_s = SOON_S if next_move is Move.LOOK else TURN_S
        if next_move in (Move.WAIT, Move.LOOK):
            self._renewed_s = None
            return
        wanted = self._wanted(found, next_move)
        if found is None:
            if not self._objects.create(wanted):
                raise StaleError("another operator made the Lease")
        else:
            self._objects.replace(wanted)
        self._renewed_s = start_s

    def give_back(self) -> None:
        """Let another one take over at once. Raises as ``Objects``."""
        held, self._renewed_s = self._renewed_s, None
        if held is None:
            return
        found = self._objects.get(kinds.one("Lease", self._namespace, self._name))
        if found is None or found["spec"].get("holderIdentity") != self._me:
            return
        spec = {**found["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        self._objects.replace(_manifest(found["metadata"], spec))

    def _is_being_deleted(self, found: Object | None) -> bool:
        """Whether the holder's pod is. One that is not there says nothing: who holds a Lease may be
        no pod, or one of another name; nor does one that may not be read."""
        holder = str(((found or {}).get("spec") or {}).get("holderIdentity"))
        try:
            pod = self._objects.get(kinds.one("Pod", self._namespace, pod_of(holder)))
        except RefusedError:
            return False
        return pod is not None and "deletionTimestamp" in pod["metadata"]

    def _wanted(self, found: Object | None, next_move: Move) -> dict[str, Any]:
        now = datetime.fromtimestamp(self._clock.now_s(), UTC)
        moment = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = (found or {}).get("spec") or {}
        spec = {
            "acquireTime": moment,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + 1,
        }
        if next_move is Move.RENEW:
            spec = {name: before.get(name) for name in spec}
        metadata: dict[str, Any] = {"name": self._name, "namespace": self._namespace}
        if self._owner is not None:
            metadata["ownerReferences"] = [dict(self._owner)]
        told = {"holderIdentity": self._me, "leaseDurationSeconds": DURATION_S}
        return _manifest(
            metadata if found is None else found["metadata"],
            {**spec, **told, "renewTime": moment},
        )


def _manifest(metadata: Object, spec: Object) -> dict[str, Any]:
    kept = (
        *("name", "namespace", "uid", "resourceVersion"),
        *("labels", "annotations", "ownerReferences"),
    )
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {name: metadata[name] for name in kept if name in metadata},
        "spec": dict(spec),
    }


def keep(lease: Lease, stopped: threading.Event, changed: Callable[[bool], None]) -> None:
    """Turn until ``stopped``, in a thread; ``changed`` hears each time that leading begins or ends.

    While the API server is away a leader goes on leading until its time is over.
    """
    led = False
    while not stopped.is_set():
        try:
            lease.turn()
        except (HomeAwayError, StaleError) as error:
            log.info("the Lease waits: %s", error)
        except MillraceError as error:
            log.warning("the Lease cannot be had: %s", error)
        if lease.leads() != led:
            led = not led
            changed(led)
        stopped.wait(lease.turns_s)
