"""A fold of ack messages over plain dictionaries, for the simulator and as a reference in tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from millrace.ids import name_id, root_id, tracking_id
from millrace.protocol.acklog import (
    Open,
    partition_of,
    rotate,
    rotations,
    sequences,
    source_edge,
)
from millrace.protocol.types import AttemptId, CloseMarker, Intent, TaskId


@dataclass(frozen=True, slots=True)
class PlainMessage:
    """``nets[edge][sequence]``: XOR of the tuple ids a task emitted and processed there."""

    attempt: AttemptId
    task: TaskId
    partition: int
    nets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    window_checks: Mapping[str, int] = field(default_factory=dict)


def seeds(intent: Intent, excluded: frozenset[int]) -> dict[int, tuple[int, str]]:
    """Tracking id and source's own edge of every root that is judged, by sequence number."""
    found: dict[int, tuple[int, str]] = {}
    sequence = 0
    for piece in intent.ranges:
        source, edge = name_id(piece.source), source_edge(piece.source)
        for offset in range(piece.start, piece.start + piece.count):
            if sequence not in excluded:
                root = root_id(source, piece.partition, offset)
                found[sequence] = (tracking_id(root, 0), edge)
            sequence += 1
    for replay in intent.replays:
        if sequence not in excluded:
            root = root_id(name_id(replay.source), replay.partition, replay.offset)
            found[sequence] = (tracking_id(root, replay.number), source_edge(replay.source))
        sequence += 1
    return found


class PlainFold:
    """``Fold`` over a dictionary of check values."""

    def __init__(self, opened: Open, partition: int) -> None:
        self._opened = opened
        self._partition = partition
        self._turn = rotations(opened.edges)
        self._values: dict[int, int] = {}
        self._excluded: frozenset[int] = frozenset()

    def accepts(self, message: PlainMessage) -> bool:
        window, roots = self._opened.id.window, self._opened.roots
        return all(
            edge in self._turn
            and all(0 <= s < roots and partition_of(window, s) == self._partition for s in values)
            for edge, values in message.nets.items()
        )

    def apply(self, message: PlainMessage) -> None:
        for edge, values in message.nets.items():
            for sequence, value in values.items():
                self._fold(sequence, value, edge)

    def seed(self, marker: CloseMarker) -> None:
        self._excluded = marker.excluded
        known = seeds(marker.intent, marker.excluded)
        for sequence in sequences(self._opened.id.window, self._partition, self._opened.roots):
            if sequence in known:
                self._fold(sequence, *known[sequence])

    def incomplete(self) -> Sequence[int]:
        broken = (s for s, value in self._values.items() if value and s not in self._excluded)
        return sorted(broken)

    def trace(self, marker: CloseMarker) -> PlainTrace:
        known = seeds(marker.intent, marker.excluded)
        return PlainTrace(self._opened.edges, {s: known.get(s) for s in self.incomplete()})

    def _fold(self, sequence: int, value: int, edge: str) -> None:
        turned = rotate(value, self._turn.get(edge, 0))
        self._values[sequence] = self._values.get(sequence, 0) ^ turned


class PlainTrace:
    """``Trace`` over dictionaries."""

    def __init__(self, edges: Sequence[str], roots: Mapping[int, tuple[int, str] | None]) -> None:
        self._edges = edges
        self._nets: dict[int, dict[str, int]] = {}
        for sequence, seed in roots.items():
            self._nets[sequence] = {} if seed is None else {seed[1]: seed[0]}

    def add(self, message: PlainMessage) -> None:
        for edge, values in message.nets.items():
            for sequence in self._nets.keys() & values.keys():
                nets = self._nets[sequence]
                nets[edge] = nets.get(edge, 0) ^ values[sequence]

    def broken(self) -> Iterable[tuple[int, str]]:
        for sequence, nets in self._nets.items():
            yield sequence, next((edge for edge in self._edges if nets.get(edge)), "")
