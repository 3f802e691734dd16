"""What a plan asks for, in the order in which it is to be done; the first that fails ends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millrace.homes.documents import Proposal
from millrace_operator.api.resources import TopologyStatus

Manifest = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Announce:
    """An event of the topology."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """The status subresource, replaced as a whole."""

    status: TopologyStatus


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of a child, with the operator as field manager."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Create:
    """Creation of a child that is never overwritten; one that is there already is left as it is."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Deletion of this very pod, by its uid. ``force`` does not wait for its node."""

    name: str
    uid: str
    force: bool = False


@dataclass(frozen=True, slots=True)
class DeleteChild:
    """Deletion of this very child, by its uid."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Propose:
    """What the driver is told of the members that there are."""

    proposal: Proposal


Action = Announce | WriteStatus | Apply | Create | DeletePod | DeleteChild | Propose
