"""What is known about a topology on a cluster, as one document: as of one on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millrace.homes import codec
from millrace.homes import pods as names
from millrace.homes.documents import Status
from millrace.homes.pods import Role
from millrace.remote.topology import PodRow, RemoteTopology, number_of

FIGURES = (
    *("execution", "epoch", "phase", "members", "sealed", "published", "window", "spark"),
    *("totals", "pendingReplays", "deadLetters", "lagRecords", "rootsPerS", "timings", "memory"),
    *("updated", "reason"),
)

_UNTRACKED = "tracking is off: a tuple that is lost on the way goes unnoticed"

_WARNS = ("Stalled",)


def overview(topology: RemoteTopology) -> dict[str, Any]:
    """State, figures, conditions and pods; the keys of the local overview, but for what lies in a
    work folder. Raises ``ClusterError``, ``NotThereError`` where it was deleted."""
    now = topology.again()
    with now.speaking():
        told = now.journal.status()
    figures = told if told.uid == now.uid else Status()
    plain = codec.plain(figures)
    pods = now.pods()
    spec, status = now.spec, now.status
    tracked = spec.get("tracking", "On") == "On" and spec.get("guarantee") != "AtMostOnce"
    conditions = list(status.get("conditions") or [])
    driver = driver_of(now, pods)
    return {
        "name": now.name,
        "uid": now.uid,
        "namespace": now.cluster.namespace,
        "context": now.cluster.context,
        "alive": driver is not None,
        "state": state_of(now, figures, driver),
        "guarantee": spec.get("guarantee", "ExactlyOnce"),
        "tracking": "On" if tracked else "Off",
        "warnings": [
            *([] if tracked else [_UNTRACKED]),
            *(_said(c) for c in conditions if c["type"] in _WARNS and c["status"] == "True"),
        ],
        **{name: plain[name] for name in FIGURES},
        "requests": _requests(now),
        "resource": {
            "phase": status.get("phase"),
            "message": status.get("message"),
            "generation": now.document["metadata"].get("generation"),
            "observedGeneration": status.get("observedGeneration"),
            "conditions": conditions,
        },
        "pods": [row.document() for row in pods],
    }


def driver_of(topology: RemoteTopology, pods: Sequence[PodRow]) -> PodRow | None:
    """The newest pod of a driver that may run; older ones are fenced. One that stands by is the
    driver where no other is left."""
    found = [row for row in pods if row.role == Role.DRIVER and row.alive]
    waiting = standby_of(topology, pods)
    works = [row for row in found if row is not waiting and not row.ending]
    return max(works or found, key=lambda row: number_of(row.name), default=None)


def standby_of(topology: RemoteTopology, pods: Sequence[PodRow]) -> PodRow | None:
    """The pod of the driver that stands by, as far as the operator has said which it is."""
    number = (topology.status.get("driver") or {}).get("standby")
    if number is None:
        return None
    name = names.pod_name(topology.name, Role.DRIVER, number)
    return next((row for row in pods if row.name == name and row.alive), None)


def state_of(topology: RemoteTopology, figures: Status, driver: PodRow | None) -> str:
    """In the words of a run on this machine, and ``suspended``, ``stalled`` and ``deleting``.

    A driver's figures are believed while a pod of a driver is ready, or of what ended for good.
    """
    if "deletionTimestamp" in topology.document["metadata"]:
        return "deleting"
    if driver is None and topology.spec.get("suspend"):
        return "suspended"
    if driver is None and figures.state == "drained":
        return "drained"
    conditions = topology.status.get("conditions") or []
    if any(c["type"] == "Stalled" and c["status"] == "True" for c in conditions):
        return "stalled"
    if driver is None or not driver.ready:
        return "starting"
    return figures.state if figures.state == "running" else "starting"


def _said(condition: dict[str, Any]) -> str:
    return f"{condition.get('reason', '')}: {condition.get('message', '')}".strip(": ")


def _requests(topology: RemoteTopology) -> int:
    """Counted by their keys: nothing that cannot be read is touched by a look."""
    with topology.speaking():
        held = topology.config_map(names.inbox_map(topology.name)).read()
    return 0 if held is None else sum(key.startswith(names.REQUEST_PREFIX) for key in held.data)
