"""Which events are warnings: what nobody asked for. A change that somebody asked for is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from memory_cluster import SPEC, Cluster

from millrace.homes.documents import AckerAdvice
from millrace_operator.reconcile.observe import PodPhase

OWN: dict[str, Any] = {"url": "redis://cache:6379"}


def warnings(cluster: Cluster) -> list[str]:
    return [event.reason for event in cluster.events if event.warning]


def advised(cluster: Cluster) -> None:
    """The load asks for another acker."""
    cluster.edit(ackers={"replicas": 2, "min": 1, "max": 4})
    cluster.settle()
    assert cluster.told is not None
    cluster.told = replace(cluster.told, ackers=AckerAdvice(2, 3))
    cluster.reconcile()


PLANNED: dict[str, Callable[[Cluster], None]] = {
    "more ackers": lambda c: c.edit(ackers={"replicas": 4}),
    "fewer ackers": lambda c: c.edit(ackers={"replicas": 1}),
    "ackers by the load": advised,
    "more state servers": lambda c: c.edit(stateServers={"replicas": 5, "copies": 2}),
    "fewer state servers": lambda c: c.edit(stateServers={"replicas": 2, "copies": 2}),
    "a window of another size": lambda c: c.edit(window={"maxRecords": 7}),
    "a restart": lambda c: c.edit(restartNonce=1),
    "one that stands by": lambda c: c.edit(spark={"driver": {"standby": 1}}),
    "suspended": lambda c: c.edit(suspend=True),
}


@pytest.mark.parametrize("change", PLANNED.values(), ids=PLANNED)
def test_what_was_asked_for_is_no_warning(change: Callable[[Cluster], None]):
    cluster = Cluster()
    cluster.settle()
    cluster.events.clear()
    change(cluster)
    cluster.settle()
    assert warnings(cluster) == []
    assert cluster.events, "it is told"
    # And the way back.
    cluster.edit(**{"window": {}, "spark": {}, "suspend": False, **SPEC})
    cluster.settle()
    assert warnings(cluster) == []


def test_ackers_that_are_made_anew_for_another_password_are_not_lost():
    cluster = Cluster()
    cluster.spec["stateServers"] = OWN
    cluster.settle()
    cluster.events.clear()
    cluster.edit(stateServers={**OWN, "password": {"secretRef": {"name": "n", "key": "k"}}})
    cluster.settle()
    assert warnings(cluster) == []


UNPLANNED: dict[str, tuple[str, str]] = {
    "words-acker-0": ("AckerLost", "is not seen alive: its pod is gone"),
    "words-state-1": ("StateServerLost", "is not seen alive: its pod is gone"),
    "words-driver-1": ("DriverGone", "is not there any more"),
}


@pytest.mark.parametrize("name", UNPLANNED)
def test_a_pod_that_goes_by_itself_is_a_warning(name: str):
    cluster = Cluster()
    cluster.settle()
    cluster.events.clear()
    del cluster.pods[name]
    cluster.settle()
    reason, text = UNPLANNED[name]
    (warning,) = [event for event in cluster.events if event.warning]
    assert warning.reason == reason
    assert text in warning.message


CAUSES: dict[str, tuple[dict[str, Any], str]] = {
    "out of memory, and back at once": (
        {"ready": False, "reason": "OOMKilled", "exit_code": 137},
        "OutOfMemory: pod {} (OOMKilled)",
    ),
    "ended by itself, and back at once": (
        {"ready": False, "reason": "Error", "before": "Error, exit code 3: no room on the disk"},
        "it ended before: Error, exit code 3: no room on the disk",
    ),
    "evicted": (
        {"phase": PodPhase.FAILED, "ready": False, "reason": "Evicted", "message": "low on memory"},
        "Evicted: pod {}: low on memory",
    ),
    "on a node that is gone": (
        {"node": "node-9"},
        "NodeLost: pod {} is on node node-9, which does not answer or is gone",
    ),
    "not ready for no reason that is seen": ({"ready": False}, ""),
}


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize(
    ("name", "event"), [("words-acker-0", "AckerLost"), ("words-state-1", "StateServerLost")]
)
def test_who_is_lost_is_told_with_the_cause(name: str, event: str, cause: str):
    cluster = Cluster()
    cluster.settle()
    cluster.events.clear()
    change, text = CAUSES[cause]
    cluster.change(name, **change)
    cluster.reconcile()
    (lost,) = [one for one in cluster.events if one.reason == event]
    said = f": {text.format(name)}" if text else ""
    assert lost.message == f"{name} is not seen alive{said}"


def test_a_deleted_acker_is_told_to_be_one():
    cluster = Cluster()
    cluster.settle()
    cluster.events.clear()
    cluster.change("words-acker-0", deleting=True)
    cluster.reconcile()
    (lost,) = [one for one in cluster.events if one.reason == "AckerLost"]
    assert lost.message == "words-acker-0 is not seen alive: its pod is being deleted"


def test_a_state_server_that_is_back_before_anyone_looked_is_told_with_its_end():
    cluster = Cluster()
    cluster.settle()
    cluster.events.clear()
    cluster.change("words-state-1", run_id="r-9", before="OOMKilled, exit code 137")
    cluster.reconcile()
    (lost,) = [one for one in cluster.events if one.reason == "StateServerLost"]
    text = "came back as another incarnation: it ended before: OOMKilled, exit code 137"
    assert lost.message == f"words-state-1 {text}"
