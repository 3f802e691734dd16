"""The cluster of this machine: two nodes and a control plane, up in seconds and gone without trace.

``up`` brings up whatever does not run, so it may be repeated at any time, also behind an ``up``
that was interrupted. ``down`` removes what it finds by the names of ``layout``. Each holds the
machine's lock: of two at once one waits, and finds the work done.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from millrace_e2e.cluster import (
    binaries,
    certificates,
    control_plane,
    images,
    network,
    nodes,
    packages,
)
from millrace_e2e.cluster.errors import ClusterError
from millrace_e2e.cluster.layout import (
    CONTROL_NAMESPACE,
    LOCK,
    MAX_NODES,
    RUN,
    Layout,
    Node,
)
from millrace_e2e.cluster.locks import locked
from millrace_e2e.cluster.processes import Processes, end, members_of, run

_API_S = 180.0
_READY_S = 180.0

Say = Callable[[str], None]


class OwnCluster:
    """One cluster of the machine's own, whoever has started it. Safe between processes."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._find()

    def _find(self) -> None:
        self.layout = Layout.standard()
        self._processes = Processes(self.layout)

    # -- up and down

    @staticmethod
    def is_up() -> bool:
        """Whether there is one, or what an interrupted ``up`` has left of one."""
        return RUN.exists()

    def up(self, count: int) -> None:
        """Bring up the control plane and ``count`` nodes and wait until they serve."""
        if not 1 <= count <= MAX_NODES:
            raise ClusterError(f"nodes: {count} is not between 1 and {MAX_NODES}")
        _check_root()
        # Nothing is installed on a machine that cannot have one.
        nodes.check_machine(self.layout)
        packages.install(self._say)
        programs = binaries.programs(self._say)
        with self._locked():
            began = time.monotonic()
            self.layout.home.mkdir(parents=True, exist_ok=True)
            self.layout.note()
            wanted = self.layout.nodes()[:count]
            certificates.make(self.layout, wanted)
            network.make(self._alive())
            self._end_strays()
            control_plane.start(control_plane.SERVERS, self.layout, programs, self._processes)
            self._wait("the control plane", self._api_lacks, _API_S)
            control_plane.start(control_plane.CLIENTS, self.layout, programs, self._processes)
            for node in wanted:
                self._start(node, programs)
            pause = images.single(programs["pause"], nodes.PAUSE_IMAGE, self.layout.home)
            for node in wanted:
                self._load(node, pause)
            self._wait("the cluster", lambda: self._cluster_lacks(wanted), _READY_S)
            self._say(f"{count} nodes are ready after {time.monotonic() - began:.1f} s")

    def down(self) -> None:
        """End every process and delete everything but the cache of programs and images."""
        if not self.is_up() and not self.layout.home.exists():
            return
        _check_root()
        with self._locked():
            self._remove()

    def remove_dead(self) -> bool:
        """Remove one of which no process runs any more, as a machine leaves it that was switched
        off; whether none is there now."""
        if not self.is_up():
            return True
        _check_root()
        with self._locked():
            written_down = self._processes.all().values()
            if members_of(CONTROL_NAMESPACE) or any(one.runs for one in written_down):
                return False
            self._remove()
        return True

    def _remove(self) -> None:
        everyone = self.layout.nodes()
        for node in everyone:
            nodes.cut_power(node, self._processes)
        self._processes.end(self._processes.all())
        self._end_strays()
        network.remove(everyone)
        for node in everyone:
            nodes.clean(node)
        shutil.rmtree(self.layout.home, ignore_errors=True)
        if self.layout.home.exists():
            raise ClusterError(f"{self.layout.home} cannot be deleted")
        shutil.rmtree(RUN, ignore_errors=True)
        LOCK.unlink()

    # -- nodes

    def nodes(self) -> dict[str, bool]:
        """Nodes that were started, and whether each is ready."""
        ready = self._ready_nodes()
        return {node.name: node.name in ready for node in self._known()}

    def kill_node(self, name: str) -> None:
        """Cut the power of a node."""
        with self._locked():
            nodes.cut_power(self._node(name), self._processes)

    def start_node(self, name: str) -> None:
        """Start a node again whose power was cut; returns without waiting until it is ready."""
        with self._locked():
            self._start(self._node(name), binaries.programs(self._say))

    def load(self, archive: Path) -> None:
        """Give every node that runs the images of a docker archive."""
        with self._locked():
            for node in self._alive():
                self._load(node, archive)

    def inside(self, node: Node, command: Sequence[str]) -> str:
        """Output of a command that runs in a node."""
        started = self._processes.running(node.name)
        first = started.child() if started is not None else None
        if first is None:
            raise ClusterError(f"node {node.name} does not run")
        enter = ["nsenter", f"--target={first.pid}", "--mount", "--pid", "--net"]
        return run(*enter, *command)

    def _start(self, node: Node, programs: Mapping[str, Path]) -> None:
        if self._processes.running(node.name) is not None:
            return
        # What a node that has died by itself left in its network goes with the namespace.
        nodes.cut_power(node, self._processes)
        network.make([*self._alive(), node])
        nodes.start(self.layout, node, programs, self._processes)

    def _load(self, node: Node, archive: Path) -> None:
        """A node that has these very images already is left alone."""
        names, content = images.tags(archive), images.digest(archive)
        note = node.folder / "images.json"
        loaded = json.loads(note.read_bytes()) if note.exists() else {}
        ctr = ["ctr", "--address", str(node.socket), "--namespace", "k8s.io", "images"]
        present = self.inside(node, [*ctr, "list", "--quiet"]).split()
        if all(loaded.get(name) == content and name in present for name in names):
            return
        self.inside(node, [*ctr, "import", "--all-platforms", str(archive)])
        note.write_text(json.dumps({**loaded, **dict.fromkeys(names, content)}))

    def _end_strays(self) -> None:
        """What an ``up`` that was broken off has started and not written down holds its port."""
        known = self._processes.all().values()
        end(one for one in members_of(CONTROL_NAMESPACE) if one not in known)

    def _known(self) -> list[Node]:
        return [node for node in self.layout.nodes() if node.folder.exists()]

    def _alive(self) -> list[Node]:
        return [one for one in self.layout.nodes() if self._processes.running(one.name)]

    def _node(self, name: str) -> Node:
        for node in self._known():
            if node.name == name:
                return node
        known = ", ".join(node.name for node in self._known()) or "none"
        raise ClusterError(f"no node is called {name!r}; there are: {known}")

    # -- questions

    @property
    def kubeconfig(self) -> Path:
        return self.layout.kubeconfig

    def kubectl(self) -> Path:
        """The program."""
        return binaries.programs(self._say)["kubectl"]

    def _ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.kubectl()), f"--kubeconfig={self.kubeconfig}", "--request-timeout=10s"]
        return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)

    def _ready_nodes(self) -> set[str]:
        """Names of the nodes that the API server calls ready; none while it does not answer."""
        done = self._ask("get", "nodes", "-o", "json")
        return ready_nodes(json.loads(done.stdout)) if done.returncode == 0 else set()

    def _api_lacks(self) -> str | None:
        for name in control_plane.SERVERS:
            if self._processes.running(name) is None:
                raise ClusterError(f"{name} has ended:\n{self._processes.last_words(name)}")
        if self._ask("get", "--raw", "/readyz").returncode == 0:
            return None
        words = self._processes.last_words("apiserver")
        return f"the API server at {certificates.API_URL} does not answer:\n{words}"

    def _cluster_lacks(self, wanted: Sequence[Node]) -> str | None:
        """The first thing that a pod could miss; None when all is there."""
        for name in (*control_plane.SERVERS, *control_plane.CLIENTS, *(n.name for n in wanted)):
            if self._processes.running(name) is None:
                raise ClusterError(f"{name} has ended:\n{self._processes.last_words(name)}")
        ready = self._ready_nodes()
        for node in wanted:
            if node.name not in ready:
                words = self._processes.last_words(f"{node.name}-kubelet")
                return f"node {node.name} is not ready; its kubelet says:\n{words}"
            if not _answers(f"http://{node.address}:10256/healthz"):
                words = self._processes.last_words(f"{node.name}-proxy")
                return f"node {node.name} has no rules of services; its kube-proxy says:\n{words}"
        if not _answers(control_plane.DNS_READY):
            return f"the DNS is not ready; it says:\n{self._processes.last_words('dns')}"
        if self._ask("get", "serviceaccount", "default").returncode != 0:
            words = self._processes.last_words("controllers")
            return f"there is no default service account; the controllers say:\n{words}"
        return None

    def _wait(self, what: str, lacks: Callable[[], str | None], patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        while (lack := lacks()) is not None:
            if time.monotonic() > deadline:
                raise ClusterError(f"{what} is not ready after {patience_s:.0f} s: {lack}")
            time.sleep(0.2)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Whoever held the lock before may have brought up, or taken down, another cluster."""
        with locked(LOCK):
            self._find()
            yield


def ready_nodes(listing: Mapping[str, list[dict[str, dict[str, object]]]]) -> set[str]:
    """Names of the nodes of a ``NodeList`` whose condition ``Ready`` is true."""
    return {str(item["metadata"]["name"]) for item in listing["items"] if _is_ready(item["status"])}


def _is_ready(status: Mapping[str, object]) -> bool:
    conditions = status.get("conditions", [])
    assert isinstance(conditions, list)
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _answers(url: str) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=5) as response:
            return bool(response.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def _check_root() -> None:
    if os.geteuid() != 0:
        lacking = packages.missing()
        also = f"; it also needs these packages: {', '.join(lacking)}" if lacking else ""
        raise ClusterError(f"a cluster of this machine's own is started and ended as root{also}")
