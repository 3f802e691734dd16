"""What is seen of one topology and its children, as immutable values.

Whoever observes reads all of it live, from the API server and not from a cache, before ``plan`` is
asked: a pod that is not in it counts as gone. Nodes are read after the pods, by the names that
these say, and the view not before what the driver told.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from millrace.homes.accepted import Accepted
from millrace.homes.codec import STRICT
from millrace.homes.documents import Proposal, Status
from millrace.homes.pods import Role
from millrace.protocol.types import View
from millrace.snapshots.timelines import Fork
from millrace_operator.api.resources import SnapshotStatus, TopologyStatus

PAUSED = "millrace.dev/paused"
"""Annotation of a topology: while it is "true" the operator leaves the children alone."""

DROP_REMOVED = "millrace.dev/drop-removed-sinks"
"""Annotation of a topology: drivers that start while it is "true" give up what sinks that were
removed had still to show, or would have to take back."""

Manifest = Mapping[str, Any]


class PodPhase(StrEnum):
    """As Kubernetes has it."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Resource:
    """The topology itself. ``document`` has its spec, labels and annotations as they were read.

    ``unread`` says what of the status cannot be read, which then counts as empty.
    """

    name: str
    namespace: str
    uid: str
    generation: int
    document: Manifest
    status: TopologyStatus = field(default_factory=TopologyStatus)
    deleting: bool = False
    unread: str = ""

    @property
    def paused(self) -> bool:
        return self._annotated(PAUSED)

    @property
    def drops_removed(self) -> bool:
        """Whether nothing is asked any more of sinks that were removed."""
        return self._annotated(DROP_REMOVED)

    def _annotated(self, name: str) -> bool:
        annotations = self.document.get("metadata", {}).get("annotations") or {}
        return bool(annotations.get(name) == "true")


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of the topology.

    ``index`` is the number at the end of its name; ``run_id`` what the state server in it calls
    its life, None while it does not answer; ``fingerprint`` what a driver was started with.
    ``standby`` is not empty for a driver that was made to stand by: what its executors do.
    ``image`` is what its container was made with, empty where that is not known; ``digest`` is of
    all that the pod was made with, empty for one of an operator that did not say so.
    ``reason`` and ``message`` say why it waits, failed or ended, ``exit_code`` how; ``lived_s`` is
    how long it ran. ``before`` says how its container ended before, if it came back just now;
    ``started``: it has run, now or before. ``age_s`` is how long it has been there, ``ready_s`` how
    long it has been ready, 0 where that is not known. ``silenced``: its containers are ready and it
    is not, as Kubernetes leaves it whose node was silent, until its kubelet says so again.
    """

    name: str
    uid: str
    component: Role
    index: int
    phase: PodPhase = PodPhase.PENDING
    ready: bool = False
    deleting: bool = False
    node: str | None = None
    address: str | None = None
    run_id: str | None = None
    fingerprint: str = ""
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    lived_s: float = 0.0
    image: str = ""
    standby: str = ""
    before: str = ""
    digest: str = ""
    started: bool = False
    age_s: float = math.inf
    ready_s: float = 0.0
    silenced: bool = False

    @property
    def begun(self) -> bool:
        """Whether something of it ran, as far as anyone knows."""
        return self.started or self.phase is not PodPhase.PENDING

    @property
    def ended(self) -> bool:
        """Its processes are dead, and nothing of it comes back."""
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)


@dataclass(frozen=True, slots=True)
class Child:
    """Another child that is there. ``digest`` is what it was last applied with."""

    kind: str
    name: str
    uid: str
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Secrets:
    """What the topology's Secret holds, by key: as it was at ``version``, and never shown."""

    version: str
    data: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The resource of a snapshot. ``periodic`` is the uid of the topology that has taken it by
    itself, empty for one that somebody asks for; ``deletes``: its files go with it."""

    name: str
    uid: str
    version: str
    generation: int
    topology: str
    to: str | None = None
    deletes: bool = False
    periodic: str = ""
    status: SnapshotStatus = field(default_factory=SnapshotStatus)


@dataclass(frozen=True, slots=True)
class Booked:
    """A snapshot that there is a resource of, or was: what the operator has to know when the
    resource is gone. ``snapshot`` is its name in the place ``to`` (None: not known yet, and then
    the topology's own)."""

    __pydantic_config__ = STRICT

    uid: str
    name: str
    snapshot: str
    to: str | None = None
    deletes: bool = False
    periodic: bool = False


@dataclass(frozen=True, slots=True)
class Books:
    """All of a topology."""

    __pydantic_config__ = STRICT

    booked: tuple[Booked, ...] = ()


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that a plan is made of.

    ``nodes`` says of each node that pods name whether it answers; one that is not in it is gone.
    None: nothing is known of nodes, and no pod counts as lost. ``most_silent``: most nodes of the
    cluster do not answer. ``view`` is what the store holds, None before the first driver wrote one;
    ``proposal`` what was last proposed to the driver, ``unread_proposal``: there is one that this
    release cannot read; ``told`` the figures of a driver, which it
    wrote before that view was read. ``window`` is the last sealed one that the driver told.
    ``refusals`` are children that the API server did not take when it was last asked for them, for
    a quota for example, with what it said. ``resync``: it is time to apply also what is unchanged.
    ``strangers`` ("Pod words-state-0") have a child's name and another owner, an earlier resource
    of the topology's name for example; they are nowhere else in this. ``writer``: name of the
    driver's pod that wrote the view, empty where that is not known. ``secrets``: of its own Secret.
    ``snapshots`` are those of the namespace that somebody asked for, those that this topology has
    taken by itself, and the one that it begins with; ``booked`` those of this topology that were
    seen before; ``asked`` tokens of requests in the inbox. ``forks`` are restores, ``restoring``:
    one has begun.
    """

    resource: Resource
    pods: tuple[Pod, ...] = ()
    nodes: Mapping[str, bool] | None = None
    children: tuple[Child, ...] = ()
    accepted: Accepted | None = None
    view: View | None = None
    proposal: Proposal | None = None
    window: int | None = None
    refusals: Mapping[str, str] = field(default_factory=dict)
    resync: bool = False
    told: Status | None = None
    strangers: tuple[str, ...] = ()
    most_silent: bool = False
    snapshots: tuple[Snapshot, ...] = ()
    booked: tuple[Booked, ...] = ()
    asked: frozenset[str] = frozenset()
    forks: tuple[Fork, ...] = ()
    restoring: bool = False
    writer: str = ""
    secrets: Secrets | None = None
    unread_proposal: bool = False

    def of(self, component: Role) -> tuple[Pod, ...]:
        """The pods of a component, by their number."""
        found = (pod for pod in self.pods if pod.component is component)
        return tuple(sorted(found, key=lambda pod: pod.index))

    def child(self, kind: str, name: str) -> Child | None:
        """A child by its kind and name."""
        return next((c for c in self.children if (c.kind, c.name) == (kind, name)), None)

    def lost(self, pod: Pod) -> bool:
        """Whether its node does not answer, or is not there any more: it may run or be dead.

        Where most nodes are silent at once, what is away is the way to them: their pods run, and
        would be killed when it is back. So pods of silent nodes do not count as lost then.
        """
        if pod.node is None or self.nodes is None:
            return False
        if self.most_silent and pod.node in self.nodes:
            return False
        return not self.nodes.get(pod.node, False)

    def silent(self, pod: Pod) -> bool:
        """Whether its node is there and does not answer."""
        return self.nodes is not None and self.nodes.get(pod.node or "") is False

    def kept(self, pod: Pod) -> bool:
        """Whether its node is silent like most, or was until just now: it counts as what it was
        before, whatever is said of it now."""
        if self.nodes is None:
            return False  # it may be dead, and nobody would find out
        answers = self.nodes.get(pod.node or "") is True
        return (pod.silenced and answers) or (self.most_silent and self.silent(pod))

    def alive(self, pod: Pod) -> bool:
        """Whether it runs as far as anyone knows and is to go on doing so."""
        return self.runs(pod) and not pod.deleting

    def runs(self, pod: Pod) -> bool:
        """Whether it runs as far as anyone knows, to go on doing so or not."""
        return pod.phase is PodPhase.RUNNING and not self.lost(pod)


def most_silent(nodes: Mapping[str, bool]) -> bool:
    """Whether more than half of a cluster's nodes do not answer; Kubernetes evicts no pods then."""
    return 2 * sum(not answers for answers in nodes.values()) > len(nodes)


@dataclass(frozen=True, slots=True)
class Moment:
    """What a plan may not find out by itself: the time, and new secrets if some are needed.

    These are texts that nobody can guess, of 32 to 128 letters and digits.
    """

    now: datetime
    password: str = field(repr=False)
    run_key: str = field(repr=False)
    root_key: str = field(repr=False)
