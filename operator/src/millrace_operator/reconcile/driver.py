"""The driver's pod: one at a time by number, each the only life of its own name.

A number is written to the status before its pod is created, and is used for one creation. So a pod
that is not there any more is never made again: whatever became of it, the next one has a higher
number, and of two that run at once the operator ends the older one while the protocol fences it.

What happens if the operator dies

- after the status, before the pod: the next plan finds no pod of the number and takes the next one;
- after the pod: the next plan finds it, and all is as if it had created it itself.

The status also says, before a driver on a lost node is deleted by force, which execution may live
on without a pod: what no driver needs is deleted only behind that (``crew``).

A driver's pod that is being deleted, ended or is on a lost node is replaced at once, without
waiting until it is proven dead. Where another one stands by, that is the next driver (``standby``).
Not so one that has drained its input, or on which was given up: the status says so of the
fingerprint that it was started with, or of all that was declared then, since any edit mends the
latter, and goes by that when the pod is collected. What happens if the operator dies between such
an end and its status: if the pod goes too, another driver starts, and ends as that did.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import assert_never

from millrace.errors import ExitCode
from millrace.homes.accepted import Accepted
from millrace.homes.pods import Role, pod_name
from millrace.homes.restarts import (
    DELAYS_S,
    FINAL_CODES,
    STANDBY_EARLY_PATIENCE_S,
    STANDBY_PATIENCE_S,
    Again,
    GiveUp,
    Restarts,
    wait_s,
)
from millrace.homes.settings import RestoreSettings
from millrace.topology.model import StreamTopology
from millrace_operator.api.resources import DriverStatus
from millrace_operator.api.settings import OperatorSettings
from millrace_operator.api.times import rfc3339, until_s
from millrace_operator.builders.documents import driver_map
from millrace_operator.builders.naming import Owner
from millrace_operator.builders.pods import code_image, driver_pod
from millrace_operator.reconcile.actions import Action, Announce, Create, DeletePod
from millrace_operator.reconcile.edits import declared, fingerprint, fingerprints
from millrace_operator.reconcile.observe import Observed, Pod, PodPhase
from millrace_operator.reconcile.standby import NO_STANDBY, RESTORE_PATIENCE_S, keep_standby
from millrace_operator.reconcile.troubles import Trouble
from millrace_operator.reconcile.unbegun import made_otherwise

_GAVE_UP = "DriverGaveUp"
_REFUSED = "SnapshotRefused"
"""The same of one that could not begin with the snapshot that it was to begin with."""

_NO_CODE = -1
"""Of a driver that did not end by itself."""


@dataclass(frozen=True, slots=True)
class DriverPlan:
    """``events`` and ``actions`` are in order; ``wait_s`` is when to look again by the clock.

    ``gave_up`` says why no further driver is started, ``finished`` that all input is drained,
    ``restarts`` that the driver that runs is ended for what is asked for now.
    """

    status: DriverStatus | None
    events: tuple[Announce, ...] = ()
    actions: tuple[Action, ...] = ()
    wait_s: float | None = None
    gave_up: Trouble | None = None
    finished: bool = False
    restarts: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a driver would be started with."""

    owner: Owner
    settings: OperatorSettings
    topology: StreamTopology
    accepted: Accepted
    restore: RestoreSettings | None = None


def newest(observed: Observed) -> int:
    """The highest number of a driver that works, worked or was to: not of one that stands by."""
    told = observed.resource.status.driver
    drivers = observed.of(Role.DRIVER)
    numbers = [pod.index for pod in drivers if not pod.standby or pod.name == observed.writer]
    return max([told.number if told is not None else 0, *numbers])


def highest(observed: Observed) -> int:
    """The highest number that any driver's pod has or was to have."""
    told = observed.resource.status.driver
    given = told.given if told is not None else 0
    return max([newest(observed), given, *(pod.index for pod in observed.of(Role.DRIVER))])


def none_has_begun(observed: Observed) -> bool:
    """Whether no driver has run yet, so that none can have claimed anything: the pod of each number
    was refused, or waits, on no node or on one that answers and would say that it runs."""
    told = observed.resource.status.driver or DriverStatus()
    pods = {pod.index: pod for pod in observed.of(Role.DRIVER)}
    if observed.told is not None or any(pod.begun for pod in pods.values()):
        return False
    nodes = observed.nodes or {}
    for number in range(told.refused + 1, highest(observed) + 1):
        pod, name = pods.get(number), pod_name(observed.resource.name, Role.DRIVER, number)
        if pod is None and name not in observed.refusals:
            return False
        if pod is not None and pod.node is not None and not nodes.get(pod.node, False):
            return False
    return True


def plan_driver(observed: Observed, wanted: Wanted, now: datetime) -> DriverPlan:
    """What follows for the driver from what is seen."""
    before = observed.resource.status.driver
    number = newest(observed)
    status = _by_clock((before or DriverStatus()).model_copy(update={"number": number}), now)
    status = _gone_back(observed, status)
    current = next((p for p in observed.of(Role.DRIVER) if p.index == number), None)
    known = before is not None and before.number == number
    claimed = current is not None and bool(current.standby) and not known
    if claimed:
        status = _taken_over(status, observed.window or 0)
    others = [p for p in observed.of(Role.DRIVER) if p.index != number]
    if wanted.topology.spec.suspend:
        # No driver follows that fences them: a pod stays until its node says that it is dead. One
        # that stands by goes first: it would take over.
        ending = [pod for pod in (*reversed(others), current) if pod is not None]
        ending = [pod for pod in ending if not pod.deleting]
        ended = [DeletePod(pod.name, pod.uid) for pod in ending if pod in others or not pod.ended]
        if current is not None and not current.ended:
            status = _ending(status, current)
        status = status.model_copy(update=NO_STANDBY)
        if status.gave_up is not None:
            # So that the end of this is an edit of it.
            status = status.model_copy(update={"gave_up": declared(wanted.accepted)})
        return DriverPlan(before if before is None else status, (), tuple(ended))
    made = _plan_current(observed, wanted, status, current, now)
    told = made.status or status
    kept = {told.number, told.standby}
    # Those that stand by and are to go before the driver that is, or they would follow it.
    gone = [pod for pod in reversed(others) if pod.index not in kept]
    cleaning = [action for pod in gone for action in _end(observed, pod)]
    events = made.events
    if claimed and current is not None:
        # Its predecessor was gone before anybody could tell of that.
        events = (_took_over(observed, current, warning=True), *events)
    actions = (*cleaning, *made.actions)
    unfenced = _unfenced(observed, made.status, actions)
    return replace(made, status=unfenced, events=events, actions=actions)


def _taken_over(status: DriverStatus, window: int) -> DriverStatus:
    """Of a driver that stood by and is the one now: it goes on with its predecessor's history."""
    begun = {"restored_window": window, "standby": None, "claim_by": None, "retry_at": None}
    settled = {"ended_pod": None, "drained": None, "gave_up": None}
    return status.model_copy(update={**begun, **settled})


def _gone_back(observed: Observed, status: DriverStatus) -> DriverStatus:
    """Behind a restore to a window before that with which the driver began, that is what it has
    to be ahead of."""
    window = observed.window
    if not observed.forks or window is None or window >= (status.restored_window or 0):
        return status
    return status.model_copy(update={"restored_window": window})


def _took_over(observed: Observed, heir: Pod, *, warning: bool = False) -> Announce:
    what = f"goes on from sealed window {observed.window or 0}"
    if observed.restoring:
        what = "begins the restore anew that was under way"
    text = f"driver pod {heir.name}, which stood by, {what}"
    return Announce("StandbyTookOver", text, warning)


def _unfenced(
    observed: Observed, status: DriverStatus | None, actions: tuple[Action, ...]
) -> DriverStatus | None:
    """With the execution that a driver may have which is deleted before it is known to be dead."""
    forced = any(isinstance(action, DeletePod) and action.force for action in actions)
    if status is None or not forced:
        return status
    return status.model_copy(update={"unfenced": _highest_execution(observed)})


def _highest_execution(observed: Observed) -> int:
    """That a driver may have whose end nobody saw."""
    # Without a view it may be about to write the first one.
    return observed.view.execution if observed.view is not None else 1


def _plan_current(
    observed: Observed, wanted: Wanted, status: DriverStatus, pod: Pod | None, now: datetime
) -> DriverPlan:
    prints = fingerprints(wanted.accepted)
    drained = status.model_copy(update={**NO_STANDBY, "drained": prints[0]})
    if status.drained in prints:
        return DriverPlan(drained, finished=True)
    if status.gave_up is not None and status.gave_up in _given_up_as(wanted.accepted):
        given_up = declared(wanted.accepted)
        status = status.model_copy(update={**NO_STANDBY, "gave_up": given_up})
        return DriverPlan(status, gave_up=_given_up(observed, wanted, status, pod))
    if pod is None:
        return _after_absence(observed, wanted, status, now)
    # One that was given up for what was declared then has another chance.
    mended = pod.ended and status.gave_up is not None
    changed = mended or pod.fingerprint not in prints or _made_otherwise(wanted, pod)
    if pod.phase is PodPhase.SUCCEEDED and not changed:
        return DriverPlan(drained, finished=True)
    if pod.deleting or observed.lost(pod):
        return _start(observed, wanted, status, pod, now)
    match pod.phase:
        case PodPhase.SUCCEEDED | PodPhase.FAILED if changed:
            forgiven = _forgiven(status)
            return _start(observed, wanted, forgiven, pod, now)
        case PodPhase.FAILED:
            return _after_failure(observed, wanted, status, pod, now)
        case _:
            if changed:
                # Asked to end it stops behind what is sealed; the next one follows at once.
                status = _ending(status, pod).model_copy(update=NO_STANDBY)
                return DriverPlan(status, (), (DeletePod(pod.name, pod.uid),), restarts=True)
            status = status.model_copy(update={"pod": pod.name, "ended_pod": None})
            return _running(observed, wanted, status, pod, now)


def _made_otherwise(wanted: Wanted, pod: Pod) -> bool:
    owner, settings, topology = wanted.owner, wanted.settings, wanted.topology
    told = (pod.index, pod.fingerprint, wanted.accepted.retired, pod.standby)
    return made_otherwise(pod, partial(driver_pod, owner, settings, topology, *told))


def _outdated(wanted: Wanted, standby: Pod) -> bool:
    """Whether another one is to stand by than this."""
    if standby.image and standby.image != code_image(wanted.settings, wanted.topology):
        return True
    if standby.standby != wanted.topology.spec.spark.driver.standby_executors.value:
        return True
    return _made_otherwise(wanted, standby)


def _running(
    observed: Observed, wanted: Wanted, status: DriverStatus, pod: Pod, now: datetime
) -> DriverPlan:
    """A driver that stood by has to take over in time; behind one that works another stands by."""
    if not pod.standby or observed.writer == pod.name:
        status = status.model_copy(update={"claim_by": None})
        told = (status, pod, highest(observed), now)
        kept = keep_standby(observed, wanted.topology, *told, partial(_outdated, wanted))
        if kept.number is None:
            return DriverPlan(kept.status, kept.events, wait_s=kept.wait_s)
        mode = wanted.topology.spec.spark.driver.standby_executors.value
        made = tuple(_driver(observed, wanted, kept.number, mode))
        return DriverPlan(kept.status, kept.events, made)
    # No other one is made until it has claimed the view: it would give way to a higher number.
    longest_s = RESTORE_PATIENCE_S if observed.restoring else STANDBY_EARLY_PATIENCE_S
    claim_by = status.claim_by
    if claim_by is None or until_s(claim_by, now) > longest_s:
        # None before, or of an operator whose clock is ahead: it begins anew by this one.
        claim_by = _patience(observed, pod, now)
        status = status.model_copy(update={"claim_by": claim_by})
    left_s = until_s(claim_by, now)
    if left_s > 0:
        return DriverPlan(status, wait_s=left_s)
    text = f"driver pod {pod.name} stood by and does not take over; another one is started"
    silent = Announce("StandbySilent", text, warning=True)
    status = status.model_copy(update={"standby": None, "claim_by": None})
    following = _start(observed, wanted, status, pod, now)
    return DriverPlan(following.status, (silent, *following.events), following.actions)


def _given_up_as(accepted: Accepted) -> list[str]:
    """What is written of a driver that was given up with this, by this release and by older ones,
    which went by fewer edits."""
    older = [f"{one}-{accepted.tuned}" if accepted.tuned else one for one in fingerprints(accepted)]
    return [declared(accepted), *older]


def _ending(status: DriverStatus, pod: Pod) -> DriverStatus:
    """It is no failure if this pod is gone at the next look."""
    return status.model_copy(update={"pod": pod.name, "ended_pod": pod.name})


def _after_absence(
    observed: Observed, wanted: Wanted, status: DriverStatus, now: datetime
) -> DriverPlan:
    """The newest pod was not taken by the API server, or is gone: a life without progress, unless
    windows were sealed. The first one is followed at once."""
    if status.number == 0:
        return _start(observed, wanted, status, None, now)
    name = pod_name(wanted.owner.name, Role.DRIVER, status.number)
    if status.drained is not None or status.gave_up is not None:
        return _start(observed, wanted, _forgiven(status), None, now)
    if status.ended_pod == name:
        return _start(observed, wanted, status, None, now)
    if _heir(observed, wanted, status) is not None:
        # It has taken over by itself, whatever the pause would be.
        return _start(observed, wanted, status, None, now)
    if status.failed_pod != name:
        progressed = (observed.window or 0) > (status.restored_window or 0)
        fruitless = 0 if progressed else status.fruitless
        delay_s = wait_s(DELAYS_S, fruitless)
        retry_at = rfc3339(now + timedelta(seconds=delay_s))
        judged = {"failed_pod": name, "fruitless": fruitless + 1, "retry_at": retry_at}
        status = status.model_copy(update=judged)
        if name not in observed.refusals:
            status = status.model_copy(update={"unfenced": _highest_execution(observed)})
    left_s = _left_s(status, now)
    if left_s > 0:
        return DriverPlan(status, wait_s=left_s)
    # Of one that the API server did not take the refusal is told, not that it is gone.
    quiet = name in observed.refusals
    if quiet and none_has_begun(observed):
        status = status.model_copy(update={"refused": status.number})
    return _start(observed, wanted, status, None, now, quiet=quiet)


def _by_clock(status: DriverStatus, now: datetime) -> DriverStatus:
    """A pause that is longer than any was begun by an operator whose clock is ahead: it begins anew
    by this one, and is written so."""
    if _left_s(status, now) <= DELAYS_S[-1]:
        return status
    retry_at = rfc3339(now + timedelta(seconds=DELAYS_S[-1]))
    return status.model_copy(update={"retry_at": retry_at})


def _left_s(status: DriverStatus, now: datetime) -> float:
    return 0.0 if status.retry_at is None else until_s(status.retry_at, now)


def _after_failure(
    observed: Observed, wanted: Wanted, status: DriverStatus, pod: Pod, now: datetime
) -> DriverPlan:
    """Judge a life that failed, once, and start the next one when it is time."""
    if status.failed_pod != pod.uid:
        status = _judged(observed, status, pod, now)
    if status.retry_at is None:
        given_up = declared(wanted.accepted)
        status = status.model_copy(update={**NO_STANDBY, "gave_up": given_up})
        return DriverPlan(status, gave_up=_given_up(observed, wanted, status, pod))
    left_s = _left_s(status, now)
    if left_s > 0 and _heir(observed, wanted, status) is None:
        return DriverPlan(status, wait_s=left_s)
    return _start(observed, wanted, status, pod, now)


def _given_up(observed: Observed, wanted: Wanted, status: DriverStatus, pod: Pod | None) -> Trouble:
    before = observed.resource.status.conditions
    refused = status.exit_code == ExitCode.SNAPSHOT
    reason = _REFUSED if refused else _GAVE_UP
    told = next((c.message for c in before if c.reason == reason), None)
    if pod is None and told is not None:
        return Trouble(reason, told)
    name = pod.name if pod is not None else pod_name(wanted.owner.name, Role.DRIVER, status.number)
    code = ExitCode.FAILED if status.exit_code is None else status.exit_code
    text = (
        f"driver pod {name} ended with exit code {code} for the {status.same_code}. time; "
        "it is started again when the topology is edited, spec.restartNonce for example"
    )
    said = f": {pod.message}" if pod is not None and pod.message else ""
    return Trouble(reason, text + said)


def _judged(observed: Observed, status: DriverStatus, pod: Pod, now: datetime) -> DriverStatus:
    code = _NO_CODE if pod.exit_code is None else pod.exit_code
    last = _NO_CODE if status.exit_code is None else status.exit_code
    restarts = Restarts(FINAL_CODES, 0, status.fruitless, (last, status.same_code))
    progressed = (observed.window or 0) > (status.restored_window or 0)
    retry_at: str | None = None
    match restarts.ended(code, pod.lived_s, progressed):
        case Again(delay_s):
            retry_at = rfc3339(now + timedelta(seconds=delay_s))
        case GiveUp():
            pass
        case other:
            assert_never(other)
    return status.model_copy(
        update={
            "failed_pod": pod.uid,
            "exit_code": pod.exit_code,
            "fruitless": restarts.fruitless,
            "same_code": restarts.same_code[1],
            "retry_at": retry_at,
        }
    )


def _forgiven(status: DriverStatus) -> DriverStatus:
    """Without the failures of what was declared before."""
    cleared = {"failed_pod": None, "exit_code": None, "fruitless": 0, "same_code": 0}
    return status.model_copy(update={**cleared, "retry_at": None})


def _start(
    observed: Observed,
    wanted: Wanted,
    status: DriverStatus,
    pod: Pod | None,
    now: datetime,
    *,
    quiet: bool = False,
) -> DriverPlan:
    """Start the next driver, or have the one that stands by take over, and see the last one off."""
    window = observed.window or 0
    ending = _end(observed, pod) if pod is not None else []
    if (heir := _heir(observed, wanted, status)) is not None:
        begun = {"number": heir.index, "pod": heir.name, "claim_by": _patience(observed, heir, now)}
        told = _taken_over(status, window).model_copy(update=begun)
        events = _events(observed, status, pod, heir.name, window)
        return DriverPlan(told, (*events[:-1], _took_over(observed, heir)), tuple(ending))
    number = highest(observed) + 1
    name = pod_name(wanted.owner.name, Role.DRIVER, number)
    begun = {"number": number, "given": number, "pod": name, "claim_by": None}
    begun |= {"restored_window": window}
    settled = {"ended_pod": None, "drained": None, "gave_up": None}
    told = status.model_copy(update={**begun, **settled, **NO_STANDBY})
    actions = (*_driver(observed, wanted, number), *ending)
    events = () if quiet else _events(observed, status, pod, name, window)
    return DriverPlan(told, events, actions)


def _driver(observed: Observed, wanted: Wanted, number: int, standby: str = "") -> list[Action]:
    """Driver pod ``number`` and what it is told."""
    owner, settings, topology = wanted.owner, wanted.settings, wanted.topology
    accepted, fresh = wanted.accepted, observed.view is None
    drops = observed.resource.drops_removed
    told = driver_map(owner, settings, topology, accepted, number, fresh, wanted.restore, drops)
    with_print, retired = fingerprint(accepted), accepted.retired
    pod = driver_pod(owner, settings, topology, number, with_print, retired, standby)
    return [Create(told), Create(pod)]


def _heir(observed: Observed, wanted: Wanted, status: DriverStatus) -> Pod | None:
    """One that stands by and is the next driver: it finds out that it is by itself. Not so one that
    does not run yet: what keeps it from that may last."""
    heir = next((p for p in observed.of(Role.DRIVER) if p.index == status.standby), None)
    if heir is None or not observed.alive(heir):
        return None
    return heir if heir.fingerprint in fingerprints(wanted.accepted) else None


def _patience(observed: Observed, heir: Pod, now: datetime) -> str:
    """Until when it may take to claim the view."""
    seconds = STANDBY_PATIENCE_S if heir.ready else STANDBY_EARLY_PATIENCE_S
    if observed.restoring:
        seconds = RESTORE_PATIENCE_S
    return rfc3339(now + timedelta(seconds=seconds))


def _events(
    observed: Observed, status: DriverStatus, pod: Pod | None, name: str, window: int
) -> tuple[Announce, ...]:
    first = newest(observed) == 0
    settled = status.drained is not None or status.gave_up is not None
    origin = "from the beginning" if window == 0 else f"from sealed window {window}"
    started = Announce("DriverStarted", f"driver pod {name} goes on {origin}")
    if first or settled or (pod is not None and pod.phase is PodPhase.SUCCEEDED):
        return (started,)
    if status.ended_pod is not None and (pod is None or pod.name == status.ended_pod):
        return (started,)
    what = "is not there any more"
    if pod is not None:
        why = f": {pod.message or pod.reason}" if pod.message or pod.reason else ""
        what = f"is being deleted{why}" if pod.deleting else f"ended{why}"
        if observed.lost(pod):
            what = f"is on node {pod.node}, which does not answer or is gone"
    last = pod.name if pod is not None else f"driver {newest(observed)}"
    return (Announce("DriverGone", f"{last} {what}", warning=True), started)


def _end(observed: Observed, pod: Pod) -> list[Action]:
    if observed.lost(pod):
        return [DeletePod(pod.name, pod.uid, force=True)]
    return [] if pod.deleting else [DeletePod(pod.name, pod.uid)]
