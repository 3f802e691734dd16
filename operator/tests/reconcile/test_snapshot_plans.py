"""What follows for snapshots and restores: state in, actions out, an operator dead at each step."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from memory_cluster import SETTINGS, START, Cluster, CrashError, moment, summary
from test_plan import settled

from millrace.homes.documents import Answer, Ask, KeptSnapshot, Outcome, SnapshotFigures
from millrace.protocol.types import Phase
from millrace.snapshots.timelines import Fork
from millrace_operator.api.resources import SnapshotPhase
from millrace_operator.reconcile.observe import PodPhase, Snapshot
from millrace_operator.reconcile.plan import plan
from millrace_operator.reconcile.snapshots import LOOK_S, called, plan_orphans

TO = {"to": "snapshots"}
PLACE = "/data/snapshots"


class Driver:
    """Answers what lies in the inbox, as the real one does; ``data`` is what lies in the place."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.data: dict[str, KeptSnapshot] = {}
        self.taken: list[str] = []
        self.fails = ""
        self.place = PLACE

    def work(self) -> None:
        answers = tuple(self._answer(token) for token in sorted(self.cluster.asked))
        own = [one for name, one in self.data.items() if name.startswith("auto-")]
        figures = SnapshotFigures(self.place, tuple(own), answers)
        assert self.cluster.told is not None
        self.cluster.told = replace(self.cluster.told, snapshots=figures, uid=self.cluster.uid)

    def _answer(self, token: str) -> Answer:
        request = self.cluster.asked[token]
        name = request.name or ""
        if self.fails:
            return Answer(token, Outcome.FAILED, text=self.fails)
        if request.action is Ask.DELETE_SNAPSHOT:
            self.data.pop(name, None)
            return Answer(token, Outcome.DELETED)
        if name not in self.data:
            self.taken.append(name)
            self.data[name] = KeptSnapshot(name, 7, 1_770_000_000.0, 42)
        return Answer(token, Outcome.TAKEN, self.data[name], PLACE)


def world() -> tuple[Cluster, Driver]:
    cluster = settled(snapshots=TO)
    driver = Driver(cluster)
    driver.work()
    return cluster, driver


def wanted(name: str = "early", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"topology": "words", **spec}}


def rest(cluster: Cluster, driver: Driver) -> None:
    """Until nothing is left to do."""
    for _ in range(10):
        driver.work()
        if not cluster.reconcile():
            return
    raise AssertionError(summary(cluster.reconcile()))


def reason(one: Snapshot) -> str:
    (condition,) = one.status.conditions
    return condition.reason


def test_one_that_is_applied_is_taken_once():
    cluster, driver = world()
    cluster.apply_snapshot(wanted(deletionPolicy="Delete"))
    name = called(cluster.snapshots["early"])
    assert summary(cluster.reconcile()) == [
        "apply ConfigMap words-snapshots",
        "early is Taking",
        f"ask snapshot {name}",
    ]
    assert cluster.reconcile() == ()
    driver.work()
    uid = cluster.snapshots["early"].uid
    assert summary(cluster.reconcile()) == [
        "early is Ready",
        f"withdraw snapshot-{uid}",
    ]
    driver.work()
    rest(cluster, driver)
    status = cluster.snapshots["early"].status
    assert (status.window, status.size_bytes, status.place) == (7, 42, PLACE)
    assert (status.snapshot, status.topology_uid) == (name, cluster.uid)
    assert status.taken == "2026-02-02T02:40:00Z"
    assert cluster.status.last_snapshot == name
    assert driver.taken == [name]


def test_one_that_fails_says_why_and_is_not_tried_again():
    cluster, driver = world()
    driver.fails = "the disk is full"
    cluster.apply_snapshot(wanted())
    rest(cluster, driver)
    one = cluster.snapshots["early"]
    assert (one.status.phase, reason(one)) == (SnapshotPhase.FAILED, "SnapshotFailed")
    assert one.status.message == "the disk is full"
    assert cluster.asked == {}
    driver.fails = ""
    rest(cluster, driver)
    assert driver.taken == []


@pytest.mark.parametrize(
    "spec",
    [{"to": "/elsewhere"}, {"to": "memory://x"}, {"to": "simplecache::file:///tmp/x"}, {}],
)
def test_a_place_that_would_go_with_a_pod_is_not_asked_for(spec: dict[str, Any]):
    cluster = settled()
    cluster.apply_snapshot(wanted(**spec))
    cluster.reconcile()
    one = cluster.snapshots["early"]
    assert (one.status.phase, reason(one)) == (SnapshotPhase.PENDING, "NoPlace")
    assert cluster.asked == {}


def test_of_a_topology_that_stalls_it_says_so_and_goes_on_behind_it():
    cluster, driver = world()
    secret = cluster.children.pop(("Secret", "words-secret"))
    cluster.apply_snapshot(wanted())
    cluster.reconcile()
    one = cluster.snapshots["early"]
    assert (one.status.phase, reason(one)) == (SnapshotPhase.PENDING, "TopologyStalled")
    assert "StoreLost" in (one.status.message or "")
    assert cluster.asked == {}
    assert cluster.reconcile() == ()
    cluster.children["Secret", "words-secret"] = secret
    rest(cluster, driver)
    assert cluster.snapshots["early"].status.phase is SnapshotPhase.READY


def test_without_a_driver_it_waits_and_says_so():
    cluster, driver = world()
    cluster.change("words-driver-1", ready=False)
    cluster.apply_snapshot(wanted())
    cluster.reconcile()
    assert reason(cluster.snapshots["early"]) == "WaitsForDriver"
    cluster.change("words-driver-1", ready=True)
    cluster.reconcile()
    assert reason(cluster.snapshots["early"]) == "Taking"
    rest(cluster, driver)
    assert reason(cluster.snapshots["early"]) == "Taken"


@pytest.mark.parametrize("deletes", [False, True])
def test_an_answer_is_looked_for_only_where_somebody_may_give_it(deletes: bool):
    """A topology at the end of its input would be looked at every other second for ever."""
    cluster, driver = world()

    def wait_s() -> float | None:
        return plan(cluster.observed(), SETTINGS, moment(cluster.now)).wait_s

    cluster.apply_snapshot(wanted(**({"deletionPolicy": "Delete"} if deletes else {})))
    if deletes:
        rest(cluster, driver)
        del cluster.snapshots["early"]
    cluster.reconcile()
    assert wait_s() == LOOK_S
    cluster.change("words-driver-1", ready=False)
    cluster.reconcile()
    assert wait_s() is None


def test_without_its_topology_it_waits_and_behind_it_fails():
    one = Snapshot("early", "u", "v", 1, "words")
    (told,) = plan_orphans((one,), START)
    assert (told.status.phase, told.status.conditions[0].reason) == (
        SnapshotPhase.PENDING,
        "WaitsForTopology",
    )
    assert plan_orphans((replace(one, status=told.status),), START) == []
    cluster, _ = world()
    cluster.apply_snapshot(wanted())
    cluster.reconcile()
    asked = cluster.snapshots["early"]
    (failed,) = plan_orphans((asked,), START)
    assert failed.status.conditions[0].reason == "TopologyGone"
    # Nor does another topology of the name take it.
    cluster.recreate()
    cluster.earlier = {}
    for _ in range(3):
        cluster.reconcile()
        cluster.progress()
    assert reason(cluster.snapshots["early"]) == "TopologyGone"


def test_those_whose_files_stay_are_not_booked_however_many_there_are():
    """A config map has room for some thousands; one that takes no more stalls the topology."""
    cluster, driver = world()
    for number in range(20):
        cluster.apply_snapshot(wanted(f"kept-{number}"))
    cluster.apply_snapshot(wanted("early", deletionPolicy="Delete"))
    rest(cluster, driver)
    assert all(one.status.phase is SnapshotPhase.READY for one in cluster.snapshots.values())
    assert [one.name for one in cluster.booked] == ["early"]


@pytest.mark.parametrize(("policy", "stays"), [("Delete", False), ("Retain", True)])
def test_deletion_takes_the_data_where_that_is_asked_for(policy: str, stays: bool):
    cluster, driver = world()
    cluster.apply_snapshot(wanted(deletionPolicy=policy))
    rest(cluster, driver)
    name = called(cluster.snapshots["early"])
    del cluster.snapshots["early"]
    rest(cluster, driver)
    assert (name in driver.data) is stays
    assert cluster.booked == ()
    assert cluster.asked == {}


def test_data_that_cannot_be_deleted_is_told_of_and_left():
    cluster, driver = world()
    cluster.apply_snapshot(wanted(deletionPolicy="Delete"))
    rest(cluster, driver)
    del cluster.snapshots["early"]
    driver.fails = "no permission"
    rest(cluster, driver)
    assert [e.reason for e in cluster.events if e.reason == "SnapshotLeft"] == ["SnapshotLeft"]
    assert cluster.booked == ()


def test_a_status_that_names_somebody_else_s_snapshot_is_not_believed():
    cluster, driver = world()
    driver.data = {auto(1).name: auto(1)}
    cluster.apply_snapshot(wanted(deletionPolicy="Delete"))
    rest(cluster, driver)
    early = cluster.snapshots["early"]
    mine = called(early)
    for other in (auto(1).name, "late-12345678"):
        status = early.status.model_copy(update={"snapshot": other})
        cluster.snapshots["early"] = replace(early, status=status)
        assert called(cluster.snapshots["early"]) == mine
        rest(cluster, driver)
    del cluster.snapshots["early"]
    rest(cluster, driver)
    assert set(driver.data) == {auto(1).name}


def test_one_that_is_deleted_while_it_is_taken_is_asked_for_no_more():
    cluster, driver = world()
    cluster.apply_snapshot(wanted())
    cluster.reconcile()
    assert cluster.asked
    del cluster.snapshots["early"]
    rest(cluster, driver)
    assert cluster.asked == {}


def auto(window: int) -> KeptSnapshot:
    return KeptSnapshot(f"auto-uid-1xxx-1.1.{window}", window, 1_770_000_000.0 + window, 10)


def test_periodic_ones_have_resources_as_long_as_they_are_kept():
    cluster, driver = world()
    driver.data = {one.name: one for one in (auto(1), auto(2))}
    driver.work()
    rest(cluster, driver)
    assert set(cluster.snapshots) == set(driver.data)
    assert all(one.status.phase is SnapshotPhase.READY for one in cluster.snapshots.values())
    assert cluster.status.last_snapshot == auto(2).name
    # Retention is the driver's.
    del driver.data[auto(1).name]
    driver.work()
    rest(cluster, driver)
    assert set(cluster.snapshots) == {auto(2).name}
    # What is not known is not gone.
    assert cluster.told is not None
    cluster.told = replace(cluster.told, snapshots=None)
    assert cluster.reconcile() == ()
    # Somebody deletes the resource: it does not come back, and the files stay.
    del cluster.snapshots[auto(2).name]
    driver.work()
    rest(cluster, driver)
    assert cluster.snapshots == {}
    assert auto(2).name in driver.data
    driver.data.clear()
    driver.work()
    rest(cluster, driver)
    assert cluster.booked == ()


def test_resources_of_what_lies_in_an_earlier_place_stay_and_know_where_it_is():
    cluster, driver = world()
    cluster.apply_snapshot(wanted(deletionPolicy="Delete"))
    driver.data[auto(1).name] = auto(1)
    rest(cluster, driver)
    name = called(cluster.snapshots["early"])
    assert set(cluster.snapshots) == {"early", auto(1).name}
    cluster.edit(snapshots={"to": "elsewhere"})
    cluster.settle()
    driver.place, driver.data = "/data/elsewhere", {auto(2).name: auto(2)}
    rest(cluster, driver)
    assert set(cluster.snapshots) == {"early", auto(1).name, auto(2).name}
    assert cluster.snapshots[auto(1).name].status.place == PLACE
    # Whoever deletes them has their files deleted where they are.
    del cluster.snapshots["early"]
    cluster.reconcile()
    (request,) = cluster.asked.values()
    assert (request.name, request.to) == (name, PLACE)


def moved(**of_the_first: Any) -> tuple[Cluster, Driver]:
    """Behind an edit of the place: a periodic one lies in the earlier one."""
    cluster, driver = world()
    driver.data = {auto(1).name: auto(1)}
    rest(cluster, driver)
    changed = replace(cluster.snapshots[auto(1).name], **of_the_first)
    cluster.snapshots[auto(1).name] = changed
    rest(cluster, driver)
    cluster.edit(snapshots={"to": "elsewhere"})
    cluster.settle()
    driver.place, driver.data = "/data/elsewhere", {auto(2).name: auto(2)}
    rest(cluster, driver)
    return cluster, driver


def test_a_periodic_one_s_files_in_an_earlier_place_go_with_its_resource_too():
    cluster, driver = moved(deletes=True)
    del cluster.snapshots[auto(1).name]
    cluster.reconcile()
    assert [(one.action, one.name, one.to) for one in cluster.asked.values()] == [
        (Ask.DELETE_SNAPSHOT, auto(1).name, PLACE)
    ]
    rest(cluster, driver)
    assert cluster.asked == {}
    assert [one.snapshot for one in cluster.booked] == [auto(2).name]


def test_one_that_cannot_be_deleted_in_an_earlier_place_is_told_of():
    cluster, driver = moved(deletes=True)
    del cluster.snapshots[auto(1).name]
    driver.fails = "no permission"
    rest(cluster, driver)
    assert [e.reason for e in cluster.events if e.reason == "SnapshotLeft"] == ["SnapshotLeft"]
    assert cluster.asked == {}
    assert [one.snapshot for one in cluster.booked] == [auto(2).name]


def test_a_resource_that_was_deleted_does_not_come_back_with_its_place():
    cluster, driver = moved()
    del cluster.snapshots[auto(1).name]
    rest(cluster, driver)
    assert cluster.asked == {}
    cluster.edit(snapshots=TO)
    cluster.settle()
    driver.place, driver.data = PLACE, {auto(1).name: auto(1)}
    rest(cluster, driver)
    assert auto(1).name not in cluster.snapshots
    driver.data.clear()
    rest(cluster, driver)
    assert auto(1).name not in [one.snapshot for one in cluster.booked]


def test_a_periodic_one_s_files_go_with_its_resource_where_that_is_asked_for():
    cluster, driver = world()
    driver.data = {auto(1).name: auto(1)}
    driver.work()
    rest(cluster, driver)
    cluster.snapshots[auto(1).name] = replace(cluster.snapshots[auto(1).name], deletes=True)
    rest(cluster, driver)
    del cluster.snapshots[auto(1).name]
    rest(cluster, driver)
    assert driver.data == {}
    driver.work()
    rest(cluster, driver)
    assert (cluster.snapshots, cluster.booked, cluster.asked) == ({}, (), {})


def test_resources_stay_when_the_topology_goes():
    cluster, driver = world()
    cluster.apply_snapshot(wanted())
    driver.data = {auto(1).name: auto(1)}
    rest(cluster, driver)
    before = dict(cluster.snapshots)
    assert set(before) == {"early", auto(1).name}
    cluster.recreate()
    cluster.earlier, cluster.booked = {}, ()
    cluster.settle()
    driver.data = {}
    driver.work()
    cluster.reconcile()
    assert cluster.snapshots == before


@pytest.mark.parametrize("every", range(1, 6))
def test_the_operator_may_die_after_any_action(every: int):
    cluster, driver = world()

    def dying(done: Callable[[], bool]) -> None:
        for turn in itertools.count():
            try:
                actions = cluster.reconcile(crash_after=(turn % every) + (turn // every) // 4)
            except CrashError:
                actions = ((),)  # type: ignore[assignment]
            driver.work()
            if not actions and done():
                return
            assert turn < 100, summary(actions)

    cluster.apply_snapshot(wanted(deletionPolicy="Delete"))
    driver.data[auto(1).name] = auto(1)
    phases = lambda: [one.status.phase for one in cluster.snapshots.values()]  # noqa: E731
    dying(lambda: phases() == [SnapshotPhase.READY] * 2 and not cluster.asked)
    name = called(cluster.snapshots["early"])
    assert driver.taken == [name]
    del cluster.snapshots["early"]
    driver.data.pop(auto(1).name)
    dying(lambda: not cluster.booked and not cluster.asked)
    assert driver.data == {}
    assert cluster.snapshots == {}


# -- restores


def restored(**given: Any) -> Cluster:
    cluster = Cluster()
    cluster.spec["restoreFrom"] = given
    return cluster


def ready(cluster: Cluster, topology: str = "words") -> None:
    status = Snapshot("", "", "", 1, "").status.model_copy(
        update={"phase": SnapshotPhase.READY, "snapshot": "early-u1", "place": PLACE}
    )
    cluster.snapshots["early"] = Snapshot("early", "u", "v", 1, topology, status=status)


def stalled(cluster: Cluster) -> str:
    (found,) = (c for c in cluster.status.conditions if c.type == "Stalled")
    return found.reason if found.status.value == "True" else ""


def told_to(cluster: Cluster, number: int) -> Any:
    for action in cluster.reconcile():
        manifest = getattr(action, "manifest", {})
        named = manifest.get("metadata", {}).get("name") == f"words-driver-{number}"
        if named and manifest["kind"] == "ConfigMap":
            return json.loads(manifest["data"]["driver.json"]).get("restore")
    raise AssertionError("no driver is started")


def test_what_a_topology_begins_with_has_to_be_ready():
    cluster = restored(snapshot="early")
    cluster.reconcile()
    assert stalled(cluster) == "SnapshotMissing"
    cluster.apply_snapshot(wanted())
    cluster.reconcile()
    assert stalled(cluster) == "SnapshotNotReady"
    ready(cluster, "others")
    cluster.reconcile()
    assert stalled(cluster) == "SnapshotForeign"
    assert (cluster.pods, cluster.accepted) == ({}, None)
    ready(cluster)
    wanted_restore = {"snapshot": "early-u1", "place": PLACE, "topology": ""}
    assert told_to(cluster, 1) == wanted_restore
    assert stalled(cluster) == ""


def test_another_topology_s_snapshot_has_to_be_named_so():
    cluster = restored(snapshot="early", topology="others")
    ready(cluster, "others")
    assert told_to(cluster, 1) == {"snapshot": "early-u1", "place": PLACE, "topology": "others"}


def test_a_place_is_the_driver_s_to_look_at():
    cluster = restored(place="s3://bucket/x", name="early")
    assert told_to(cluster, 1) == {"snapshot": "early", "place": "s3://bucket/x", "topology": ""}


def test_a_topology_that_has_begun_begins_with_nothing_again():
    cluster = restored(snapshot="early")
    ready(cluster)
    cluster.settle()
    assert cluster.view is not None
    cluster.view = replace(cluster.view, timeline=2)  # type: ignore[arg-type]
    del cluster.snapshots["early"]
    cluster.change("words-driver-1", deleting=True)
    assert told_to(cluster, 2) is None
    cluster.edit(restoreFrom={"snapshot": "other"})
    cluster.reconcile()
    assert stalled(cluster) == "EditRefused"
    cluster.spec = {name: value for name, value in cluster.spec.items() if name != "restoreFrom"}
    cluster.reconcile()
    assert stalled(cluster) == ""


def test_who_began_just_before_it_was_told_of_a_snapshot_is_told_of_it_all_the_same():
    """Nobody had the view when the edit was accepted; the driver that it ends then opens one."""
    cluster = restored(snapshot="early")
    ready(cluster)
    cluster.settle()
    assert cluster.view is not None
    assert (cluster.view.phase, cluster.view.timeline) == (Phase.OPEN, 1)
    cluster.change("words-driver-1", deleting=True)
    wanted_restore = {"snapshot": "early-u1", "place": PLACE, "topology": ""}
    assert told_to(cluster, 2) == wanted_restore
    text = "snapshot early-u1: the topology has begun without it"
    cluster.run("words-driver-2", "node-0")
    cluster.change("words-driver-2", phase=PodPhase.FAILED, ready=False, exit_code=14, message=text)
    cluster.reconcile()
    assert stalled(cluster) == "SnapshotRefused"
    # Without that line it goes on as it began.
    cluster.spec = {name: value for name, value in cluster.spec.items() if name != "restoreFrom"}
    cluster.generation += 1
    assert told_to(cluster, 3) is None


def claims(cluster: Cluster, timeline: int, *forks: Fork) -> None:
    """The driver of a settled cluster begins with a restore."""
    cluster.settle()
    assert cluster.view is not None
    cluster.view = replace(cluster.view, phase=Phase.CREATING, timeline=timeline)  # type: ignore[arg-type]
    cluster.restoring, cluster.forks = True, forks


def test_a_restore_that_has_begun_needs_no_resource_any_more():
    cluster = restored(snapshot="early")
    ready(cluster)
    claims(cluster, 2)
    del cluster.snapshots["early"]
    for forks in ((), (Fork(2, 1, 5, "early-0a1b2c3d", None, False, 0.0),)):
        cluster.forks = forks
        cluster.reconcile()
        assert stalled(cluster) == ""
    (found,) = (c for c in cluster.status.conditions if c.type == "Restored")
    assert (found.status.value, found.reason) == ("False", "Restoring")
    # Another one that is named does need it.
    cluster.edit(restoreFrom={"snapshot": "later"})
    cluster.reconcile()
    assert stalled(cluster) == "SnapshotMissing"


def test_another_snapshot_may_be_named_until_the_first_is_restored():
    """Its driver has claimed the view for one that it finds damaged then."""
    cluster = restored(place=PLACE, name="early")
    claims(cluster, 2, Fork(2, 1, 5, "early", None, False, 0.0))
    text = "snapshot early: is damaged and not believed"
    failed = {"phase": PodPhase.FAILED, "ready": False, "exit_code": 14, "message": text}
    cluster.change("words-driver-1", **failed)
    cluster.reconcile()
    assert stalled(cluster) == "SnapshotRefused"
    cluster.edit(restoreFrom={"place": PLACE, "name": "later"})
    assert told_to(cluster, 2) == {"snapshot": "later", "place": PLACE, "topology": ""}
    assert stalled(cluster) == ""


def test_state_that_was_lost_is_no_reason_to_begin_with_another_snapshot():
    cluster = restored(place=PLACE, name="early")
    claims(cluster, 3, Fork(3, 2, 9, "auto", 11, True, 0.0))
    cluster.change("words-driver-1", deleting=True)
    assert told_to(cluster, 2) is None
    cluster.edit(restoreFrom={"place": PLACE, "name": "later"})
    cluster.reconcile()
    assert stalled(cluster) == "EditRefused"


def test_a_driver_that_refuses_the_snapshot_says_so_at_once():
    cluster = restored(place=PLACE, name="early")
    cluster.reconcile()
    cluster.run("words-driver-1", "node-0")
    text = "snapshot early: is damaged and not believed"
    cluster.change("words-driver-1", phase=PodPhase.FAILED, ready=False, exit_code=14, message=text)
    cluster.reconcile()
    assert stalled(cluster) == "SnapshotRefused"
    assert text in (cluster.status.message or "")
    # Another one is tried at once.
    cluster.edit(restoreFrom={"place": PLACE, "name": "later"})
    assert told_to(cluster, 2) == {"snapshot": "later", "place": PLACE, "topology": ""}


@pytest.mark.parametrize(
    ("fork", "why", "text"),
    [
        (
            Fork(2, 1, 5, "early", 9, True, 0.0),
            "StateLost",
            (
                "snapshot early is restored behind window 5, as timeline 2; windows 6 to 9 were "
                "given up and processed again"
            ),
        ),
        (
            Fork(3, 2, 5, "early", None, False, 0.0),
            "BeganWithSnapshot",
            "snapshot early is restored behind window 5, as timeline 3",
        ),
    ],
)
def test_a_condition_says_what_was_restored(fork: Fork, why: str, text: str):
    cluster = settled()
    cluster.forks = (Fork(1, 1, 1, "older", None, True, 0.0), fork)
    cluster.reconcile()
    (found,) = (c for c in cluster.status.conditions if c.type == "Restored")
    assert (found.status.value, found.reason, found.message) == ("True", why, text)
    assert cluster.reconcile() == ()
