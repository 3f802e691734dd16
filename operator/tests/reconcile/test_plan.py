"""What a plan does in each situation: what is seen goes in, what is done comes out."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from memory_cluster import SETTINGS, SPEC, Cluster, CrashError, moment, summary

from millrace.errors import ExitCode
from millrace.homes.documents import AckerAdvice, Status
from millrace.homes.pods import MAX_MEMORY, Role
from millrace.homes.restarts import DELAYS_S
from millrace.homes.tuning import Tuning
from millrace.kube.nesting import LEVELS
from millrace.topology.model import StreamTopology
from millrace_operator.api.resources import ConditionStatus, ConditionType, Phase, TopologyStatus
from millrace_operator.api.settings import OperatorSettings
from millrace_operator.api.times import rfc3339
from millrace_operator.builders.naming import DIGEST
from millrace_operator.reconcile.actions import Create
from millrace_operator.reconcile.conditions import EXECUTORS_AWAY_S, LONGEST, spared_s
from millrace_operator.reconcile.edits import EditKind, edited, fingerprint
from millrace_operator.reconcile.observe import PAUSED, Child, Observed, PodPhase
from millrace_operator.reconcile.plan import plan
from millrace_operator.reconcile.troubles import REASONS


def settled(**spec: Any) -> Cluster:
    """A topology that runs, with all that belongs to it."""
    cluster = Cluster()
    cluster.spec.update(spec)
    cluster.settle()
    cluster.events.clear()
    return cluster


def claim(name: str) -> dict[str, Any]:
    return {"name": "data", "mountPath": "/data", "persistentVolumeClaim": {"claimName": name}}


SCRATCH: dict[str, Any] = {"name": "scratch", "mountPath": "/scratch", "emptyDir": {}}
GENERATED: dict[str, Any] = {
    "sources": [{"name": "numbers", "generator": {}}],
    "processors": [],
    "sinks": [{"name": "more", "inputs": [{"from": "numbers"}], "custom": {"class": "words:Sink"}}],
}


def conditions(cluster: Cluster) -> dict[str, tuple[str, str]]:
    return {c.type: (c.status.value, c.reason) for c in cluster.status.conditions}


def done(cluster: Cluster) -> list[str]:
    """What the next plan does, beside what it tells."""
    told = ("status", "event", "warning")
    return [word for word in summary(cluster.reconcile()) if not word.startswith(told)]


def reasons(cluster: Cluster) -> list[str]:
    return [event.reason for event in cluster.events]


def test_the_first_plan_makes_what_must_not_be_lost_then_says_what_it_begins_then_begins_it():
    cluster = Cluster()
    words = summary(cluster.reconcile())
    stores = ["create Secret words-secret", "create ConfigMap words-view"]
    assert words[:2] == stores
    accepted, told = words.index("apply ConfigMap words-accepted"), words.index("status")
    settings = words.index("create ConfigMap words-driver-1")
    driver = words.index("create Pod words-driver-1")
    assert accepted < told < settings < driver
    for name in (*(f"words-state-{n}" for n in range(3)), "words-acker-0", "words-acker-1"):
        assert f"create Pod {name}" in words
    assert cluster.status.driver is not None
    assert cluster.status.driver.number == 1
    assert reasons(cluster) == ["DriverStarted"]
    assert conditions(cluster)["Ready"] == ("False", "Starting")
    assert conditions(cluster)["Reconciling"][0] == "True"


def test_a_topology_that_runs_is_left_alone_and_says_so():
    cluster = settled()
    assert cluster.reconcile() == ()
    assert {name: status for name, (status, _) in conditions(cluster).items()} == {
        "Ready": "True",
        "SparkRunning": "True",
        "AckersAvailable": "True",
        "StateAvailable": "True",
        "UpToDate": "True",
        "Stalled": "False",
        "Reconciling": "False",
    }
    status = cluster.status
    assert (status.phase, status.observed_generation) == (Phase.RUNNING, 1)
    assert status.ackers is not None
    assert (status.ackers.summary, status.ackers.replicas) == ("2/2", 2)
    assert status.ackers.selector == (
        "app.kubernetes.io/component=acker,millrace.dev/topology=words"
    )


def test_the_first_proposal_waits_for_all_servers():
    cluster = Cluster()
    cluster.reconcile()
    cluster.run("words-state-0", "node-0")
    assert not any(word.startswith("propose") for word in done(cluster))
    cluster.run("words-state-1", "node-1")
    cluster.run("words-state-2", "node-2")
    assert done(cluster) == ["propose state-0 state-1 state-2"]
    assert cluster.proposal is not None
    nodes = {f"words-state-{number}": f"node-{number}" for number in range(3)}
    assert dict(cluster.proposal.nodes) == nodes


@dataclass(frozen=True)
class Case:
    """What happens to a settled topology, and what a plan then does, in order."""

    name: str
    happens: Callable[[Cluster], Any]
    does: list[str]
    tells: list[str]


def vanish(name: str) -> Callable[[Cluster], Any]:
    return lambda c: c.pods.pop(name)


def node_of(name: str) -> Callable[[Cluster], Any]:
    """The node of a pod alone does not answer any more."""

    def happen(cluster: Cluster) -> None:
        cluster.nodes["away"] = False
        cluster.change(name, node="away")

    return happen


CASES = [
    Case(
        "an acker is gone",
        vanish("words-acker-1"),
        ["create Pod words-acker-1", "propose state-0 state-1 state-2 acker-0"],
        ["warning AckerLost"],
    ),
    Case(
        "an acker is evicted",
        lambda c: c.change(
            "words-acker-0", phase=PodPhase.FAILED, ready=False, reason="Evicted", message="disk"
        ),
        ["delete words-acker-0", "propose state-0 state-1 state-2 acker-1"],
        ["warning AckerLost", "warning Evicted"],
    ),
    Case(
        "an acker is evicted by the API: it is being deleted",
        lambda c: c.change("words-acker-0", deleting=True, reason="EvictionByEvictionAPI"),
        ["propose state-0 state-1 state-2 acker-1"],
        ["warning AckerLost", "warning Evicted"],
    ),
    Case(
        "an acker's node is lost",
        node_of("words-acker-0"),
        ["force words-acker-0", "propose state-0 state-1 state-2 acker-1"],
        ["warning AckerLost", "warning NodeLost"],
    ),
    Case(
        "an acker is being deleted",
        lambda c: c.change("words-acker-0", deleting=True),
        ["propose state-0 state-1 state-2 acker-1"],
        ["warning AckerLost"],
    ),
    Case(
        "a state server is gone",
        vanish("words-state-1"),
        [
            "apply PodDisruptionBudget words-state",
            "create Pod words-state-1",
            "propose state-0 state-2 acker-0 acker-1",
        ],
        ["warning StateServerLost"],
    ),
    Case(
        "a state server is evicted: nothing of it comes back",
        lambda c: c.change(
            "words-state-1", phase=PodPhase.FAILED, ready=False, reason="Evicted", run_id=None
        ),
        [
            "apply PodDisruptionBudget words-state",
            "delete words-state-1",
            "propose state-0 state-2 acker-0 acker-1",
        ],
        ["warning StateServerLost", "warning Evicted"],
    ),
    Case(
        "a state server's node is lost: it may live, and stays until the view does without it",
        node_of("words-state-1"),
        ["apply PodDisruptionBudget words-state", "propose state-0 state-2 acker-0 acker-1"],
        ["warning StateServerLost", "warning NodeLost"],
    ),
    Case(
        "a state server came back in its pod as another incarnation",
        lambda c: c.change("words-state-2", run_id="another"),
        [
            "apply PodDisruptionBudget words-state",
            "propose state-0 state-1 state-2 acker-0 acker-1",
        ],
        ["warning StateServerLost"],
    ),
    Case(
        "a state server does not answer",
        lambda c: c.change("words-state-2", run_id=None, ready=False),
        ["apply PodDisruptionBudget words-state", "propose state-0 state-1 acker-0 acker-1"],
        ["warning StateServerLost"],
    ),
    Case(
        "the driver is gone",
        vanish("words-driver-1"),
        ["create ConfigMap words-driver-2", "create Pod words-driver-2"],
        ["warning DriverGone", "event DriverStarted"],
    ),
    Case(
        "the driver is being deleted: the next one does not wait for it",
        lambda c: c.change("words-driver-1", deleting=True),
        ["create ConfigMap words-driver-2", "create Pod words-driver-2"],
        ["warning DriverGone", "event DriverStarted"],
    ),
    Case(
        "the driver goes for one of higher priority",
        lambda c: c.change("words-driver-1", deleting=True, reason="PreemptionByScheduler"),
        ["create ConfigMap words-driver-2", "create Pod words-driver-2"],
        ["warning DriverGone", "event DriverStarted", "warning Evicted"],
    ),
    Case(
        "the driver's node is lost",
        node_of("words-driver-1"),
        [
            "create ConfigMap words-driver-2",
            "create Pod words-driver-2",
            "force words-driver-1",
        ],
        ["warning DriverGone", "event DriverStarted", "warning NodeLost"],
    ),
    Case(
        "the driver's node is not there any more",
        lambda c: c.change("words-driver-1", node="sold"),
        [
            "create ConfigMap words-driver-2",
            "create Pod words-driver-2",
            "force words-driver-1",
        ],
        ["warning DriverGone", "event DriverStarted", "warning NodeLost"],
    ),
    Case(
        "the driver was killed: it is started again at once",
        lambda c: c.change(
            "words-driver-1", phase=PodPhase.FAILED, ready=False, reason="OOMKilled", exit_code=137
        ),
        [
            "create ConfigMap words-driver-2",
            "create Pod words-driver-2",
            "delete words-driver-1",
        ],
        ["warning DriverGone", "event DriverStarted", "warning OutOfMemory"],
    ),
    Case(
        "the driver was asked to end, by its kubelet for example: it has not drained",
        lambda c: c.change(
            "words-driver-1",
            phase=PodPhase.FAILED,
            ready=False,
            exit_code=int(ExitCode.INTERRUPTED),
            message="asked: stopped behind window 7",
        ),
        [
            "create ConfigMap words-driver-2",
            "create Pod words-driver-2",
            "delete words-driver-1",
        ],
        ["warning DriverGone", "event DriverStarted", "warning PodFailed"],
    ),
    Case(
        "all is drained",
        lambda c: c.change("words-driver-1", phase=PodPhase.SUCCEEDED, ready=False, exit_code=0),
        [],
        ["event Drained"],
    ),
    Case(
        "an exit code that no restart mends",
        lambda c: c.change(
            "words-driver-1",
            phase=PodPhase.FAILED,
            ready=False,
            exit_code=int(ExitCode.TOO_MANY_DEAD),
        ),
        [],
        ["warning PodFailed", "warning DriverGaveUp"],
    ),
    Case(
        "an image that is too old for what it finds",
        lambda c: c.change(
            "words-driver-1",
            phase=PodPhase.FAILED,
            ready=False,
            exit_code=int(ExitCode.NEWER_FORMAT),
            message="View has the field 'restoring', which this release does not know",
        ),
        [],
        ["warning PodFailed", "warning DriverGaveUp"],
    ),
    Case(
        "more ackers",
        lambda c: c.edit(ackers={"replicas": 3}),
        [
            "apply ConfigMap words-accepted",
            "apply PodDisruptionBudget words-acker",
            "create Pod words-acker-2",
        ],
        ["event EditedInPlace"],
    ),
    Case(
        "one acker less",
        lambda c: c.edit(ackers={"replicas": 1}),
        [
            "apply ConfigMap words-accepted",
            "delete PodDisruptionBudget words-acker",
            "delete words-acker-1",
            "propose state-0 state-1 state-2 acker-0",
        ],
        ["event EditedInPlace"],
    ),
    Case(
        "a number of ackers above what the load may bring about",
        lambda c: c.edit(ackers={"replicas": 9, "min": 1, "max": 3}),
        [
            "apply ConfigMap words-accepted",
            "apply PodDisruptionBudget words-acker",
            "create Pod words-acker-2",
        ],
        ["event EditedInPlace"],
    ),
    Case(
        "more state servers",
        lambda c: c.edit(stateServers={"replicas": 4, "copies": 2}),
        [
            "apply ConfigMap words-accepted",
            "apply PodDisruptionBudget words-state",
            "create Pod words-state-3",
        ],
        ["event EditedInPlace"],
    ),
    Case(
        "a state server less: it stays until the view does without it",
        lambda c: c.edit(stateServers={"replicas": 2, "copies": 2}),
        [
            "apply ConfigMap words-accepted",
            "propose state-0 state-1 acker-0 acker-1",
        ],
        ["event EditedInPlace"],
    ),
    Case(
        "other memory for state servers: for those that are made from now on",
        lambda c: c.edit(stateServers={"replicas": 3, "copies": 2, "memory": "4g"}),
        ["apply ConfigMap words-accepted"],
        ["event EditedInPlace", "warning StateServersKeepMemory"],
    ),
    Case(
        "other places for ackers: for pods that are made from now on",
        lambda c: c.edit(pods={"ackers": {"nodeSelector": {"disk": "fast"}}}),
        ["apply ConfigMap words-accepted"],
        ["event EditedInPlace", "warning PodsKeepSettings"],
    ),
    Case(
        "other memory for pods of state servers",
        lambda c: c.edit(pods={"stateServers": {"resources": {"limits": {"memory": "4Gi"}}}}),
        ["apply ConfigMap words-accepted"],
        ["event EditedInPlace", "warning PodsKeepSettings"],
    ),
    *(
        Case(
            f"other places for the {pod}",
            lambda c, pod=pod: c.edit(pods={pod: {"nodeSelector": {"disk": "fast"}}}),
            ["apply ConfigMap words-accepted", "delete words-driver-1"],
            ["event EditedWithRestart"],
        )
        for pod in ("driver", "executors")
    ),
    Case(
        "one volume more",
        lambda c: c.edit(volumes=[*SPEC["volumes"], SCRATCH]),
        ["apply ConfigMap words-accepted", "delete words-driver-1"],
        ["event EditedWithRestart"],
    ),
    Case(
        "files that would lie on another claim",
        lambda c: c.edit(volumes=[claim("others")]),
        [],
        ["warning EditRefused"],
    ),
    Case(
        "files that would lie in another folder of the claim",
        lambda c: c.edit(volumes=[{**claim("words"), "subPath": "new"}]),
        [],
        ["warning EditRefused"],
    ),
    Case(
        "a sink that goes with its volume: what is sealed is shown there first",
        lambda c: c.edit(volumes=[{**SCRATCH, "mountPath": "/data"}], **GENERATED),
        [],
        ["warning EditRefused"],
    ),
    Case(
        "files without a volume",
        lambda c: c.edit(volumes=[]),
        [],
        ["warning InvalidTopology"],
    ),
    Case(
        "another graph",
        lambda c: c.edit(parallelism=5),
        ["apply ConfigMap words-accepted", "delete words-driver-1"],
        ["event EditedWithRestart"],
    ),
    Case(
        "windows of another size, and another time-out: the driver follows while it runs",
        lambda c: c.edit(window={"maxRecords": 9, "maxInterval": "2s"}, tupleTimeout="90s"),
        [
            "apply ConfigMap words-accepted",
            "propose state-0 state-1 state-2 acker-0 acker-1",
        ],
        ["event EditedInPlace"],
    ),
    Case(
        "windows of another size and another graph",
        lambda c: c.edit(window={"maxRecords": 9}, parallelism=5),
        [
            "apply ConfigMap words-accepted",
            "delete words-driver-1",
            "propose state-0 state-1 state-2 acker-0 acker-1",
        ],
        ["event EditedWithRestart"],
    ),
    Case(
        "a restart is asked for",
        lambda c: c.edit(restartNonce=1),
        ["apply ConfigMap words-accepted", "delete words-driver-1"],
        ["event EditedWithRestart"],
    ),
    Case(
        "what would lose state",
        lambda c: c.edit(keyGroups=64),
        [],
        ["warning EditRefused"],
    ),
    Case(
        "what is no topology",
        lambda c: c.edit(sinks=[]),
        [],
        ["warning InvalidTopology"],
    ),
    Case(
        "suspended: driver and ackers end, the state servers hold the state",
        lambda c: c.edit(suspend=True),
        [
            "apply ConfigMap words-accepted",
            "delete PodDisruptionBudget words-acker",
            "delete words-acker-0",
            "delete words-acker-1",
            "delete words-driver-1",
            "propose state-0 state-1 state-2",
        ],
        ["event EditedInPlace"],
    ),
    Case(
        "paused",
        lambda c: c.annotations.update({PAUSED: "true"}) or c.pods.clear(),
        [],
        [],
    ),
    Case("deleted", lambda c: setattr(c, "deleting", True) or c.pods.clear(), [], []),
    Case(
        "a service was deleted",
        lambda c: c.children.pop(("Service", "words-state")),
        ["apply Service words-state"],
        [],
    ),
    Case(
        "a service was changed",
        lambda c: c.children.update(
            {("Service", "words-state"): replace(c.children["Service", "words-state"], digest="x")}
        ),
        ["apply Service words-state"],
        [],
    ),
    Case(
        "the view was deleted",
        lambda c: c.children.pop(("ConfigMap", "words-view")),
        [],
        ["warning StoreLost"],
    ),
    Case(
        "the password was deleted",
        lambda c: c.children.pop(("Secret", "words-secret")),
        [],
        ["warning StoreLost"],
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_follows(case: Case):
    cluster = settled()
    case.happens(cluster)
    words = summary(cluster.reconcile())
    told = [word for word in words if word.startswith(("event", "warning"))]
    assert [word for word in words if word not in (*told, "status")] == case.does
    assert sorted(set(told)) == sorted(set(case.tells))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_whatever_happened_it_comes_to_rest(case: Case):
    cluster = settled()
    case.happens(cluster)
    cluster.settle()
    assert cluster.reconcile() == ()


def test_a_lost_state_server_is_replaced_when_the_view_has_moved():
    cluster = settled()
    node_of("words-state-1")(cluster)
    cluster.reconcile()
    cluster.drive()
    assert done(cluster) == ["force words-state-1"]
    assert "create Pod words-state-1" in done(cluster)
    cluster.settle()
    assert {m.name for m in cluster.view.target} == {f"words-state-{n}" for n in range(3)}


def test_no_other_state_server_may_go_before_a_new_one_holds_its_copies():
    cluster = settled()

    def least() -> int:
        budget = cluster.manifests["PodDisruptionBudget", "words-state"]
        found: int = budget["spec"]["minAvailable"]
        return found

    assert least() == 2
    vanish("words-state-1")(cluster)
    cluster.reconcile()
    cluster.progress()
    assert least() == 3
    assert all(cluster.pods[f"words-state-{n}"].ready for n in range(3))
    cluster.reconcile()
    assert (least(), conditions(cluster)["StateAvailable"]) == (3, ("True", "Moving"))
    cluster.settle()
    assert (least(), conditions(cluster)["StateAvailable"]) == (2, ("True", "AllReady"))


def test_no_state_server_may_go_until_more_copies_that_an_edit_asks_for_are_made():
    cluster = settled(stateServers={"replicas": 2, "copies": 1})

    def least() -> int:
        found: int = cluster.manifests["PodDisruptionBudget", "words-state"]["spec"]["minAvailable"]
        return found

    assert least() == 2
    cluster.edit(stateServers={"replicas": 2, "copies": 2})
    cluster.reconcile()
    assert (least(), conditions(cluster)["StateAvailable"]) == (2, ("True", "Moving"))
    cluster.settle()
    assert (least(), conditions(cluster)["StateAvailable"]) == (1, ("True", "AllReady"))


DRIVERLESS: dict[str, tuple[Callable[[Cluster], Any], dict[str, Any], str]] = {
    "suspended": (
        lambda c: c.edit(suspend=True),
        {"suspend": False},
        "take spec.suspend back first",
    ),
    "drained": (
        lambda c: c.change("words-driver-1", phase=PodPhase.SUCCEEDED, ready=False, exit_code=0),
        {"restartNonce": 1},
        "start a driver first, by another spec.restartNonce",
    ),
    "given up": (
        lambda c: c.change(
            "words-driver-1",
            phase=PodPhase.FAILED,
            ready=False,
            exit_code=int(ExitCode.TOO_MANY_DEAD),
        ),
        {"restartNonce": 1},
        "mend first what stalls",
    ),
}


@pytest.mark.parametrize("why", DRIVERLESS)
def test_without_a_driver_no_second_state_server_is_said_to_be_free_to_go(why: str):
    """Nobody gives a new one its copies, so that the other one holds the only ones."""
    ends, edit, remedy = DRIVERLESS[why]
    cluster = settled(stateServers={"replicas": 2, "copies": 2})
    ends(cluster)
    cluster.settle()
    assert conditions(cluster)["StateAvailable"] == ("True", "AllReady")
    ready = conditions(cluster)["Ready"]
    cluster.events.clear()
    vanish("words-state-0")(cluster)
    cluster.settle()
    assert cluster.pods["words-state-0"].ready
    assert conditions(cluster)["StateAvailable"] == ("True", "CopiesMissing")
    assert conditions(cluster)["Ready"] == ready
    (told,) = (event for event in cluster.events if event.reason == "CopiesMissing")
    assert told.warning
    assert told.message.endswith(remedy)
    budget = cluster.manifests["PodDisruptionBudget", "words-state"]
    assert budget["spec"]["minAvailable"] == 2, "a drain waits"
    cluster.edit(**edit)
    cluster.reconcile()
    cluster.progress()
    cluster.reconcile()
    assert conditions(cluster)["StateAvailable"] == ("True", "Moving")
    cluster.settle()
    assert conditions(cluster)["StateAvailable"] == ("True", "AllReady")


def test_copies_are_on_their_way_while_a_driver_starts_whatever_else_stalls():
    cluster = settled(stateServers={"replicas": 2, "copies": 2})
    cluster.edit(keyGroups=64)
    cluster.settle()
    cluster.events.clear()
    vanish("words-state-0")(cluster)
    vanish("words-driver-1")(cluster)
    cluster.reconcile()
    cluster.run("words-state-0", "node-1")
    cluster.reconcile()
    assert cluster.pods["words-driver-2"].phase is PodPhase.PENDING
    assert conditions(cluster)["Stalled"] == ("True", "EditRefused")
    assert conditions(cluster)["StateAvailable"] == ("True", "Moving")


def test_copies_that_nobody_makes_while_the_store_is_lost_are_missing():
    cluster = settled(stateServers={"replicas": 2, "copies": 2})
    vanish("words-state-0")(cluster)
    cluster.reconcile()
    cluster.progress()
    del cluster.children["Secret", "words-secret"]
    cluster.reconcile()
    assert conditions(cluster)["Stalled"] == ("True", "StoreLost")
    assert conditions(cluster)["StateAvailable"] == ("True", "Moving")
    vanish("words-driver-1")(cluster)
    cluster.reconcile()
    assert conditions(cluster)["StateAvailable"] == ("True", "CopiesMissing")


def test_a_suspended_topology_that_never_ran_has_nothing_to_lose():
    cluster = Cluster()
    cluster.edit(suspend=True)
    cluster.settle()
    assert cluster.view is None
    assert conditions(cluster)["StateAvailable"] == ("True", "AllReady")


def made_suspended(cluster: Cluster) -> None:
    cluster.edit(suspend=True)
    cluster.settle()


def first_driver_given_up(cluster: Cluster) -> None:
    """Before it wrote a view."""
    while "words-driver-1" not in cluster.pods:
        cluster.reconcile()
        cluster.kubelets()
    code = int(ExitCode.INVALID_TOPOLOGY)
    cluster.change("words-driver-1", phase=PodPhase.FAILED, ready=False, exit_code=code)
    cluster.settle()
    assert conditions(cluster)["Stalled"] == ("True", "DriverGaveUp")


@pytest.mark.parametrize("never_begins", [made_suspended, first_driver_given_up])
def test_a_state_server_may_go_where_no_driver_has_written_a_view(
    never_begins: Callable[[Cluster], None],
):
    """It holds nothing, and a drain would wait for ever."""
    cluster = Cluster()
    cluster.edit(stateServers={"replicas": 3, "copies": 2})
    never_begins(cluster)
    assert cluster.view is None
    assert all(cluster.pods[f"words-state-{n}"].ready for n in range(3))
    budget = cluster.manifests["PodDisruptionBudget", "words-state"]
    assert budget["spec"]["minAvailable"] == 2


def test_no_state_server_may_go_while_the_first_view_may_be_written():
    cluster = Cluster()
    cluster.edit(stateServers={"replicas": 3, "copies": 2})
    while "words-driver-1" not in cluster.pods or not cluster.pods["words-driver-1"].begun:
        cluster.reconcile()
        cluster.kubelets()
    cluster.reconcile()
    assert cluster.view is None
    budget = cluster.manifests["PodDisruptionBudget", "words-state"]
    assert budget["spec"]["minAvailable"] == 3


def test_a_topology_is_refused_that_is_nested_as_deeply_as_is_read_at_all():
    cluster, inner = settled(), dict[str, Any]()
    options = inner
    for _ in range(LEVELS - 8):
        inner["a"] = {}
        inner = inner["a"]
    cluster.edit(sources=[{"name": "lines", "custom": {"class": "m:C", "options": options}}])
    cluster.reconcile()
    assert conditions(cluster)["Stalled"] == ("True", "InvalidTopology")


def test_the_only_copy_on_a_lost_node_is_waited_for():
    cluster = settled(stateServers={"replicas": 1})
    node_of("words-state-0")(cluster)
    for _ in range(5):
        cluster.reconcile()
        cluster.drive()
    assert "words-state-0" in cluster.pods
    assert conditions(cluster)["StateAvailable"] == ("False", "NodeLost")
    cluster.nodes["away"] = True
    cluster.settle()
    assert conditions(cluster)["Ready"][0] == "True"


def test_a_state_server_that_leaves_is_deleted_when_the_view_has_moved():
    cluster = settled()
    cluster.edit(stateServers={"replicas": 2, "copies": 2})
    cluster.reconcile()
    assert "words-state-2" in cluster.pods
    cluster.drive()
    assert "delete words-state-2" in done(cluster)


def test_one_state_server_at_a_time_may_go_while_others_leave():
    """Each of two that a drain takes at once may hold a copy that the other has, too."""
    cluster = Cluster()
    cluster.edit(stateServers={"replicas": 5, "copies": 2})
    cluster.settle()
    there: list[int] = []

    def may_go() -> int:
        """As Kubernetes reckons, of which pods are being deleted none is healthy."""
        servers = [pod for name, pod in cluster.pods.items() if "-state-" in name]
        there.append(len(servers))
        healthy = sum(pod.ready and not pod.deleting for pod in servers)
        budget = cluster.manifests["PodDisruptionBudget", "words-state"]
        return max(0, healthy - budget["spec"]["minAvailable"])

    assert may_go() == 1
    cluster.edit(stateServers={"replicas": 3, "copies": 2})
    seen = []
    for _ in range(5):
        cluster.reconcile()
        seen.append(may_go())
        cluster.drive()
        cluster.progress()
    assert (seen[0], seen[-1], max(seen)) == (1, 1, 1)
    assert (there[0], there[-1]) == (5, 3)
    # One that goes meanwhile is the last until the others have what it holds.
    cluster.edit(stateServers={"replicas": 2, "copies": 2})
    cluster.change("words-state-0", deleting=True)
    cluster.reconcile()
    assert may_go() == 0


def test_a_server_that_is_to_leave_and_came_back_is_a_member_once_more():
    """The view waits for what it alone holds, in an incarnation that is no more."""
    cluster = settled(stateServers={"replicas": 3, "copies": 1})
    cluster.edit(stateServers={"replicas": 2, "copies": 1})
    cluster.change("words-state-2", run_id="another")
    assert done(cluster)[-1] == "propose state-0 state-1 state-2 acker-0 acker-1"
    assert cluster.proposal.members[2].run_id == "another"
    assert done(cluster) == []
    cluster.drive()
    assert done(cluster) == ["propose state-0 state-1 acker-0 acker-1"]
    cluster.drive()
    assert done(cluster) == ["delete words-state-2"]


def test_a_state_server_that_is_deleted_comes_back_with_the_memory_asked_for_now():
    cluster = settled()
    cluster.edit(stateServers={"replicas": 3, "copies": 2, "memory": "4g"})
    cluster.reconcile()
    del cluster.pods["words-state-1"]
    (pod,) = [
        action.manifest
        for action in cluster.reconcile()
        if isinstance(action, Create) and action.manifest["kind"] == "Pod"
    ]
    limit = pod["spec"]["containers"][0]["resources"]["limits"]["memory"]
    assert limit == "5462Mi"
    assert pods_bytes(pod) == 4 << 30
    cluster.settle()
    assert conditions(cluster)["Ready"][0] == "True"


def pods_bytes(pod: Any) -> int:
    variables = pod["spec"]["containers"][0]["env"]
    return next(int(v["value"]) for v in variables if v["name"] == MAX_MEMORY)


def test_a_server_that_leaves_is_named_as_long_as_the_view_has_it():
    cluster = settled(stateServers={"replicas": 3, "copies": 2})
    cluster.edit(stateServers={"replicas": 2, "copies": 2})
    cluster.reconcile()
    assert [m.name for m in cluster.proposal.members] == ["words-state-0", "words-state-1"]
    assert [m.name for m in cluster.proposal.leaving] == ["words-state-2"]
    cluster.drive()
    assert "words-state-2" not in {m.name for m in cluster.view.target}
    proposed = cluster.proposal
    cluster.settle()
    assert "words-state-2" not in cluster.pods
    assert cluster.proposal == proposed, "nothing is said anew of one that has left"


def test_nobody_leaves_while_one_that_stays_is_no_member():
    """There are to be two copies: those beyond it have the part of one that is away."""
    cluster = settled(stateServers={"replicas": 4, "copies": 2})
    cluster.edit(stateServers={"replicas": 2, "copies": 2})
    cluster.change("words-state-1", ready=False)
    cluster.reconcile()
    there = [f"words-state-{number}" for number in (0, 2, 3)]
    assert [m.name for m in cluster.proposal.members] == there
    assert cluster.proposal.leaving is None
    cluster.drive()
    done(cluster)
    assert [m.name for m in cluster.view.target] == there
    assert set(there) <= set(cluster.pods)
    cluster.change("words-state-1", ready=True)
    cluster.settle()
    assert {m.name for m in cluster.view.target} == {"words-state-0", "words-state-1"}
    assert [name for name in cluster.pods if "state" in name] == ["words-state-0", "words-state-1"]


def test_those_that_leave_are_kept_once_one_that_stays_is_lost():
    cluster = settled(stateServers={"replicas": 4, "copies": 2})
    cluster.edit(stateServers={"replicas": 2, "copies": 2})
    cluster.reconcile()
    assert [m.name for m in cluster.proposal.leaving] == ["words-state-2", "words-state-3"]
    cluster.change("words-state-1", ready=False)
    cluster.reconcile()
    there = [f"words-state-{number}" for number in (0, 2, 3)]
    assert [m.name for m in cluster.proposal.members] == there
    assert cluster.proposal.leaving is None


def test_a_server_that_dies_as_it_leaves_is_not_named_any_more():
    cluster = settled(stateServers={"replicas": 3, "copies": 2})
    cluster.edit(stateServers={"replicas": 2, "copies": 2})
    cluster.reconcile()
    cluster.change("words-state-2", ready=False)
    assert "propose state-0 state-1 acker-0 acker-1" in done(cluster)
    assert cluster.proposal.leaving is None


def test_a_server_whose_pod_is_deleted_is_named_as_one_that_leaves():
    """As in a drain of its node: it serves until the view has moved, and the next pod follows."""
    cluster = settled(stateServers={"replicas": 3, "copies": 2})
    (leaver,) = (m for m in cluster.view.target if m.name == "words-state-1")
    cluster.change("words-state-1", deleting=True)
    assert done(cluster) == ["propose state-0 state-2 acker-0 acker-1"]
    assert "StateServerLeaves" in reasons(cluster)
    assert "StateServerLost" not in reasons(cluster)
    assert cluster.proposal.leaving == (leaver,)
    assert "words-state-1" not in dict(cluster.proposal.nodes)
    assert done(cluster) == [], "it is said once, and its pod is left alone"
    cluster.drive()
    assert leaver not in cluster.view.target
    proposed = cluster.proposal
    assert not [one for one in done(cluster) if "state-1" in one or "propose" in one]
    assert cluster.proposal == proposed
    cluster.settle()
    assert "words-state-1" in cluster.created[-1:]
    assert leaver.run_id not in {m.run_id for m in cluster.view.target}
    assert {m.name for m in cluster.view.target} == {f"words-state-{n}" for n in range(3)}
    assert conditions(cluster)["StateAvailable"] == ("True", "AllReady")


@pytest.mark.parametrize(
    "end",
    [
        lambda c: c.change("words-state-1", ready=False),
        lambda c: c.change("words-state-1", phase=PodPhase.FAILED),
        lambda c: c.change("words-state-1", run_id=None),
        node_of("words-state-1"),
    ],
    ids=["does not answer", "has ended", "says no life", "its node is lost"],
)
def test_a_server_that_is_deleted_and_gone_leaves_nothing(end: Callable[[Cluster], object]):
    cluster = settled(stateServers={"replicas": 3, "copies": 2})
    cluster.change("words-state-1", deleting=True)
    end(cluster)
    done(cluster)
    assert "StateServerLost" in reasons(cluster)
    assert "StateServerLeaves" not in reasons(cluster)
    assert cluster.proposal.leaving is None
    assert [m.name for m in cluster.proposal.members] == ["words-state-0", "words-state-2"]


def test_a_server_that_is_deleted_before_the_view_has_it_has_nothing_to_leave():
    cluster = settled(stateServers={"replicas": 2, "copies": 2})
    cluster.edit(stateServers={"replicas": 3, "copies": 2})
    cluster.reconcile()
    cluster.progress()
    cluster.change("words-state-2", deleting=True)
    cluster.reconcile()
    assert [m.name for m in cluster.proposal.members] == ["words-state-0", "words-state-1"]
    assert cluster.proposal.leaving is None


def test_the_last_server_is_proposed_as_before_while_its_pod_is_deleted():
    """There is nobody to leave anything to."""
    cluster = settled(stateServers={"replicas": 1})
    proposed = cluster.proposal
    cluster.change("words-state-0", deleting=True)
    assert done(cluster) == []
    assert cluster.proposal == proposed


def test_a_server_that_came_back_while_the_others_had_its_state_leaves():
    cluster = settled(stateServers={"replicas": 3, "copies": 1})
    cluster.edit(stateServers={"replicas": 2, "copies": 1})
    cluster.reconcile()
    cluster.drive()
    cluster.change("words-state-2", run_id="another")
    assert done(cluster) == ["delete words-state-2"]


def flapping() -> Cluster:
    """A third server was proposed, and taken back before the driver made it a member."""
    cluster = settled(stateServers={"replicas": 2, "copies": 1})
    cluster.edit(stateServers={"replicas": 3, "copies": 1})
    cluster.reconcile()
    cluster.progress()
    cluster.reconcile()
    proposed = [m.name for m in cluster.proposal.members]
    assert proposed == [f"words-state-{n}" for n in range(3)]
    assert [m.name for m in cluster.view.target] == ["words-state-0", "words-state-1"]
    cluster.drive(late=True)
    cluster.heard = cluster.proposal
    cluster.edit(stateServers={"replicas": 2, "copies": 1})
    return cluster


def test_a_server_that_the_driver_may_still_make_a_member_is_not_deleted():
    cluster = flapping()
    assert done(cluster)[-1] == "propose state-0 state-1 acker-0 acker-1"
    assert done(cluster) == []
    seen = cluster.observed()
    cluster.drive(late=True)
    assert "words-state-2" in {m.name for m in cluster.view.target}
    # What was seen before that says nothing, and neither does the driver of another execution.
    for told in (None, replace(seen.told, follows=None), replace(seen.told, execution=0)):
        assert summary(plan(replace(seen, told=told), *_given(cluster)).actions) == []
    cluster.drive()
    assert cluster.told.follows == cluster.proposal.number
    assert "delete words-state-2" in done(cluster)


def test_a_server_on_a_lost_node_that_may_become_a_member_is_not_deleted():
    cluster = flapping()
    cluster.edit(stateServers={"replicas": 3, "copies": 1})
    node_of("words-state-2")(cluster)
    for _ in range(2):
        assert "force words-state-2" not in done(cluster)
    cluster.drive()
    assert "force words-state-2" in done(cluster)


def test_without_a_driver_a_server_that_is_too_much_goes():
    cluster = flapping()
    cluster.edit(suspend=True)
    assert "delete words-state-2" not in done(cluster)
    cluster.progress()
    assert "words-driver-1" not in cluster.pods
    assert "delete words-state-2" in done(cluster)


def drivers(cluster: Cluster) -> list[str]:
    return [pod.name for pod in cluster.pods.values() if pod.component is Role.DRIVER]


def test_behind_a_driver_whose_end_nobody_saw_no_server_goes_until_another_has_the_view():
    """Somebody deleted its pod by force: what ran in it may still act."""
    cluster = flapping()
    cluster.pods.pop("words-driver-1")
    assert "delete words-state-2" not in done(cluster)
    cluster.change("words-driver-2", phase=PodPhase.FAILED, exit_code=1)
    assert "delete words-state-2" not in done(cluster)
    cluster.settle()
    assert "words-state-2" not in cluster.pods


def test_behind_a_driver_deleted_on_a_lost_node_no_server_goes_until_another_has_the_view():
    """Its pod is gone, it is not: a quota holds up the next one, and it may still act."""
    cluster = flapping()
    cluster.change("words-driver-1", node="node-9")
    cluster.refused = {f"words-driver-{number}": "quota" for number in range(2, 9)}
    assert "force words-driver-1" in done(cluster)
    assert drivers(cluster) == []
    cluster.edit(suspend=True)
    for _ in range(3):
        assert "delete words-state-2" not in done(cluster)
        cluster.now += timedelta(seconds=30)
    cluster.edit(suspend=False)
    cluster.refused = {}
    done(cluster)
    # One that ended before it had claimed the view has fenced nobody.
    [driver] = drivers(cluster)
    cluster.change(driver, phase=PodPhase.FAILED, exit_code=1)
    assert "delete words-state-2" not in done(cluster)
    for _ in range(3):
        cluster.now += timedelta(seconds=30)
        done(cluster)
        cluster.progress()
    cluster.drive()
    assert cluster.told.follows == cluster.proposal.number
    assert "delete words-state-2" in done(cluster)


def test_a_suspended_driver_on_a_lost_node_stays_until_it_is_known_to_be_dead():
    cluster = settled()
    node_of("words-driver-1")(cluster)
    cluster.edit(suspend=True)
    assert "delete words-driver-1" in done(cluster)
    assert "words-driver-1" in cluster.pods


def test_an_edit_with_restart_leads_to_a_driver_with_the_new_topology():
    cluster = settled()
    before = cluster.pods["words-driver-1"].fingerprint
    cluster.edit(parallelism=5)
    cluster.settle()
    assert cluster.status.driver.number == 2
    assert cluster.pods["words-driver-2"].fingerprint != before
    assert "words-driver-1" not in cluster.pods
    assert ("ConfigMap", "words-driver-1") not in cluster.children
    restart = next(e for e in cluster.events if e.reason == "EditedWithRestart")
    assert restart.message == ("the driver starts again from sealed window 7: spec.parallelism")


@pytest.mark.parametrize("edit", [{"restartNonce": 1}, {"parallelism": 5}])
def test_a_topology_is_not_ready_by_the_driver_that_an_edit_ends(edit: dict[str, Any]):
    """``kubectl wait`` goes by the generation, and would not wait."""
    cluster = settled()
    cluster.edit(**edit)
    for _ in range(2):
        cluster.reconcile()
        assert cluster.status.observed_generation == 2
        assert conditions(cluster)["SparkRunning"] == ("False", "Starting")
        assert conditions(cluster)["Ready"] == ("False", "Starting")
    cluster.settle()
    assert conditions(cluster)["Ready"] == ("True", "AllReady")
    assert cluster.status.driver.number == 2


def test_a_topology_is_not_ready_by_ackers_that_an_edit_ends():
    def server(key: str) -> dict[str, Any]:
        password = {"secretRef": {"name": "cache", "key": key}}
        return {"url": "rediss://cache:6379", "password": password}

    cluster = settled(stateServers=server("old"))
    cluster.edit(stateServers=server("new"))
    words = summary(cluster.reconcile())
    assert {"delete words-acker-0", "delete words-acker-1"} <= set(words)
    assert conditions(cluster)["AckersAvailable"] == ("False", "Growing")
    assert conditions(cluster)["Ready"][0] == "False"
    cluster.settle()
    assert conditions(cluster)["Ready"] == ("True", "AllReady")


def test_an_edit_that_restarts_tells_what_is_in_place_beside_it_too():
    cluster = settled()
    cluster.edit(
        pods={"ackers": {"nodeSelector": {"disk": "fast"}}},
        stateServers={"replicas": 3, "copies": 2, "memory": "2g"},
        restartNonce=1,
    )
    cluster.reconcile()
    told = {event.reason: event for event in cluster.events}
    assert {"StateServersKeepMemory", "PodsKeepSettings"} <= set(told)
    assert "EditedInPlace" not in told
    fields = "spec.restartNonce; spec.stateServers.memory; spec.pods.ackers.nodeSelector.disk"
    assert told["EditedWithRestart"].message == (
        f"the driver starts again from sealed window 7: {fields}"
    )
    assert "spec.pods.ackers" in told["PodsKeepSettings"].message


@pytest.mark.parametrize(
    ("edit", "told"),
    [({"restartNonce": 1}, "EditedWithRestart"), ({"ackers": {"replicas": 3}}, "EditedInPlace")],
)
def test_an_edit_is_told_whenever_the_operator_dies(edit: dict[str, Any], told: str):
    for crash_after in range(40):
        cluster = settled()
        cluster.edit(**edit)
        try:
            cluster.reconcile(crash_after=crash_after)
        except CrashError:
            cluster.settle()
            assert told in reasons(cluster), crash_after
            continue
        return
    raise AssertionError("no plan came to its end")


def test_an_edit_in_place_restarts_nobody():
    cluster = settled()
    uids = {pod.uid for pod in cluster.pods.values()}
    cluster.edit(ackers={"replicas": 4}, stateServers={"replicas": 5, "copies": 2})
    cluster.settle()
    assert uids <= {pod.uid for pod in cluster.pods.values()}
    assert cluster.status.ackers.summary == "4/4"


SEVERAL: dict[str, Any] = {
    "sources": [{"name": name, "files": {"path": name, "watch": False}} for name in "ab"],
    "processors": [
        {"name": name, "function": "words:split", "inputs": [{"from": "a"}, {"from": "b"}]}
        for name in ("split", "more")
    ],
    "sinks": [
        {"name": f"out-{name}", "inputs": [{"from": name}], "files": {"path": f"out-{name}"}}
        for name in ("split", "more")
    ],
}


def turned(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same in another order, inputs too."""
    turned = [
        {**part, "inputs": part["inputs"][::-1]} if "inputs" in part else part for part in parts
    ]
    return turned[::-1]


REORDERED = {section: turned(parts) for section, parts in SEVERAL.items()}


@pytest.mark.parametrize("section", SEVERAL)
def test_another_order_of_components_and_inputs_means_nothing(section: str):
    cluster = settled(**SEVERAL)
    cluster.edit(**{section: REORDERED[section]})
    assert done(cluster) == []
    assert cluster.events == []
    # Nor does it beside an edit in place, or for a driver that is drained.
    cluster.edit(ackers={"replicas": 3})
    cluster.settle()
    assert drivers(cluster) == ["words-driver-1"]
    assert reasons(cluster)[0] == "EditedInPlace"
    cluster.change("words-driver-1", phase=PodPhase.SUCCEEDED, ready=False, exit_code=0)
    cluster.settle()
    cluster.edit(**SEVERAL)
    cluster.settle()
    assert cluster.status.phase is Phase.FINISHED
    assert "words-driver-2" not in cluster.created


def test_a_component_that_is_added_in_front_is_an_edit_as_any():
    cluster = settled(**SEVERAL)
    sinks = REORDERED["sinks"]
    third = {**sinks[0], "name": "third", "files": {"path": "third"}}
    cluster.edit(sinks=[third, *sinks], processors=REORDERED["processors"])
    cluster.settle()
    assert drivers(cluster) == ["words-driver-2"]
    (told,) = (event for event in cluster.events if event.reason == "EditedWithRestart")
    assert told.message.endswith(": spec.sinks[third]")
    assert cluster.accepted is not None
    names = [sink["name"] for sink in cluster.accepted.topology["spec"]["sinks"]]
    assert names == ["out-split", "out-more", "third"]


def advised(cluster: Cluster, of: int, wanted: int) -> None:
    """What the driver tells of its ackers, and what becomes of it."""
    cluster.told = replace(cluster.told, ackers=AckerAdvice(of, wanted))
    cluster.reconcile()
    cluster.settle()
    cluster.told = replace(cluster.told, ackers=AckerAdvice(of, wanted))


def ackers_of(cluster: Cluster) -> int:
    return len([name for name in cluster.pods if "acker" in name])


def test_ackers_follow_the_load_between_min_and_max():
    cluster = settled(ackers={"replicas": 2, "min": 1, "max": 4})
    assert ackers_of(cluster) == 2
    advised(cluster, 2, 3)
    assert ackers_of(cluster) == 3
    assert "AckersScaled" in reasons(cluster)
    assert cluster.status.ackers.summary == "3/3"
    cluster.events.clear()
    assert cluster.reconcile() == (), "advice for two says nothing of three"
    advised(cluster, 3, 9)
    assert ackers_of(cluster) == 4
    advised(cluster, 4, 3)
    assert ackers_of(cluster) == 3
    cluster.edit(ackers={"replicas": 2, "min": 1, "max": 2})
    cluster.settle()
    assert ackers_of(cluster) == 2
    assert cluster.status.driver.number == 1


def test_ackers_follow_a_load_that_falls_while_some_of_them_cannot_run():
    """One waits for room on a node, say, and may for ever."""
    cluster = settled(ackers={"replicas": 2, "min": 1, "max": 4})
    advised(cluster, 2, 4)
    cluster.change("words-acker-3", ready=False)
    cluster.settle()
    assert len(cluster.proposal.ackers) == 3
    advised(cluster, 3, 4)
    assert ackers_of(cluster) == 4
    advised(cluster, 3, 1)
    assert ackers_of(cluster) == 1
    assert cluster.status.ackers.intended == 1
    cluster.edit(ackers={"replicas": 4, "min": 1, "max": 4})
    cluster.settle()
    assert ackers_of(cluster) == 4, "what was said of three is old"


@pytest.mark.parametrize(("asked", "there"), [(3, 3), (9, 4), (1, 2)])
def test_kubectl_scale_is_clamped_and_the_load_goes_on_from_there(asked: int, there: int):
    cluster = settled(ackers={"replicas": 2, "min": 2, "max": 4})
    advised(cluster, 2, 4)
    cluster.edit(ackers={"replicas": asked, "min": 2, "max": 4})
    cluster.settle()
    assert ackers_of(cluster) == there
    advised(cluster, there, 3)
    assert ackers_of(cluster) == 3


def test_without_min_and_max_the_load_decides_nothing():
    cluster = settled()
    advised(cluster, 2, 4)
    assert ackers_of(cluster) == 2
    assert cluster.status.ackers.intended is None


def test_bounds_that_are_taken_back_take_along_what_the_load_had_come_to():
    cluster = settled(ackers={"replicas": 1, "min": 1, "max": 4})
    advised(cluster, 1, 3)
    assert cluster.status.ackers.intended == 3
    cluster.edit(ackers={"replicas": 1})
    cluster.settle()
    assert (cluster.status.ackers.intended, cluster.status.ackers.asked) == (None, None)
    assert ackers_of(cluster) == 1
    # A driver says nothing of other ackers than it has.
    cluster.told = replace(cluster.told, ackers=None)
    cluster.edit(ackers={"replicas": 1, "min": 1, "max": 4})
    cluster.settle()
    assert ackers_of(cluster) == 1, "the load has not asked for more since"


def test_what_the_load_had_come_to_outlives_a_store_that_was_lost_for_a_while():
    cluster = settled(ackers={"replicas": 1, "min": 1, "max": 4})
    advised(cluster, 1, 3)
    lost = cluster.children.pop(("Secret", "words-secret"))
    cluster.reconcile()
    assert conditions(cluster)["Stalled"] == ("True", "StoreLost")
    assert cluster.status.ackers.intended == 3
    cluster.children["Secret", "words-secret"] = lost
    cluster.settle()
    assert ackers_of(cluster) == 3


@pytest.mark.parametrize("crash_after", range(8))
def test_what_the_load_asked_for_stays_whoever_dies(crash_after: int):
    """The operator between two steps of it, the driver right after, and an acker."""
    cluster = settled(ackers={"replicas": 1, "min": 1, "max": 4})
    cluster.told = replace(cluster.told, ackers=AckerAdvice(1, 3))
    with suppress(CrashError):
        cluster.reconcile(crash_after)
    begun = cluster.status.ackers.intended == 3
    cluster.change("words-driver-1", phase=PodPhase.FAILED, exit_code=137)
    cluster.pods.pop("words-acker-0")
    cluster.settle()
    assert cluster.status.driver.number == 2
    # What was written is done; what was not is the next driver's to say again.
    assert ackers_of(cluster) == cluster.status.ackers.intended
    assert not begun or ackers_of(cluster) == 3


def test_a_suspended_topology_comes_back_with_as_many_ackers():
    cluster = settled(ackers={"replicas": 1, "min": 1, "max": 4})
    advised(cluster, 1, 3)
    cluster.edit(suspend=True)
    cluster.settle()
    assert ackers_of(cluster) == 0
    cluster.edit(suspend=False)
    cluster.settle()
    assert ackers_of(cluster) == 3


@pytest.mark.parametrize(("told", "desired"), [(None, 2), (3, 3), (9, 4)])
def test_between_min_and_max_the_driver_says_how_many_executors_there_are_to_be(
    told: int | None, desired: int
):
    cluster = settled(spark={"executors": {"instances": 2, "min": 1, "max": 4}})
    cluster.told = replace(cluster.told, executors=told)
    cluster.reconcile()
    assert cluster.status.executors.summary == f"2/{desired}"
    assert cluster.status.driver.number == 1


def test_without_bounds_there_are_as_many_executors_as_asked_for():
    cluster = settled(spark=EXECUTORS)
    cluster.told = replace(cluster.told, executors=5)
    cluster.reconcile()
    assert cluster.status.executors.summary == "2/2"


EXECUTORS = {"executors": {"instances": 2}}


def test_the_driver_is_told_of_settings_that_it_follows_while_it_runs():
    cluster = settled(spark=EXECUTORS)
    before, proposed = dict(cluster.pods), cluster.proposal
    assert proposed.tuning is None, "it began with what is accepted"
    cluster.edit(window={"maxRecords": 9}, parallelism=5)
    cluster.settle()
    assert cluster.proposal.tuning == replace(
        Tuning.of(StreamTopology.model_validate(cluster.accepted.topology), 1),
        max_records=9,
        parallelism=5,
    )
    assert cluster.proposal.number > proposed.number
    assert before == cluster.pods
    (event,) = [one for one in cluster.events if one.reason == "EditedInPlace"]
    fields = "spec.window.maxRecords; spec.parallelism"
    assert event.message == f"without a restart, behind sealed window 7: {fields}"
    cluster.edit(window={"maxRecords": 4})
    cluster.settle()
    assert (cluster.proposal.tuning.number, cluster.proposal.tuning.max_records) == (2, 4)
    # Other edits leave the number alone.
    cluster.edit(ackers={"replicas": 3})
    cluster.settle()
    assert cluster.proposal.tuning.number == 2
    assert before.keys() < cluster.pods.keys()


def told_at_its_start(cluster: Cluster, driver: str) -> tuple[int, Any]:
    """The number of its settings, and the topology that it begins with."""
    data = cluster.manifests["ConfigMap", driver]["data"]
    settings, document = json.loads(data["driver.json"]), json.loads(data["topology.json"])
    return settings.get("tuned", 0), document["spec"]


@pytest.mark.parametrize("crash_after", range(6))
def test_a_driver_that_starts_later_begins_with_what_was_accepted(crash_after: int):
    """The operator dies between any two steps of the edit, and the driver right after it."""
    cluster = settled(spark=EXECUTORS)
    cluster.edit(window={"maxRecords": 9}, parallelism=5)
    with suppress(CrashError):
        cluster.reconcile(crash_after)
    cluster.change("words-driver-1", phase=PodPhase.FAILED, exit_code=137)
    cluster.settle()
    number, spec = told_at_its_start(cluster, "words-driver-2")
    assert (spec["window"]["maxRecords"], spec["parallelism"], number) == (9, 5, 1)
    # What it reads in the inbox is no newer than that, and nothing to go back to.
    tuning = cluster.proposal.tuning
    assert (tuning.number, tuning.max_records, tuning.parallelism) == (1, 9, 5)


def test_without_executors_other_threads_are_a_restart():
    cluster = settled()
    cluster.edit(parallelism=5)
    cluster.settle()
    number, spec = told_at_its_start(cluster, "words-driver-2")
    assert (spec["parallelism"], number) == (5, 0)
    assert cluster.proposal.tuning is None


def test_what_a_driver_was_given_up_with_is_mended_by_an_edit_in_place_too():
    """Nobody is left who could follow it."""
    cluster = settled()
    cluster.edit(tupleTimeout="90s")
    cluster.settle()
    code = int(ExitCode.TOO_MANY_DEAD)
    cluster.change("words-driver-1", phase=PodPhase.FAILED, ready=False, exit_code=code)
    cluster.settle()
    assert conditions(cluster)["Stalled"] == ("True", "DriverGaveUp")
    cluster.edit(tupleTimeout="95s")
    cluster.settle()
    assert cluster.status.driver.number == 2
    assert told_at_its_start(cluster, "words-driver-2")[1]["tupleTimeout"] == "95s"
    assert conditions(cluster)["Ready"][0] == "True"
    cluster.change("words-driver-2", phase=PodPhase.FAILED, ready=False, exit_code=code)
    cluster.settle()
    assert conditions(cluster)["Stalled"] == ("True", "DriverGaveUp")
    assert cluster.status.driver.number == 2


EDITS_IN_PLACE: tuple[dict[str, Any], ...] = (
    {"ackers": {"replicas": 3}},
    {"stateServers": {"replicas": 3, "copies": 2, "memory": "2g"}},
    {"pods": {"ackers": {"nodeSelector": {"disk": "fast"}}}},
    {"spark": {"driver": {"standby": 1}}},
    {"tupleTimeout": "95s"},
)


def given_up() -> Cluster:
    cluster = settled()
    code = int(ExitCode.TOO_MANY_DEAD)
    cluster.change("words-driver-1", phase=PodPhase.FAILED, ready=False, exit_code=code)
    cluster.settle()
    assert conditions(cluster)["Stalled"] == ("True", "DriverGaveUp")
    return cluster


@pytest.mark.parametrize("collected", [False, True])
@pytest.mark.parametrize("edit", EDITS_IN_PLACE, ids=lambda edit: next(iter(edit)))
def test_a_driver_that_was_given_up_is_started_again_by_any_edit(
    edit: dict[str, Any], collected: bool
):
    cluster = given_up()
    if collected:
        del cluster.pods["words-driver-1"]
        cluster.settle()
    cluster.edit(**edit)
    # The operator dies as it has accepted it.
    words = summary(plan(cluster.observed(), *_given(cluster)).actions)
    with pytest.raises(CrashError):
        cluster.reconcile(crash_after=words.index("apply ConfigMap words-accepted") + 1)
    cluster.settle()
    assert cluster.writer == "words-driver-2"
    assert conditions(cluster)["Ready"][0] == "True"
    assert cluster.status.driver.same_code == 0


@pytest.mark.parametrize("collected", [False, True])
def test_a_driver_that_was_given_up_is_started_again_when_suspend_goes(collected: bool):
    cluster = given_up()
    cluster.edit(suspend=True)
    cluster.settle()
    assert conditions(cluster)["Ready"] == ("True", "Suspended")
    if collected:
        cluster.pods.pop("words-driver-1", None)
    cluster.edit(suspend=False)
    cluster.settle()
    assert cluster.writer == "words-driver-2"
    assert conditions(cluster)["Ready"][0] == "True"


def test_an_edit_that_is_refused_starts_no_driver_that_was_given_up():
    cluster = given_up()
    cluster.edit(keyGroups=64)
    cluster.settle()
    cluster.edit(keyGroups=128)
    cluster.settle()
    assert conditions(cluster)["Stalled"] == ("True", "DriverGaveUp")
    assert "words-driver-2" not in cluster.created


def test_a_refused_edit_changes_nothing_until_it_is_taken_back():
    cluster = settled()
    cluster.edit(keyGroups=64, parallelism=9)
    cluster.settle()
    assert conditions(cluster)["Stalled"] == ("True", "EditRefused")
    assert "spec.keyGroups: 128 → 64" in cluster.status.message
    assert cluster.status.driver.number == 1
    assert cluster.accepted.topology["spec"]["parallelism"] == 2
    cluster.edit(keyGroups=128, parallelism=2)
    cluster.settle()
    assert conditions(cluster)["Stalled"][0] == "False"
    assert cluster.status.driver.number == 1


def test_files_that_move_are_refused_by_name_and_a_sink_goes_before_its_volume():
    cluster = settled()
    cluster.edit(volumes=[claim("others")])
    cluster.settle()
    for said in ("words:texts", "others:texts", "source 'lines'", "words:out", "sink 'out'"):
        assert said in cluster.status.message
    assert cluster.status.driver.number == 1
    # The same place by another way is no move.
    cluster.edit(
        volumes=[
            {**claim("words"), "mountPath": "/data/texts", "subPath": "texts", "name": "in"},
            claim("words"),
        ]
    )
    cluster.settle()
    assert conditions(cluster)["Stalled"][0] == "False"
    cluster.edit(**GENERATED)
    cluster.settle()
    cluster.edit(volumes=[SCRATCH])
    cluster.settle()
    assert conditions(cluster)["Stalled"][0] == "False"


@pytest.mark.parametrize(
    ("volume", "said"),
    [
        (None, "lies on no volume in pods (/data/texts)"),
        ({**SCRATCH, "mountPath": "/data"}, "lies on volume 'scratch', which is no claim"),
        (
            {"name": "m", "mountPath": "/data/out", "configMap": {"name": "c"}},
            "lies on no volume in pods (/data/texts)",
        ),
        ({**claim("words"), "readOnly": True}, "on volume 'data', which is readOnly (/data/out)"),
    ],
)
def test_files_that_would_go_with_their_pod_begin_nothing(volume: Any, said: str):
    cluster = Cluster()
    cluster.spec["volumes"] = [volume] if volume is not None else []
    cluster.settle()
    assert cluster.pods == {}
    assert conditions(cluster)["Stalled"] == ("True", "InvalidTopology")
    assert said in cluster.status.message
    assert "persistentVolumeClaim" in cluster.status.message


def test_what_is_read_may_come_with_the_image_or_a_config_map():
    for path, volumes in (
        ("/opt/millrace/examples/wordcount/texts", [claim("words")]),
        (
            "/texts",
            [claim("words"), {"name": "t", "mountPath": "/texts", "configMap": {"name": "t"}}],
        ),
    ):
        cluster = Cluster()
        cluster.spec["volumes"] = volumes
        cluster.spec["sources"] = [{"name": "lines", "files": {"path": path}}]
        cluster.settle()
        assert conditions(cluster)["Ready"][0] == "True"


def test_what_was_never_a_topology_begins_nothing():
    cluster = Cluster()
    cluster.spec["sinks"] = []
    cluster.settle()
    assert cluster.pods == {}
    assert cluster.children == {}
    assert conditions(cluster)["Stalled"] == ("True", "InvalidTopology")
    cluster.edit(sinks=SPEC["sinks"])
    cluster.settle()
    assert conditions(cluster)["Ready"][0] == "True"


def without_secret(cluster: Cluster) -> None:
    cluster.settle()
    del cluster.children["Secret", "words-secret"]


def accepted_by_a_newer_one(cluster: Cluster) -> None:
    cluster.settle()
    assert cluster.accepted is not None
    spec = {**cluster.accepted.topology["spec"], "futures": {"some": 1}}
    cluster.accepted = replace(cluster.accepted, topology={"spec": spec})


STALLING: dict[str, tuple[Callable[[Cluster], Any], str, str]] = {
    "never a topology": (lambda c: c.edit(sinks=[]), "InvalidTopology", "False"),
    "no snapshot": (
        lambda c: c.edit(restoreFrom={"snapshot": "early"}),
        "SnapshotMissing",
        "False",
    ),
    "names taken": (
        lambda c: c.earlier.update({"Pod words-state-0": None}),
        "NamesTaken",
        "False",
    ),
    "nobody knows": (accepted_by_a_newer_one, "NewerFormat", "False"),
    "all is there": (without_secret, "StoreLost", "True"),
}


@pytest.mark.parametrize("why", STALLING)
def test_pods_of_a_topology_that_stalls_are_not_said_to_be_there_or_not_needed(why: str):
    happens, reason, holds = STALLING[why]
    cluster = Cluster()
    happens(cluster)
    cluster.events.clear()
    cluster.settle()
    assert conditions(cluster)["Stalled"] == ("True", reason)
    wanted = (holds, reason if holds == "False" else "AllReady")
    assert conditions(cluster)["AckersAvailable"] == wanted
    assert conditions(cluster)["StateAvailable"] == wanted
    assert reasons(cluster).count(reason) == 1


def test_an_acker_that_is_gone_while_the_store_is_lost_waits_for_that():
    cluster = Cluster()
    without_secret(cluster)
    vanish("words-acker-1")(cluster)
    cluster.settle()
    assert conditions(cluster)["AckersAvailable"] == ("False", "StoreLost")
    assert conditions(cluster)["StateAvailable"] == ("True", "AllReady")
    assert cluster.status.ackers is not None
    assert cluster.status.ackers.summary == "1/2"


def test_servers_that_the_first_view_may_name_are_kept():
    """A driver was started with them, and may write the first view at any moment."""
    cluster = Cluster()
    cluster.reconcile()
    cluster.progress()
    cluster.reconcile()
    assert cluster.view is None
    cluster.edit(stateServers={"replicas": 2, "copies": 2})
    assert not any(word.startswith("delete words-state") for word in done(cluster))


def test_a_server_that_is_lost_before_any_driver_was_told_of_it_is_replaced():
    """The first proposal waits for all of them."""
    cluster = Cluster()
    cluster.reconcile()
    cluster.nodes["away"] = False
    cluster.change("words-state-1", node="away")
    lost = cluster.pods["words-state-1"].uid
    cluster.settle()
    assert conditions(cluster)["Ready"] == ("True", "AllReady")
    assert cluster.pods["words-state-1"].uid != lost


UNKNOWN: dict[str, Callable[[Cluster, Observed], Observed]] = {
    "in an inbox that is gone": lambda c, o: replace(
        o, children=tuple(one for one in o.children if one.name != "words-inbox")
    ),
    "in an inbox that cannot be read": lambda c, o: replace(o, unread_proposal=True),
    "that a driver says it follows": lambda c, o: replace(o, told=Status(uid=c.uid, follows=1)),
}


@pytest.mark.parametrize("where", UNKNOWN)
def test_a_server_that_a_driver_may_have_been_told_of_is_kept_though_it_is_lost(where: str):
    cluster = Cluster()
    cluster.reconcile()
    cluster.nodes["away"] = False
    cluster.change("words-state-1", node="away")
    made = plan(UNKNOWN[where](cluster, cluster.observed()), *_given(cluster))
    assert not any(word.startswith("force words-state") for word in summary(made.actions))
    made = plan(cluster.observed(), *_given(cluster))
    assert "force words-state-1" in summary(made.actions)


def test_of_nobody_nothing_is_proposed():
    cluster = settled()
    before = cluster.proposal
    for number in range(3):
        cluster.change(f"words-state-{number}", run_id=None, ready=False)
    assert done(cluster) == ["apply PodDisruptionBudget words-state"]
    assert cluster.proposal == before


def test_a_drained_topology_runs_again_when_it_is_edited():
    cluster = settled()
    cluster.change("words-driver-1", phase=PodPhase.SUCCEEDED, ready=False, exit_code=0)
    cluster.settle()
    assert (cluster.status.phase, cluster.status.driver.number) == (Phase.FINISHED, 1)
    assert conditions(cluster)["Ready"] == ("True", "Drained")
    cluster.edit(parallelism=4)
    cluster.settle()
    assert (cluster.status.phase, cluster.status.driver.number) == (Phase.RUNNING, 2)


def test_pods_of_an_earlier_release_are_told_and_renewed_by_whom_they_belong_to():
    cluster = settled()
    assert conditions(cluster)["UpToDate"] == ("True", "ImagesCurrent")
    upgraded = replace(SETTINGS, runtime_image="runtime:2")

    def turn() -> list[str]:
        actions = plan(cluster.observed(), upgraded, _given(cluster)[1]).actions
        for action in actions:
            cluster.act(action)
        return [word for word in summary(actions) if word != "status"]

    assert turn() == ["warning RunsOldImage"]
    (told,) = (c for c in cluster.status.conditions if c.type == "UpToDate")
    assert (told.status.value, told.reason) == ("False", "RunsOldImage")
    for name in ("words-driver-1", "words-acker-0", "words-acker-1"):
        assert name in told.message
    assert "state" not in told.message
    assert conditions(cluster)["Ready"][0] == "True"
    # As the document says.
    cluster.edit(restartNonce=1)
    for name in ("words-acker-0", "words-acker-1"):
        vanish(name)(cluster)
        turn()
        cluster.progress()
        turn()
    cluster.progress()
    turn()
    assert conditions(cluster)["UpToDate"] == ("True", "ImagesCurrent")


UPGRADED = replace(SETTINGS, runtime_image="runtime:2", state_image="state:2")


def rounds(cluster: Cluster, settings: OperatorSettings = SETTINGS, count: int = 8) -> list[str]:
    """What so many plans of an operator do while no kubelet does anything."""
    done = []
    for _ in range(count):
        made = plan(cluster.observed(), settings, _given(cluster)[1])
        for action in made.actions:
            cluster.act(action)
        done += summary(made.actions)
    return done


def unpulled() -> Cluster:
    """All pods wait on their nodes for images that nobody has."""
    cluster = Cluster()
    cluster.reconcile()
    for name in cluster.pods:
        cluster.change(name, node="node-0", reason="ImagePullBackOff")
    return cluster


def test_pods_that_never_began_are_made_anew_once_their_images_are_mended():
    cluster = unpulled()
    words = rounds(cluster)
    assert not any(word.startswith("delete") for word in words), "there is nothing else for them"
    words = []
    for _ in range(8):
        words += rounds(cluster, UPGRADED, 1)
        cluster.pods = {n: p for n, p in cluster.pods.items() if not p.deleting}
    images = {pod.component: pod.image for pod in cluster.pods.values()}
    wanted = {Role.STATE_SERVER: "state:2", Role.ACKER: "runtime:2", Role.DRIVER: "runtime:2"}
    assert images == wanted
    assert len(cluster.pods) == 6
    assert [word for word in words if word.startswith("delete words-driver")] == [
        "delete words-driver-1"
    ]
    assert "RunsOldImage" not in reasons(cluster)
    assert "DriverGone" not in reasons(cluster)
    assert rounds(cluster, UPGRADED, 2) == []


def test_pods_that_no_node_takes_are_made_anew_once_their_settings_are_mended():
    cluster = Cluster()
    nowhere = {"nodeSelector": {"disk": "none"}}
    cluster.edit(pods={"ackers": nowhere, "stateServers": nowhere, "driver": nowhere})
    cluster.reconcile()
    before = {pod.uid for pod in cluster.pods.values()}
    cluster.edit(pods={})
    rounds(cluster)
    assert not before & {pod.uid for pod in cluster.pods.values()}
    assert "PodsKeepSettings" not in reasons(cluster)
    cluster.settle()
    assert conditions(cluster)["Ready"] == ("True", "AllReady")


def test_pods_that_began_stay_whatever_they_would_be_made_with():
    cluster = settled()
    # Theirs may be a container that waits to be started again.
    cluster.change("words-acker-0", phase=PodPhase.PENDING, started=True)
    # What an older operator made says nothing of what with.
    cluster.change("words-acker-1", phase=PodPhase.PENDING, digest="")
    words = rounds(cluster, UPGRADED)
    assert not any(word.startswith(("delete", "force", "create")) for word in words)
    cluster.edit(pods={"ackers": {"nodeSelector": {"disk": "fast"}}})
    rounds(cluster, UPGRADED)
    assert "PodsKeepSettings" in reasons(cluster)


@pytest.mark.parametrize(("node", "stays"), [("node-1", True), (None, False)])
def test_a_server_of_the_view_is_made_anew_only_where_it_is_on_no_node(
    node: str | None, stays: bool
):
    """Nobody knows how long it takes to be heard of that a container has begun."""
    cluster = settled()
    server = cluster.pods["words-state-1"]
    waits = {"phase": PodPhase.PENDING, "ready": False, "run_id": None, "node": node}
    cluster.change("words-state-1", **waits)
    assert cluster.view is not None
    rounds(cluster, UPGRADED)
    assert (cluster.pods["words-state-1"].uid == server.uid) is stays
    for _ in range(2):
        cluster.drive()
        rounds(cluster, UPGRADED)
    now = cluster.pods["words-state-1"]
    assert now.deleting or now.uid != server.uid, "the view does without it by now"


def test_nobody_is_told_to_renew_a_driver_that_an_edit_of_its_image_ends():
    cluster = settled()
    cluster.edit(code={"image": "own:1"})
    cluster.settle()
    assert cluster.status.driver.number == 2
    assert conditions(cluster)["UpToDate"] == ("True", "ImagesCurrent")
    assert "RunsOldImage" not in reasons(cluster)


@pytest.mark.parametrize(
    ("becomes", "says"),
    [
        ({"deleting": True}, "is being deleted"),
        (
            {"deleting": True, "reason": "Error", "message": "Eviction"},
            "is being deleted: Eviction",
        ),
        ({"phase": PodPhase.FAILED, "reason": "Error", "message": "m"}, "ended: m"),
        ({"phase": PodPhase.FAILED, "reason": "OOMKilled"}, "ended: OOMKilled"),
        ({"phase": PodPhase.FAILED}, "ended"),
    ],
)
def test_why_a_driver_is_gone_is_told_in_its_own_words(becomes: dict[str, Any], says: str):
    cluster = settled()
    cluster.change("words-driver-1", ready=False, **becomes)
    cluster.reconcile()
    (told,) = [event for event in cluster.events if event.reason == "DriverGone"]
    assert told.message == f"words-driver-1 {says}"


def test_what_a_release_says_of_new_fields_restarts_no_driver():
    """An operator with more fields accepts the same topology with more words."""
    cluster = settled()
    accepted = cluster.accepted
    assert accepted is not None
    fewer = {n: v for n, v in accepted.topology["spec"].items() if n not in ("pods", "spark")}
    before = replace(accepted, topology={**accepted.topology, "spec": fewer})
    assert "pods" in accepted.topology["spec"]
    assert fingerprint(before) == fingerprint(accepted)
    changed = {**fewer, "spark": {"driver": {"memory": "2g"}}}
    after = replace(accepted, topology={**accepted.topology, "spec": changed})
    assert fingerprint(after) != fingerprint(accepted)
    ackers = {**fewer, "pods": {"ackers": {"nodeSelector": {"disk": "fast"}}}}
    in_place = replace(accepted, topology={**accepted.topology, "spec": ackers})
    assert fingerprint(in_place) == fingerprint(accepted)


OLDER_PRINT = "7ced40587d717240"
"""What a release called what ``of_an_older_release`` says, whose drivers followed no edit of it."""


def of_an_older_release() -> Cluster:
    """A topology whose driver such a release has started."""
    cluster = settled(
        window={"maxRecords": 500},
        tupleTimeout="90s",
        parallelism=8,
        spark={"executors": {"instances": 2}},
    )
    cluster.change("words-driver-1", fingerprint=OLDER_PRINT)
    return cluster


def test_an_operator_with_more_edits_in_place_restarts_no_driver():
    cluster = of_an_older_release()
    assert cluster.reconcile() == ()
    # That driver cannot follow it.
    cluster.edit(tupleTimeout="60s")
    cluster.settle()
    assert drivers(cluster) == ["words-driver-2"]
    edits = [event for event in cluster.events if event.reason.startswith("Edited")]
    assert [event.reason for event in edits] == ["EditedWithRestart"]
    assert edits[0].message == "the driver starts again from sealed window 7: spec.tupleTimeout"
    # The driver of this release does.
    cluster.events.clear()
    cluster.edit(tupleTimeout="50s")
    cluster.settle()
    assert "EditedInPlace" in reasons(cluster)


@pytest.mark.parametrize("goes", [False, True])
def test_nor_does_it_start_one_that_was_drained_or_given_up(goes: bool):
    cluster = of_an_older_release()
    cluster.change("words-driver-1", phase=PodPhase.SUCCEEDED, ready=False, exit_code=0)
    if goes:
        cluster.reconcile()
        driver = cluster.status.driver
        assert driver is not None
        told = driver.model_copy(update={"drained": OLDER_PRINT})
        cluster.status = cluster.status.model_copy(update={"driver": told})
        del cluster.pods["words-driver-1"]
    cluster.settle()
    assert conditions(cluster)["Ready"] == ("True", "Drained")
    # From then on what is tuned restarts it no more than any other.
    cluster.edit(tupleTimeout="60s")
    cluster.settle()
    assert "words-driver-2" not in cluster.created

    cluster = of_an_older_release()
    ended = {"phase": PodPhase.FAILED, "ready": False, "exit_code": int(ExitCode.USAGE)}
    cluster.change("words-driver-1", **ended)
    cluster.settle()
    driver = cluster.status.driver
    assert driver is not None
    # As that release has written it.
    told = driver.model_copy(update={"gave_up": OLDER_PRINT})
    cluster.status = cluster.status.model_copy(update={"driver": told})
    if goes:
        del cluster.pods["words-driver-1"]
    cluster.settle()
    assert "words-driver-2" not in cluster.created
    cluster.edit(tupleTimeout="60s")
    cluster.settle()
    assert "words-driver-2" in cluster.created


def store(url: str) -> list[dict[str, Any]]:
    redis = {"url": url, "mode": "stream", "stream": "s"}
    return [{"name": "store", "inputs": [{"from": "split"}], "redis": redis}]


def test_a_password_in_an_address_is_refused_and_shown_nowhere():
    cluster = Cluster()
    cluster.spec["sinks"] = store("redis://:pA5sw0rd@store:6379")
    cluster.settle()
    assert cluster.pods == {}
    assert conditions(cluster)["Stalled"] == ("True", "InvalidTopology")
    assert "spec.sinks[0].redis.url" in cluster.status.message
    assert "pA5sw0rd" not in f"{cluster.status} {cluster.events}"
    cluster.edit(sinks=store("redis://store:6379"))
    cluster.settle()
    assert conditions(cluster)["Ready"] == ("True", "AllReady")


def test_a_password_that_an_older_release_accepted_holds_up_no_other_edit():
    cluster = Cluster()
    cluster.spec["sinks"] = store("redis://store:6379")
    cluster.settle()
    old = store("redis://:pA5sw0rd@store:6379")
    accepted = cluster.accepted
    assert accepted is not None
    spec = {**accepted.topology["spec"], "sinks": old}
    cluster.accepted = replace(accepted, topology={**accepted.topology, "spec": spec})
    cluster.edit(sinks=old, parallelism=4)
    cluster.settle()
    assert conditions(cluster)["Ready"] == ("True", "AllReady")
    assert cluster.accepted.topology["spec"]["parallelism"] == 4


def test_a_view_that_no_config_map_takes_is_refused_before_anything_is_made():
    cluster = Cluster()
    cluster.spec |= {"keyGroups": 4096, "stateServers": {"replicas": 8, "copies": 8}}
    resource = replace(cluster.observed().resource, name="w" * 40)
    found = edited(resource, None)
    assert (found.kind, found.accepted) == (EditKind.INVALID, None)
    for named in ("spec.keyGroups: 4096", "copies: 8", "40 characters", "fewer copies"):
        assert named in found.text
    cluster.edit(stateServers={"replicas": 8, "copies": 3})
    first = edited(replace(cluster.observed().resource, name="w" * 40), None)
    assert (first.kind, first.text) == (EditKind.FIRST, "")
    again = edited(resource, first.accepted, begun=True)
    assert (again.kind, again.accepted) == (EditKind.INVALID, first.accepted)


def test_a_large_view_that_an_older_release_accepted_holds_up_no_other_edit():
    cluster = Cluster()
    cluster.spec |= {"keyGroups": 4096, "stateServers": {"replicas": 8, "copies": 3}}
    first = edited(replace(cluster.observed().resource, name="w" * 40), None).accepted
    assert first is not None
    large = {"replicas": 8, "copies": 8}
    spec = {**first.topology["spec"], "stateServers": large}
    before = replace(first, topology={**first.topology, "spec": spec})
    cluster.edit(stateServers=large, parallelism=4)
    found = edited(replace(cluster.observed().resource, name="w" * 40), before, begun=True)
    assert found.topology is not None
    assert found.topology.spec.parallelism == 4


def test_nothing_is_moved_while_most_nodes_are_silent():
    """Their pods run, as far as anybody knows, and kubelets would kill those that were deleted."""
    cluster = settled()
    there = {name: pod.uid for name, pod in cluster.pods.items()}
    cluster.nodes = dict.fromkeys(cluster.nodes, False)
    # Nobody knows whether the servers are those that hold the copies, so that none may be evicted.
    assert done(cluster) == ["apply PodDisruptionBudget words-state"]
    assert conditions(cluster)["Ready"] == ("False", "NodesSilent")
    assert "DriverGone" not in reasons(cluster)
    driver = cluster.pods["words-driver-1"]
    beside = {name for name, pod in cluster.pods.items() if pod.node == driver.node}
    # The way is back, but for the node of the driver.
    cluster.nodes = dict.fromkeys(cluster.nodes, True) | {str(driver.node): False}
    cluster.settle()
    assert "words-driver-2" in cluster.pods
    moved = {n for n, uid in there.items() if n not in cluster.pods or cluster.pods[n].uid != uid}
    assert moved <= beside


def spread(**spec: Any) -> Cluster:
    """Settled, with each state server and acker of a number on a node of its own."""
    cluster = settled(**spec)
    for name in cluster.pods:
        cluster.change(name, node=f"node-{name[-1]}")
    cluster.settle()
    return cluster


def test_who_was_proposed_stays_so_while_most_nodes_are_silent():
    """One node of three answers: with two copies the view would shrink to its server."""
    cluster = spread(ackers={"replicas": 3})
    before = cluster.proposal
    cluster.nodes |= {"node-1": False, "node-2": False}
    assert not any(word.startswith("propose") for word in done(cluster))
    assert cluster.proposal == before
    assert not {"StateServerLost", "AckerLost"}.intersection(reasons(cluster))
    # One that ends where the node answers is dead all the same.
    cluster.change("words-state-0", phase=PodPhase.FAILED)
    assert "propose state-1 state-2 acker-0 acker-1 acker-2" in done(cluster)


def test_who_was_not_proposed_is_not_while_most_nodes_are_silent():
    cluster = spread(ackers={"replicas": 3})
    for name in ("words-state-1", "words-acker-1"):
        cluster.change(name, ready=False)
    assert "propose state-0 state-2 acker-0 acker-2" in done(cluster)
    for name in ("words-state-1", "words-acker-1"):
        cluster.change(name, ready=True)
    cluster.nodes |= {"node-1": False, "node-2": False}
    assert not any(word.startswith("propose") for word in done(cluster))
    # Its address is another one: the pod of that name is another one.
    cluster.change("words-state-2", address="10.0.0.9")
    assert "propose state-0 acker-0 acker-2" in done(cluster)


def test_who_was_proposed_stays_so_until_the_kubelets_that_are_back_call_pods_ready():
    """Nodes answer again some seconds before that."""
    cluster = spread(ackers={"replicas": 3})
    before = cluster.proposal
    back = [name for name in cluster.pods if "state" in name or "acker" in name]
    for name in back:
        cluster.change(name, ready=False, silenced=True, run_id=None)
    assert not any(word.startswith("propose") for word in done(cluster))
    assert cluster.proposal == before
    # Its readiness fails: that is said by a kubelet.
    cluster.change("words-state-1", silenced=False)
    assert "propose state-0 state-2 acker-0 acker-1 acker-2" in done(cluster)


def test_where_nodes_may_not_be_looked_at_one_that_is_not_ready_is_not_kept():
    """Its node may be dead for good."""
    cluster = spread()
    cluster.change("words-state-1", ready=False, silenced=True)
    observed, pod = cluster.observed(), cluster.pods["words-state-1"]
    assert observed.kept(pod)
    assert not replace(observed, nodes=None).kept(pod)
    assert not replace(observed, nodes={str(pod.node): False, "a": True, "b": True}).kept(pod)


def test_one_that_leaves_goes_on_to_while_most_nodes_are_silent():
    cluster = spread()
    cluster.change("words-state-1", deleting=True)
    cluster.reconcile()
    proposal = cluster.proposal
    assert proposal is not None
    assert [member.name for member in proposal.leaving or ()] == ["words-state-1"]
    cluster.nodes |= {"node-1": False, "node-2": False}
    cluster.reconcile()
    assert cluster.proposal == proposal


def test_a_node_that_is_gone_is_lost_while_most_are_silent():
    cluster = settled()
    node = str(cluster.pods["words-driver-1"].node)
    cluster.nodes = {name: False for name in cluster.nodes if name != node}
    assert "create Pod words-driver-2" in done(cluster)


def test_what_another_release_accepted_is_told_and_left_alone():
    cluster = settled()
    accepted = cluster.accepted
    assert accepted is not None
    spec = {**accepted.topology["spec"], "futures": {"some": 1}}
    cluster.accepted = replace(accepted, topology={**accepted.topology, "spec": spec})
    vanish("words-driver-1")(cluster)
    before = (dict(cluster.pods), cluster.status.driver)
    for edit in ({}, {"parallelism": 4}, {"sinks": []}):
        cluster.edit(**edit)
        cluster.settle()
        assert conditions(cluster)["Stalled"] == ("True", "NewerFormat")
        assert "spec.futures" in cluster.status.message
        assert (cluster.pods, cluster.status.driver) == before
    assert "NewerFormat" in reasons(cluster)
    cluster.spec = settled().spec
    cluster.accepted = accepted
    cluster.settle()
    assert conditions(cluster)["Ready"] == ("True", "AllReady")
    assert "words-driver-2" in cluster.pods


def test_a_status_that_cannot_be_read_is_not_written_over():
    observed = settled().observed()
    resource = replace(observed.resource, status=TopologyStatus(), unread="status.driver: no")
    made = plan(replace(observed, resource=resource, pods=()), *_given(settled()))
    assert summary(made.actions) == ["warning NewerFormat"]


def drained() -> Cluster:
    cluster = settled()
    cluster.change("words-driver-1", phase=PodPhase.SUCCEEDED, ready=False, exit_code=0)
    cluster.settle()
    return cluster


@pytest.mark.parametrize(
    "goes",
    [
        vanish("words-driver-1"),
        node_of("words-driver-1"),
        lambda c: c.change("words-driver-1", deleting=True),
    ],
)
def test_a_drained_topology_stays_so_when_its_pod_goes(goes: Callable[[Cluster], Any]):
    """Its node is taken away, or somebody collects pods that have ended."""
    cluster = drained()
    goes(cluster)
    cluster.settle()
    cluster.pods.pop("words-driver-1", None)
    cluster.settle()
    assert [name for name in cluster.created if "driver" in name] == ["words-driver-1"]
    assert conditions(cluster)["Ready"] == ("True", "Drained")
    assert cluster.status.phase is Phase.FINISHED
    cluster.events.clear()
    cluster.edit(restartNonce=1)
    cluster.settle()
    assert (cluster.status.phase, cluster.status.driver.number) == (Phase.RUNNING, 2)
    assert "DriverGone" not in reasons(cluster)
    assert cluster.status.driver.fruitless == 0
    vanish("words-driver-2")(cluster)
    cluster.settle()
    assert cluster.status.driver.number == 3


def test_suspend_and_resume_is_no_failure():
    cluster = settled()
    for number in range(2, 6):
        cluster.events.clear()
        cluster.edit(suspend=True)
        cluster.settle()
        cluster.edit(suspend=False)
        cluster.reconcile()
        assert cluster.status.driver.number == number
        assert "DriverGone" not in reasons(cluster)
        cluster.settle()
    assert (cluster.status.driver.fruitless, cluster.status.driver.retry_at) == (0, None)


def test_an_edit_before_the_driver_runs_is_no_failure():
    cluster = settled()
    for number in range(2, 6):
        cluster.events.clear()
        cluster.edit(restartNonce=number)
        for _ in range(3):
            cluster.reconcile()
        assert cluster.status.driver.number == number
        assert "DriverGone" not in reasons(cluster)
        assert cluster.pods[f"words-driver-{number}"].phase is PodPhase.PENDING
    assert cluster.status.driver.fruitless == 0


def test_an_edit_that_is_taken_back_leaves_no_excuse():
    """The pod runs on; that it is gone later is nobody's wish."""
    cluster = settled()
    cluster.edit(restartNonce=7)
    words = summary(plan(cluster.observed(), *_given(cluster)).actions)
    with pytest.raises(CrashError):
        cluster.reconcile(crash_after=words.index("delete words-driver-1"))
    cluster.edit(restartNonce=0)
    cluster.settle()
    cluster.events.clear()
    vanish("words-driver-1")(cluster)
    cluster.settle()
    assert "DriverGone" in reasons(cluster)


def test_what_was_edited_beside_a_restart_that_is_taken_back_stays_in_force():
    """Neither edit ends the driver, and it was started without the setting."""
    cluster = settled()
    cluster.edit(restartNonce=7, window={"maxRecords": 9})
    words = summary(plan(cluster.observed(), *_given(cluster)).actions)
    with pytest.raises(CrashError):
        cluster.reconcile(crash_after=words.index("delete words-driver-1"))
    cluster.edit(restartNonce=0)
    cluster.settle()
    assert cluster.status.driver.number == 1
    assert cluster.proposal is not None
    assert cluster.proposal.tuning is not None
    assert cluster.proposal.tuning.max_records == 9
    assert cluster.proposal.tuning.number == 1


def test_a_topology_is_not_suspended_while_a_driver_runs():
    """Whoever waits for it may then change what the driver reads and writes."""
    cluster = settled()
    cluster.edit(suspend=True)
    for _ in range(2):
        cluster.reconcile()
        assert cluster.pods["words-driver-1"].phase is PodPhase.RUNNING
        for kind in ("Ready", "SparkRunning"):
            assert conditions(cluster)[kind] == ("False", "Suspending")
        assert conditions(cluster)["Reconciling"] == ("True", "Suspending")
        assert cluster.status.message == "driver pod words-driver-1 is being ended"
    cluster.settle()
    assert "words-driver-1" not in cluster.pods
    assert conditions(cluster)["Ready"] == ("True", "Suspended")
    assert "Suspended" in [event.reason for event in cluster.events]


def test_a_topology_is_not_suspended_while_a_driver_may_run_on_a_silent_node():
    cluster = settled()
    cluster.nodes[cluster.pods["words-driver-1"].node] = False
    cluster.edit(suspend=True)
    for _ in range(20):
        cluster.reconcile()
        cluster.kubelets()
    assert conditions(cluster)["Ready"] == ("False", "Suspending")
    assert "may still run" in cluster.status.message
    cluster.nodes[cluster.pods["words-driver-1"].node] = True
    cluster.settle()
    assert conditions(cluster)["Ready"] == ("True", "Suspended")


def test_suspend_and_resume():
    cluster = settled()
    servers = {p.uid for n, p in cluster.pods.items() if "state" in n}
    cluster.edit(suspend=True)
    cluster.settle()
    assert sorted(cluster.pods) == ["words-state-0", "words-state-1", "words-state-2"]
    assert conditions(cluster)["Ready"] == ("True", "Suspended")
    assert conditions(cluster)["Reconciling"][0] == "False"
    cluster.edit(suspend=False)
    cluster.settle()
    assert servers == {p.uid for n, p in cluster.pods.items() if "state" in n}
    assert cluster.status.driver.number == 2
    assert conditions(cluster)["Ready"] == ("True", "AllReady")


def test_a_paused_topology_goes_on_where_it_was():
    cluster = settled()
    cluster.annotations[PAUSED] = "true"
    cluster.pods.pop("words-acker-0")
    cluster.settle()
    assert "words-acker-0" not in cluster.pods
    assert cluster.status.phase is Phase.PAUSED
    cluster.annotations.clear()
    cluster.settle()
    assert "words-acker-0" in cluster.pods
    assert cluster.status.phase is Phase.RUNNING


def test_a_driver_that_fails_alike_is_given_up_and_started_again_by_the_nonce():
    cluster = settled()
    for _ in range(20):
        number = cluster.status.driver.number
        name = f"words-driver-{number}"
        if name in cluster.pods:
            cluster.change(
                name,
                phase=PodPhase.FAILED,
                ready=False,
                node="node-0",
                exit_code=int(ExitCode.SINK),
                message="sink out: refused",
            )
        cluster.reconcile()
        cluster.now += timedelta(seconds=20)
        if conditions(cluster)["Stalled"][0] == "True":
            break
    assert conditions(cluster)["Stalled"] == ("True", "DriverGaveUp")
    assert "sink out: refused" in cluster.status.message
    given_up = cluster.status.driver.number
    cluster.settle()
    assert cluster.status.driver.number == given_up
    # Its pod is collected some day.
    vanish(f"words-driver-{given_up}")(cluster)
    cluster.settle()
    assert cluster.status.driver.number == given_up
    assert conditions(cluster)["Stalled"] == ("True", "DriverGaveUp")
    assert "sink out: refused" in cluster.status.message
    cluster.edit(restartNonce=1)
    cluster.settle()
    assert cluster.status.driver.number > given_up
    assert conditions(cluster)["Ready"][0] == "True"
    assert cluster.status.driver.same_code == 0


def test_failures_without_progress_wait_longer_and_longer():
    cluster = settled()
    waits = []
    for _ in range(4):
        name = f"words-driver-{cluster.status.driver.number}"
        cluster.change(name, phase=PodPhase.FAILED, ready=False, node="node-0", exit_code=137)
        cluster.status = cluster.status.model_copy(
            update={
                "driver": cluster.status.driver.model_copy(update={"restored_window": 7}),
            }
        )
        before = cluster.now
        while f"words-driver-{cluster.status.driver.number}" == name:
            cluster.reconcile()
            cluster.now += timedelta(seconds=0.1)
        waits.append((cluster.now - before).total_seconds())
    assert waits == sorted(waits)
    assert waits[-1] > waits[0]


def test_a_driver_whose_operator_died_before_its_pod_gets_the_next_number():
    cluster = Cluster()
    words = summary(plan(cluster.observed(), *_given(cluster)).actions)
    with pytest.raises(CrashError):
        cluster.reconcile(crash_after=words.index("create Pod words-driver-1"))
    assert cluster.status.driver.number == 1
    cluster.settle()
    assert [name for name in cluster.created if "driver" in name] == ["words-driver-2"]


def _given(cluster: Cluster) -> tuple[Any, Any]:
    return SETTINGS, moment(cluster.now)


def test_nobody_is_lost_where_nothing_is_known_of_nodes():
    cluster = settled()
    cluster.change("words-driver-1", node="node-9")
    cluster.change("words-acker-0", node="node-9")
    assert summary(plan(replace(cluster.observed(), nodes=None), *_given(cluster)).actions) == []


def test_a_topology_that_is_made_again_adopts_nothing_of_the_earlier_one():
    cluster = settled()
    cluster.recreate()
    while cluster.earlier:
        assert done(cluster) == []
        assert conditions(cluster)["Ready"] == ("False", "NamesTaken")
        made = plan(cluster.observed(), *_given(cluster))
        assert made.wait_s is not None
        cluster.earlier.popitem()
    cluster.settle()
    assert conditions(cluster)["Ready"] == ("True", "AllReady")
    assert cluster.status.driver.number == 1
    assert cluster.view.uid == cluster.uid


def test_a_secret_that_was_there_before_is_named_and_not_used():
    cluster = Cluster()
    cluster.earlier["Secret words-secret"] = Child("Secret", "words-secret", "foreign")
    assert done(cluster) == []
    (stalled,) = (c for c in cluster.status.conditions if c.type == "Stalled")
    assert (stalled.status.value, stalled.reason) == ("True", "NamesTaken")
    assert "Secret words-secret" in stalled.message


def test_a_copy_of_what_was_lost_is_told_what_it_lacks():
    cluster = settled()
    secret = cluster.children.pop(("Secret", "words-secret"))
    cluster.earlier["Secret words-secret"] = secret
    cluster.reconcile()
    assert conditions(cluster)["Stalled"] == ("True", "StoreLost")
    told = cluster.status.message or ""
    assert "Secret words-secret is there and not this topology's" in told
    assert f"uid {cluster.uid}, controller true" in told
    assert "is gone" not in told
    del cluster.children["ConfigMap", "words-view"]
    cluster.reconcile()
    assert "ConfigMap words-view is gone" in (cluster.status.message or "")
    cluster.children["Secret", "words-secret"] = cluster.earlier.pop("Secret words-secret")
    cluster.reconcile()
    assert "words-secret" not in (cluster.status.message or "")


def test_a_topology_that_runs_is_not_held_up_by_strangers():
    cluster = settled()
    cluster.earlier["Pod words-acker-9"] = cluster.pods["words-acker-0"]
    assert cluster.reconcile() == ()


@pytest.mark.parametrize(
    ("field", "value"), [("onStateLoss", "Restore"), ("snapshots", {"every": "1m"})]
)
def test_snapshots_that_would_go_with_a_pod_are_refused_and_stops_nothing_that_runs(
    field: str, value: object
):
    cluster = Cluster()
    cluster.spec[field] = value
    cluster.reconcile()
    conditions = {c.type: (c.status.value, c.reason) for c in cluster.status.conditions}
    assert conditions["Stalled"] == ("True", "InvalidTopology")
    assert "spec.snapshots.to" in (cluster.status.message or "")
    assert cluster.pods == {}
    running = settled()
    running.spec[field] = value
    vanish("words-driver-1")(running)
    running.reconcile()
    assert "words-driver-2" in running.pods


def test_older_drivers_end():
    cluster = settled()
    vanish("words-driver-1")(cluster)
    cluster.reconcile()
    cluster.progress()
    zombie = replace(cluster.pods["words-driver-2"], name="words-driver-1", index=1, uid="old")
    cluster.pods["words-driver-1"] = zombie
    assert done(cluster) == ["delete words-driver-1"]


VIEW_MAP = ("ConfigMap", "words-view")


def begun_by_nobody(cluster: Cluster, **pod: Any) -> Cluster:
    """With a driver's pod that has not begun to run, and no map of the view any more."""
    cluster.reconcile()
    assert cluster.status.driver is not None
    assert cluster.status.driver.number == 1
    if pod:
        cluster.change("words-driver-1", **pod)
    del cluster.children[VIEW_MAP]
    cluster.reconcile()
    return cluster


def test_a_view_that_no_driver_can_have_written_is_made_anew():
    for pod in ({}, {"reason": "Unschedulable"}, {"node": "node-0", "reason": "ErrImagePull"}):
        cluster = begun_by_nobody(Cluster(), **pod)
        assert VIEW_MAP in cluster.children
        assert "StoreLost" not in reasons(cluster)
        cluster.settle()
        assert conditions(cluster)["Ready"] == ("True", "AllReady")


def test_a_view_is_made_anew_where_every_driver_was_refused():
    cluster = Cluster()
    cluster.refused = {f"words-driver-{number}": "quota" for number in range(1, 99)}
    for _ in range(12):
        cluster.reconcile()
        cluster.progress()
    assert cluster.status.driver is not None
    assert cluster.status.driver.number > 2
    # What this operator knows of those before the last one is in the status alone.
    last = f"words-driver-{cluster.status.driver.number}"
    cluster.refusals = {last: cluster.refusals[last]}
    del cluster.children[VIEW_MAP]
    cluster.reconcile()
    assert VIEW_MAP in cluster.children
    cluster.refused.clear()
    cluster.settle()
    assert conditions(cluster)["Ready"] == ("True", "AllReady")


@pytest.mark.parametrize(
    "may_have",
    [
        lambda c: c.change("words-driver-1", phase=PodPhase.RUNNING, node="node-0"),
        lambda c: c.change("words-driver-1", started=True),
        lambda c: c.change("words-driver-1", phase=PodPhase.FAILED),
        vanish("words-driver-1"),
        node_of("words-driver-1"),
        lambda c: c.change("words-driver-1", node="gone"),
        lambda c: setattr(c, "told", Status(uid=c.uid, state="starting")),
        lambda c: setattr(c, "window", 3),
        lambda c: setattr(c, "status", c.status.model_copy(update={"epoch": 2})),
        lambda c: setattr(c, "status", c.status.model_copy(update={"window": 0})),
        lambda c: c.children.pop(("ConfigMap", "words-journal")),
    ],
    ids=[
        *("runs", "ran", "ended", "is gone", "on a silent node", "on a node that is gone"),
        *("a driver told", "a window", "an epoch", "a window in the status", "no journal"),
    ],
)
def test_a_view_that_a_driver_may_have_written_is_never_made_anew(
    may_have: Callable[[Cluster], Any],
):
    cluster = Cluster()
    cluster.reconcile()
    may_have(cluster)
    del cluster.children[VIEW_MAP]
    for _ in range(4):
        cluster.reconcile()
        cluster.now += timedelta(minutes=1)
    assert VIEW_MAP not in cluster.children
    assert conditions(cluster)["Stalled"] == ("True", "StoreLost")


def test_a_driver_that_is_refused_again_and_again_is_tried_less_and_less_often():
    cluster = settled()
    del cluster.pods["words-driver-1"]
    cluster.refused = {f"words-driver-{number}": "quota" for number in range(2, 99)}
    waits: list[float] = []
    for _ in range(40):
        made = plan(cluster.observed(), *_given(cluster))
        cluster.reconcile()
        if made.wait_s is None:
            continue
        assert not any(word.startswith("create") for word in summary(made.actions))
        assert conditions(cluster)["SparkRunning"][1] == "PodRefused"
        waits.append(made.wait_s)
        cluster.now += timedelta(seconds=made.wait_s)
    assert waits[:6] == [0.2, 0.5, 1.0, 2.0, 5.0, 10.0]
    assert set(waits[6:]) == {10.0}
    cluster.refused.clear()
    cluster.settle()
    assert conditions(cluster)["Ready"][0] == "True"


def test_a_driver_that_is_deleted_as_soon_as_it_is_there_is_started_less_and_less_often():
    cluster = settled()
    waits = []
    for _ in range(12):
        cluster.pods = {n: p for n, p in cluster.pods.items() if "driver" not in n}
        made = plan(cluster.observed(), *_given(cluster))
        cluster.reconcile()
        waits.append(made.wait_s)
        cluster.now += timedelta(seconds=made.wait_s or 0)
    assert [wait for wait in waits if wait][:3] == [0.2, 0.5, 1.0]


@pytest.mark.parametrize("ahead_s", [60, 3600])
def test_another_operator_s_clock_does_not_hold_a_driver_back(ahead_s: int):
    """One that led before wrote when to try again, and its clock was ahead of this one's."""
    cluster = settled()
    del cluster.pods["words-driver-1"]
    retry_at = rfc3339(cluster.now + timedelta(seconds=ahead_s))
    told = {"failed_pod": "words-driver-1", "fruitless": 4, "retry_at": retry_at}
    driver = cluster.status.driver.model_copy(update=told)
    cluster.status = cluster.status.model_copy(update={"driver": driver})
    end = cluster.now + timedelta(seconds=DELAYS_S[-1])
    while cluster.now < end:
        assert "words-driver-2" not in cluster.pods
        cluster.reconcile()
        # Looked at far more often than that: to be looked at does not begin the pause anew.
        cluster.now += timedelta(seconds=1)
    cluster.reconcile()
    assert "words-driver-2" in cluster.pods


def test_another_operator_s_clock_does_not_keep_a_topology_ready():
    cluster = settled()
    since = rfc3339(cluster.now + timedelta(hours=1))
    spark = ConditionType.SPARK_RUNNING
    told = [
        one.model_copy(update={"status": ConditionStatus.FALSE, "last_transition_time": since})
        if one.type == spark
        else one
        for one in cluster.status.conditions
    ]
    status = cluster.status.model_copy(update={"conditions": tuple(told)})
    assert spared_s(status, cluster.now) == EXECUTORS_AWAY_S


@pytest.mark.parametrize("name", ["words-acker-0", "words-state-1"])
def test_what_a_pod_waits_for_is_told_where_nothing_says_why(name: str):
    cluster, kind = settled(), "StateAvailable" if "state" in name else "AckersAvailable"
    cluster.change(name, deleting=True, ready=False)
    cluster.reconcile()
    assert f"; {name} is being deleted" in message(cluster, kind)
    cluster.change(name, deleting=False, ready=False, phase=PodPhase.PENDING, started=False)
    cluster.reconcile()
    assert f"; {name} waits on node" in message(cluster, kind)


def message(cluster: Cluster, kind: str) -> str:
    return next(one.message for one in cluster.status.conditions if one.type == kind)


def test_a_quota_is_told_by_its_words():
    cluster = Cluster()
    cluster.refused["words-driver-1"] = 'exceeded quota: pods, "small"'
    cluster.refused["words-driver-2"] = 'exceeded quota: pods, "small"'
    cluster.reconcile()
    cluster.reconcile()
    ready = next(c for c in cluster.status.conditions if c.type == "SparkRunning")
    assert ready.reason == "PodRefused"
    assert "exceeded quota" in ready.message
    assert "DriverGone" not in reasons(cluster)
    cluster.refused.clear()
    cluster.settle()
    assert conditions(cluster)["Ready"][0] == "True"


def test_words_without_end_are_told_as_far_as_a_status_has_room():
    cluster = settled()
    cluster.refused["words-acker-1"] = "x" * 40_000
    vanish("words-acker-1")(cluster)
    for _ in range(3):
        cluster.reconcile()
    assert conditions(cluster)["AckersAvailable"] == ("False", "PodRefused")
    told = [c.message for c in cluster.status.conditions if c.reason == "PodRefused"]
    assert {len(text) for text in (*told, cluster.status.message)} == {LONGEST}


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_a_pod_that_cannot_run_is_told_with_its_cause(reason: str):
    cluster = Cluster()
    cluster.reconcile()
    cluster.change("words-driver-1", reason=reason, message="said by Kubernetes")
    cluster.reconcile()
    condition = next(c for c in cluster.status.conditions if c.type == "SparkRunning")
    assert (condition.reason, condition.status.value) == (REASONS[reason], "False")
    assert "said by Kubernetes" in condition.message
    assert any(e.reason == REASONS[reason] and e.warning for e in cluster.events)


def test_times_of_conditions_change_only_with_them():
    cluster = settled()
    before = {c.type: c.last_transition_time for c in cluster.status.conditions}
    cluster.now += timedelta(hours=1)
    vanish("words-acker-0")(cluster)
    cluster.reconcile()
    after = {c.type: c.last_transition_time for c in cluster.status.conditions}
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"Ready", "AckersAvailable", "Reconciling"}


def test_untracked_topologies_have_no_ackers():
    cluster = settled(tracking="Off", ackers={"replicas": 0})
    assert not any("acker" in name for name in cluster.pods)
    assert conditions(cluster)["AckersAvailable"] == ("True", "NotNeeded")


def test_an_operator_that_comes_back_changes_nothing():
    cluster = settled()
    pods = dict(cluster.pods)
    assert plan(cluster.observed(), *_given(cluster)).actions == ()
    assert cluster.pods == pods


def test_a_resync_applies_what_only_seems_unchanged():
    cluster = settled()
    made = plan(replace(cluster.observed(), resync=True), *_given(cluster))
    applied = [word for word in summary(made.actions) if word.startswith("apply")]
    assert len(applied) == len(made.actions)
    assert "apply Role words-driver" in applied
    digests = {a.manifest["metadata"]["annotations"][DIGEST] for a in made.actions}
    assert len(digests) == len(made.actions)
