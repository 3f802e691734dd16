"""Check values of one slice as a numpy array: 8 bytes a root, messages XORed in whole.

Tracking ids are not computed where they would cancel: what source tasks say to have read and what
the close marker seeds are kept as intervals, and only those that differ become values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from millrace.ids import name_id, root_id, tracking_id
from millrace.protocol.acklog import (
    Open,
    local_index,
    partition_of,
    roots_of,
    rotations,
    source_edge,
)
from millrace.protocol.holes import joined
from millrace.protocol.types import CloseMarker
from millrace.tracking.ids import U64, range_tracking_ids, sequences_at
from millrace.tracking.message import AckMessage, Net, Seeds

Places = npt.NDArray[np.int64]


class ArrayFold:
    """``protocol.acklog.Fold`` over ``AckMessage``; the array is made when it is needed."""

    def __init__(self, opened: Open, partition: int) -> None:
        self._window = opened.id.window
        self._partition = partition
        self._roots = opened.roots
        self._slices = opened.slices
        self._size = roots_of(self._window, partition, opened.roots, opened.slices)
        self._edges = opened.edges
        self._turn = rotations(opened.edges)
        self._acc: U64 | None = None
        self._seeds = SeedIntervals()

    @property
    def size_bytes(self) -> int:
        """Bytes held for check values."""
        return 0 if self._acc is None else self._acc.nbytes

    def accepts(self, message: AckMessage) -> bool:
        return all(net.edge in self._turn and self._fits(net) for net in message.nets)

    def _fits(self, net: Net | Seeds) -> bool:
        if isinstance(net, Seeds):
            return net.low + net.count <= self._size
        if net.places is None:
            return net.low + len(net.values) <= self._size
        if not len(net.places):
            return True
        # Rising places: each once, so that fancy assignment XORs every value.
        return int(net.places[-1]) < self._size and bool((net.places[1:] > net.places[:-1]).all())

    def apply(self, message: AckMessage) -> None:
        for net in message.nets:
            self._add(net)

    def _add(self, net: Net | Seeds) -> None:
        if isinstance(net, Seeds):
            self._seeds.toggle(net)
        else:
            self._xor(net)

    def _xor(self, net: Net) -> None:
        acc, turn = self._array(), self._turn.get(net.edge, 0)
        if net.places is None:
            _xor_turned(acc[net.low : net.low + len(net.values)], net.values, turn)
        else:
            acc[net.places] ^= _turned(net.values, turn)

    def seed(self, marker: CloseMarker) -> None:
        if not self._size:
            return
        for seeds in self._due(marker):
            self._add(seeds)
        for left in self._seeds.take():
            self._xor(self._net(left))
        if self._acc is None:
            return
        for sequence in marker.excluded:
            mine = partition_of(self._window, sequence, self._slices) == self._partition
            if mine and sequence < self._roots:
                self._acc[self._place(sequence)] = 0

    def incomplete(self) -> Sequence[int]:
        if self._acc is None:
            return ()
        return [int(s) for s in self.sequences(np.flatnonzero(self._acc))]

    def trace(self, marker: CloseMarker) -> ArrayTrace:
        places = np.flatnonzero(self._array())
        trace = ArrayTrace(self._edges, places, self.sequences(places), self._slices)
        for seeds in self._due(marker):
            # An edge that the open entry does not know cannot be placed in its order.
            if seeds.edge in self._turn:
                trace.add_net(self._net(seeds))
        return trace

    def _net(self, net: Net | Seeds) -> Net:
        if isinstance(net, Seeds):
            return net.net(self._window, self._partition, self._slices)
        return net

    def _array(self) -> U64:
        if self._acc is None:
            self._acc = np.zeros(self._size, np.uint64)
        return self._acc

    def _place(self, sequence: int) -> int:
        """Place of the first root of this slice that is not below ``sequence``."""
        place = local_index(self._window, self._partition, sequence, self._slices)
        return min(place, self._size)

    def sequences(self, places: Places) -> Places:
        """Sequence numbers of the roots at these places, int64."""
        return sequences_at(self._window, self._partition, places, self._slices)

    def _due(self, marker: CloseMarker) -> Iterator[Net | Seeds]:
        """What the roots of this slice are seeded with, excluded roots included, holes not."""
        places, sequences = self._holes(marker)
        first = 0
        for piece in marker.intent.ranges:
            edge, base = source_edge(piece.source), (piece.start - first) % (1 << 64)
            low, high = self._place(first), self._place(first + piece.count)
            if low < high:
                yield Seeds(edge, low, high - low, piece.partition, base)
            # Holes were seeded with the rest of their range, and are taken out again.
            some = slice(*np.searchsorted(places, (low, high))) if len(places) else slice(0)
            if len(places[some]):
                offsets = sequences[some].view(np.uint64) + np.uint64(base)
                ids = range_tracking_ids(name_id(piece.source), piece.partition, offsets)
                yield Net(edge, low, ids, places[some].astype(np.uint32))
            first += piece.count
        for place in range(self._place(first), self._size):
            index = int(self.sequences(np.array([place]))[0]) - first
            if index >= len(marker.intent.replays):
                return
            replay = marker.intent.replays[index]
            root = root_id(name_id(replay.source), replay.partition, replay.offset)
            seed = np.array([tracking_id(root, replay.number)], np.uint64)
            yield Net(source_edge(replay.source), place, seed)

    def _holes(self, marker: CloseMarker) -> tuple[Places, Places]:
        """Places and sequence numbers of this slice's holes, rising."""
        runs = np.array(joined(marker.holes), np.int64).reshape(-1, 2)
        if not len(runs):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        sequences = self.sequences(np.arange(self._size))
        run = np.searchsorted(runs[:, 0], sequences, "right") - 1
        places = np.flatnonzero((run >= 0) & (sequences < runs[run].sum(axis=1)))
        return places, sequences[places]


class SeedIntervals:
    """XOR of seeds, without their values.

    Tracking ids of the same records cancel, so an interval of places is known by where it begins
    and ends, and both are toggled: what was said twice is gone, halves of it join.
    """

    def __init__(self) -> None:
        self._bounds: dict[tuple[str, int, int], set[int]] = {}

    def toggle(self, seeds: Seeds) -> None:
        """XOR seeds in; the second time takes them out again."""
        bounds = self._bounds.setdefault((seeds.edge, seeds.partition, seeds.base), set())
        bounds ^= {seeds.low, seeds.low + seeds.count} if seeds.count else set()

    def take(self) -> Iterator[Seeds]:
        """What did not cancel; nothing is left then."""
        for (edge, partition, base), bounds in self._bounds.items():
            ordered = sorted(bounds)
            for low, high in zip(ordered[::2], ordered[1::2], strict=True):
                yield Seeds(edge, low, high - low, partition, base)
        self._bounds = {}


class ArrayTrace:
    """``protocol.acklog.Trace``: one row for each edge, one column for each incomplete root."""

    def __init__(
        self, edges: Sequence[str], places: Places, sequences: Places, slices: int
    ) -> None:
        self._edges = edges
        self._slices = slices
        self._row = {edge: row for row, edge in enumerate(edges)}
        self._places = places
        self._found = sequences
        self._nets = np.zeros((len(edges), len(places)), np.uint64)

    def add(self, message: AckMessage) -> None:
        for net in message.values(self._slices):
            self.add_net(net)

    def add_net(self, net: Net) -> None:
        """XOR the net of one edge for the roots in question."""
        row = self._nets[self._row[net.edge]]
        if net.places is None:
            first, last = np.searchsorted(self._places, (net.low, net.low + len(net.values)))
            row[first:last] ^= net.values[self._places[first:last] - net.low]
            return
        _, mine, theirs = np.intersect1d(
            self._places, net.places, assume_unique=True, return_indices=True
        )
        row[mine] ^= net.values[theirs]

    def broken(self) -> Iterable[tuple[int, str]]:
        if not self._edges:
            return [(int(sequence), "") for sequence in self._found]
        off = self._nets != 0
        first = off.argmax(axis=0)
        return [
            (int(sequence), self._edges[edge] if off[edge, column] else "")
            for column, (sequence, edge) in enumerate(zip(self._found, first, strict=True))
        ]


def _turned(values: U64, bits: int) -> U64:
    if not bits:
        return values
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))


def _xor_turned(into: U64, values: U64, bits: int) -> None:
    """XOR ``values``, turned left, into a stretch of an array of the same length."""
    if not bits:
        into ^= values
        return
    into ^= values << np.uint64(bits)
    into ^= values >> np.uint64(64 - bits)
