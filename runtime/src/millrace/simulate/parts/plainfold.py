"""A fold of ack messages over plain dictionaries, for the simulator and as a reference in tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from millrace.errors import MillraceError
from millrace.ids import name_id, root_id, tracking_id
from millrace.protocol import codec
from millrace.protocol.acklog import (
    Open,
    partition_of,
    rotate,
    rotations,
    sequences,
    source_edge,
)
from millrace.protocol.holes import numbers
from millrace.protocol.types import AttemptId, CloseMarker, Intent, Replay, RootRange, TaskId


@dataclass(frozen=True, slots=True)
class PlainMessage:
    """``nets[edge][sequence]``: XOR of the tuple ids a task emitted and processed there."""

    attempt: AttemptId
    task: TaskId
    partition: int
    nets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    window_checks: Mapping[str, int] = field(default_factory=dict)


def enclosed(message: PlainMessage) -> str:
    """A message as a report and a close marker enclose it."""
    return codec.encode(message).decode()


def read_enclosed(text: str) -> PlainMessage | None:
    """Read what ``enclosed`` made; ``None`` for what makes no sense."""
    try:
        return codec.decode(PlainMessage, text.encode())
    except MillraceError:
        return None


def seeds(intent: Intent, wanted: Iterable[int]) -> Iterator[tuple[int, int, str]]:
    """(sequence, tracking id, source's own edge) of roots, whose numbers must rise."""
    first = 0
    pieces: Iterator[RootRange | Replay] = chain(intent.ranges, intent.replays)
    piece: RootRange | Replay | None = None
    count = 0
    for sequence in wanted:
        while sequence >= first + count:
            first += count
            piece = next(pieces, None)
            if piece is None:
                return
            count = piece.count if isinstance(piece, RootRange) else 1
        if isinstance(piece, RootRange):
            offset, number = piece.start + sequence - first, 0
        elif piece is not None:
            offset, number = piece.offset, piece.number
        else:
            return
        root = root_id(name_id(piece.source), piece.partition, offset)
        yield sequence, tracking_id(root, number), source_edge(piece.source)


class PlainFold:
    """``Fold`` over a dictionary of check values."""

    def __init__(self, opened: Open, partition: int) -> None:
        self._opened = opened
        self._partition = partition
        self._turn = rotations(opened.edges)
        self._values: dict[int, int] = {}
        self._excluded: frozenset[int] = frozenset()

    def accepts(self, message: PlainMessage) -> bool:
        return all(
            edge in self._turn and all(map(self._holds, values))
            for edge, values in message.nets.items()
        )

    def _holds(self, sequence: int) -> bool:
        opened = self._opened
        mine = partition_of(opened.id.window, sequence, opened.slices) == self._partition
        return mine and 0 <= sequence < opened.roots

    def apply(self, message: PlainMessage) -> None:
        for edge, values in message.nets.items():
            for sequence, value in values.items():
                self._fold(sequence, value, edge)

    def seed(self, marker: CloseMarker) -> None:
        self._excluded = marker.excluded
        opened = self._opened
        mine = sequences(opened.id.window, self._partition, opened.roots, opened.slices)
        empty = frozenset(numbers(marker.holes))
        judged = (sequence for sequence in mine if sequence not in marker.excluded)
        for sequence, seed, edge in seeds(marker.intent, (s for s in judged if s not in empty)):
            self._fold(sequence, seed, edge)

    def incomplete(self) -> Sequence[int]:
        broken = (s for s, value in self._values.items() if value and s not in self._excluded)
        return sorted(broken)

    def trace(self, marker: CloseMarker) -> PlainTrace:
        nets: dict[int, dict[str, int]] = {sequence: {} for sequence in self.incomplete()}
        empty = frozenset(numbers(marker.holes))
        for sequence, seed, edge in seeds(marker.intent, (s for s in nets if s not in empty)):
            nets[sequence][edge] = seed
        return PlainTrace(self._opened.edges, nets)

    def _fold(self, sequence: int, value: int, edge: str) -> None:
        turned = rotate(value, self._turn.get(edge, 0))
        self._values[sequence] = self._values.get(sequence, 0) ^ turned


class PlainTrace:
    """``Trace`` over dictionaries."""

    def __init__(self, edges: Sequence[str], nets: dict[int, dict[str, int]]) -> None:
        self._edges = edges
        self._nets = nets

    def add(self, message: PlainMessage) -> None:
        for edge, values in message.nets.items():
            for sequence in self._nets.keys() & values.keys():
                nets = self._nets[sequence]
                nets[edge] = nets.get(edge, 0) ^ values[sequence]

    def broken(self) -> Iterable[tuple[int, str]]:
        for sequence, nets in self._nets.items():
            yield sequence, next((edge for edge in self._edges if nets.get(edge)), "")
