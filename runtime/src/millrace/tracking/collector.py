"""Collects inside a task what its ack messages will say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from millrace import ids as scalar
from millrace.ids import BLOCK_ROOTS, TRACKING_PARTITIONS
from millrace.protocol.acklog import check_partition, edge_name, source_edge
from millrace.protocol.types import AttemptId, TaskId
from millrace.tracking import kernels
from millrace.tracking.ids import U32, U64, xor_all
from millrace.tracking.message import AckMessage, Net, encode, net_of

_STRIPE = TRACKING_PARTITIONS * BLOCK_ROOTS


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge's name in messages and its id in tuple ids."""

    name: str
    id: int

    @classmethod
    def between(cls, producer: str, consumer: str) -> Edge:
        return cls(edge_name(producer, consumer), scalar.edge_id(producer, consumer))


class _NetSoFar:
    """XOR of one edge over all roots of the window, by sequence number.

    Memory that no root touches is never backed by a page, so the array is as wide as the window.
    """

    __slots__ = ("acc", "span")

    def __init__(self, roots_total: int) -> None:
        self.acc = np.zeros(-(-roots_total // _STRIPE) * _STRIPE, np.uint64)
        self.span = np.array([len(self.acc), -1], np.int64)


class AckCollector:
    """Nets of one task attempt, edge by edge; not safe for several threads at once.

    What a task emits and processes on the same edge nets out, and a net of zero takes no bytes.
    ``roots_total`` is the number of roots in the window's intent. Roots are sequence numbers,
    uint32; ids are uint64, one for each tuple (and, for several anchors, for each of its roots).
    A root out of range raises ``ProtocolError``.
    """

    def __init__(self, attempt: AttemptId, task: TaskId, roots_total: int) -> None:
        self._attempt = attempt
        self._task = task
        self._roots_total = roots_total
        self._nets: dict[str, _NetSoFar] = {}
        self._window_checks: dict[str, int] = {}

    def read(self, source: str, roots: U32, tracking_ids: U64) -> None:
        """A source task has read these roots: closes the seed that the acker sets."""
        self._fold(source_edge(source), roots, tracking_ids)

    def emitted(self, edge: Edge | str, roots: U32, ids: U64) -> None:
        """Tuples were handed to an edge."""
        self._fold(edge, roots, ids)

    def processed(self, edge: Edge | str, roots: U32, ids: U64) -> None:
        """Tuples that came over an edge have been processed completely."""
        self._fold(edge, roots, ids)

    def emitted_children(
        self, edge: Edge, parent_roots: U32, parent_ids: U64, parents: npt.NDArray[np.integer]
    ) -> U64:
        """Make the ids of children, each of its parent's root, and count them as emitted.

        Returns the ids; ``kernels.child_ids`` says what ``parents`` is. All children of a parent
        on this edge must be in one call, for their ordinals start at 0.
        """
        net = self._net(edge.name)
        return kernels.children_xor(net.acc, net.span, parent_roots, parent_ids, parents, edge.id)

    def window_emitted(self, edge: Edge | str, xor_value: int) -> None:
        """Combined tuples, of the window's own tree, were handed to an edge."""
        name = edge if isinstance(edge, str) else edge.name
        self._window_checks[name] = self._window_checks.get(name, 0) ^ int(xor_value)

    def window_processed(self, edge: Edge | str, xor_value: int) -> None:
        """Combined tuples that came over an edge have been processed."""
        self.window_emitted(edge, xor_value)

    def window_emitted_ids(self, edge: Edge | str, ids: U64) -> None:
        """``window_emitted`` with the XOR over an array of ids."""
        self.window_emitted(edge, xor_all(ids))

    def window_processed_ids(self, edge: Edge | str, ids: U64) -> None:
        """``window_processed`` with the XOR over an array of ids."""
        self.window_emitted(edge, xor_all(ids))

    def messages(self) -> list[tuple[int, bytes]]:
        """(tracking partition, message) for each partition with something to say.

        The partition that judges the window's tree always has a message, an empty one if need
        be: that it is there shows that the log has not lost it.
        """
        home = check_partition(self._attempt.window)
        nets: dict[int, list[Net]] = {home: []}
        for edge, net in self._nets.items():
            self._cut(edge, net, nets)
        checks = {edge: value for edge, value in self._window_checks.items() if value}
        return [
            (
                partition,
                self._encode(partition, nets[partition], checks if partition == home else {}),
            )
            for partition in sorted(nets)
        ]

    def _encode(self, partition: int, nets: list[Net], checks: dict[str, int]) -> bytes:
        message = AckMessage(self._attempt, self._task, partition, tuple(nets), checks)
        return encode(message)

    def _net(self, edge: str) -> _NetSoFar:
        net = self._nets.get(edge)
        if net is None:
            net = self._nets[edge] = _NetSoFar(self._roots_total)
        return net

    def _fold(self, edge: Edge | str, roots: U32, ids: U64) -> None:
        net = self._net(edge if isinstance(edge, str) else edge.name)
        kernels.xor_into(net.acc, roots, ids, net.span)

    def _cut(self, edge: str, net: _NetSoFar, nets: dict[int, list[Net]]) -> None:
        """Add an edge's net, cut into tracking partitions."""
        low, high = int(net.span[0]), int(net.span[1])
        if high >= self._roots_total:
            raise kernels.root_out_of_range(high, self._roots_total)
        if low > high or not net.acc[low : high + 1].any():
            return
        first, last = low // _STRIPE, high // _STRIPE
        stripes = net.acc.reshape(-1, TRACKING_PARTITIONS, BLOCK_ROOTS)[first : last + 1]
        blocks = range(low // BLOCK_ROOTS, high // BLOCK_ROOTS + 1)[:TRACKING_PARTITIONS]
        for column in (block % TRACKING_PARTITIONS for block in blocks):
            found = net_of(edge, first * BLOCK_ROOTS, stripes[:, column].reshape(-1))
            if found is not None:
                partition = (self._attempt.window + column) % TRACKING_PARTITIONS
                nets.setdefault(partition, []).append(found)
