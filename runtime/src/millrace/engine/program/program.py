"""A compiled topology: what the driver sends to workers, small and picklable.

Components carry their place: the *pass* they run in. A pass runs all its components over one
partition in topological order; edges that cross from one pass to a later one go through the
envelope exchange, once for each boundary (``relays`` are those on their way further on).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

import pyarrow as pa

from millrace.ids import DEFAULT_KEY_GROUPS, edge_id
from millrace.protocol.acklog import edge_name, source_edge
from millrace.protocol.types import Guarantee
from millrace.state.keyed.aggregates import Aggregate
from millrace.topology.parts import OnMissing, Role

DEFAULT_TRANSPORT = "millrace.engine.task.exchange:Transport"


class Route(str, Enum):
    """How an edge reaches its consumer."""

    LOCAL = "local"
    """Within the pass."""
    FORWARD = "forward"
    """To the same partition of a later pass."""
    KEYED = "keyed"
    """To the partition that has the tuple's key group."""
    COMBINED = "combined"
    """Keyed, into an aggregate: combined before it leaves."""
    BROADCAST = "broadcast"
    """To every partition."""


@dataclass(frozen=True, slots=True)
class Channel:
    """One input of a component."""

    producer: str
    consumer: str
    route: Route
    key: tuple[str, ...] = ()
    ordered: bool = False
    """Whether something behind this edge depends on the order of tuples."""
    columns: tuple[tuple[str, str], ...] = ()
    """(Name at the consumer, name at the producer); empty: all as they are."""

    def seen(self, schema: pa.Schema) -> pa.Schema:
        """The producer's columns as the consumer sees them."""
        if not self.columns:
            return schema
        return pa.schema([schema.field(of).with_name(name) for name, of in self.columns])

    @property
    def name(self) -> str:
        return edge_name(self.producer, self.consumer)

    @property
    def id(self) -> int:
        return edge_id(self.producer, self.consumer)


@dataclass(frozen=True, slots=True)
class SqlExpressions:
    """``select`` expressions and an optional ``where``, for Spark in the JVM or for DuckDB."""

    select: tuple[str, ...]
    where: str | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """How a ``split`` cuts ``column``: at a delimiter, a pattern (RE2), or else white space."""

    column: str
    delimiter: str | None = None
    pattern: str | None = None
    drop_empty: bool = False


@dataclass(frozen=True, slots=True)
class Decoding:
    """How a ``json`` reads ``column``: the names that lead to each new column's field, in the
    order of the columns, and the columns that may not be null."""

    column: str
    paths: tuple[tuple[str, tuple[str, ...]], ...]
    required: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Matching:
    """How a ``lookup`` finds rows: ``table`` names the file with what the table holds
    (``Program.tables``), ``path`` is how the topology calls it. ``key`` has the column of the tuple
    and that of the table, ``added`` the columns of the table that come out behind the tuple's."""

    table: str
    path: str
    key: tuple[tuple[str, str], ...]
    added: tuple[str, ...]
    missing: OnMissing


@dataclass(frozen=True)
class Component:
    """A source, processor or sink in its pass.

    ``output`` is the Arrow schema of what it emits (``None`` for sinks), ``connector`` the
    topology's own description of a source or sink, ``function`` user code as ``module:name``.
    """

    name: str
    role: Role
    pass_no: int
    inputs: tuple[Channel, ...] = ()
    outputs: tuple[Channel, ...] = ()
    output: pa.Schema | None = None
    state: tuple[tuple[str, str], ...] | None = None
    function: str | None = None
    sql: SqlExpressions | None = None
    columns: tuple[Aggregate, ...] = ()
    key: tuple[str, ...] = ()
    rows: pa.Schema | None = None
    """Columns that an aggregate looks at, key first."""
    emit_final: bool = False
    ttl_ms: int = 0
    """How long a key's state lives after its last update; 0: for ever."""
    number: int = 0
    in_jvm: bool = False
    step: str = ""
    """What makes the step of a processor in a task, as ``module:function``."""
    combines: bool = False
    """Whether its inputs are combined by key before the exchange."""
    beside: bool = False
    """Whether it may run on threads of a worker (``ProcessorKind.beside``); of a source, whether
    it comes with Millrace."""
    many: bool = False
    """Whether the outputs of one tuple get an ordinal each in the root order."""
    order_sensitive: bool = False
    """Whether the result depends on the order of a key's tuples."""
    settings: Any = None
    """What the compiler of a kind leaves for its step; plain values, they are pickled."""
    connector: Any = None

    @property
    def keyed(self) -> tuple[str, ...]:
        return self.inputs[0].key if self.inputs else ()


@dataclass(frozen=True)
class Pass:
    """Components of one depth in topological order, and the edges that only pass through."""

    number: int
    components: tuple[str, ...]
    relays: tuple[str, ...] = ()


@dataclass(frozen=True)
class Program:
    """A topology as the engine runs it.

    ``tables`` are files that it is compiled with, by names that tell their content. They go to
    workers beside the program, where it has their names alone.
    """

    name: str
    uid: str
    guarantee: Guarantee
    tracking: bool
    parallelism: int
    tuple_timeout_s: float
    code_path: str
    base_path: str
    components: Mapping[str, Component]
    passes: tuple[Pass, ...]
    key_groups: int = DEFAULT_KEY_GROUPS
    transport: str = DEFAULT_TRANSPORT
    options: Mapping[str, Any] = field(default_factory=dict)
    drop_gone: bool = False
    tables: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @cached_property
    def edges(self) -> dict[str, Channel]:
        """Every edge by name."""
        return {e.name: e for c in self.components.values() for e in c.inputs}

    @property
    def tracked_edges(self) -> tuple[str, ...]:
        """Edges as ack messages name them, in topological order, sources' own edges first."""
        own = (source_edge(source.name) for source in self.sources)
        return (*own, *(e.name for c in self.components.values() for e in c.outputs))

    @property
    def sources(self) -> list[Component]:
        return [c for c in self.components.values() if c.role is Role.SOURCE]

    @property
    def sinks(self) -> list[Component]:
        return [c for c in self.components.values() if c.role is Role.SINK]

    @property
    def sql_steps(self) -> list[Component]:
        """Steps that the JVM runs, each behind its input."""
        return [c for c in self.components.values() if c.in_jvm]

    def crossing(self, boundary: int) -> list[Channel]:
        """Edges that cross from pass ``boundary`` into the next one."""
        return [
            e
            for e in self.edges.values()
            if e.route is not Route.LOCAL
            and self.components[e.producer].pass_no <= boundary
            and self.components[e.consumer].pass_no > boundary
        ]
