"""Turns of the operator on an API server in memory: seen, planned, done, and again."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import pytest
from memory_api import MemoryApi
from memory_world import CORE, KEY, TOPOLOGY, World, running

from millrace.errors import MillraceError
from millrace.homes import codec
from millrace.homes.documents import RunEvent
from millrace.homes.pods import PERIODIC_LABEL
from millrace.homes.stores import HomeAwayError
from millrace_operator.control.queue import WorkQueue
from millrace_operator.control.reconciler import (
    AWAY_TURNS,
    MOST_TOLD,
    PROPOSED_S,
    RESYNC_S,
    Reconciler,
    Result,
    _share,
)
from millrace_operator.control.workers import ALL, ORPHANS_S, Queue, Workers
from millrace_operator.kube.acting import NotLeadingError
from millrace_operator.kube.incarnations import Incarnations
from millrace_operator.kube.objects import AT_ONCE, Objects, RefusedError, StaleError
from millrace_operator.kube.observing import Key, Turn, observe, topologies
from millrace_operator.reconcile.observe import PAUSED


@pytest.fixture
def world() -> World:
    return World()


def test_a_topology_comes_up_and_is_then_left_alone(world: World):
    world.settle()
    assert world.names("pods") == [
        *("words-acker-0", "words-acker-1", "words-driver-1"),
        *("words-state-0", "words-state-1", "words-state-2"),
    ]
    assert world.condition("Ready") == ("True", "AllReady")
    assert world.resource["status"]["phase"] == "Running"
    members = {m.name: m.run_id for m in world.proposal().members}
    assert members == {f"words-state-{n}": f"run-words-state-{n}-0" for n in range(3)}
    assert world.proposal().ackers == ("words-acker-0", "words-acker-1")
    world.api.calls.clear()
    world.settle()
    assert world.api.writes() == []


def test_a_driver_that_waits_for_what_it_mounts_says_for_what(world: World):
    """A kubelet waits, and a pod's status has no word of it."""
    world.resource["spec"]["code"] = {"configMap": "words-code"}
    world.resource["spec"]["volumes"].append(
        {"name": "more", "mountPath": "/more", "secret": {"secretName": "words-more"}}
    )
    operator = world.settle()

    def waits() -> tuple[str, str]:
        found = world.pod("words-driver-1")
        waiting = {"waiting": {"reason": "ContainerCreating"}}
        found["status"] = {"phase": "Pending", "containerStatuses": [{"state": waiting}]}
        operator.turn(KEY)
        return world.condition("SparkRunning")

    for kind, name in (("configmaps", "words-code"), ("secrets", "words-more")):
        assert waits() == ("False", "ContainerCannotStart")
        world.api.put(f"{CORE}/{kind}/{name}", {})
    assert waits() == ("False", "Starting")
    told = [o["message"] for p, o in world.api.objects.items() if p.startswith(f"{CORE}/events/")]
    assert "pod words-driver-1: not there: ConfigMap words-code, Secret words-more" in told
    # What they hold is nothing to the operator.
    assert f"{CORE}/secrets/words-secret" in world.api.read
    assert not {f"{CORE}/configmaps/words-code", f"{CORE}/secrets/words-more"} & world.api.read


def ended_beside(code: int) -> dict[str, Any]:
    """Of a driver's pod in which what a mesh has put beside the driver runs on."""
    status = running("driver")
    began = {"startedAt": "2026-02-01T00:00:00Z"}
    ended = {**began, "finishedAt": "2026-02-01T00:00:30Z", "exitCode": code, "reason": "Error"}
    status["containerStatuses"] = [
        {"name": "proxy", "state": {"running": began}},
        {"name": "driver", "state": {"terminated": ended}},
    ]
    return status


def test_a_driver_that_ended_is_followed_though_something_beside_it_runs_on(world: World):
    operator = world.settle()
    world.pod("words-driver-1")["status"] = ended_beside(137)
    operator.turn(KEY)
    world.clock.time_s += 60
    operator.turn(KEY)
    assert "words-driver-2" in world.names("pods")
    assert "deletionTimestamp" in world.pod("words-driver-1")["metadata"]


def test_a_driver_that_drained_its_input_has_done_so_though_something_beside_it_runs_on(
    world: World,
):
    operator = world.settle()
    world.pod("words-driver-1")["status"] = ended_beside(0)
    world.settle(operator)
    assert world.resource["status"]["phase"] == "Finished"


def test_images_that_a_webhook_puts_into_pods_are_no_older_ones(world: World):
    """Of a mirror, or by their digests: pods would be made anew for ever."""
    operator = world.settle()
    for name in world.names("pods"):
        (container,) = world.pod(name)["spec"]["containers"]
        container["image"] = f"mirror.example.org/{container['image']}"
    world.settle(operator)
    assert world.condition("UpToDate") == ("True", "ImagesCurrent")


def test_a_topology_that_is_gone_is_forgotten_and_one_that_goes_is_left_alone(world: World):
    operator = world.settle()
    world.resource["metadata"]["deletionTimestamp"] = "2026-02-01T00:00:00Z"
    world.api.calls.clear()
    assert operator.turn(KEY) == Result()
    assert world.api.writes() == []
    del world.api.objects[TOPOLOGY]
    assert operator.turn(KEY) == Result(gone=True)
    world.kubelets()
    world.api.calls.clear()
    assert operator.turn(KEY) == Result(gone=True)
    assert world.api.writes() == []


def test_pods_of_a_topology_that_is_gone_end_without_waiting_for_the_garbage_collector(
    world: World,
):
    operator = world.settle()
    adopted, orphan = world.pod("words-acker-0"), world.pod("words-acker-1")
    adopted["metadata"]["ownerReferences"][0]["uid"] = "another"
    del orphan["metadata"]["ownerReferences"]
    del world.api.objects[TOPOLOGY]
    world.api.calls.clear()
    assert operator.turn(KEY) == Result(gone=True)
    ending = {n for n in world.names("pods") if "deletionTimestamp" in world.pod(n)["metadata"]}
    assert ending == {*world.names("pods")} - {"words-acker-0", "words-acker-1"}
    assert {one.rpartition("/")[0] for one in world.api.writes()} == {f"DELETE {CORE}/pods"}


def test_pods_of_a_topology_that_is_gone_are_left_by_who_did_not_know_it_or_leads_no_more(
    world: World,
):
    leads = [True]
    operator = world.settle(world.operator(lambda: leads[0]))
    leads[0] = False
    del world.api.objects[TOPOLOGY]
    world.api.calls.clear()
    assert world.operator().turn(KEY) == Result(gone=True)
    assert operator.turn(KEY) == Result(gone=True)
    assert world.api.writes() == []


SNAPSHOTS = "/apis/millrace.dev/v1alpha1/namespaces/jobs/topologysnapshots"


def snapshot(world: World, name: str, topology: str, *, periodic: str = "", **status: Any) -> None:
    """``periodic`` is the uid of the topology that took it by itself."""
    labels = {PERIODIC_LABEL: periodic} if periodic else {}
    metadata = {"name": name, "namespace": "jobs", "generation": 1, "labels": labels}
    found = {"metadata": metadata, "spec": {"topology": topology}, "status": status}
    world.api.put(f"{SNAPSHOTS}/{name}", found)


def test_very_many_snapshots_without_a_topology_are_looked_at_together(world: World):
    """Each names a topology of its own, and is heard of by itself."""
    operator, count = world.settle(), 500
    for number in range(count):
        snapshot(world, f"s{number}", f"none-{number}")
    snapshot(world, "taking", "none", phase="Taking", topologyUid="t0")
    queue: Queue = WorkQueue(world.clock)
    objects = Objects(world.api)  # type: ignore[arg-type]
    workers = Workers(queue, operator, objects, (), world.clock)
    for number in range(count):
        queue.add(Key("jobs", f"none-{number}"))

    def due() -> int:
        """Everything that is due; how often the API server was asked."""
        world.api.calls.clear()
        while queue.depth():
            key = queue.take()
            assert key is not None
            workers.turn(key)
        return sum(method == "GET" for method, _ in world.api.calls)

    asked = due()
    assert asked == count, "each key asks for its topology, and for nothing else"
    world.clock.time_s += ORPHANS_S
    pages = -(-(count + 1) // AT_ONCE)
    assert due() <= pages + 2, "all snapshots are listed once, and the topologies"
    told = {
        path.rpartition("/")[2]: found["status"]["conditions"][0]["reason"]
        for path, found in world.api.objects.items()
        if path.startswith(SNAPSHOTS) and "conditions" in found["status"]
    }
    assert told == {
        **{f"s{number}": "WaitsForTopology" for number in range(count)},
        "taking": "TopologyGone",
    }
    # And so they are at each look at everything.
    queue.add(ALL)
    turn = 20
    assert due() <= 3 * pages + turn, "listed by each look, for orphans, and for the topology"
    assert world.api.writes() == []


def test_what_is_told_of_a_snapshot_with_the_longest_name_is_an_event_of_it(world: World):
    name = "a" * 199 + "." + "b" * 53
    snapshot(world, name, "none", phase="Taking", topologyUid="t0")
    world.operator().tell_orphans("jobs")
    (event,) = world.names("events")
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", event)
    assert ".." not in event
    told = world.api.objects[f"{CORE}/events/{event}"]
    assert (told["reason"], told["involvedObject"]["name"]) == ("TopologyGone", name)


def test_what_other_topologies_take_by_themselves_is_not_read_at_a_turn(world: World):
    """Of each there may be a hundred, and as many topologies in a namespace."""
    world.settle()
    count = 10 * AT_ONCE
    for number in range(count):
        snapshot(world, f"theirs-{number}", "others", periodic="t9", phase="Ready")
    snapshot(world, "own", "words", periodic="t1", phase="Ready")
    snapshot(world, "asked-for", "words", phase="Ready")
    world.edit(restoreFrom={"snapshot": "theirs-7", "topology": "others"})
    world.api.calls.clear()
    now = datetime.fromtimestamp(world.clock.now_s(), UTC)
    seen = observe(Objects(world.api), Incarnations(world.ask), KEY, Turn(now))  # type: ignore[arg-type]
    assert seen is not None
    names = {one.name for one in seen.observed.snapshots}
    assert names == {"own", "asked-for", "theirs-7"}
    assert sum(path == SNAPSHOTS for _, path in world.api.calls) == 3, "one page of each"


def test_a_turn_says_where_the_topology_stands_until_it_is_gone(world: World):
    """Also where it writes nothing, as that of a new operator."""
    first = world.operator().turn(KEY)
    assert first.status is not None
    told = {one.type: one.status.value for one in first.status.conditions}
    assert told["Ready"] == "False"
    world.settle()
    second = world.operator().turn(KEY)
    assert second.status is not None
    assert second.status.phase == world.resource["status"]["phase"] == "Running"
    world.resource["metadata"]["deletionTimestamp"] = "2026-02-01T00:00:00Z"
    third = world.operator().turn(KEY)
    assert third.status is not None
    assert third.status.phase == "Deleting"
    assert world.resource["status"]["phase"] == "Running", "nothing is written any more"
    del world.api.objects[TOPOLOGY]
    assert world.operator().turn(KEY).status is None


def test_an_operator_that_lets_metrics_be_asked_for_opens_pods_that_run(world: World):
    """And closes them again; no pod is made anew for that."""
    world.settle()
    place = "/apis/networking.k8s.io/v1/namespaces/jobs/networkpolicies/words-acker"
    pods = {name: world.pod(name) for name in world.names("pods")}
    closed = world.api.objects[place]["spec"]["ingress"]
    for spaces in (("monitoring",), None):
        operator = world.operator()
        operator.settings = replace(operator.settings, metrics_from=spaces)
        operator.turn(KEY)
        opened = world.api.objects[place]["spec"]["ingress"]
        assert (opened != closed) is (spaces is not None)
        assert "monitoring" in json.dumps(opened) or spaces is None
        assert {name: world.pod(name) for name in world.names("pods")} == pods


def test_a_server_is_asked_once_for_each_life_of_its_container(world: World):
    world.settle()
    operator = world.settle()
    world.asked.clear()
    operator.turn(KEY)
    assert world.asked == []
    world.lives["words-state-1"] = 1
    found = world.pod("words-state-1")
    found["status"] = running("words-state-1-1")
    world.api.put(f"{CORE}/pods/words-state-1", found)
    operator.turn(KEY)
    assert world.asked == ["words-state-1"]
    assert {m.run_id for m in world.proposal().members} >= {"run-words-state-1-1"}
    assert "StateServerLost" in world.reasons()


def test_a_server_beside_which_a_mesh_has_put_a_container_is_asked_for_each_life_of_its_own(
    world: World,
):
    operator = world.settle()
    status = world.pod("words-state-1")["status"]
    (own,) = status["containerStatuses"]
    own["name"] = "state-server"
    status["containerStatuses"].insert(0, {"name": "a-proxy", "containerID": "containerd://proxy"})
    world.settle(operator)
    world.lives["words-state-1"] = 1
    own["containerID"] = "containerd://words-state-1-1"
    world.settle(operator)
    assert world.proposal().members[1].run_id == "run-words-state-1-1"


def test_a_server_that_is_slow_to_say_who_it_is_to_a_new_operator_is_who_it_was(world: World):
    """The driver would have what it holds copied elsewhere, and back."""
    world.settle()
    before = world.proposal()
    world.lives["words-state-1"] = -1
    world.settle()
    assert world.proposal() == before
    assert "StateServerLost" not in world.reasons()
    world.pod("words-state-1")["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    world.operator().turn(KEY)
    assert [m.name for m in world.proposal().members] == ["words-state-0", "words-state-2"]
    # Nobody knows who it is then.
    world.pod("words-state-1")["status"] = running("words-state-1-1")
    world.settle()
    assert [m.name for m in world.proposal().members] == ["words-state-0", "words-state-2"]
    world.lives["words-state-1"] = 1
    world.settle()
    assert world.proposal().members[1].run_id == "run-words-state-1-1"


def test_a_server_that_is_not_ready_or_on_a_silent_node_is_not_asked(world: World):
    world.settle()
    found = world.pod("words-state-0")
    found["status"] = running("words-state-0-1", "False")
    silent = str(world.pod("words-state-1")["spec"]["nodeName"])
    for name in ("words-state-1", "words-state-2"):
        world.pod(name)["spec"]["nodeName"] = silent
    world.node(silent, "Unknown")
    world.asked.clear()
    world.operator().turn(KEY)
    assert world.asked == []


def test_a_status_is_written_on_the_ground_of_what_was_read(world: World):
    operator, before = world.operator(), world.api.answer

    def edited(method: str, path: str, body: Any = None, **more: Any) -> Any:
        if path == f"{TOPOLOGY}/status":
            world.api.answer = before  # type: ignore[method-assign]
            world.edit(parallelism=3)
        return before(method, path, body, **more)

    world.api.answer = edited  # type: ignore[method-assign]
    with pytest.raises(StaleError):
        operator.turn(KEY)
    assert world.names("pods") == []
    assert "status" not in world.resource


def test_of_two_operators_at_once_one_starts_the_driver(world: World):
    """The Lease keeps them apart; if it does not, the status does."""
    one, two, before = world.operator(), world.operator(), world.api.answer

    def both(method: str, path: str, body: Any = None, **more: Any) -> Any:
        if path == f"{TOPOLOGY}/status":
            world.api.answer = before  # type: ignore[method-assign]
            two.turn(KEY)
        return before(method, path, body, **more)

    world.api.answer = both  # type: ignore[method-assign]
    with pytest.raises(StaleError):
        one.turn(KEY)
    world.settle()
    assert [name for name in world.names("pods") if "driver" in name] == ["words-driver-1"]


def test_who_leads_no_more_does_nothing_more(world: World):
    left = iter([True] * 5)
    operator = world.operator(lambda: next(left, False))
    with pytest.raises(NotLeadingError):
        operator.turn(KEY)
    assert len(world.api.writes()) == 5


class Dying:
    """An API server that an operator does not outlive: the answer to one write never comes."""

    def __init__(self, api: MemoryApi, writes: int) -> None:
        self._answer = api.answer
        self._left = writes

    def __call__(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        answer = self._answer(method, path, body, **more)
        self._left -= method != "GET"
        if self._left < 0:
            raise HomeAwayError("the operator died")
        return answer


def test_whatever_write_an_operator_dies_behind_another_goes_on():
    """Behind each write of the first turn, a new operator begins."""
    writes, whole = 0, False
    while not whole:
        world = World()
        before = world.api.answer
        world.api.answer = Dying(world.api, writes)  # type: ignore[method-assign]
        try:
            world.operator().turn(KEY)
            whole = True
        except HomeAwayError:
            writes += 1
        world.api.answer = before  # type: ignore[method-assign]
        world.settle()
        assert len([name for name in world.names("pods") if "driver" in name]) == 1
        assert world.condition("Ready") == ("True", "AllReady")
    assert writes > 25


def test_a_pod_that_is_refused_holds_up_no_other_and_is_told(world: World):
    world.api.refused["words-state-1"] = (403, "exceeded quota: pods=5")
    operator = world.operator()
    assert operator.turn(KEY).refused
    assert "words-state-2" in world.names("pods")
    assert operator.turn(KEY).refused
    assert world.condition("StateAvailable") == ("False", "PodRefused")
    assert "PodRefused" in world.reasons()
    world.api.refused.clear()
    assert not operator.turn(KEY).refused
    world.settle(operator)
    assert world.condition("StateAvailable")[0] == "True"


def test_what_others_need_first_ends_the_plan_when_it_is_refused(world: World):
    world.api.refused["words-view"] = (403, "exceeded quota: configmaps=1")
    operator = world.operator()
    with pytest.raises(RefusedError, match=r"ConfigMap words-view.*exceeded quota"):
        operator.turn(KEY)
    assert world.names("pods") == []
    operator.tell(KEY, MillraceError("ConfigMap words-view: exceeded quota"))
    operator.tell(KEY, MillraceError("ConfigMap words-view: exceeded quota"))
    events = world.events()
    assert [(e["reason"], e["count"], e["type"]) for e in events] == [
        ("ReconcileFailed", 2, "Warning")
    ]


def test_a_budget_that_is_refused_holds_up_no_pod(world: World):
    """Policies of many clusters take none that allows no disruption."""
    world.api.refused["poddisruptionbudgets/words-state"] = (403, "allow one disruption")
    operator = world.operator()
    for _ in range(6):
        with pytest.raises(RefusedError, match=r"words-state.*allow one disruption"):
            operator.turn(KEY)
        world.kubelets()
    del world.api.objects[f"{CORE}/pods/words-driver-1"]
    with pytest.raises(RefusedError, match="allow one disruption"):
        operator.turn(KEY)
    assert "words-driver-2" in world.names("pods")


STATUS = f"PATCH {TOPOLOGY}/status"


def failing(world: World, operator: Reconciler) -> list[str]:
    """A turn that fails and is told of, as by those who work the queue off: what was written."""
    world.clock.time_s += 1
    world.api.calls.clear()
    with pytest.raises(MillraceError) as failed:
        operator.turn(KEY)
    operator.tell(KEY, failed.value)
    return world.api.writes()


def assert_stalls(world: World, text: str) -> None:
    """All that a user may look at or wait for says so."""
    status = world.resource["status"]
    assert world.condition("Ready") == ("False", "ReconcileFailed")
    assert world.condition("Stalled") == ("True", "ReconcileFailed")
    assert world.condition("Reconciling") == ("False", "Settled")
    assert status["phase"] == "Stalled"
    assert status["observedGeneration"] == world.resource["metadata"]["generation"]
    told = [c["message"] for c in status["conditions"] if c["type"] in ("Ready", "Stalled")]
    assert all(text in one for one in (*told, status["message"]))


@pytest.mark.parametrize("refused", ["configmaps/words-view", "services/words-state"])
def test_what_ends_every_turn_is_told_by_conditions_until_one_comes_to_its_end(
    world: World, refused: str
):
    world.api.refused[refused] = (403, "exceeded quota: one")
    operator = world.operator()
    for number in range(12):
        assert (STATUS in failing(world, operator)) is (number == 0), "nothing is told twice"
        assert_stalls(world, "exceeded quota: one")
    # What could not be begun has no number.
    assert "driver" not in world.resource["status"]
    assert not {"DriverStarted", "DriverGone"} & {*world.reasons()}
    world.api.refused.clear()
    operator.turn(KEY)
    assert world.condition("Stalled") == ("False", "NothingStalls")
    world.settle(operator)
    assert world.condition("Ready") == ("True", "AllReady")
    assert [name for name in world.names("pods") if "driver" in name] == ["words-driver-1"]


def test_a_topology_that_cannot_be_looked_at_is_not_said_to_be_ready(world: World):
    operator, before = world.settle(), world.api.answer
    kept = {c["type"]: c for c in world.resource["status"]["conditions"]}
    del world.api.objects[f"{CORE}/pods/words-driver-1"]

    def forbidden(method: str, path: str, body: Any = None, **more: Any) -> Any:
        if method == "GET" and path == SNAPSHOTS:
            return 403, {"message": "cannot list topologysnapshots"}
        return before(method, path, body, **more)

    world.api.answer = forbidden  # type: ignore[method-assign]
    for number in range(3):
        assert (STATUS in failing(world, operator)) is (number == 0)
        assert_stalls(world, "cannot list topologysnapshots")
    for told in world.resource["status"]["conditions"]:
        if told["type"] not in ("Ready", "Stalled"):
            assert told == kept[told["type"]], "the rest stays as it was"
    world.api.answer = before  # type: ignore[method-assign]
    world.settle(operator)
    assert world.condition("Ready") == ("True", "AllReady")
    assert "words-driver-2" in world.names("pods")


def test_a_turn_that_fails_late_does_not_say_first_that_all_is_well(world: World):
    """Nor does that of a new operator."""
    world.api.refused["poddisruptionbudgets/words-state"] = (403, "allow one disruption")
    operator = world.operator()
    for number in range(6):
        failing(world, operator)
        world.kubelets()
        if number > 0:
            world.driver()
    for one in (operator, world.operator()):
        assert STATUS not in failing(world, one)
        assert_stalls(world, "allow one disruption")
    assert world.condition("SparkRunning") == ("True", "DriverRunning")
    assert "AllReady" not in world.reasons()
    world.api.refused.clear()
    operator.turn(KEY)
    assert world.condition("Ready") == ("True", "AllReady")
    assert "AllReady" in world.reasons()


def test_a_pod_that_may_not_be_deleted_holds_up_no_driver(world: World):
    operator, before = world.settle(), world.api.answer
    world.edit(ackers={"replicas": 1})
    del world.api.objects[f"{CORE}/pods/words-driver-1"]

    def refused(method: str, path: str, body: Any = None, **more: Any) -> Any:
        if method == "DELETE" and path.endswith("words-acker-1"):
            return 403, {"message": "not on a Friday"}
        return before(method, path, body, **more)

    world.api.answer = refused  # type: ignore[method-assign]
    for _ in range(3):
        failing(world, operator)
        assert_stalls(world, "not on a Friday")
    assert [name for name in world.names("pods") if "driver" in name] == ["words-driver-2"]
    assert world.resource["status"]["driver"]["number"] == 2


def test_a_failure_of_the_api_server_itself_is_told_by_conditions_when_it_lasts(world: World):
    operator = world.settle()
    away = HomeAwayError("500 failed calling webhook", HTTPStatus.INTERNAL_SERVER_ERROR)
    for _ in range(AWAY_TURNS - 1):
        assert operator.tell(KEY, away) is None
        assert world.condition("Ready") == ("True", "AllReady")
    operator.tell(KEY, away)
    assert_stalls(world, "failed calling webhook")
    operator.turn(KEY)
    assert world.condition("Ready") == ("True", "AllReady")
    assert operator.tell(KEY, away) is None, "they are to be in a row"


@pytest.mark.parametrize("why", ["paused", "deleted", "unread"])
def test_a_status_that_is_to_stay_is_left_alone_though_turns_fail(world: World, why: str):
    operator = world.settle()
    found = world.resource
    match why:
        case "paused":
            found["metadata"]["annotations"] = {PAUSED: "true"}
        case "deleted":
            found["metadata"]["deletionTimestamp"] = "2026-02-01T00:00:00Z"
        case _:
            found["status"]["driver"]["number"] = "of a newer release"
    before = copy.deepcopy(found["status"])
    operator.tell(KEY, MillraceError("cannot list pods"))
    assert world.resource["status"] == before
    assert "ReconcileFailed" in world.reasons()


def test_who_leads_no_more_tells_of_a_failure_by_no_condition(world: World):
    world.settle()
    world.operator(lambda: False).tell(KEY, MillraceError("cannot list pods"))
    assert world.condition("Ready") == ("True", "AllReady")


@pytest.mark.parametrize("path", [f"{CORE}/configmaps/words-view", f"{CORE}/services/words-state"])
def test_what_belongs_to_others_is_neither_adopted_nor_changed(world: World, path: str):
    name = path.rpartition("/")[2]
    labels = {"millrace.dev/topology": "words"}
    mine = {"metadata": {"name": name, "namespace": "jobs", "labels": labels}, "data": {"a": "b"}}
    before = dict(world.api.put(path, mine))
    with pytest.raises(RefusedError, match=f"{name}.*belongs to something else"):
        world.operator().turn(KEY)
    assert world.api.objects[path] == before


def test_a_secret_of_others_lends_nobody_its_password(world: World):
    path = f"{CORE}/secrets/words-secret"
    before = dict(world.api.put(path, {"metadata": {"name": "words-secret", "namespace": "jobs"}}))
    world.operator().turn(KEY)
    assert world.condition("Stalled") == ("True", "NamesTaken")
    assert world.api.objects[path] == before
    assert world.names("pods") == []


def test_what_an_earlier_topology_of_the_name_left_behind_is_waited_for(world: World):
    world.settle()
    del world.api.objects[TOPOLOGY]
    world.topology("t2")
    left = {path: dict(found) for path, found in world.api.objects.items() if path != TOPOLOGY}
    result = world.operator().turn(KEY)
    assert result.again_s is not None
    assert world.condition("Stalled") == ("True", "NamesTaken")
    events = f"{CORE}/events/"
    kept = {p: f for p, f in world.api.objects.items() if p != TOPOLOGY and events not in p}
    assert kept == {path: found for path, found in left.items() if events not in path}
    collected = [p for p in left if "/nodes/" not in p and events not in p]
    for path in collected:
        # What the API server's collector does; one pod is slower than all the rest.
        if not path.endswith("words-state-1"):
            del world.api.objects[path]
    world.operator().turn(KEY)
    assert "Pod words-state-1 belong" in world.resource["status"]["message"]
    assert world.names("pods") == ["words-state-1"]
    del world.api.objects[f"{CORE}/pods/words-state-1"]
    world.settle()
    assert world.condition("Ready")[0] == "True"


def test_what_a_user_labels_as_belonging_to_a_topology_is_in_nobodys_way(world: World):
    labels = {"millrace.dev/topology": "words"}
    metadata = {"name": "words-code", "namespace": "jobs", "labels": labels}
    world.api.put(f"{CORE}/configmaps/words-code", {"metadata": metadata, "data": {"a": "b"}})
    world.settle()
    assert world.condition("Ready")[0] == "True"
    assert "words-code" in world.names("configmaps")


def test_executors_are_those_of_the_own_drivers(world: World):
    world.settle()
    labels = {"millrace.dev/topology": "words", "app.kubernetes.io/component": "executor"}
    own = world.pod("words-driver-1")["metadata"]["uid"]
    owners = {
        "words-driver-1-exec-1": own,
        "words-driver-1-exec-2": "u0",
        "words-driver-2-exec-1": own,
    }
    for name, uid in owners.items():
        metadata = {"name": name, "namespace": "jobs", "labels": labels}
        metadata["ownerReferences"] = [{"kind": "Pod", "name": "d", "uid": uid}]
        found = {"metadata": metadata, "spec": {"nodeName": "node-0"}, "status": running(name)}
        world.api.put(f"{CORE}/pods/{name}", found)
    world.operator().turn(KEY)
    assert world.resource["status"]["executors"]["ready"] == 1


def test_a_deletion_is_of_the_very_pod_that_was_seen(world: World):
    operator, before = world.settle(), world.api.answer
    world.edit(ackers={"replicas": 1})

    def changed(method: str, path: str, body: Any = None, **more: Any) -> Any:
        if method == "DELETE" and path.endswith("words-acker-1"):
            world.api.answer = before  # type: ignore[method-assign]
            world.api.put(path, world.pod("words-acker-1"))
        return before(method, path, body, **more)

    world.api.answer = changed  # type: ignore[method-assign]
    with pytest.raises(StaleError):
        operator.turn(KEY)
    assert "deletionTimestamp" not in world.pod("words-acker-1")["metadata"]
    operator.turn(KEY)
    assert "deletionTimestamp" in world.pod("words-acker-1")["metadata"]


def test_a_driver_does_not_wait_for_pods_of_a_lost_node_that_change_meanwhile(world: World):
    """The status speaks of it already: it would be taken for one that is gone again."""
    operator, before = world.settle(), world.api.answer
    for number in range(4):
        world.node(f"other-{number}", "True")
    for number in (1, 2):
        world.node(f"node-{number}", "Unknown")
    changed: list[str] = []

    def marked(method: str, path: str, body: Any = None, **more: Any) -> Any:
        """The cluster notes in each pod that its node is lost, just before it is deleted."""
        name = path.rpartition("/")[2]
        if method == "DELETE" and name not in changed:
            changed.append(name)
            world.api.put(path, world.pod(name))
        return before(method, path, body, **more)

    world.api.answer = marked  # type: ignore[method-assign]
    with pytest.raises(StaleError):
        operator.turn(KEY)
    assert "words-acker-0" in changed
    assert "words-driver-2" in world.names("pods")
    operator.turn(KEY)
    assert world.resource["status"]["driver"]["number"] == 2
    assert world.reasons().count("DriverStarted") == 2
    assert "words-acker-0" not in world.names("pods")


def test_another_pod_in_the_place_of_one_to_delete_is_left_alone(world: World):
    objects = Objects(world.api)  # type: ignore[arg-type]
    world.settle()
    objects.delete(f"{CORE}/pods/words-acker-1", "another", "7")
    objects.delete(f"{CORE}/pods/words-acker-9", "gone", "7")
    assert "words-acker-1" in world.names("pods")


def test_pods_of_a_node_that_is_gone_are_deleted_without_it(world: World):
    operator = world.settle()
    lost = str(world.pod("words-driver-1")["spec"]["nodeName"])
    del world.api.objects[f"/api/v1/nodes/{lost}"]
    for name in world.names("pods"):
        if name != "words-driver-1":
            world.pod(name)["spec"]["nodeName"] = f"node-{(int(lost[-1]) + 1) % 3}"
    operator.turn(KEY)
    assert [n for n in world.names("pods") if "driver" in n] == ["words-driver-2"]
    assert world.resource["status"]["driver"]["number"] == 2
    assert "DriverGone" in world.reasons()


def test_requests_beside_the_proposal_are_left_as_they_are(world: World):
    operator = world.settle()
    inbox = world.api.objects[f"{CORE}/configmaps/words-inbox"]
    inbox["data"]["request.1"] = "mine"
    world.edit(ackers={"replicas": 1})
    operator.turn(KEY)
    assert world.proposal().ackers == ("words-acker-0",)
    data = world.api.objects[f"{CORE}/configmaps/words-inbox"]["data"]
    assert data["request.1"] == "mine"


INBOX = f"{CORE}/configmaps/words-inbox"


def between_check_and_write(world: World, happens: Callable[[], object], times: int = 1) -> None:
    """What happens just before a proposal is written, the first ``times``."""
    before, left = world.api.answer, [times]

    def answered(method: str, path: str, body: Any = None, **more: Any) -> Any:
        proposes = method == "PATCH" and path == INBOX and "proposal" in body["data"]
        if proposes and left[0]:
            left[0] -= 1
            happens()
        return before(method, path, body, **more)

    world.api.answer = answered  # type: ignore[method-assign]


def test_an_operator_that_stood_still_proposes_nothing_over_a_newer_proposal(world: World):
    one, two = world.settle(), world.operator()

    def ready(number: int, holds: bool) -> None:
        name = f"words-acker-{number}"
        world.pod(name)["status"] = running(name, str(holds))

    def another_one_leads() -> None:
        ready(1, True)
        ready(0, False)
        two.turn(KEY)

    number = world.proposal().number
    ready(1, False)
    between_check_and_write(world, another_one_leads)
    with pytest.raises(StaleError, match="another proposal"):
        one.turn(KEY)
    newer = world.proposal()
    assert (newer.ackers, newer.number) == (("words-acker-1",), number + 1)


def ask(world: World, token: str) -> None:
    inbox = world.api.objects[INBOX]
    world.api.put(INBOX, {**inbox, "data": {**inbox["data"], f"request.{token}": "mine"}})


def test_a_request_that_comes_as_a_proposal_is_written_holds_it_up_no_longer(world: World):
    operator = world.settle()
    world.edit(ackers={"replicas": 1})
    between_check_and_write(world, lambda: ask(world, "1"), times=2)
    operator.turn(KEY)
    assert world.proposal().ackers == ("words-acker-0",)
    assert world.api.objects[INBOX]["data"]["request.1"] == "mine"


def test_requests_that_come_all_the_time_end_a_turn_and_not_its_work(world: World):
    operator = world.settle()
    world.edit(ackers={"replicas": 1})
    tokens = iter(range(100))
    between_check_and_write(world, lambda: ask(world, str(next(tokens))), times=3)
    with pytest.raises(StaleError):
        operator.turn(KEY)
    operator.turn(KEY)
    assert world.proposal().ackers == ("words-acker-0",)


def test_an_inbox_that_is_gone_is_made_before_anything_is_proposed(world: World):
    operator = world.settle()
    world.edit(ackers={"replicas": 1})
    between_check_and_write(world, lambda: world.api.objects.pop(INBOX))
    with pytest.raises(StaleError):
        operator.turn(KEY)
    operator.turn(KEY)
    assert world.proposal().ackers == ("words-acker-0",)


def test_nothing_is_done_on_the_ground_of_a_view_that_cannot_be_read(world: World):
    operator = world.settle()
    world.api.objects[f"{CORE}/configmaps/words-view"]["data"]["view"] = "{"
    world.edit(stateServers={"replicas": 2, "copies": 2})
    world.api.calls.clear()
    with pytest.raises(MillraceError):
        operator.turn(KEY)
    assert world.api.writes() == []


def test_children_that_somebody_edited_are_put_right_in_time(world: World):
    operator = world.settle()
    service = world.api.objects[f"{CORE}/services/words-state"]
    service["spec"]["clusterIP"] = "10.1.2.3"
    operator.turn(KEY)
    assert service["spec"]["clusterIP"] == "10.1.2.3"
    world.clock.time_s += RESYNC_S
    operator.turn(KEY)
    assert world.api.objects[f"{CORE}/services/words-state"]["spec"]["clusterIP"] == "None"


def test_an_operator_that_starts_looks_before_it_applies_what_is_unchanged(world: World):
    """Each topology's children come when it is their time, the last ones after 10 minutes."""
    world.settle()
    service = world.api.objects[f"{CORE}/services/words-state"]
    service["spec"]["clusterIP"] = "10.1.2.3"
    operator = world.operator()
    world.api.calls.clear()
    operator.turn(KEY)
    assert world.api.writes() == []
    begin_s, step_s = world.clock.time_s, RESYNC_S / 100
    while world.api.objects[f"{CORE}/services/words-state"]["spec"]["clusterIP"] != "None":
        world.clock.time_s += step_s
        assert world.clock.time_s - begin_s <= RESYNC_S + step_s
        operator.turn(KEY)
    shares = [_share(Key("jobs", f"words-{number}")) for number in range(200)]
    tenths = [sum(n <= 10 * share < n + 1 for share in shares) for n in range(10)]
    assert sum(tenths) == 200
    assert min(tenths) > 5


def test_a_child_that_is_gone_is_made_again(world: World):
    operator = world.settle()
    del world.api.objects[f"{CORE}/services/words-state"]
    operator.turn(KEY)
    assert "words-state" in world.names("services")


def test_lists_are_read_to_their_end(world: World):
    for number in range(7):
        name = f"t{number}"
        path = TOPOLOGY.replace("words", name).replace("jobs", f"space{number % 2}")
        metadata = {"name": name, "namespace": f"space{number % 2}"}
        world.api.put(path, {"metadata": metadata, "spec": {}})
    world.api.page = 3
    objects = Objects(world.api)  # type: ignore[arg-type]
    assert len(topologies(objects, ())) == 8
    assert sorted(topologies(objects, ["space1", "jobs"])) == [
        Key("jobs", "words"),
        *(Key("space1", f"t{n}") for n in (1, 3, 5)),
    ]


def test_the_password_is_not_kept_in_what_is_observed(world: World):
    world.settle()
    objects = Objects(world.api)  # type: ignore[arg-type]
    seen = observe(objects, Incarnations(world.ask), KEY, Turn(datetime.now(UTC)))
    assert "s" * 48 not in repr(seen)


def tell(world: World, *told: tuple[str, RunEvent]) -> None:
    """The journal as a driver keeps it."""
    lines = "".join(f"{name} {codec.encode_line(event)}" for name, event in told)
    world.api.objects[f"{CORE}/configmaps/words-journal"]["data"] = {"events": lines}


def test_what_the_driver_tells_becomes_events_of_the_topology_once(world: World):
    operator, now_s = world.settle(), world.clock.now_s()
    old = RunEvent(now_s - 7200, "Restarted", "long ago")
    lost = RunEvent(now_s - 5, "MemberLost", "words-state-1 is gone", 7, warning=True)
    tell(world, ("a-1", old), ("a-2", lost))
    operator.turn(KEY)
    world.api.calls.clear()
    operator.turn(KEY)
    assert world.api.writes() == []
    world.operator().turn(KEY)
    events = {
        p.rpartition("/")[2]: o for p, o in world.api.objects.items() if "/events/words.a-" in p
    }
    assert list(events) == ["words.a-2"]
    event = events["words.a-2"]
    assert (event["reason"], event["type"]) == ("MemberLost", "Warning")
    assert event["message"] == "words-state-1 is gone"
    assert event["count"] == 1
    assert event["involvedObject"]["name"] == "words"


def test_of_very_many_events_the_newest_are_passed_on(world: World):
    operator, now_s = world.settle(), world.clock.now_s()
    told = [(f"a-{n:03}", RunEvent(now_s, "Replayed", f"root {n}")) for n in range(200)]
    tell(world, *told)
    operator.turn(KEY)
    passed = [p for p in world.api.objects if "/events/words.a-" in p]
    assert len(passed) == MOST_TOLD
    assert f"{CORE}/events/words.a-199" in passed


def test_a_surplus_server_is_deleted_as_soon_as_the_driver_follows_a_proposal_without_it(
    world: World,
):
    """A driver that read the proposal before may be about to take it into the view."""
    operator = world.settle()
    world.edit(stateServers={"replicas": 4, "copies": 2})
    operator.turn(KEY)
    world.kubelets()
    operator.turn(KEY)
    assert len(world.proposal().members) == 4
    world.edit(stateServers={"replicas": 3, "copies": 2})
    result = operator.turn(KEY)
    assert len(world.proposal().members) == 3
    assert result.again_s == PROPOSED_S
    operator.turn(KEY)
    assert "deletionTimestamp" not in world.pod("words-state-3")["metadata"]
    world.driver()
    operator.turn(KEY)
    assert "deletionTimestamp" in world.pod("words-state-3")["metadata"]


def test_silent_nodes_are_counted_among_all_of_the_cluster(world: World):
    operator = world.settle()
    silent = str(world.pod("words-driver-1")["spec"]["nodeName"])
    for name in world.names("pods"):
        world.pod(name)["spec"]["nodeName"] = silent
    for number in range(9):
        world.node(f"other-{number}", "Unknown" if number < 6 else "True")
    world.node(silent, "Unknown")
    operator.turn(KEY)
    assert "words-driver-2" not in world.names("pods")
    for number in range(3):
        world.node(f"other-{number}", "True")
    operator.turn(KEY)
    assert "words-driver-2" in world.names("pods")


def test_an_operator_that_may_not_ask_for_nodes_takes_no_pod_for_lost(world: World):
    world.settle()
    nodes = [path for path in world.api.objects if path.startswith("/api/v1/nodes/")]
    for path in nodes:
        del world.api.objects[path]
    before = world.api.answer

    def forbidden(method: str, path: str, body: Any = None, **more: Any) -> Any:
        if path.startswith("/api/v1/nodes/"):
            return 403, {"message": "nodes is forbidden"}
        return before(method, path, body, **more)

    world.api.answer = forbidden  # type: ignore[method-assign]
    world.settle(world.operator())
    assert world.condition("Ready") == ("True", "AllReady")
    assert [n for n in world.names("pods") if "driver" in n] == ["words-driver-1"]
    assert len(world.proposal().members) == 3


def test_of_a_driver_that_is_refused_the_refusal_is_told_until_one_is_created(world: World):
    operator = world.settle()
    world.api.refused.update({f"pods/words-driver-{n}": (403, "quota") for n in (2, 3)})
    del world.api.objects[f"{CORE}/pods/words-driver-1"]

    def until_tried(number: int) -> None:
        for _ in range(5):
            operator.turn(KEY)
            if world.resource["status"]["driver"]["number"] == number:
                return
            world.clock.time_s += 1
        raise AssertionError(world.resource["status"]["driver"])

    until_tried(2)
    for _ in range(3):
        # While it pauses nothing is asked for, and the reason is the same.
        operator.turn(KEY)
        assert world.condition("SparkRunning") == ("False", "PodRefused")
    world.clock.time_s += 60
    until_tried(3)
    operator.turn(KEY)
    assert "words-driver-3" in world.resource["status"]["message"]
    world.clock.time_s += 60
    until_tried(4)
    world.kubelets()
    operator.turn(KEY)
    assert world.condition("Ready") == ("True", "AllReady")
    assert "DriverGone" in world.reasons()


def test_a_driver_whose_config_map_is_refused_is_one_that_is_refused(world: World):
    operator = world.settle()
    quota = (403, "exceeded quota: configmaps=5")
    world.api.refused.update({f"configmaps/words-driver-{n}": quota for n in range(2, 99)})
    del world.api.objects[f"{CORE}/pods/words-driver-1"]
    del world.api.objects[f"{CORE}/pods/words-acker-1"]
    for _ in range(12):
        assert operator.turn(KEY) is not None
    # It waits for its pause, and no other pod waits for it.
    assert world.resource["status"]["driver"]["number"] < 5
    assert world.condition("SparkRunning") == ("False", "PodRefused")
    assert "its ConfigMap: exceeded quota" in world.resource["status"]["message"]
    assert "words-acker-1" in world.names("pods")
    assert not [name for name in world.names("pods") if "driver" in name]
    events = world.events()
    told = [e for e in events if e["reason"] == "DriverStarted" and "driver-1 " not in e["message"]]
    assert len(told) == 1
    world.api.refused.clear()
    world.clock.time_s += 60
    world.settle(operator)
    assert world.condition("Ready") == ("True", "AllReady")


def test_a_driver_at_which_a_webhook_fails_is_one_that_is_refused(world: World):
    operator, before = world.settle(), world.api.answer
    del world.api.objects[f"{CORE}/pods/words-driver-1"]
    del world.api.objects[f"{CORE}/pods/words-acker-1"]
    said = "500 failed calling webhook"

    def failing(method: str, path: str, body: Any = None, **more: Any) -> Any:
        driver = method == "POST" and "-driver-" in body["metadata"]["name"]
        if driver and path == f"{CORE}/pods":
            raise HomeAwayError(said, HTTPStatus.INTERNAL_SERVER_ERROR)
        return before(method, path, body, **more)

    world.api.answer = failing  # type: ignore[method-assign]
    assert any(operator.turn(KEY).refused for _ in range(5))
    for _ in range(60):
        operator.turn(KEY)
        assert world.condition("SparkRunning") == ("False", "PodRefused")
        world.clock.time_s += 5
    assert said in world.resource["status"]["message"]
    assert "words-acker-1" in world.names("pods")
    assert world.reasons().count("PodRefused") > 0
    events = world.events()
    (gone,) = (event for event in events if event["reason"] == "DriverGone")
    assert gone["message"].startswith("driver 1 "), "the one that was there"
    world.api.answer = before  # type: ignore[method-assign]
    world.clock.time_s += 60
    world.settle(operator)
    assert world.condition("Ready") == ("True", "AllReady")


def test_a_driver_that_is_there_though_the_api_server_failed_is_not_refused(world: World):
    operator, before = world.settle(), world.api.answer
    del world.api.objects[f"{CORE}/pods/words-driver-1"]

    def failing(method: str, path: str, body: Any = None, **more: Any) -> Any:
        answer = before(method, path, body, **more)
        if (method, path) == ("POST", f"{CORE}/pods"):
            raise HomeAwayError("500 etcd", HTTPStatus.INTERNAL_SERVER_ERROR)
        return answer

    world.api.answer = failing  # type: ignore[method-assign]
    while "words-driver-2" not in world.names("pods"):
        operator.turn(KEY)
        world.clock.time_s += 1
    world.api.answer = before  # type: ignore[method-assign]
    world.settle(operator)
    assert world.condition("Ready") == ("True", "AllReady")
    del world.api.objects[f"{CORE}/pods/words-driver-2"]
    world.settle(operator)
    assert "driver 2 is not there any more" in str(world.api.objects.values())


def test_a_driver_that_is_not_made_as_a_quota_changes_is_asked_for_again(world: World):
    operator, before = world.settle(), world.api.answer
    del world.api.objects[f"{CORE}/pods/words-driver-1"]
    tried: list[str] = []

    def busy(method: str, path: str, body: Any = None, **more: Any) -> Any:
        if (method, path) == ("POST", f"{CORE}/pods") and not tried:
            tried.append(body["metadata"]["name"])
            return 409, {"reason": "Conflict", "message": "resourcequotas: has been modified"}
        return before(method, path, body, **more)

    world.api.answer = busy  # type: ignore[method-assign]
    results = []
    while not tried:
        results.append(operator.turn(KEY))
        world.clock.time_s += 1
    assert results[-1].refused
    world.settle(operator)
    assert [name for name in world.names("pods") if "driver" in name] == ["words-driver-3"]
    assert tried == ["words-driver-2"]
    assert world.reasons().count("DriverGone") == 1, "of the one that was there"


def test_only_pods_that_are_called_as_state_servers_are_asked_who_they_are(world: World):
    """Each that does not answer takes time, and whoever may make pods gives them any labels."""
    world.settle()
    found = world.pod("words-state-0")
    for name in ("mine", "words-state-x", "words-state-00", "words-state-64", "other-state-0"):
        metadata = {**found["metadata"], "name": name, "uid": f"u-{name}"}
        world.api.put(f"{CORE}/pods/{name}", {**found, "metadata": metadata})
    world.asked.clear()
    seen = observe(
        Objects(world.api),  # type: ignore[arg-type]
        Incarnations(world.ask),
        Key("jobs", "words"),
        Turn(datetime.now(UTC)),
    )
    assert seen is not None
    assert sorted(world.asked) == ["words-state-0", "words-state-1", "words-state-2"]


def test_an_event_of_no_time_is_told_as_of_now(world: World):
    """What the driver's code may write stops no turn."""
    world.settle()
    journal = world.api.objects[f"{CORE}/configmaps/words-journal"]
    told = RunEvent(1e300, "DriverRecovered", "execution 1 goes on")
    journal["data"]["events"] = f"e1 {codec.encode_line(told)}"
    world.api.put(f"{CORE}/configmaps/words-journal", journal)
    world.settle()
    assert "DriverRecovered" in world.reasons()


def test_passwords_of_members_are_written_once_under_the_version_that_was_read(world: World):
    path = f"{CORE}/secrets/words-secret"
    world.settle()
    made = world.api.objects[path]["data"]
    assert world.operator().turn(KEY) == Result()
    # As an operator of a release without a root has made it, changed by somebody meanwhile.
    held = world.api.objects[path]
    older = {key: made[key] for key in ("password", "run-key")}
    world.api.put(path, {**held, "data": older})
    first, asked = world.api.answer, list[str]()

    def changed(method: str, where: str, *rest: Any, **more: Any) -> Any:
        if (method, where) == ("PATCH", path) and not asked:
            asked.append(where)
            found = world.api.objects[path]
            world.api.put(path, {**found, "data": {**found["data"], "own": "eA=="}})
        return first(method, where, *rest, **more)

    world.api.answer = changed  # type: ignore[method-assign]
    with pytest.raises(StaleError):
        world.operator().turn(KEY)
    assert world.api.objects[path]["data"] == {**older, "own": "eA=="}
    world.operator().turn(KEY)
    assert world.api.objects[path]["data"] == {**made, "own": "eA=="}
    before = len(world.api.writes())
    world.operator().turn(KEY)
    assert len(world.api.writes()) == before


def test_a_secret_that_cannot_be_changed_holds_pods_up_that_would_need_it(world: World):
    path = f"{CORE}/secrets/words-secret"
    world.settle()
    held = world.api.objects[path]
    older = {key: held["data"][key] for key in ("password", "run-key")}
    world.api.put(path, {**held, "data": older})
    del world.api.objects[f"{CORE}/pods/words-state-1"]
    first = world.api.answer

    def refused(method: str, where: str, *rest: Any, **more: Any) -> Any:
        if (method, where) == ("PATCH", path):
            return 403, {"message": "cannot patch secrets"}
        return first(method, where, *rest, **more)

    world.api.answer = refused  # type: ignore[method-assign]
    with pytest.raises(RefusedError, match=r"words-secret.*cannot patch secrets") as told:
        world.operator().turn(KEY)
    assert not any(text in str(told.value) for text in ("s" * 48, held["data"]["root"]))
    assert "words-state-1" not in world.names("pods")
    world.api.answer = first  # type: ignore[method-assign]
    world.operator().turn(KEY)
    assert "words-state-1" in world.names("pods")


NO_ANSWER = HomeAwayError("POST: no answer (Read timed out.)")
WEBHOOK = "failed calling webhook: context deadline exceeded"


@pytest.mark.parametrize("failure", [(15, NO_ANSWER), (10, (500, {"message": WEBHOOK}))])
@pytest.mark.parametrize("waits", [("acker", "driver"), ("acker",), ("driver",)])
def test_a_webhook_that_hangs_is_told_and_holds_up_no_other_kind(
    world: World, waits: tuple[str, ...], failure: tuple[int, Any]
):
    took_s, answer = failure
    operator, before = world.settle(), world.api.answer
    for name in ("driver-1", "acker-0", "acker-1", "state-1"):
        del world.api.objects[f"{CORE}/pods/words-{name}"]
    asked: list[str] = []

    def hanging(method: str, path: str, body: Any = None, **more: Any) -> Any:
        if (method, path) == ("POST", f"{CORE}/pods"):
            role = body["metadata"]["name"].split("-")[1]
            assert more["answer_s"] > 10, "webhooks have ten seconds"
            if role in waits:
                asked.append(role)
                world.clock.time_s += took_s
                if isinstance(answer, Exception):
                    raise answer
                return answer
        return before(method, path, body, **more)

    world.api.answer = hanging  # type: ignore[method-assign]
    operator.turn(KEY)
    assert sorted(asked) == sorted(waits), "each waits once"
    for _ in range(20):
        world.clock.time_s += 10
        world.kubelets()
        operator.turn(KEY)
    there = {name.split("-")[1] for name in world.names("pods")}
    assert there == {"acker", "driver", "state"} - {*waits}
    assert world.condition("Ready") == ("False", "PodRefused")
    told = "admission webhook hangs" if answer is NO_ANSWER else WEBHOOK
    assert told in world.resource["status"]["message"]
    assert world.resource["status"]["driver"]["number"] < 20
    world.api.answer = before  # type: ignore[method-assign]
    for _ in range(3):
        world.clock.time_s += 60
        world.settle(operator)
    assert world.condition("Ready") == ("True", "AllReady")


def test_a_driver_is_told_nothing_that_is_not_kept(world: World):
    operator, before = world.settle(), world.api.answer
    kept = f"{CORE}/configmaps/words-accepted"

    def frozen(method: str, path: str, body: Any = None, **more: Any) -> Any:
        if (method, path) == ("PATCH", kept):
            return 403, {"message": "no changes on a Friday"}
        return before(method, path, body, **more)

    def accepted() -> str:
        return str(world.api.objects[kept]["data"])

    world.api.answer = frozen  # type: ignore[method-assign]
    was, spec = accepted(), copy.deepcopy(world.resource["spec"])
    more = {"name": "more", "inputs": [{"from": "split"}], "files": {"path": "more"}}
    world.edit(sinks=[*spec["sinks"], more])
    for _ in range(4):
        failing(world, operator)
        assert_stalls(world, "no changes on a Friday")
        world.clock.time_s += 30
    assert (accepted(), world.resource["status"]["driver"]["number"]) == (was, 1)
    # Once the edit is taken back nothing of it is left, and pods are replaced.
    world.edit(sinks=spec["sinks"])
    world.clock.time_s += RESYNC_S
    del world.api.objects[f"{CORE}/pods/words-acker-1"]
    operator.turn(KEY)
    assert "words-acker-1" in world.names("pods")
    world.api.answer = before  # type: ignore[method-assign]
    world.settle(operator)
    assert world.condition("Ready") == ("True", "AllReady")


def maps_of_drivers(world: World) -> list[str]:
    return [name for name in world.names("configmaps") if "-driver-" in name]


def test_a_driver_whose_creation_comes_through_late_has_its_map(world: World):
    operator, before = world.settle(), world.api.answer
    del world.api.objects[f"{CORE}/pods/words-driver-1"]
    late: list[Any] = []

    def slow(method: str, path: str, body: Any = None, **more: Any) -> Any:
        if (method, path) == ("POST", f"{CORE}/pods") and not late:
            late.append(copy.deepcopy(body))
            raise HomeAwayError("POST: no answer (Read timed out.)")
        return before(method, path, body, **more)

    world.api.answer = slow  # type: ignore[method-assign]
    operator.turn(KEY)
    operator.turn(KEY)
    assert late[0]["metadata"]["name"] in maps_of_drivers(world)
    before("POST", f"{CORE}/pods", late[0])
    for _ in range(3):
        world.clock.time_s += 60
        world.settle(operator)
    assert world.condition("Ready") == ("True", "AllReady")
    drivers = [name for name in world.names("pods") if "-driver-" in name]
    assert maps_of_drivers(world) == drivers, "and what no driver mounts is gone"


def test_a_map_that_another_operator_makes_just_now_is_left_to_its_driver(world: World):
    one, other, before = world.settle(), world.operator(), world.api.answer
    other.turn(KEY)
    del world.api.objects[f"{CORE}/pods/words-driver-1"]
    # The one has seen the pods, and is about to see the maps.
    between = [other]

    def answer(method: str, path: str, body: Any = None, **more: Any) -> Any:
        if (method, path) == ("GET", f"{CORE}/configmaps") and between:
            between.pop().turn(KEY)
        return before(method, path, body, **more)

    world.api.answer = answer  # type: ignore[method-assign]
    with pytest.raises(StaleError):
        one.turn(KEY)
    assert "words-driver-2" in world.names("pods")
    assert "words-driver-2" in maps_of_drivers(world)


@pytest.mark.parametrize("name", ["words-acker-0", "words-state-1"])
def test_a_pod_that_a_kubelet_rejects_is_made_again_in_its_time(world: World, name: str):
    operator = world.settle()
    place = f"{CORE}/pods/{name}"

    def reject() -> None:
        """As a real API server, which deletes a pod at once that has failed."""
        pod = world.api.objects.get(place)
        if pod is not None and "deletionTimestamp" in pod["metadata"]:
            del world.api.objects[place]
        elif pod is not None and pod.get("status", {}).get("phase") != "Failed":
            now = datetime.fromtimestamp(world.clock.time_s, UTC)
            pod["metadata"]["creationTimestamp"] = now.strftime("%Y-%m-%dT%H:%M:%SZ")
            pod["spec"]["nodeName"] = "node-0"
            said = "Pod was rejected: The node had condition: [DiskPressure]."
            pod["status"] = {"phase": "Failed", "reason": "Evicted", "message": said}
            world.api.put(place, pod)

    uids, waits, told = set(), [], []
    reject()
    for _ in range(60):
        result = operator.turn(KEY)
        if place in world.api.objects:
            uids.add(world.api.objects[place]["metadata"]["uid"])
            waits.append(result.again_s)
        reject()
        world.clock.time_s += 1
        told.append(world.condition("Ready"))
    assert told.count(("False", "Evicted")) > 40, "it stands still"
    assert 3 <= len(uids) <= 6, "one in ten seconds, however often it is looked"
    assert all(wait is None or wait <= 10 for wait in waits)
    assert any(wait is not None for wait in waits)
