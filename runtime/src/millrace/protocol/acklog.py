"""The ack log's vocabulary: edges, slices, control entries and what a fold of messages must do.

The log of a topology is one control stream and, for each window attempt, one stream for each of
the ``TRACKING_PARTITIONS`` slices that the window's roots are striped over in blocks. The
control stream says in this order: who owns which slice (``SliceOwners``), that an attempt begins
(``Open``), who won (``CloseMarker``), that it is over (``ForgetAttempt``).

What keeps edges apart: a check value is the XOR of every edge's net, each turned by its own number
of bits, so a tuple that is emitted on one edge and processed on another does not cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

from millrace.ids import (
    BLOCK_ROOTS,
    TRACKING_PARTITIONS,
    Execution,
    WindowNumber,
    block_of,
    tracking_partition,
)
from millrace.protocol.types import AttemptId, CloseMarker, TaskId
from millrace.ring import DEFAULT_VIRTUAL_NODES, assign

# --- names and numbers


def edge_name(producer: str, consumer: str) -> str:
    """Name of an edge in ack messages."""
    return f"{producer}>{consumer}"


def source_edge(source: str) -> str:
    """Name of the edge on which a source's own roots are processed, seeded by the acker."""
    return f">{source}"


def source_of(edge: str) -> str | None:
    """The source whose own edge this is, else ``None``."""
    producer, _, source = edge.partition(">")
    return None if producer or not source else source


def consumer_of(edge: str) -> str:
    """The component at the end of an edge; the source itself for a source's own edge."""
    return edge.rpartition(">")[2]


def rotations(edges: Sequence[str]) -> dict[str, int]:
    """Bits by which each edge's net is turned; distinct for up to 64 edges."""
    return {edge: place % 64 for place, edge in enumerate(edges)}


def rotate(value: int, bits: int) -> int:
    """Turn a 64-bit value left."""
    return ((value << bits) | (value >> (64 - bits))) & 0xFFFF_FFFF_FFFF_FFFF


def check_partition(window: WindowNumber) -> int:
    """The slice whose owner also judges the window's own tree."""
    return tracking_partition(window, 0)


def partition_of(window: WindowNumber, sequence: int) -> int:
    """The tracking partition that holds a root."""
    return tracking_partition(window, block_of(sequence))


def roots_of(window: WindowNumber, partition: int, roots: int) -> int:
    """How many of a window's roots 0 .. ``roots``-1 a tracking partition holds."""
    return local_index(window, partition, roots)


def sequences(window: WindowNumber, partition: int, roots: int) -> Iterator[int]:
    """Sequence numbers of a window's roots that a tracking partition holds, rising."""
    first = (partition - window) % TRACKING_PARTITIONS * BLOCK_ROOTS
    for start in range(first, roots, TRACKING_PARTITIONS * BLOCK_ROOTS):
        yield from range(start, min(start + BLOCK_ROOTS, roots))


def local_index(window: WindowNumber, partition: int, sequence: int) -> int:
    """How many roots of the partition have a sequence number below ``sequence``.

    For a root of the partition that is its place in the partition's array.
    """
    stripes, rest = divmod(sequence, TRACKING_PARTITIONS * BLOCK_ROOTS)
    column = (partition - window) % TRACKING_PARTITIONS * BLOCK_ROOTS
    return stripes * BLOCK_ROOTS + min(max(rest - column, 0), BLOCK_ROOTS)


# --- control entries


@dataclass(frozen=True, slots=True)
class Open:
    """A window attempt begins; ``edges`` in topological order, sources' own edges first."""

    id: AttemptId
    roots: int
    edges: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SliceOwners:
    """Owner of each tracking partition from now on, said by the driver of ``execution``.

    Attempts that are not in ``live`` are over, as are all of older executions.
    """

    DOCUMENT: ClassVar = "Members"

    execution: Execution
    owners: tuple[str, ...]
    live: tuple[AttemptId, ...]

    @classmethod
    def of(
        cls,
        execution: Execution,
        names: Iterable[str],
        live: Iterable[AttemptId] = (),
        previous: SliceOwners | None = None,
        virtual_nodes: int = DEFAULT_VIRTUAL_NODES,
    ) -> SliceOwners:
        """Place the partitions on the ackers alive, moving as few as possible."""
        before = previous.owners if previous is not None else None
        owners = assign(TRACKING_PARTITIONS, names, before, virtual_nodes)
        return cls(execution, owners, tuple(live))


@dataclass(frozen=True, slots=True)
class ForgetAttempt:
    """A window attempt is over: its slices are deleted."""

    id: AttemptId


ControlEntry = Open | CloseMarker | SliceOwners | ForgetAttempt

# --- what the array work is behind


class Message(Protocol):
    """What one task attempt says about one slice."""

    @property
    def attempt(self) -> AttemptId: ...
    @property
    def task(self) -> TaskId: ...
    @property
    def partition(self) -> int: ...
    @property
    def window_checks(self) -> Mapping[str, int]: ...


M = TypeVar("M", bound=Message)
"""The message type of one runtime: over arrays, or over dicts in the simulator."""

M_contra = TypeVar("M_contra", bound=Message, contravariant=True)


class Trace(Protocol[M_contra]):
    """Finds the edge on which incomplete roots broke."""

    def add(self, message: M_contra) -> None:
        """XOR a winner's nets for the roots in question, edge by edge."""
        ...

    def broken(self) -> Iterable[tuple[int, str]]:
        """Each incomplete root, rising, with the first edge that does not come to zero.

        Edges come in the order of ``Open.edges``.
        """
        ...


class Fold(Protocol[M_contra]):
    """Check values of the roots of one slice."""

    def accepts(self, message: M_contra) -> bool:
        """Are all its edges and roots those of this slice?"""
        ...

    def apply(self, message: M_contra) -> None:
        """XOR a message in; the second time takes it out again."""
        ...

    def seed(self, marker: CloseMarker) -> None:
        """XOR the tracking ids in; excluded roots count as complete from here on."""
        ...

    def incomplete(self) -> Sequence[int]:
        """Sequence numbers of the roots whose check value is not zero, rising."""
        ...

    def trace(self, marker: CloseMarker) -> Trace[M_contra]:
        """Begin to look for where the incomplete roots broke."""
        ...


MakeFold = Callable[[Open, int], Fold[M]]
"""Makes the fold of one tracking partition of an attempt."""
