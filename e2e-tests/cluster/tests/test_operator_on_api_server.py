"""The operator as its image starts it, on a real API server: no nodes, so that this test plays
kubelets, the driver and whoever deletes, kills and edits."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from millrace.errors import MillraceError
from millrace.guard import die_with
from millrace.homes import codec, pods
from millrace.homes.documents import Proposal, Status
from millrace.homes.passwords import of_root_key
from millrace.homes.stores import HomeAwayError
from millrace.kube.configmaps import Api, ConfigMap, by_kubeconfig
from millrace.kube.journalmap import JournalMap
from millrace.kube.viewmap import ViewMap
from millrace.protocol.types import Phase, View
from millrace_e2e import kubeapi
from millrace_e2e.valkey import free_port
from millrace_e2e.waiting import until
from millrace_operator.kube import kinds
from millrace_operator.kube.lease import Lease
from millrace_operator.kube.objects import Objects, StaleError

ROOT = Path(__file__).parents[3]
WAIT_S = 120.0
SYSTEM = "millrace-system"
KIND = "StreamTopology"
Json = Mapping[str, Any]

SPEC: dict[str, Any] = {
    "ackers": {"replicas": 2},
    "stateServers": {"replicas": 2, "copies": 2},
    "volumes": [
        {"name": "data", "mountPath": "/data", "persistentVolumeClaim": {"claimName": "words"}}
    ],
    "sources": [{"name": "lines", "files": {"path": "texts", "watch": False}}],
    "processors": [{"name": "split", "function": "words:split", "inputs": [{"from": "lines"}]}],
    "sinks": [{"name": "out", "inputs": [{"from": "split"}], "files": {"path": "out"}}],
}


def _served(api: Api) -> bool:
    """Whether topologies can be listed; what is not served yet is answered in plain text."""
    try:
        return api.answer("GET", kinds.collection(KIND, None))[0] == 200
    except HomeAwayError:
        return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubeapi.ApiServer]:
    with kubeapi.serving(tmp_path_factory.mktemp("api") / "server") as server:
        api = by_kubeconfig(file=str(server.kubeconfig))
        for file in sorted((ROOT / "crds").glob("*.yaml")):
            made = yaml.safe_load(file.read_text())
            path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            assert api.answer("POST", path, made)[0] == 201
        until(lambda: _served(api), "the definitions", WAIT_S)
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}
        assert api.answer("POST", "/api/v1/namespaces", space)[0] == 201
        for number in range(2):
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{number}"}}
            assert api.answer("POST", "/api/v1/nodes", node)[0] == 201
        yield server


class Cluster:
    """One namespace with one topology ``words``, its kubelets and its driver."""

    def __init__(self, server: kubeapi.ApiServer, namespace: str) -> None:
        self.kubeconfig = str(server.kubeconfig)
        self.api: Api = by_kubeconfig(file=self.kubeconfig)
        self.objects = Objects(self.api)
        self.namespace = namespace
        self._lives: dict[str, int] = {}
        self._answering: dict[str, ThreadingHTTPServer] = {}
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        assert self.api.answer("POST", "/api/v1/namespaces", space)[0] == 201

    def close(self) -> None:
        for one in self._answering.values():
            one.shutdown()
            one.server_close()

    # -- what a user does

    def create(self) -> None:
        metadata = {"name": "words", "namespace": self.namespace}
        made = {
            "apiVersion": "millrace.dev/v1alpha1",
            "kind": KIND,
            "metadata": metadata,
            "spec": SPEC,
        }
        assert self.objects.create(made)

    def edit(self, spec: Json) -> None:
        self.objects.merge(self.path, {"spec": spec})

    @property
    def path(self) -> str:
        return kinds.one(KIND, self.namespace, "words")

    # -- what there is

    def topology(self) -> Json:
        found = self.objects.get(self.path)
        assert found is not None
        return found

    def condition(self, kind: str) -> tuple[str, str]:
        conditions = self.topology().get("status", {}).get("conditions", [])
        return next(((c["status"], c["reason"]) for c in conditions if c["type"] == kind), ("", ""))

    def pods(self) -> dict[str, Json]:
        found = self.objects.list("Pod", self.namespace)
        return {one["metadata"]["name"]: one for one in found}

    def children(self) -> list[Json]:
        listed = (self.objects.list(k, self.namespace) for k in (*kinds.LISTED, "Secret", "Pod"))
        return [one for found in listed for one in found]

    def versions(self) -> dict[str, str]:
        """Of everything, but for what the API server keeps there itself."""
        own = [one for one in self.children() if one["metadata"].get("ownerReferences")]
        return {
            f"{one['kind']} {one['metadata']['name']}": one["metadata"]["resourceVersion"]
            for one in [*own, {"kind": KIND, **self.topology()}]
        }

    def reasons(self) -> list[str]:
        return [one["reason"] for one in self.objects.list("Event", self.namespace)]

    def proposal(self) -> Proposal | None:
        held = self._map(pods.inbox_map("words")).read()
        text = None if held is None else held.data.get(pods.PROPOSAL)
        return None if text is None else codec.decode(Proposal, text)

    # -- what kubelets and the driver do

    def play(self) -> None:
        """Pods run or end, and the driver takes what is proposed into the view."""
        for name, pod in self.pods().items():
            if "deletionTimestamp" in pod["metadata"]:
                self.end(name)
            elif "nodeName" not in pod["spec"]:
                self._bind(name)
                self.run(name)
        proposal = self.proposal()
        if proposal is not None:
            self._move(proposal)

    def run(self, name: str) -> None:
        """A container of a pod starts, as another one than before."""
        life = self._lives[name] = self._lives.get(name, 0) + 1
        address = "127.0.0.1"
        if "-state-" in name:
            address = f"127.0.7.{int(name.rpartition('-')[2]) + 1}"
            self._answer(name, address)
        started = "2026-01-01T00:00:00Z"
        container = {
            "name": "c",
            "image": "i",
            "imageID": "i",
            "ready": True,
            "restartCount": life - 1,
            "containerID": f"containerd://{name}-{life}",
            "state": {"running": {"startedAt": started}},
        }
        status = {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [container],
        }
        self.objects.merge(f"{self._pod(name)}/status", {"status": status})

    def end(self, name: str) -> None:
        """A pod is gone at once."""
        self.api.answer("DELETE", self._pod(name), {"gracePeriodSeconds": 0})

    def _bind(self, name: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": f"node-{len(self._lives) % 2}"}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}}
        body = {**binding, "target": target}
        assert self.api.answer("POST", f"{self._pod(name)}/binding", body)[0] == 201

    def _pod(self, name: str) -> str:
        return kinds.one("Pod", self.namespace, name)

    def _map(self, name: str) -> ConfigMap:
        return ConfigMap(self.api, self.namespace, name)

    def _answer(self, name: str, address: str) -> None:
        """The pod's own endpoint; its incarnation is a life of its container."""
        if name in self._answering:
            return
        lives = self._lives

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                told = {"name": name, "runId": f"{name}-{lives[name]}", "url": "redis://x"}
                body = json.dumps(told).encode()
                self.send_response(200 if self.path == pods.INCARNATION_PATH else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *told: object) -> None:
                pass

        listening = ThreadingHTTPServer((address, pods.HEALTH_PORT), Handler)
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        self._answering[name] = listening

    def _move(self, proposal: Proposal) -> None:
        store = ViewMap(self._map(pods.view_map("words")))
        version, view = store.read()
        journal = JournalMap(self._map(pods.journal_map("words")), at_once=True)
        if view is not None and view.target == proposal.members:
            journal.tell(Status(execution=1, sealed=version + 6, follows=proposal.number))
            return
        target, epoch = proposal.members, version + 1
        uid = self.topology()["metadata"]["uid"]
        owners = (tuple(member.name for member in target),)
        moved = View(uid, 1, epoch, Phase.OPEN, 1, target, target, epoch, owners)  # type: ignore[arg-type]
        assert store.cas(version, moved) is not None
        journal.tell(Status(execution=1, sealed=version + 7, follows=proposal.number))

    def reach(self, true: Callable[[], bool], what: str) -> None:
        """Play until something is so."""

        def played() -> bool:
            # The operator writes at the same time; the next round sees what it wrote.
            with suppress(MillraceError):
                self.play()
            return true()

        until(played, what, WAIT_S)

    def reach_ready(self) -> None:
        self.reach(lambda: self.condition("Ready") == ("True", "AllReady"), "Ready")


@pytest.fixture
def cluster(server: kubeapi.ApiServer, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    name = request.node.name.replace("_", "-").removeprefix("test-")[:50].strip("-")
    made = Cluster(server, name)
    yield made
    made.close()


class Operator:
    """One process of the operator."""

    def __init__(self, cluster: Cluster, log: Path, *more: str) -> None:
        self.port = free_port()
        self.log = log
        command = [
            *(sys.executable, "-m", "millrace_operator", "--log-text", "--log-level", "DEBUG"),
            *("--runtime-image", "runtime:1", "--state-image", "state:1"),
            *("--own-namespace", SYSTEM, "--namespace", cluster.namespace),
            *("--health-port", str(self.port), *more),
        ]
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, "KUBECONFIG": cluster.kubeconfig},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=partial(die_with, os.getpid()),
            )

    def answers(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def await_ready(self) -> None:
        until(lambda: self.answers(pods.READY_PATH)[0] == 200, "ready", WAIT_S)

    def await_look(self) -> None:
        """All topologies are looked at once more, and the work that follows is over."""
        until(lambda: self._looked_ago_s() > 3, "a look", WAIT_S)
        until(lambda: self._looked_ago_s() < 3, "another look", WAIT_S)
        until(lambda: self._looked_ago_s() > 3, "its end", WAIT_S)

    def _looked_ago_s(self) -> int:
        """0 before the first look, which one that has just become ready is about to take."""
        told = re.findall(r"looked at (\d+) s ago", self.answers(pods.LIVE_PATH)[1])
        return int(told[0]) if told else 0

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@contextmanager
def running(cluster: Cluster, log: Path, *more: str) -> Iterator[Operator]:
    operator = Operator(cluster, log, *more)
    try:
        yield operator
    except BaseException:
        print(log.read_text()[-8000:])
        raise
    finally:
        operator.kill()


@pytest.fixture(autouse=True)
def no_lease(server: kubeapi.ApiServer) -> None:
    """An operator that was killed by the test before holds nobody up."""
    api = by_kubeconfig(file=str(server.kubeconfig))
    api.answer("DELETE", kinds.one("Lease", SYSTEM, "millrace-operator"))


def test_up_edited_down(cluster: Cluster, tmp_path: Path):
    with running(cluster, tmp_path / "log") as operator:
        operator.await_ready()
        cluster.create()
        cluster.reach_ready()
        assert set(cluster.pods()) == {
            *("words-acker-0", "words-acker-1", "words-driver-1"),
            *("words-state-0", "words-state-1"),
        }
        assert "DriverStarted" in cluster.reasons()
        cluster.edit({"ackers": {"replicas": 3}})
        cluster.reach(lambda: "words-acker-2" in cluster.pods(), "a third acker")
        cluster.reach_ready()
        assert operator.answers(pods.LIVE_PATH)[0] == 200
        # Deleted while the operator is dead, too: nothing has to be finished first.
        operator.kill()
        cluster.api.answer("DELETE", cluster.path)
        assert cluster.objects.get(cluster.path) is None


def test_kopf_leaves_no_trace_and_what_is_settled_is_not_written(cluster: Cluster, tmp_path: Path):
    with running(cluster, tmp_path / "log") as operator:
        cluster.create()
        cluster.reach_ready()
        found = [cluster.topology(), *cluster.children()]
        for one in found:
            metadata = one["metadata"]
            assert "finalizers" not in metadata, metadata["name"]
            noted = [name for name in metadata.get("annotations") or {} if "kopf" in name]
            assert noted == [], metadata["name"]
        assert [r for r in cluster.reasons() if "Logging" in r or "kopf" in r.lower()] == []

        operator.await_look()
        before = cluster.versions()
        operator.await_look()
        assert cluster.versions() == before


def test_it_catches_up_with_what_happened_while_it_was_dead(cluster: Cluster, tmp_path: Path):
    with running(cluster, tmp_path / "log"):
        cluster.create()
        cluster.reach_ready()
    before = {name: pod["metadata"]["uid"] for name, pod in cluster.pods().items()}
    cluster.end("words-driver-1")
    cluster.end("words-acker-0")
    cluster.run("words-state-1")
    cluster.edit({"ackers": {"replicas": 1}})
    with running(cluster, tmp_path / "log2"):
        wanted = {"words-acker-0", "words-driver-2", "words-state-0", "words-state-1"}
        cluster.reach(lambda: set(cluster.pods()) == wanted, "as asked")
        cluster.reach_ready()
    after = {name: pod["metadata"]["uid"] for name, pod in cluster.pods().items()}
    for name in ("words-state-0", "words-state-1"):
        assert after[name] == before[name]
    proposal = cluster.proposal()
    assert proposal is not None
    assert {m.run_id for m in proposal.members} == {"words-state-0-1", "words-state-1-2"}
    assert cluster.topology()["status"]["driver"]["number"] == 2


def test_a_topology_of_an_operator_without_a_root_gets_a_password_for_each_member(
    cluster: Cluster, tmp_path: Path
):
    """What an older operator has made is put there by hand; a real API server merges the rest."""
    path = kinds.one("Secret", cluster.namespace, "words-secret")

    def held() -> dict[str, str]:
        found = cluster.objects.get(path)
        assert found is not None
        return {key: base64.b64decode(text).decode() for key, text in found["data"].items()}

    with running(cluster, tmp_path / "log"):
        cluster.create()
        cluster.reach_ready()
    before = held()
    gone = {key: None for key in before if key not in (pods.PASSWORD_KEY, pods.RUN_KEY)}
    shared = base64.b64encode(b"a" * 48).decode()
    cluster.objects.merge(path, {"data": {**gone, pods.PASSWORD_KEY: shared}})
    assert held().keys() == {pods.PASSWORD_KEY, pods.RUN_KEY}
    living = {name: pod["metadata"]["uid"] for name, pod in cluster.pods().items()}
    with running(cluster, tmp_path / "log2"):
        until(lambda: pods.ROOT_KEY in held(), "a root", WAIT_S)
    after = held()
    assert after.keys() == before.keys()
    assert after[pods.RUN_KEY] == before[pods.RUN_KEY]
    assert after[pods.PASSWORD_KEY].splitlines()[0] == "a" * 48
    own = of_root_key(after[pods.ROOT_KEY], cluster.topology()["metadata"]["uid"])("words-state-1")
    assert after[pods.password_key("words-state-1")].strip() == own
    assert {name: pod["metadata"]["uid"] for name, pod in cluster.pods().items()} == living
    told = (tmp_path / "log2").read_text()
    words = {word for text in after.values() for word in text.split()} - {"default", "acker"}
    assert [word for word in words if word in told] == []


STRANGERS = 200
MOST_BYTES = 250 << 20
"""The chart gives the operator 512 MiB; without strangers it takes about 100."""


def test_what_others_label_does_not_fill_its_memory(cluster: Cluster, tmp_path: Path):
    """Whoever may make config maps in one namespace could end the operator of all of them."""
    labels = {pods.TOPOLOGY_LABEL: "words", "app.kubernetes.io/managed-by": "millrace-operator"}
    for number in range(STRANGERS):
        metadata = {"name": f"large-{number}", "namespace": cluster.namespace, "labels": labels}
        made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        assert cluster.objects.create({**made, "data": {"a": "x" * 1_000_000}})
    cluster.create()
    with running(cluster, tmp_path / "log") as operator:
        operator.await_ready()
        operator.await_look()
        told = (Path("/proc") / str(operator.process.pid) / "status").read_text()
        (peak_kib,) = re.findall(r"^VmHWM:\s+(\d+) kB$", told, re.MULTILINE)
        # It stands beside what has its names, and says so.
        reason = cluster.condition("Stalled")
    for number in range(STRANGERS):
        path = kinds.one("ConfigMap", cluster.namespace, f"large-{number}")
        cluster.api.answer("DELETE", path)
    assert int(peak_kib) << 10 < MOST_BYTES
    assert reason == ("True", "NamesTaken")


def test_one_stands_by_and_follows_at_once(cluster: Cluster, tmp_path: Path):
    with running(cluster, tmp_path / "one") as one:
        one.await_ready()
        with running(cluster, tmp_path / "two") as two:
            until(lambda: "stands by" in two.answers(pods.READY_PATH)[1], "stands by", WAIT_S)
            cluster.create()
            cluster.reach_ready()
            one.process.send_signal(signal.SIGTERM)
            assert one.process.wait(60) == 0
            cluster.end("words-driver-1")
            cluster.reach(lambda: "words-driver-2" in cluster.pods(), "the second leads")
            cluster.reach_ready()


def test_a_leader_without_its_lease_ends(cluster: Cluster, tmp_path: Path):
    with running(cluster, tmp_path / "log") as operator:
        operator.await_ready()
        path = kinds.one("Lease", SYSTEM, "millrace-operator")
        # Under its resourceVersion the leader's next renewal fails, and then it sees who holds it.
        cluster.objects.merge(path, {"spec": {"holderIdentity": "another"}})
        assert operator.process.wait(60) == 1


def test_a_pod_that_a_quota_refuses_is_told(cluster: Cluster, tmp_path: Path):
    """Quotas are counted by a controller that is not there; a policy of the API server refuses."""
    refusing = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "small", "namespace": cluster.namespace},
        "spec": {"limits": [{"type": "Container", "max": {"memory": "300Mi"}}]},
    }
    place = f"/api/v1/namespaces/{cluster.namespace}/limitranges"
    assert cluster.api.answer("POST", place, refusing)[0] == 201
    with running(cluster, tmp_path / "log"):
        cluster.create()
        cluster.reach(
            lambda: cluster.condition("StateAvailable") == ("False", "PodRefused"), "it is told"
        )
        cluster.api.answer("DELETE", f"{place}/small")
        cluster.reach_ready()


# -- what the tests without an API server take for granted


MAP: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}}


def test_conditions_of_writes_hold(cluster: Cluster):
    objects, space = cluster.objects, cluster.namespace
    made = {**MAP, "metadata": {"name": "m", "namespace": space}}
    path = kinds.one("ConfigMap", space, "m")
    assert objects.create(made)
    assert not objects.create(made)
    there = objects.get(path)
    assert there is not None
    meta = there["metadata"]
    held = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
    objects.apply({**made, "data": {"a": "c"}, "metadata": {**made["metadata"], **held}})
    with pytest.raises(StaleError):
        objects.apply({**made, "metadata": {**made["metadata"], **held}})
    with pytest.raises(StaleError):
        objects.delete(path, meta["uid"], meta["resourceVersion"])
    objects.delete(path, "another")
    assert objects.get(path) is not None
    objects.delete(path, meta["uid"])
    assert objects.get(path) is None
    objects.delete(path, meta["uid"])
    with pytest.raises(StaleError):
        objects.apply({**made, "metadata": {**made["metadata"], **held}})
    with pytest.raises(StaleError):
        objects.merge(path, {"data": {}})


def test_a_status_stands_under_its_version(cluster: Cluster):
    cluster.create()
    found = cluster.topology()
    meta = found["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion")
    told = {
        "apiVersion": found["apiVersion"],
        "kind": KIND,
        "metadata": {name: meta[name] for name in kept},
    }
    cluster.objects.apply({**told, "status": {"phase": "Running", "window": 3}}, "/status")
    assert cluster.topology()["status"] == {"phase": "Running", "window": 3}
    with pytest.raises(StaleError):
        cluster.objects.apply({**told, "status": {"phase": "Pending"}}, "/status")
    told["metadata"]["resourceVersion"] = cluster.topology()["metadata"]["resourceVersion"]
    cluster.objects.apply({**told, "status": {"phase": "Pending"}}, "/status")
    assert cluster.topology()["status"] == {"phase": "Pending"}
    cluster.api.answer("DELETE", cluster.path)
    with pytest.raises(StaleError):
        cluster.objects.apply({**told, "status": {}}, "/status")


def test_a_lease_has_one_holder(cluster: Cluster):
    one, two = (Lease(cluster.objects, SYSTEM, "test", me) for me in ("one", "two"))
    one.turn()
    two.turn()
    assert (one.leads(), two.leads()) == (True, False)
    one.turn()
    one.give_back()
    two.turn()
    assert (one.leads(), two.leads()) == (False, True)
