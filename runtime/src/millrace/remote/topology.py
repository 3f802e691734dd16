"""One topology of a cluster: its resource, its pods, and the config maps that it speaks through."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from millrace.homes import pods as names
from millrace.homes.pods import Role
from millrace.kube.configmaps import ConfigMap
from millrace.kube.inboxmap import InboxMap
from millrace.kube.journalmap import JournalMap
from millrace.kube.viewmap import ViewMap
from millrace.protocol.types import View
from millrace.remote.cluster import Cluster, ClusterError, NotThereError, speaking
from millrace.topology.load import parse
from millrace.topology.model import API_VERSION, KIND, StreamTopology

PLURAL = "streamtopologies"

_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class PodRow:
    """A pod of a topology. ``ending``: it is being deleted; ``started`` is wall-clock time in
    seconds, None before that; ``trouble`` is what it waits for, or why it ended."""

    name: str
    role: str
    uid: str
    node: str | None
    phase: str
    ready: bool
    ending: bool
    restarts: int
    started: float | None
    trouble: str
    namespace: str = ""
    container: str = ""

    @property
    def path(self) -> str:
        """Of its object."""
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"

    @property
    def alive(self) -> bool:
        """Whether its processes may run."""
        return self.phase not in _ENDED

    def document(self) -> dict[str, Any]:
        """As ``status --json`` shows it."""
        return {
            "name": self.name,
            "role": self.role,
            "node": self.node,
            "phase": self.phase,
            "ready": self.ready,
            "ending": self.ending,
            "restarts": self.restarts,
            "started": self.started,
            "trouble": self.trouble or None,
        }


def pod_row(found: Mapping[str, Any]) -> PodRow:
    """From a pod of the API server."""
    metadata, status = found["metadata"], found.get("status") or {}
    containers = status.get("containerStatuses") or []
    conditions = status.get("conditions") or []
    state = containers[0].get("state") or {} if containers else {}
    ended, waiting = state.get("terminated") or {}, state.get("waiting") or {}
    pending: Mapping[str, Any] = next(
        (c for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"), {}
    )
    told = (status, ended, waiting, pending)
    trouble = next((t["reason"] for t in told if t.get("reason") not in (None, "Completed")), "")
    started = status.get("startTime")
    return PodRow(
        metadata["name"],
        (metadata.get("labels") or {}).get(names.ROLE_LABEL, ""),
        metadata["uid"],
        (found.get("spec") or {}).get("nodeName"),
        names.driver_phase(status),
        any(c["type"] == "Ready" and c["status"] == "True" for c in conditions),
        "deletionTimestamp" in metadata,
        sum(one.get("restartCount", 0) for one in containers),
        datetime.fromisoformat(started).timestamp() if started else None,
        trouble,
        metadata.get("namespace", ""),
        _container(found),
    )


def _container(found: Mapping[str, Any]) -> str:
    """That of ours, beside which a mesh may have put others."""
    listed: list[str] = [one["name"] for one in (found.get("spec") or {}).get("containers") or []]
    role: str = (found["metadata"].get("labels") or {}).get(names.ROLE_LABEL, "")
    return role if role in listed else next(iter(listed), role)


def number_of(pod: str) -> int:
    """The number behind a pod's name."""
    text = pod.rpartition("-")[2]
    return int(text) if text.isascii() and text.isdigit() else -1


@dataclass(frozen=True)
class RemoteTopology:
    """``document`` is the resource as it was found."""

    cluster: Cluster
    name: str
    document: Mapping[str, Any] = field(repr=False)

    @property
    def uid(self) -> str:
        """Of this life of the topology; another resource of the name has another."""
        return str(self.document["metadata"]["uid"])

    @property
    def spec(self) -> Mapping[str, Any]:
        """As it is written in the resource, with the defaults of the API server."""
        found: Mapping[str, Any] = self.document.get("spec") or {}
        return found

    @property
    def status(self) -> Mapping[str, Any]:
        """As the operator wrote it last; empty before that."""
        found: Mapping[str, Any] = self.document.get("status") or {}
        return found

    @cached_property
    def model(self) -> StreamTopology:
        """The resource as a topology file would have it. Raises ``InvalidTopologyError``."""
        return parse(self.text, import_code=False)

    @property
    def text(self) -> str:
        """The resource as a topology file."""
        metadata = {"name": self.name, "namespace": self.cluster.namespace}
        document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata}
        return json.dumps({**document, "spec": self.spec})

    @property
    def path(self) -> str:
        """Of the resource."""
        return f"{all_path(self.cluster)}/{self.name}"

    @property
    def inbox(self) -> InboxMap:
        """What is said to the driver. Raises ``ClusterError`` before the operator made its place:
        an object of that name that somebody else made would stand in its way."""
        held = self.config_map(names.inbox_map(self.name))
        with self.speaking():
            if held.read() is None:
                raise ClusterError(
                    f"{self.name} in {self.cluster.shown}: the operator has not set it up yet, "
                    "there is nobody to ask; look at millrace status"
                )
        return InboxMap(held)

    @property
    def journal(self) -> JournalMap:
        """What the driver tells."""
        return JournalMap(self.config_map(names.journal_map(self.name)))

    def view(self) -> View | None:
        """Which state servers hold the truth; None before the first driver."""
        with self.speaking():
            return ViewMap(self.config_map(names.view_map(self.name))).read()[1]

    def again(self) -> RemoteTopology:
        """As it stands now. Raises ``NotThereError``, also where another resource has taken the
        name."""
        found = RemoteTopology(self.cluster, self.name, self.cluster.get(self.path))
        if found.uid != self.uid:
            raise NotThereError(
                f"{self.name} in {self.cluster.shown}: it was deleted, and made anew"
            )
        return found

    def pods(self) -> list[PodRow]:
        """All its pods, by role and name."""
        path = f"/api/v1/namespaces/{self.cluster.namespace}/pods"
        query = {"labelSelector": f"{names.TOPOLOGY_LABEL}={self.name}"}
        rows = [pod_row(one) for one in self.cluster.get(path, query)["items"]]
        known = [role.value for role in Role]
        return sorted(
            (row for row in rows if row.role in known),
            key=lambda row: (known.index(row.role), len(row.name), row.name),
        )

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """An API server that is away, or forbids it, is said as the command line does."""
        with speaking(self.cluster.context):
            yield

    def config_map(self, name: str) -> ConfigMap:
        """One of its config maps, by its name."""
        return ConfigMap(self.cluster.api, self.cluster.namespace, name)


def all_path(cluster: Cluster) -> str:
    """Of the topologies of a namespace."""
    return f"/apis/{API_VERSION}/namespaces/{cluster.namespace}/{PLURAL}"


def find(cluster: Cluster, name: str | None) -> RemoteTopology:
    """The topology of that name, or the only one of the namespace.

    Raises ``NotThereError`` with the names that there are, ``ClusterError``.
    """
    if name is not None and not _may_be_name(name):
        raise ClusterError(
            f"{name!r} is no name of a topology: with --namespace or --context a topology of a "
            "cluster is meant, which is called by its name alone (metadata.name); leave both out "
            "for a topology file"
        )
    if name is not None:
        try:
            return RemoteTopology(cluster, name, cluster.get(f"{all_path(cluster)}/{name}"))
        except NotThereError:
            pass  # the list says more
    there = {one["metadata"]["name"]: one for one in _all(cluster)}
    if name is None and len(there) == 1:
        [(only, document)] = there.items()
        return RemoteTopology(cluster, only, document)
    listed = f"there are {', '.join(sorted(there))}" if there else "there is none at all"
    if name is None:
        raise NotThereError(f"{cluster.shown}: name the topology that is meant; {listed}")
    raise NotThereError(f"{cluster.shown}: there is no topology {name!r}; {listed}")


def _all(cluster: Cluster) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = cluster.get(all_path(cluster))["items"]
    except NotThereError as error:
        raise NotThereError(
            f"{cluster.context}: it knows no StreamTopology: apply the definitions in crds/, or "
            "install the chart, there, or name another --context"
        ) from error
    return found


def _may_be_name(text: str) -> bool:
    return text.replace("-", "").isalnum() and text == text.lower() and text.isascii()
