"""What pods and people need of a cluster: names, services, logs, commands, images, lost nodes."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_command import Tool

from millrace_e2e.cluster.layout import Layout
from millrace_e2e.cluster.own import OwnCluster

IMAGE = "millrace.local/base:1"
NODES = ("n1", "n2")
PORT = 8080

# A pod of each node that says its own name to whoever asks, and that can ask others.
POD = """
apiVersion: v1
kind: Pod
metadata: {{name: web-{node}, labels: {{app: web-{node}}}}}
spec:
  nodeSelector: {{kubernetes.io/hostname: {node}}}
  terminationGracePeriodSeconds: 0
  containers:
  - name: web
    image: {image}
    imagePullPolicy: Never
    workingDir: /tmp
    command: [sh, -c, 'hostname > name && exec python3 -u -m http.server {port}']
    readinessProbe: {{httpGet: {{port: {port}, path: /name}}, periodSeconds: 1}}
---
apiVersion: v1
kind: Service
metadata: {{name: web-{node}}}
spec: {{selector: {{app: web-{node}}}, ports: [{{port: {port}}}]}}
---
"""

ASK = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=10).read().decode())"


@pytest.fixture(scope="module", autouse=True)
def pods(tool: Tool) -> Iterator[None]:
    tool.run("up")
    archive = tool.run("base-image", IMAGE).strip()
    tool.run("load", archive)
    manifest = "".join(POD.format(node=node, image=IMAGE, port=PORT) for node in NODES)
    tool.kubectl("apply", "-f", "-", stdin=manifest)
    wait_for_pods(tool)
    yield
    tool.run("down")


def wait_for_pods(tool: Tool) -> None:
    """Ready, and every node's rules know it."""
    names = [f"web-{node}" for node in NODES]
    tool.kubectl("wait", "--for=condition=Ready", *(f"pod/{n}" for n in names), "--timeout=180s")
    deadline = time.monotonic() + 60
    for source, target in itertools.product(names, names):
        while not answers(tool, source, target):
            assert time.monotonic() < deadline
            time.sleep(0.5)


def ask(tool: Tool, pod: str, address: str) -> str:
    """What a pod is answered at an address."""
    url = f"http://{address}:{PORT}/name"
    return tool.kubectl("exec", pod, "--", "python3", "-c", ASK, url).strip()


def answers(tool: Tool, pod: str, service: str) -> bool:
    url = f"http://{cluster_ip(tool, service)}:{PORT}/name"
    command = tool.command("exec", pod, "--", "python3", "-c", ASK, url)
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def cluster_ip(tool: Tool, service: str) -> str:
    return tool.kubectl("get", "service", service, "-o", "jsonpath={.spec.clusterIP}")


@pytest.mark.parametrize("source", NODES)
@pytest.mark.parametrize("target", NODES)
def test_pods_reach_services_on_every_node(tool: Tool, source: str, target: str) -> None:
    """By name, by the service's address and by the pod's; a pod reaches its own service, too."""
    pod, name = f"web-{source}", f"web-{target}"
    address = tool.kubectl("get", "pod", name, "-o", "jsonpath={.status.podIP}")
    assert ask(tool, pod, name) == name
    assert ask(tool, pod, f"{name}.default.svc.cluster.local") == name
    assert ask(tool, pod, cluster_ip(tool, name)) == name
    assert ask(tool, pod, address) == name


def test_pods_reach_the_api_server(tool: Tool) -> None:
    ask_api = (
        "import ssl, urllib.request as r; "
        "c = ssl.create_default_context("
        "cafile='/var/run/secrets/kubernetes.io/serviceaccount/ca.crt'); "
        "print(r.urlopen('https://kubernetes.default/version', context=c).read().decode())"
    )
    said = tool.kubectl("exec", "web-n1", "--", "python3", "-c", ask_api)
    assert json.loads(said)["gitVersion"] == "v1.34.4"


def test_nothing_beyond_the_machine_is_reached(tool: Tool) -> None:
    """At once: nobody waits for an answer that never comes. (An address for documentation.)"""
    code = (
        "import socket\n"
        "try: socket.create_connection(('203.0.113.1', 80), timeout=60)\n"
        "except OSError as error: print(error.errno)"
    )
    said = tool.kubectl("exec", "web-n1", "--", "python3", "-c", code)
    assert said.strip() in ("101", "113")


def test_logs_are_read(tool: Tool) -> None:
    ask(tool, "web-n1", "web-n2")
    for node in NODES:
        assert '"GET /name HTTP/1.1" 200' in tool.kubectl("logs", f"web-{node}")


@pytest.mark.parametrize("node", NODES)
def test_a_port_is_forwarded(tool: Tool, node: str) -> None:
    command = tool.command("port-forward", f"pod/web-{node}", f":{PORT}", "--address=127.0.0.1")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forward:
        try:
            assert forward.stdout is not None
            found = re.search(r"127\.0\.0\.1:(\d+)", forward.stdout.readline())
            assert found is not None
            with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/name", timeout=30) as answer:
                assert answer.read().decode().strip() == f"web-{node}"
        finally:
            forward.kill()


def test_an_image_that_a_node_has_is_not_loaded_again(tool: Tool) -> None:
    archive = tool.run("base-image", IMAGE).strip()
    before = images(tool)
    tool.run("load", archive)
    assert images(tool) == before
    assert all(any(IMAGE in name for name in names) for names in before.values())


def images(tool: Tool) -> dict[str, list[str]]:
    """Of each node, as its containerd has them; its kubelet tells the API server later."""
    cluster = OwnCluster(print)
    ctr = ["ctr", "--address", "/run/millrace/containerd.sock", "--namespace", "k8s.io"]
    return {
        node.name: sorted(cluster.inside(node, [*ctr, "images", "list"]).splitlines())
        for node in cluster.layout.nodes()[: len(NODES)]
    }


def test_a_node_that_is_killed_is_noticed_and_comes_back(tool: Tool) -> None:
    before = restarts(tool, "web-n2")
    tool.run("kill-node", "n2")
    tool.kubectl("wait", "--for=condition=Ready=Unknown", "node/n2", "--timeout=120s")
    assert tool.run("status") == "n1\tready\nn2\tnot ready\n"
    # The other one goes on meanwhile.
    assert ask(tool, "web-n1", "web-n1") == "web-n1"
    tool.run("start-node", "n2")
    tool.kubectl("wait", "--for=condition=Ready", "node/n2", "--timeout=120s")
    wait_until_restarted(tool, "web-n2", before)
    assert ask(tool, "web-n1", cluster_ip(tool, "web-n2")) == "web-n2"
    assert ask(tool, "web-n2", "web-n1") == "web-n1"


def test_an_up_starts_a_node_that_has_died_by_itself(tool: Tool) -> None:
    """SIGKILL of its first process, without a word to the tool."""
    before = restarts(tool, "web-n1")
    outer = json.loads(Layout.standard().processes.read_bytes())["n1"]["pid"]
    first = int(Path(f"/proc/{outer}/task/{outer}/children").read_text())
    os.kill(first, signal.SIGKILL)
    tool.run("up")
    wait_until_restarted(tool, "web-n1", before)
    assert ask(tool, "web-n2", cluster_ip(tool, "web-n1")) == "web-n1"
    assert ask(tool, "web-n1", "web-n2") == "web-n2"


def restarts(tool: Tool, pod: str) -> int:
    path = "jsonpath={.status.containerStatuses[0].restartCount}"
    return int(tool.kubectl("get", "pod", pod, "-o", path))


def wait_until_restarted(tool: Tool, pod: str, before: int) -> None:
    """Its containers died with the node, so they are others than before."""
    deadline = time.monotonic() + 120
    while restarts(tool, pod) == before:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    wait_for_pods(tool)
