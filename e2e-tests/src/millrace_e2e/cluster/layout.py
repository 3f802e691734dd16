"""Where everything of a cluster lies and what it is called: addresses, folders, files.

::

    bridge millrace0        10.250.0.1/24
      namespace millrace-cp 10.250.0.2     etcd, API server, controllers, scheduler, DNS
      namespace millrace-n1 10.250.0.11    containerd, kubelet, kube-proxy; pods 10.244.1.0/24
      namespace millrace-n2 10.250.0.12    ...                              pods 10.244.2.0/24

Names and addresses are the machine's, so there is one cluster on a machine. Where its files are is
written down in ``RUN``, which a restart of the machine empties as it ends the processes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

BRIDGE = "millrace0"
GATEWAY = "10.250.0.1"
CONTROL_PLANE = "10.250.0.2"
CONTROL_NAMESPACE = "millrace-cp"
NODE_NETWORK = "10.250.0.0/24"
POD_NETWORK = "10.244.0.0/16"
SERVICE_NETWORK = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
DOMAIN = "cluster.local"
MAX_NODES = 9

RUN = Path("/run/millrace-cluster")
LOCK = Path("/run/millrace-cluster.lock")
HIDDEN = (Path("/run"), Path("/var/lib"), Path("/var/log"))
"""Folders that every node has of its own, empty at its start."""


def cache_folder() -> Path:
    """Where programs and images are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "millrace" / "cluster"


def namespace_file(namespace: str) -> Path:
    """What holds a network namespace."""
    return RUN / "net" / namespace


@dataclass(frozen=True, slots=True)
class Node:
    """One node by its number, from 1."""

    number: int
    home: Path

    @property
    def name(self) -> str:
        return f"n{self.number}"

    @property
    def namespace(self) -> str:
        """Its network namespace; its leg on the bridge and its cgroup have the same name."""
        return f"millrace-{self.name}"

    @property
    def address(self) -> str:
        return f"10.250.0.{10 + self.number}"

    @property
    def pods(self) -> str:
        return f"10.244.{self.number}.0/24"

    @property
    def folder(self) -> Path:
        """Its disk."""
        return self.home / "nodes" / self.name

    @property
    def socket(self) -> Path:
        """Containerd's, as the node sees it; its ``/run`` is its own."""
        return Path("/run/millrace/containerd.sock")


@dataclass(frozen=True, slots=True)
class Layout:
    """Files of one cluster below ``home``."""

    home: Path

    @classmethod
    def standard(cls) -> Layout:
        """Of the cluster that this machine has, else of the one that would be brought up."""
        try:
            return cls(Path((RUN / "home").read_text()))
        except FileNotFoundError:
            return cls(cache_folder() / "running")

    def note(self) -> None:
        """Write down that the machine's cluster lies here."""
        RUN.mkdir(exist_ok=True)
        draft = RUN / "home.draft"
        draft.write_text(str(self.home))
        os.replace(draft, RUN / "home")

    @property
    def pki(self) -> Path:
        return self.home / "pki"

    @property
    def logs(self) -> Path:
        return self.home / "log"

    @property
    def processes(self) -> Path:
        return self.home / "processes.json"

    @property
    def kubeconfig(self) -> Path:
        return self.home / "kubeconfig"

    @property
    def etcd(self) -> Path:
        return self.home / "etcd"

    def node(self, number: int) -> Node:
        return Node(number, self.home)

    def nodes(self) -> list[Node]:
        """All that there may be."""
        return [self.node(number) for number in range(1, MAX_NODES + 1)]
