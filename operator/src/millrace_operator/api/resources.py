"""The custom resources beside the topology itself: statuses, and snapshots.

``millrace.topology.model`` is the topology's spec. What stands here becomes the rest of the CRDs;
descriptions end up in ``kubectl explain``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from millrace.topology.model import API_VERSION
from millrace.topology.parts import Part
from millrace.topology.scalars import Text, TopologyName

GROUP, _, VERSION = API_VERSION.partition("/")
TOPOLOGIES = "streamtopologies"
SNAPSHOTS = "topologysnapshots"

Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Number = Annotated[int, Field(ge=0, le=2**63 - 1)]
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
"""RFC 3339, in UTC."""


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class ConditionType(StrEnum):
    """The conditions of a topology; a snapshot has the first alone."""

    READY = "Ready"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    SPARK_RUNNING = "SparkRunning"
    ACKERS_AVAILABLE = "AckersAvailable"
    STATE_AVAILABLE = "StateAvailable"
    UP_TO_DATE = "UpToDate"
    RESTORED = "Restored"
    STANDBY_READY = "StandbyReady"


class Condition(Part):
    """One thing that is true of the resource, false, or not known."""

    type: str = Field(
        min_length=1,
        max_length=316,
        json_schema_extra={"pattern": r"^[A-Za-z]([A-Za-z0-9]*[A-Za-z0-9])?$"},
        description="What is spoken of, in CamelCase.",
    )
    status: ConditionStatus = Field(description="True, False or Unknown.")
    observed_generation: Number = Field(
        0, description="Generation of the resource that this was found out about."
    )
    last_transition_time: Time = Field(description="When the status last became another.")
    reason: str = Field(
        min_length=1,
        max_length=1024,
        json_schema_extra={"pattern": r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
        description="Why, in one CamelCase word for programs.",
    )
    message: str = Field(max_length=32768, description="Why, for people. May be empty.")


class Phase(StrEnum):
    """Where a topology stands, for display alone: programs go by the conditions."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    PAUSED = "Paused"
    SUSPENDED = "Suspended"
    FINISHED = "Finished"
    STALLED = "Stalled"
    DELETING = "Deleting"


class DriverStatus(Part):
    """The driver's pod."""

    number: Count = Field(
        0,
        description="Number of the newest driver pod that does not stand by; written before the "
        "pod is created.",
    )
    pod: str | None = Field(None, description="Name of that pod.")
    restored_window: Number | None = Field(
        None, description="Sealed window from which that driver went on."
    )
    failed_pod: str | None = Field(
        None, description="Uid of the last pod that failed, or the name of one that is gone."
    )
    exit_code: int | None = Field(
        None, ge=-256, le=255, description="Exit code of the last driver that failed."
    )
    same_code: Count = Field(0, description="Failures in a row with that code.")
    fruitless: Count = Field(0, description="Failures in a row without a sealed window.")
    retry_at: Time | None = Field(
        None, description="When the next driver is started after a failure; none after too many."
    )
    ended_pod: str | None = Field(
        None, description="Name of the last pod that the operator ended, for an edit for example."
    )
    drained: str | None = Field(
        None,
        description="Fingerprint of a topology whose input is drained: no driver follows, even if "
        "the pod goes.",
    )
    gave_up: str | None = Field(None, description="The same of one whose drivers failed too often.")
    given: Count = Field(
        0,
        description="Highest number that a driver pod was given, those included that stood by.",
    )
    refused: Count = Field(
        0,
        description="Up to this number no driver pod was taken by the API server: none of them "
        "ran.",
    )
    standby: Count | None = Field(
        None,
        description="Number of the driver pod that stands by; written before the pod is created.",
    )
    standby_failures: Count = Field(
        0, description="Pods in a row that were to stand by and did not get ready."
    )
    standby_retry_at: Time | None = Field(
        None, description="When the next one is made after such a failure."
    )
    claim_by: Time | None = Field(
        None,
        description="When a driver pod that stood by is ended if it has not taken over by then.",
    )
    unfenced: Count | None = Field(
        None,
        description="Highest execution of a driver that was deleted while nobody could say whether "
        "it runs; one that claims a higher one fences it.",
    )


class CrewStatus(Part):
    """Processes of one kind."""

    desired: Count = Field(0, description="How many there are to be.")
    ready: Count = Field(0, description="How many are ready.")
    summary: str = Field("0/0", description="Ready and desired, as kubectl shows them.")


class AckersStatus(CrewStatus):
    """The ackers."""

    replicas: Count = Field(0, description="Acker pods that there are, for kubectl scale.")
    selector: str | None = Field(None, description="Label selector of the acker pods.")
    intended: Count | None = Field(
        None, description="With min and max: how many the load has come to ask for."
    )
    asked: Count | None = Field(None, description="The replicas with which that began.")


class TopologyStatus(Part):
    """What is known of the topology. Written by the operator alone."""

    observed_generation: Number | None = Field(
        None, description="Generation of the resource that the operator has acted on."
    )
    phase: Phase | None = Field(None, description="For display; programs go by the conditions.")
    message: str | None = Field(
        None, description="The most important thing to know, in a sentence."
    )
    conditions: tuple[Condition, ...] = Field((), description="What is true of the topology.")
    driver: DriverStatus | None = Field(None, description="The newest driver pod.")
    ackers: AckersStatus | None = Field(None, description="The acker pods.")
    state_servers: CrewStatus | None = Field(None, description="The state-server pods.")
    executors: CrewStatus | None = Field(None, description="The executor pods.")
    window: Number | None = Field(
        None, description="Last sealed window that the operator heard of; it is behind by seconds."
    )
    epoch: Number | None = Field(None, description="Epoch of the view of the state servers.")
    last_snapshot: str | None = Field(None, description="Name of the newest snapshot.")


class DeletionPolicy(StrEnum):
    """What happens to a snapshot's files when its resource is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class SnapshotSpec(Part):
    """A snapshot to take of a topology. It cannot be changed once it is asked for, but for a
    deletionPolicy that becomes Delete."""

    topology: TopologyName = Field(description="Name of the topology, in the same namespace.")
    to: Text | None = Field(
        None,
        description="Folder, as the driver's pod sees it, or URL that takes it. Default: "
        "spec.snapshots.to of the topology.",
    )
    deletion_policy: DeletionPolicy = Field(
        DeletionPolicy.RETAIN,
        description="Retain leaves the files when this resource is deleted; with Delete a driver "
        "of the topology removes them, as long as there is the topology. Delete cannot be taken "
        "back.",
    )


class SnapshotPhase(StrEnum):
    """Where a snapshot stands, for display alone."""

    PENDING = "Pending"
    TAKING = "Taking"
    READY = "Ready"
    FAILED = "Failed"


class SnapshotStatus(Part):
    """What is known of the snapshot. Written by the operator alone."""

    observed_generation: Number | None = Field(
        None, description="Generation of the resource that the operator has acted on."
    )
    phase: SnapshotPhase | None = Field(
        None, description="For display; programs go by the conditions."
    )
    message: str | None = Field(None, description="Why it is not ready, in a sentence.")
    conditions: tuple[Condition, ...] = Field((), description="What is true of the snapshot.")
    snapshot: str | None = Field(None, description="What it is called in its place.")
    topology_uid: str | None = Field(
        None, description="Uid of the topology that it is, or was to be, taken of."
    )
    window: Number | None = Field(None, description="Sealed window that it stands behind.")
    taken: Time | None = Field(None, description="When it was complete.")
    place: str | None = Field(None, description="Folder or URL that holds it.")
    size_bytes: Number | None = Field(None, description="Bytes of all its files.")


class TopologySnapshot(Part):
    """A copy of what a topology knows behind one sealed window."""

    spec: SnapshotSpec = Field(description="The snapshot to take.")
    status: SnapshotStatus | None = Field(None, description="What is known of the snapshot.")
