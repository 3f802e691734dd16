"""Another number of ackers or state servers for a topology on a cluster, which stays until it is
changed again: the resource itself says it.

Ackers go through ``/scale``, as for ``kubectl scale`` and an autoscaler, and need no more rights
than these; state servers are a field of the spec.
"""

from __future__ import annotations

import time

from millrace.homes.pods import Role
from millrace.protocol.types import Phase
from millrace.remote.topology import RemoteTopology, number_of

_LOOK_S = 0.5


def ask(topology: RemoteTopology, state_servers: int | None, ackers: int | None) -> None:
    """Write what is wanted into the resource. Raises ``ClusterError``: of what cannot be, the API
    server says which field is wrong and why."""
    cluster = topology.cluster
    if state_servers is not None:
        body = {"spec": {"stateServers": {"replicas": state_servers}}}
        cluster.patch(topology.path, body)
    if ackers is not None:
        cluster.patch(f"{topology.path}/scale", {"spec": {"replicas": ackers}})


def await_scaled(
    topology: RemoteTopology, state_servers: int | None, ackers: int | None, timeout_s: float
) -> bool:
    """Wait until it has so many; whether it has."""
    end_s = time.monotonic() + timeout_s
    while not is_scaled(topology, state_servers, ackers):
        if time.monotonic() >= end_s:
            return False
        time.sleep(_LOOK_S)
    return True


def is_scaled(topology: RemoteTopology, state_servers: int | None, ackers: int | None) -> bool:
    """Whether so many acker pods are ready, and no more are there; and whether the view is open
    with exactly the state servers asked for, and those that were to leave are gone."""
    pods = topology.pods()
    if ackers is not None:
        there = [row for row in pods if row.role == Role.ACKER and row.alive]
        if len(there) != ackers or not all(row.ready and not row.ending for row in there):
            return False
    if state_servers is None:
        return True
    wanted = set(range(state_servers))
    view = topology.view()
    if view is None or view.phase is not Phase.OPEN:
        return False
    servers = [row for row in pods if row.role == Role.STATE_SERVER]
    there_are = {number_of(row.name) for row in servers}
    members = {number_of(member.name) for member in view.target}
    return members == wanted and there_are <= wanted
