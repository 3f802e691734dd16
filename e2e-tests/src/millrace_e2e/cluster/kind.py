"""A cluster of containers that ``kind`` makes, where Docker is there."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from millrace_e2e.cluster.errors import ClusterError
from millrace_e2e.cluster.layout import cache_folder
from millrace_e2e.cluster.processes import run

NAME = "millrace"
_ADMIN = "/etc/kubernetes/admin.conf"
_READY_S = 60


def docker_answers() -> bool:
    """Whether there is a Docker whose daemon runs, not just its command."""
    if shutil.which("docker") is None:
        return False
    command = ["docker", "version", "--format", "{{.Server.Version}}"]
    done = subprocess.run(command, capture_output=True, check=False)
    return done.returncode == 0


def kind_is_there() -> bool:
    return shutil.which("kind") is not None


class KindCluster:
    """The cluster ``millrace`` of kind: a control plane and workers, each a container."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    @staticmethod
    def is_ours() -> bool:
        """Whether one was made here and not taken down, whatever has become of it."""
        return _settings().exists()

    def up(self, count: int) -> None:
        """Make it with ``count`` workers and wait until they are ready. One that is there stays if
        it has as many and all are ready, and is made anew otherwise. Raises ``ClusterError``, also
        where somebody else's has its name."""
        there = self._is_there()
        self.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        if there and not self.is_ours():
            raise ClusterError(
                f"kind has a cluster {NAME} that was not made here; use it (CLUSTER=current) or "
                f"delete it (kind delete cluster --name {NAME})"
            )
        if there and self._is_whole(count):
            run("kind", "export", "kubeconfig", *self._which())
            return
        if there:
            self._say(f"the cluster {NAME} of kind is half made or of another size: it goes")
            run("kind", "delete", "cluster", *self._which())
        _settings().write_text(configuration(count))
        self._say(f"kind makes the cluster {NAME}")
        run("kind", "create", "cluster", *self._which(), f"--config={_settings()}", "--wait=180s")

    def down(self) -> None:
        """Delete it, if it was made here. Raises ``ClusterError`` where that cannot be done now."""
        if not self.is_ours():
            return
        if self._is_there():
            run("kind", "delete", "cluster", *self._which())
        self.kubeconfig.unlink(missing_ok=True)
        _settings().unlink()

    @staticmethod
    def _is_there() -> bool:
        if not kind_is_there() or not docker_answers():
            raise ClusterError("a cluster of kind needs the program kind and a Docker that answers")
        return NAME in run("kind", "get", "clusters").split()

    def _is_whole(self, count: int) -> bool:
        """Whether all nodes that are asked for run and are ready, and no others are there."""
        states = self.nodes()
        if len(states) != 1 + count or not all(states.values()):
            return False
        ask = ("docker", "exec", f"{NAME}-control-plane", "kubectl", f"--kubeconfig={_ADMIN}")
        try:
            joined = run(*ask, "get", "nodes", "--output=name").split()
            run(*ask, "wait", "--for=condition=Ready", "nodes", "--all", f"--timeout={_READY_S}s")
        except ClusterError:
            return False
        return len(joined) == len(states)

    def nodes(self) -> dict[str, bool]:
        """Nodes, and whether the container of each runs."""
        names = run("kind", "get", "nodes", f"--name={NAME}").split()
        state = ("docker", "inspect", "--format={{.State.Running}}")
        return {name: run(*state, name).strip() == "true" for name in sorted(names)}

    def load(self, archive: Path) -> None:
        run("kind", "load", "image-archive", str(archive), f"--name={NAME}")

    def kill_node(self, name: str) -> None:
        """Cut the power of a node: SIGKILL for the first process of its container."""
        run("docker", "kill", self._node(name))

    def start_node(self, name: str) -> None:
        run("docker", "start", self._node(name))

    @property
    def kubeconfig(self) -> Path:
        return cache_folder() / "kind.kubeconfig"

    def _which(self) -> tuple[str, str]:
        return (f"--name={NAME}", f"--kubeconfig={self.kubeconfig}")

    def _node(self, name: str) -> str:
        known = self.nodes()
        if name not in known:
            raise ClusterError(f"no node is called {name!r}; there are: {', '.join(known)}")
        return name


def _settings() -> Path:
    """Written before it is made, deleted behind its end: it is ours while this is there."""
    return cache_folder() / "kind.yaml"


def configuration(count: int) -> str:
    """Settings of kind for a cluster with ``count`` workers."""
    roles = ["control-plane", *["worker"] * count]
    nodes = "".join(f"  - role: {role}\n" for role in roles)
    return f"kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nnodes:\n{nodes}"
