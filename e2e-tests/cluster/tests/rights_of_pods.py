"""What the operator lets a topology's pods do on an API server, and what they do there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from millrace.homes.pods import Role
from millrace.topology.model import StreamTopology
from millrace_e2e.audit import Asked, Audit
from millrace_e2e.podmanifests import Manifest
from millrace_e2e.podprocess import TOPOLOGY, UID
from millrace_e2e.podworld import World
from millrace_operator.builders.access import access
from millrace_operator.builders.naming import Owner

AUDITED = {"userGroups": ["system:serviceaccounts:default"]}

Right = tuple[str, str, str]
"""Resource, verb, and the name that it is bounded by, if any."""


def made_by_the_operator(topology: StreamTopology) -> list[Manifest]:
    return access(Owner(TOPOLOGY, "default", UID, "0.1.0"), topology)


@dataclass(frozen=True, slots=True)
class Rights:
    world: World
    audit: Audit

    def granted(self, role: Role) -> set[Right]:
        return {
            right
            for rule in self.world.rules[f"{TOPOLOGY}-{role.value}"]
            for right in product(
                rule["resources"], rule["verbs"], rule.get("resourceNames") or [""]
            )
        }

    def used(self, role: Role) -> set[Right]:
        """Of the names of what has any name in the role, none is told."""
        bounded = {resource for resource, _, name in self.granted(role) if name}
        return {
            (one.resource, one.verb, one.name if one.resource in bounded else "")
            for one in self._asked(role)
            if one.allowed
        }

    def refused(self, role: Role) -> set[Right]:
        return {(o.resource, o.verb, o.name) for o in self._asked(role) if not o.allowed}

    def _asked(self, role: Role) -> Iterator[Asked]:
        uid = self.world.accounts[f"{TOPOLOGY}-{role.value}"]["metadata"]["uid"]
        return (one for one in self.audit.asked() if one.uid == uid)
