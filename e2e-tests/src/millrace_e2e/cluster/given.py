"""The cluster of the current kubeconfig, which is somebody's: it is used and never changed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from millrace_e2e.cluster.errors import ClusterError
from millrace_e2e.cluster.own import ready_nodes
from millrace_e2e.cluster.processes import run


class GivenCluster:
    """What ``kubectl`` on the PATH talks to."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def up(self, count: int) -> None:
        """See that it answers and has ``count`` nodes that are ready."""
        ready = [name for name, is_ready in self.nodes().items() if is_ready]
        if len(ready) < count:
            raise ClusterError(
                f"the cluster of the current kubeconfig has {len(ready)} nodes that are ready, "
                f"fewer than {count}; add some, or ask for fewer (NODES={max(1, len(ready))})"
            )
        self._say(f"{self.kubeconfig}: nodes {', '.join(sorted(ready))} are ready")

    def down(self) -> None:
        self._say("the cluster of the current kubeconfig is left as it is")

    def nodes(self) -> dict[str, bool]:
        if shutil.which("kubectl") is None:
            raise ClusterError(
                "the cluster of the current kubeconfig is asked by kubectl; install it"
            )
        listing = json.loads(run("kubectl", "get", "nodes", "--request-timeout=10s", "-o", "json"))
        ready = ready_nodes(listing)
        names = sorted(item["metadata"]["name"] for item in listing["items"])
        return {name: name in ready for name in names}

    def load(self, archive: Path) -> None:
        raise ClusterError(
            "images come to the cluster of the current kubeconfig through a registry: push them"
        )

    def kill_node(self, name: str) -> None:
        raise ClusterError(f"node {name} is somebody's: its power is not ours to cut")

    def start_node(self, name: str) -> None:
        raise ClusterError(f"node {name} is somebody's: its power is not ours to switch on")

    @property
    def kubeconfig(self) -> Path:
        first = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
        return Path(first) if first else Path.home() / ".kube" / "config"
