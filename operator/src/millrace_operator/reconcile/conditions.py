"""What is told of a topology: conditions, a phase derived from them, numbers of its pods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from millrace.homes.documents import SERVER_TROUBLES
from millrace.homes.pods import Role, executor_prefix, pod_name
from millrace_operator.api.resources import (
    AckersStatus,
    Condition,
    ConditionStatus,
    ConditionType,
    CrewStatus,
    DriverStatus,
    Phase,
    TopologyStatus,
)
from millrace_operator.api.times import rfc3339, until_s
from millrace_operator.builders.naming import Owner, selector_text
from millrace_operator.reconcile.actions import Announce
from millrace_operator.reconcile.crew import Sizes, all_copied, unknown_server
from millrace_operator.reconcile.driver import newest
from millrace_operator.reconcile.observe import Observed, Pod, PodPhase, Resource
from millrace_operator.reconcile.troubles import Trouble, executor_trouble, first_trouble

EXECUTORS_AWAY_S = 30.0
"""How long a topology that was ready stays so while no executor is: Spark replaces those that end,
in a few seconds where there is room."""


RECONCILE_FAILED = "ReconcileFailed"
"""Reason of a topology whose turns do not come to their end."""


LONGEST = 4096
"""Characters of a message. What an API server refuses something with, or a driver says of its end,
may be of any length, and a status that is too long is taken by nobody."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a plan found out. ``stalled`` is what only a user can mend, ``outdated`` names pods with
    images of another release, None where that was not asked. ``standbys``: drivers that are to
    stand by. ``spark_counts``: how many executors there are to be is for Spark to say. ``copies``
    of all state are asked for. ``held``: no pod is made while it stalls; ``known``: somebody knows
    what is asked for. ``restarts``: the driver that runs is ended for another one, and so are the
    ackers ``replaced``, by their names: who waits for an edit shall not take them for what it
    brings."""

    sizes: Sizes
    executors: int
    driver: DriverStatus | None
    stalled: Trouble | None = None
    finished: bool = False
    suspended: bool = False
    waiting: str = ""
    outdated: tuple[str, ...] | None = None
    standbys: int = 0
    spark_counts: bool = False
    copies: int = 1
    held: bool = False
    known: bool = True
    restarts: bool = False
    replaced: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Fact:
    """One condition before it has a time. ``passing``: it may hold again in a moment."""

    type: ConditionType
    holds: bool
    reason: str
    message: str = ""
    wrong: bool = False
    passing: bool = False


def status_of(
    observed: Observed, owner: Owner, standing: Standing, now: datetime
) -> TopologyStatus:
    """The whole status."""
    before = observed.resource.status
    facts = _facts(observed, owner, standing, now)
    ready = next(fact for fact in facts if fact.type is ConditionType.READY)
    return TopologyStatus(
        observedGeneration=observed.resource.generation,
        phase=_phase(observed, standing, ready.holds),
        message=cut(ready.message) or None,
        conditions=conditions_of(facts, before.conditions, observed.resource.generation, now),
        driver=standing.driver,
        ackers=_ackers(observed, owner, standing.sizes),
        stateServers=_crew(observed.of(Role.STATE_SERVER), observed, standing.sizes.servers),
        executors=_crew(_executors(observed), observed, standing.executors),
        # What was there once is known as long as the topology lives: maps may be deleted.
        window=observed.window if observed.window is not None else before.window,
        epoch=observed.view.epoch if observed.view is not None else before.epoch,
        lastSnapshot=before.last_snapshot,
    )


def paused_status(observed: Observed, now: datetime) -> TopologyStatus:
    """Of a topology that the operator leaves alone: all but that stays as it was told last."""
    before = observed.resource.status
    text = "the annotation millrace.dev/paused is set: the operator changes nothing"
    fact = Fact(ConditionType.RECONCILING, False, "Paused", text)
    others = [c for c in before.conditions if c.type != ConditionType.RECONCILING]
    made = conditions_of([fact], before.conditions, observed.resource.generation, now)
    update = {"phase": Phase.PAUSED, "message": text, "conditions": (*others, *made)}
    return before.model_copy(update=update)


def failed_status(
    status: TopologyStatus, failure: str, resource: Resource, now: datetime
) -> TopologyStatus:
    """A status of a topology whose turns do not come to their end, and why; the rest stays.

    Its generation counts as observed: what waits for that would take the failure for progress.
    """
    facts = [
        Fact(ConditionType.READY, False, RECONCILE_FAILED, failure),
        Fact(ConditionType.STALLED, True, RECONCILE_FAILED, failure, True),
        Fact(ConditionType.RECONCILING, False, "Settled"),
    ]
    known = resource.status.conditions
    made = {one.type: one for one in conditions_of(facts, known, resource.generation, now)}
    kept = [made.pop(one.type, one) for one in status.conditions]
    update = {
        "observed_generation": resource.generation,
        "phase": Phase.STALLED,
        "message": failure,
        "conditions": (*kept, *made.values()),
    }
    return status.model_copy(update=update)


def held_back(status: TopologyStatus, resource: Resource, now: datetime) -> TopologyStatus:
    """What is told until a plan is carried out to its end: where the one before was not, its
    failure as before. Else each that fails late would say that all is well, and then that it is
    not."""
    before = resource.status.conditions
    failed = next((one for one in before if one.type == ConditionType.STALLED), None)
    if failed is None or failed.reason != RECONCILE_FAILED:
        return status
    return failed_status(status, failed.message, resource, now)


def transitions(before: TopologyStatus, after: TopologyStatus) -> list[Announce]:
    """Events for what is told for the first time: a trouble of any condition, and being ready."""
    known = {c.type: (c.status, c.reason) for c in before.conditions}
    events = []
    for condition in after.conditions:
        if known.get(condition.type) == (condition.status, condition.reason):
            continue
        if condition.type == ConditionType.READY:
            if condition.status is ConditionStatus.TRUE:
                events.append(Announce(condition.reason, condition.message or "all pods are ready"))
        elif condition.type != ConditionType.RECONCILING and condition.reason not in _UNTOLD:
            told = Announce(condition.reason, condition.message, warning=True)
            # What stalls may hold up others, too.
            events += [told] if told not in events else []
    return events


_NAMED = 5
_ORDINARY = frozenset(
    {
        *("AllReady", "DriverRunning", "Suspending", "Suspended", "Drained", "NotNeeded"),
        *("NothingStalls", "Starting", "Growing", "Moving", "Settled", "ImagesCurrent"),
        # The driver tells of these itself.
        *("Restoring", "StateLost", "BeganWithSnapshot"),
    }
)
"""Reasons of conditions that tell of no trouble."""

_SUSPENDING = "Suspending"

_UNTOLD = _ORDINARY | SERVER_TROUBLES
"""What is no event of the operator: the driver tells of its troubles with servers itself."""


def _facts(observed: Observed, owner: Owner, standing: Standing, now: datetime) -> list[Fact]:
    spark = _spark(observed, owner, standing)
    ackers = _held(_ackers_available(observed, owner, standing), standing)
    state = _held(_state_available(observed, owner, standing), standing)
    stalled = standing.stalled
    settled = standing.suspended or standing.finished
    # Whoever waits until a topology is suspended is to find no driver that still writes.
    rests = settled and spark.reason != _SUSPENDING
    needed = (state, ackers) if rests else (spark, state, ackers)
    spared = spark.passing and spared_s(observed.resource.status, now) > 0
    # What is in trouble is what the others wait for.
    ranked = sorted(needed, key=_rank)
    lacking = next((one for one in ranked if not one.holds and not (spared and one is spark)), None)
    facts = [spark, ackers, state, *_up_to_date(standing), *_restored(observed)]
    if standing.standbys and not settled:
        facts.append(_standby(observed, owner, standing.driver))
    if stalled is not None:
        facts.append(Fact(ConditionType.STALLED, True, stalled.reason, stalled.message, True))
    else:
        facts.append(Fact(ConditionType.STALLED, False, "NothingStalls"))
    if stalled is not None:
        ready = Fact(ConditionType.READY, False, stalled.reason, stalled.message)
    elif settled and lacking is None:
        reason = "Suspended" if standing.suspended else "Drained"
        text = "only the state servers run" if standing.suspended else "all sources are drained"
        ready = Fact(ConditionType.READY, True, reason, text)
    elif lacking is not None:
        ready = Fact(ConditionType.READY, False, lacking.reason, lacking.message)
    else:
        ready = Fact(ConditionType.READY, True, "AllReady", spark.message if spared else "")
    going = not ready.holds and stalled is None
    reason = ready.reason if going else "Settled"
    facts.append(Fact(ConditionType.RECONCILING, going, reason, ready.message if going else ""))
    return [ready, *facts]


def _rank(fact: Fact) -> int:
    return 0 if fact.wrong else 1


def _spark(observed: Observed, owner: Owner, standing: Standing) -> Fact:
    kind = ConditionType.SPARK_RUNNING
    if standing.suspended:
        ending = next((p for p in reversed(observed.of(Role.DRIVER)) if not p.ended), None)
        if ending is not None:
            return Fact(kind, False, _SUSPENDING, _being_ended(observed, ending))
        return Fact(kind, False, "Suspended", "spec.suspend is true")
    if standing.finished:
        return Fact(kind, False, "Drained", "all sources are drained")
    if standing.restarts:
        return Fact(kind, False, "Starting", "the driver starts again, with what is asked for now")
    number = newest(observed)
    pods = [p for p in observed.of(Role.DRIVER) if p.index == number]
    names = [pod_name(owner.name, Role.DRIVER, number)]
    running = [p for p in pods if observed.alive(p) and p.ready]
    if running:
        return _executing(observed, standing, f"driver pod {running[0].name} is ready")
    found = first_trouble(observed, [*pods, *_executors(observed)], names)
    if found is not None:
        return Fact(kind, False, found.reason, found.message, True)
    text = _and_waits_for("the driver's pod is not ready yet", observed, pods)
    return Fact(kind, False, "Starting", standing.waiting or text)


def _being_ended(observed: Observed, pod: Pod) -> str:
    text = f"driver pod {pod.name} is being ended"
    if observed.lost(pod) or observed.silent(pod):
        node = f"its node {pod.node} does not answer or is gone"
        return f"{text}; {node}, so that it may still run and write"
    return text


def _executing(observed: Observed, standing: Standing, driver: str) -> Fact:
    """Whether the driver has an executor to run a window on, where it needs one."""
    kind, wanted = ConditionType.SPARK_RUNNING, 0 if standing.spark_counts else standing.executors
    pods = _executors(observed)
    ready = _ready(pods, observed)
    if ready >= wanted:
        return Fact(kind, True, "DriverRunning", driver)
    found = executor_trouble(observed, pods)
    if ready and found is None:
        return Fact(kind, True, "DriverRunning", driver)
    if ready and found is not None:
        text = f"{ready} of {wanted} executors are ready: {found.reason}: {found.message}"
        return Fact(kind, True, "ExecutorsMissing", text)
    if found is not None:
        return Fact(kind, False, found.reason, found.message, True, passing=True)
    return Fact(kind, False, "Starting", f"{driver}, no executor is there yet", passing=True)


def spared_s(before: TopologyStatus, now: datetime) -> float:
    """For how many seconds more a topology that was ready may be without executors and stay so; 0
    for one that was not ready."""
    known = {condition.type: condition for condition in before.conditions}
    ready, spark = (known.get(one) for one in (ConditionType.READY, ConditionType.SPARK_RUNNING))
    if ready is None or spark is None or ready.status is not ConditionStatus.TRUE:
        return 0.0
    if spark.status is ConditionStatus.TRUE:
        return EXECUTORS_AWAY_S
    # Another operator's clock may have been ahead.
    return EXECUTORS_AWAY_S + min(0.0, until_s(spark.last_transition_time, now))


def again_s(status: TopologyStatus, now: datetime) -> float | None:
    """When a topology that is ready without executors is to be looked at again, though nothing is
    seen of it."""
    spark = next(one for one in status.conditions if one.type == ConditionType.SPARK_RUNNING)
    left_s = 0.0 if spark.status is ConditionStatus.TRUE else spared_s(status, now)
    return left_s if left_s > 0 else None


def _standby(observed: Observed, owner: Owner, driver: DriverStatus | None) -> Fact:
    """Whether the next driver could go on at once. The topology is ready without."""
    kind, number = ConditionType.STANDBY_READY, driver.standby if driver is not None else None
    if driver is not None and driver.standby_failures > 0:
        text = f"{driver.standby_failures} pods in a row did not get ready"
        return Fact(kind, False, "StandbyFails", text, True)
    if number is None:
        return Fact(kind, False, "Starting", "one is made when the driver works")
    pods = [pod for pod in observed.of(Role.DRIVER) if pod.index == number]
    if any(pod.ready and observed.alive(pod) for pod in pods):
        return Fact(kind, True, "AllReady", f"driver pod {pods[0].name} stands by")
    found = first_trouble(observed, pods, [pod_name(owner.name, Role.DRIVER, number)])
    if found is not None:
        return Fact(kind, False, found.reason, found.message, True)
    text = _and_waits_for("the pod that is to stand by is not ready yet", observed, pods)
    return Fact(kind, False, "Starting", text)


def _up_to_date(standing: Standing) -> Iterator[Fact]:
    """An image is no part of what a topology says: nobody restarts anything for another one."""
    kind, found = ConditionType.UP_TO_DATE, standing.outdated
    if found is None:
        return
    if not found:
        yield Fact(kind, True, "ImagesCurrent")
        return
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    text = (
        f"{', '.join(found[:_NAMED])}{more} run the image that they were made with, and the "
        "operator has another: docs/install.md says how pods are renewed"
    )
    yield Fact(kind, False, "RunsOldImage", text, True)


def _restored(observed: Observed) -> Iterator[Fact]:
    """Said as long as the topology lives, once it was restored."""
    kind = ConditionType.RESTORED
    if observed.restoring:
        yield Fact(kind, False, "Restoring", "a driver restores a snapshot; no window runs")
        return
    last = max(observed.forks, key=lambda fork: fork.timeline, default=None)
    if last is None:
        return
    text = f"snapshot {last.snapshot} is restored behind window {last.window}, as timeline "
    text += str(last.timeline)
    if last.last is not None:
        text += f"; windows {last.window + 1} to {last.last} were given up and processed again"
    yield Fact(kind, True, "StateLost" if last.lost else "BeganWithSnapshot", text)


def _held(fact: Fact, standing: Standing) -> Fact:
    """What is not there waits for what stalls, where nothing is made meanwhile."""
    stalled, lacking = standing.stalled, not fact.holds and not fact.wrong
    if stalled is None or not standing.held or (standing.known and not lacking):
        return fact
    return Fact(fact.type, False, stalled.reason, stalled.message, True)


def _ackers_available(observed: Observed, owner: Owner, standing: Standing) -> Fact:
    kind, wanted = ConditionType.ACKERS_AVAILABLE, standing.sizes.ackers
    if wanted == 0:
        return Fact(kind, True, "NotNeeded", "no acker is asked for")
    return _available(observed, owner, kind, Role.ACKER, wanted, standing.replaced)


def _state_available(observed: Observed, owner: Owner, standing: Standing) -> Fact:
    kind, wanted = ConditionType.STATE_AVAILABLE, standing.sizes.servers
    fact = Fact(kind, True, "NotNeeded", "the topology names a server of its own")
    if wanted > 0:
        fact = _available(observed, owner, kind, Role.STATE_SERVER, wanted)
    settled = standing.suspended or standing.finished or standing.stalled is not None
    troubles = None if observed.told is None or settled else observed.told.troubles
    if fact.holds and troubles and any(map(observed.alive, observed.of(Role.DRIVER))):
        # What an operator sees of a server is not what a driver does: it may answer and be full.
        text = "; ".join(one.text for one in troubles)
        return Fact(kind, False, troubles[0].kind, text, True)
    if fact.holds and (unknown := unknown_server(observed, wanted)) is not None:
        return Fact(kind, False, unknown.reason, unknown.message, True)
    view = observed.view
    if not fact.holds or wanted == 0 or view is None:
        # Without a view there is no state.
        return fact
    if all_copied(observed, wanted, standing.copies):
        return fact
    if remedy := _driverless(observed, standing):
        text = (
            "not every state server holds the copies that it is to, and no driver runs that makes "
            f"them: delete no pod of a state server; {remedy}"
        )
        return Fact(kind, True, "CopiesMissing", text)
    text = f"the view moves to its new members or copies, epoch {view.epoch}"
    return Fact(kind, True, "Moving", text)


def _driverless(observed: Observed, standing: Standing) -> str:
    """What brings back a driver where none runs and none follows; empty where one does."""
    if standing.suspended:
        return "take spec.suspend back first"
    if standing.finished:
        return "start a driver first, by another spec.restartNonce"
    given_up = standing.driver is not None and standing.driver.gave_up is not None
    if given_up or (standing.held and all(pod.ended for pod in observed.of(Role.DRIVER))):
        return "mend first what stalls"
    return ""


def _available(
    observed: Observed,
    owner: Owner,
    kind: ConditionType,
    component: Role,
    wanted: int,
    replaced: frozenset[str] = frozenset(),
) -> Fact:
    kept = (pod for pod in observed.of(component) if pod.name not in replaced)
    pods = [pod for pod in kept if pod.index < wanted]
    ready = _ready(pods, observed)
    if ready >= wanted:
        return Fact(kind, True, "AllReady", f"{ready} of {wanted} pods are ready")
    names = [pod_name(owner.name, component, index) for index in range(wanted)]
    found = first_trouble(observed, pods, names)
    if found is not None:
        return Fact(kind, False, found.reason, found.message, True)
    text = f"{ready} of {wanted} {component.value} pods are ready"
    return Fact(kind, False, "Growing", _and_waits_for(text, observed, pods))


def _and_waits_for(text: str, observed: Observed, pods: Sequence[Pod]) -> str:
    """With what the first pod that is not ready waits for, of which no more is known."""
    for pod in pods:
        if pod.deleting:
            return f"{text}; {pod.name} is being deleted, and another is made once it is gone"
        if pod.node is not None and not pod.begun and not observed.lost(pod):
            return f"{text}; {pod.name} waits on node {pod.node} for volumes, network or containers"
    return text


def _phase(observed: Observed, standing: Standing, ready: bool) -> Phase:
    if observed.resource.deleting:
        return Phase.DELETING
    if standing.stalled is not None:
        return Phase.STALLED
    if standing.suspended:
        return Phase.SUSPENDED
    if standing.finished:
        return Phase.FINISHED
    if ready:
        return Phase.RUNNING
    started = any(p.phase is not PodPhase.PENDING for p in observed.of(Role.DRIVER))
    return Phase.STARTING if started else Phase.PENDING


def cut(message: str) -> str:
    """What of a message is told."""
    return message[:LONGEST]


def conditions_of(
    facts: Iterable[Fact], before: Iterable[Condition], generation: int, now: datetime
) -> tuple[Condition, ...]:
    """Facts with the times since which they hold, by the conditions that were told before."""
    known = {condition.type: condition for condition in before}
    moment = rfc3339(now.replace(microsecond=0))
    made = []
    for fact in facts:
        status = ConditionStatus.TRUE if fact.holds else ConditionStatus.FALSE
        was = known.get(fact.type.value)
        since = was.last_transition_time if was is not None and was.status is status else moment
        made.append(
            Condition(
                type=fact.type.value,
                status=status,
                observedGeneration=generation,
                lastTransitionTime=since,
                reason=fact.reason,
                message=cut(fact.message),
            )
        )
    return tuple(made)


def _executors(observed: Observed) -> list[Pod]:
    """Those of the driver; one that stands by may have its own."""
    driver = pod_name(observed.resource.name, Role.DRIVER, newest(observed))
    prefix = f"{executor_prefix(driver)}-exec-"
    return [pod for pod in observed.of(Role.EXECUTOR) if pod.name.startswith(prefix)]


def _ready(pods: Iterable[Pod], observed: Observed) -> int:
    return sum(pod.ready and observed.alive(pod) for pod in pods)


def _crew(pods: Sequence[Pod], observed: Observed, desired: int) -> CrewStatus:
    ready = _ready(pods, observed)
    return CrewStatus(desired=desired, ready=ready, summary=f"{ready}/{desired}")


def _ackers(observed: Observed, owner: Owner, sizes: Sizes) -> AckersStatus:
    pods, desired = observed.of(Role.ACKER), sizes.ackers
    ready = _ready(pods, observed)
    return AckersStatus(
        desired=desired,
        ready=ready,
        summary=f"{ready}/{desired}",
        replicas=len(pods),
        selector=selector_text(owner.selector(Role.ACKER.value)),
        intended=sizes.intended,
        asked=sizes.asked,
    )
