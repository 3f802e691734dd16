"""Where the API server keeps objects of each kind that the operator knows."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from millrace.topology.model import KIND
from millrace_operator.api.resources import GROUP, SNAPSHOTS, TOPOLOGIES, VERSION, TopologySnapshot

_RBAC = "/apis/rbac.authorization.k8s.io/v1"

SNAPSHOT = TopologySnapshot.__name__

_PLACES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        KIND: (f"/apis/{GROUP}/{VERSION}", TOPOLOGIES),
        SNAPSHOT: (f"/apis/{GROUP}/{VERSION}", SNAPSHOTS),
        "ConfigMap": ("/api/v1", "configmaps"),
        "Event": ("/api/v1", "events"),
        "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
        "Node": ("/api/v1", "nodes"),
        "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
        "Pod": ("/api/v1", "pods"),
        "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets"),
        "Role": (_RBAC, "roles"),
        "RoleBinding": (_RBAC, "rolebindings"),
        "Secret": ("/api/v1", "secrets"),
        "Service": ("/api/v1", "services"),
        "ServiceAccount": ("/api/v1", "serviceaccounts"),
    }
)

LISTED = (
    *("ServiceAccount", "Role", "RoleBinding"),
    *("Service", "PodDisruptionBudget", "NetworkPolicy", "ConfigMap"),
)
"""Kinds of children that are listed, beside pods, in this order. Secrets are asked for by name:
nothing follows from others, and the operator then needs no right to list them."""


def collection(kind: str, namespace: str | None) -> str:
    """Path of all objects of a kind in a namespace, or in all of them."""
    group, plural = _PLACES[kind]
    return f"{group}/{plural}" if namespace is None else f"{group}/namespaces/{namespace}/{plural}"


def one(kind: str, namespace: str, name: str) -> str:
    """Path of one object."""
    return f"{collection(kind, namespace)}/{name}"


def node(name: str) -> str:
    """Path of a node, which is in no namespace."""
    return f"{collection('Node', None)}/{name}"
