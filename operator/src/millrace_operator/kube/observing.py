"""Everything that a plan for one topology is made of, read live from the API server.

The view is read last, behind what the driver told: a state server's pod is deleted on the ground of
what stands there.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from http import HTTPStatus
from itertools import chain

from millrace.homes import pods as names
from millrace.homes.documents import RunEvent
from millrace.homes.pods import ROLE_LABEL, TOPOLOGY_LABEL, Role
from millrace.topology.members import MOST_MEMBERS
from millrace.topology.model import KIND
from millrace_operator.builders.naming import MANAGED_BY, MANAGER
from millrace_operator.kube import kinds, reading
from millrace_operator.kube.incarnations import Incarnations
from millrace_operator.kube.objects import Object, Objects, RefusedError, owner_uid
from millrace_operator.reconcile.observe import (
    Child,
    Observed,
    Pod,
    Resource,
    Snapshot,
    most_silent,
)
from millrace_operator.reconcile.snapshots import SETTLED
from millrace_operator.reconcile.troubles import FAILED_MOUNT

log = logging.getLogger(__name__)

_MAP = "ConfigMap"


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Which topology is spoken of."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Orphans:
    """The snapshots of a namespace whose topologies are not there: they are looked at together,
    since anybody may make as many as they like."""

    namespace: str

    def __str__(self) -> str:
        return f"snapshots without a topology in {self.namespace}"


@dataclass(frozen=True, slots=True)
class Seen:
    """What was observed, and at which versions: of the topology, of pods by their uid, and of the
    inbox; and what the driver told, by the names of these events."""

    observed: Observed
    version: str
    pod_versions: Mapping[str, str] = field(default_factory=dict)
    told: Mapping[str, RunEvent] = field(default_factory=dict)
    inbox: reading.Inbox | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """What is known beside what the API server says: the time, what it refused at the last attempt,
    and whether it is time to apply also what is unchanged."""

    now: datetime
    refusals: Mapping[str, str] = field(default_factory=dict)
    resync: bool = False


def observe(objects: Objects, incarnations: Incarnations, key: Key, turn: Turn) -> Seen | None:
    """What is there of a topology now; None where it is gone.

    Raises as ``Objects``, and ``ProtocolError`` or ``NewerFormatError`` for a view that cannot be
    read: then nothing may be done.
    """
    found = objects.get(kinds.one(KIND, key.namespace, key.name))
    if found is None:
        return None
    resource = reading.resource_of(found)
    selector = f"{TOPOLOGY_LABEL}={key.name}"
    strangers: list[str] = []
    pods = _pods(objects.list("Pod", key.namespace, selector), resource.uid, strangers)
    nodes = _nodes(objects, pods)
    alarm = _most_silent(objects, nodes)
    run_ids = incarnations.of(resource.uid, _servers(key, pods, nodes))
    secret = objects.get(kinds.one("Secret", key.namespace, names.secret(key.name)))
    children = _children(objects, key, selector, resource.uid, strangers, secret)
    maps = _maps(objects, key, resource.uid, {name for kind, name in children if kind == _MAP})
    journal, view = maps[names.journal_map(key.name)], maps[names.view_map(key.name)]
    inbox = maps[names.inbox_map(key.name)]
    told, proposal = reading.status_of(journal), reading.proposal_of(inbox)
    observed = Observed(
        resource,
        tuple(_read(pods, turn.now, run_ids, _unmountable(objects, key, pods))),
        nodes,
        tuple(children.values()),
        reading.accepted_of(maps[names.accepted_map(key.name)]),
        reading.view_of(view),
        proposal,
        window=None if told is None else told.sealed,
        refusals=turn.refusals,
        resync=turn.resync,
        told=told,
        strangers=tuple(strangers),
        most_silent=alarm,
        snapshots=_snapshots(objects, resource),
        booked=reading.booked_of(maps[names.snapshots_map(key.name)]),
        asked=reading.asked_of(inbox),
        forks=reading.forks_of(view),
        restoring=reading.restoring(view),
        writer=reading.writer_of(maps[names.view_map(key.name)]),
        secrets=reading.secrets_of(secret, resource.uid),
        unread_proposal=proposal is None and reading.proposes(inbox),
    )
    versions = {pod["metadata"]["uid"]: pod["metadata"]["resourceVersion"] for pod in pods}
    version = found["metadata"]["resourceVersion"]
    return Seen(observed, version, versions, reading.told_of(journal), reading.inbox_of(inbox))


def topologies(objects: Objects, namespaces: Sequence[str]) -> list[Key]:
    """All topologies of some namespaces, or of all where none is named. Raises as ``Objects``."""
    found = (one for space in namespaces or (None,) for one in objects.heads(KIND, space))
    return [Key(one["metadata"]["namespace"], one["metadata"]["name"]) for one in found]


_ASKED_FOR = f"!{names.PERIODIC_LABEL}"
"""Snapshots that somebody asked for."""


def _snapshots(objects: Objects, resource: Resource) -> tuple[Snapshot, ...]:
    """Of those in the namespace those that somebody asked for, those that this topology has taken
    by itself, and the one that it begins with. What other topologies take by themselves may be
    very many."""
    space = resource.namespace
    own = f"{names.PERIODIC_LABEL}={resource.uid}"
    listed = [objects.list(kinds.SNAPSHOT, space, one) for one in (own, _ASKED_FOR)]
    origin = (resource.document.get("spec", {}).get("restoreFrom") or {}).get("snapshot")
    if origin:
        listed.append(objects.list(kinds.SNAPSHOT, space, name=origin))
    found = {one.uid: one for one in _staying(chain.from_iterable(listed))}
    return tuple(found.values())


def _staying(found: Iterable[Object]) -> Iterator[Snapshot]:
    """As far as they are not about to go."""
    for one in found:
        if "deletionTimestamp" not in one["metadata"]:
            yield reading.snapshot_of(one)


def orphans(objects: Objects, namespace: str) -> tuple[Snapshot, ...]:
    """Snapshots of topologies that are not there, as far as something may be to tell of them.
    Raises as ``Objects``."""
    asked_for = _staying(objects.list(kinds.SNAPSHOT, namespace, _ASKED_FOR))
    found = [one for one in asked_for if one.status.phase not in SETTLED]
    # Topologies behind them: what a snapshot was booked for is there, or gone.
    there = {one["metadata"]["name"] for one in objects.heads(KIND, namespace)} if found else set()
    return tuple(one for one in found if one.topology not in there)


def awaited(objects: Objects, namespaces: Sequence[str]) -> set[Key]:
    """Topologies that somebody wants a snapshot of, whether they are there or not."""
    found = (
        (one["metadata"]["namespace"], reading.snapshot_of(one))
        for space in namespaces or (None,)
        for one in objects.list(kinds.SNAPSHOT, space, _ASKED_FOR)
    )
    return {Key(space, one.topology) for space, one in found if one.status.phase not in SETTLED}


def _pods(found: Iterable[Object], uid: str, strangers: list[str]) -> list[Object]:
    """Those of this very topology: executors belong to its drivers, the others to itself. What an
    earlier one of the same name left behind is about to be collected."""
    own, executors = [], []
    for pod in found:
        if owner_uid(pod) == uid:
            own.append(reading.brief(pod))
        elif _role(pod) == Role.EXECUTOR:
            executors.append(reading.brief(pod))
        else:
            _note(pod, strangers)
    drivers = {pod["metadata"]["uid"] for pod in own if _role(pod) == Role.DRIVER}
    return [*own, *(pod for pod in executors if _of(pod) & drivers)]


def _role(found: Object) -> str | None:
    return _label(found, ROLE_LABEL)


def _label(found: Object, name: str) -> str | None:
    label: str | None = (found["metadata"].get("labels") or {}).get(name)
    return label


def _of(pod: Object) -> set[str]:
    return {owner["uid"] for owner in pod["metadata"].get("ownerReferences") or []}


def _nodes(objects: Objects, pods: Sequence[Object]) -> dict[str, bool] | None:
    """Whether the nodes of pods answer; those that are gone are left out. None for an operator that
    may not ask for nodes."""
    named = {pod.get("spec", {}).get("nodeName") for pod in pods} - {None}
    try:
        found = {name: objects.get(kinds.node(name)) for name in sorted(named)}
    except RefusedError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        log.warning("no pod counts as lost: %s", error)
        return None
    return {name: reading.node_answers(node) for name, node in found.items() if node is not None}


def _most_silent(objects: Objects, nodes: Mapping[str, bool] | None) -> bool:
    """Whether most nodes of the cluster are silent; asked for only where one of ours is."""
    if nodes is None or all(nodes.values()):
        return False
    try:
        found = objects.list("Node", None)
        answers = {one["metadata"]["name"]: reading.node_answers(one) for one in found}
    except RefusedError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        log.warning("nodes cannot be counted: %s", error)
        return False
    return most_silent(answers)


def _servers(key: Key, pods: Sequence[Object], nodes: Mapping[str, bool] | None) -> list[Object]:
    """State servers that can be asked, by their numbers. A pod of another name is none of them:
    each that is asked who it is may take two seconds."""
    numbered = {names.pod_name(key.name, Role.STATE_SERVER, n): n for n in range(MOST_MEMBERS)}
    servers = [
        pod
        for pod in pods
        if _role(pod) == Role.STATE_SERVER
        and pod["metadata"]["name"] in numbered
        and (nodes is None or nodes.get(pod.get("spec", {}).get("nodeName", ""), False))
    ]
    return sorted(servers, key=lambda pod: numbered[pod["metadata"]["name"]])


def _note(found: Object, strangers: list[str]) -> None:
    """What an operator made for another resource of this name; executors have names of their own.
    What has such a name and was made by nobody of ours is found out when it is in the way."""
    made = found["kind"] == "Secret" or _label(found, MANAGED_BY) == MANAGER
    if made and _role(found) != Role.EXECUTOR:
        strangers.append(f"{found['kind']} {found['metadata']['name']}")


def _children(
    objects: Objects,
    key: Key,
    selector: str,
    uid: str,
    strangers: list[str],
    secret: Object | None,
) -> dict[tuple[str, str], Child]:
    """Children by kind and name, but for pods."""
    first: list[Object] = [] if secret is None else [{**secret, "kind": "Secret"}]
    listed = (one for kind in kinds.LISTED for one in objects.heads(kind, key.namespace, selector))
    found = {}
    for one in chain(first, listed):
        if owner_uid(one) == uid:
            found[one["kind"], one["metadata"]["name"]] = reading.child_of(one)
        else:
            _note(one, strangers)
    return found


def _maps(objects: Objects, key: Key, uid: str, there: Container[str]) -> dict[str, Object | None]:
    """Config maps that are read, by name, the view behind the journal; None for one that is not
    there. Others with the topology's label may be anybody's, and as many and as large as they
    like."""
    wanted = (
        names.accepted_map(key.name),
        names.snapshots_map(key.name),
        names.inbox_map(key.name),
    )
    found: dict[str, Object | None] = {}
    for name in (*wanted, names.journal_map(key.name), names.view_map(key.name)):
        one = objects.get(kinds.one(_MAP, key.namespace, name)) if name in there else None
        found[name] = one if one is not None and owner_uid(one) == uid else None
    return found


def _unmountable(objects: Objects, key: Key, pods: Sequence[Object]) -> dict[str, str]:
    """What drivers are to mount and is not there, by their uid: a kubelet waits for it, and says so
    in events of the pod alone."""
    gone: dict[str, str] = {}
    for pod in pods:
        if _role(pod) != Role.DRIVER:
            continue
        lacking = [
            f"{kind} {name}"
            for kind, name in reading.mounted(pod)
            if not objects.is_there(kinds.one(kind, key.namespace, name))
        ]
        if lacking:
            gone[pod["metadata"]["uid"]] = f"not there: {', '.join(lacking)}"
    return gone


def _read(
    pods: Sequence[Object], now: datetime, run_ids: Mapping[str, str], gone: Mapping[str, str]
) -> list[Pod]:
    read = (reading.pod_of(pod, now, run_ids.get(pod["metadata"]["uid"])) for pod in pods)
    return [
        replace(pod, reason=FAILED_MOUNT, message=gone[pod.uid]) if pod.uid in gone else pod
        for pod in read
        if pod is not None
    ]
