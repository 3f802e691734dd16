"""What the state servers hold of the deaths of an attempt's workers.

Whoever saw a worker end stores that under a name of the attempt (``task.deaths``), perhaps later
than Spark says that the job has failed, and never where the teller has died as well. So it is
waited for, within a bounded time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from millrace.engine.jobs.session import MAX_TASK_FAILURES
from millrace.engine.task import deaths
from millrace.engine.task.deaths import Death
from millrace.errors import StateServerError
from millrace.protocol.names import tells_death
from millrace.protocol.server import Found, NotOwner
from millrace.protocol.types import AttemptId, AttemptPlan, Stamp
from millrace.state.client import StateAddress, connect
from millrace.state.errors import NotOwnerError
from millrace.state.servers import StateAccess

NOTICE_S = 5.0
"""How long to wait for word of a worker's end after Spark has noticed it."""

_SHORTEST_LOOK_S, _LONGEST_LOOK_S = 0.005, 0.05
"""Pauses between two looks: all names are listed for each, and there may be many."""

_LAST_RUN = MAX_TASK_FAILURES - 1
"""Spark gives a job up when this run of a task fails, whatever else has failed before."""


def await_deaths(
    access: StateAccess,
    plan: AttemptPlan,
    wanted: Callable[[], bool],
    timeout_s: float = NOTICE_S,
) -> list[Death]:
    """Deaths of workers in an attempt whose job has failed by one.

    Returns as soon as the death that ended the job is among them, when the time is over, or when
    they are not ``wanted`` any more. Raises ``StateServerError`` where nothing is known since a
    server could not be asked.
    """
    found: dict[str, Death] = {}
    end_s, pause_s = time.monotonic() + timeout_s, _SHORTEST_LOOK_S
    while True:
        missed = None
        for address in access.addresses:
            try:
                found |= _told(address, access.uid, plan.stamp, plan.id)
            except StateServerError as error:
                missed = error
        if any(death.run >= _LAST_RUN for death in found.values()):
            break
        if missed is not None and not found:
            raise missed
        if time.monotonic() >= end_s or not wanted():
            break
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_LOOK_S)
    return list(found.values())


def _told(address: StateAddress, uid: str, stamp: Stamp, attempt: AttemptId) -> dict[str, Death]:
    """What one server holds. Raises ``StateServerError``."""
    client = connect(address, uid)
    listed = client.list_objects(stamp)
    if isinstance(listed, NotOwner):
        raise NotOwnerError(address.name, listed)
    names = [name for name in listed.names if tells_death(name, attempt)]
    held = client.get(stamp, names) if names else ()
    if isinstance(held, NotOwner):
        raise NotOwnerError(address.name, held)
    told = {
        name: deaths.decode(name, content.data)
        for name, content in zip(names, held, strict=True)
        if isinstance(content, Found)
    }
    return {name: death for name, death in told.items() if death is not None}
