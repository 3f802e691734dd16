"""What kopf hears becomes a key in the queue, and nothing else.

Only ``kopf.on.event`` is used, which decides nothing and writes nothing: kopf's handlers of
changes, its timers and daemons put finalizers and their progress into the objects that they handle,
so that a topology could not be deleted while the operator is away, and an annotation would grow
with its spec. All of kopf's state is in its memory; all of ours is in the status and in children.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

import kopf
from aiohttp import ClientResponse
from kopf._cogs.clients import api

from millrace.homes import pods as names
from millrace.homes.pods import TOPOLOGY_LABEL
from millrace.kube.nesting import loads
from millrace_operator.api.resources import GROUP, SNAPSHOTS, TOPOLOGIES, VERSION
from millrace_operator.control.workers import ALL, Queue
from millrace_operator.kube import reading
from millrace_operator.kube.objects import AT_ONCE
from millrace_operator.kube.observing import Key
from millrace_operator.reconcile.observe import PAUSED

Object = Mapping[str, Any]

SERVER_S = 240
"""The API server ends a watch after so long, and the next one begins where it ended. It is sent as
it stands here, and the API server reads whole numbers only."""

SILENCE_S = 70.0
"""Kubernetes marks a watch once a minute; one that brings not even that is dead."""


LONGEST_PAUSE_S = 30.0
"""As often all topologies are looked at, whatever watches tell."""


class Pauses(Iterable[float]):
    """Between tries of what is refused or not answered: without an end, since kopf would end all
    watches for one of a namespace that was deleted, with the rights in it."""

    def __iter__(self) -> Iterator[float]:
        pause_s = 1.0
        while True:
            yield min(pause_s, LONGEST_PAUSE_S)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def settings() -> kopf.OperatorSettings:
    """kopf as it is used here."""
    _bound_depth()
    made = kopf.OperatorSettings()
    # A connection that died without a word is found out by time alone.
    made.watching.server_timeout = SERVER_S
    made.watching.client_timeout = SERVER_S + 30.0
    made.watching.connect_timeout = 10.0
    made.watching.inactivity_timeout = SILENCE_S
    made.networking.request_timeout = 30.0
    made.networking.error_backoffs = Pauses()
    # Anybody may label objects of a megabyte each, as many as they like.
    made.watching.chunk_size = AT_ONCE
    # Only what belongs to a topology.
    for kind in ("pods", "configmaps"):
        made.watching.label_selectors[("", "v1", kind)] = TOPOLOGY_LABEL
    # Nothing is written for kopf, neither events nor who is a peer.
    made.posting.enabled = False
    made.peering.standalone = True
    # Definitions are waited for before kopf starts, and namespaces are named: nothing to watch.
    made.scanning.disabled = True
    made.process.ultimate_exiting_timeout = 25.0
    # None is ever set. Should kopf meet one of an older operator's, it is not taken for its own.
    made.persistence.finalizer = f"{GROUP}/none"
    return made


def _bound_depth() -> None:
    """Have kopf read what it hears as ``millrace.kube.nesting`` does: one resource that is nested a
    thousand times would end all of its watches."""
    cast("Any", ClientResponse.json).__kwdefaults__["loads"] = loads
    setattr(api, "json", SimpleNamespace(loads=loads))  # noqa: B010


_KEPT = {"name", "namespace", "uid", "resourceVersion", "generation", "deletionTimestamp"}


class Hints:
    """What was heard last, so that what means nothing is let pass. A lost hint costs time alone."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._heard: dict[str, object] = {}

    def topology(self, kind: str | None, found: Object) -> None:
        """A topology: its own status, which the operator writes, is no news."""
        metadata = found["metadata"]
        annotations = metadata.get("annotations") or {}
        news = (
            *(metadata["uid"], metadata.get("generation"), annotations.get(PAUSED)),
            "deletionTimestamp" in metadata,
        )
        if self._is_news(f"{metadata['namespace']}/{metadata['name']}", kind, news):
            self._queue.add(Key(metadata["namespace"], metadata["name"]))

    def snapshot(self, kind: str | None, found: Object) -> None:
        """A snapshot: what the operator writes into its status is no news."""
        metadata, spec = found["metadata"], found.get("spec") or {}
        name = f"snapshot {metadata['namespace']}/{metadata['name']}"
        news = (metadata["uid"], metadata.get("generation"))
        if self._is_news(name, kind, news) and spec.get("topology"):
            self._queue.add(Key(metadata["namespace"], spec["topology"]))

    def child(self, found: Object) -> None:
        """A pod or a config map. What the driver tells of itself, and what it is told, changes
        often, and nothing is to be done about it."""
        metadata = found["metadata"]
        topology = metadata["labels"][TOPOLOGY_LABEL]
        if not topology:
            # Anybody may label what is theirs; no topology has an empty name.
            return
        ignored = (names.journal_map(topology), names.inbox_map(topology))
        if metadata["name"] not in ignored:
            self._queue.add(Key(metadata["namespace"], topology))

    def node(self, kind: str | None, found: Object) -> None:
        """A node that falls silent, goes away or is back: whose pods it has is not known here."""
        name = f"node {found['metadata']['name']}"
        first = name not in self._heard
        if self._is_news(name, kind, reading.node_answers(found)) and not first:
            self._queue.add(ALL)

    def _is_news(self, name: str, kind: str | None, news: object) -> bool:
        if kind == "DELETED":
            self._heard.pop(name, None)
            return True
        if self._heard.get(name) == news:
            return False
        self._heard[name] = news
        return True


def forget(found: dict[str, Any]) -> None:
    """Drop what was heard but for whose it is: kopf holds each object for seconds afterwards, and
    anybody may label objects of a megabyte each, as many as they like."""
    for name in found.keys() - {"kind", "apiVersion", "metadata"}:
        del found[name]
    for name in found["metadata"].keys() - _KEPT:
        del found["metadata"][name]


def registry(hints: Hints) -> kopf.OperatorRegistry:
    """The handlers of kopf."""
    made = kopf.OperatorRegistry()

    @kopf.on.login(registry=made)
    def login(**told: Any) -> kopf.ConnectionInfo | None:
        return _login()(**told)

    @kopf.on.event(GROUP, VERSION, TOPOLOGIES, registry=made)
    async def on_topology(event: Any, **_: Any) -> None:
        hints.topology(event["type"], event["object"])
        forget(event["object"])

    @kopf.on.event(GROUP, VERSION, SNAPSHOTS, registry=made)
    async def on_snapshot(event: Any, **_: Any) -> None:
        hints.snapshot(event["type"], event["object"])
        forget(event["object"])

    @kopf.on.event("", "v1", "pods", labels={TOPOLOGY_LABEL: kopf.PRESENT}, registry=made)
    async def on_pod(event: Any, **_: Any) -> None:
        hints.child(event["object"])
        forget(event["object"])

    @kopf.on.event("", "v1", "configmaps", labels={TOPOLOGY_LABEL: kopf.PRESENT}, registry=made)
    async def on_config_map(event: Any, **_: Any) -> None:
        hints.child(event["object"])
        forget(event["object"])

    @kopf.on.event("", "v1", "nodes", registry=made)
    async def on_node(event: Any, **_: Any) -> None:
        hints.node(event["type"], event["object"])

    return made


def _login() -> Callable[..., kopf.ConnectionInfo | None]:
    """The same API server as ``millrace.kube.configmaps.own_api`` takes. kopf asks again when a
    token is refused, and then reads the mounted one anew."""
    if os.environ.get("KUBERNETES_SERVICE_HOST") and not os.environ.get("KUBECONFIG"):
        return kopf.login_with_service_account
    return kopf.login_with_kubeconfig
