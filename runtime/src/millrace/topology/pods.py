"""What a topology says of its pods: where they run, what they get, what is mounted in them.

Only a cluster goes by it. The names of fields are Kubernetes' own, so that what stands in a pod can
be taken over as it is.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from enum import Enum

from pydantic import Field

from millrace.topology.parts import Part
from millrace.topology.scalars import (
    Flag,
    MountPath,
    ObjectName,
    PathBelow,
    Quantity,
    Text,
    TopologyName,
    Whole,
    quantity,
)

MEMORY, CPU = "memory", "cpu"

STATE_DATA_SHARE = 0.75
"""Of a state server's memory; the rest is for the rewriting of its file."""

OWN_FOLDERS = (
    *("/etc/millrace", "/var/lib/millrace", "/opt/millrace", "/usr", "/bin", "/sbin", "/lib"),
    *("/proc", "/dev", "/sys", "/tmp"),
)
"""Places in pods over which, or in which, no volume of the user's can lie."""


class TolerationOperator(str, Enum):
    """How a toleration is held against a taint."""

    EQUAL = "Equal"
    EXISTS = "Exists"


class TaintEffect(str, Enum):
    """What a taint does to pods that do not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Toleration(Part):
    """A taint of nodes that pods put up with."""

    key: Text | None = Field(
        None, max_length=317, description="Key of the taint. Default, with Exists: all taints."
    )
    operator: TolerationOperator = Field(
        TolerationOperator.EQUAL,
        description="Equal: the taint has this value. Exists: whatever its value.",
    )
    value: str | None = Field(None, max_length=63, description="Value of the taint, with Equal.")
    effect: TaintEffect | None = Field(None, description="Effect of the taint. Default: all.")
    toleration_seconds: Whole | None = Field(
        None,
        ge=0,
        le=2**31 - 1,
        description="How long a pod stays on a node that gets the taint, with NoExecute. Default: "
        "for ever.",
    )


class Resources(Part):
    """What the container of a pod asks for, beside what the topology says elsewhere."""

    requests: dict[str, Quantity] = Field(
        {},
        description='What is kept free for it, e.g. {cpu: "2"}. Memory is requested as much as it '
        "is limited.",
    )
    limits: dict[str, Quantity] = Field(
        {}, description='The most that it gets, e.g. {memory: "4Gi"}. Default: no limit of CPU.'
    )

    def over(self, cpu: str, memory: str) -> tuple[dict[str, str], dict[str, str]]:
        """Requests and limits, where ``cpu`` and ``memory`` stand in for what is not said."""
        limits = {MEMORY: memory, **self.limits}
        # What is limited below the usual request can ask for no more than that.
        usual = min(cpu, limits.get(CPU, cpu), key=quantity)
        return {CPU: usual, **self.requests, MEMORY: limits[MEMORY]}, limits


class PodSettings(Part):
    """What pods of one kind get."""

    resources: Resources = Field(Resources(), description="What the pod's container asks for.")
    node_selector: dict[str, str] = Field({}, description="Labels that a node must have.")
    tolerations: tuple[Toleration, ...] = Field(
        (), description="Taints of nodes that it tolerates."
    )
    priority_class_name: ObjectName | None = Field(None, description="Priority class of the pod.")
    labels: dict[str, str] = Field({}, description="More labels of the pod.")
    annotations: dict[str, str] = Field({}, description="More annotations of the pod.")


class Pods(Part):
    """Pods by what runs in them. Only a cluster goes by it."""

    driver: PodSettings = Field(PodSettings(), description="The driver's pod.")
    executors: PodSettings = Field(PodSettings(), description="Pods of Spark's executors.")
    ackers: PodSettings = Field(PodSettings(), description="Pods of ackers.")
    state_servers: PodSettings = Field(PodSettings(), description="Pods of state servers.")


class Claim(Part):
    """A persistent volume claim in the topology's namespace."""

    claim_name: ObjectName = Field(
        description="Name of the claim. With executors it is shared: ReadWriteMany, unless all of "
        "them run on one node."
    )


class Medium(str, Enum):
    """What an empty volume is kept on, instead of a disk."""

    MEMORY = "Memory"


class Empty(Part):
    """An empty folder of each pod's own, which goes with it."""

    medium: Medium | None = Field(
        None,
        description="Memory counts as memory of whoever writes there. Default: the node's disk.",
    )
    size_limit: Quantity | None = Field(
        None, description="The most that it may hold. Default: what the node has."
    )


class MountedMap(Part):
    """A ConfigMap, a file for each key, read-only."""

    name: ObjectName = Field(description="Name of the ConfigMap.")


class MountedSecret(Part):
    """A Secret, a file for each key, read-only."""

    secret_name: ObjectName = Field(description="Name of the Secret.")


class Volume(Part):
    """A volume in the pods of the driver and of executors, at the same place in all of them."""

    name: TopologyName = Field(description="Name of the volume.")
    mount_path: MountPath = Field(
        description="Where it lies in pods. Relative paths of the topology start from /data there."
    )
    sub_path: PathBelow | None = Field(
        None, description="Folder of the volume that is mounted. Default: all of it."
    )
    read_only: Flag = Field(False, description="Nothing can be written to it.")
    persistent_volume_claim: Claim | None = Field(
        None, description="A claim: what is written there stays."
    )
    empty_dir: Empty | None = Field(
        None, description="An empty folder of each pod's own, which goes with it."
    )
    config_map: MountedMap | None = Field(None, description="A ConfigMap, read-only.")
    secret: MountedSecret | None = Field(None, description="A Secret, read-only.")

    def kinds(self) -> list[str]:
        """What it is declared to be: one of ``VOLUME_KINDS`` where it is valid."""
        said = (self.persistent_volume_claim, self.empty_dir, self.config_map, self.secret)
        return [name for name, one in zip(VOLUME_KINDS, said, strict=True) if one is not None]

    @property
    def lasts(self) -> bool:
        """Whether what is written there stays, and is seen by all pods."""
        return self.persistent_volume_claim is not None and not self.read_only


VOLUME_KINDS = ("persistentVolumeClaim", "emptyDir", "configMap", "secret")


def in_pods(path: str, folder: str) -> str:
    """Where a path of a topology leads in pods; relative ones start from ``folder``."""
    return posixpath.normpath(posixpath.join(folder, path))


def within(path: str, folder: str) -> bool:
    """Whether a normal path is a folder, or lies in it."""
    return path == folder or path.startswith(f"{folder}/")


def volume_of(path: str, volumes: Iterable[Volume]) -> Volume | None:
    """The volume on which a normal path lies in pods, the innermost of several."""
    found = [volume for volume in volumes if within(path, volume.mount_path)]
    return max(found, key=lambda volume: len(volume.mount_path), default=None)


def spot(path: str, volumes: Iterable[Volume]) -> tuple[str, str] | None:
    """The claim that a normal path lies on and the path there; None where it is on none."""
    volume = volume_of(path, volumes)
    if volume is None or volume.persistent_volume_claim is None:
        return None
    below = posixpath.relpath(path, volume.mount_path)
    place = posixpath.normpath(posixpath.join(volume.sub_path or "", below))
    return volume.persistent_volume_claim.claim_name, place
