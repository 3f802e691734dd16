"""The control plane: etcd, API server, controllers, scheduler and DNS, as processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from millrace_e2e.cluster.layout import (
    CONTROL_NAMESPACE,
    CONTROL_PLANE,
    DOMAIN,
    POD_NETWORK,
    SERVICE_NETWORK,
    Layout,
)
from millrace_e2e.cluster.processes import Processes

NODE_GRACE_S = 20
"""Silence after which a node counts as lost; 40 to 50 s where nobody changes it."""

SERVERS = ("etcd", "apiserver")
CLIENTS = ("controllers", "scheduler", "dns")
"""These give up where no API server answers them in time, so they start when it does."""

DNS_READY = f"http://{CONTROL_PLANE}:8181/ready"

_ETCD = "http://127.0.0.1:2379"
_PEERS = "http://127.0.0.1:2380"


def start(
    names: Sequence[str], layout: Layout, programs: Mapping[str, Path], processes: Processes
) -> None:
    """Start those that do not run; returns without waiting."""
    commands = {
        "etcd": _etcd(layout),
        "apiserver": _apiserver(layout, programs),
        "controllers": _controllers(layout, programs),
        "scheduler": _scheduler(layout, programs),
        "dns": [str(programs["dns"]), "-conf", str(layout.home / "Corefile")],
    }
    (layout.home / "Corefile").write_text(corefile(layout))
    for name in names:
        if processes.running(name) is None:
            processes.start(name, CONTROL_NAMESPACE, commands[name])


def _etcd(layout: Layout) -> Sequence[str]:
    return [
        "etcd",
        f"--data-dir={layout.etcd}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={_ETCD}",
        f"--advertise-client-urls={_ETCD}",
        f"--listen-peer-urls={_PEERS}",
        f"--initial-advertise-peer-urls={_PEERS}",
        f"--initial-cluster=default={_PEERS}",
    ]


def _apiserver(layout: Layout, programs: Mapping[str, Path]) -> Sequence[str]:
    pki = layout.pki
    return [
        str(programs["kube-apiserver"]),
        f"--etcd-servers={_ETCD}",
        f"--advertise-address={CONTROL_PLANE}",
        "--bind-address=0.0.0.0",
        "--secure-port=6443",
        f"--tls-cert-file={pki}/api.crt",
        f"--tls-private-key-file={pki}/api.key",
        f"--client-ca-file={pki}/ca.crt",
        f"--service-account-key-file={pki}/accounts.key",
        f"--service-account-signing-key-file={pki}/accounts.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        # For pods that mend the network of their node; restricted namespaces forbid them anyway.
        "--allow-privileged=true",
        f"--kubelet-client-certificate={pki}/kubelet-client.crt",
        f"--kubelet-client-key={pki}/kubelet-client.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        # Nodes have no names in any DNS, so logs and exec go by address.
        "--kubelet-preferred-address-types=InternalIP",
        # Debian's etcd cannot tell its progress, so that watches which begin with a list would end
        # at once, those of Spark's client among them.
        "--feature-gates=WatchList=false",
    ]


def _controllers(layout: Layout, programs: Mapping[str, Path]) -> Sequence[str]:
    pki = layout.pki
    return [
        str(programs["kube-controller-manager"]),
        f"--kubeconfig={pki}/controllers.kubeconfig",
        f"--service-account-private-key-file={pki}/accounts.key",
        f"--root-ca-file={pki}/ca.crt",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
        # Nodes name their own range of pods (their CNI settings), as routes need it.
        "--allocate-node-cidrs=false",
        f"--cluster-cidr={POD_NETWORK}",
        f"--node-monitor-grace-period={NODE_GRACE_S}s",
        "--use-service-account-credentials",
        "--leader-elect=false",
    ]


def _scheduler(layout: Layout, programs: Mapping[str, Path]) -> Sequence[str]:
    kubeconfig = f"--kubeconfig={layout.pki}/scheduler.kubeconfig"
    return [str(programs["kube-scheduler"]), kubeconfig, "--leader-elect=false"]


def corefile(layout: Layout) -> str:
    """Settings of the DNS: names of services and pods, and nothing beyond the cluster."""
    return (
        f"{DOMAIN}:53 in-addr.arpa:53 {{\n"
        "  errors\n"
        f"  ready {CONTROL_PLANE}:8181\n"
        f"  kubernetes {DOMAIN} in-addr.arpa {{\n"
        f'    kubeconfig "{layout.pki}/dns.kubeconfig" millrace\n'
        "  }\n"
        "  cache 5\n"
        "}\n"
    )
