"""What is killed on a cluster and how, how the topology stands meanwhile, what its sinks hold."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from fake_cluster import CORE, NAMESPACE, SPEC, TOPOLOGIES, UID, FakeCluster

from millrace.chaos import cluster as chaos_cluster
from millrace.chaos.cluster import KILL_BELOW, WAYS, ClusterTarget
from millrace.chaos.cluster_run import readable_sinks
from millrace.chaos.ledger import UnreadableError, read_hashes, read_stream
from millrace.chaos.plan import ChaosError, VictimKind
from millrace.chaos.sealing import Seen
from millrace.chaos.target import Victim
from millrace.clock import SystemClock
from millrace.errors import ExitCode
from millrace.homes.documents import RunningWindow
from millrace.homes.stores import HomeAwayError
from millrace.kube.configmaps import Api
from millrace.protocol.types import Member, Totals
from millrace.remote.cluster import ClusterError, connect
from millrace.remote.topology import find
from millrace.state.embedded import EmbeddedServer
from millrace.topology.model import StreamTopology
from millrace.topology.secretrefs import SecretRef
from millrace_e2e.embedded import started
from millrace_e2e.valkey import free_port

OF_A_RECORD = {"epoch": 2, "phase": "open", "dead_letters": 0, "totals": Totals()}
AT_REST = {**OF_A_RECORD, "sealed": 7, "published": 7, "lag_records": 0}
CHANCE = random.Random(1)


class Hand(SystemClock):
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic_s(self) -> float:
        return self.now

    def now_s(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


def target_of(cluster: FakeCluster, **more: Any) -> ClusterTarget:
    clock = Hand()
    made = ClusterTarget(find(connect(None, None), "words"), clock, clock.pause, **more)
    made.hand = clock  # type: ignore[attr-defined]
    return made


@pytest.fixture
def target(cluster: FakeCluster) -> ClusterTarget:
    cluster.running()
    cluster.tell(**AT_REST)
    return target_of(cluster)


# -- how it stands


def test_it_rests_when_all_that_was_fed_is_shown(
    cluster: FakeCluster, target: ClusterTarget
) -> None:
    assert target.look().at_rest
    for figures in (
        {"published": 6},
        {"lag_records": 3},
        {"lag_records": None},
        {"pending_replays": 1},
        {"spark": "starting"},
        {"window": RunningWindow(8, 1, 5, 0.0)},
    ):
        cluster.tell(**{**AT_REST, **figures})
        assert not target.look().at_rest
    assert target.look().sealed == 7


def test_figures_of_a_driver_before_say_nothing_of_the_one_that_runs(
    cluster: FakeCluster, target: ClusterTarget
) -> None:
    cluster.pod("words-driver-7", "driver", ready=False)
    assert not target.look().at_rest, "the driver is dead, or starts"
    cluster.pod("words-driver-8", "driver")
    cluster.view(Member("words-state-0", "run-1", "redis://10.0.0.1:6379"), execution=4)
    assert not target.look().at_rest, "what is told is of execution 3"
    cluster.tell(**AT_REST, execution=4)
    assert target.look().at_rest


def test_a_driver_between_two_is_no_end_and_a_drained_one_is(
    cluster: FakeCluster, target: ClusterTarget
) -> None:
    cluster.pod("words-driver-7", "driver", ready=False, status={"phase": "Failed"})
    assert target.look().ended is None
    cluster.tell(**AT_REST, state="drained")
    assert target.look().ended == "drained"
    assert target.look().at_rest


def test_an_api_server_that_is_silent_for_a_while_is_waited_for(
    cluster: FakeCluster, target: ClusterTarget
) -> None:
    before = target.look()
    cluster.refused = {"/words": 503}
    look = target.look()
    assert (look.sealed, look.working, look.at_rest) == (before.sealed, False, False)
    target.hand.now = chaos_cluster.AWAY_S + 1  # type: ignore[attr-defined]
    with pytest.raises(ClusterError, match="does kubectl reach it"):
        target.look()
    cluster.refused = {}
    target.look()
    target.hand.now += 600.0  # type: ignore[attr-defined]
    cluster.refused = {"/words": 503}
    target.look()  # to end a node takes minutes, of which nobody asked
    cluster.refused = {"/words": 403}
    with pytest.raises(ClusterError, match="refused to you"):
        target.look()


def test_what_the_api_server_says_counts_by_its_status_and_not_by_its_words(
    cluster: FakeCluster, target: ClusterTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = target.look()
    said: list[tuple[str, int | None]] = [("no answer (timeout of pod words (403 s))", 504)]

    def answers(*_: object, **__: object) -> object:
        raise HomeAwayError(*said[-1])

    monkeypatch.setattr("millrace.kube.configmaps.Api.answer", answers)
    assert target.look().sealed == before.sealed
    said.append(("no answer (a page of the proxy)", 403))
    with pytest.raises(ClusterError, match="it forbids that"):
        target.look()


def test_what_is_sealed_may_be_known_sooner(cluster: FakeCluster, target: ClusterTarget) -> None:
    sooner = target_of(cluster, seen=lambda: Seen(2.0, 9))
    look = sooner.look()
    assert (look.sealed, look.told_s, look.at_rest) == (9, 2.0, False)
    assert target_of(cluster, seen=lambda: Seen(2.0, 6)).look().sealed == 7


def test_who_sealed_a_window_just_now_is_not_at_rest_nor_known_to_be_at_work(
    cluster: FakeCluster, target: ClusterTarget
) -> None:
    """Figures are told every few seconds: they may be of a moment between two windows."""
    seen = [Seen(1.0, 7)]
    sooner = target_of(cluster, seen=lambda: seen[-1])
    hand = sooner.hand  # type: ignore[attr-defined]
    assert sooner.look().at_rest, "the first that is known was sealed at any time"
    cluster.tell(**{**AT_REST, "published": 8, "sealed": 8})
    seen.append(Seen(2.0, 8))
    look = sooner.look()
    assert (look.working, look.idle, look.at_rest) == (False, False, False)
    hand.now += chaos_cluster.MOVING_S
    assert sooner.look().at_rest


def test_who_seals_one_short_window_behind_the_other_is_at_work(
    cluster: FakeCluster, target: ClusterTarget
) -> None:
    seen = [Seen(1.0, 7)]
    sooner = target_of(cluster, seen=lambda: seen[-1])
    hand = sooner.hand  # type: ignore[attr-defined]
    sooner.look()
    cluster.tell(**{**AT_REST, "published": 7, "sealed": 7})
    found = []
    for window in (8, 9, 10, 11):
        hand.now += 0.6
        seen.append(Seen(hand.now, window))
        found.append(sooner.look().working)
    assert found == [False, False, True, True]
    hand.now += chaos_cluster.MOVING_S
    assert not sooner.look().working


def test_figures_are_as_old_as_the_last_look_that_did_not_find_them(
    cluster: FakeCluster, target: ClusterTarget
) -> None:
    """The driver's clock is another machine's, and may go wrong."""
    hand = target.hand  # type: ignore[attr-defined]
    told = []
    for now, updated in ((10.0, 5000.0), (11.0, 5000.0), (12.0, 3.0), (13.0, 3.0)):
        hand.now = now
        cluster.tell(**AT_REST, updated=updated)
        told.append(target.look().told_s)
    assert told == [0.0, 0.0, 11.0, 11.0]


def test_figures_that_a_new_driver_repeats_of_the_one_before_are_of_no_time(
    cluster: FakeCluster, target: ClusterTarget
) -> None:
    """A window of theirs would be the first behind a kill, and one sealed before it the next."""
    hand = target.hand  # type: ignore[attr-defined]
    target.look()
    told = []
    for updated, totals in ((1.0, None), (2.0, None), (3.0, Totals())):
        hand.now += 10.0
        cluster.tell(**{**AT_REST, "updated": updated, "totals": totals})
        told.append(target.look().told_s)
    assert told == [0.0, 0.0, 20.0]


def test_a_driver_that_is_gone_works_at_nothing(
    cluster: FakeCluster, target: ClusterTarget
) -> None:
    cluster.tell(**{**AT_REST, "lag_records": 3})
    assert target.look().working
    cluster.pod("words-driver-7", "driver", ready=False)
    assert not target.look().working


# -- killing


def deletions(cluster: FakeCluster) -> list[tuple[str, Any]]:
    return [
        (path.rpartition("/")[2], body)
        for method, path, body in cluster.asked
        if method == "DELETE"
    ]


def dying(cluster: FakeCluster, pod: str) -> Callable[[list[str]], tuple[str, int | None]]:
    """The container ends of its command and comes back."""

    def killed(command: list[str]) -> tuple[str, int | None]:
        assert command == ["python3", "-c", KILL_BELOW, "1"]
        state = {"name": "acker", "restartCount": 1, "state": {"running": {}}}
        cluster.pod(pod, "acker", status={"containerStatuses": [state]}, spec=CONTAINER)
        return "7\n", None

    return killed


CONTAINER = {"containers": [{"name": "mesh"}, {"name": "acker"}]}
RUNNING = [{"name": "acker", "restartCount": 0, "state": {"running": {}}}]


def test_three_ways_in_turn_for_each_kind(cluster: FakeCluster, target: ClusterTarget) -> None:
    cluster.pod("words-acker-0", "acker", status={"containerStatuses": RUNNING}, spec=CONTAINER)
    cluster.commands["words-acker-0"] = dying(cluster, "words-acker-0")
    killed = [target.kill(VictimKind.ACKER, CHANCE) for _ in range(4)]
    assert [victim.way for victim in killed if victim] == [*WAYS, WAYS[0]]
    assert {victim.name for victim in killed if victim} == {"words-acker-0"}
    other = target.kill(VictimKind.STATE_SERVER, CHANCE)
    assert other is not None
    assert (other.name, other.way) == ("words-state-0", "delete")
    graceful, forced, again, _ = [body for _, body in deletions(cluster)]
    assert graceful == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": "uid-words-acker-0"},
    }
    assert forced == {**graceful, "gracePeriodSeconds": 0}
    assert again == graceful


def test_a_container_that_lives_on_was_not_killed(
    cluster: FakeCluster, target: ClusterTarget
) -> None:
    cluster.pod("words-acker-0", "acker", status={"containerStatuses": RUNNING}, spec=CONTAINER)
    cluster.commands["words-acker-0"] = lambda command: ("", 0)
    for _ in range(2):
        target.kill(VictimKind.ACKER, CHANCE)
    with pytest.raises(ChaosError, match=r"its container still runs 20 s later \(exit code 0"):
        target.kill(VictimKind.ACKER, CHANCE)
    del cluster.commands["words-acker-0"]
    with pytest.raises(ChaosError, match=r"SIGKILL for words-acker-0: exec in pod.*pods/exec"):
        target.kill(VictimKind.ACKER, CHANCE)


def test_a_process_that_ended_by_itself_or_with_its_node_is_a_missed_strike(
    cluster: FakeCluster,
) -> None:
    def sigkill(**more: str) -> ClusterTarget:
        return target_of(cluster, ways=("SIGKILL",), **more)

    cluster.running()
    cluster.tell(**AT_REST)
    crashing = [{"name": "acker", "restartCount": 3, "state": {"waiting": {}}}]
    cluster.pod("words-acker-0", "acker", status={"containerStatuses": crashing}, spec=CONTAINER)
    assert sigkill().kill(VictimKind.ACKER, CHANCE) is None
    pod = cluster.pod(
        "words-acker-0", "acker", status={"containerStatuses": RUNNING}, spec=CONTAINER
    )

    def broken(command: list[str]) -> tuple[str, int | None]:
        raise BrokenPipeError

    cluster.commands["words-acker-0"] = broken
    ends_nodes = sigkill(node_command="true {node}")
    assert ends_nodes.kill(VictimKind.ACKER, CHANCE) is None, "its node may be gone"
    with pytest.raises(ChaosError, match="SIGKILL for words-acker-0: exec in pod"):
        sigkill().kill(VictimKind.ACKER, CHANCE)
    del cluster.commands["words-acker-0"]
    with pytest.raises(ChaosError, match="you need the right"):
        ends_nodes.kill(VictimKind.ACKER, CHANCE)
    assert pod["status"]["phase"] == "Running"


def test_a_kill_waits_for_an_api_server_that_is_away_for_a_while(cluster: FakeCluster) -> None:
    cluster.running()
    target, hand = target_of(cluster, ways=("delete",)), Hand()
    target._clock, back_s = hand, [chaos_cluster.AWAY_S - 1]

    def pause(seconds: float) -> None:
        hand.now += seconds
        if hand.now >= back_s[0]:
            cluster.refused = {}

    target._pause = pause
    for refused in ("/pods", "/words", "/words-driver-7"):
        hand.now, cluster.refused = 0.0, {refused: 503}
        assert target.kill(VictimKind.DRIVER, CHANCE) is not None
        assert hand.now >= back_s[0]
    before = len(deletions(cluster))
    back_s[0], cluster.refused = 1000.0, {"/pods": 503}
    with pytest.raises(ClusterError, match="does kubectl reach it"):
        target.kill(VictimKind.DRIVER, CHANCE)
    hand.now, cluster.refused = 0.0, {"/pods": 403}
    with pytest.raises(ClusterError, match="refused to you"):
        target.kill(VictimKind.DRIVER, CHANCE)
    assert hand.now == 0.0, "what is forbidden is not waited for"
    assert len(deletions(cluster)) == before


def test_a_deletion_whose_answer_is_lost_was_carried_out(
    cluster: FakeCluster, target: ClusterTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, lost = Api.answer, [True]

    def losing(api: Api, method: str, path: str, *more: Any, **named: Any) -> Any:
        found = answer(api, method, path, *more, **named)
        if method == "DELETE" and lost.pop():
            raise HomeAwayError("no answer (timeout)")
        return found

    monkeypatch.setattr("millrace.kube.configmaps.Api.answer", losing)
    cluster.on_delete = lambda path: cluster.objects.pop(path) and None
    lost[:] = [False, True]
    victim = target.kill(VictimKind.ACKER, CHANCE)
    assert victim is not None
    assert (victim.name, victim.way) == ("words-acker-0", "delete")
    assert [name for name, _ in deletions(cluster)] == ["words-acker-0"] * 2


def test_a_command_in_a_pod_that_does_not_begin_is_tried_again(cluster: FakeCluster) -> None:
    cluster.running()
    cluster.pod("words-acker-0", "acker", status={"containerStatuses": RUNNING}, spec=CONTAINER)
    killing, tries = dying(cluster, "words-acker-0"), [1, 2]

    def away_for_a_moment(command: list[str]) -> tuple[str, int | None]:
        if tries.pop() == 2:
            raise BrokenPipeError
        return killing(command)

    cluster.commands["words-acker-0"] = away_for_a_moment
    victim = target_of(cluster, ways=("SIGKILL",)).kill(VictimKind.ACKER, CHANCE)
    assert victim is not None
    assert (victim.way, tries) == ("SIGKILL", [])


def test_only_what_runs_is_killed_and_of_drivers_the_newest(
    cluster: FakeCluster, target: ClusterTarget
) -> None:
    cluster.pod("words-driver-10", "driver", ready=False)
    cluster.pod("words-driver-9", "driver", status={"phase": "Failed"})
    victim = target.kill(VictimKind.DRIVER, CHANCE)
    assert victim is not None
    assert victim.name == "words-driver-10"
    ending = {"deletionTimestamp": "2026-01-01T10:00:00Z"}
    cluster.pod("words-acker-0", "acker", metadata=ending)
    assert target.kill(VictimKind.ACKER, CHANCE) is None
    assert target.kill(VictimKind.EXECUTOR, CHANCE) is None
    assert [name for name, _ in deletions(cluster)] == ["words-driver-10"]


def test_a_pod_that_went_by_itself_is_a_missed_strike(
    cluster: FakeCluster, target: ClusterTarget
) -> None:
    pods = target._topology.pods()
    target._running = lambda kind: pods[:1]  # type: ignore[method-assign]
    del cluster.objects[f"{CORE}/pods/words-driver-7"]
    assert target.kill(VictimKind.DRIVER, CHANCE) is None
    cluster.pod("words-driver-7", "driver", metadata={"uid": "of-the-next-one"})
    assert target.kill(VictimKind.DRIVER, CHANCE) is None
    assert f"{CORE}/pods/words-driver-7" in cluster.objects


def test_the_operators_pods_are_found_by_their_labels(
    cluster: FakeCluster, target: ClusterTarget
) -> None:
    labels = {"app.kubernetes.io/part-of": "millrace"}
    system = "/api/v1/namespaces/system"
    cluster.pod("op-1", "operator", labels=labels, core=system, metadata={"namespace": "system"})
    cluster.objects[f"{system}/pods/op-1"]["metadata"]["labels"] = {
        "app.kubernetes.io/component": "operator",
        **labels,
    }
    victim = target.kill(VictimKind.OPERATOR, CHANCE)
    assert victim is not None
    assert victim.name == "op-1"
    assert f"{system}/pods/op-1" in [
        path for method, path, _ in cluster.asked if method == "DELETE"
    ]
    elsewhere = target_of(cluster, operator_namespace="other")
    assert elsewhere.kill(VictimKind.OPERATOR, CHANCE) is None


def test_of_operators_in_several_namespaces_none_is_killed_that_is_not_named(
    cluster: FakeCluster, target: ClusterTarget
) -> None:
    labels = {
        "app.kubernetes.io/part-of": "millrace",
        "app.kubernetes.io/component": "operator",
    }
    for space in ("system", "theirs"):
        core = f"/api/v1/namespaces/{space}"
        metadata = {"namespace": space, "labels": labels}
        cluster.pod("op-1", "operator", core=core, metadata=metadata)
        if space == "system":
            target.check([VictimKind.OPERATOR])
    with pytest.raises(ChaosError, match="in the namespaces system, theirs"):
        target.check([VictimKind.ACKER, VictimKind.OPERATOR])
    target_of(cluster, operator_namespace="system").check([VictimKind.OPERATOR])


def test_a_node_is_ended_by_the_command_for_it(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.running()
    note = tmp_path / "ended"
    command = f'{sys.executable} -c \'open("{note}", "w").write("{{node}}")\''
    victim = target_of(cluster, node_command=command).kill(VictimKind.NODE, CHANCE)
    assert victim is not None
    assert (victim.name, victim.way, note.read_text()) == ("node-1", "command", "node-1")
    failing = f"{sys.executable} -c 'import sys; sys.exit(\"no {{node}} here\")'"
    with pytest.raises(ChaosError, match="exit code 1: no node-1 here"):
        target_of(cluster, node_command=failing).kill(VictimKind.NODE, CHANCE)
    with pytest.raises(ChaosError, match="says nowhere which node"):
        target_of(cluster, node_command="reboot")
    assert VictimKind.NODE in target_of(cluster).refused


def runs(cluster: FakeCluster, name: str, role: str, node: str, restarts: int = 0) -> None:
    life = {"name": role, "restartCount": restarts, "state": {"running": {}}}
    spec = {"nodeName": node, "containers": [{"name": role}]}
    cluster.pod(name, role, status={"containerStatuses": [life]}, spec=spec)


def test_what_ran_on_a_node_that_was_ended_is_no_victim_until_it_is_back(
    cluster: FakeCluster,
) -> None:
    """Until somebody notices that the node is gone its pods are listed as running."""
    cluster.running()
    cluster.tell(**AT_REST)
    runs(cluster, "words-acker-0", "acker", "node-2")
    for other in ("words-state-0", "words-driver-7"):
        del cluster.objects[f"{CORE}/pods/{other}"]
    target = target_of(cluster, node_command="true {node}", ways=("delete",))
    victim = target.kill(VictimKind.NODE, CHANCE)
    assert victim is not None
    assert victim.name == "node-2"
    assert target.kill(VictimKind.ACKER, CHANCE) is None
    assert target.kill(VictimKind.NODE, CHANCE) is None
    runs(cluster, "words-acker-0", "acker", "node-2", restarts=1)
    assert target.kill(VictimKind.ACKER, CHANCE) is not None
    assert target.kill(VictimKind.NODE, CHANCE) is not None


def test_a_node_has_ended_when_something_that_ran_there_is_seen_to_be_gone(
    cluster: FakeCluster,
) -> None:
    cluster.running()
    runs(cluster, "words-acker-0", "acker", "node-1")

    def struck() -> tuple[ClusterTarget, Victim]:
        target = target_of(cluster, node_command="true {node}")
        victim = target.kill(VictimKind.NODE, CHANCE)
        assert victim is not None
        assert target.ended(victim) is None
        return target, victim

    target, victim = struck()
    target.hand.now += 200.0  # type: ignore[attr-defined]
    assert target.ended(victim) is False
    target, victim = struck()
    runs(cluster, "words-acker-0", "acker", "node-1", restarts=1)
    assert target.ended(victim) is True
    target, victim = struck()
    del cluster.objects[f"{CORE}/pods/words-acker-0"]
    assert target.ended(victim) is True
    runs(cluster, "words-acker-0", "acker", "node-1", restarts=2)
    target.hand.now += 200.0  # type: ignore[attr-defined]
    assert target.ended(victim) is True
    assert target.ended(Victim("words-acker-0", "delete")) is True


class TheLast(random.Random):
    def choice(self, seq: Any) -> Any:
        return seq[-1]


def struck_by_nothing(cluster: FakeCluster) -> tuple[ClusterTarget, Victim]:
    """An executor on another node than its driver, and a command that ends no node."""
    cluster.running()
    for name in ("words-state-0", "words-acker-0"):
        del cluster.objects[f"{CORE}/pods/{name}"]
    runs(cluster, "words-driver-7", "driver", "node-1")
    runs(cluster, "words-driver-7-exec-1", "executor", "node-2")
    target = target_of(cluster, node_command="true {node}")
    victim = target.kill(VictimKind.NODE, TheLast())
    assert victim is not None
    assert victim.name == "node-2"
    return target, victim


def test_what_goes_with_its_driver_or_much_later_is_not_taken_by_a_node(
    cluster: FakeCluster,
) -> None:
    target, victim = struck_by_nothing(cluster)
    for name in ("words-driver-7", "words-driver-7-exec-1"):
        del cluster.objects[f"{CORE}/pods/{name}"]
    assert target.ended(victim) is None
    target, victim = struck_by_nothing(cluster)
    del cluster.objects[f"{CORE}/pods/words-driver-7-exec-1"]
    assert target.ended(victim) is True
    target, victim = struck_by_nothing(cluster)
    target.hand.now += 200.0  # type: ignore[attr-defined]
    del cluster.objects[f"{CORE}/pods/words-driver-7-exec-1"]
    assert target.ended(victim) is False


def test_what_was_ending_already_is_not_taken_by_a_node(cluster: FakeCluster) -> None:
    cluster.running()
    runs(cluster, "words-acker-0", "acker", "node-1")
    ending = cluster.objects[f"{CORE}/pods/words-state-0"]
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    target = target_of(cluster, node_command="true {node}")
    victim = target.kill(VictimKind.NODE, CHANCE)
    assert victim is not None
    del cluster.objects[f"{CORE}/pods/words-state-0"]
    assert target.ended(victim) is None


def test_an_api_server_that_is_away_says_nothing_of_the_end_of_a_node(
    cluster: FakeCluster,
) -> None:
    target, victim = struck_by_nothing(cluster)
    cluster.refused = {"/words-driver-7-exec-1": 503}
    assert target.ended(victim) is None
    assert target.hand.now == 0.0, "nobody waits for it"  # type: ignore[attr-defined]


def test_the_executors_of_the_driver_that_works_are_those_to_kill(cluster: FakeCluster) -> None:
    cluster.running()
    cluster.objects[f"{TOPOLOGIES}/words"]["status"]["driver"] = {"standby": 8}
    cluster.pod("words-driver-8", "driver")
    for pod in ("words-driver-7-exec-1", "words-driver-8-exec-1", "words-driver-70-exec-1"):
        cluster.pod(pod, "executor")
    target = target_of(cluster, ways=("delete",))
    for _ in range(8):
        victim = target.kill(VictimKind.EXECUTOR, CHANCE)
        assert victim is not None
        assert victim.name == "words-driver-7-exec-1"


def test_the_operator_to_kill_is_the_one_that_leads(cluster: FakeCluster) -> None:
    cluster.running()
    labels = {
        "app.kubernetes.io/part-of": "millrace",
        "app.kubernetes.io/component": "operator",
    }
    core, metadata = "/api/v1/namespaces/system", {"namespace": "system", "labels": labels}
    names = [f"millrace-operator-{number}" for number in range(3)]
    for name in names:
        cluster.pod(name, "operator", core=core, metadata=metadata)
    target = target_of(cluster, ways=("delete",))

    def killed() -> set[str | None]:
        victims = [target.kill(VictimKind.OPERATOR, CHANCE) for _ in range(20)]
        return {victim and victim.name for victim in victims}

    assert killed() == set(names), "without a Lease nobody knows"
    lease = "/apis/coordination.k8s.io/v1/namespaces/system/leases/millrace-operator"
    cluster.put(lease, spec={"holderIdentity": f"{names[1]}-0a1b2c3d"})
    assert killed() == {names[1]}
    cluster.refused = {"/leases/millrace-operator": 403}
    assert killed() == set(names)
    cluster.refused = {}
    cluster.put(lease, spec={"holderIdentity": "millrace-operator-9-0a1b2c3d"})
    assert killed() == {None}, "nobody leads"
    for name in names[1:]:
        cluster.objects.pop(f"{core}/pods/{name}")
    assert killed() == {names[0]}, "the only one, whatever an older Lease says"


def test_what_a_node_command_leaves_behind_outlives_the_terminal(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.running()
    note = tmp_path / "session"
    command = (
        f'{sys.executable} -c \'import os; open("{note}", "w").write(str(os.getsid(0)))\' {{node}}'
    )
    assert target_of(cluster, node_command=command).kill(VictimKind.NODE, CHANCE) is not None
    assert int(note.read_text()) != os.getsid(0)


def test_the_documented_command_ends_a_node_and_starts_it_later(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster.running()
    written = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
    [command] = re.findall(r'--node-command "(sh -c .*?)" \\\n', written, re.DOTALL)
    told, go = tmp_path / "told", tmp_path / "go"
    tool = f"echo >> {told}"
    command = command.replace("python -m millrace_e2e.cluster", tool)
    command = command.replace("sleep 90", f"until [ -e {go} ]; do sleep 0.02; done")
    assert target_of(cluster, node_command=command).kill(VictimKind.NODE, CHANCE) is not None
    assert told.read_text() == "kill-node node-1\n"
    go.touch()
    end_s = time.monotonic() + 60
    while "start-node node-1" not in told.read_text():
        assert time.monotonic() < end_s
        time.sleep(0.02)
    failing = command.replace(f"{tool} kill-node", "false")
    target = target_of(cluster, node_command=failing)
    assert target.nodes == ()
    with pytest.raises(ChaosError, match="exit code 1"):
        target.kill(VictimKind.NODE, CHANCE)
    assert target.nodes == ("node-1",)


def test_what_runs_below_a_process_is_killed_and_nothing_else() -> None:
    """The script that runs in a container, on a process of ours in the place of the reaper."""
    text = (
        "import subprocess, sys\n"
        "one = subprocess.Popen(['sleep', '300'])\n"
        "print(one.pid, flush=True)\n"
        "print(one.wait(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    reaper = subprocess.Popen(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    beside = subprocess.Popen(["sleep", "300"])
    with reaper:
        assert reaper.stdout is not None
        below = reaper.stdout.readline().strip()
        done = subprocess.run(
            [sys.executable, "-c", KILL_BELOW, str(reaper.pid)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == [below]
        assert reaper.stdout.readline().strip() == "-9"
        assert reaper.poll() is None
        assert beside.poll() is None
    beside.kill()
    beside.wait()


# -- sinks


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with started(tmp_path_factory.mktemp("server"), place=free_port()) as running:
        yield running


def url_of(server: EmbeddedServer) -> str:
    return server.address.url.replace("redis://", f"redis://:{server.address.password}@")


def test_hashes_and_streams_are_read_as_rows_of_texts(server: EmbeddedServer) -> None:
    url = url_of(server)
    with redis.Redis.from_url(url) as client:
        client.hset("wc:the:[a]", mapping={"n": 3})
        client.hset("wc:a:b:[x]", mapping={"n": 1, "last": "é"})
        client.hset("other", mapping={"n": 9})
        client.set("wc:no:[hash]", 1)
        client.hset("millrace:sink:wc:{word}:[{kind}]", mapping={"uid": "u"})
        for number in range(2500):
            client.xadd("rows", {"n": number}, id=f"7-{number + 1}")
    hashes = read_hashes(url, "wc:{word}:[{kind}]")
    assert hashes.rows == [
        {"word": "a:b", "kind": "x", "n": "1", "last": "é"},
        {"word": "the", "kind": "a", "n": "3"},
    ]
    assert hashes.windows is None
    entries = read_stream(url, "rows")
    assert entries.rows == [{"n": str(number)} for number in range(2500)]
    assert entries.windows == [7] * 2500
    assert read_stream(url, "nothing").rows == []


def test_an_address_that_is_not_there_is_said_without_its_password() -> None:
    with pytest.raises(UnreadableError, match=r"^127\.0\.0\.1:1: cannot be read") as caught:
        read_stream("redis://:secret@127.0.0.1:1", "rows")
    assert "secret" not in str(caught.value)


def model(*sinks: dict[str, Any]) -> StreamTopology:
    inputs = [{"from": "lines"}]
    spec = {**SPEC, "sinks": [{"inputs": inputs, **sink} for sink in sinks]}
    document = {"apiVersion": "millrace.dev/v1alpha1", "kind": "StreamTopology"}
    return StreamTopology.model_validate({**document, "metadata": {"name": "words"}, "spec": spec})


def no_secret(ref: SecretRef) -> str:
    raise AssertionError(f"nobody needs {ref}")


@pytest.mark.parametrize(
    "more",
    [{"mode": "stream", "stream": "rows"}, {"mode": "hash", "key": "word:{word}"}],
    ids=lambda more: str(more["mode"]),
)
def test_a_password_by_reference_is_read_from_its_secret(
    cluster: FakeCluster, server: EmbeddedServer, more: dict[str, str]
) -> None:
    password = server.address.password
    with redis.Redis.from_url(url_of(server)) as client:
        client.flushall()
        client.xadd("rows", {"word": "a", "n": "1"})
        client.hset("word:a", "n", "1")
    held = base64.b64encode(password.encode()).decode()
    cluster.objects[f"{CORE}/secrets/store"] = {"data": {"key": held}}
    inside = {"url": server.address.url, **more}
    by_reference = {"secretRef": {"name": "store", "key": "key"}}
    topology = model({"name": "out", "redis": {**inside, "password": by_reference}})
    secret = connect(None, None).secret
    ([found], _) = readable_sinks(topology, (), {}, secret)
    assert found.read().rows == [{"word": "a", "n": "1"}]
    cluster.objects[f"{CORE}/secrets/store"] = {"data": {"other": held}}
    with pytest.raises(ClusterError, match=r"secret store .*: it has no 'key' that is a text"):
        readable_sinks(topology, (), {}, secret)


def test_sinks_are_read_where_they_are_seen_from_here(tmp_path: Path) -> None:
    for name in ("out", "deep/out", "mine"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "a.json").write_text(json.dumps({"in": name}) + "\n")
    topology = model(
        {"name": "near", "files": {"path": "out"}},
        {"name": "whole", "files": {"path": "/data/deep/out"}},
        {"name": "far", "files": {"path": "/elsewhere"}},
        {"name": "moved", "files": {"path": "/elsewhere/too"}},
        {"name": "seen", "console": {}},
    )
    places = (str(tmp_path), f"moved={tmp_path / 'mine'}")
    found, unread = readable_sinks(topology, places, {}, no_secret)
    assert {sink.name: sink.read().rows for sink in found} == {
        "near": [{"in": "out"}],
        "whole": [{"in": "deep/out"}],
        "moved": [{"in": "mine"}],
    }
    assert unread == ("far", "seen")
    with pytest.raises(ChaosError, match="no sink of this topology can be read from here"):
        readable_sinks(topology, (), {}, no_secret)
    with pytest.raises(ChaosError, match="nowhere: is no folder"):
        readable_sinks(topology, ("nowhere",), {}, no_secret)
    with pytest.raises(ChaosError, match="gone, where the files of sink moved would be, is no fol"):
        readable_sinks(topology, (f"moved={tmp_path / 'gone'}",), {}, no_secret)
    (tmp_path / "deep" / "out").rename(tmp_path / "elsewhere")
    with pytest.raises(ChaosError, match="where the files of sink whole would be, is no folder"):
        readable_sinks(topology, places, {}, no_secret)
    (tmp_path / "elsewhere").rename(tmp_path / "deep" / "out")
    with pytest.raises(ChaosError, match="is no PLACE and no SINK=PLACE; sinks: near") as refused:
        readable_sinks(topology, ("fra=redis://:a-word@host",), {}, no_secret)
    assert "--sinks-at fra=...: " in str(refused.value)
    assert "a-word" not in str(refused.value)
    for address in ("redis://:a-word@host:6379/0", "rediss://:a=word@host"):
        with pytest.raises(ChaosError, match=r"in front: SINK=redis://\.\.\.; sinks: near") as bare:
            readable_sinks(topology, (address,), {}, no_secret)
        assert "word" not in str(bare.value)
    with pytest.raises(ChaosError, match=r"--last far: is no sink .* that can be read"):
        readable_sinks(topology, places, {"far": ("a",)}, no_secret)


# -- the whole of it


def campaign(cluster: FakeCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    return cluster.millrace("chaos", "words", "-n", NAMESPACE, "--json", *arguments)


@pytest.fixture
def place(cluster: FakeCluster, tmp_path: Path) -> Path:
    """A running topology whose sink holds one row more with each window, and what is right."""
    cluster.running()
    (tmp_path / "data" / "out").mkdir(parents=True)
    (tmp_path / "judged.py").write_text(
        "from pathlib import Path\n"
        "def expected(folder):\n"
        "    assert folder == Path.cwd()\n"
        "    return {'out': [{'n': n} for n in range(3)]}\n"
    )
    return tmp_path / "data"


def windows(cluster: FakeCluster, place: Path, rows: list[int], stop: threading.Event) -> None:
    """Seals a window behind each kill, and rests behind the last."""

    def told(**figures: int) -> None:
        cluster.tell(**OF_A_RECORD, **figures, updated=time.time())

    for number, row in enumerate(rows, start=1):
        before = len(deletions(cluster))
        while len(deletions(cluster)) == before and not stop.wait(0.02):
            told(sealed=number, published=number, lag_records=len(rows) - number + 1)
        (place / "out" / f"{number}.json").write_text(json.dumps({"n": row}) + "\n")
    end = len(rows) + 1
    while not stop.wait(0.2):
        told(sealed=end, published=end, lag_records=0)


@pytest.mark.parametrize(("rows", "lost", "wrong"), [([0, 1, 2], 0, 0), ([0, 1, 5], 1, 1)])
def test_a_campaign_kills_waits_and_judges(
    cluster: FakeCluster, place: Path, rows: list[int], lost: int, wrong: int
) -> None:
    stop = threading.Event()
    driving = threading.Thread(target=windows, args=(cluster, place, rows, stop))
    driving.start()
    kinds = ("--kill", "acker,driver,state-server", "--every", "1s", "--for", "3s")
    done = campaign(
        cluster, *kinds, "--expect", "judged:expected", "--sinks-at", str(place), "--settle", "60s"
    )
    stop.set()
    driving.join()
    assert done.returncode == (ExitCode.FAILED if lost or wrong else 0), done.stderr
    report = json.loads(done.stdout)
    assert (report["lost"], report["duplicated"], report["wrong"]) == (lost, 0, wrong)
    assert report["kills"] == 3
    assert "times of recovery are as the driver told them" in done.stderr, "no secret is there"
    assert {kill["way"] for kill in report["timeline"]} == {"delete"}
    names = {kill["name"] for kill in report["timeline"]}
    assert names == {"words-acker-0", "words-driver-7", "words-state-0"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--expect is missing"),
        (["--expect", "judged:expected"], "no sink of this topology can be read from here"),
        (["--expect", "judged:nothing", "--sinks-at", "data"], "cannot be imported"),
        (["--kill", "node"], "--kill node: give a --node-command"),
        (["--kill", "worker"], "--kill worker: a worker is a process"),
    ],
)
def test_what_is_asked_wrongly_kills_nothing(
    cluster: FakeCluster, place: Path, arguments: list[str], said: str
) -> None:
    done = campaign(cluster, *arguments)
    assert done.returncode == ExitCode.FAILED
    assert said in done.stderr
    assert deletions(cluster) == []


def test_what_cannot_be_listed_is_known_before_anything_is_killed(
    cluster: FakeCluster, place: Path
) -> None:
    cluster.refused = {"api/v1/pods": 403}
    wanted = ("--expect", "judged:expected", "--sinks-at", "data", "--every", "1s", "--for", "2s")
    done = campaign(cluster, "--kill", "acker,operator", *wanted)
    assert done.returncode == ExitCode.FAILED
    assert "--kill operator: context here: /api/v1/pods is refused to you" in done.stderr
    assert "or say with --operator-namespace where the operator's pods are" in done.stderr
    assert deletions(cluster) == []


def test_what_does_not_run_is_not_killed(cluster: FakeCluster, place: Path) -> None:
    cluster.topology(spec={**SPEC, "suspend": True}, metadata={"uid": UID})
    del cluster.objects[f"{CORE}/pods/words-driver-7"]
    done = campaign(cluster, "--expect", "judged:expected", "--sinks-at", "data")
    assert "words is suspended: there is nothing to kill" in done.stderr
    assert deletions(cluster) == []


def test_a_server_of_a_sink_must_answer_before_anything_is_killed(
    cluster: FakeCluster, place: Path, server: EmbeddedServer
) -> None:
    sink = {"name": "out", "inputs": [{"from": "lines"}]}
    inside = {"url": "redis://127.0.0.1:1", "mode": "stream", "stream": "nothing"}
    cluster.topology(spec={**SPEC, "sinks": [{**sink, "redis": inside}]}, metadata={"uid": UID})
    done = campaign(cluster, "--expect", "judged:expected")
    assert done.returncode == ExitCode.FAILED
    assert "sink out: redis://127.0.0.1:1: cannot be read" in done.stderr
    assert "say with --sinks-at out=PLACE" in done.stderr
    [found], unread = readable_sinks(
        find(connect(None, None), "words").model, (f"out={url_of(server)}",), {}, no_secret
    )
    assert (found.read().rows, unread) == ([], ())
    with pytest.raises(ChaosError, match="--sinks-at out: is no address of a server"):
        readable_sinks(find(connect(None, None), "words").model, ("out=here",), {}, no_secret)
    assert deletions(cluster) == []


def test_options_of_a_cluster_need_one(cluster: FakeCluster) -> None:
    done = cluster.millrace("chaos", "words", "--sinks-at", "data")
    assert done.returncode == ExitCode.USAGE
    assert re.search(r"--namespace\s+or\s+--context", re.sub(r"[│\n]", " ", done.stderr))
