"""The processes of a topology's pods on a real API server, each started as its image starts it.

This test is the operator: it writes what docs/pods.md says, and proposes whom it sees. Spark runs
its tasks in the driver's pod.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from rights_of_pods import AUDITED, Rights, made_by_the_operator

from millrace.errors import ExitCode
from millrace.homes import pods
from millrace.homes.documents import Ask, Request
from millrace.homes.passwords import of_root_key
from millrace.homes.pods import Role
from millrace.kube.configmaps import ConfigMap, by_kubeconfig
from millrace.protocol.codec import decode_record
from millrace.protocol.types import Member, Phase
from millrace.topology.model import StandbyExecutors
from millrace_e2e import kubeapi, valkey
from millrace_e2e.audit import Audit
from millrace_e2e.podmanifests import Manifest, Pods
from millrace_e2e.podprocess import (
    ROOT,
    TOPOLOGY,
    UID,
    WAIT_S,
    Pod,
    environment,
)
from millrace_e2e.podworld import CONTAINER, PODS, World
from millrace_e2e.scrape import EVERY, unset
from millrace_e2e.waiting import until

EXAMPLE = Path(__file__).parents[3] / "examples" / "wordcount"
RUN_S = 480.0
SOON_MISSED = {
    "spark.executor.heartbeatInterval": "2s",
    "spark.network.timeout": "30s",
    "spark.network.timeoutInterval": "5s",
}
"""An executor that hangs is given up after seconds, not minutes."""
FAILED_TO_CREATE = "Failed to create executor pod"


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    return Audit(tmp_path_factory.mktemp("audit"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, audit: Audit) -> Iterator[kubeapi.ApiServer]:
    folder, noted = tmp_path_factory.mktemp("api") / "server", audit.arguments(**AUDITED)
    with kubeapi.serving(folder, more=noted) as server:
        yield server


@pytest.fixture
def world(tmp_path: Path, server: kubeapi.ApiServer) -> Iterator[World]:
    world = World(tmp_path, server, made_by_the_operator)
    try:
        yield world
    finally:
        world.close()


@pytest.fixture
def rights(world: World, audit: Audit) -> Rights:
    return Rights(world, audit)


def test_words_are_counted_exactly_while_every_kind_of_pod_is_killed(
    world: World, rights: Rights
) -> None:
    """Driver, acker and state server by SIGKILL, one after the other, each within the run."""
    world.feed(4_000, "first.txt")
    world.config(watch=True)
    servers = [world.state_server(0), world.state_server(1)]
    ackers = [world.acker(0)]
    world.propose(servers, ackers)
    driver = world.driver(1)
    assert "execution 1" in driver.until(pods.READY_PATH)
    until(world.sealed, "a window", RUN_S)

    driver.kill()
    driver = world.driver(2)
    assert "execution 2" in driver.until(pods.READY_PATH)

    ackers[0].kill()
    ackers = [world.acker(1)]
    world.feed(2_000, "second.txt")
    world.propose(servers, ackers)

    servers[1].kill()
    servers[1] = world.state_server(1)
    world.propose(servers, ackers)
    world.feed(2_000, "third.txt")
    until(lambda: world.judge()["equal"], "all words are counted", RUN_S)
    # The record's, so that this driver's are those of the whole history.
    assert metrics(driver)["millrace_roots_sealed_total"] == 8_000

    token = world.inbox.ask(Request(Ask.STOP))
    assert driver.wait(WAIT_S) == ExitCode.INTERRUPTED
    assert token not in [asked.token for asked in world.inbox.requests()]
    verdict = world.judge()
    assert (verdict["equal"], verdict["repeated"]) == (True, 0), verdict
    _, view = world.view.read()
    assert view is not None
    assert view.execution == 2
    assert {member.name for member in view.target} == {"words-state-0", "words-state-1"}
    assert [one for one in view.target if one.run_id == servers[1].incarnation()["runId"]]
    for pod in (servers[0], ackers[0]):
        assert pod.end() == 0
    for line in driver.lines():
        assert line["pod"] == "words-driver-2"
    for role in (Role.DRIVER, Role.ACKER):
        assert rights.used(role) == rights.granted(role)
        assert rights.refused(role) == set()


def test_copies_that_an_edit_asks_for_are_made_and_each_server_may_be_lost(world: World) -> None:
    """The servers are the same before and behind the edit, as those of a cluster are."""
    world.feed(4_000, "first.txt")
    world.config({"stateServers": {"replicas": 2, "copies": 1}}, watch=True)
    servers, ackers = [world.state_server(0), world.state_server(1)], [world.acker(0)]
    world.propose(servers, ackers)
    driver = world.driver(1)
    driver.until(pods.READY_PATH)
    until(world.sealed, "a window", RUN_S)
    assert owners(world) == {1}
    driver.kill()
    world.config({"stateServers": {"replicas": 2, "copies": 2}}, watch=True)
    driver = world.driver(2)
    until(lambda: owners(world) == {2}, "two owners of each key group", RUN_S)
    for lost in servers:
        lost.kill()
        shutil.rmtree(world.folder / lost.name)
        at = servers.index(lost)
        servers[at] = world.state_server(at)
        world.propose(servers, ackers)
        before = world.sealed()
        world.feed(2_000, f"behind-{at}.txt")
        until(lambda: world.sealed() > before, "a window without what it held", RUN_S)  # noqa: B023
        until(lambda: owners(world) == {2}, "both copies", RUN_S)
    until(lambda: world.judge()["equal"], "all words are counted", RUN_S)
    world.inbox.ask(Request(Ask.STOP))
    assert driver.wait(WAIT_S) == ExitCode.INTERRUPTED
    assert world.judge()["repeated"] == 0


def owners(world: World) -> set[int]:
    """How many owners key groups have in the open view; none while it moves."""
    _, view = world.view.read()
    assert view is not None
    return {len(names) for names in view.owners} if view.phase is Phase.OPEN else set()


def test_the_driver_that_stands_by_takes_over_without_an_operator(
    world: World, rights: Rights
) -> None:
    """The driver is killed by SIGKILL; a kubelet's word on its pod is all that anybody says. Words
    are split in executors' place, the driver's own process."""
    world.feed(4_000, "first.txt")
    world.config({"spark": {"driver": {"standby": 1}}}, watch=True)
    servers, ackers = [world.state_server(0), world.state_server(1)], [world.acker(0)]
    world.propose(servers, ackers)
    world.driver_object(1)
    driver = world.driver(1)
    until(world.sealed, "a window", RUN_S)
    world.driver_object(2)
    standby = world.driver(2, "--standby", StandbyExecutors.ON_TAKE_OVER.value)
    ready = until(lambda: good(standby.ask(pods.READY_PATH)), "one stands by", RUN_S)
    assert ready == "stands by"
    status, told = standby.ask(pods.METRICS_PATH)
    assert status == 200
    assert "\nprocess_" in told
    assert "\nmillrace_driver_execution " not in told, "only of whoever drives"
    _, view = world.view.read()
    assert view is not None
    assert view.execution == 1

    world.feed(4_000, "second.txt")
    driver.kill()
    killed_s, sealed = time.monotonic(), world.sealed()
    world.driver_is(1, "Failed", terminated={"exitCode": 137, "reason": "Error"})
    until(lambda: (world.view.read()[1] or view).execution == 2, "the view is claimed", RUN_S)
    claimed_s = time.monotonic() - killed_s
    until(lambda: world.sealed() > sealed, "the next window", RUN_S)
    print(
        f"claimed after {claimed_s:.1f} s, told of a window after {time.monotonic() - killed_s:.1f}"
    )
    api = by_kubeconfig(file=world.kubeconfig)
    held = ConfigMap(api, "default", pods.view_map(TOPOLOGY)).read()
    assert held is not None
    assert held.data[pods.WRITTEN_BY].startswith("words-driver-2.")
    until(lambda: world.judge()["equal"], "all words are counted", RUN_S)
    assert standby.end() == ExitCode.INTERRUPTED
    verdict = world.judge()
    assert (verdict["equal"], verdict["repeated"]) == (True, 0), verdict
    assert verdict["words"] == 8_000 * 6
    pods_alone = {("pods", "list", ""), ("pods", "watch", "")}
    assert {one for one in rights.granted(Role.DRIVER) if one[0] == "pods"} == pods_alone
    assert {one for one in rights.used(Role.DRIVER) if one[0] == "pods"} == pods_alone
    assert rights.refused(Role.DRIVER) == set()


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_state_server_whose_pod_is_deleted_ends_when_the_view_is_without_it(
    world: World, replicas: int
) -> None:
    """What a drain of its node does, beside windows: none of them meets a server that is away."""
    told = world.journal.follow()
    world.feed(4_000, "first.txt")
    world.config({"stateServers": {"replicas": replicas, "copies": 2}}, watch=True)
    servers, ackers = [world.state_server(number) for number in range(replicas)], [world.acker(0)]
    world.propose(servers, ackers)
    world.driver(1)
    until(world.sealed, "a window", RUN_S)
    leaver = servers.pop(1)
    leaver.process.terminate()
    world.propose(servers, ackers, [leaver])
    world.feed(2_000, "second.txt")
    assert leaver.wait(int(RUN_S)) == 0
    _, view = world.view.read()
    assert view is not None
    assert view.phase is Phase.OPEN
    assert sorted(m.name for m in view.target) == [one.name for one in servers]
    # As its next pod would come.
    servers.append(world.state_server(1))
    world.propose(servers, ackers)
    world.feed(2_000, "third.txt")
    until(lambda: len(target(world)) == replicas, "a member in its place", RUN_S)
    until(lambda: world.judge()["equal"], "all words are counted", RUN_S)
    verdict = world.judge()
    assert (verdict["equal"], verdict["repeated"]) == (True, 0), verdict
    kinds = {event.kind for event in told.new()}
    assert "DriverRecovered" in kinds
    assert not kinds & {"StateServerAway", "WindowRunAgain"}, kinds


def target(world: World) -> tuple[Member, ...]:
    """The members of the view."""
    _, view = world.view.read()
    return () if view is None else view.target


def test_words_are_counted_on_a_state_server_of_ones_own(world: World, tmp_path: Path) -> None:
    """Its password comes late, in a Secret that is mounted; the driver finds the server itself."""
    given = {pods.SECRETS: str(tmp_path / "secrets")}
    file = tmp_path / "secrets" / "cache" / "password"
    file.parent.mkdir(parents=True)
    ref = {"secretRef": {"name": "cache", "key": "password"}}
    world.feed(4_000, "first.txt")
    with valkey.serving(tmp_path / "own") as own:
        with own.client() as client:
            client.config_set("requirepass", "sesame")
        world.config({"stateServers": {"url": own.url, "password": ref}}, watch=False)
        driver = world.driver(1, **given)
        (why,) = until(lambda: world.journal.status().troubles, "why the driver waits", WAIT_S)
        assert (why.name, why.kind) == ("state-0", "StateServerAway")
        mine = of_root_key(ROOT, UID)
        status, text = driver.read(pods.RECORD_PATH, mine(driver.name))
        assert (status, b"has not come to the state server" in text) == (503, True)
        assert "key 'password' of Secret 'cache' does not exist" in why.text
        file.write_text("sesame\n")
        ackers = [world.acker(0, pods.OWN_SERVER_OPTION, "cache/password", **given)]
        world.propose([], ackers)
        until(lambda: driver.read(pods.RECORD_PATH, mine(driver.name))[0] == 200, "a record", RUN_S)
        assert driver.wait(int(RUN_S)) == 0, driver.log.read_text()
        # The driver is gone, and an acker still tells what there is.
        (acker,) = ackers
        assert acker.read(pods.RECORD_PATH, mine("words-driver-1"))[0] == 401
        status, data = acker.read(pods.RECORD_PATH, mine(acker.name))
        assert status == 200
        assert decode_record(data).sealed == world.journal.status().sealed
    _, view = world.view.read()
    assert view is not None
    assert [(one.name, one.url) for one in view.target] == [("state-0", own.url)]
    assert world.journal.status().troubles is None
    verdict = world.judge()
    assert (verdict["equal"], verdict["repeated"]) == (True, 0), verdict
    logs = (path.read_text() for path in world.folder.glob("*.log"))
    assert not any("sesame" in text for text in logs)


def test_a_driver_ends_behind_what_is_sealed_when_its_pod_is_deleted(world: World) -> None:
    world.feed(500, "first.txt")
    world.config(watch=True)
    servers, ackers = [world.state_server(0), world.state_server(1)], [world.acker(0)]
    world.propose(servers, ackers)
    driver = world.driver(1)
    until(lambda: (world.data / "counts").exists() and world.judge()["equal"], "counts", RUN_S)
    until(lambda: not unset(answer(driver), "Driver", EVERY), "the driver tells all", RUN_S)
    until(lambda: not unset(answer(ackers[0]), "Acker", EVERY), "the acker tells all", RUN_S)
    told, judged = metrics(driver), metrics(ackers[0])
    assert told["millrace_roots_sealed_total"] == 500
    assert judged["millrace_acker_roots_judged_total"] >= 500
    assert judged["millrace_acker_slices_owned"] > 0
    assert judged["millrace_acker_entries_total"] >= 500
    assert driver.end() == ExitCode.INTERRUPTED
    assert world.journal.status().state == "asked"
    assert world.judge()["repeated"] == 0


def good(answer: tuple[int, str]) -> str:
    return answer[1] if answer[0] == 200 else ""


def answer(pod: Pod) -> str:
    return f"{pod.until(pods.METRICS_PATH)}\n"


def metrics(pod: Pod) -> dict[str, float]:
    """What has no labels."""
    families = text_string_to_metric_families(answer(pod))
    return {one.name: one.value for family in families for one in family.samples if not one.labels}


class Kubelet:
    """Starts the containers of executors as their pods say, each with a disk of its own, and ends
    those whose pods are gone."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._api = by_kubeconfig(file=world.kubeconfig)
        self.pods: dict[str, Manifest] = {}
        """All that there ever were."""
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def look(self) -> int:
        """How many pods there are."""
        query = {"labelSelector": f"{pods.ROLE_LABEL}=executor"}
        found = self._api.call("GET", PODS, query=query)["items"]
        there = {one["metadata"]["name"]: one for one in found}
        for name in self.running.keys() - there.keys():
            self._end(name)
        for name in there.keys() - self.pods.keys():
            self.running[name] = self._start(there[name])
            self._say(name, {"phase": "Running"})
        self.pods |= there
        return len(there)

    def kill(self, name: str) -> None:
        """By SIGKILL, and say so of the pod."""
        self._end(name)
        ended = {"terminated": {"exitCode": 137, "reason": "Error"}}
        self._say(name, {"phase": "Failed", "containerStatuses": [{**CONTAINER, "state": ended}]})

    def close(self) -> None:
        for name in list(self.running):
            self._end(name)

    def _say(self, name: str, status: object) -> None:
        merge = "application/merge-patch+json"
        self._api.call("PATCH", f"{PODS}/{name}/status", {"status": status}, kind=merge)

    def _end(self, name: str) -> None:
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def _start(self, pod: Manifest) -> subprocess.Popen[bytes]:
        (container,) = [one for one in pod["spec"]["containers"] if one["name"] == "executor"]
        name = pod["metadata"]["name"]
        own = self._world.scratch / name
        own.mkdir()
        fields = {
            "status.podIP": "127.0.0.1",
            "metadata.name": name,
            "metadata.namespace": "default",
            "spec.nodeName": "n1",
        }
        given = {}
        for one in container["env"]:
            field = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            given[one["name"]] = one.get("value", "") if field is None else fields[field]
        given |= {"SPARK_LOCAL_DIRS": str(own)}
        scratch = self._world.scratch / pods.pod_name(TOPOLOGY, Role.DRIVER, 1)
        secret = self._world.mounted(Role.EXECUTOR, name)
        mounts = ["--secret", str(secret), "--scratch", str(scratch)]
        with (self._world.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "millrace.pods", *container["args"], *mounts],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(name, **given),
                cwd=own,
            )


@pytest.fixture
def kubelet(world: World) -> Iterator[Kubelet]:
    kubelet = Kubelet(world)
    yield kubelet
    kubelet.close()


def taken_over(executors: Iterable[subprocess.Popen[bytes]]) -> list[int]:
    """Daemons that were started ahead of their JVM and have workers by now."""
    ahead = []
    for executor in executors:
        with suppress(psutil.Error):
            below = psutil.Process(executor.pid).children()
            told = [(one, " ".join(one.cmdline())) for one in below]
            ahead += [one for one, line in told if "millrace.engine.task.daemon ahead" in line]
    return [one.pid for one in ahead if one.children()]


def with_executors(
    world: World, server: kubeapi.ApiServer, *, watch: bool, **conf: str
) -> tuple[Pod, Manifest]:
    """A driver with two executors and its pod, under the restricted standard. Windows are large
    enough for tasks on both, which share no folder with the driver."""
    executors = {"instances": 2, "cores": 1, "memory": "512m"}
    spark, window = {"executors": executors, "conf": conf}, {"maxRecords": 6_000}
    folder = world.config({"spark": spark, "window": window}, watch=watch)
    manifests = Pods(TOPOLOGY, "default", UID, "data")
    told = manifests.config({}, 1)["data"]
    (folder / pods.EXECUTOR_KEY).write_text(told[pods.EXECUTOR_KEY])
    api = by_kubeconfig(file=world.kubeconfig)
    labels = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    merge = "application/merge-patch+json"
    api.call("PATCH", "/api/v1/namespaces/default", labels, kind=merge)
    made = api.call("POST", PODS, manifests.driver(1))
    servers, ackers = [world.state_server(0), world.state_server(1)], [world.acker(0)]
    world.propose(servers, ackers)
    driver = world.driver(
        1,
        KUBERNETES_SERVICE_HOST="127.0.0.1",
        KUBERNETES_SERVICE_PORT=str(server.port),
        MILLRACE_IMAGE="millrace/runtime:test",
    )
    return driver, made


def test_spark_makes_executors_as_pods_of_the_driver(
    world: World, server: kubeapi.ApiServer, kubelet: Kubelet
) -> None:
    """Spark asks the API server for them; the test is their kubelet."""
    world.feed(12_000, "first.txt")
    driver, made = with_executors(world, server, watch=False)

    def asked() -> bool:
        assert driver.process.poll() is None, driver.log.read_text()
        return kubelet.look() == 2

    until(asked, "two executors", RUN_S)
    started, loaded = list(kubelet.running.values()), set[int]()
    until(lambda: loaded.update(taken_over(started)) or loaded, "a daemon ahead", RUN_S)
    assert driver.wait(int(RUN_S)) == 0, driver.log.read_text()
    for name, pod in kubelet.pods.items():
        assert name.startswith("words-driver-1-exec-")
        (owner,) = pod["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Pod", made["metadata"]["uid"])
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert pod["spec"]["terminationGracePeriodSeconds"] == pods.GRACE_S[Role.EXECUTOR]
        shown = json.dumps(pod)
        for word in {line for text in world.secret.values() for line in text.splitlines()}:
            assert word not in shown
        assert "_SPARK_AUTH_SECRET" not in shown
        assert "MILLRACE_RUN_SECRET" not in shown
    verdict = world.judge()
    assert (verdict["equal"], verdict["repeated"]) == (True, 0), verdict
    assert verdict["words"] == 12_000 * 6
    # Whether Spark still deletes their pods is open: with its first process a container ends.
    until(lambda: all(one.poll() is not None for one in started), "executors end too", WAIT_S)


@pytest.mark.timeout(1_800)
def test_a_driver_with_executors_uses_every_right_that_it_has(
    world: World, server: kubeapi.ApiServer, kubelet: Kubelet, rights: Rights
) -> None:
    """One executor dies, another hangs, and in the end the driver is asked to stop."""

    def counted() -> bool:
        assert driver.process.poll() is None, driver.log.read_text()
        kubelet.look()
        return (world.data / "counts").exists() and bool(world.judge()["equal"])

    def replaced(name: str) -> bool:
        return kubelet.look() == 2 and name not in kubelet.running

    world.feed(12_000, "first.txt")
    driver, _ = with_executors(world, server, watch=True, **SOON_MISSED)
    until(counted, "all words are counted", RUN_S)
    dead, hung = sorted(kubelet.running)
    kubelet.kill(dead)
    until(lambda: replaced(dead), "another executor", RUN_S)
    kubelet.running[hung].send_signal(signal.SIGSTOP)
    until(lambda: replaced(hung), "one instead of the one that hangs", RUN_S)
    world.feed(12_000, "second.txt")
    until(counted, "all words are counted", RUN_S)
    world.inbox.ask(Request(Ask.STOP))
    assert driver.wait(int(RUN_S)) == ExitCode.INTERRUPTED
    verdict = world.judge()
    assert (verdict["equal"], verdict["repeated"]) == (True, 0), verdict
    assert rights.used(Role.DRIVER) == rights.granted(Role.DRIVER)
    assert rights.refused(Role.DRIVER) == set()


def test_executors_that_are_refused_are_told_and_come_once_they_are_not(
    world: World, server: kubeapi.ApiServer
) -> None:
    """A limit range refuses them; quotas are counted by a controller that is not there. However
    often Spark asks in vain, its driver lives on."""
    world.feed(10, "first.txt")
    api, heard = by_kubeconfig(file=world.kubeconfig), world.journal.follow()
    refusing = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "small"},
        "spec": {"limits": [{"type": "Container", "max": {"memory": "600Mi"}}]},
    }
    place = "/api/v1/namespaces/default/limitranges"
    api.call("POST", place, refusing)
    driver, _ = with_executors(world, server, watch=True)

    def refused() -> str | None:
        assert driver.process.poll() is None, driver.log.read_text()
        return world.journal.status().refused

    def made() -> int:
        query = {"labelSelector": f"{pods.ROLE_LABEL}=executor"}
        return len(api.call("GET", PODS, query=query)["items"])

    try:
        said = until(refused, "what is refused is told", RUN_S)
        assert said is not None
        assert "words-driver-1-exec-N" in said
        assert "maximum memory usage per Container is 600Mi" in said
        events = [one for one in heard.new() if one.kind == "ExecutorsRefused"]
        assert [(one.text, one.warning) for one in events] == [(said, True)]
        assert made() == 0
        logged = driver.log.read_text().count(FAILED_TO_CREATE)
    finally:
        api.call("DELETE", f"{place}/small")
    until(lambda: made() == 2, "two executors", RUN_S)
    # A page of Java each second would hide all else.
    assert driver.log.read_text().count(FAILED_TO_CREATE) == logged
    until(lambda: refused() is None, "nothing is refused any more", RUN_S)
    assert driver.end() == ExitCode.INTERRUPTED
