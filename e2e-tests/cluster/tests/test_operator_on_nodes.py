"""A topology from ``kubectl apply`` to ``kubectl delete`` on two nodes: the operator makes it all,
one pod of each kind and the operator itself are killed, and words are counted exactly.

What comes out is judged by the streams of a server outside the cluster alone: which records the
source makes, and which words these are, is said here once more.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from cluster_command import Tool

from millrace.guard import die_with
from millrace.homes import pods
from millrace.homes.pods import Role
from millrace_e2e.cluster import project
from millrace_e2e.cluster.layout import CONTROL_NAMESPACE, CONTROL_PLANE, Layout
from millrace_e2e.cluster.processes import in_network
from millrace_e2e.valkey import binary
from millrace_e2e.waiting import until

ROOT = Path(__file__).parents[3]
LOGS = ROOT / "e2e-tests" / "logs"

NAMESPACE = "jobs"
SYSTEM = "millrace-system"
SINK_PORT = 6390
RECORDS, RATE = 36_000, 100
"""Six minutes for what is done meanwhile."""

WAIT_S = 300.0

pytestmark = pytest.mark.timeout(2_400)
DRAIN_S = 900.0
TOPOLOGY_LABEL = f"{pods.TOPOLOGY_LABEL}=words"
CHILDREN = (
    "pods,configmaps,secrets,services,serviceaccounts,roles,rolebindings,"
    "poddisruptionbudgets,networkpolicies"
)

CODE = """
import pyarrow as pa

from millrace import vectorized


@vectorized(output="word string")
def split(batch):
    words, parents = [], []
    for row, number in enumerate(batch.column("id").to_pylist()):
        for word in (f"w{number % 97}", f"v{number % 7}", "all"):
            words.append(word)
            parents.append(row)
    return {"word": pa.array(words, pa.string())}, pa.array(parents, pa.int64())
"""


def manifests() -> list[dict[str, Any]]:
    """What a user applies."""
    metadata = {"namespace": NAMESPACE}
    code = {"counting.py": CODE}
    url = f"redis://{CONTROL_PLANE}:{SINK_PORT}/0"
    spec = {
        "ackers": {"replicas": 2},
        "stateServers": {"replicas": 2, "copies": 2, "memory": "256m"},
        "parallelism": 2,
        "code": {"configMap": "counting"},
        "spark": {
            "driver": {"memory": "768m"},
            "executors": {"instances": 2, "cores": 1, "memory": "768m"},
            "conf": {"spark.kubernetes.executor.request.cores": "100m"},
        },
        "sources": [
            {"name": "numbers", "generator": {"count": RECORDS, "rate": RATE, "partitions": 2}}
        ],
        "processors": [
            {"name": "split", "inputs": [{"from": "numbers"}], "function": "counting:split"},
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
                "redis": {"url": url, "mode": "stream", "stream": "totals"},
            }
        ],
    }
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "data": code}
        | {"metadata": {**metadata, "name": "counting"}},
        {"apiVersion": "millrace.dev/v1alpha1", "kind": "StreamTopology", "spec": spec}
        | {"metadata": {**metadata, "name": "words"}},
    ]


class Shown:
    """The server of the sink: beside the API server, where every pod can reach it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        command = [
            *(*in_network(CONTROL_NAMESPACE), str(binary()), "--bind", CONTROL_PLANE),
            *("--port", str(SINK_PORT), "--dir", str(folder), "--protected-mode", "no"),
            *("--save", "", "--appendonly", "yes", "--maxmemory-policy", "noeviction"),
        ]
        with (folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.client = redis.Redis(CONTROL_PLANE, SINK_PORT, decode_responses=True)
        until(self._answers, "the server of the sink", WAIT_S)

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False

    def window(self) -> int:
        """The last that shows anything."""
        last = self.client.xrevrange("totals", count=1)
        return int(last[0][0].partition("-")[0]) if last else 0

    def judge(self) -> dict[str, Any]:
        """Each row is a word's new total: all totals are right in the end, and none came twice."""
        found: dict[str, int] = {}
        repeated = 0
        for _, row in self.client.xrange("totals"):
            total = int(row["n"])
            repeated += total <= found.get(row["word"], 0)
            found[row["word"]] = total
        expected: Counter[str] = Counter(all=RECORDS)
        for number in range(RECORDS):
            expected.update((f"w{number % 97}", f"v{number % 7}"))
        wrong = [w for w in expected.keys() | found.keys() if expected[w] != found.get(w)]
        return {"wrong": wrong, "repeated": repeated, "words": sum(found.values())}

    def close(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()


class Operator:
    """Its process, beside the API server: pods can be asked from there."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.start()

    def start(self) -> None:
        command = [
            *(*in_network(CONTROL_NAMESPACE), sys.executable, "-m", "millrace_operator"),
            *("--runtime-image", f"{project.PREFIX}runtime:0.1.0"),
            *("--state-image", f"{project.PREFIX}state-server:0.1.0"),
            *("--own-namespace", SYSTEM, "--namespace", NAMESPACE, "--log-text"),
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, "KUBECONFIG": str(Layout.standard().kubeconfig)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=partial(die_with, os.getpid()),
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


class World:
    """The namespace as a user sees it."""

    def __init__(self, tool: Tool, folder: Path) -> None:
        self.tool = tool
        self.shown = Shown(folder / "sink")
        self.operator = Operator(folder / "operator.log")

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.tool.kubectl("-n", NAMESPACE, *arguments, stdin=stdin)

    def get(self, *what: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", *what, "-o", "json"))
        return found

    def pods(self, role: Role) -> dict[str, dict[str, Any]]:
        selector = f"{TOPOLOGY_LABEL},{pods.ROLE_LABEL}={role.value}"
        items = self.get("pods", "-l", selector)["items"]
        return {one["metadata"]["name"]: one for one in items}

    def ready(self, role: Role) -> set[str]:
        """Uids of pods that are ready and are to stay."""
        return {
            pod["metadata"]["uid"]
            for pod in self.pods(role).values()
            if "deletionTimestamp" not in pod["metadata"]
            and pod["status"]["phase"] == "Running"
            and any(
                c["type"] == "Ready" and c["status"] == "True"
                for c in pod["status"].get("conditions", [])
            )
        }

    def phase(self) -> str:
        return str(self.get("streamtopology", "words").get("status", {}).get("phase", ""))

    def until_driver_pod_s(self) -> float:
        """From the topology's creation to the driver pod's, in whole seconds of the API server."""
        made = [
            datetime.fromisoformat(one["metadata"]["creationTimestamp"])
            for one in (self.get("streamtopology", "words"), self.get("pod", "words-driver-1"))
        ]
        return (made[1] - made[0]).total_seconds()

    def await_ready(self) -> None:
        condition = "--for=condition=Ready"
        self.kubectl("wait", condition, "streamtopology/words", f"--timeout={WAIT_S:g}s")

    def await_windows(self) -> None:
        """Two more windows are shown: the last one may have been on its way."""
        last = self.shown.window()
        until(lambda: self.shown.window() >= last + 2, f"windows behind {last}", WAIT_S, 0.2)

    def replaced(self, role: Role, name: str, *how: str) -> None:
        """Delete a pod; as many others of its kind are ready again, and windows are shown."""
        count = len(self.ready(role))
        uid = self.pods(role)[name]["metadata"]["uid"]
        self.kubectl("delete", "pod", name, "--wait=false", *how)

        def others() -> bool:
            found = self.ready(role)
            return len(found) == count and uid not in found

        until(others, f"{count} pods of kind {role.value} without the one deleted", WAIT_S, 0.5)
        self.await_windows()
        assert self.phase() != "Finished", "the input is drained before all is killed"

    def left(self) -> list[str]:
        return self.kubectl("get", CHILDREN, "-l", TOPOLOGY_LABEL, "-o", "name").split()

    def story(self) -> str:
        told = [self.operator.log.read_text()[-6000:]]
        asked = [
            *(("describe", "streamtopology", "words"), ("get", "pods", "-o", "wide")),
            *(("get", "events", "--sort-by=.lastTimestamp"), ("describe", "pods")),
            ("logs", "--prefix", "--tail=40", "-l", TOPOLOGY_LABEL),
        ]
        for what in asked:
            done = subprocess.run(
                self.tool.command("-n", NAMESPACE, *what),
                capture_output=True,
                text=True,
                check=False,
            )
            told.append(done.stdout[-12_000:] + done.stderr)
        return "\n".join(told)


@pytest.fixture(scope="module")
def images(tool: Tool) -> None:
    """A cluster of two nodes that have the images, and the definitions."""
    tool.run("up", "--nodes", "2")
    for archive in project.images(print):
        tool.run("load", str(archive))
    tool.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
    names = [f"crd/{plural}.millrace.dev" for plural in ("streamtopologies", "topologysnapshots")]
    tool.kubectl("wait", "--for=condition=Established", *names, "--timeout=60s")


@pytest.fixture
def world(tool: Tool, images: None, tmp_path: Path) -> Iterator[World]:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    spaces = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        for metadata in ({"name": NAMESPACE, "labels": labels}, {"name": SYSTEM})
    ]
    document = {"apiVersion": "v1", "kind": "List", "items": spaces}
    tool.kubectl("apply", "-f", "-", stdin=json.dumps(document))
    world = World(tool, tmp_path)
    try:
        yield world
    except BaseException:
        LOGS.mkdir(exist_ok=True)
        (LOGS / "operator-on-nodes.txt").write_text(world.story())
        raise
    finally:
        world.operator.kill()
        world.shown.close()
        tool.kubectl("delete", "namespace", NAMESPACE, SYSTEM, "--wait=true", "--timeout=180s")


def test_from_apply_to_delete_words_are_counted_exactly_whatever_is_killed(world: World) -> None:
    document = {"apiVersion": "v1", "kind": "List", "items": manifests()}
    began_s = time.monotonic()
    world.kubectl("apply", "-f", "-", stdin=json.dumps(document))
    world.await_ready()
    ready_s = time.monotonic() - began_s
    world.await_windows()
    print(json.dumps({"ready_s": round(ready_s, 1), "driver_pod_s": world.until_driver_pod_s()}))
    assert len(world.ready(Role.EXECUTOR)) == 2
    nodes = {pod["spec"]["nodeName"] for pod in world.pods(Role.STATE_SERVER).values()}
    assert len(nodes) == 2

    now = ("--force", "--grace-period=0")
    world.replaced(Role.ACKER, "words-acker-0")
    world.replaced(Role.STATE_SERVER, "words-state-1", *now)
    world.await_ready()
    world.replaced(Role.EXECUTOR, min(world.pods(Role.EXECUTOR)), *now)
    world.replaced(Role.DRIVER, "words-driver-1", *now)
    world.replaced(Role.STATE_SERVER, "words-state-0")
    # Nobody sees to it while the operator is dead, and nothing waits for it.
    world.operator.kill()
    world.kubectl("delete", "pod", "words-acker-1", *now)
    world.await_windows()
    assert len(world.ready(Role.ACKER)) == 1
    world.operator.start()
    until(lambda: len(world.ready(Role.ACKER)) == 2, "the acker is back", WAIT_S, 0.5)
    assert set(world.pods(Role.DRIVER)) == {"words-driver-2"}
    assert world.phase() != "Finished"

    until(lambda: world.phase() == "Finished", "all input is drained", DRAIN_S, 1.0)
    assert world.shown.judge() == {"wrong": [], "repeated": 0, "words": 3 * RECORDS}
    reasons = {one["reason"] for one in world.get("events")["items"]}
    assert reasons >= {"DriverStarted", "DriverGone", "StateServerLost", "AckerLost"}

    world.kubectl("delete", "streamtopology", "words", f"--timeout={WAIT_S:g}s")
    until(lambda: world.left() == [], "nothing is left of the topology", WAIT_S, 0.5)
    assert world.operator.end() == 0
