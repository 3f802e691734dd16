"""What goes wrong around a topology, on two nodes: each ends in a condition and in an event of the
topology that name the cause, and in a topology that goes on once it is mended.

Beside that a server outside the cluster says what came out: rows of the source, each once and in
their order through all of it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from chart_command import Shell
from words_on_nodes import NAME, RESTRICTED, WAIT_S, Manifest, Space, space_of

from millrace.homes.pods import Role
from millrace_e2e.cluster import project
from millrace_e2e.cluster.layout import CONTROL_NAMESPACE, CONTROL_PLANE
from millrace_e2e.cluster.processes import in_network
from millrace_e2e.valkey import binary
from millrace_e2e.waiting import until

SPACE = "troubles"
ACKER, SERVER = f"{NAME}-acker-0", f"{NAME}-state-0"
PORT, STREAM = 6391, "rows"
PASSWORD = "quiet-water"
SECRET, CODE = "store", "rows"
CAUSE = "the table of rates is not there"

SOUND = """
from millrace import row


@row(output="id long")
def keep(record):
    return {"id": record["id"]}
"""
BROKEN = f"raise RuntimeError({CAUSE!r})\n"

SPEC: Manifest = {
    "window": {"maxRecords": 1_000, "maxInterval": "100ms", "minInterval": "100ms"},
    "ackers": {"replicas": 1},
    "stateServers": {"replicas": 1, "memory": "128m"},
    "code": {"configMap": CODE},
    "spark": {"driver": {"memory": "768m"}},
    "pods": {"driver": {"resources": {"requests": {"cpu": "200m"}}}},
    "sources": [{"name": "numbers", "generator": {"rate": 50}}],
    "processors": [{"name": "kept", "inputs": [{"from": "numbers"}], "function": "rows:keep"}],
    "sinks": [
        {
            "name": "shown",
            "inputs": [{"from": "kept"}],
            "redis": {
                "url": f"redis://{CONTROL_PLANE}:{PORT}/0",
                "password": {"secretRef": {"name": SECRET, "key": "password"}},
                "mode": "stream",
                "stream": STREAM,
            },
        }
    ],
}

pytestmark = pytest.mark.timeout(1_200)


@contextmanager
def store(folder: Path) -> Iterator[redis.Redis]:
    """The server of the sink, which asks for a password: beside the API server, where every pod can
    reach it."""
    command = [
        *(*in_network(CONTROL_NAMESPACE), str(binary()), "--bind", CONTROL_PLANE),
        *("--port", str(PORT), "--dir", str(folder), "--requirepass", PASSWORD),
        *("--save", "", "--appendonly", "yes", "--maxmemory-policy", "noeviction"),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    client = redis.Redis(CONTROL_PLANE, PORT, password=PASSWORD, decode_responses=True)

    def answers() -> bool:
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False

    try:
        until(answers, "the server of the sink", WAIT_S)
        yield client
    finally:
        client.close()
        process.kill()
        process.wait()


class Troubled:
    """The topology, and what is told of it."""

    def __init__(self, space: Space, client: redis.Redis) -> None:
        self.space, self._client = space, client

    def begin(self) -> None:
        name = self.space.name
        labels = {"name": name, "labels": RESTRICTED}
        self.space.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": labels})
        self.code(SOUND)
        self.password(PASSWORD)
        about = {"name": NAME, "namespace": name}
        made = {"apiVersion": "millrace.dev/v1alpha1", "kind": "StreamTopology"}
        self.space.apply({**made, "metadata": about, "spec": SPEC})
        self.space.await_ready()

    def code(self, text: str) -> None:
        about = {"name": CODE, "namespace": self.space.name}
        made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about}
        self.space.apply({**made, "data": {f"{CODE}.py": text}})

    def password(self, text: str) -> None:
        about = {"name": SECRET, "namespace": self.space.name}
        made = {"apiVersion": "v1", "kind": "Secret", "metadata": about}
        self.space.apply({**made, "stringData": {"password": text}})

    def restart(self) -> None:
        nonce = self.space.topology()["spec"].get("restartNonce", 0)
        self.space.patch({"restartNonce": nonce + 1})

    def condition(self, kind: str) -> Manifest:
        status = self.space.topology().get("status", {})
        every = {one["type"]: one for one in status.get("conditions", [])}
        found: Manifest = every.get(kind, {})
        return found

    def await_trouble(self, kind: str, reason: str, *words: str) -> None:
        """A condition, the topology's own and an event say the reason, with these words."""
        holds = "True" if kind == "Stalled" else "False"
        for one, status in ((kind, holds), ("Ready", "False")):
            says = partial(self._says, one, status, reason, words)
            until(says, f"{one} is {status} for {reason}, and names {words}", WAIT_S, 0.3)
        self.await_event(reason, *words)

    def _says(self, kind: str, status: str, reason: str, words: tuple[str, ...]) -> bool:
        found = self.condition(kind)
        named = all(word in found.get("message", "") for word in words)
        return named and (found.get("status"), found.get("reason")) == (status, reason)

    def await_event(self, reason: str, *words: str) -> None:
        """An event of the topology, not of its pods: who looks at it alone shall find it."""
        chosen = f"involvedObject.kind=StreamTopology,reason={reason}"
        told = partial(self.space.get, "events", "--field-selector", chosen)

        def named() -> bool:
            texts = [one["message"] for one in told()["items"]]
            return any(all(word in text for word in words) for text in texts)

        until(named, f"an event {reason} that names {words}", WAIT_S, 0.3)

    def await_mended(self) -> None:
        """Ready, and rows go on."""
        self.space.await_ready()
        assert self.condition("Stalled")["status"] == "False"
        last = len(self.rows())
        until(lambda: len(self.rows()) > last, f"rows behind {last}", WAIT_S, 0.3)

    def rows(self) -> list[int]:
        found: Any = self._client.xrange(STREAM)
        return [int(fields["id"]) for _, fields in found]


@pytest.fixture(scope="module")
def troubled(
    shell: Shell, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Troubled]:
    with (
        store(tmp_path_factory.mktemp("store")) as client,
        space_of(shell, SPACE, request) as space,
    ):
        made = Troubled(space, client)
        made.begin()
        made.await_mended()
        yield made
        space.delete()


def test_an_image_that_is_not_there(troubled: Troubled) -> None:
    image = f"{project.PREFIX}nowhere:1"
    troubled.space.patch({"code": {"configMap": None, "image": image}})
    troubled.await_trouble("SparkRunning", "ImagePullFailed", f"{NAME}-driver-", image)
    troubled.space.patch({"code": {"configMap": CODE, "image": None}})
    troubled.await_mended()


def test_a_driver_for_which_no_node_has_room(troubled: Troubled) -> None:
    cpu = SPEC["pods"]["driver"]["resources"]["requests"]["cpu"]
    troubled.space.patch({"pods": {"driver": {"resources": {"requests": {"cpu": "100"}}}}})
    troubled.await_trouble("SparkRunning", "Unschedulable", f"{NAME}-driver-", "Insufficient cpu")
    troubled.space.patch({"pods": {"driver": {"resources": {"requests": {"cpu": cpu}}}}})
    troubled.await_mended()


def test_code_that_raises_when_it_is_imported(troubled: Troubled) -> None:
    troubled.code(BROKEN)
    troubled.restart()
    troubled.await_trouble("Stalled", "DriverGaveUp", f"{NAME}-driver-", CAUSE)
    troubled.code(SOUND)
    troubled.restart()
    troubled.await_mended()


def test_a_password_that_the_server_of_a_sink_refuses(troubled: Troubled) -> None:
    troubled.password("loud-water")
    troubled.restart()
    where = f"{CONTROL_PLANE}:{PORT}"
    troubled.await_trouble("Stalled", "DriverGaveUp", where, "refuses the password")
    troubled.password(PASSWORD)
    troubled.restart()
    troubled.await_mended()


def test_a_pod_that_a_quota_refuses(troubled: Troubled) -> None:
    with troubled.space.no_more_pods() as quota:
        troubled.space.kubectl("delete", "pod", ACKER, "--wait=false")
        troubled.await_trouble("AckersAvailable", "PodRefused", ACKER, "exceeded quota", quota)
    troubled.await_mended()


def test_an_acker_with_too_little_memory(troubled: Troubled) -> None:
    space = troubled.space
    space.patch({"pods": {"ackers": {"resources": {"limits": {"memory": "40Mi"}}}}})
    troubled.await_event("PodsKeepSettings", "spec.pods.ackers")
    space.kubectl("delete", "pod", ACKER, "--wait=false")
    troubled.await_trouble("AckersAvailable", "OutOfMemory", ACKER)
    space.patch({"pods": {"ackers": None}})
    troubled.await_event("EditedInPlace", "spec.pods.ackers")
    space.kubectl("delete", "pod", ACKER, "--wait=false")
    troubled.await_mended()


def evict(space: Space, pod: str) -> None:
    """As a drain does it, by the API."""
    about = {"name": pod, "namespace": space.name}
    asked = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": about}
    place = f"/api/v1/namespaces/{space.name}/pods/{pod}/eviction"
    space.kubectl("create", "--raw", place, "-f", "-", stdin=json.dumps(asked))


@contextmanager
def conditions(space: Space, log: Path) -> Iterator[Callable[[], set[tuple[str, str, str]]]]:
    """Yields what tells all that conditions said meanwhile, however short that was: their types,
    statuses and reasons."""
    wanted = """-o=jsonpath={.status.conditions}{"\\n"}"""
    command = [str(space.shell.programs["kubectl"]), f"--kubeconfig={space.shell.kubeconfig}"]
    command += ["-n", space.name, "get", "topo", NAME, "--watch", wanted]
    with log.open("w") as told:
        process = subprocess.Popen(command, stdout=told)

    def seen() -> set[tuple[str, str, str]]:
        whole = [line for line in log.read_text().splitlines(keepends=True) if line[-1] == "\n"]
        every = (one for line in whole for one in json.loads(line))
        return {(one["type"], one["status"], one["reason"]) for one in every}

    try:
        until(seen, "the first word of the watch", WAIT_S, 0.3)
        yield seen
    finally:
        process.kill()
        process.wait()


def test_an_acker_and_a_driver_that_are_evicted(troubled: Troubled, tmp_path: Path) -> None:
    """Others take their places at once, so that conditions name it for a moment only."""
    space = troubled.space
    with conditions(space, tmp_path / "conditions") as seen:
        for role, kind in ((Role.ACKER, "AckersAvailable"), (Role.DRIVER, "SparkRunning")):
            (pod,) = space.pods(role)
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            evict(space, name)
            troubled.await_event("Evicted", name, "evict")
            there = partial(space.pods, role)
            until(
                lambda: {one["metadata"]["uid"] for one in there()} - {uid},  # noqa: B023
                f"another pod than {name}",
                WAIT_S,
                0.3,
            )
            troubled.await_mended()
            assert (kind, "False", "Evicted") in seen()
        troubled.await_event("DriverGone", name, "evict")


def test_a_node_that_is_lost_with_the_only_copy_of_the_state(troubled: Troubled) -> None:
    """Nobody gives that up: all wait for the node, and go on with what is on its disk."""
    space = troubled.space
    node = space.get("pod", SERVER)["spec"]["nodeName"]
    tool = (sys.executable, "-m", "millrace_e2e.cluster", "--cluster=own")
    space.shell.must(*tool, "kill-node", node)
    troubled.await_trouble("StateAvailable", "NodeLost", SERVER, node)
    space.shell.must(*tool, "start-node", node)
    space.shell.must("kubectl", "wait", "--for=condition=Ready", f"node/{node}", "--timeout=180s")
    troubled.await_mended()


def test_all_that_came_out_is_in_its_place_once(troubled: Troubled) -> None:
    rows = troubled.rows()
    assert rows == list(range(len(rows)))
