"""What the parts of a cluster are told: addresses that fit together, texts that can be read."""

from __future__ import annotations

import ipaddress
import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from millrace_e2e.cluster import certificates, control_plane, network, nodes
from millrace_e2e.cluster.__main__ import parser
from millrace_e2e.cluster.choice import Choice
from millrace_e2e.cluster.errors import ClusterError
from millrace_e2e.cluster.layout import (
    API_SERVICE,
    BRIDGE,
    CONTROL_NAMESPACE,
    CONTROL_PLANE,
    GATEWAY,
    HIDDEN,
    NODE_NETWORK,
    POD_NETWORK,
    SERVICE_NETWORK,
    Layout,
    cache_folder,
)

ROOT = Path(__file__).parents[3]
DEVELOPMENT = (ROOT / "docs" / "development.md").read_text()

LAYOUT = Layout(Path("/a folder/it's"))
NODES = LAYOUT.nodes()
PROGRAMS = {name: Path(f"/cache of/{name}") for name in ("kubelet", "kube-proxy")}


def test_addresses_lie_in_their_networks_and_are_nobody_elses() -> None:
    bridge, pods = ipaddress.ip_network(NODE_NETWORK), ipaddress.ip_network(POD_NETWORK)
    addresses = [GATEWAY, CONTROL_PLANE, *(node.address for node in NODES)]
    assert len(set(addresses)) == len(addresses)
    assert all(ipaddress.ip_address(address) in bridge for address in addresses)
    ranges = [ipaddress.ip_network(node.pods) for node in NODES]
    assert all(one.subnet_of(pods) for one in ranges)
    assert not any(a.overlaps(b) for a in ranges for b in ranges if a is not b)
    networks = [bridge, pods, ipaddress.ip_network(SERVICE_NETWORK)]
    assert not any(a.overlaps(b) for a in networks for b in networks if a is not b)


def test_names_of_links_are_short_enough() -> None:
    names = [BRIDGE, CONTROL_NAMESPACE, *(node.namespace for node in NODES)]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 15 for name in names)


def test_the_api_servers_own_service_is_in_its_certificate() -> None:
    assert ipaddress.ip_address(API_SERVICE) == ipaddress.ip_network(SERVICE_NETWORK)[1]
    api = next(one for one in certificates.identities(NODES) if one.name == "api")
    assert f"IP:{API_SERVICE}" in api.alternative.split(",")
    assert f"IP:{CONTROL_PLANE}" in api.alternative.split(",")
    assert "DNS:kubernetes.default.svc" in api.alternative.split(",")


def test_a_kubelet_is_who_the_node_authorizer_takes_it_for() -> None:
    known = {one.name: one for one in certificates.identities(NODES[:1])}
    assert known["n1"].subject == "/O=system:nodes/CN=system:node:n1"
    assert f"IP:{NODES[0].address}" in known["n1"].alternative


def test_a_kubeconfig_names_its_own_files() -> None:
    document = yaml.safe_load(certificates.kubeconfig(LAYOUT.pki, "admin"))
    context = {one["name"]: one["context"] for one in document["contexts"]}[
        document["current-context"]
    ]
    users = {one["name"]: one["user"] for one in document["users"]}
    clusters = {one["name"]: one["cluster"] for one in document["clusters"]}
    assert users[context["user"]]["client-key"] == f"{LAYOUT.pki}/admin.key"
    assert clusters[context["cluster"]]["server"] == f"https://{CONTROL_PLANE}:6443"


def test_settings_of_a_node_agree_with_each_other() -> None:
    node = NODES[1]
    runtime = tomllib.loads(nodes.containerd(node))
    cri = runtime["plugins"]["io.containerd.grpc.v1.cri"]
    kubelet = json.loads(json.dumps(nodes.kubelet(LAYOUT, node)))
    assert kubelet["containerRuntimeEndpoint"] == f"unix://{runtime['grpc']['address']}"
    assert cri["sandbox_image"] == nodes.PAUSE_IMAGE
    assert cri["cni"]["conf_dir"] == f"{node.folder}/cni"
    assert kubelet["clusterDNS"] == [CONTROL_PLANE]
    assert kubelet["cgroupRoot"] == f"/{node.namespace}"
    cni = json.loads(json.dumps(nodes.cni(node)))
    assert cni["plugins"][0]["ipam"]["ranges"] == [[{"subnet": node.pods}]]


def test_sockets_are_short_and_lie_in_the_nodes_own_folders() -> None:
    socket = NODES[0].socket
    assert len(str(socket)) < 108
    assert any(socket.is_relative_to(folder) for folder in HIDDEN)


def test_the_first_process_of_a_node_is_a_script_that_bash_reads(tmp_path: Path) -> None:
    """Folders with blanks and quotes in them, too."""
    script = nodes.init(LAYOUT, NODES[0], PROGRAMS)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    started = [shlex.split(line) for line in script.splitlines() if line.startswith("keep ")]
    assert [Path(line[2]).name for line in started] == ["containerd", "kube-proxy", "kubelet"]
    assert [Path(line[1]).parent for line in started] == [LAYOUT.logs] * 3
    kubelet = started[2]
    assert kubelet[2] == "/cache of/kubelet"
    assert f"--kubeconfig={LAYOUT.pki}/n1.kubeconfig" in kubelet


def test_names_beyond_the_cluster_are_not_asked_of_anyone() -> None:
    text = control_plane.corefile(LAYOUT)
    assert "forward" not in text
    assert "cluster.local:53" in text


def test_a_network_that_is_in_use_is_said() -> None:
    free = [{"dst": "default", "dev": "eth0"}, {"dst": "192.168.1.0/24", "dev": "eth0"}]
    network._check_free(free)
    with pytest.raises(ClusterError, match=r"10\.250\.0\.0/16 \(tun0\)"):
        network._check_free([*free, {"dst": "10.250.0.0/16", "dev": "tun0"}])


@pytest.mark.parametrize("folder", HIDDEN, ids=str)
def test_a_home_that_nodes_would_not_see_is_refused(folder: Path) -> None:
    with pytest.raises(ClusterError, match=r"XDG_CACHE_HOME|version 2"):
        nodes.check_machine(Layout(folder / "millrace" / "running"))


SECTION = DEVELOPMENT.partition("\n## A cluster\n")[2].partition("\n## ")[0]


def test_the_clusters_that_are_told_are_those_that_there_are() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", SECTION, re.M)[1:]) == set(Choice)


def test_the_verbs_that_are_told_are_those_that_there_are() -> None:
    lines = re.findall(r"^\.venv/bin/python -m millrace_e2e\.cluster ([^#\n]*)", SECTION, re.M)
    assert len(lines) == 5
    for line in lines:
        parser().parse_args(line.split())


def test_the_times_and_places_that_are_told_hold() -> None:
    assert f"counts as lost after {control_plane.NODE_GRACE_S} s" in SECTION
    assert "`~/.cache/millrace/cluster`" in SECTION
    assert cache_folder().parts[-2:] == ("millrace", "cluster")


def test_the_targets_that_are_told_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    told = set(re.findall(r"`make ([a-z0-9-]+)`", SECTION))
    assert {"cluster-up", "cluster-down", "e2e-cluster", "e2e-smoke"} <= told
    assert all(re.search(rf"^{target}:", makefile, re.M) for target in told)
    shown = subprocess.run(["make", "-C", ROOT, "help"], capture_output=True, text=True, check=True)
    assert told <= set(re.findall(r"^  ([a-z0-9-]+) ", shown.stdout, re.M))
