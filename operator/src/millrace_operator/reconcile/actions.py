"""What a plan asks for, in the order in which it is to be done; the first that fails ends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace.homes.documents import Proposal, Request
from millrace_operator.api.resources import SnapshotStatus, TopologyStatus

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
class FillSecret:
    """Keys of the topology's Secret, the others stay: under the version that was read."""

    name: str
    version: str
    data: Mapping[str, str] = field(repr=False)


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


@dataclass(frozen=True, slots=True)
class AskDriver:
    """A request in the driver's inbox, under a token that nobody else gives."""

    token: str
    request: Request


@dataclass(frozen=True, slots=True)
class Withdraw:
    """That request is not there any more: it was answered, or nobody wants it."""

    token: str


@dataclass(frozen=True, slots=True)
class CreateSnapshot:
    """A resource that tells of a snapshot which the topology has taken by itself."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class DeleteSnapshot:
    """Deletion of this very resource, whose snapshot is not there any more."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class WriteSnapshotStatus:
    """The status of a snapshot's resource, replaced as a whole under the version that was read.
    ``told`` is an event of that resource."""

    name: str
    uid: str
    version: str
    status: SnapshotStatus
    told: Announce | None = None


Action = (
    Announce
    | WriteStatus
    | Apply
    | Create
    | FillSecret
    | DeletePod
    | DeleteChild
    | Propose
    | AskDriver
    | Withdraw
    | CreateSnapshot
    | DeleteSnapshot
    | WriteSnapshotStatus
)
