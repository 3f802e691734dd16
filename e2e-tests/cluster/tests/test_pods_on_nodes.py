"""Word count on two nodes from manifests written by hand: one driver, two executors, one acker,
one state server, under the restricted standard, each image as it was built."""

from __future__ import annotations

import json
import os
import random
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.homes import codec, pods
from millrace.homes.documents import Proposal, Status
from millrace.homes.pods import Role
from millrace.protocol.types import Member
from millrace_e2e.podmanifests import Manifest, Pods
from millrace_e2e.waiting import until

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "wordcount"
NAMESPACE = "words"
WORDS = ["mill", "race", "wheel", "water", "grain", "stone", "flour", "sack"]
POD_S = 180.0
RUN_S = 420.0


class World:
    """The namespace, its data on a volume that both nodes see, and what is said to it."""

    def __init__(self, tool: Any, folder: Path) -> None:
        self.kubectl = tool.kubectl
        self.data = folder / "data"
        self.pods = Pods("words", NAMESPACE, "uid-words", "data")

    def begin(self) -> None:
        (self.data / "texts").mkdir(parents=True)
        dice = random.Random(11)
        for number in range(4):
            lines = (" ".join(dice.choices(WORDS, k=6)) + "\n" for _ in range(5_000))
            (self.data / "texts" / f"{number}.txt").write_text("".join(lines))
        for path in (self.data, self.data / "texts"):
            os.chown(path, pods.USER_ID, pods.USER_ID)
            path.chmod(0o755)
        for above in self.data.parents:
            if above.stat().st_mode & 0o001 == 0:
                above.chmod(0o711)
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        metadata = {"name": NAMESPACE, "labels": labels}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        self.apply(*_volume(self.data))
        self.apply(*self.pods.objects(secrets.token_hex(24), secrets.token_hex(32)))

    def apply(self, *manifests: Manifest) -> None:
        document = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        self.kubectl("apply", "-f", "-", stdin=json.dumps(document))

    def get(self, *what: str) -> dict[str, Any]:
        found = self.kubectl("-n", NAMESPACE, "get", *what, "-o", "json")
        document: dict[str, Any] = json.loads(found)
        return document

    def ready(self, pod: str) -> bool:
        status = self.get("pod", pod)["status"]
        assert status["phase"] not in ("Failed", "Succeeded"), self.story(pod)
        conditions = status.get("conditions", [])
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def ask(self, pod: str, path: str) -> str:
        place = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:{pods.HEALTH_PORT}/proxy{path}"
        said: str = self.kubectl("get", "--raw", place)
        return said

    def propose(self, servers: list[str], ackers: list[str]) -> None:
        """As the operator does."""
        for pod in (*servers, *ackers):
            until(lambda pod=pod: self.ready(pod), f"{pod} is ready", POD_S, 0.5)  # type: ignore[misc]
        seen = [json.loads(self.ask(server, pods.INCARNATION_PATH)) for server in servers]
        members = tuple(Member(one["name"], one["runId"], one["url"]) for one in seen)
        text = json.dumps(codec.encode(Proposal(members, tuple(ackers))))
        patch = json.dumps({"data": {pods.PROPOSAL: text}})
        inbox = pods.inbox_map("words")
        self.kubectl("-n", NAMESPACE, "patch", "configmap", inbox, "--type=merge", "-p", patch)

    def status(self) -> Status:
        data = self.get("configmap", pods.journal_map("words")).get("data", {})
        return codec.decode(Status, data[pods.STATUS]) if pods.STATUS in data else Status()

    def judge(self) -> dict[str, Any]:
        command = [sys.executable, str(EXAMPLE / "count_words.py")]
        folders = [str(self.data / "texts"), str(self.data / "counts")]
        done = subprocess.run([*command, *folders], capture_output=True, text=True, check=False)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def story(self, pod: str) -> str:
        log = self.kubectl("-n", NAMESPACE, "logs", pod, "--tail=60")
        return f"{json.dumps(self.get('pod', pod)['status'], indent=1)}\n{log}"


def _volume(folder: Path) -> list[Manifest]:
    """A folder of the machine, which both nodes see; pods know of a claim alone."""
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "hostPath": {"path": str(folder)},
        "claimRef": {"namespace": NAMESPACE, "name": "data"},
    }
    claim = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "data"}}
        | {"spec": spec},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": claim}
        | {"metadata": {"name": "data", "namespace": NAMESPACE}},
    ]


def topology() -> dict[str, Any]:
    return {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "StreamTopology",
        "metadata": {"name": "words"},
        "spec": {
            # Large enough for windows of several tasks, on several executors.
            "window": {"maxRecords": 6000},
            "parallelism": 2,
            "code": {"path": "/opt/millrace/examples/wordcount"},
            "spark": {
                "executors": {"instances": 2, "cores": 1, "memory": "1g"},
                "conf": {"spark.kubernetes.executor.request.cores": "100m"},
            },
            "sources": [{"name": "lines", "files": {"path": "texts", "watch": False}}],
            "processors": [
                {"name": "split", "inputs": [{"from": "lines"}], "function": "wordcount:split"},
                {
                    "name": "counts",
                    "inputs": [{"from": "split", "key": ["word"]}],
                    "aggregate": {"columns": [{"name": "n", "function": "count"}]},
                },
            ],
            "sinks": [
                {
                    "name": "totals",
                    "inputs": [{"from": "counts"}],
                    "files": {"path": "counts", "format": "jsonLines"},
                }
            ],
        },
    }


@pytest.fixture(scope="module")
def images(tool: Any) -> None:
    """A cluster of two nodes that have the images, built without an engine."""
    tool.run("up", "--nodes", "2")
    command = [sys.executable, str(ROOT / "images" / "build.py"), "--engine", "buildah"]
    built = subprocess.run(
        [*command, "--base", "mmdebstrap"], stdout=subprocess.PIPE, text=True, check=True
    )
    for archive in built.stdout.split():
        tool.run("load", archive)


@pytest.fixture
def world(tool: Any, images: None, tmp_path: Path) -> Iterator[World]:
    world = World(tool, tmp_path)
    world.begin()
    yield world
    tool.kubectl("delete", "namespace", NAMESPACE, "--wait=true", "--timeout=120s")
    tool.kubectl("delete", "persistentvolume", "data")


def test_words_are_counted_exactly_on_two_nodes(world: World) -> None:
    made = world.pods
    world.apply(made.state_server(0), made.acker(0))
    driver = pods.pod_name("words", Role.DRIVER, 1)
    world.apply(made.config(topology(), 1), made.driver(1))
    world.propose(["words-state-0"], ["words-acker-0"])

    nodes: dict[str, str] = {}

    def ended() -> bool:
        for pod in world.get("pods")["items"]:
            nodes[pod["metadata"]["name"]] = pod["spec"].get("nodeName", "")
        return bool(world.get("pod", driver)["status"]["phase"] in ("Succeeded", "Failed"))

    until(ended, "the driver has drained its source", RUN_S, 0.5)
    status = world.get("pod", driver)["status"]
    state = status["containerStatuses"][0]["state"]["terminated"]
    assert state["exitCode"] == 0, world.story(driver)
    assert state["message"].startswith("drained"), state

    verdict = world.judge()
    assert (verdict["equal"], verdict["repeated"]) == (True, 0), verdict
    assert verdict["words"] == 4 * 5_000 * 6
    executors = [name for name in nodes if name.startswith(f"{driver}-exec-")]
    assert len(executors) == 2
    assert len(set(nodes.values())) == 2, nodes
    told = world.status()
    assert told.state == "drained"
    assert told.totals is not None
    assert told.totals.roots == 4 * 5_000
