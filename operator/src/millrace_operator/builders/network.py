"""How pods find and reach each other: headless services, disruption budgets, network policies."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.homes.pods import (
    HEALTH_PORT,
    RESIDENT_PORT,
    SPARK_BLOCKS_PORT,
    SPARK_DRIVER_PORT,
    STATE_PORT,
)
from millrace.topology.model import StreamTopology
from millrace_operator.builders.naming import Manifest, Owner

_NAMESPACE = "kubernetes.io/metadata.name"


def services(owner: Owner, topology: StreamTopology) -> list[Manifest]:
    """Names for state servers and for the driver; executors reach a driver that is not ready."""
    ports = [("spark", SPARK_DRIVER_PORT), ("blocks", SPARK_BLOCKS_PORT), ("tasks", RESIDENT_PORT)]
    made = [_service(owner, "driver", "driver", ports)]
    if topology.spec.state_servers.url is None:
        made.append(_service(owner, "state", "state-server", [("state", STATE_PORT)]))
    return made


def budgets(
    owner: Owner, topology: StreamTopology, ackers: int, copied: bool = True, servers: int = 0
) -> list[Manifest]:
    """One pod of a kind at a time, and no state server that holds the only copy.

    ``copied``: all state servers hold their copies. A pod that is ready may hold none yet, and
    while that is so none may go. Of bare pods Kubernetes counts only those that must stay, so that
    all ``servers`` that there are count: more than are asked for, until some of them have left.
    An acker that is not ready holds nothing, and may go whatever becomes of the others; a state
    server that is not may hold what no other does.
    """
    state = topology.spec.state_servers
    spare = 1 if state.copies > 1 and copied else 0
    made = []
    if state.url is None:
        made.append(_budget(owner, "state", "state-server", max(state.replicas, servers) - spare))
    if ackers > 1:
        made.append(_budget(owner, "acker", "acker", ackers - 1, unready="AlwaysAllow"))
    return made


def policies(
    owner: Owner,
    operator_namespace: str,
    metrics_from: Sequence[str] | None = None,
    *,
    state_servers: bool = True,
) -> list[Manifest]:
    """Who may begin to speak to whom; answers, what pods ask of others (a state server of the
    user's own too), and the probes of their own nodes are not held up. ``metrics_from`` as in
    ``OperatorSettings``; ``state_servers``: there are such pods."""
    crew = [_peer(owner, one) for one in ("driver", "executor", "acker")]
    operator = _space(operator_namespace)
    metrics = _asking(metrics_from)
    executor = [_peer(owner, "executor")]
    driver_ports = [SPARK_DRIVER_PORT, SPARK_BLOCKS_PORT, RESIDENT_PORT]
    servers = [(crew, [STATE_PORT]), ([operator], [HEALTH_PORT])]
    return [
        *([_policy(owner, "state", "state-server", servers)] if state_servers else []),
        _policy(owner, "driver", "driver", [(executor, driver_ports), *metrics]),
        _policy(owner, "acker", "acker", metrics),
        _policy(
            owner,
            "executor",
            "executor",
            [([_peer(owner, "driver"), *executor], [SPARK_BLOCKS_PORT])],
        ),
    ]


def _service(
    owner: Owner, suffix: str, component: str, ports: Sequence[tuple[str, int]]
) -> Manifest:
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": owner.selector(component),
        "ports": [{"name": name, "port": port, "targetPort": port} for name, port in ports],
    }
    return owner.manifest("v1", "Service", owner.child(suffix), component, {"spec": spec})


def _budget(
    owner: Owner, suffix: str, component: str, least: int, unready: str = "IfHealthyBudget"
) -> Manifest:
    spec = {
        "minAvailable": least,
        "selector": {"matchLabels": owner.selector(component)},
        "unhealthyPodEvictionPolicy": unready,
    }
    name = owner.child(suffix)
    return owner.manifest("policy/v1", "PodDisruptionBudget", name, component, {"spec": spec})


def _peer(owner: Owner, component: str) -> Manifest:
    return {"podSelector": {"matchLabels": owner.selector(component)}}


def _space(name: str) -> Manifest:
    return {"namespaceSelector": {"matchLabels": {_NAMESPACE: name}}}


def _asking(namespaces: Sequence[str] | None) -> list[tuple[list[Manifest], list[int]]]:
    """Who may ask for metrics."""
    if namespaces is None:
        return []
    spaces = [_space(name) for name in namespaces]
    return [(spaces or [{"namespaceSelector": {}}], [HEALTH_PORT])]


def _policy(
    owner: Owner,
    suffix: str,
    component: str,
    allowed: Sequence[tuple[Sequence[Manifest], Sequence[int]]],
) -> Manifest:
    ingress = []
    for peers, ports in allowed:
        listed = [{"protocol": "TCP", "port": port} for port in ports]
        ingress.append({"from": list(peers), "ports": listed})
    spec = {
        "podSelector": {"matchLabels": owner.selector(component)},
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    }
    version, kind = "networking.k8s.io/v1", "NetworkPolicy"
    return owner.manifest(version, kind, owner.child(suffix), component, {"spec": spec})
