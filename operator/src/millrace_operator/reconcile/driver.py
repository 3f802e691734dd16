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
waiting until it is proven dead. Not so one that has drained its input, or on which was given up:
the status says so of the fingerprint that it was started with, and goes by that when the pod is
collected. What happens if the operator dies between such an end and its status: if the pod goes
too, another driver starts, and ends as that did.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import assert_never

from millrace.errors import ExitCode
from millrace.homes.accepted import Accepted
from millrace.homes.pods import Role
from millrace.homes.restarts import DELAYS_S, FINAL_CODES, Again, GiveUp, Restarts
from millrace.topology.model import StreamTopology
from millrace_operator.api.resources import DriverStatus
from millrace_operator.api.settings import OperatorSettings
from millrace_operator.builders.documents import driver_map
from millrace_operator.builders.naming import Owner
from millrace_operator.builders.pods import driver_pod
from millrace_operator.reconcile.actions import Action, Announce, Create, DeletePod
from millrace_operator.reconcile.edits import fingerprint
from millrace_operator.reconcile.observe import Observed, Pod, PodPhase
from millrace_operator.reconcile.troubles import Trouble

_GAVE_UP = "DriverGaveUp"
_NO_CODE = -1
"""Of a driver that did not end by itself."""


@dataclass(frozen=True, slots=True)
class DriverPlan:
    """``events`` and ``actions`` are in order; ``wait_s`` is when to look again by the clock.

    ``gave_up`` says why no further driver is started, ``finished`` that all input is drained.
    """

    status: DriverStatus | None
    events: tuple[Announce, ...] = ()
    actions: tuple[Action, ...] = ()
    wait_s: float | None = None
    gave_up: Trouble | None = None
    finished: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a driver would be started with."""

    owner: Owner
    settings: OperatorSettings
    topology: StreamTopology
    accepted: Accepted


def rfc3339(time: datetime) -> str:
    """A time as Kubernetes writes it, in UTC and, where there are any, microseconds."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def newest(observed: Observed) -> int:
    """The highest number that a driver's pod has or was to have."""
    told = observed.resource.status.driver
    numbers = [pod.index for pod in observed.of(Role.DRIVER)]
    return max([told.number if told is not None else 0, *numbers])


def plan_driver(observed: Observed, wanted: Wanted, now: datetime) -> DriverPlan:
    """What follows for the driver from what is seen."""
    before = observed.resource.status.driver
    number = newest(observed)
    status = _by_clock((before or DriverStatus()).model_copy(update={"number": number}), now)
    current = next((p for p in observed.of(Role.DRIVER) if p.index == number), None)
    older = [p for p in observed.of(Role.DRIVER) if p.index < number]
    if wanted.topology.spec.suspend:
        # No driver follows that fences them: a pod stays until its node says that it is dead.
        ending = [pod for pod in (*older, current) if pod is not None and not pod.deleting]
        ended = [DeletePod(pod.name, pod.uid) for pod in ending if pod in older or not pod.ended]
        if current is not None and not current.ended:
            status = _ending(status, current)
        return DriverPlan(before if before is None else status, (), tuple(ended))
    cleaning = [action for pod in older for action in _end(observed, pod)]
    made = _plan_current(observed, wanted, status, current, now)
    actions = (*cleaning, *made.actions)
    return DriverPlan(
        _unfenced(observed, made.status, actions),
        made.events,
        actions,
        made.wait_s,
        made.gave_up,
        made.finished,
    )


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
    wanted_print = fingerprint(wanted.accepted)
    if status.drained == wanted_print:
        return DriverPlan(status, finished=True)
    if status.gave_up == wanted_print:
        return DriverPlan(status, gave_up=_given_up(observed, wanted, status, pod))
    if pod is None:
        return _after_absence(observed, wanted, status, now)
    changed = pod.fingerprint != wanted_print
    if pod.phase is PodPhase.SUCCEEDED and not changed:
        drained = status.model_copy(update={"drained": wanted_print})
        return DriverPlan(drained, finished=True)
    if pod.deleting or observed.lost(pod):
        return _start(observed, wanted, status, pod)
    match pod.phase:
        case PodPhase.SUCCEEDED | PodPhase.FAILED if changed:
            forgiven = _forgiven(status)
            return _start(observed, wanted, forgiven, pod)
        case PodPhase.FAILED:
            return _after_failure(observed, wanted, status, pod, now)
        case _:
            if changed:
                # Asked to end it stops behind what is sealed; the next one follows at once.
                return DriverPlan(_ending(status, pod), (), (DeletePod(pod.name, pod.uid),))
            return DriverPlan(status.model_copy(update={"pod": pod.name, "ended_pod": None}))


def _ending(status: DriverStatus, pod: Pod) -> DriverStatus:
    """It is no failure if this pod is gone at the next look."""
    return status.model_copy(update={"pod": pod.name, "ended_pod": pod.name})


def _after_absence(
    observed: Observed, wanted: Wanted, status: DriverStatus, now: datetime
) -> DriverPlan:
    """The newest pod was not taken by the API server, or is gone: a life without progress, unless
    windows were sealed. The first one is followed at once."""
    if status.number == 0:
        return _start(observed, wanted, status, None)
    name = wanted.owner.child(f"driver-{status.number}")
    if status.drained is not None or status.gave_up is not None:
        return _start(observed, wanted, _forgiven(status), None)
    if status.ended_pod == name:
        return _start(observed, wanted, status, None)
    if status.failed_pod != name:
        progressed = (observed.window or 0) > (status.restored_window or 0)
        fruitless = 0 if progressed else status.fruitless
        delay_s = DELAYS_S[min(fruitless, len(DELAYS_S) - 1)]
        retry_at = rfc3339(now + timedelta(seconds=delay_s))
        judged = {"failed_pod": name, "fruitless": fruitless + 1, "retry_at": retry_at}
        status = status.model_copy(update=judged)
        if name not in observed.refusals:
            status = status.model_copy(update={"unfenced": _highest_execution(observed)})
    left_s = _left_s(status, now)
    if left_s > 0:
        return DriverPlan(status, wait_s=left_s)
    # Of one that the API server did not take the refusal is told, not that it is gone.
    return _start(observed, wanted, status, None, quiet=name in observed.refusals)


def _by_clock(status: DriverStatus, now: datetime) -> DriverStatus:
    """A pause that is longer than any was begun by an operator whose clock is ahead: it begins anew
    by this one, and is written so."""
    if _left_s(status, now) <= DELAYS_S[-1]:
        return status
    retry_at = rfc3339(now + timedelta(seconds=DELAYS_S[-1]))
    return status.model_copy(update={"retry_at": retry_at})


def _left_s(status: DriverStatus, now: datetime) -> float:
    if status.retry_at is None:
        return 0.0
    return (datetime.fromisoformat(status.retry_at) - now).total_seconds()


def _after_failure(
    observed: Observed, wanted: Wanted, status: DriverStatus, pod: Pod, now: datetime
) -> DriverPlan:
    """Judge a life that failed, once, and start the next one when it is time."""
    if status.failed_pod != pod.uid:
        status = _judged(observed, status, pod, now)
    if status.retry_at is None:
        status = status.model_copy(update={"gave_up": pod.fingerprint})
        return DriverPlan(status, gave_up=_given_up(observed, wanted, status, pod))
    left_s = _left_s(status, now)
    if left_s > 0:
        return DriverPlan(status, wait_s=left_s)
    return _start(observed, wanted, status, pod)


def _given_up(observed: Observed, wanted: Wanted, status: DriverStatus, pod: Pod | None) -> Trouble:
    before = observed.resource.status.conditions
    told = next((c.message for c in before if c.reason == _GAVE_UP), None)
    if pod is None and told is not None:
        return Trouble(_GAVE_UP, told)
    name = pod.name if pod is not None else wanted.owner.child(f"driver-{status.number}")
    code = ExitCode.FAILED if status.exit_code is None else status.exit_code
    text = (
        f"driver pod {name} ended with exit code {code} for the {status.same_code}. time; "
        "it is started again when the topology is edited, spec.restartNonce for example"
    )
    said = f": {pod.message}" if pod is not None and pod.message else ""
    return Trouble(_GAVE_UP, text + said)


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
    *,
    quiet: bool = False,
) -> DriverPlan:
    """Start the next driver, and see the last one off."""
    number = status.number + 1
    window = observed.window or 0
    name = wanted.owner.child(f"driver-{number}")
    begun = {"number": number, "pod": name, "restored_window": window}
    told = status.model_copy(update={**begun, "ended_pod": None, "drained": None, "gave_up": None})
    started = driver_pod(
        wanted.owner,
        wanted.settings,
        wanted.topology,
        number,
        fingerprint(wanted.accepted),
        wanted.accepted.retired,
    )
    fresh = observed.view is None
    settings = driver_map(
        wanted.owner, wanted.settings, wanted.topology, wanted.accepted, number, fresh
    )
    ending = _end(observed, pod) if pod is not None else []
    actions = (Create(settings), Create(started), *ending)
    events = () if quiet else _events(observed, status, pod, name, window)
    return DriverPlan(told, events, actions)


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
        what = f"is on node {pod.node}, which does not answer or is gone"
        if not observed.lost(pod):
            what = "is being deleted" if pod.deleting else f"ended: {pod.reason or pod.message}"
    last = pod.name if pod is not None else f"driver {newest(observed)}"
    return (Announce("DriverGone", f"{last} {what}", warning=True), started)


def _end(observed: Observed, pod: Pod) -> list[Action]:
    if observed.lost(pod):
        return [DeletePod(pod.name, pod.uid, force=True)]
    return [] if pod.deleting else [DeletePod(pod.name, pod.uid)]
