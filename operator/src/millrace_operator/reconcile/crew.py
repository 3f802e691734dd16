"""Ackers and state servers: which pods there are to be, and who of them is proposed to the driver.

An acker may die at any time, so its pods come and go as the number asks. A state server's pod is
another matter: as long as the view names it, the driver may need what it holds, and it is deleted
only if its processes are known to be dead. One on a lost node may still run behind a partition: it
is left out of the proposal at once, and deleted when the driver has moved the view without it, or
where no driver was told of any server yet, since the first proposal waits for all of them. So no
pod is ever deleted that holds the only copy of something; where it does, the topology waits for
its node, or for a user who deletes the pod.

One whose pod is being deleted, as in a drain of its node, is proposed no more and named as leaving:
the driver has the others take over what it holds, and its pod serves until that is done, within its
grace period (``millrace.pods.state_server``).

A driver may still follow an older proposal, and make a server a member after the view was read. So
a server goes only once the last proposal is without it and the driver of the view says that it
follows this one, or where no driver lives. One whose pod was deleted by force on a lost node may
live on without a pod, until another has claimed the view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from millrace.homes.documents import AckerAdvice, Proposal, Status
from millrace.homes.pods import HEALTH_PORT, Role, inbox_map, pod_name, state_url
from millrace.homes.tuning import Tuning
from millrace.protocol.ackerload import AckerBounds
from millrace.protocol.types import Member, Phase, View
from millrace.topology.model import StreamTopology
from millrace_operator.api.resources import AckersStatus
from millrace_operator.api.settings import OperatorSettings
from millrace_operator.builders.naming import Owner
from millrace_operator.builders.pods import acker_pod, acker_print, state_server_pod
from millrace_operator.reconcile.actions import Action, Announce, Create, DeletePod
from millrace_operator.reconcile.observe import Observed, Pod
from millrace_operator.reconcile.troubles import Trouble, last_seen
from millrace_operator.reconcile.unbegun import made_otherwise

REJECTED_S = 10.0
"""So long a pod that ended before it ran is left, before another takes its place."""

UNKNOWN_S = 30.0
"""So long a state server may be ready without saying which incarnation it is: one that has just
begun may be slow at its first answer."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many pods there are to be. Where the load decides on ackers, ``intended`` is what it has
    come to, suspended or not, and ``asked`` the number that it began with."""

    ackers: int
    servers: int
    intended: int | None = None
    asked: int | None = None


def sizes(topology: StreamTopology, observed: Observed) -> Sizes:
    """What a topology asks for. A suspended one has no ackers; its servers hold its state.

    With a least and a most the number that its status holds goes on, as the driver advises, until
    another one is asked for, by ``kubectl scale`` for example.
    """
    spec = topology.spec
    ackers = spec.ackers
    before = observed.resource.status.ackers
    wanted, intended = ackers.replicas, None
    if ackers.least is not None and ackers.most is not None:
        if before is not None and before.intended is not None and before.asked == wanted:
            wanted = before.intended
            advice = observed.told.ackers if observed.told is not None else None
            if advice is not None and (advice.of == wanted or _fewer_suffice(advice, observed)):
                wanted = advice.wanted
        wanted = intended = AckerBounds(ackers.least, ackers.most).clamped(wanted)
    if not spec.tracked or spec.suspend:
        wanted = 0
    servers = 0 if spec.state_servers.url else spec.state_servers.replicas
    return Sizes(wanted, servers, intended, None if intended is None else ackers.replicas)


def _fewer_suffice(advice: AckerAdvice, observed: Observed) -> bool:
    """Whether fewer are enough than those of which the driver was told last: also where more are
    wanted, of which some cannot run."""
    told = observed.proposal
    return told is not None and advice.of == len(told.ackers) and advice.wanted < advice.of


def executors(topology: StreamTopology, told: Status | None) -> int:
    """How many there are to be; between a least and a most the driver says it."""
    asked = topology.spec.spark.executors
    if asked.least is None or asked.most is None or told is None or told.executors is None:
        return asked.instances
    return min(max(told.executors, asked.least), asked.most)


def spark_counts(topology: StreamTopology) -> bool:
    """Whether Spark's own rules say how many executors there are: none, it may be, while no window
    runs."""
    return topology.spec.spark.conf.get("spark.dynamicAllocation.enabled", "") == "true"


def scaled_by_load(before: AckersStatus | None, now: Sizes) -> list[Announce]:
    """An event where the load brought about another number of ackers."""
    if before is None or before.intended is None or before.asked != now.asked:
        return []
    if now.intended in (None, before.intended) or now.ackers == 0:
        return []
    count = f"{now.intended} acker" + ("s" if now.intended != 1 else "")
    text = f"{count} instead of {before.intended}, as the load or the bounds ask for"
    return [Announce("AckersScaled", text)]


def plan_ackers(
    observed: Observed,
    owner: Owner,
    settings: OperatorSettings,
    topology: StreamTopology,
    count: int,
) -> list[Action]:
    """Make what is missing, end what is too much, replace what is dead, on a lost node, made to
    reach another state server, or made otherwise and not begun."""
    pods = observed.of(Role.ACKER)
    there = {pod.index for pod in pods}
    actions: list[Action] = []
    for pod in pods:
        make = partial(acker_pod, owner, settings, topology, pod.index)
        unwanted = not _wanted(pod, topology, count) or made_otherwise(pod, make)
        actions += _ended(observed, pod, unwanted=unwanted)
    missing = [index for index in range(count) if index not in there]
    made = (acker_pod(owner, settings, topology, index) for index in missing)
    return [*actions, *(Create(pod) for pod in made)]


def _wanted(acker: Pod, topology: StreamTopology, count: int) -> bool:
    return acker.index < count and acker.fingerprint == acker_print(topology)


def replaced_ackers(observed: Observed, topology: StreamTopology) -> frozenset[str]:
    """Names of those that are ended for others in their place, which reach another server."""
    wanted = acker_print(topology)
    return frozenset(pod.name for pod in observed.of(Role.ACKER) if pod.fingerprint != wanted)


def plan_servers(
    observed: Observed,
    owner: Owner,
    settings: OperatorSettings,
    topology: StreamTopology,
    count: int,
) -> list[Action]:
    """The same for state servers, which the view protects. Of what is on no node nothing can be
    needed."""
    pods = observed.of(Role.STATE_SERVER)
    there = {pod.index for pod in pods}
    actions: list[Action] = []
    for pod in pods:
        again = made_otherwise(pod, partial(state_server_pod, owner, settings, topology, pod.index))
        unplaced = again and pod.node is None
        if pod.ended or unplaced or not may_be_needed(observed, pod):
            actions += _ended(observed, pod, unwanted=again or pod.index >= count)
    missing = [index for index in range(count) if index not in there]
    made = (state_server_pod(owner, settings, topology, index) for index in missing)
    return [*actions, *(Create(pod) for pod in made)]


def holds_state(observed: Observed, pod: Pod) -> bool:
    """Whether the driver may need what a state server holds."""
    view = observed.view
    if view is None:
        # A driver that was told of them may be about to write the first view.
        return observed.resource.status.driver is not None and _may_be_told(observed)
    return any(m.name == pod.name for m in (*view.last_open, *view.target))


def _may_be_told(observed: Observed) -> bool:
    """Whether a driver may know of a proposal: one that cannot be read here it may have read."""
    follows = observed.told.follows if observed.told is not None else None
    if observed.proposal is not None or observed.unread_proposal or follows is not None:
        return True
    return observed.child("ConfigMap", inbox_map(observed.resource.name)) is None


def may_be_needed(observed: Observed, pod: Pod) -> bool:
    """Whether a server holds state, or may be about to."""
    told, view, proposed = observed.told, observed.view, observed.proposal
    names = {m.name for m in proposed.members} if proposed is not None else set()
    if holds_state(observed, pod) or pod.name in names:
        return True
    if view is None or _no_driver_lives(observed, view):
        return False
    if told is None or told.execution != view.execution or proposed is None:
        return True
    return told.follows != proposed.number


def _no_driver_lives(observed: Observed, view: View) -> bool:
    status = observed.resource.status.driver
    unfenced = status.unfenced if status is not None else None
    if unfenced is not None and view.execution <= unfenced:
        return False
    drivers = observed.of(Role.DRIVER)
    if status is not None and status.standby is not None:
        return False
    if drivers or status is None or status.number == 0:
        return all(driver.ended for driver in drivers)
    # Whoever deleted the last one's pod by force may have left its process behind.
    last = pod_name(observed.resource.name, Role.DRIVER, status.number)
    seen_to_end = (status.ended_pod == last, status.drained, status.gave_up)
    return any(seen_to_end) or last in observed.refusals


def proposal(
    observed: Observed,
    topology: StreamTopology,
    count: Sizes,
    tuning: Tuning | None = None,
) -> Proposal | None:
    """Who is seen alive and is to stay, and who is to leave, or None where nothing is to be said
    yet.

    Members are called as their pods are: by its pod's name an acker knows what it owns. Of nobody
    nothing follows, and the first view is to begin with all of the servers. A server of the user's
    own the driver finds by itself: who is proposed then are ackers alone.
    """
    servers = [
        pod
        for pod in observed.of(Role.STATE_SERVER)
        if pod.index < count.servers or _came_back(observed, pod)
    ]
    staying = [pod for pod in servers if not pod.deleting]
    told, before = observed.told, observed.proposal
    proposed, named_before = (before.members, before.ackers) if before is not None else ((), ())
    members = _members(observed, staying, proposed) if count.servers else ()
    copies = topology.spec.state_servers.copies
    view = observed.view
    if count.servers and view is not None and not view.can_spare_others(members, copies):
        # Whoever is too much leaves once enough of the others are there to have its copies.
        staying = [pod for pod in observed.of(Role.STATE_SERVER) if not pod.deleting]
        members = _members(observed, staying, proposed)
    first = view is None and observed.proposal is None
    if count.servers and (not members or (first and len(members) < count.servers)):
        return None
    ackers = [p for p in observed.of(Role.ACKER) if _wanted(p, topology, count.ackers)]
    answering = (p for p in ackers if p.ready or (observed.kept(p) and p.name in named_before))
    alive = tuple(pod.name for pod in answering if observed.alive(pod))
    last = before.number if before is not None else 0
    named = {member.name for member in members}
    nodes = tuple((pod.name, pod.node) for pod in staying if pod.name in named and pod.node)
    rest = [pod for pod in observed.of(Role.STATE_SERVER) if pod not in staying]
    there = view.target if view is not None else ()
    left = (before.leaving or ()) if before is not None else ()
    kept = [pod for pod in rest if observed.kept(pod)]
    going = *_members(observed, rest), *_members(observed, kept, (*proposed, *left))
    leaving = tuple(member for member in going if member in there)
    made = Proposal(members, alive, last, nodes, leaving or None, tuning)
    if before is not None and not {*(before.leaving or ())}.intersection(there):
        # Those that have left by now need not be told of again.
        before = replace(before, leaving=None)
    if made == before:
        return observed.proposal
    # No number that a driver may have told of an inbox that is lost.
    return replace(made, number=1 + max(last, (told.follows or 0) if told is not None else 0))


def all_copied(observed: Observed, servers: int, copies: int) -> bool:
    """Whether the lives of all state servers are those of an open view with so many copies: each
    holds what it is to.

    A pod is ready before that, and one that suspends has nobody who copies. Behind an edit that
    asks for more copies there are no more until the driver has made them. Before the first view
    none holds anything, unless a driver that has begun is about to write it.
    """
    view = observed.view
    if view is None:
        return not any(pod.begun and not pod.ended for pod in observed.of(Role.DRIVER))
    if view.phase is not Phase.OPEN:
        return False
    if view.owners_each < min(copies, len(view.target)):
        return False
    pods = [pod for pod in observed.of(Role.STATE_SERVER) if pod.index < servers]
    return {(m.name, m.run_id) for m in view.target} == {(p.name, p.run_id) for p in pods}


def _members(
    observed: Observed, pods: Sequence[Pod], before: Sequence[Member] = ()
) -> tuple[Member, ...]:
    """The incarnations in those of some pods that run as far as anyone knows and answer, to go on
    doing so or not. One whose node calls it ready and that does not say which it is, to an operator
    that has just begun and asks all of them for example, is who it was ``before``. So is one of a
    silent node where most are: Kubernetes calls its pods not ready, and nobody asks them."""
    known = {(member.name, member.url): member for member in before}
    found = []
    for pod in pods:
        kept = observed.kept(pod)
        if not (observed.runs(pod) and (pod.ready or kept) and pod.address is not None):
            continue
        url = state_url(pod.address)
        if pod.run_id is not None and not kept:
            found.append(Member(pod.name, pod.run_id, url))
        elif (pod.name, url) in known:
            found.append(known[pod.name, url])
    return tuple(found)


def unknown_server(observed: Observed, count: int) -> Trouble | None:
    """The first of the state servers that are to be there which is ready, and has not been proposed
    for a while, since the operator does not hear from it which incarnation it is."""
    proposed = observed.proposal.members if observed.proposal is not None else ()
    for pod in observed.of(Role.STATE_SERVER):
        waits = pod.ready and observed.alive(pod) and pod.run_id is None
        if not waits or pod.index >= count or pod.ready_s < UNKNOWN_S or observed.kept(pod):
            continue
        if not _members(observed, [pod], proposed):
            text = (
                f"{answering(observed, count)}; pod {pod.name} is ready on node {pod.node}, and "
                f"does not tell the operator on port {HEALTH_PORT} which server it is, so that no "
                "driver is told of it: let the operator's pod reach that port of it, through "
                "network policies, a mesh and firewalls between nodes"
            )
            return Trouble("StateServerUnknown", text)
    return None


def answering(observed: Observed, count: int) -> str:
    """How many state servers say which incarnation they are."""
    seen = sum(pod.run_id is not None for pod in observed.of(Role.STATE_SERVER))
    return f"{seen} of {count} state servers answer"


def _came_back(observed: Observed, pod: Pod) -> bool:
    """Whether a server that is to leave runs again with its file since the view was opened. It is
    proposed until it has been a member: what it alone holds can be copied from a member only."""
    members = observed.view.last_open if observed.view is not None else ()
    lives = {m.run_id for m in members if m.name == pod.name}
    return bool(lives) and pod.run_id is not None and pod.run_id not in lives


def lost_members(
    observed: Observed, topology: StreamTopology, proposed: Proposal | None, count: Sizes
) -> list[Announce]:
    """A warning for each acker and state server that is to be there, and is proposed no more. Whom
    the operator itself replaces nobody has lost, and one that leaves not yet."""
    before = observed.proposal
    if before is None or proposed is None:
        return []
    name = observed.resource.name
    servers = {pod_name(name, Role.STATE_SERVER, index) for index in range(count.servers)}
    ackers = {pod_name(name, Role.ACKER, index) for index in range(count.ackers)}
    there = observed.of(Role.ACKER)
    ackers -= {pod.name for pod in there if not _wanted(pod, topology, count.ackers)}
    now = {member.name: member.run_id for member in proposed.members}
    leaving = proposed.leaving or ()
    told = []
    for member in before.members:
        if member.name in servers and member in leaving:
            text = f"{member.name} is being deleted: the others take over what it holds before that"
            told.append(Announce("StateServerLeaves", text))
        elif member.name in servers and now.get(member.name) != member.run_id:
            back = "came back as another incarnation" if member.name in now else "is not seen alive"
            text = _with_cause(observed, member.name, back)
            told.append(Announce("StateServerLost", text, warning=True))
    for name in before.ackers:
        if name in ackers and name not in proposed.ackers:
            text = _with_cause(observed, name, "is not seen alive")
            told.append(Announce("AckerLost", text, warning=True))
    return told


def _with_cause(observed: Observed, name: str, text: str) -> str:
    why = last_seen(observed, name)
    return f"{name} {text}: {why}" if why else f"{name} {text}"


def _ended(observed: Observed, pod: Pod, *, unwanted: bool) -> list[Action]:
    """The deletion of a pod that is dead, lost or unwanted; nothing for others."""
    lost = observed.lost(pod)
    if lost:
        return [DeletePod(pod.name, pod.uid, force=True)]
    if _spared_s(pod) is not None and not unwanted:
        return []
    if (pod.ended or unwanted) and not pod.deleting:
        return [DeletePod(pod.name, pod.uid)]
    return []


def _spared_s(pod: Pod) -> float | None:
    """For how many seconds more a pod that ended before it ran is left, None for others. Its node
    does not take it, and would be asked again at once about the next one: for want of room on a
    disk, say, where the scheduler goes by less than the kubelet."""
    if not pod.ended or pod.started or pod.deleting or not 0 <= pod.age_s < REJECTED_S:
        return None
    return REJECTED_S - pod.age_s


def rejected_wait_s(observed: Observed) -> float | None:
    """When the first of these gives way to another."""
    pods = (*observed.of(Role.ACKER), *observed.of(Role.STATE_SERVER))
    return min((left for pod in pods if (left := _spared_s(pod)) is not None), default=None)
