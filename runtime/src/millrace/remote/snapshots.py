"""Has the driver of a topology on a cluster take a snapshot; lists and deletes their resources.

Where it lies may be a folder that only the pods see, so that the driver's own word counts here: the
event that it tells, before it takes the request out of the inbox.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from millrace.clock import Clock
from millrace.errors import SnapshotError
from millrace.homes.documents import Ask, Request, RunEvent
from millrace.homes.pods import PERIODIC_LABEL
from millrace.homes.stores import HomeAwayError, Inbox
from millrace.remote.cluster import Cluster, ClusterError
from millrace.remote.topology import RemoteTopology
from millrace.topology.model import API_VERSION

_LOOK_S = 0.5
_WORD_S = 15.0
"""An event may come this long after the request is done: it is written once a second at most, and
again where a write failed."""

_TAKEN = re.compile(r"snapshot (?P<name>\S+) is taken behind window (?P<window>\d+)")


@dataclass(frozen=True, slots=True)
class Taken:
    """``text`` is the driver's own word of it."""

    name: str
    window: int
    text: str


def check_place(to: str | None) -> None:
    """Raises ``ClusterError`` for a place that would mean another thing in a pod than here."""
    if to is not None and "://" not in to and not to.startswith("/"):
        raise ClusterError(
            f"--place {to}: on a cluster name a URL, or a whole path as the driver's pod sees it, "
            "such as /data/snapshots"
        )


def take(
    topology: RemoteTopology,
    name: str,
    to: str | None,
    timeout_s: float,
    clock: Clock,
    pause: Callable[[float], None],
) -> Taken:
    """Ask for a snapshot and wait for it.

    Raises ``SnapshotError`` where it failed, with the reason, or took longer, and
    ``ClusterError``. One that took longer is asked for no more, unless the driver has it in hand.
    """
    check_place(to)
    inbox, follower = topology.inbox, topology.journal.follow()
    follower.new()  # what was told before is of another one, should it bear the same name
    with topology.speaking():
        token = inbox.ask(Request(Ask.SNAPSHOT, name=name, to=to))
    end_s = clock.monotonic_s() + timeout_s
    done_s: float | None = None
    try:
        while (now_s := clock.monotonic_s()) < end_s:
            if (taken := _outcome(name, follower.new())) is not None:
                return taken
            if done_s is None and not _waits(inbox, token):
                done_s = now_s
            if done_s is not None and now_s - done_s > _WORD_S:
                raise SnapshotError(
                    f"snapshot {name}: the driver is done with it, and its word of how it went "
                    "did not come; look at the place of the snapshots before you rely on it"
                )
            pause(_LOOK_S)
    finally:
        if done_s is None:
            with suppress(HomeAwayError):
                inbox.done(token)
    raise SnapshotError(
        f"snapshot {name}: was not taken within {timeout_s:g} s; a snapshot waits until the sinks "
        "show what is sealed, and for a driver: look at millrace status, or ask again with a "
        "longer --timeout"
    )


def _waits(inbox: Inbox, token: str) -> bool:
    """Whether the driver has not taken the request out; one that cannot be seen waits."""
    try:
        return any(one.token == token for one in inbox.requests())
    except HomeAwayError:
        return True


def _outcome(name: str, events: Sequence[RunEvent]) -> Taken | None:
    """Raises ``SnapshotError`` where it failed."""
    for event in events:
        if event.kind == "SnapshotFailed" and event.text.startswith(f"snapshot {name} "):
            raise SnapshotError(event.text)
        found = _TAKEN.match(event.text) if event.kind == "SnapshotTaken" else None
        if found is not None and found["name"] == name:
            return Taken(name, int(found["window"]), event.text)
    return None


PLURAL = "topologysnapshots"


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """The resource of a snapshot; what is not known yet is None."""

    name: str
    topology: str
    phase: str
    window: int | None
    taken: str | None
    place: str | None
    snapshot: str | None
    size_bytes: int | None
    deletion_policy: str
    periodic: bool
    message: str

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "name": self.name,
            "topology": self.topology,
            "phase": self.phase,
            "window": self.window,
            "taken": self.taken,
            "place": self.place,
            "snapshot": self.snapshot,
            "sizeBytes": self.size_bytes,
            "deletionPolicy": self.deletion_policy,
            "periodic": self.periodic,
            "message": self.message or None,
        }


def listed(cluster: Cluster, topology: str | None) -> list[SnapshotRow]:
    """The resources of a namespace, of one topology where it is named, in the order of their
    names; the topology may be gone. Raises ``ClusterError``."""
    rows = [_row(one) for one in cluster.get(_path(cluster))["items"]]
    return sorted((r for r in rows if topology in (None, r.topology)), key=lambda r: r.name)


def shown(cluster: Cluster, name: str) -> SnapshotRow:
    """One of them. Raises ``NotThereError``, ``ClusterError``."""
    return _row(cluster.get(f"{_path(cluster)}/{name}"))


def deleted(cluster: Cluster, name: str) -> SnapshotRow:
    """Delete the resource; what it was. Its files follow by its deletionPolicy. Raises as
    ``shown``."""
    row = shown(cluster, name)
    cluster.delete(f"{_path(cluster)}/{name}", {})
    return row


def _path(cluster: Cluster) -> str:
    return f"/apis/{API_VERSION}/namespaces/{cluster.namespace}/{PLURAL}"


def _row(found: Mapping[str, Any]) -> SnapshotRow:
    metadata, spec = found["metadata"], found["spec"]
    status = found.get("status") or {}
    return SnapshotRow(
        metadata["name"],
        spec["topology"],
        status.get("phase", "Pending"),
        status.get("window"),
        status.get("taken"),
        status.get("place"),
        status.get("snapshot"),
        status.get("sizeBytes"),
        spec.get("deletionPolicy", "Retain"),
        bool((metadata.get("labels") or {}).get(PERIODIC_LABEL)),
        status.get("message", ""),
    )
