"""The API server that a command asks, and its refusals in words for people."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from kubernetes.config import ConfigException
from kubernetes.config.kube_config import KubeConfigMerger

from millrace.errors import MillraceError
from millrace.homes.stores import HomeAwayError
from millrace.kube.configmaps import UNUSABLE, Api, by_kubeconfig, in_cluster
from millrace.topology.secretrefs import SecretRef

_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_MERGE = "application/merge-patch+json"


class ClusterError(MillraceError):
    """A cluster, a namespace or a topology of it that a command cannot use as it was asked."""


class NotThereError(ClusterError):
    """What was asked for does not exist."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """An API server and the namespace that is meant; ``context`` is what the user calls it."""

    api: Api = field(repr=False)
    namespace: str
    context: str

    @property
    def shown(self) -> str:
        """For messages."""
        return f"namespace {self.namespace} of {self.context}"

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """An object or a list. Raises ``NotThereError``, ``ClusterError``."""
        return self._asked("GET", path, query=query)

    def secret(self, ref: SecretRef) -> str:
        """The value that a topology of this namespace refers to. Raises as ``get``, and
        ``ClusterError`` where the Secret has no such key."""
        data = self._secret(ref.name)
        try:
            return base64.b64decode(data[ref.key]).decode()
        except (LookupError, ValueError) as error:
            raise ClusterError(
                f"secret {ref.name} in {self.shown}: it has no {ref.key!r} that is a text"
            ) from error

    def secret_keys(self, name: str) -> frozenset[str]:
        """The keys of a Secret. Raises as ``get``."""
        return frozenset(self._secret(name))

    def _secret(self, name: str) -> Mapping[str, str]:
        found = self.get(f"/api/v1/namespaces/{self.namespace}/secrets/{name}").get("data")
        return found or {}

    def patch(self, path: str, body: object) -> dict[str, Any]:
        """Merge into an object. Raises as ``get``."""
        return self._asked("PATCH", path, body, kind=_MERGE)

    def delete(self, path: str, body: object) -> dict[str, Any]:
        """Delete an object; under preconditions that another one has not, it is not there. Raises
        as ``get``."""
        return self._asked("DELETE", path, body)

    def _asked(
        self,
        method: str,
        path: str,
        body: object = None,
        kind: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        with speaking(self.context):
            status, found = self.api.answer(method, path, body, kind=kind, query=query)
        if 200 <= status < 300:
            return found
        message = str(found.get("message") or path)
        if status == 404 or (status == 409 and method == "DELETE"):
            raise NotThereError(f"{self.context}: {message}")
        if status == 403:
            raise ClusterError(
                f"{self.context}: {message}; ask whoever gives rights there, or name another "
                "--context or --namespace"
            )
        raise ClusterError(f"{self.context}: the API server refuses it: {message}")


@contextmanager
def speaking(context: str) -> Iterator[None]:
    """Whoever waits tries again; a command says what is wrong, and ends."""
    try:
        yield
    except HomeAwayError as error:
        text = str(error).removesuffix("; it is tried again")
        if error.status == 404:
            # In plain text: not an object of an API is missing, but the API.
            raise NotThereError(f"{context}: {text}") from error
        if error.status == 401:
            remedy = "it does not know you: log in again, as for kubectl"
        elif error.status == 403:
            remedy = "it forbids that: ask whoever gives rights there"
        else:
            remedy = "is it there, and does kubectl reach it? Ask again when it answers"
        raise ClusterError(f"{context}: {text}; {remedy}") from error


def connect(context: str | None, namespace: str | None) -> Cluster:
    """The cluster of a context, the current one without a name; the namespace of the context
    unless one is named. In a pod without a kubeconfig it is the pod's own cluster.

    Raises ``ClusterError`` where there is no kubeconfig, or no such context in it.
    """
    named = os.environ.get("KUBECONFIG") or None
    # pathlib raises where a user has no home, as in a pod under any user id.
    kubeconfig = named or os.path.expanduser("~/.kube/config")
    in_pod = bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
    if context is None and in_pod and named is None and not Path(kubeconfig).exists():
        own = _OWN_NAMESPACE.read_text().strip() if _OWN_NAMESPACE.exists() else "default"
        return Cluster(in_cluster(), namespace or own, "the cluster of this pod")
    known, current = _contexts(kubeconfig)
    name = context if context is not None else current
    if not name:
        raise ClusterError(
            "the kubeconfig has no current context: name one with --context; it has "
            f"{', '.join(sorted(known)) or 'none'}"
        )
    if name not in known:
        raise ClusterError(
            f"--context {name}: the kubeconfig has no context of that name; it has "
            f"{', '.join(sorted(known)) or 'none'}"
        )
    chosen = namespace or known[name].get("namespace") or "default"
    return Cluster(by_kubeconfig(name, kubeconfig), chosen, f"context {name}")


def _contexts(kubeconfig: str) -> tuple[Mapping[str, Mapping[str, Any]], str | None]:
    """The contexts of a kubeconfig by name, and the current one of them: the package's own list
    needs that even where another one is asked for. Raises ``ClusterError``."""
    try:
        found = cast("Any", KubeConfigMerger)(kubeconfig).config
        if found is None:
            raise ConfigException("there is none")
        contexts = [one.value for one in found["contexts"]]
        known = {one["name"]: dict(one.get("context") or {}) for one in contexts}
        return known, found.safe_get("current-context")
    except UNUSABLE as error:
        said = " ".join(str(error).split())
        raise ClusterError(
            f"no kubeconfig that can be used ({said}): set KUBECONFIG, or make ~/.kube/config, "
            "so that kubectl works, and ask again; a topology on this machine takes neither "
            "--namespace nor --context"
        ) from error
