"""The driver's pod that stands by: one behind a driver that works, where the topology asks for it.

It takes over by itself (``millrace.pods.standby``), so that nothing has to be said to it and the
operator may be dead. What is decided here is when there is one, and which.

===============================  =================================================================
what is seen                     what follows
===============================  =================================================================
the driver works: it has sealed  one is made, with the next number, which is written first; two that
a window, or has nothing to do   start beside each other would both be late
the driver is gone, is to go or  the one that stands by is the driver from then on, ready or not
on a lost node, or a pod that    (``driver``), if its pod runs; the next one is made when it works
stood by wrote the view
the same, and the pod that is    it is ended, and a driver is started with a higher number
to stand by does not run yet
it does not claim, in time       its pod is ended, and a driver is started
its pod is gone, ended, lost     another one is made, with another number, after longer and longer
                                 waits where none gets ready; the topology runs on without
it has another image or mode,    it is ended and another one is made: it holds nothing
never began and would be made
otherwise, or none is asked for
the topology is edited so that   it is ended before the driver is
the driver restarts, suspended,
drained or given up
===============================  =================================================================

What happens if the operator dies behind the status, before the pod: the number is used up, and the
next one is taken. Behind the pod: the next plan finds it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from millrace.homes.pods import Role, pod_name
from millrace.homes.restarts import STANDBY_DELAYS_S, wait_s
from millrace.topology.model import StreamTopology
from millrace_operator.api.resources import DriverStatus
from millrace_operator.api.times import rfc3339, until_s
from millrace_operator.reconcile.actions import Announce
from millrace_operator.reconcile.observe import Observed, Pod

RESTORE_PATIENCE_S = 600.0
"""How long a driver may take to claim the view while a restore has begun and is not done: before
that it reads the whole snapshot, waits for state servers, and for a place of snapshots that is
away."""

NO_STANDBY = {"standby": None, "standby_failures": 0, "standby_retry_at": None}


@dataclass(frozen=True, slots=True)
class KeptStandby:
    """``number``: one is made with it."""

    status: DriverStatus
    events: tuple[Announce, ...] = ()
    number: int | None = None
    wait_s: float | None = None


def keep_standby(
    observed: Observed,
    topology: StreamTopology,
    status: DriverStatus,
    driver: Pod,
    highest: int,
    now: datetime,
    outdated: Callable[[Pod], bool],
) -> KeptStandby:
    """What follows for it behind ``driver``, which runs. A pod that is not named in the status any
    more is ended by whoever carries that out; one that is ``outdated`` is followed by another."""
    if topology.spec.standby_pods == 0:
        return KeptStandby(status.model_copy(update=NO_STANDBY))
    events: list[Announce] = []
    if status.standby is not None:
        pod = next((p for p in observed.of(Role.DRIVER) if p.index == status.standby), None)
        if pod is None or pod.ended or pod.deleting or observed.lost(pod):
            name = pod_name(observed.resource.name, Role.DRIVER, status.standby)
            said = observed.refusals.get(name) or (pod.message if pod is not None else "")
            told = f"driver pod {name}, which stood by, is gone{f': {said}' if said else ''}"
            events.append(Announce("StandbyGone", told, warning=True))
            status = _failed(status, now)
        elif outdated(pod):
            status = status.model_copy(update={"standby": None})
        else:
            known = {"standby_failures": 0, "standby_retry_at": None}
            return KeptStandby(status.model_copy(update=known) if pod.ready else status)
    left_s = _left_s(status, now)
    if left_s > 0:
        return KeptStandby(status, tuple(events), wait_s=left_s)
    if not _works(observed, status, driver):
        return KeptStandby(status, tuple(events))
    number = highest + 1
    begun = status.model_copy(update={"standby": number, "given": number, "standby_retry_at": None})
    return KeptStandby(begun, tuple(events), number)


def _failed(status: DriverStatus, now: datetime) -> DriverStatus:
    failures = status.standby_failures + 1
    delay_s = wait_s(STANDBY_DELAYS_S, failures - 1)
    retry_at = rfc3339(now + timedelta(seconds=delay_s))
    update = {"standby": None, "standby_failures": failures, "standby_retry_at": retry_at}
    return status.model_copy(update=update)


def _left_s(status: DriverStatus, now: datetime) -> float:
    """An operator whose clock is ahead may have written a time that is far away."""
    if status.standby_retry_at is None:
        return 0.0
    left_s = until_s(status.standby_retry_at, now)
    return left_s if left_s <= STANDBY_DELAYS_S[-1] else 0.0


def _works(observed: Observed, status: DriverStatus, driver: Pod) -> bool:
    """Whether a driver has all up: another one beside it makes it no later."""
    if not (observed.alive(driver) and driver.ready):
        return False
    if (observed.window or 0) > (status.restored_window or 0):
        return True
    told, view = observed.told, observed.view
    speaks = told is not None and view is not None and told.execution == view.execution
    if not speaks or told is None:
        return False
    idle = told.window is None and not told.lag_records
    return told.state == "running" and told.spark == "running" and idle
