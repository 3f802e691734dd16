"""Events of a topology: what is said again is counted, not written once more.

The name of an event is made of what it says, so that an operator that is started again, or one that
died between an event and the status, finds what was said before.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b

from millrace.homes.documents import RunEvent
from millrace.topology.model import API_VERSION, KIND
from millrace_operator.api.times import rfc3339
from millrace_operator.builders.naming import MANAGER, Manifest
from millrace_operator.kube import kinds
from millrace_operator.kube.objects import Object, Objects, RefusedError, StaleError
from millrace_operator.reconcile.actions import Announce
from millrace_operator.reconcile.observe import Resource

log = logging.getLogger(__name__)

_LONGEST = 1024
"""Characters of a message that the API server takes."""

_LONGEST_PREFIX = 200
"""Of the 253 characters of a name."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Of what something is said, where that is no topology."""

    name: str
    namespace: str
    uid: str
    kind: str


def announce(objects: Objects, of: Resource | Subject, what: Announce, now: datetime) -> None:
    """Say it. An event that is refused holds nothing up: the log has it too. Raises
    ``HomeAwayError``, and ``StaleError`` where another says the same just now."""
    level = logging.WARNING if what.warning else logging.INFO
    log.log(level, "%s/%s: %s: %s", of.namespace, of.name, what.reason, what.message)
    made = event(of, what, now)
    path = kinds.one("Event", of.namespace, made["metadata"]["name"])
    try:
        there = objects.get(path)
        if there is None:
            objects.create(made)
        else:
            objects.merge(path, again(there, now))
    except RefusedError as error:
        log.warning("%s", error)


def relay(objects: Objects, of: Resource, name: str, told: RunEvent, now: datetime) -> None:
    """Say once what a driver told under that name. Raises ``HomeAwayError``."""
    made = event(of, Announce(told.kind, told.text or told.kind, told.warning), now)
    try:
        moment = rfc3339(datetime.fromtimestamp(int(told.time), UTC))
    except (ValueError, OverflowError, OSError):
        moment = rfc3339(now.replace(microsecond=0))  # no clock says what stands there
    made["metadata"]["name"] = f"{of.name}.{name}"
    try:
        objects.create({**made, "firstTimestamp": moment, "lastTimestamp": moment})
    except (RefusedError, StaleError) as error:
        log.warning("%s", error)


def event(of: Resource | Subject, what: Announce, now: datetime) -> Manifest:
    """Said for the first time."""
    text = "\n".join([of.uid, what.reason, what.message])
    digest = blake2b(text.encode(), digest_size=8).hexdigest()
    moment = rfc3339(now.replace(microsecond=0))
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{_cut(of.name)}.{digest}", "namespace": of.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": of.kind if isinstance(of, Subject) else KIND,
            "name": of.name,
            "namespace": of.namespace,
            "uid": of.uid,
        },
        "type": "Warning" if what.warning else "Normal",
        "reason": what.reason,
        "message": what.message[:_LONGEST],
        "source": {"component": MANAGER},
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }


def _cut(name: str) -> str:
    """What of a name has room in that of an event; a snapshot's may be as long as any."""
    return name[:_LONGEST_PREFIX].rstrip("-.")


def again(there: Object, now: datetime) -> Manifest:
    """What changes of an event that is said once more."""
    version = there["metadata"]["resourceVersion"]
    count = int(there.get("count") or 1) + 1
    moment = rfc3339(now.replace(microsecond=0))
    return {"metadata": {"resourceVersion": version}, "count": count, "lastTimestamp": moment}
