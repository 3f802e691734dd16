"""How large the view of a topology may become, which has to fit into one ConfigMap of a cluster."""

from __future__ import annotations

from millrace.topology.members import MOST_MEMBERS
from millrace.topology.model import StreamTopology
from millrace.topology.problems import Problem

LARGEST_VIEW = 900_000
"""Bytes. A ConfigMap takes 1,048,576, of which some are for what restores note beside the view."""

_OWNER = len('"-state-63",')
"""What the name of an owner has beside that of its topology."""

_GROUP = len("[],")

_MEMBER = 448
"""What a member has beside the name of its topology: its life, an address of IPv6, and its node,
whose name may have 253 characters."""

_LISTS = 2
"""Members of the last open view, and of that to which it moves. Owners are in it once."""

_REST = 1024


def view_bytes(topology: StreamTopology) -> int:
    """What the view of a topology may come to, with as many servers as there may ever be: a bound
    of what ``protocol.codec.encode_view`` makes of it."""
    name, spec = len(topology.metadata.name), topology.spec
    groups = spec.key_groups * (_GROUP + _owners_bytes(topology))
    return groups + _LISTS * MOST_MEMBERS * (name + _MEMBER) + _REST


def _owners_bytes(topology: StreamTopology) -> int:
    return topology.spec.state_servers.copies * (len(topology.metadata.name) + _OWNER)


def large_view(topology: StreamTopology) -> list[Problem]:
    """What to say of a topology that may come to have a view which no ConfigMap takes: its driver
    would not get any further."""
    size = view_bytes(topology)
    if size <= LARGEST_VIEW:
        return []
    spec, name = topology.spec, topology.metadata.name
    copies, each = spec.state_servers.copies, _GROUP + _owners_bytes(topology)
    most = spec.key_groups - -(-(size - LARGEST_VIEW) // each)
    message = (
        f"with spec.stateServers.copies: {copies} and a name of {len(name)} characters makes a "
        f"view of up to {size} bytes, more than the {LARGEST_VIEW} that a ConfigMap has room for"
    )
    remedy = (
        f"use fewer copies, a shorter name or, for a topology that has not begun, at most {most} "
        "key groups"
    )
    return [Problem("spec.keyGroups", spec.key_groups, message, remedy)]
