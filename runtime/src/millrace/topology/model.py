"""The declared topology: one model for the file, the command line and the cluster.

The model says what a single field may hold. What holds between fields (names that exist, exactly
one kind for each part, keys) is in ``topology.check``, so that one run reports every problem. What
a kind of source, processor or sink may hold stands with the kind (``topology.kinds``).
Descriptions end up in the JSON schema, where editors and ``kubectl explain`` show them.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from millrace.topology.duration import Duration
from millrace.topology.kinds.base import ProcessorKind, SinkKind, SourceKind
from millrace.topology.kinds.registry import PROCESSORS, SINKS, SOURCES, Registry, declaring
from millrace.topology.members import MOST_MEMBERS
from millrace.topology.parts import Guarantee, Input, Part
from millrace.topology.pods import Pods, Volume
from millrace.topology.scalars import (
    ComponentName,
    Flag,
    Label,
    Memory,
    ObjectName,
    Percent,
    Text,
    TopologyName,
    Whole,
)
from millrace.topology.secretrefs import SecretText

API_VERSION = "millrace.dev/v1alpha1"
KIND = "StreamTopology"


def _switch(value: Any) -> Any:
    # YAML 1.1 reads a bare On or Off as a boolean before anyone can ask.
    return ("On" if value else "Off") if isinstance(value, bool) else value


class Tracking(str, Enum):
    """Whether tuple trees are tracked."""

    ON = "On"
    OFF = "Off"


class OnStateLoss(str, Enum):
    """What follows where no state server has the state any more."""

    RESTORE = "Restore"
    STOP = "Stop"


class Metadata(Part):
    """Who the topology is."""

    name: TopologyName = Field(
        description="Name of the topology. Its state and its marks in sinks belong to this name."
    )
    namespace: Label | None = Field(None, description="Namespace on a cluster.")
    labels: dict[str, str] = Field({}, description="Labels for people and tools.")
    annotations: dict[str, str] = Field({}, description="Annotations for people and tools.")


class Window(Part):
    """How much input is processed and sealed as one."""

    max_records: Whole = Field(200_000, ge=1, le=2**31 - 1, description="Most roots in one window.")
    max_interval: Duration = Field(
        Duration(100),
        description="While a window runs, the next is made up at the latest this long after its "
        "first record. Where none runs it opens at once.",
    )
    min_interval: Duration | None = Field(
        None,
        description="Windows that are not full are made up at least this far apart: fewer of them, "
        "and fewer files of a sink, for records that come one by one. Not above maxInterval.",
    )


class Ackers(Part):
    """The processes that prove that every tuple tree is complete."""

    replicas: Whole = Field(
        1,
        ge=0,
        le=MOST_MEMBERS,
        description="Acker processes. 0 needs tracking: Off or AtMostOnce.",
    )
    least: Whole | None = Field(
        None,
        alias="min",
        ge=1,
        le=MOST_MEMBERS,
        description="With max: the load decides how many there are, this many at the least. A run "
        "begins with the replicas, or what is nearest to them.",
    )
    most: Whole | None = Field(
        None,
        alias="max",
        ge=1,
        le=MOST_MEMBERS,
        description="Most that the load may bring about. Needs min.",
    )
    virtual_nodes: Whole = Field(
        64, ge=1, le=1024, description="Positions of each acker on the hash ring."
    )
    max_replays: Whole = Field(
        3, ge=0, le=100, description="Replays of a failing root before it becomes a dead letter."
    )
    backoff: Duration = Field(
        Duration(1000), description="Wait before the first replay; doubled for each further one."
    )


class DeadLetters(Part):
    """What happens with roots that fail for good."""

    max_share: Percent = Field(
        "50%",
        description="Most of at least 100 roots, read together, that may become dead letters. "
        "Where more fail the run stops before it seals them. 100% never stops it.",
    )

    @property
    def max_percent(self) -> int:
        """The share as a whole number of percent."""
        return int(self.max_share.removesuffix("%"))


class Snapshots(Part):
    """Copies of what the topology knows behind one sealed window, to restore it from."""

    to: Text | None = Field(
        None,
        description="Folder, or a URL that fsspec reaches. A relative one starts at this file's, "
        "on a cluster at /data. Default: snapshots in the work folder; on a cluster there is none.",
    )
    every: Duration | None = Field(
        None, description="How often one is taken by itself. Without it: when it is asked for."
    )
    keep: Whole = Field(
        3, ge=1, le=10_000, description="How many of those that were taken by themselves are kept."
    )
    max_age: Duration | None = Field(
        None, description="Age at which they are deleted; the newest never is."
    )


class RestoreFrom(Part):
    """A snapshot that a new topology begins with."""

    snapshot: ObjectName | None = Field(
        None, description="Name of a TopologySnapshot in the same namespace; or place and name."
    )
    place: Text | None = Field(
        None,
        description="Where it lies: a folder as the driver's pod sees it, or a URL that fsspec "
        "reaches.",
    )
    name: Text | None = Field(None, description="What it is called there.")
    topology: TopologyName | None = Field(
        None, description="Topology that it was taken of, where that has another name."
    )


class StateServers(Part):
    """The Redis-protocol servers that hold the record and the state."""

    replicas: Whole = Field(1, ge=1, le=MOST_MEMBERS, description="State servers to run.")
    copies: Whole = Field(
        1,
        ge=1,
        le=8,
        description="Servers that hold each piece of state. On a cluster use 2 or more: one copy "
        "goes with its pod.",
    )
    memory: Memory | None = Field(
        None,
        description="Most memory that each server's data may take; windows wait while one is full. "
        "Default: all there is; on a cluster three quarters of the memory of its pod.",
    )
    url: Text | None = Field(
        None,
        description="A server of your own, redis://[[user]:password@]host:port[/db], or rediss://. "
        "It needs an append-only file and the policy noeviction.",
    )
    password: SecretText | None = Field(
        None,
        description="The password of that server, where it is not to stand in the url: that names "
        "the user at most, redis://user@host:port.",
    )


class Code(Part):
    """Where user code is found: one of path, image and configMap."""

    path: Text | None = Field(
        None,
        description="Folder on the import path. A relative one starts at this file's folder, on a "
        "cluster at /data. Default: where relative ones start.",
    )
    image: Text | None = Field(None, description="Container image that holds the code.")
    image_pull_secrets: tuple[ObjectName, ...] | None = Field(
        None,
        description="Secrets of the topology's namespace that this image is pulled with, by name, "
        "behind those that the operator gives all pods. One machine does not go by it.",
    )
    config_map: Label | None = Field(
        None,
        description="ConfigMap whose keys are module files. On one machine they lie beside this "
        "file.",
    )


class StandbyExecutors(str, Enum):
    """Whether a driver that stands by on a cluster has its executors."""

    READY = "Ready"
    ON_TAKE_OVER = "OnTakeOver"


class Driver(Part):
    """The Spark driver."""

    memory: Memory = Field("1g", description="Heap of the driver's JVM.")
    standby: Whole | None = Field(
        None,
        ge=0,
        le=1,
        description="Drivers that stand by with Spark and your code up, to go on at once where the "
        "driver ends; each takes the memory of a driver, on one machine that of its executors too. "
        "Default on one machine: 1 where a source is endless, else 0; on a cluster: 0.",
    )
    standby_executors: StandbyExecutors = Field(
        StandbyExecutors.ON_TAKE_OVER,
        description="On a cluster: Ready has as many executors again stand by with their driver; "
        "OnTakeOver starts them when it takes over. One machine does not go by it.",
    )


class Executors(Part):
    """The Spark executors."""

    instances: Whole = Field(
        0,
        ge=0,
        le=1000,
        description="Executor processes. 0 runs the tasks in the driver's process.",
    )
    least: Whole | None = Field(
        None,
        alias="min",
        ge=1,
        le=1000,
        description="With max, on a cluster: the lag decides how many there are, this many at the "
        "least. A driver begins with the instances, which have to be given, from min to max. One "
        "machine does not go by it.",
    )
    most: Whole | None = Field(
        None,
        alias="max",
        ge=1,
        le=1000,
        description="Most that the lag may bring about, and no more than parallelism divided by "
        "cores. Needs min.",
    )
    cores: Whole = Field(1, ge=1, le=256, description="Tasks that an executor runs at a time.")
    memory: Memory = Field("1g", description="Heap of an executor's JVM.")


class Spark(Part):
    """The Spark session that runs the windows."""

    conf: dict[str, str] = Field({}, description="Spark settings, all values as text in quotes.")
    driver: Driver = Field(Driver(), description="The Spark driver.")
    executors: Executors = Field(Executors(), description="The Spark executors.")


class Named(Part):
    """A part of the graph. It must declare exactly one of the kinds of its registry."""

    registry: ClassVar[Registry[Any]]

    name: ComponentName

    @classmethod
    def kinds(cls) -> tuple[str, ...]:
        """Names of the kinds that it can be."""
        return cls.registry.names

    def declared(self) -> tuple[tuple[Any, Any], ...]:
        """Kinds that are declared, with their settings; exactly one where the part is valid."""
        found = ((kind, getattr(self, kind.name)) for kind in self.registry)
        return tuple((kind, settings) for kind, settings in found if settings is not None)

    @property
    def settings(self) -> Any:
        """What stands below its kind, in a valid part."""
        return self.declared()[0][1]


@declaring(SOURCES)
class Source(Named):
    """Where roots come from: one of files, generator and custom."""

    registry = SOURCES

    name: ComponentName = Field(description="Name of the source. Its read position belongs to it.")

    @property
    def kind(self) -> SourceKind[Any]:
        """What it is, in a valid part."""
        kind: SourceKind[Any] = self.declared()[0][0]
        return kind


@declaring(PROCESSORS)
class Processor(Named):
    """What is done with tuples: one of function, sql and aggregate."""

    registry = PROCESSORS

    name: ComponentName = Field(description="Name of the processor. Its state belongs to it.")
    inputs: tuple[Input, ...] = Field(
        min_length=1, description="Edges into the processor; several are merged."
    )
    ttl: Duration | None = Field(
        None,
        description="How long a key's state is kept after its last update, by the time of windows. "
        "Default: for ever.",
    )

    @property
    def kind(self) -> ProcessorKind[Any]:
        """What it is, in a valid part."""
        kind: ProcessorKind[Any] = self.declared()[0][0]
        return kind


@declaring(SINKS)
class Sink(Named):
    """Where results are shown: one of files, redis, console and custom."""

    registry = SINKS

    name: ComponentName = Field(description="Name of the sink.")
    inputs: tuple[Input, ...] = Field(
        min_length=1, description="Edges into the sink; several are merged."
    )

    @property
    def kind(self) -> SinkKind[Any]:
        """What it is, in a valid part."""
        kind: SinkKind[Any] = self.declared()[0][0]
        return kind


class Spec(Part):
    """What the topology does and how."""

    guarantee: Guarantee = Field(
        Guarantee.EXACTLY_ONCE,
        description="AtMostOnce: a failed tuple is dropped. AtLeastOnce: every root is completely "
        "processed, effects may show twice. ExactlyOnce: effects show once, whole or not at all.",
    )
    window: Window = Field(Window(), description="How much input is processed and sealed as one.")
    ackers: Ackers = Field(Ackers(), description="The processes that prove completeness.")
    dead_letters: DeadLetters = Field(
        DeadLetters(), description="What happens with roots that fail for good."
    )
    tracking: Annotated[Tracking, BeforeValidator(_switch)] = Field(
        Tracking.ON,
        description='"On" or "Off", in quotes for kubectl. With Off lost tuples go unnoticed.',
    )
    suspend: Flag = Field(
        False,
        description="On a cluster: while true neither the driver nor ackers run, and the state is "
        "kept. One machine does not go by it.",
    )
    restart_nonce: Whole = Field(
        0,
        ge=0,
        le=2**31 - 1,
        description="On a cluster: another number starts the driver again, also one that was given "
        "up. One machine does not go by it.",
    )
    tuple_timeout: Duration = Field(
        Duration(30_000), description="Longest time without progress of a task."
    )
    state_servers: StateServers = Field(
        StateServers(), description="The servers that hold the record and the state."
    )
    snapshots: Snapshots = Field(
        Snapshots(), description="Copies of the state to restore the topology from."
    )
    on_state_loss: OnStateLoss = Field(
        OnStateLoss.STOP,
        description="What follows where all copies of some state are gone. Restore: the newest "
        "snapshot that can be restored takes their place; what was sealed behind it is given up "
        "and processed again, and sinks that can take back those windows. Stop: the run ends, or "
        "waits for the state server that may still hold it.",
    )
    restore_from: RestoreFrom | None = Field(
        None,
        description="On a cluster: the snapshot that the topology begins with, instead of nothing. "
        "It counts once, before the first window; its sinks hold nothing then. One machine has "
        "millrace snapshot restore.",
    )
    parallelism: Whole = Field(2, ge=1, le=1024, description="Partitions of each pass.")
    key_groups: Whole = Field(
        128,
        ge=1,
        le=4096,
        description="Fixed slices of the key space. Cannot be changed later.",
    )
    code: Code = Field(Code(), description="Where user code is found.")
    spark: Spark = Field(Spark(), description="The Spark session.")
    volumes: tuple[Volume, ...] = Field(
        (),
        description="On a cluster: what is mounted in the pods of the driver and of executors. "
        "Files that sinks write lie on a claim; those of sources may lie in a ConfigMap, a Secret "
        "or the image, too. One machine does not go by it.",
    )
    pods: Pods = Field(
        Pods(),
        description="On a cluster: where pods run and what they get. One machine does not go by "
        "it.",
    )
    sources: tuple[Source, ...] = Field(min_length=1, description="Where roots come from.")
    processors: tuple[Processor, ...] = Field((), description="What is done with tuples.")
    sinks: tuple[Sink, ...] = Field(min_length=1, description="Where results are shown.")

    @property
    def tracked(self) -> bool:
        """Whether tuple trees are tracked; ``AtMostOnce`` never does."""
        return self.tracking is Tracking.ON and self.guarantee is not Guarantee.AT_MOST_ONCE

    @property
    def standby_pods(self) -> int:
        """The same on a cluster, where memory that is asked for is kept from everybody else."""
        return self.spark.driver.standby or 0

    @property
    def standbys(self) -> int:
        """Drivers that stand by on one machine: what is read to its end is not waited for, if
        nothing is said."""
        said = self.spark.driver.standby
        endless = any(source.kind.endless(source.settings) for source in self.sources)
        return int(endless) if said is None else said


class StreamTopology(Part):
    """A directed acyclic graph of sources, processors and sinks."""

    api_version: Literal["millrace.dev/v1alpha1"] = Field(description="Version of this format.")
    kind: Literal["StreamTopology"] = Field(description="Always StreamTopology.")
    metadata: Metadata = Field(description="Who the topology is.")
    spec: Spec = Field(description="What the topology does and how.")

    @property
    def name(self) -> str:
        """The topology's name."""
        return self.metadata.name

    def document(self) -> dict[str, Any]:
        """The topology as it is kept and sent: JSON's types, without fields that have no value."""
        return self.model_dump(by_alias=True, mode="json", exclude_none=True)
