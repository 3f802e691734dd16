"""Collects inside a task what its ack messages will say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from millrace.errors import ProtocolError
from millrace.ids import BLOCK_ROOTS
from millrace.protocol.acklog import (
    check_partition,
    local_index,
    source_of,
)
from millrace.protocol.holes import Runs, clipped, joined, less
from millrace.protocol.types import AttemptId, RootRange, TaskId
from millrace.tracking import kernels
from millrace.tracking.ids import U64
from millrace.tracking.message import AckMessage, Net, Seeds, encode, net_of

Nets = dict[int, list[Net | Seeds]]
"""Nets by tracking partition."""

Messages = tuple[tuple[int, bytes], ...]
"""Encoded messages, each with the tracking partition that it is for."""


@dataclass(frozen=True, slots=True, order=True)
class ReadRun:
    """Consecutive records of a source partition that were read and emitted.

    ``first`` is the sequence number of the first one's root. ``base`` (modulo 2^64) and the
    sequence number of a record's root add up to its offset.
    """

    first: int
    count: int
    partition: int
    base: int

    @property
    def end(self) -> int:
        return self.first + self.count

    def followed_by(self, other: ReadRun) -> ReadRun | None:
        """Both as one, where the other begins at this one's end."""
        same = (self.partition, self.base) == (other.partition, other.base)
        if not same or self.end != other.first:
            return None
        return replace(self, count=self.count + other.count)


def _lengthened(runs: Iterable[ReadRun]) -> list[ReadRun]:
    """The same records in fewer runs, where one begins at another's end. What was read twice stays
    there twice."""
    found: list[ReadRun] = []
    for run in sorted(runs):
        longer = found[-1].followed_by(run) if found else None
        if longer is None:
            found.append(run)
        else:
            found[-1] = longer
    return found


def slots(roots_total: int, slices: int) -> int:
    """Length of an array with a place for each root of a window, in whole stripes of blocks."""
    stripe = slices * BLOCK_ROOTS
    return -(-roots_total // stripe) * stripe


@dataclass(frozen=True, slots=True)
class _EdgeNet:
    """XOR of one edge over all roots of the window, by sequence number.

    Memory that no root touches is never backed by a page, so the array is as wide as the window.
    ``low`` and ``high`` are the lowest and the highest root that was touched.
    """

    acc: U64
    low: int
    high: int


class AckCollector:
    """Nets of one task attempt, edge by edge; not safe for several threads at once.

    What a task emits and processes on the same edge nets out, and a net of zero takes no bytes.
    ``roots_total`` is the number of roots in the window's intent, ``ranges`` are those of the
    intent and ``runs`` the (first, count) of the roots that the task read: what it read without a
    fault is written as such. The attempt has ``slices`` slices of the log.
    """

    def __init__(
        self,
        attempt: AttemptId,
        task: TaskId,
        roots_total: int,
        ranges: Sequence[RootRange] = (),
        runs: Sequence[tuple[int, int]] = (),
        *,
        slices: int,
    ) -> None:
        self._attempt = attempt
        self._slices = slices
        self._task = task
        self._roots_total = roots_total
        self._ranges = ranges
        self._runs = joined(runs)
        self._nets: dict[str, _EdgeNet] = {}
        self._read: dict[str, list[ReadRun]] = {}
        self._window_checks: dict[str, int] = {}

    def add_net(self, edge: str, acc: U64, low: int, high: int) -> None:
        """Take over the net of an edge that has none so far, without copying it.

        ``acc`` is uint64[``slots(roots_total, slices)``], zero outside of the roots ``low`` to
        ``high``.
        Raises ``ProtocolError`` for another length, a second net, a root that the window lacks.
        """
        size = slots(self._roots_total, self._slices)
        if edge in self._nets or len(acc) != size:
            raise ProtocolError(
                f"edge {edge!r}: a net of {len(acc)} roots cannot be taken over; it must be the "
                f"edge's first and have {size} places"
            )
        if high >= self._roots_total:
            raise kernels.root_out_of_range(high, self._roots_total)
        self._nets[edge] = _EdgeNet(acc, low, high)

    def add_read(self, edge: str, runs: Iterable[ReadRun]) -> None:
        """Take over that records were read and emitted. ``edge`` is their source's own; what else
        its net has is added with ``add_net``. Raises ``ProtocolError`` for a second time, or a root
        that the window lacks."""
        if edge in self._read:
            raise ProtocolError(f"edge {edge!r}: runs cannot be added to those that it has")
        self._read[edge] = _lengthened(runs)
        for run in self._read[edge]:
            if run.end > self._roots_total:
                raise kernels.root_out_of_range(run.end - 1, self._roots_total)

    def add_window(self, edge: str, xor_value: int) -> None:
        """Take over the XOR of an edge's combined tuples, which are of the window's own tree."""
        self._window_checks[edge] = self._window_checks.get(edge, 0) ^ xor_value

    def messages(self) -> list[tuple[int, bytes]]:
        """(tracking partition, message) for each partition with something to say.

        The partition that judges the window's tree always has a message, an empty one if need
        be: that it is there shows that the log has not lost it.
        """
        home = check_partition(self._attempt.window, self._slices)
        nets: Nets = {home: []}
        for edge, runs in self._read.items():
            for run in runs:
                self._add_seeds(edge, (run.first, run.end), (run.partition, run.base), nets)
        for edge, net in self._nets.items():
            low, high = net.low, net.high
            rest = self._without_seeds(edge, net.acc, (low, high + 1), nets)
            if rest is not None:
                self._cut(edge, rest, (low, high), nets)
        checks = {edge: value for edge, value in self._window_checks.items() if value}
        return [
            (
                partition,
                self._encode(partition, nets[partition], checks if partition == home else {}),
            )
            for partition in sorted(nets)
        ]

    def _encode(self, partition: int, nets: list[Net | Seeds], checks: dict[str, int]) -> bytes:
        message = AckMessage(self._attempt, self._task, partition, tuple(nets), checks)
        return encode(message)

    def _without_seeds(self, edge: str, acc: U64, span: tuple[int, int], nets: Nets) -> U64 | None:
        """What is left of a net that is mostly tracking ids, which are added as seeds."""
        places, equal = 0, 0
        found: list[tuple[int, U64]] = []
        runs = clipped(self._runs, (span[0], span[1] - span[0]))
        known = joined((run.first, run.count) for run in self._read.get(edge, ()))
        for piece, low, count, records in self._pieces(edge, less(runs, known)):
            start = (records[1] + low) % (1 << 64)
            due = kernels.range_seeds(piece.source, piece.partition, start, count)
            same = int(np.count_nonzero(acc[low : low + count] == due))
            if 2 * same > count:
                self._add_seeds(edge, (low, low + count), records, nets)
                found.append((low, due))
                places, equal = places + count, equal + same
        if not found:
            return acc
        if equal == places == np.count_nonzero(acc[slice(*span)]):
            return None
        rest = acc.copy()
        for low, due in found:
            rest[low : low + len(due)] ^= due
        return rest

    def _pieces(
        self, edge: str, runs: Runs
    ) -> Iterator[tuple[RootRange, int, int, tuple[int, int]]]:
        """Where runs of the roots of a source, whose own edge this is, lie in the ranges of the
        intent: (range, first sequence number, count, (source partition, base of ``Seeds``))."""
        source, first = source_of(edge), 0
        for piece in self._ranges if source is not None else ():
            if piece.source == source:
                records = piece.partition, (piece.start - first) % (1 << 64)
                for low, count in clipped(runs, (first, piece.count)):
                    yield piece, low, count, records
            first += piece.count

    def _add_seeds(
        self, edge: str, span: tuple[int, int], records: tuple[int, int], nets: Nets
    ) -> None:
        """The tracking ids of consecutive roots, cut into tracking partitions."""
        window, slices = self._attempt.window, self._slices
        for partition in range(slices):
            low, high = (local_index(window, partition, s, slices) for s in span)
            if low < high:
                nets.setdefault(partition, []).append(Seeds(edge, low, high - low, *records))

    def _cut(self, edge: str, acc: U64, span: tuple[int, int], nets: Nets) -> None:
        """Add an edge's net, cut into tracking partitions; no root is outside of ``span``."""
        low, high = span
        if not acc[low : high + 1].any():
            return
        slices = self._slices
        stripe = slices * BLOCK_ROOTS
        first, last = low // stripe, high // stripe
        stripes = acc.reshape(-1, slices, BLOCK_ROOTS)[first : last + 1]
        blocks = range(low // BLOCK_ROOTS, high // BLOCK_ROOTS + 1)[:slices]
        for column in (block % slices for block in blocks):
            found = net_of(edge, first * BLOCK_ROOTS, stripes[:, column].reshape(-1))
            if found is not None:
                partition = (self._attempt.window + column) % slices
                nets.setdefault(partition, []).append(found)
