"""The declared topology: one model for the file, the command line and the cluster.

The model says what a single field may hold. What holds between fields (names that exist, exactly
one kind for each part, keys) is in ``topology.check``, so that one run reports every problem.
Descriptions end up in the JSON schema, where editors and ``kubectl explain`` show them.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from millrace.topology.duration import Duration
from millrace.topology.scalars import (
    ComponentName,
    Flag,
    Label,
    Memory,
    Percent,
    Target,
    Text,
    TopologyName,
    Whole,
)

API_VERSION = "millrace.dev/v1alpha1"
KIND = "StreamTopology"


def _switch(value: Any) -> Any:
    # YAML 1.1 reads a bare On or Off as a boolean before anyone can ask.
    return ("On" if value else "Off") if isinstance(value, bool) else value


class Guarantee(str, Enum):
    """What is promised for each root."""

    AT_MOST_ONCE = "AtMostOnce"
    AT_LEAST_ONCE = "AtLeastOnce"
    EXACTLY_ONCE = "ExactlyOnce"


class Tracking(str, Enum):
    """Whether tuple trees are tracked."""

    ON = "On"
    OFF = "Off"


class SourceFormat(str, Enum):
    """How a files source finds records."""

    TEXT = "text"
    JSON_LINES = "jsonLines"
    CSV = "csv"
    PARQUET = "parquet"


class FileOrder(str, Enum):
    """Which of the files that have records is read next."""

    MODIFIED = "modified"
    NAME = "name"


class SinkFormat(str, Enum):
    """How a files sink writes rows."""

    JSON_LINES = "jsonLines"
    CSV = "csv"
    PARQUET = "parquet"


class RedisMode(str, Enum):
    """What a row becomes in Redis."""

    HASH = "hash"
    STREAM = "stream"


class Emit(str, Enum):
    """When an aggregation emits."""

    CHANGES = "changes"
    FINAL = "final"


class AggregateFunction(str, Enum):
    """What an aggregation computes over the tuples of a key."""

    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    AVG = "avg"


class Part(BaseModel):
    """Base of everything in a topology: immutable, camelCase in files, no unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel)


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
        Duration(100), description="A window opens at the latest this long after its first record."
    )


class Ackers(Part):
    """The processes that prove that every tuple tree is complete."""

    replicas: Whole = Field(
        1, ge=0, le=64, description="Acker processes. 0 needs tracking: Off or AtMostOnce."
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


class StateServers(Part):
    """The Redis-protocol servers that hold the record and the state."""

    replicas: Whole = Field(1, ge=1, le=64, description="State servers to run.")
    copies: Whole = Field(1, ge=1, le=8, description="Servers that hold each piece of state.")
    url: Text | None = Field(
        None,
        description="A server of your own, redis://[:password@]host:port[/db]. "
        "It needs an append-only file and the policy noeviction.",
    )


class Code(Part):
    """Where user code is found: one of path, image and configMap."""

    path: Text | None = Field(
        None,
        description="Folder on the import path, relative to this file. Default: its folder.",
    )
    image: Text | None = Field(None, description="Container image that holds the code.")
    config_map: Label | None = Field(None, description="ConfigMap whose keys are module files.")


class Driver(Part):
    """The Spark driver."""

    memory: Memory = Field("1g", description="Heap of the driver's JVM.")


class Executors(Part):
    """The Spark executors."""

    instances: Whole = Field(
        0,
        ge=0,
        le=1000,
        description="Executor processes. 0 runs the tasks in the driver's process.",
    )
    cores: Whole = Field(1, ge=1, le=256, description="Tasks that an executor runs at a time.")
    memory: Memory = Field("1g", description="Heap of an executor's JVM.")


class Spark(Part):
    """The Spark session that runs the windows."""

    conf: dict[str, str] = Field({}, description="Spark settings, all values as text in quotes.")
    driver: Driver = Field(Driver(), description="The Spark driver.")
    executors: Executors = Field(Executors(), description="The Spark executors.")


class Input(Part):
    """An edge: the tuples of one producer."""

    producer: ComponentName = Field(
        alias="from", description="Name of the source or processor whose tuples arrive here."
    )
    key: tuple[Text, ...] = Field(
        (), description="Columns by which tuples are brought together. Needed by stateful parts."
    )
    broadcast: Flag = Field(
        False, description="Every partition of the consumer gets every tuple. Excludes a key."
    )
    columns: dict[Text, Text] = Field(
        {},
        description="Columns as they are here: the producer's, e.g. {user: uid}. Others are left "
        "out. Default: all, under their own names. The key names columns as they are here.",
    )


class FilesSource(Part):
    """Records of the files in a folder, or of one file."""

    path: Text = Field(description="Folder or file, relative to this file.")
    format: SourceFormat = Field(
        SourceFormat.TEXT,
        description="text gives a column value string for each line; jsonLines, csv and parquet "
        "give their own columns.",
    )
    watch: Flag = Field(
        True,
        description="Go on with files that arrive or grow. With false the run ends with them.",
    )
    order: FileOrder = Field(
        FileOrder.MODIFIED,
        description="Which file is read next, when one is finished: modified takes the one whose "
        "last change is the oldest, then by name; name goes by name alone.",
    )
    columns: Text | None = Field(
        None,
        alias="schema",
        description='Columns of jsonLines and csv, e.g. "user string, n long". Types: string, '
        "long, int, double, float, boolean, binary, timestamp, date, array<type>.",
    )


class GeneratorSource(Part):
    """Made-up records, the same for the same seed: id long, key string, value double."""

    seed: Whole = Field(0, ge=0, le=2**63 - 1, description="What the values are computed from.")
    count: Whole | None = Field(
        None, ge=1, le=2**63 - 1, description="Records in all. Without it: endless."
    )
    rate: Whole | None = Field(
        None,
        ge=1,
        le=2**63 - 1,
        description="Records per second over all partitions. Without it: unlimited.",
    )
    partitions: Whole = Field(1, ge=1, le=1024, description="Independent sequences of records.")


class CustomPart(Part):
    """A class of your own."""

    target: Target = Field(alias="class", description='The class as "module:Class".')
    options: dict[str, Any] = Field({}, description="Handed to the class as they are.")


class Named(Part):
    """A part of the graph. It must declare exactly one of its ``kinds``."""

    kinds: ClassVar[tuple[str, ...]] = ()

    name: ComponentName

    def declared_kinds(self) -> tuple[str, ...]:
        """The kinds that are declared; exactly one where the part is valid."""
        return tuple(kind for kind in self.kinds if getattr(self, kind) is not None)


class Source(Named):
    """Where roots come from: one of files, generator and custom."""

    kinds: ClassVar[tuple[str, ...]] = ("files", "generator", "custom")

    name: ComponentName = Field(description="Name of the source. Its read position belongs to it.")
    files: FilesSource | None = Field(None, description="Records of files.")
    generator: GeneratorSource | None = Field(None, description="Made-up records.")
    custom: CustomPart | None = Field(None, description="A source class of your own.")


class AggregateColumn(Part):
    """One computed column of an aggregation."""

    name: Text = Field(description="Name of the computed column.")
    function: AggregateFunction = Field(description="count, sum, min, max or avg.")
    of: Text | None = Field(
        None,
        description="Column that it is computed over: numbers; for min and max also strings, "
        "dates, timestamps and booleans; not for count.",
    )


class Aggregate(Part):
    """A keyed aggregation, combined before the exchange."""

    emit: Emit = Field(
        Emit.CHANGES,
        description="changes: totals of the keys that a window touched. final: every total once, "
        "when bounded sources are drained.",
    )
    columns: tuple[AggregateColumn, ...] = Field(
        min_length=1, description="What to compute. The key columns come out in front of them."
    )


class Sql(Part):
    """Spark SQL expressions; only directly behind a source or another SQL step."""

    select: tuple[Text, ...] = Field(
        ("*",), min_length=1, description='Expressions, e.g. "upper(value) AS value".'
    )
    where: Text | None = Field(None, description="Condition that tuples must meet.")


class Processor(Named):
    """What is done with tuples: one of function, sql and aggregate."""

    kinds: ClassVar[tuple[str, ...]] = ("function", "sql", "aggregate")

    name: ComponentName = Field(description="Name of the processor. Its state belongs to it.")
    inputs: tuple[Input, ...] = Field(
        min_length=1, description="Edges into the processor; several are merged."
    )
    function: Target | None = Field(
        None, description='User code as "module:function" or "module:Class".'
    )
    sql: Sql | None = Field(None, description="Spark SQL expressions.")
    aggregate: Aggregate | None = Field(None, description="A keyed aggregation.")


class FilesSink(Part):
    """Files in a folder; only sealed windows appear in it."""

    path: Text = Field(description="Folder, relative to this file.")
    format: SinkFormat = Field(SinkFormat.JSON_LINES, description="How rows are written.")


class RedisSink(Part):
    """Rows in a Redis-protocol server, one transaction for each window."""

    url: Text = Field(description="redis://[:password@]host:port[/db]")
    mode: RedisMode = Field(
        RedisMode.HASH, description="hash: upsert of a hash for each row. stream: one entry a row."
    )
    key: Text | None = Field(None, description='Name of a row\'s hash, e.g. "wc:{word}".')
    stream: Text | None = Field(None, description="Name of the stream.")


class ConsoleSink(Part):
    """Rows on standard output. Cannot give ExactlyOnce."""


class Sink(Named):
    """Where results are shown: one of files, redis, console and custom."""

    kinds: ClassVar[tuple[str, ...]] = ("files", "redis", "console", "custom")

    name: ComponentName = Field(description="Name of the sink.")
    inputs: tuple[Input, ...] = Field(
        min_length=1, description="Edges into the sink; several are merged."
    )
    files: FilesSink | None = Field(None, description="Files in a folder.")
    redis: RedisSink | None = Field(None, description="A Redis-protocol server.")
    console: ConsoleSink | None = Field(None, description="Standard output, for trying out.")
    custom: CustomPart | None = Field(None, description="A sink class of your own.")


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
    tuple_timeout: Duration = Field(
        Duration(30_000), description="Longest time without progress of a task."
    )
    state_servers: StateServers = Field(
        StateServers(), description="The servers that hold the record and the state."
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
    sources: tuple[Source, ...] = Field(min_length=1, description="Where roots come from.")
    processors: tuple[Processor, ...] = Field((), description="What is done with tuples.")
    sinks: tuple[Sink, ...] = Field(min_length=1, description="Where results are shown.")

    @property
    def tracked(self) -> bool:
        """Whether tuple trees are tracked; ``AtMostOnce`` never does."""
        return self.tracking is Tracking.ON and self.guarantee is not Guarantee.AT_MOST_ONCE


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
