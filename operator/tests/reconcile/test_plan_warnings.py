"""Which events are warnings: what nobody asked for. A change that somebody asked for is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from memory_cluster import SPEC, Cluster

from millrace.homes.documents import AckerAdvice

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
    "words-acker-0": ("AckerLost", "is not seen alive"),
    "words-state-1": ("StateServerLost", "is not seen alive"),
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
