"""What a plan makes of a state server of the user's own, and of what a driver tells of servers."""

from __future__ import annotations

from typing import Any

import pytest
from memory_cluster import Cluster, summary

from millrace.homes.documents import ServerTrouble
from millrace.homes.pods import Role
from millrace_operator.reconcile.crew import UNKNOWN_S
from millrace_operator.reconcile.observe import PodPhase

OWN: dict[str, Any] = {
    "url": "rediss://cache:6379?ssl_ca_certs=/certs/ca.crt",
    "password": {"secretRef": {"name": "cache", "key": "password"}},
}
CERTS: dict[str, Any] = {
    "name": "certs",
    "mountPath": "/certs",
    "secret": {"secretName": "cache-ca"},
}


def with_own(**server: Any) -> Cluster:
    cluster = Cluster()
    cluster.spec["stateServers"] = {**OWN, **server}
    cluster.spec["volumes"] = [*cluster.spec["volumes"], CERTS]
    return cluster


def conditions(cluster: Cluster) -> dict[str, tuple[str, str, str]]:
    return {c.type: (c.status.value, c.reason, c.message) for c in cluster.status.conditions}


def reasons(cluster: Cluster) -> list[str]:
    return [event.reason for event in cluster.events]


def test_a_server_of_ones_own_has_no_pod_no_budget_and_no_policy():
    cluster = with_own()
    cluster.settle()
    assert {name.partition("-")[2] for name in cluster.pods} == {"driver-1", "acker-0", "acker-1"}
    kinds = {kind for kind, name in cluster.children if name == "words-state"}
    assert kinds == set()
    assert conditions(cluster)["Ready"][:2] == ("True", "AllReady")
    assert conditions(cluster)["StateAvailable"][:2] == ("True", "NotNeeded")
    assert cluster.view is not None
    assert cluster.view.target == (cluster.own,)


def test_the_ackers_are_proposed_at_once_since_the_driver_finds_the_server_itself():
    cluster = with_own()
    cluster.reconcile()
    for name in ("words-acker-0", "words-acker-1"):
        cluster.run(name, "node-0")
    cluster.reconcile()
    assert cluster.proposal is not None
    assert (cluster.proposal.members, len(cluster.proposal.ackers)) == ((), 2)


@pytest.mark.parametrize(
    "change",
    [
        {"url": "redis://other:6379"},
        {"url": None, "password": None},
        {"url": "rediss://cache:6380?ssl_ca_certs=/certs/ca.crt"},
    ],
)
def test_another_server_or_own_pods_are_refused_once_there_is_state(change: dict[str, Any]):
    cluster = with_own()
    cluster.settle()
    server = {name: value for name, value in {**OWN, **change}.items() if value is not None}
    cluster.edit(stateServers=server)
    before = set(cluster.pods)
    cluster.settle()
    status, reason, message = conditions(cluster)["Stalled"]
    assert (status, reason) == ("True", "EditRefused")
    assert "spec.stateServers.url" in message
    assert set(cluster.pods) == before


def test_a_server_of_ones_own_in_place_of_pods_is_refused():
    cluster = Cluster()
    cluster.settle()
    cluster.edit(stateServers=OWN, volumes=[*cluster.spec["volumes"], CERTS])
    cluster.settle()
    assert conditions(cluster)["Stalled"][1] == "EditRefused"
    assert "words-state-0" in cluster.pods


def test_another_secret_starts_the_driver_and_the_ackers_anew():
    """Their pods mount it."""
    cluster = with_own()
    cluster.settle()
    before = {name: pod.uid for name, pod in cluster.pods.items()}
    cluster.edit(stateServers={**OWN, "password": {"secretRef": {"name": "cache", "key": "new"}}})
    cluster.settle()
    assert "EditedWithRestart" in reasons(cluster)
    after = {name: pod.uid for name, pod in cluster.pods.items()}
    assert set(after) == {"words-driver-2", "words-acker-0", "words-acker-1"}
    assert not set(before.values()) & set(after.values())


def test_ackers_of_state_servers_in_pods_are_no_others_than_before():
    """A release that knows of servers of one's own replaces no acker that was made without."""
    cluster = Cluster()
    cluster.settle()
    assert {pod.fingerprint for pod in cluster.observed().of(Role.ACKER)} == {""}
    assert cluster.reconcile() == ()


@pytest.mark.parametrize(
    ("server", "path", "text"),
    [
        ({"url": "redis://:sesame@cache:6379"}, "spec.stateServers.url", "secretRef"),
        ({"url": "unix:///run/redis.sock"}, "spec.stateServers.url", "redis://host:port"),
        (
            {"url": "rediss://cache:6379?ssl_ca_certs=/elsewhere/ca.crt"},
            "spec.stateServers.url",
            "on no volume",
        ),
    ],
)
def test_what_no_pod_can_use_is_refused_with_the_field(
    server: dict[str, Any], path: str, text: str
):
    cluster = Cluster()
    cluster.spec["stateServers"] = server
    cluster.reconcile()
    status, reason, message = conditions(cluster)["Stalled"]
    assert (status, reason) == ("True", "InvalidTopology")
    assert path in message
    assert text in message
    assert "sesame" not in message
    assert cluster.pods == {}


AWAY = ServerTrouble("state-0", "StateServerAway", "state server state-0 does not accept it")


def test_why_a_driver_waits_for_the_server_is_said_in_ready_until_it_is_there():
    cluster = with_own()
    cluster.waits = AWAY
    for _ in range(4):
        cluster.reconcile()
        cluster.progress()
        cluster.drive()
    cluster.change("words-driver-1", ready=False)
    cluster.reconcile()
    told = conditions(cluster)
    assert told["StateAvailable"] == ("False", AWAY.kind, AWAY.text)
    assert told["Ready"] == ("False", AWAY.kind, AWAY.text)
    assert told["Stalled"][0] == "False"
    assert cluster.status.message == AWAY.text
    cluster.waits = None
    cluster.change("words-driver-1", ready=True)
    cluster.settle()
    assert conditions(cluster)["Ready"][:2] == ("True", "AllReady")
    assert AWAY.kind not in reasons(cluster), "the driver tells that itself"


OUT = ServerTrouble("words-state-1", "StateServerLeftOut", "state server words-state-1 runs and …")


def test_a_server_that_is_left_out_holds_up_ready_until_it_is_let_in():
    cluster = Cluster()
    cluster.settle()
    cluster.events.clear()
    cluster.troubles = (OUT,)
    cluster.drive()
    cluster.reconcile()
    told = conditions(cluster)
    assert told["StateAvailable"] == ("False", OUT.kind, OUT.text)
    assert told["Ready"] == ("False", OUT.kind, OUT.text)
    assert told["SparkRunning"][0] == "True"
    assert OUT.kind not in reasons(cluster), "the driver tells that itself"
    cluster.troubles = None
    cluster.drive()
    cluster.reconcile()
    assert conditions(cluster)["StateAvailable"][:2] == ("True", "AllReady")
    assert conditions(cluster)["Ready"][0] == "True"


def test_a_pod_that_is_gone_goes_before_what_the_driver_says_of_its_server():
    cluster = Cluster()
    cluster.settle()
    cluster.troubles = (OUT,)
    cluster.drive()
    cluster.change("words-state-1", ready=False, reason="OOMKilled", message="too much")
    cluster.reconcile()
    assert conditions(cluster)["StateAvailable"][1] == "OutOfMemory"


def test_what_a_driver_said_that_is_gone_holds_up_nothing():
    cluster = Cluster()
    cluster.settle()
    cluster.troubles = (OUT,)
    cluster.drive()
    cluster.edit(suspend=True)
    cluster.settle()
    assert conditions(cluster)["Ready"][:2] == ("True", "Suspended")


def test_a_driver_that_failed_says_nothing_more():
    cluster = Cluster()
    cluster.settle()
    cluster.troubles = (OUT,)
    cluster.drive()
    cluster.change("words-driver-1", phase=PodPhase.FAILED, ready=False, exit_code=1)
    assert any("words-driver-2" in word for word in summary(cluster.reconcile()))
    assert conditions(cluster)["StateAvailable"][:2] == ("True", "AllReady")


def test_a_ready_server_that_the_operator_does_not_hear_from_is_told():
    """It comes back with another address, and nothing of it is proposed: the view would do without
    it for ever."""
    cluster = Cluster()
    cluster.settle()
    lost = cluster.pods.pop("words-state-2")
    cluster.reconcile()
    cluster.run("words-state-2", str(lost.node))
    cluster.change("words-state-2", run_id=None, address="10.0.9.9", ready_s=UNKNOWN_S - 1)
    cluster.drive()
    cluster.reconcile()
    assert conditions(cluster)["StateAvailable"][:2] == ("True", "Moving")
    cluster.change("words-state-2", ready_s=UNKNOWN_S)
    cluster.reconcile()
    told = conditions(cluster)
    assert told["StateAvailable"][:2] == told["Ready"][:2] == ("False", "StateServerUnknown")
    for named in ("2 of 3", "words-state-2", str(lost.node), "8081", "network policies"):
        assert named in told["StateAvailable"][2]
    assert "StateServerUnknown" in reasons(cluster)
    cluster.change("words-state-2", run_id="another")
    cluster.settle()
    assert conditions(cluster)["StateAvailable"][:2] == ("True", "AllReady")


def test_a_topology_that_waits_for_its_first_servers_says_which_is_not_heard_from():
    cluster = Cluster()
    cluster.reconcile()
    cluster.progress()
    cluster.change("words-state-1", run_id=None, ready_s=UNKNOWN_S)
    cluster.reconcile()
    cluster.reconcile()
    told = conditions(cluster)
    assert cluster.proposal is None
    assert told["Ready"][:2] == ("False", "StateServerUnknown")
    assert "words-state-1" in told["Ready"][2]


def test_a_server_that_an_operator_which_has_begun_does_not_hear_from_yet_is_who_it_was():
    cluster = Cluster()
    cluster.settle()
    for number in range(3):
        cluster.change(f"words-state-{number}", run_id=None, ready_s=1000.0)
    cluster.reconcile()
    assert "StateServerUnknown" not in reasons(cluster)
    assert conditions(cluster)["StateAvailable"][0] == "True"
