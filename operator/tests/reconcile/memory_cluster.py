"""A cluster in memory: what the API server, kubelets, Spark's driver and a careless user do.

It carries out a plan's actions as the API server would, and says what is then seen. Beside what is
seen it knows what is true: whether a process lives behind a node that does not answer.
"""

from __future__ import annotations

import copy
import itertools
import json
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, assert_never

from millrace.homes import codec
from millrace.homes.accepted import Accepted, accepted_from
from millrace.homes.documents import Proposal, Request, ServerTrouble, Status
from millrace.homes.pods import PERIODIC_LABEL, STANDBY_ANNOTATION, Role
from millrace.protocol.types import Member, Phase, View
from millrace.snapshots.timelines import Fork
from millrace_operator.api.resources import SnapshotStatus, TopologyStatus
from millrace_operator.api.settings import OperatorSettings
from millrace_operator.builders.documents import secret_values
from millrace_operator.builders.naming import DIGEST, FINGERPRINT
from millrace_operator.reconcile.actions import (
    Action,
    Announce,
    Apply,
    AskDriver,
    Create,
    CreateSnapshot,
    DeleteChild,
    DeletePod,
    DeleteSnapshot,
    FillSecret,
    Propose,
    Withdraw,
    WriteSnapshotStatus,
    WriteStatus,
)
from millrace_operator.reconcile.observe import (
    Booked,
    Books,
    Child,
    Moment,
    Observed,
    Pod,
    PodPhase,
    Resource,
    Secrets,
    Snapshot,
    most_silent,
)
from millrace_operator.reconcile.plan import plan

SETTINGS = OperatorSettings("runtime:1", "state:1", "millrace-system")
SPEC: dict[str, Any] = {
    "ackers": {"replicas": 2},
    "stateServers": {"replicas": 3, "copies": 2},
    "volumes": [
        {"name": "data", "mountPath": "/data", "persistentVolumeClaim": {"claimName": "words"}}
    ],
    "sources": [{"name": "lines", "files": {"path": "texts", "watch": False}}],
    "processors": [{"name": "split", "function": "words:split", "inputs": [{"from": "lines"}]}],
    "sinks": [{"name": "out", "inputs": [{"from": "split"}], "files": {"path": "out"}}],
}
START = datetime(2026, 1, 1, tzinfo=UTC)


def moment(now: datetime) -> Moment:
    """What nobody can guess is the same at each, as if nobody had to."""
    return Moment(now, "p" * 48, "k" * 48, "r" * 48)


class CrashError(Exception):
    """The operator died between two actions."""


@dataclass
class Cluster:
    """One topology and all that there is of it. ``crash_after`` actions the operator dies."""

    spec: dict[str, Any] = field(default_factory=lambda: copy.deepcopy(SPEC))
    annotations: dict[str, str] = field(default_factory=dict)
    generation: int = 1
    status: TopologyStatus = field(default_factory=TopologyStatus)
    deleting: bool = False
    pods: dict[str, Pod] = field(default_factory=dict)
    children: dict[tuple[str, str], Child] = field(default_factory=dict)
    manifests: dict[tuple[str, str], Any] = field(default_factory=dict)
    accepted: Accepted | None = None
    view: View | None = None
    proposal: Proposal | None = None
    window: int | None = None
    refused: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, bool] = field(default_factory=lambda: {f"node-{n}": True for n in range(3)})
    now: datetime = START
    events: list[Announce] = field(default_factory=list)
    created: list[str] = field(default_factory=list)
    uid: str = "uid-1"
    earlier: dict[str, Pod | Child] = field(default_factory=dict)
    told: Status | None = None
    writer: str = ""
    heard: Proposal | None = None
    released: set[str | None] = field(default_factory=set)
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    booked: tuple[Booked, ...] = ()
    asked: dict[str, Request] = field(default_factory=dict)
    forks: tuple[Fork, ...] = ()
    restoring: bool = False
    own: Member = field(default_factory=lambda: Member("state-0", "o1", "rediss://cache:6379"))
    waits: ServerTrouble | None = None
    """Why the driver waits for the server of the user's own."""
    troubles: tuple[ServerTrouble, ...] | None = None
    copies: int = 1
    """What the newest driver has begun with."""
    secret_version: int = 1
    _ids: Any = field(default_factory=lambda: itertools.count(1))

    # -- what the operator does

    def observed(self) -> Observed:
        document = {"metadata": {"annotations": self.annotations}, "spec": copy.deepcopy(self.spec)}
        resource = Resource(
            "words", "default", self.uid, self.generation, document, self.status, self.deleting
        )
        return Observed(
            resource,
            tuple(self._shown(pod) for pod in self.pods.values()),
            dict(self.nodes),
            tuple(self.children.values()),
            self.accepted,
            self.view,
            self.proposal,
            window=self.window,
            refusals=dict(self.refusals),
            told=self.told,
            strangers=tuple(self.earlier),
            most_silent=most_silent(self.nodes),
            snapshots=tuple(self.snapshots.values()),
            booked=self.booked,
            asked=frozenset(self.asked),
            forks=self.forks,
            restoring=self.restoring,
            writer=self.writer,
            secrets=self.secrets(),
        )

    def _shown(self, pod: Pod) -> Pod:
        """As it is seen: Kubernetes' node controller calls pods of silent nodes not ready, and the
        operator asks none of them which incarnation it is."""
        if self.nodes.get(pod.node or "") is not False:
            return pod
        return replace(pod, ready=False, run_id=None)

    def secrets(self) -> Secrets | None:
        """What the topology's Secret holds, where there is one."""
        if ("Secret", "words-secret") not in self.children:
            return None
        found = self.manifests["Secret", "words-secret"]["data"]
        data = {key: b64decode(text).decode() for key, text in found.items()}
        return Secrets(str(self.secret_version), data)

    def fill_secret(self, **data: str | None) -> None:
        """Somebody changes keys of the topology's Secret; those that are None go."""
        manifest = self.manifests["Secret", "words-secret"]
        kept = {key: text for key, text in manifest["data"].items() if key not in data}
        new = secret_values({key: text for key, text in data.items() if text is not None})
        manifest["data"] = {**kept, **new}
        self.secret_version += 1

    def reconcile(self, crash_after: int | None = None) -> tuple[Action, ...]:
        """One plan, carried out up to the action at which the operator dies."""
        made = plan(self.observed(), SETTINGS, moment(self.now))
        actions = (*made.actions, *made.at_end)
        for number, action in enumerate(actions):
            if number == crash_after:
                raise CrashError
            self.act(action)
        return actions

    def act(self, action: Action) -> None:
        match action:
            case Announce():
                self.events.append(action)
            case WriteStatus(status):
                self.status = TopologyStatus.model_validate_json(
                    status.model_dump_json(by_alias=True)
                )
            case Apply(manifest):
                self._put(dict(manifest))
            case Create(manifest):
                self._create(dict(manifest))
            case FillSecret(name, version, data):
                assert (name, version) == ("words-secret", str(self.secret_version))
                self.fill_secret(**data)
            case DeletePod(name, uid, force):
                self._delete_pod(name, uid, force)
            case DeleteChild(kind, name, uid):
                if (found := self.children.get((kind, name))) is not None and found.uid == uid:
                    del self.children[(kind, name)]
            case Propose(proposal):
                self.proposal = proposal
            case AskDriver(token, request):
                self.asked[token] = request
            case Withdraw(token):
                self.asked.pop(token, None)
            case CreateSnapshot(manifest):
                self.apply_snapshot(manifest)
            case DeleteSnapshot(name, uid):
                if (one := self.snapshots.get(name)) is not None and one.uid == uid:
                    del self.snapshots[name]
            case WriteSnapshotStatus(name, uid, version, wanted):
                one = self.snapshots[name]
                assert (one.uid, one.version) == (uid, version)
                kept = SnapshotStatus.model_validate_json(wanted.model_dump_json(by_alias=True))
                self.snapshots[name] = replace(one, status=kept, version=self._uid())
            case other:
                assert_never(other)

    def apply_snapshot(self, manifest: Mapping[str, Any]) -> None:
        """Somebody makes the resource of a snapshot, unless it is there."""
        metadata, spec = manifest["metadata"], manifest["spec"]
        if metadata["name"] not in self.snapshots:
            self.snapshots[metadata["name"]] = Snapshot(
                metadata["name"],
                self._uid(),
                self._uid(),
                1,
                spec["topology"],
                spec.get("to"),
                spec.get("deletionPolicy") == "Delete",
                metadata.get("labels", {}).get(PERIODIC_LABEL, ""),
            )

    def _put(self, manifest: dict[str, Any]) -> None:
        kind, metadata = manifest["kind"], manifest["metadata"]
        key = (kind, metadata["name"])
        assert " ".join(key) not in self.earlier, f"{key} is adopted"
        uid = self.children[key].uid if key in self.children else self._uid()
        digest = metadata.get("annotations", {}).get(DIGEST, "")
        self.children[key] = Child(kind, metadata["name"], uid, digest)
        self.manifests[key] = manifest
        if metadata["name"] == "words-accepted":
            self.accepted = accepted_from(json.loads(manifest["data"]["accepted.json"]))
        if metadata["name"] == "words-snapshots":
            self.booked = codec.decode(Books, manifest["data"]["snapshots.json"]).booked

    def _create(self, manifest: dict[str, Any]) -> None:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        assert f"{kind} {name}" not in self.earlier, f"{kind} {name} is taken"
        if kind != "Pod":
            if (kind, name) not in self.children:
                self._put(manifest)
            return
        self.refusals.pop(name, None)
        if name in self.refused:
            self.refusals[name] = self.refused[name]
            return
        if name in self.pods:
            return
        self.created.append(name)
        component = Role(manifest["metadata"]["labels"]["app.kubernetes.io/component"])
        notes = manifest["metadata"].get("annotations", {})
        told, standby = notes.get(FINGERPRINT, ""), notes.get(STANDBY_ANNOTATION, "")
        index = int(name.rpartition("-")[2])
        image = manifest["spec"]["containers"][0]["image"]
        made = Pod(name, self._uid(), component, index, fingerprint=told, image=image)
        self.pods[name] = replace(made, standby=standby, digest=notes[DIGEST])

    def _delete_pod(self, name: str, uid: str, force: bool) -> None:
        pod = self.pods.get(name)
        if pod is None or pod.uid != uid:
            return
        if pod.component is Role.STATE_SERVER:
            self.released.add(pod.run_id)
        if force or pod.node is None or pod.ended:
            del self.pods[name]
        else:
            self.pods[name] = replace(pod, deleting=True)

    def _uid(self) -> str:
        return f"u{next(self._ids)}"

    # -- what is true

    def lives(self, pod: Pod) -> bool:
        """Whether its processes run, seen or not."""
        return pod.phase is PodPhase.RUNNING

    # -- what others do

    def progress(self) -> None:
        """Kubelets of nodes that answer start pods and end those that are to go; Spark asks for
        executors; time passes."""
        self.execute()
        self.kubelets()

    def kubelets(self) -> None:
        self.now += timedelta(seconds=15)
        up = [name for name, answers in self.nodes.items() if answers]
        for name, pod in list(self.pods.items()):
            if pod.node is not None and not self.nodes.get(pod.node, False):
                continue
            if pod.deleting:
                del self.pods[name]
            elif pod.phase is PodPhase.PENDING and up:
                self.run(name, up[len(name) % len(up)])

    def execute(self) -> None:
        """Spark's drivers have as many executors as the topology says, on nodes that answer."""
        drivers = [
            pod.name
            for pod in self.pods.values()
            if pod.component is Role.DRIVER and self.lives(pod) and self.acts(pod)
        ]
        for name, pod in list(self.pods.items()):
            of_nobody = name.rpartition("-exec-")[0] not in drivers
            if pod.component is Role.EXECUTOR and (of_nobody or pod.ended or self._cut_off(pod)):
                del self.pods[name]
        spec = self.accepted.topology["spec"] if self.accepted is not None else {}
        wanted = spec.get("spark", {}).get("executors", {}).get("instances", 0)
        for name in (f"{driver}-exec-{n + 1}" for driver in drivers for n in range(wanted)):
            if name not in self.pods:
                index = int(name.rpartition("-")[2])
                self.pods[name] = Pod(name, self._uid(), Role.EXECUTOR, index)

    def run(self, name: str, node: str) -> None:
        """A pod is on a node, and ready."""
        pod = self.pods[name]
        server = pod.component is Role.STATE_SERVER
        self.pods[name] = replace(
            pod,
            phase=PodPhase.RUNNING,
            ready=True,
            node=node,
            address="10.0.0.1",
            run_id=self._uid() if server else None,
        )

    def change(self, name: str, **what: Any) -> None:
        self.pods[name] = replace(self.pods[name], **what)

    def recreate(self) -> None:
        """A user deletes the topology and makes it again; what belonged to it is there for now."""
        left: dict[str, Pod | Child] = {f"Pod {name}": pod for name, pod in self.pods.items()}
        left |= {f"{kind} {name}": child for (kind, name), child in self.children.items()}
        pods, children = dict[str, Pod](), dict[tuple[str, str], Child]()
        self.earlier, self.pods, self.children = left, pods, children
        self.accepted = self.view = self.proposal = self.told = self.heard = self.window = None
        self.writer = ""
        self.status, self.uid = TopologyStatus(), "uid-2"

    def edit(self, **spec: Any) -> None:
        self.spec = {**self.spec, **spec}
        self.generation += 1

    def drive(self, late: bool = False) -> None:
        """The newest driver that lives claims the view, and moves it to what is proposed; where it
        is ``late``, to what it heard last time."""
        drivers = [p for p in self.observed().of(Role.DRIVER) if self.lives(p) and self.acts(p)]
        if not drivers or self.proposal is None:
            return
        if self.waits is not None:
            self.told = Status(uid=self.uid, state="starting", troubles=(self.waits,))
            return
        execution, self.writer = drivers[-1].index, drivers[-1].name
        anew = self.told is None or self.told.execution != execution
        if anew or not late or self.heard is None:
            self.heard = self.proposal
        named = "url" in self.spec.get("stateServers", {})
        target = (self.own,) if named else self.heard.members
        if anew:
            self.copies = int(self.spec.get("stateServers", {}).get("copies", 1))
        owners = (tuple(m.name for m in target[: self.copies]),)
        if self.view is None:
            one = View(self.uid, 1, 1, Phase.OPEN, execution, target, target, 1, owners)  # type: ignore[arg-type]
            self.view, self.window = one, 1
        self.view = replace(self.view, execution=execution)  # type: ignore[arg-type]
        self.window = (self.window or 0) + 1
        runs = {p.run_id for p in self.pods.values() if self.lives(p) and not self._cut_off(p)}
        runs.add(self.own.run_id)
        reached = [m for m in self.view.last_open if m.run_id in runs]
        changed = (target, owners) != (self.view.target, self.view.owners)
        moves = bool(reached) and all(m.run_id in runs for m in target) and changed
        if moves:
            lost = [m.name for m in target if m.run_id in self.released]
            assert not lost, f"{lost} become members, and the operator has deleted them"
            epoch = self.view.epoch + 1
            self.view = replace(
                self.view,
                epoch=epoch,
                open_epoch=epoch,
                last_open=target,
                target=target,
                owners=owners,
            )
        follows = self.heard.number if moves or not changed else None
        snapshots = self.told.snapshots if self.told is not None else None
        well = Status(uid=self.uid, state="running", spark="running", lag_records=0)
        more = {"snapshots": snapshots, "troubles": self.troubles}
        self.told = replace(well, execution=execution, follows=follows, **more)

    def acts(self, pod: Pod) -> bool:
        """Whether a driver is one: what stands by goes by the pods that it sees."""
        if not pod.standby or pod.name == self.writer:
            return True
        if pod.deleting or not self._there(pod) or self._cut_off(pod):
            return False
        others = [p for p in self.pods.values() if p.component is Role.DRIVER and p.uid != pod.uid]
        if any(p.index > pod.index for p in others):
            return False
        return all(p.deleting or p.phase is PodPhase.FAILED for p in others)

    def _there(self, pod: Pod) -> bool:
        return (found := self.pods.get(pod.name)) is not None and found.uid == pod.uid

    def _cut_off(self, pod: Pod) -> bool:
        return pod.node is not None and not self.nodes.get(pod.node, False)

    def settle(self, rounds: int = 40) -> None:
        """Until a plan has nothing more to do, with nodes, driver and clock at work."""
        for _ in range(rounds):
            actions = self.reconcile()
            self.progress()
            self.drive()
            self.window = None if self.view is None else 7
            if not actions and not self.reconcile():
                return
        raise AssertionError(f"no end: {summary(self.reconcile())}")


def summary(actions: tuple[Action, ...]) -> list[str]:
    """Actions in words, to compare."""
    return [_words(action) for action in actions]


def _words(action: Action) -> str:
    match action:
        case Announce(reason, _, warning):
            return f"{'warning' if warning else 'event'} {reason}"
        case WriteStatus():
            return "status"
        case Apply(manifest):
            return f"apply {manifest['kind']} {manifest['metadata']['name']}"
        case Create(manifest):
            return f"create {manifest['kind']} {manifest['metadata']['name']}"
        case FillSecret(name):
            return f"fill {name}"
        case DeletePod(name, _, force):
            return f"{'force' if force else 'delete'} {name}"
        case DeleteChild(kind, name, _):
            return f"delete {kind} {name}"
        case Propose(proposal):
            named = [*(m.name for m in proposal.members), *proposal.ackers]
            return f"propose {' '.join(name.removeprefix('words-') for name in named)}"
        case AskDriver(_, request):
            return f"ask {request.action.value} {request.name}"
        case Withdraw(token):
            return f"withdraw {token}"
        case CreateSnapshot(manifest):
            return f"create {manifest['metadata']['name']}"
        case DeleteSnapshot(name):
            return f"delete {name}"
        case WriteSnapshotStatus(name, _, _, status):
            return f"{name} is {status.phase.value if status.phase else None}"
        case other:
            assert_never(other)
