"""What is told of a topology whose executors are not there, or not all of them: a driver alone runs
no window."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from memory_cluster import SETTINGS, SPEC, Cluster, moment

from millrace_operator.api.resources import Phase
from millrace_operator.reconcile.actions import Announce
from millrace_operator.reconcile.conditions import EXECUTORS_AWAY_S
from millrace_operator.reconcile.observe import PodPhase
from millrace_operator.reconcile.plan import plan

ONE, TWO = "words-driver-1-exec-1", "words-driver-1-exec-2"
SCHEDULER = "0/2 nodes are available: 2 Insufficient memory."
QUOTA = 'pods "words-driver-1-exec-N" is forbidden: exceeded quota: small'


def executing(**spark: Any) -> Cluster:
    """One of two executors, of which nothing was made yet."""
    asked = {"executors": {"instances": 2}, **spark}
    return Cluster(spec={**copy.deepcopy(SPEC), "spark": asked})


def settled(**spark: Any) -> Cluster:
    cluster = executing(**spark)
    cluster.settle()
    cluster.events.clear()
    return cluster


def condition(cluster: Cluster, kind: str) -> tuple[str, str, str]:
    found = next(one for one in cluster.status.conditions if one.type == kind)
    return found.status.value, found.reason, found.message


def warned(cluster: Cluster) -> list[Announce]:
    return [event for event in cluster.events if event.warning]


def waits(cluster: Cluster, name: str, reason: str, message: str = "") -> None:
    cluster.change(
        name, phase=PodPhase.PENDING, ready=False, reason=reason, message=message, node=None
    )


def begun() -> Cluster:
    """Its driver works, and has just asked for its executors."""
    cluster = executing()
    for _ in range(2):
        cluster.reconcile()
        cluster.kubelets()
        cluster.drive()
    cluster.reconcile()
    cluster.execute()
    return cluster


def test_a_new_topology_is_ready_when_it_has_an_executor_and_not_before():
    cluster = begun()
    assert cluster.pods["words-driver-1"].ready
    cluster.reconcile()
    for kind in ("SparkRunning", "Ready"):
        assert condition(cluster, kind)[:2] == ("False", "Starting")
        assert condition(cluster, kind)[2].endswith("is ready, no executor is there yet")
    assert cluster.status.executors.summary == "0/2"
    cluster.run(ONE, "node-0")
    cluster.reconcile()
    assert condition(cluster, "SparkRunning")[:2] == ("True", "DriverRunning")
    assert condition(cluster, "Ready")[:2] == ("True", "AllReady")
    cluster.run(TWO, "node-1")
    cluster.reconcile()
    assert condition(cluster, "Ready")[:2] == ("True", "AllReady")
    assert warned(cluster) == []


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("Unschedulable", "Unschedulable"),
        ("ImagePullBackOff", "ImagePullFailed"),
        ("CreateContainerConfigError", "ContainerCannotStart"),
    ],
)
def test_without_executors_nothing_runs_and_the_trouble_of_one_is_told(reason: str, told: str):
    cluster = begun()
    for name in (ONE, TWO):
        waits(cluster, name, reason, SCHEDULER)
    cluster.reconcile()
    for kind in ("SparkRunning", "Ready"):
        assert condition(cluster, kind)[:2] == ("False", told)
        assert SCHEDULER in condition(cluster, kind)[2]
        assert ONE in condition(cluster, kind)[2]
    assert cluster.status.executors.summary == "0/2"
    assert cluster.status.phase is Phase.STARTING
    (event,) = [one for one in warned(cluster) if one.reason == told]
    assert SCHEDULER in event.message


def test_a_topology_that_was_ready_stays_so_for_as_long_as_an_executor_takes_to_be_replaced():
    cluster = settled()
    assert condition(cluster, "SparkRunning")[:2] == ("True", "DriverRunning")
    for name in (ONE, TWO):
        waits(cluster, name, "Unschedulable", SCHEDULER)
    cluster.now += timedelta(seconds=100)
    made = plan(cluster.observed(), SETTINGS, moment(cluster.now))
    assert made.wait_s == EXECUTORS_AWAY_S
    cluster.reconcile()
    assert condition(cluster, "SparkRunning")[:2] == ("False", "Unschedulable")
    assert condition(cluster, "Ready")[:2] == ("True", "AllReady")
    assert cluster.status.phase is Phase.RUNNING
    assert [event.reason for event in warned(cluster)] == ["Unschedulable"]
    cluster.now += timedelta(seconds=EXECUTORS_AWAY_S - 1)
    assert plan(cluster.observed(), SETTINGS, moment(cluster.now)).wait_s == 1.0
    cluster.reconcile()
    assert condition(cluster, "Ready")[0] == "True"
    cluster.now += timedelta(seconds=1)
    cluster.reconcile()
    assert condition(cluster, "Ready")[:2] == ("False", "Unschedulable")
    assert SCHEDULER in condition(cluster, "Ready")[2]
    assert cluster.status.phase is Phase.STARTING
    # One is enough to run windows, slowly.
    cluster.run(ONE, "node-0")
    cluster.change(ONE, reason="", message="")
    cluster.reconcile()
    assert condition(cluster, "Ready")[:2] == ("True", "AllReady")


def test_where_some_are_missing_it_stays_ready_and_a_warning_names_the_cause():
    cluster = settled()
    waits(cluster, TWO, "Unschedulable", SCHEDULER)
    cluster.reconcile()
    status, reason, message = condition(cluster, "SparkRunning")
    assert (status, reason) == ("True", "ExecutorsMissing")
    assert message == f"1 of 2 executors are ready: Unschedulable: pod {TWO}: {SCHEDULER}"
    assert condition(cluster, "Ready")[:2] == ("True", "AllReady")
    assert [(one.reason, one.message) for one in warned(cluster)] == [(reason, message)]
    cluster.reconcile()
    assert len(warned(cluster)) == 1
    cluster.run(TWO, "node-0")
    cluster.change(TWO, reason="", message="")
    cluster.reconcile()
    assert condition(cluster, "SparkRunning")[:2] == ("True", "DriverRunning")
    assert cluster.reconcile() == ()


def test_one_that_is_on_its_way_is_no_trouble():
    cluster = settled()
    cluster.change(TWO, phase=PodPhase.PENDING, ready=False)
    assert cluster.reconcile() != ()
    assert condition(cluster, "SparkRunning")[:2] == ("True", "DriverRunning")
    assert warned(cluster) == []


def test_executors_that_a_quota_refuses_are_told_by_its_words():
    """They are never there: the driver hears of it."""
    cluster = settled()
    del cluster.pods[TWO]
    cluster.told = replace(cluster.told, refused=QUOTA)
    cluster.reconcile()
    assert condition(cluster, "SparkRunning")[:2] == ("True", "ExecutorsMissing")
    assert QUOTA in condition(cluster, "SparkRunning")[2]
    del cluster.pods[ONE]
    cluster.reconcile()
    cluster.now += timedelta(seconds=EXECUTORS_AWAY_S)
    cluster.reconcile()
    for kind in ("SparkRunning", "Ready"):
        assert condition(cluster, kind)[:2] == ("False", "PodRefused")
        assert QUOTA in condition(cluster, kind)[2]
    assert {one.reason for one in warned(cluster)} == {"ExecutorsMissing", "PodRefused"}
    assert all(QUOTA in one.message for one in warned(cluster))


def test_what_the_driver_heard_last_is_no_trouble_while_all_are_there():
    cluster = settled()
    cluster.told = replace(cluster.told, refused=QUOTA)
    assert cluster.reconcile() == ()


def test_executors_of_a_driver_before_are_none_of_this_one_s():
    cluster = settled()
    del cluster.pods["words-driver-1"]
    while "words-driver-2" not in cluster.pods:
        cluster.now += timedelta(seconds=15)
        cluster.reconcile()
    assert condition(cluster, "Ready")[0] == "False"
    cluster.run("words-driver-2", "node-0")
    cluster.reconcile()
    assert ONE in cluster.pods
    assert cluster.status.executors.summary == "0/2"
    assert condition(cluster, "Ready")[:2] == ("False", "Starting")
    cluster.settle()
    assert condition(cluster, "Ready")[:2] == ("True", "AllReady")


def test_a_driver_that_takes_over_and_has_none_yet_is_no_end_of_readiness():
    """Its executors start when it takes over."""
    cluster = settled(driver={"standby": 1})
    assert condition(cluster, "StandbyReady")[0] == "True"
    del cluster.pods["words-driver-1"]
    cluster.drive()
    for name in (ONE, TWO):
        cluster.pods.pop(name, None)
    cluster.reconcile()
    assert cluster.status.driver.number == 2
    assert cluster.status.executors.summary == "0/2"
    assert condition(cluster, "SparkRunning")[:2] == ("False", "Starting")
    assert condition(cluster, "Ready")[:2] == ("True", "AllReady")
    cluster.settle()
    assert condition(cluster, "SparkRunning")[:2] == ("True", "DriverRunning")
    assert condition(cluster, "Ready")[:2] == ("True", "AllReady")


def test_one_that_stands_by_needs_none_to_be_ready():
    cluster = settled(driver={"standby": 1})
    assert not [name for name in cluster.pods if name.startswith("words-driver-2-exec")]
    assert condition(cluster, "StandbyReady")[:2] == ("True", "AllReady")
    assert cluster.reconcile() == ()


def test_fewer_because_the_lag_asks_for_fewer_are_all():
    cluster = settled(executors={"instances": 2, "min": 1, "max": 2})
    cluster.told = replace(cluster.told, executors=1)
    del cluster.pods[TWO]
    cluster.reconcile()
    assert cluster.status.executors.summary == "1/1"
    assert condition(cluster, "SparkRunning")[:2] == ("True", "DriverRunning")
    assert warned(cluster) == []


def test_where_spark_s_own_rules_say_how_many_there_are_none_is_no_trouble():
    cluster = settled(conf={"spark.dynamicAllocation.enabled": "true"})
    for name in (ONE, TWO):
        del cluster.pods[name]
    cluster.reconcile()
    assert condition(cluster, "Ready")[:2] == ("True", "AllReady")
    assert condition(cluster, "SparkRunning")[:2] == ("True", "DriverRunning")


def test_what_is_suspended_needs_none_and_is_not_spared_when_it_goes_on():
    cluster = settled()
    cluster.edit(suspend=True)
    cluster.settle()
    assert condition(cluster, "Ready")[:2] == ("True", "Suspended")
    cluster.edit(suspend=False)
    cluster.reconcile()
    assert condition(cluster, "Ready")[0] == "False"


def test_what_is_drained_needs_none():
    cluster = settled()
    cluster.change("words-driver-1", phase=PodPhase.SUCCEEDED, ready=False, exit_code=0)
    cluster.settle()
    assert condition(cluster, "Ready")[:2] == ("True", "Drained")
