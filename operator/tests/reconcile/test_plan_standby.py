"""A driver that stands by: when there is one, and what follows when it or the driver is gone."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from memory_cluster import SETTINGS, Cluster, CrashError, moment, summary

from millrace.errors import ExitCode
from millrace.homes.restarts import STANDBY_DELAYS_S
from millrace.protocol.types import Phase
from millrace.snapshots.timelines import Fork
from millrace.topology.model import StreamTopology
from millrace_operator.builders.access import access
from millrace_operator.builders.naming import Owner
from millrace_operator.builders.pods import driver_pod
from millrace_operator.reconcile.actions import DeletePod
from millrace_operator.reconcile.observe import PodPhase
from millrace_operator.reconcile.plan import plan

DRIVER, STANDBY, NEXT = "words-driver-1", "words-driver-2", "words-driver-3"


def asking(**driver: Any) -> dict[str, Any]:
    return {"driver": {"standby": 1, **driver}}


def settled(spark: dict[str, Any] | None = None) -> Cluster:
    cluster = Cluster()
    cluster.spec["spark"] = asking() if spark is None else spark
    cluster.settle()
    cluster.events.clear()
    return cluster


def done(cluster: Cluster) -> list[str]:
    told = ("status", "event", "warning")
    words = summary(cluster.reconcile())
    # Budgets of state servers follow what the view says of copies.
    beside = ("ConfigMap", "PodDisruptionBudget words-state")
    return [w for w in words if not w.startswith(told) and not any(b in w for b in beside)]


def standing(cluster: Cluster) -> tuple[int, int | None]:
    status = cluster.status.driver
    assert status is not None
    return status.number, status.standby


def condition(cluster: Cluster) -> tuple[str, str] | None:
    found = (c for c in cluster.status.conditions if c.type == "StandbyReady")
    return next(((c.status.value, c.reason) for c in found), None)


def failed(code: int = 137) -> dict[str, Any]:
    return {"phase": PodPhase.FAILED, "ready": False, "exit_code": code}


def lose(cluster: Cluster, name: str) -> None:
    cluster.nodes["away"] = False
    cluster.change(name, node="away")


def test_nobody_stands_by_unless_asked_for():
    cluster = settled({})
    assert [name for name in cluster.pods if "driver" in name] == [DRIVER]
    assert condition(cluster) is None
    sources = [{"name": "lines", "files": {"path": "texts", "watch": True}}]
    cluster.edit(sources=sources)
    cluster.settle()
    assert standing(cluster)[1] is None


def test_one_is_made_with_the_next_number_behind_a_driver_that_works():
    cluster = Cluster()
    cluster.spec["spark"] = asking()
    cluster.reconcile()
    cluster.progress()
    assert STANDBY not in cluster.pods
    assert not any(STANDBY in one for one in done(cluster))
    cluster.drive()
    words = summary(cluster.reconcile())
    assert words.index("status") < words.index(f"create ConfigMap {STANDBY}")
    assert words.index(f"create ConfigMap {STANDBY}") < words.index(f"create Pod {STANDBY}")
    assert standing(cluster) == (1, 2)
    assert condition(cluster) == ("False", "Starting")
    cluster.settle()
    assert condition(cluster) == ("True", "AllReady")
    assert cluster.reconcile() == ()
    assert cluster.writer == DRIVER


def take_over(cluster: Cluster) -> None:
    """It claims the view, and has told nothing yet."""
    assert cluster.view is not None
    cluster.view, cluster.writer = replace(cluster.view, execution=2), STANDBY  # type: ignore[arg-type]


@dataclass(frozen=True)
class Case:
    """What happens beside a standby that is ready, what is done, and who is which then."""

    name: str
    happens: Callable[[Cluster], Any]
    does: list[str]
    then: tuple[int, int | None]


CASES = [
    Case("the driver is gone", lambda c: c.pods.pop(DRIVER), [], (2, None)),
    Case("the driver is being deleted", lambda c: c.change(DRIVER, deleting=True), [], (2, None)),
    Case(
        "the driver was killed",
        lambda c: c.change(DRIVER, **failed()),
        [f"delete {DRIVER}"],
        (2, None),
    ),
    Case(
        "the driver's node is lost: its pod goes, by which the other one knows",
        lambda c: lose(c, DRIVER),
        [f"force {DRIVER}"],
        (2, None),
    ),
    Case(
        "the one that stands by has claimed the view: the driver may live, and is ended",
        take_over,
        [f"delete {DRIVER}"],
        (2, None),
    ),
    Case(
        "both are gone",
        lambda c: (c.pods.pop(DRIVER), c.pods.pop(STANDBY)),
        [f"create Pod {NEXT}"],
        (3, None),
    ),
    Case(
        "both are on a lost node",
        lambda c: (lose(c, DRIVER), lose(c, STANDBY)),
        [f"force {STANDBY}", f"create Pod {NEXT}", f"force {DRIVER}"],
        (3, None),
    ),
    Case(
        "the one that stands by is gone",
        lambda c: c.pods.pop(STANDBY),
        [f"create Pod {NEXT}"],
        (1, 3),
    ),
    Case(
        "the one that stands by has ended",
        lambda c: c.change(STANDBY, **failed(1)),
        [f"delete {STANDBY}", f"create Pod {NEXT}"],
        (1, 3),
    ),
    Case(
        "its node is lost",
        lambda c: lose(c, STANDBY),
        [f"force {STANDBY}", f"create Pod {NEXT}"],
        (1, 3),
    ),
    Case(
        "it has an older image",
        lambda c: c.change(STANDBY, image="runtime:0"),
        [f"delete {STANDBY}", f"create Pod {NEXT}"],
        (1, 3),
    ),
    Case(
        "it never began, and would be made otherwise",
        lambda c: c.change(STANDBY, phase=PodPhase.PENDING, ready=False, digest="of before"),
        [f"delete {STANDBY}", f"create Pod {NEXT}"],
        (1, 3),
    ),
    Case(
        "it began, and would be made otherwise",
        lambda c: c.change(STANDBY, digest="of before"),
        [],
        (1, 2),
    ),
    Case(
        "its executors are to be ready too",
        lambda c: c.edit(spark=asking(standbyExecutors="Ready")),
        [f"delete {STANDBY}", f"create Pod {NEXT}"],
        (1, 3),
    ),
    Case(
        "it is not asked for any more: the driver goes on",
        lambda c: c.edit(spark={"driver": {"standby": 0}}),
        ["apply Role words-driver", f"delete {STANDBY}"],
        (1, None),
    ),
    Case(
        "an edit that restarts ends it before the driver, or it would follow with what was before",
        lambda c: c.edit(restartNonce=1),
        [f"delete {STANDBY}", f"delete {DRIVER}"],
        (1, None),
    ),
    Case(
        "suspended",
        lambda c: c.edit(suspend=True),
        [
            "delete PodDisruptionBudget words-acker",
            "delete words-acker-0",
            "delete words-acker-1",
            f"delete {STANDBY}",
            f"delete {DRIVER}",
            "propose state-0 state-1 state-2",
        ],
        (1, None),
    ),
    Case(
        "all is drained",
        lambda c: c.change(DRIVER, phase=PodPhase.SUCCEEDED, ready=False, exit_code=0),
        [f"delete {STANDBY}"],
        (1, None),
    ),
    Case(
        "the driver ended in a way that no other one mends",
        lambda c: c.change(DRIVER, **failed(int(ExitCode.TOO_MANY_DEAD))),
        [f"delete {STANDBY}"],
        (1, None),
    ),
    Case("the topology is deleted", lambda c: setattr(c, "deleting", True), [], (1, 2)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_follows(case: Case):
    cluster = settled()
    case.happens(cluster)
    assert done(cluster) == case.does
    assert standing(cluster) == case.then


@pytest.mark.parametrize(
    "happens", [case.happens for case in CASES[:6]], ids=[case.name for case in CASES[:6]]
)
def test_whoever_takes_over_another_one_stands_by_in_the_end(happens: Callable[[Cluster], Any]):
    cluster = settled()
    happens(cluster)
    cluster.settle()
    cluster.nodes = dict.fromkeys(cluster.nodes, True)
    cluster.settle()
    number, standby = standing(cluster)
    assert standby == number + 1
    assert sorted(name for name in cluster.pods if "driver" in name) == [
        f"words-driver-{number}",
        f"words-driver-{standby}",
    ]
    assert cluster.writer == f"words-driver-{number}"


def test_a_takeover_is_told_and_starts_from_what_is_sealed():
    cluster = settled()
    cluster.change(DRIVER, **failed())
    cluster.reconcile()
    told = [event.reason for event in cluster.events]
    assert told[:2] == ["DriverGone", "StandbyTookOver"]
    assert "DriverStarted" not in told
    (event,) = (event for event in cluster.events if event.reason == "StandbyTookOver")
    assert event.message == f"driver pod {STANDBY}, which stood by, goes on from sealed window 7"
    assert not event.warning


def test_a_takeover_of_which_nobody_saw_the_cause_is_a_warning():
    cluster = settled()
    del cluster.pods[DRIVER]
    cluster.drive()
    assert cluster.writer == STANDBY
    cluster.events.clear()
    cluster.reconcile()
    assert [e.reason for e in cluster.events if e.warning] == ["StandbyTookOver"]


@pytest.mark.parametrize(("ready", "patience_s"), [(True, 10), (False, 60)])
def test_one_that_does_not_claim_the_view_in_time_is_ended(ready: bool, patience_s: int):
    cluster = settled()
    cluster.change(STANDBY, ready=ready)
    cluster.change(DRIVER, **failed())
    assert done(cluster) == [f"delete {DRIVER}"]
    cluster.now += timedelta(seconds=patience_s - 1)
    assert done(cluster) == []
    cluster.now += timedelta(seconds=2)
    cluster.events.clear()
    assert done(cluster) == [f"create Pod {NEXT}", f"delete {STANDBY}"]
    assert "StandbySilent" in [event.reason for event in cluster.events]
    assert standing(cluster) == (3, None)


PENDING: dict[str, Any] = {"phase": PodPhase.PENDING, "ready": False, "node": None}


@pytest.mark.parametrize("why", ["ImagePullBackOff", "FailedMount", "Unschedulable", ""])
@pytest.mark.parametrize("gone", [False, True])
def test_one_that_does_not_run_is_no_heir(gone: bool, why: str):
    cluster = settled()
    cluster.change(STANDBY, **PENDING, reason=why)
    cluster.reconcile()
    cluster.events.clear()
    if gone:
        del cluster.pods[DRIVER]
    else:
        cluster.change(DRIVER, **failed())
    seen = [f"delete {DRIVER}"] if not gone else []
    words = [word for word in done(cluster) if word != f"delete {STANDBY}"]
    assert words == [f"create Pod {NEXT}", *seen]
    assert standing(cluster) == (3, None)
    assert STANDBY not in cluster.pods
    told = [event.reason for event in cluster.events]
    assert told[:2] == ["DriverGone", "DriverStarted"]
    assert "StandbyTookOver" not in told
    cluster.settle()
    assert cluster.writer == NEXT
    assert standing(cluster) == (3, 4)


def test_one_that_runs_before_its_successor_is_there_is_fenced_by_it():
    """It claims the view between two looks, and the plan that ends it is stale."""
    cluster = settled()
    cluster.change(STANDBY, **PENDING)
    cluster.change(DRIVER, **failed())
    made = cluster.observed()
    cluster.run(STANDBY, "node-1")
    take_over(cluster)
    for action in plan(made, SETTINGS, moment(cluster.now)).actions:
        if not (isinstance(action, DeletePod) and action.name == STANDBY):
            cluster.act(action)
    assert standing(cluster) == (3, None)
    assert done(cluster) == [f"delete {STANDBY}"]
    cluster.settle()
    assert cluster.writer == NEXT
    assert standing(cluster) == (3, 4)


def test_an_heir_of_an_operator_that_waited_for_ever_has_its_minute():
    cluster = settled()
    cluster.change(DRIVER, **failed())
    cluster.reconcile()
    cluster.change(STANDBY, **PENDING, reason="ImagePullBackOff")
    driver = cluster.status.driver
    assert driver is not None
    told = driver.model_copy(update={"claim_by": None})
    cluster.status = cluster.status.model_copy(update={"driver": told})
    assert done(cluster) == []
    cluster.now += timedelta(seconds=59)
    assert done(cluster) == []
    cluster.now += timedelta(seconds=2)
    assert done(cluster) == [f"create Pod {NEXT}", f"delete {STANDBY}"]
    assert "StandbySilent" in [event.reason for event in cluster.events]


def restores(cluster: Cluster) -> None:
    """State was lost, and the driver has begun to restore it."""
    assert cluster.view is not None
    cluster.view = replace(cluster.view, phase=Phase.CREATING, timeline=2)  # type: ignore[arg-type]
    cluster.restoring = True
    cluster.change(DRIVER, ready=False)


def test_whoever_takes_over_in_a_restore_has_the_time_that_it_takes():
    cluster = settled()
    restores(cluster)
    assert done(cluster) == []
    assert standing(cluster) == (1, 2)
    cluster.change(DRIVER, **failed())
    assert done(cluster) == [f"delete {DRIVER}"]
    (event,) = (event for event in cluster.events if event.reason == "StandbyTookOver")
    assert event.message.endswith("which stood by, begins the restore anew that was under way")
    cluster.change(STANDBY, ready=False)
    cluster.now += timedelta(seconds=599)
    assert done(cluster) == []
    assert standing(cluster) == (2, None)
    # Once it has claimed the view it takes as long as it takes.
    claimed = copy.deepcopy(cluster)
    take_over(claimed)
    claimed.now += timedelta(hours=1)
    assert done(claimed) == []
    assert standing(claimed) == (2, None)
    cluster.now += timedelta(seconds=2)
    assert done(cluster) == [f"create Pod {NEXT}", f"delete {STANDBY}"]
    assert standing(cluster) == (3, None)


def test_a_restore_that_another_one_has_done_leaves_no_long_patience():
    cluster = settled()
    restores(cluster)
    cluster.change(DRIVER, **failed())
    cluster.reconcile()
    cluster.restoring = False
    assert done(cluster) == []
    cluster.now += timedelta(seconds=9)
    assert done(cluster) == []
    cluster.now += timedelta(seconds=2)
    assert done(cluster) == [f"create Pod {NEXT}", f"delete {STANDBY}"]


def test_behind_a_restore_another_one_stands_by_when_a_window_of_the_new_timeline_is_sealed():
    cluster = settled()
    assert cluster.window == 7
    restores(cluster)
    cluster.change(DRIVER, **failed())
    cluster.reconcile()
    take_over(cluster)
    assert cluster.view is not None
    assert cluster.told is not None
    cluster.view = replace(cluster.view, phase=Phase.OPEN, timeline=3)  # type: ignore[arg-type]
    cluster.restoring, cluster.window = False, 4
    cluster.forks = (Fork(3, 1, 4, "early", 7, True, 0.0),)
    cluster.told = replace(cluster.told, execution=2, lag_records=100)
    assert done(cluster) == []
    assert cluster.status.driver is not None
    assert cluster.status.driver.restored_window == 4
    cluster.window = 5
    assert done(cluster) == [f"create Pod {NEXT}"]


def test_who_stands_by_is_told_of_no_restore_that_is_done():
    """Whoever takes over goes by what stands beside the view, as every driver does."""
    cluster = Cluster()
    cluster.spec |= {"spark": asking(), "restoreFrom": {"place": "s3://b/words", "name": "early"}}
    told: dict[str, Any] = {}
    for _ in range(6):
        for action in cluster.reconcile():
            manifest = getattr(action, "manifest", {})
            if "driver.json" in manifest.get("data", {}):
                settings = json.loads(manifest["data"]["driver.json"])
                told[manifest["metadata"]["name"]] = settings.get("restore")
        cluster.progress()
        cluster.drive()
        # Its driver has restored it.
        cluster.view = replace(cluster.view, timeline=2) if cluster.view else None  # type: ignore[arg-type]
    assert list(told) == [DRIVER, STANDBY]
    assert told[DRIVER]["snapshot"] == "early"
    assert told[STANDBY] is None


def test_one_that_claims_in_time_is_the_driver_and_another_one_stands_by():
    cluster = settled()
    cluster.change(DRIVER, **failed())
    cluster.reconcile()
    take_over(cluster)
    assert cluster.told is not None
    assert done(cluster) == []
    cluster.told = replace(cluster.told, execution=2)
    assert done(cluster) == [f"create Pod {NEXT}"]
    cluster.now += timedelta(hours=1)
    assert done(cluster) == []


def test_a_wait_behind_a_failure_does_not_hold_it_up():
    cluster = settled({})
    for _ in range(3):
        assert cluster.status.driver is not None
        cluster.change(f"words-driver-{cluster.status.driver.number}", **failed())
        cluster.settle()
    cluster.edit(spark=asking())
    cluster.settle()
    number, standby = standing(cluster)
    assert standby is not None
    cluster.change(f"words-driver-{number}", **failed())
    cluster.reconcile()
    assert standing(cluster) == (standby, None)


def test_those_that_do_not_get_ready_are_made_after_longer_and_longer_waits():
    cluster = settled()
    waits = []
    for _ in range(4):
        number = standing(cluster)[1]
        name = f"words-driver-{number}"
        cluster.change(name, **failed(1))
        before = cluster.now
        while standing(cluster)[1] in (number, None):
            cluster.reconcile()
            if standing(cluster)[1] is None:
                cluster.now += timedelta(seconds=1)
        waits.append((cluster.now - before).total_seconds())
        cluster.pods.pop(name, None)
    assert waits == list(STANDBY_DELAYS_S)
    assert condition(cluster) == ("False", "StandbyFails")
    cluster.settle()
    assert condition(cluster) == ("True", "AllReady")


def test_an_operator_that_dies_behind_the_number_takes_another_one():
    for crash_after in range(20):
        with_crash = settled({})
        with_crash.edit(spark=asking())
        try:
            with_crash.reconcile(crash_after=crash_after)
        except CrashError:
            with_crash.settle()
            number, standby = standing(with_crash)
            assert number == 1
            assert standby in (2, 3)
            assert f"words-driver-{standby}" in with_crash.pods
            continue
        break
    else:
        raise AssertionError("no plan came to its end")


def test_a_standby_may_look_at_pods_and_goes_to_another_node():
    cluster = settled()
    assert cluster.accepted is not None
    topology = StreamTopology.model_validate(cluster.accepted.topology)
    owner = Owner("words", "jobs", "u", "1")
    roles = [one for one in access(owner, topology) if one["kind"] == "Role"]
    (role,) = (one for one in roles if one["metadata"]["name"] == "words-driver")
    assert {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]} in role["rules"]
    pod = driver_pod(owner, SETTINGS, topology, 2, "f", (), "Ready")
    assert pod["spec"]["containers"][0]["args"] == ["driver", "--standby", "Ready"]
    (spread,) = pod["spec"]["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    # By that Kubernetes tells it of a lost node while no operator lives.
    marked = [one["tolerationSeconds"] for one in pod["spec"]["tolerations"]]
    assert marked == [20, 20]
