"""Whatever befalls a cluster, plans come to rest, and never do what cannot be mended.

The judge looks at what is carried out, and at what is true in the cluster, which no plan can see.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_cluster import SETTINGS, Cluster, CrashError, moment, summary

from millrace.errors import ExitCode
from millrace.homes.pods import Role
from millrace_operator.reconcile import crew
from millrace_operator.reconcile.actions import Action, Create, DeleteChild, DeletePod
from millrace_operator.reconcile.observe import Observed, Pod, PodPhase
from millrace_operator.reconcile.plan import plan

KEPT = {"words-secret", "words-view", "words-inbox", "words-journal", "words-accepted"}


@dataclass
class Watched(Cluster):
    """A cluster whose judge looks at each action before it is carried out."""

    begun: list[int] = field(default_factory=list)

    def act(self, action: Action) -> None:
        match action:
            case DeletePod(name, uid) if name in self.pods and self.pods[name].uid == uid:
                self._judge_deletion(self.pods[name])
            case DeleteChild(kind, name):
                assert name not in KEPT, f"{kind} {name} is deleted"
            case Create(manifest) if manifest["kind"] == "Pod":
                self._judge_creation(manifest["metadata"]["name"])
        super().act(action)

    def _judge_deletion(self, pod: Pod) -> None:
        """A state server that lives, seen or not, and may be needed, is not deleted."""
        if pod.component is not Role.STATE_SERVER or not self.lives(pod):
            return
        needed = (*self.view.last_open, *self.view.target) if self.view is not None else ()
        if self.view is None and self.begun and self.proposal is not None:
            # The driver that was told of them may write the first view at any moment.
            needed = self.proposal.members
        members = {(m.name, m.run_id) for m in needed}
        assert (pod.name, pod.run_id) not in members, f"{pod.name} is in the view"

    def _judge_creation(self, name: str) -> None:
        if "driver" not in name:
            return
        number = int(name.rpartition("-")[2])
        assert self.status.driver is not None
        written = max(self.status.driver.number, self.status.driver.standby or 0)
        assert written >= number, "the number was not written before"
        assert all(number > before for before in self.begun), f"{name} is made twice"
        self.begun.append(number)


def pods(cluster: Cluster, component: Role) -> list[Pod]:
    """Those that run."""
    return [pod for pod in cluster.observed().of(component) if cluster.lives(pod)]


def end_pod(cluster: Cluster, number: int) -> None:
    """A container ends: ackers and servers come back in their pod, a driver's pod is over."""
    names = sorted(n for n, p in cluster.pods.items() if cluster.lives(p) and not p.deleting)
    if not names:
        return
    name = names[number % len(names)]
    if cluster.pods[name].component is Role.DRIVER:
        codes = [137, int(ExitCode.SINK), int(ExitCode.STATE_SERVER), 0]
        code = codes[number % len(codes)]
        phase = PodPhase.FAILED if code else PodPhase.SUCCEEDED
        cluster.change(name, phase=phase, ready=False, exit_code=code)
    else:
        cluster.change(name, run_id=f"r{number}-{name}")


def evict(cluster: Cluster, number: int) -> None:
    names = sorted(n for n, p in cluster.pods.items() if not p.ended)
    if names:
        name = names[number % len(names)]
        cluster.change(name, phase=PodPhase.FAILED, ready=False, reason="Evicted", run_id=None)


def delete_pod(cluster: Cluster, number: int) -> None:
    """A user deletes a pod, gracefully or at once."""
    names = sorted(cluster.pods)
    if names:
        name = names[number % len(names)]
        if number % 2:
            cluster.pods.pop(name)
        else:
            cluster.change(name, deleting=True)


def turn_node(cluster: Cluster, number: int) -> None:
    """A node goes away behind a partition, or is back: what was deleted meanwhile ends there."""
    name = sorted(cluster.nodes)[number % len(cluster.nodes)]
    cluster.nodes[name] = not cluster.nodes[name]


def delete_child(cluster: Cluster, number: int) -> None:
    keys = sorted(k for k in cluster.children if k[1] not in KEPT)
    if keys:
        cluster.children.pop(keys[number % len(keys)])


EDITS = (
    {"ackers": {"replicas": 4}},
    {"ackers": {"replicas": 1}},
    {"stateServers": {"replicas": 5, "copies": 2}},
    {"stateServers": {"replicas": 2, "copies": 2}},
    {"parallelism": 3},
    {"parallelism": 2},
    {"restartNonce": 1},
    {"suspend": True},
    {"suspend": False},
    {"keyGroups": 64},
    {"keyGroups": 128},
    {"tracking": "Off"},
    {"tracking": "On"},
    {"spark": {"driver": {"standby": 1}}},
    {"spark": {"driver": {"standby": 1, "standbyExecutors": "Ready"}}},
    {"spark": {"driver": {"standby": 0}}},
)


def edit(cluster: Cluster, number: int) -> None:
    cluster.edit(**EDITS[number % len(EDITS)])


def plan_and_crash(cluster: Cluster, number: int) -> None:
    with suppress(CrashError):
        cluster.reconcile(crash_after=number)


def plan_beside_the_driver(cluster: Cluster, number: int) -> None:
    """The driver, which follows what it heard before, acts between two actions of one plan."""
    made = plan(cluster.observed(), SETTINGS, moment(cluster.now))
    for at, action in enumerate(made.actions):
        if at == number % len(made.actions):
            cluster.drive(late=True)
        cluster.act(action)


EVENTS: dict[str, Callable[[Cluster, int], object]] = {
    "reconcile": lambda c, n: c.reconcile(),
    "crash": plan_and_crash,
    "progress": lambda c, n: c.progress(),
    "drive": lambda c, n: c.drive(),
    "drive late": lambda c, n: c.drive(late=True),
    "drive between": plan_beside_the_driver,
    "end": end_pod,
    "evict": evict,
    "delete pod": delete_pod,
    "node": turn_node,
    "delete child": delete_child,
    "edit": edit,
}
STEPS = st.lists(st.tuples(st.sampled_from(sorted(EVENTS)), st.integers(0, 40)), max_size=30)


def play(steps: list[tuple[str, int]], cluster: Watched) -> None:
    for name, number in steps:
        EVENTS[name](cluster, number)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.booleans(), st.integers(0, 1))
def test_every_history_comes_to_rest(steps: list[tuple[str, int]], running: bool, standby: int):
    cluster = Watched()
    cluster.spec["spark"] = {"driver": {"standby": standby}}
    if running:
        cluster.settle()
    play(steps, cluster)
    cluster.nodes = dict.fromkeys(cluster.nodes, True)
    cluster.settle()
    assert summary(cluster.reconcile()) == []
    assert_as_asked(cluster)


def assert_as_asked(cluster: Cluster) -> None:
    """What is there is what the accepted topology asks for, by a count of its own."""
    assert cluster.accepted is not None
    spec = cluster.accepted.topology["spec"]
    suspended = spec.get("suspend", False)
    ackers = 0 if suspended or spec["tracking"] == "Off" else spec["ackers"]["replicas"]
    assert len(pods(cluster, Role.ACKER)) == ackers
    servers = pods(cluster, Role.STATE_SERVER)
    wanted = {f"words-state-{n}" for n in range(spec["stateServers"]["replicas"])}
    assert wanted <= {p.name for p in servers}
    needed = {m.name for m in cluster.view.target} if cluster.view is not None else set()
    surplus = {p.name for p in servers if p.name not in wanted}
    told = cluster.status.driver
    # Of a driver that was deleted on a lost node nobody knows that it is dead.
    fenced = (
        told is None
        or told.unfenced is None
        or (cluster.view is not None and cluster.view.execution > told.unfenced)
    )
    assert surplus <= needed or not fenced or cluster.view is None
    running = pods(cluster, Role.DRIVER)
    drivers = cluster.observed().of(Role.DRIVER)
    beside = int(spec["spark"]["driver"].get("standby", 0))
    assert len(drivers) <= 1 + beside
    stalled = any(c.type == "Stalled" and c.status == "True" for c in cluster.status.conditions)
    # Its pod may be collected.
    finished = any(p.phase is PodPhase.SUCCEEDED for p in drivers) or bool(told and told.drained)
    if suspended:
        assert running == []
    elif not stalled and not finished:
        assert len(running) == 1 + beside
        acting = [pod for pod in running if cluster.acts(pod)]
        assert [pod.name for pod in acting] == [cluster.writer] == [told.pod if told else None]


def test_the_judge_sees_a_plan_that_deletes_what_the_view_needs(monkeypatch: pytest.MonkeyPatch):
    def careless(observed: Observed, pod: Pod) -> bool:
        return False

    monkeypatch.setattr(crew, "may_be_needed", careless)
    cluster = Watched()
    cluster.settle()
    del cluster.nodes["node-0"], cluster.nodes["node-1"]
    with pytest.raises(AssertionError, match="is in the view"):
        cluster.reconcile()


def test_the_judge_sees_a_plan_that_does_not_wait_for_the_driver(monkeypatch: pytest.MonkeyPatch):
    def shrink(cluster: Cluster) -> None:
        cluster.edit(stateServers={"replicas": 2, "copies": 1})
        made = plan(cluster.observed(), SETTINGS, moment(cluster.now))
        cluster.drive(late=True)
        for action in made.actions:
            cluster.act(action)

    def grown() -> Watched:
        cluster = Watched()
        cluster.edit(stateServers={"replicas": 2, "copies": 1})
        cluster.settle()
        cluster.edit(stateServers={"replicas": 3, "copies": 1})
        cluster.reconcile()
        cluster.progress()
        cluster.reconcile()
        cluster.heard = cluster.proposal
        return cluster

    shrink(grown())
    monkeypatch.setattr(crew, "may_be_needed", crew.holds_state)
    with pytest.raises(AssertionError, match="is in the view"):
        shrink(grown())
