"""Word count on two nodes from manifests written by hand, each image as it was built, under the
restricted standard; with all pods alive, and while one of each kind is deleted.

The example's own check judges, which knows nothing of Millrace.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster_command import FAILED

from millrace.chaos.cluster import ClusterTarget
from millrace.chaos.plan import VictimKind
from millrace.clock import SystemClock
from millrace.homes import codec, pods
from millrace.homes.documents import Proposal, Status
from millrace.homes.pods import Role
from millrace.local.inspect.state import Holder, scan_of
from millrace.protocol.types import Member
from millrace.remote.cluster import connect
from millrace.remote.servers import reachable
from millrace.remote.topology import find
from millrace_e2e.cluster import project
from millrace_e2e.cluster.layout import Layout
from millrace_e2e.podmanifests import Manifest, Pods
from millrace_e2e.topologies import word_count
from millrace_e2e.waiting import until

ROOT = Path(__file__).parents[3]
LOGS = ROOT / "e2e-tests" / "logs"
EXAMPLE = ROOT / "examples" / "wordcount"

NAMESPACE = "words"
WORDS = ["mill", "race", "wheel", "water", "grain", "stone", "flour", "sack"]
LINES = 1_500
# With all that is built before: a base of Debian packages, the images, a cluster that has them.
pytestmark = pytest.mark.timeout(4_000)
POD_S = 300.0
RUN_S = 900.0


class World:
    """The namespace, its data on a volume that both nodes see, and what is said to it."""

    def __init__(self, tool: Any, folder: Path) -> None:
        self.kubectl = tool.kubectl
        self.data = folder / "data"
        self.pods = Pods("words", NAMESPACE, "uid-words", "data", prefix=project.PREFIX)
        self._roots = secrets.token_hex(24), secrets.token_hex(32)

    def begin(self) -> None:
        (self.data / "texts").mkdir(parents=True)
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
        self.apply(*self.pods.objects(*self._roots))

    def pods_of(self, uid: str) -> Pods:
        """Those of a topology that has this uid, which its members' passwords are made from."""
        made = replace(self.pods, uid=uid)
        self.apply(*made.objects(*self._roots))
        return made

    def feed(self, name: str, lines: int) -> None:
        """A text that is there as a whole or not at all."""
        dice = random.Random(name)
        draft = self.data / name
        draft.write_text("".join(" ".join(dice.choices(WORDS, k=6)) + "\n" for _ in range(lines)))
        draft.chmod(0o644)
        draft.rename(self.data / "texts" / name)

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

    def delete(self, pod: str, forced: bool) -> None:
        """Returns when it is gone from the API server."""
        how = ["--force", "--grace-period=0"] if forced else []
        self.kubectl("-n", NAMESPACE, "delete", "pod", pod, "--wait=true", *how)

    def executors(self) -> list[str]:
        """Those that run, the newest last."""
        found = self.get("pods", "--selector", f"{pods.ROLE_LABEL}={Role.EXECUTOR.value}")["items"]
        found.sort(key=lambda one: str(one["metadata"]["creationTimestamp"]))
        return [
            one["metadata"]["name"]
            for one in found
            if one["status"]["phase"] == "Running" and "deletionTimestamp" not in one["metadata"]
        ]

    def windows(self) -> int:
        """How many windows the sink shows."""
        shown = self.judge()["windows"] if (self.data / "counts").exists() else 0
        assert isinstance(shown, int)
        return shown

    def status(self) -> Status:
        data = self.get("configmap", pods.journal_map("words")).get("data", {})
        return codec.decode(Status, data[pods.STATUS]) if pods.STATUS in data else Status()

    def judge(self) -> dict[str, Any]:
        command = [sys.executable, str(EXAMPLE / "count_words.py")]
        folders = [str(self.data / "texts"), str(self.data / "counts")]
        done = subprocess.run([*command, *folders], capture_output=True, text=True, check=False)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def keep_logs(self, folder: Path) -> None:
        """What pods, events and the driver's journal say, a file each."""
        folder.mkdir(parents=True, exist_ok=True)
        here = ["-n", NAMESPACE]
        asked = {"pods": ["describe", "pods"], "events": ["get", "events"]}
        asked |= {"maps": ["get", "configmaps", "-o", "yaml"]}
        for one in self.get("pods")["items"]:
            pod = one["metadata"]["name"]
            asked[pod] = ["logs", pod]
            if one["status"].get("containerStatuses", [{}])[0].get("restartCount"):
                asked[f"{pod}-before"] = ["logs", pod, "--previous"]
        for name, words in asked.items():
            # A container that has not started has no log, and that is to be seen too.
            try:
                text = self.kubectl(*here, *words)
            except AssertionError as error:
                text = str(error)
            (folder / f"{name}.txt").write_text(text)

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


def topology(records: int, watch: bool, servers: int) -> dict[str, Any]:
    return {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "StreamTopology",
        "metadata": {"name": "words"},
        "spec": {
            "window": {"maxRecords": records},
            "parallelism": 2,
            "stateServers": {"replicas": servers, "copies": servers},
            "code": {"path": "/opt/millrace/examples/wordcount"},
            "spark": {
                "executors": {"instances": 2, "cores": 1, "memory": "1g"},
                "conf": {"spark.kubernetes.executor.request.cores": "100m"},
            },
            **word_count({"watch": watch}),
        },
    }


@pytest.fixture(scope="module")
def images(tool: Any) -> None:
    """A cluster of two nodes that have the images, built without an engine."""
    tool.run("up", "--nodes", "2")
    for archive in project.images(print):
        tool.run("load", str(archive))


@pytest.fixture
def world(
    tool: Any, images: None, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[World]:
    world = World(tool, tmp_path)
    world.begin()
    yield world
    if request.node.stash.get(FAILED, False):
        world.keep_logs(LOGS / request.node.name)
    tool.kubectl("delete", "namespace", NAMESPACE, "--wait=true", "--timeout=120s")
    tool.kubectl("delete", "persistentvolume", "data")


@pytest.fixture
def crds(tool: Any, images: None) -> Iterator[None]:
    """The definitions, which these tests do without elsewhere."""
    folder = str(ROOT / "crds")
    tool.kubectl("apply", "--server-side", "-f", folder)
    tool.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    yield
    tool.kubectl("delete", "-f", folder, "--wait=true")


def test_words_are_counted_exactly_on_two_nodes(world: World) -> None:
    made = world.pods
    for number in range(4):
        world.feed(f"{number}.txt", 5_000)
    world.apply(made.state_server(0), made.acker(0))
    driver = pods.pod_name("words", Role.DRIVER, 1)
    # Large enough for windows of several tasks, on several executors.
    document = topology(records=6_000, watch=False, servers=1)
    world.apply(made.config(document, 1), made.driver(1))
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


@pytest.mark.parametrize("forced", [True, False], ids=["forced", "graceful"])
def test_words_are_counted_exactly_while_pods_of_every_kind_are_deleted(
    world: World, forced: bool
) -> None:
    """Each in the middle of windows that are sealed; the test brings pods back as the operator
    does, Spark its executors."""
    made, servers, ackers = world.pods, ["words-state-0", "words-state-1"], ["words-acker-0"]
    document = topology(records=500, watch=True, servers=2)

    def start_driver(number: int) -> None:
        world.apply(made.config(document, number), made.driver(number))

    def lose_acker() -> None:
        world.delete(ackers[0], forced)
        world.apply(made.acker(0))
        world.propose(servers, ackers)

    def lose_executor() -> None:
        lost = until(world.executors, "an executor", POD_S, 0.5)[0]
        world.delete(lost, forced)

    def lose_state_server() -> None:
        world.delete(servers[1], forced)
        world.apply(made.state_server(1))
        world.propose(servers, ackers)

    def lose_driver() -> None:
        world.delete("words-driver-1", forced)
        start_driver(2)
        # The one whose pod is gone may still seal until its node has ended it.
        until(lambda: world.status().execution == 2, "execution 2", RUN_S, 0.5)

    def lose(name: str, kill: Callable[[], None]) -> None:
        before = world.windows()
        world.feed(f"{name}-1.txt", LINES)
        until(lambda: world.windows() > before, f"a window before {name} is deleted", RUN_S, 0.2)
        # Windows of these are open when the pod goes.
        world.feed(f"{name}-2.txt", 4 * LINES)
        began = time.monotonic()
        kill()
        seen = world.windows()
        world.feed(f"{name}-3.txt", LINES)
        until(lambda: world.windows() > seen, f"a window behind the end of {name}", RUN_S, 0.2)
        print(f"{name}: the next window is shown after {time.monotonic() - began:.1f} s")
        until(lambda: world.judge()["equal"], f"all words in spite of {name}", RUN_S, 0.5)

    world.apply(made.state_server(0), made.state_server(1), made.acker(0))
    start_driver(1)
    world.propose(servers, ackers)
    lose("acker", lose_acker)
    lose("executor", lose_executor)
    lose("state-server", lose_state_server)
    lose("driver", lose_driver)

    world.delete("words-driver-2", forced=False)
    verdict = world.judge()
    assert (verdict["equal"], verdict["repeated"]) == (True, 0), verdict
    assert verdict["words"] == 4 * 6 * LINES * 6
    assert world.status().state == "asked"
    assert world.status().execution == 2


def test_the_command_line_reaches_into_pods(
    world: World, crds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State through the port of a pod, SIGKILL by a command in one: the kubelet's part of it."""
    document = topology(records=500, watch=True, servers=1)
    world.apply({**document, "metadata": {"name": "words", "namespace": NAMESPACE}})
    uid = world.get("streamtopology", "words")["metadata"]["uid"]
    made, servers, ackers = world.pods_of(uid), ["words-state-0"], ["words-acker-0"]
    world.apply(made.state_server(0), made.acker(0), made.config(document, 1), made.driver(1))
    world.propose(servers, ackers)
    world.feed("0.txt", LINES)
    until(lambda: world.judge()["equal"], "all words", RUN_S, 0.5)

    monkeypatch.setenv("KUBECONFIG", str(Layout.standard().kubeconfig))
    words = find(connect(None, NAMESPACE), "words")
    with reachable(words) as clients:
        rows = scan_of(Holder(words.model, clients), "counts").rows.to_pylist()
    text = (world.data / "texts" / "0.txt").read_text()
    assert {row["word"]: row["n"] for row in rows} == Counter(text.split())

    target = ClusterTarget(words, SystemClock(), time.sleep, ways=("SIGKILL",))
    for kind, pod in ((VictimKind.ACKER, ackers[0]), (VictimKind.STATE_SERVER, servers[0])):
        victim = target.kill(kind, random.Random(1))
        assert victim is not None
        assert (victim.name, victim.way) == (pod, "SIGKILL")
        world.propose(servers, ackers)
    world.feed("1.txt", LINES)
    until(lambda: world.judge()["equal"], "all words in spite of it", RUN_S, 0.5)
    victim = target.kill(VictimKind.DRIVER, random.Random(1))
    assert victim is not None

    def ended() -> bool:
        return bool(world.get("pod", victim.name)["status"]["phase"] == "Failed")

    # A pod's phase may follow its container's end.
    until(ended, "the driver's pod has failed", POD_S, 0.2)
    status = world.get("pod", victim.name)["status"]
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137


def test_words_are_counted_exactly_though_a_node_is_killed(
    world: World, tool: Any, crds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node of driver, acker and one state server, by the command that a campaign is given; the
    test brings pods back as the operator does, and then the node comes back."""
    document = topology(records=500, watch=True, servers=2)
    world.apply({**document, "metadata": {"name": "words", "namespace": NAMESPACE}})
    uid = world.get("streamtopology", "words")["metadata"]["uid"]
    made, ackers = world.pods_of(uid), ["words-acker-0"]
    servers = ["words-state-0", "words-state-1"]
    world.apply(on_node("n1", made.state_server(0)), made.config(document, 1))
    crew = (made.state_server(1), made.acker(0), made.driver(1))
    world.apply(*(on_node("n2", pod) for pod in crew))
    world.propose(servers, ackers)
    world.feed("0.txt", LINES)
    until(lambda: world.judge()["equal"], "all words", RUN_S, 0.5)
    # Windows of these are open when the node goes.
    world.feed("1.txt", 4 * LINES)

    monkeypatch.setenv("KUBECONFIG", str(Layout.standard().kubeconfig))
    words = find(connect(None, NAMESPACE), "words")
    command = f"{sys.executable} -m millrace_e2e.cluster --cluster=own kill-node {{node}}"
    target = ClusterTarget(words, SystemClock(), time.sleep, node_command=command)
    began = time.monotonic()
    victim = target.kill(VictimKind.NODE, Second())
    assert victim is not None
    assert (victim.name, victim.way) == ("n2", "command")
    until(lambda: not node_answers(tool, "n2"), "n2 is noticed", POD_S, 0.5)
    noticed, seen = time.monotonic(), world.windows()
    there = world.get("pods")["items"]
    for pod in (one["metadata"]["name"] for one in there if one["spec"].get("nodeName") == "n2"):
        tool.kubectl("-n", NAMESPACE, "delete", "pod", pod, "--force", "--grace-period=0")
    world.apply(made.state_server(1), made.acker(0), made.config(document, 2), made.driver(2))
    world.propose(servers, ackers)
    world.feed("2.txt", LINES)
    until(lambda: world.windows() > seen, "a window behind the end of n2", RUN_S, 0.2)
    now = time.monotonic()
    print(f"node: noticed after {noticed - began:.1f} s, a window {now - noticed:.1f} s later")
    until(lambda: world.judge()["equal"], "all words in spite of it", RUN_S, 0.5)
    assert world.status().execution == 2

    tool.run("start-node", "n2")
    until(lambda: node_answers(tool, "n2"), "n2 is back", POD_S, 0.5)
    world.feed("3.txt", LINES)
    until(lambda: world.judge()["equal"], "all words behind its return", RUN_S, 0.5)
    verdict = world.judge()
    assert verdict["repeated"] == 0, verdict
    assert verdict["words"] == 7 * LINES * 6


class Second(random.Random):
    """The node that is killed is the second."""

    def choice(self, found: Any) -> Any:
        return found[1]


def on_node(name: str, pod: Manifest) -> Manifest:
    selected = {"nodeSelector": {"kubernetes.io/hostname": name}}
    return {**pod, "spec": {**pod["spec"], **selected}}


def node_answers(tool: Any, name: str) -> bool:
    conditions = json.loads(tool.kubectl("get", "node", name, "-o", "json"))["status"]["conditions"]
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
