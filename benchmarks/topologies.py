"""What many topologies cost one operator: 50 of them, not suspended, on simulated nodes.

A real API server with its etcd, scheduler and controllers; nodes and their pods are simulated by
kwok. What pods of state servers would answer, and what drivers would write, this script does: it
takes the members that the operator proposes into the view and tells a window. Told are the seconds
until every topology has all its children and is ready, until all is gone behind their deletion, the
most memory that the operator had, and how often it asked the API server, by verb and resource, for
each topology until then.

All of it runs in a network namespace of its own, as root, on Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import yaml
from measure import machine

from millrace.errors import MillraceError
from millrace.guard import die_with
from millrace.homes import codec, pods
from millrace.homes.documents import Proposal, Status
from millrace.homes.stores import HomeAwayError
from millrace.kube.configmaps import Api, ConfigMap, by_kubeconfig
from millrace.kube.journalmap import JournalMap
from millrace.kube.viewmap import ViewMap
from millrace.protocol.types import Phase, View
from millrace_e2e import kubeapi
from millrace_e2e.audit import Audit
from millrace_e2e.cluster.binaries import BUILDS, SIMULATED, programs
from millrace_e2e.waiting import until
from millrace_operator.kube import kinds
from millrace_operator.kube.objects import Objects

ROOT = Path(__file__).resolve().parents[1]
APART = "MILLRACE_BENCH_APART"
NODES, SPACES, SYSTEM = 10, 5, "millrace-system"
POD_ADDRESSES = "127.42.0.0/16"
"""Of loopback, so that this script answers for pods."""

ADDRESS = "10.199.0.1"
"""An API server wants one to tell that is not of loopback."""

Json = Mapping[str, Any]
KIND = "StreamTopology"
SPEC = {
    "ackers": {"replicas": 2},
    "stateServers": {"replicas": 2, "copies": 2},
    "sources": [{"name": "numbers", "generator": {"rate": 10}}],
    "sinks": [
        {
            "name": "out",
            "inputs": [{"from": "numbers"}],
            "redis": {"url": "redis://out:6379", "mode": "stream", "stream": "out"},
        }
    ],
}
CREW = ("acker-0", "acker-1", "driver-1", "state-0", "state-1")
CHILDREN = ("Pod", *kinds.LISTED)
WAIT_S, LOOK_S = 600.0, 0.25

_POD_RUNS = """
phase: Running
{{ $now := Now }}
startTime: {{ $now | Quote }}
conditions:
- {type: Ready, status: "True", lastTransitionTime: {{ $now | Quote }}}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  ready: true
  restartCount: 0
  state: {running: {startedAt: {{ $now | Quote }}}}
{{ end }}
{{ $ips := PodIPsWith .spec.nodeName false .metadata.uid .metadata.name .metadata.namespace }}
podIP: {{ index $ips 0 | Quote }}
podIPs:
- ip: {{ index $ips 0 | Quote }}
"""
_NODE_RUNS = """
{{ $now := Now }}
conditions:
- {type: Ready, status: "True", reason: Simulated, message: it is simulated,
   lastHeartbeatTime: {{ $now | Quote }}, lastTransitionTime: {{ $now | Quote }}}
"""


def _stage(name: str, kind: str, which: list[dict[str, Any]], then: dict[str, Any]) -> Json:
    """What becomes of the objects of a kind that are as ``which`` says."""
    selector = {"matchExpressions": which}
    spec = {"resourceRef": {"apiGroup": "v1", "kind": kind}, "selector": selector, "next": then}
    head = {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name}}
    return {**head, "spec": spec}


_READY = '.status.conditions.[] | select( .type == "Ready" ) | .status'
_ENDS = {"key": ".metadata.deletionTimestamp", "operator": "Exists"}
_STAYS = {**_ENDS, "operator": "DoesNotExist"}
_UNREADY = {"key": _READY, "operator": "NotIn", "values": ["True"]}
STAGES = [
    _stage("node-runs", "Node", [_UNREADY], {"statusTemplate": _NODE_RUNS}),
    _stage("pod-runs", "Pod", [_STAYS, _UNREADY], {"statusTemplate": _POD_RUNS}),
    _stage("pod-ends", "Pod", [_ENDS], {"delete": True}),
]
Name = tuple[str, str]
"""A topology: its namespace and its own name."""


# -- a cluster of simulated nodes


def start(folder: Path, name: str, command: Sequence[str], **given: str) -> subprocess.Popen[bytes]:
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env={**os.environ, **given},
            preexec_fn=partial(die_with, os.getpid()),
        )


@contextmanager
def ending(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def cluster_programs() -> Mapping[str, Path]:
    return programs(lambda text: print(text, file=sys.stderr), (*BUILDS, *SIMULATED))


@contextmanager
def cluster(folder: Path) -> Iterator[kubeapi.ApiServer]:
    """API server, scheduler, controllers, and nodes that kwok plays."""
    built = cluster_programs()
    audited = Audit(folder).arguments(users=["operator"])
    stages = folder / "stages.yaml"
    stages.write_text(yaml.safe_dump_all(STAGES))
    told_address = f"--advertise-address={ADDRESS}"
    with ExitStack() as stack:
        served = kubeapi.serving(folder / "server", ("operator",), (*audited, told_address))
        server = stack.enter_context(served)
        told = f"--kubeconfig={server.kubeconfig}"
        key, ca = server.folder / "sa.key", server.ca
        for name, command in {
            "scheduler": [built["kube-scheduler"], told, "--leader-elect=false"],
            "controllers": [
                *(built["kube-controller-manager"], told, "--leader-elect=false"),
                *(f"--service-account-private-key-file={key}", f"--root-ca-file={ca}"),
            ],
            "kwok": [
                *(built["kwok"], told, "--manage-all-nodes=true", f"--cidr={POD_ADDRESSES}"),
                *("--node-lease-duration-seconds=40", f"--config={stages}"),
            ],
        }.items():
            stack.enter_context(ending(start(folder, name, [str(part) for part in command])))
        api = by_kubeconfig(file=str(server.kubeconfig))
        define(api)
        for number in range(NODES):
            metadata = {"name": f"node-{number}", "labels": {"kubernetes.io/os": "linux"}}
            node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
            sizes = {"cpu": "64", "memory": "256Gi", "pods": "110"}
            made = {**node, "status": {"capacity": sizes, "allocatable": sizes}}
            assert api.answer("POST", "/api/v1/nodes", made)[0] == 201
        until(lambda: ready_nodes(api) == NODES, "the nodes", WAIT_S, LOOK_S)
        for space in (SYSTEM, *spaces()):
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}}
            assert api.answer("POST", "/api/v1/namespaces", namespace)[0] == 201
        yield server


def define(api: Api) -> None:
    for file in sorted((ROOT / "crds").glob("*.yaml")):
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        assert api.answer("POST", path, yaml.safe_load(file.read_text()))[0] == 201

    def served() -> bool:
        # What is not served yet is answered in plain text.
        with suppress(HomeAwayError):
            return api.answer("GET", kinds.collection(KIND, None))[0] == 200
        return False

    until(served, "the definitions", WAIT_S, LOOK_S)


def ready_nodes(api: Api) -> int:
    return sum(
        any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
        for node in Objects(api).list("Node", None)
        for conditions in [node.get("status", {}).get("conditions") or []]
    )


def spaces() -> list[str]:
    return [f"jobs-{number}" for number in range(SPACES)]


# -- what state servers and drivers do


class Servers:
    """Answers for the pods of state servers, each at its own address."""

    def __init__(self, api: Api) -> None:
        objects, known = Objects(api), dict[str, Json]()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                address = self.connection.getsockname()[0]
                if address not in known:
                    listed = objects.list("Pod", None)
                    known.update(
                        {str(one["status"].get("podIP")): one["metadata"] for one in listed}
                    )
                pod = known.get(address, {"name": "", "uid": ""})
                told = {"name": pod["name"], "runId": pod["uid"], "url": "redis://x"}
                body = json.dumps(told).encode()
                self.send_response(200 if self.path == pods.INCARNATION_PATH else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *told: object) -> None:
                pass

        self._listening = ThreadingHTTPServer(("0.0.0.0", pods.HEALTH_PORT), Handler)
        threading.Thread(target=self._listening.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._listening.shutdown()
        self._listening.server_close()


def play(api: Api, name: Name, uid: str) -> None:
    """The driver of a topology: what is proposed becomes the view, and a window is told."""
    space, own = name
    held = ConfigMap(api, space, pods.inbox_map(own)).read()
    text = None if held is None else held.data.get(pods.PROPOSAL)
    if text is None:
        return
    proposal = codec.decode(Proposal, text)
    if len(proposal.members) < 2:
        return
    store = ViewMap(ConfigMap(api, space, pods.view_map(own)))
    version, view = store.read()
    if view is None or view.target != proposal.members:
        target, epoch = proposal.members, version + 1
        moved = View(uid, 1, epoch, Phase.OPEN, 1, target, target, epoch, ())  # type: ignore[arg-type]
        store.cas(version, moved)
    journal = JournalMap(ConfigMap(api, space, pods.journal_map(own)), at_once=True)
    journal.tell(Status(uid=uid, execution=1, sealed=7, follows=proposal.number))


# -- the run


class Run:
    def __init__(self, api: Api, count: int) -> None:
        self.api, self.objects = api, Objects(api)
        self.names = [(spaces()[n % SPACES], f"words-{n}") for n in range(count)]

    def create(self) -> None:
        for space, name in self.names:
            metadata = {"name": name, "namespace": space}
            made = {"apiVersion": "millrace.dev/v1alpha1", "kind": KIND, "metadata": metadata}
            assert (
                self.api.answer("POST", kinds.collection(KIND, space), {**made, "spec": SPEC})[0]
                == 201
            )

    def topologies(self) -> dict[Name, Json]:
        return {_name(one): one for one in self.objects.list(KIND, None)}

    def settled(self) -> bool:
        """Whether each is ready as it is now; drivers of the others do their part."""
        waiting = [one for one in self.topologies().values() if not _ready(one)]
        for one in waiting:
            # The operator writes at the same time; the next look sees what it wrote.
            with suppress(MillraceError):
                play(self.api, _name(one), one["metadata"]["uid"])
        return not waiting

    def children(self) -> dict[Name, list[str]]:
        """Kinds and names of what belongs to each topology."""
        found: dict[Name, list[str]] = {}
        for kind in CHILDREN:
            for space in spaces():
                for one in self.objects.list(kind, space):
                    owner = (one["metadata"].get("labels") or {}).get(pods.TOPOLOGY_LABEL)
                    if owner is not None:
                        short = one["metadata"]["name"].removeprefix(f"{owner}-")
                        found.setdefault((space, owner), []).append(f"{kind} {short}")
        return {name: sorted(there) for name, there in found.items()}

    def check(self) -> int:
        """Every topology has the same children, its crew among them; how many each has."""
        found = self.children()
        assert found.keys() == set(self.names)
        first = found[self.names[0]]
        assert {f"Pod {one}" for one in CREW} <= set(first), first
        different = {name: there for name, there in found.items() if there != first}
        assert not different, different
        for space, name in self.names:
            place = kinds.one("Secret", space, f"{name}-secret")
            assert self.api.answer("GET", place)[0] == 200
        return len(first) + 1

    def delete(self) -> None:
        for space, name in self.names:
            self.api.call("DELETE", kinds.one(KIND, space, name))


def _name(one: Json) -> Name:
    return one["metadata"]["namespace"], one["metadata"]["name"]


def _ready(one: Json) -> bool:
    generation = one["metadata"]["generation"]
    return any(
        c["type"] == "Ready" and c["status"] == "True" and c.get("observedGeneration") == generation
        for c in one.get("status", {}).get("conditions") or []
    )


def calls(log: Path) -> Counter[str]:
    """Answered requests of the operator by verb and resource."""
    found: Counter[str] = Counter()
    for line in log.read_text().splitlines():
        one = json.loads(line)
        if one["stage"] == "ResponseComplete":
            what = one.get("objectRef", {})
            resource = "/".join(filter(None, (what.get("resource"), what.get("subresource"))))
            found[f"{one['verb']} {resource or one['requestURI']}"] += 1
    return found


def peak_mb(process: subprocess.Popen[bytes]) -> float:
    """The most memory that it ever had, in MB."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    (line,) = [one for one in text.splitlines() if one.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024 / 1e6


def seconds(work: Callable[[], None], done: Callable[[], bool], what: str) -> float:
    began_s = time.monotonic()
    work()
    until(done, what, WAIT_S, LOOK_S)
    return round(time.monotonic() - began_s, 1)


def measure(count: int, folder: Path) -> dict[str, Any]:
    with ExitStack() as stack:
        server = stack.enter_context(cluster(folder))
        api = by_kubeconfig(file=str(server.kubeconfig))
        servers = Servers(api)
        stack.callback(servers.close)
        command = [
            *(sys.executable, "-m", "millrace_operator", "--health-port", "8090"),
            *("--runtime-image", "runtime:1", "--state-image", "state:1"),
            *("--own-namespace", SYSTEM),
        ]
        config = str(server.kubeconfig_of("operator"))
        operator = start(folder, "operator", command, KUBECONFIG=config)
        stack.enter_context(ending(operator))
        cpu = psutil.Process(operator.pid)
        lease = kinds.one("Lease", SYSTEM, "millrace-operator")
        until(lambda: api.answer("GET", lease)[0] == 200, "the operator", WAIT_S, LOOK_S)
        before, run = calls(Audit(folder).log), Run(api, count)
        try:
            up_s = seconds(run.create, run.settled, "all topologies are ready")
        except BaseException:
            print((folder / "operator.log").read_text()[-4000:], file=sys.stderr)
            raise
        each, asked = run.check(), calls(Audit(folder).log) - before
        up_cpu_s = sum(cpu.cpu_times()[:2])
        print(f"{count} topologies are ready after {up_s} s; {each} children each", flush=True)
        for what, times in asked.most_common():
            print(f"  {times / count:6.1f} a topology: {what}")
        down_s = seconds(run.delete, lambda: not run.topologies() and not run.children(), "the end")
        print(f"nothing is left of them {down_s} s behind their deletion", flush=True)
        assert operator.poll() is None
        return {
            "topologies": count,
            "children_each": each,
            "ready_s": up_s,
            "deleted_s": down_s,
            "operator_peak_mb": round(peak_mb(operator), 1),
            "operator_cpu_s": round(up_cpu_s, 1),
            "calls_each": round(asked.total() / count, 1),
        }


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--topologies", type=int, default=50)
    options = words.parse_args()
    if APART not in os.environ:
        # What is not built yet is fetched, and nothing can be from in there.
        cluster_programs()
        # Addresses and ports of this machine stay as they are.
        apart = ["unshare", "--net", "--", sys.executable, *sys.argv]
        os.execvpe(apart[0], apart, {**os.environ, APART: "1"})
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "address", "add", f"{ADDRESS}/32", "dev", "lo"], check=True)
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="millrace-topologies-") as folder:
        print(json.dumps(measure(options.topologies, Path(folder))))


if __name__ == "__main__":
    main()
