"""The ack log's vocabulary: edges, slices, control entries and what a fold of messages must do.

The log of a topology is one control stream and, for each window attempt, one stream for each of
the slices that the window's roots are striped over in blocks. The control stream says in this
order: who owns which slice (``SliceOwners``), that an attempt begins (``Open``), who won
(``CloseMarker``), that it is over (``ForgetAttempt``). What the one task of an attempt has to say
comes with the close marker, where it is short.

An attempt has as many slices as divide evenly among the ackers that are alive when it opens
(``slices_for``), one for each where it has few roots, and keeps that number while ackers come and
go: its slices then move, as few as possible. Owners are listed once for each number of slices that
an attempt has that is open, or could be.

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
from millrace.protocol.types import UNSAID_SLICES, AttemptId, CloseMarker, TaskId
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


MOST_SLICES = 64
"""No attempt has more slices, since a topology has no more ackers."""


def slices_for(ackers: int) -> int:
    """Slices of an attempt with many roots that opens under so many ackers, each of which gets
    equally many.

    A task has a message for each slice that it touches, and most say little: so there are no more
    slices than ackers, but for ``TRACKING_PARTITIONS`` where these are few, of which new ackers can
    take some while a window is open.
    """
    return -(-TRACKING_PARTITIONS // ackers) * ackers


def check_partition(window: WindowNumber, slices: int) -> int:
    """The slice whose owner also judges the window's own tree."""
    return tracking_partition(window, 0, slices)


def partition_of(window: WindowNumber, sequence: int, slices: int) -> int:
    """The tracking partition that holds a root."""
    return tracking_partition(window, block_of(sequence), slices)


def roots_of(window: WindowNumber, partition: int, roots: int, slices: int) -> int:
    """How many of a window's roots 0 .. ``roots``-1 a tracking partition holds."""
    return local_index(window, partition, roots, slices)


def sequences(window: WindowNumber, partition: int, roots: int, slices: int) -> Iterator[int]:
    """Sequence numbers of a window's roots that a tracking partition holds, rising."""
    first = (partition - window) % slices * BLOCK_ROOTS
    for start in range(first, roots, slices * BLOCK_ROOTS):
        yield from range(start, min(start + BLOCK_ROOTS, roots))


def local_index(window: WindowNumber, partition: int, sequence: int, slices: int) -> int:
    """How many roots of the partition have a sequence number below ``sequence``.

    For a root of the partition that is its place in the partition's array.
    """
    stripes, rest = divmod(sequence, slices * BLOCK_ROOTS)
    column = (partition - window) % slices * BLOCK_ROOTS
    return stripes * BLOCK_ROOTS + min(max(rest - column, 0), BLOCK_ROOTS)


# --- control entries

NOTHING_LIVE: Mapping[AttemptId, int] = {}


@dataclass(frozen=True, slots=True)
class Open:
    """A window attempt begins; ``edges`` in topological order, sources' own edges first.

    ``slices`` is how many slices of the log its roots are striped over.
    """

    id: AttemptId
    roots: int
    edges: tuple[str, ...]
    slices: int = UNSAID_SLICES

    def partitions(self) -> list[int]:
        """The slices that have something to judge, rising."""
        window = self.id.window
        return [
            partition
            for partition in range(self.slices)
            if roots_of(window, partition, self.roots, self.slices)
            or partition == check_partition(window, self.slices)
        ]


@dataclass(frozen=True, slots=True)
class SliceOwners:
    """Owner of each tracking partition from now on, said by the driver of ``execution``.

    ``owners`` is for attempts of as many slices as it is long, those of many roots that open from
    now on among them; ``others`` for those of few, and for open attempts of other numbers.
    Attempts that are not in ``live`` are over, as are all of older executions.
    """

    DOCUMENT: ClassVar = "Members"

    execution: Execution
    owners: tuple[str, ...]
    live: tuple[AttemptId, ...]
    others: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def of(
        cls,
        execution: Execution,
        names: Iterable[str],
        live: Mapping[AttemptId, int] = NOTHING_LIVE,
        previous: SliceOwners | None = None,
        virtual_nodes: int = DEFAULT_VIRTUAL_NODES,
    ) -> SliceOwners:
        """Place slices on the ackers alive: striped, and of ``live`` attempts moving the fewest.

        ``live`` says how many slices each open attempt has. Raises ``ProtocolError`` without a
        name.
        """
        alive = frozenset(names)
        held = set(live.values())

        def place(slices: int) -> tuple[str, ...]:
            # Nobody reads a slice of a number that no open attempt has: nothing moves there.
            before = previous.table(slices) if previous is not None and slices in held else None
            return assign(slices, alive, before, virtual_nodes, striped=True)

        slices = slices_for(len(alive) or 1)
        others = tuple(place(number) for number in sorted({*held, len(alive)} - {slices}))
        return cls(execution, place(slices), tuple(live), others)

    @property
    def slices(self) -> int:
        """Slices of an attempt with many roots that opens now."""
        return len(self.owners)

    @property
    def fewest(self) -> int:
        """The same of one with few roots: each acker has one."""
        return len(frozenset(self.owners))

    def table(self, slices: int) -> tuple[str, ...] | None:
        """Owner of each slice of the attempts with so many, ``None`` where no attempt has them."""
        return next((one for one in (self.owners, *self.others) if len(one) == slices), None)

    def renewed(self, live: Mapping[AttemptId, int]) -> SliceOwners:
        """The same owners, and the attempts that are open now."""
        held = frozenset(live.values())
        others = tuple(one for one in self.others if len(one) in {*held, self.fewest})
        return SliceOwners(self.execution, self.owners, tuple(live), others)

    def owned_by(self, name: str) -> dict[int, frozenset[int]]:
        """An acker's slices, by the number of slices that an attempt has."""
        return {
            len(table): frozenset(p for p, owner in enumerate(table) if owner == name)
            for table in (self.owners, *self.others)
        }


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
