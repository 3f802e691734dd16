"""The cluster's network: a bridge, a namespace for the control plane and one for each node.

Everything of it has a name of its own, and nothing of the machine's network is changed. Packets are
forwarded inside the namespaces only, which have no default route: pods reach each other, services
and the control plane, and whatever lies elsewhere is unreachable at once.

A namespace is complete when its leg hangs on the bridge, the last step: one that was interrupted on
its way is made anew.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable
from pathlib import Path

from millrace_e2e.cluster.errors import ClusterError
from millrace_e2e.cluster.layout import (
    BRIDGE,
    CONTROL_NAMESPACE,
    CONTROL_PLANE,
    GATEWAY,
    NODE_NETWORK,
    SERVICE_NETWORK,
    Node,
    namespace_file,
)
from millrace_e2e.cluster.processes import in_network, run

_LINKS = Path("/sys/class/net")


def make(nodes: Iterable[Node]) -> None:
    """Bring up what is missing of the bridge, the namespaces and the routes between them."""
    if not (_LINKS / BRIDGE).exists():
        _check_free(json.loads(run("ip", "-json", "route")))
        run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "address", "replace", f"{GATEWAY}/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    wanted = list(nodes)
    _join(CONTROL_NAMESPACE, CONTROL_PLANE)
    for node in wanted:
        _join(node.namespace, node.address)
    for here in (CONTROL_NAMESPACE, *(node.namespace for node in wanted)):
        for node in wanted:
            if node.namespace != here:
                route = ("route", "replace", node.pods, "via", node.address)
                run(*in_network(here), "ip", *route)


def unplug(namespace: str) -> None:
    """Nothing comes out of a namespace any more, as if its cable were cut."""
    if (_LINKS / namespace).exists():
        run("ip", "link", "set", namespace, "down")


def leave(namespace: str) -> None:
    """Delete a namespace and its leg."""
    if (_LINKS / namespace).exists():
        run("ip", "link", "delete", namespace)
    file = namespace_file(namespace)
    while _holds_namespace(file):
        run("umount", "--lazy", str(file))
    file.unlink(missing_ok=True)


def remove(nodes: Iterable[Node]) -> None:
    """Delete the namespaces and the bridge."""
    for namespace in (*(node.namespace for node in nodes), CONTROL_NAMESPACE):
        leave(namespace)
    if (_LINKS / BRIDGE).exists():
        run("ip", "link", "delete", BRIDGE)


def _join(namespace: str, address: str) -> None:
    if (_LINKS / namespace / "master").exists():
        return
    leave(namespace)
    file = namespace_file(namespace)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    run("unshare", f"--net={file}", "true")
    peer = ("peer", "name", "eth0", "netns", str(file))
    run("ip", "link", "add", namespace, "type", "veth", *peer)
    inside = in_network(namespace)
    run(*inside, "ip", "link", "set", "lo", "up")
    run(*inside, "ip", "address", "add", f"{address}/24", "dev", "eth0")
    run(*inside, "ip", "link", "set", "eth0", "up")
    # Where a connection to a service goes is decided behind the routes: it must have one.
    run(*inside, "ip", "route", "add", SERVICE_NETWORK, "via", GATEWAY)
    run(*inside, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
    run("ip", "link", "set", namespace, "master", BRIDGE, "up")


def _holds_namespace(file: Path) -> bool:
    try:
        return file.stat().st_dev != file.parent.stat().st_dev
    except FileNotFoundError:
        return False


def _check_free(routes: Iterable[dict[str, str]]) -> None:
    """No route of the machine may lead where the bridge's network will be."""
    mine = ipaddress.ip_network(NODE_NETWORK)
    for route in routes:
        if route["dst"] == "default":
            continue
        if ipaddress.ip_network(route["dst"], strict=False).overlaps(mine):
            raise ClusterError(
                f"the machine already has a route to {route['dst']} ({route.get('dev')}), where "
                f"the cluster's network {NODE_NETWORK} would be; take that one away first"
            )
