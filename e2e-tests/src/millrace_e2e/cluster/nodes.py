"""A node: containerd, kubelet and kube-proxy in namespaces of their own, under one PID 1.

Killing that PID 1 is a power cut: every process of the node, its containers among them, dies at
once, and its mounts vanish with the mount namespace. ``cut_power`` pulls the cable before, so that
no peer is told that a connection has ended. What is on its disk (images, containers, volumes) is
still there when it is started again.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from millrace_e2e.cluster import network
from millrace_e2e.cluster.errors import ClusterError
from millrace_e2e.cluster.layout import CONTROL_PLANE, DOMAIN, HIDDEN, POD_NETWORK, Layout, Node
from millrace_e2e.cluster.processes import Processes, end, members_of

PAUSE_IMAGE = "millrace.local/pause:1"
_HIERARCHIES = Path("/sys/fs/cgroup")
_CNI_PROGRAMS = "/usr/lib/cni"
_SOCKET_S = 60.0
_KUBELETS_OWN = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""Settings that a kubelet makes for the whole machine, unless it finds them made."""

_SHARES = 8 * 1024
"""Of the processors: each process of the machine outside counts 1024 by itself, and all pods of a
node this much together."""


def check_machine(layout: Layout) -> None:
    """Raises ``ClusterError`` where nodes cannot be started."""
    if (_HIERARCHIES / "cgroup.controllers").exists():
        raise ClusterError(
            "this machine has control groups of version 2 alone, for which this cluster is not "
            "made; use kind (make cluster-up CLUSTER=kind) or a cluster of yours (CLUSTER=current)"
        )
    for folder in HIDDEN:
        if layout.home.resolve().is_relative_to(folder):
            raise ClusterError(
                f"{layout.home} lies below {folder}, of which every node has its own; "
                "set XDG_CACHE_HOME to another folder"
            )
    if not Path("/proc/sys/net/bridge").exists():
        raise ClusterError(
            "packets between pods of one node would not meet the rules of services; "
            "load the kernel's module br_netfilter (modprobe br_netfilter)"
        )


def start(layout: Layout, node: Node, programs: Mapping[str, Path], processes: Processes) -> None:
    """Write a node's settings and start it. It does not run, and its network has been made."""
    _make_cgroups(node)
    for folder in (node.folder / "cni", node.folder / "kubelet"):
        folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "cni/10-millrace.conflist": json.dumps(cni(node), indent=1),
        "containerd.toml": containerd(node),
        "kubelet.json": json.dumps(kubelet(layout, node), indent=1),
        "resolv.conf": f"nameserver {CONTROL_PLANE}\n",
        "init.sh": init(layout, node, programs),
    }
    for name, text in texts.items():
        (node.folder / name).write_text(text)
    unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command = [*unshare, "bash", str(node.folder / "init.sh")]
    started = processes.start(node.name, node.namespace, command)
    deadline = time.monotonic() + _SOCKET_S
    while True:
        first = started.child()
        if first is not None and Path(f"/proc/{first.pid}/root{node.socket}").exists():
            return
        if not started.runs or time.monotonic() > deadline:
            words = processes.last_words(node.name) + processes.last_words(
                f"{node.name}-containerd"
            )
            raise ClusterError(f"containerd of node {node.name} does not start:\n{words}")
        time.sleep(0.05)


def cut_power(node: Node, processes: Processes) -> None:
    """End everything that runs on a node at once, as a power cut would."""
    network.unplug(node.namespace)
    started = processes.running(node.name)
    if started is not None:
        first = started.child()
        if first is not None:
            first.kill()
    processes.end([node.name])
    # Also what was started and not written down.
    end(members_of(node.namespace))
    network.leave(node.namespace)


def clean(node: Node) -> None:
    """Delete what a node that is down has left: its disk and its cgroups."""
    shutil.rmtree(node.folder, ignore_errors=True)
    if node.folder.exists():
        raise ClusterError(f"{node.folder} of node {node.name} cannot be deleted")
    for hierarchy in _hierarchies():
        _remove_cgroup(hierarchy / node.namespace)


# --- cgroups


def _hierarchies() -> list[Path]:
    """Those that this machine has, each once."""
    if not _HIERARCHIES.is_dir():
        return []
    return sorted({path.resolve() for path in _HIERARCHIES.iterdir() if path.is_dir()})


def _make_cgroups(node: Node) -> None:
    for hierarchy in _hierarchies():
        mine = hierarchy / node.namespace
        mine.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            if (mine / name).exists():
                (mine / name).write_text((hierarchy / name).read_text())
        if (mine / "cpu.shares").exists():
            (mine / "cpu.shares").write_text(str(_SHARES))


def _remove_cgroup(top: Path) -> None:
    """Deepest first; a cgroup whose last process is just ending is busy for a moment."""
    deadline = time.monotonic() + 10
    while top.exists():
        for folder, _, _ in os.walk(top, topdown=False):
            try:
                os.rmdir(folder)
            except OSError as error:
                if time.monotonic() > deadline:
                    raise ClusterError(f"cgroup {folder} cannot be removed: {error}") from None
        time.sleep(0.02)


# --- documents


def cni(node: Node) -> Mapping[str, object]:
    """How a pod gets an address: on a bridge of its node, from the node's range."""
    addresses = {
        "type": "host-local",
        "dataDir": str(node.folder / "addresses"),
        "ranges": [[{"subnet": node.pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": "pods0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": addresses,
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "millrace", "plugins": [bridge, ports]}


def containerd(node: Node) -> str:
    """Settings of a node's containerd; paths below ``/run`` are the node's own."""
    return f"""\
version = 2
root = "{node.folder}/containerd"
state = "{node.socket.parent}/containerd"
[grpc]
  address = "{node.socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # Without CAP_SYS_RESOURCE no score may be lowered, and every sandbox would fail.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{_CNI_PROGRAMS}"
    conf_dir = "{node.folder}/cni"
[plugins."io.containerd.internal.v1.opt"]
  path = "{node.folder}/opt"
"""


def kubelet(layout: Layout, node: Node) -> Mapping[str, object]:
    """A ``KubeletConfiguration``."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{layout.pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{layout.pki}/{node.name}.crt",
        "tlsPrivateKeyFile": f"{layout.pki}/{node.name}.key",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.namespace}",
        "cgroupsPerQOS": True,
        "failCgroupV1": False,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "clusterDNS": [CONTROL_PLANE],
        "clusterDomain": DOMAIN,
        # Search domains of the machine are none of the pods'.
        "resolvConf": f"{node.folder}/resolv.conf",
        "containerRuntimeEndpoint": f"unix://{node.socket}",
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
        },
        # There is no registry to bring an image back from.
        "imageGCHighThresholdPercent": 100,
        "syncFrequency": "10s",
        # The root device of a mount namespace cannot be found.
        "localStorageCapacityIsolation": False,
        "podLogsDir": f"{node.folder}/pod-logs",
        "volumePluginDir": f"{node.folder}/volume-plugins",
        "nodeStatusUpdateFrequency": "4s",
    }


def init(layout: Layout, node: Node, programs: Mapping[str, Path]) -> str:
    """What PID 1 of a node runs. A kubelet that starts before containerd answers would end."""
    commands = {
        "containerd": ["containerd", "-c", f"{node.folder}/containerd.toml"],
        "proxy": [
            str(programs["kube-proxy"]),
            f"--kubeconfig={layout.pki}/proxy.kubeconfig",
            f"--hostname-override={node.name}",
            "--proxy-mode=iptables",
            "--conntrack-max-per-core=0",
            f"--cluster-cidr={POD_NETWORK}",
        ],
        "kubelet": [
            str(programs["kubelet"]),
            f"--config={node.folder}/kubelet.json",
            f"--kubeconfig={layout.pki}/{node.name}.kubeconfig",
            f"--hostname-override={node.name}",
            f"--node-ip={node.address}",
            f"--root-dir={node.folder}/kubelet",
            f"--cert-dir={node.folder}/kubelet/pki",
        ],
    }
    keep = {
        name: f"keep {shlex.quote(f'{layout.logs}/{node.name}-{name}.log')} {shlex.join(command)} &"
        for name, command in commands.items()
    }
    hidden = "\n".join(f"mount -t tmpfs node {folder}" for folder in HIDDEN)
    made = "\n".join(f"seems {name} {value}" for name, value in _KUBELETS_OWN.items())
    return f"""\
# PID 1 of node {node.name}: its death takes every process of the node with it.
set -eu
# Mounts of pods reach every process of the node, and none of the machine.
mount --make-rshared /
# What programs write to fixed places stays in the node.
{hidden}
mkdir {node.socket.parent}

# The machine's settings stay as they are: the kubelet finds them made.
seems() {{
    local file=/run/millrace/settings/$1
    mkdir -p "${{file%/*}}"
    echo "$2" >"$file"
    mount --bind "$file" "/proc/sys/$1"
}}
{made}

keep() {{
    local log=$1
    shift
    while true; do
        "$@" >>"$log" 2>&1 || true
        sleep 1
    done
}}

{keep["containerd"]}
until [ -S {node.socket} ]; do sleep 0.1; done
{keep["proxy"]}
{keep["kubelet"]}
# Whoever loses its parent becomes a child of this shell, which reaps it while it waits.
while true; do wait -n || sleep 1; done
"""
