"""The ack message: what one task attempt emitted and processed, root by root and edge by edge.

One message for each tracking partition that the task touched, little-endian:

    head      magic "MA", format, partition, nets, window checks, length of names, task, attempt
    nets      for each: length of its edge's name, kind, lowest place, count
    checks    for each: length of its edge's name, XOR
    names     UTF-8, those of nets first; zeros up to a multiple of 8
    arrays    for each net: dense (0) uint64[count]; sparse (1) the same and then uint32[count]
              places, padded to 8; seeds (2) the source's partition and a base, uint64[2]

A *place* is a root's position among the roots of its partition (``acklog.local_index``), so a
dense array lies over an acker's array as it is. Edges whose net is zero everywhere are left out.
An edge may have several nets, which are XORed.

*Seeds* say that the net of a source's own edge is the tracking ids of consecutive records, which
is what a source task leaves there when all went well: the record at a place has the offset "base
plus sequence number". That is lossless, spares the log 8 bytes a root, and an acker that is about
to seed the very same records has nothing to compute.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from millrace.errors import NewerFormatError, ProtocolError
from millrace.ids import name_id
from millrace.protocol.acklog import consumer_of, source_of
from millrace.protocol.types import FORMAT, AttemptId, TaskId
from millrace.tracking.ids import U32, U64, range_tracking_ids, sequences_at

_MAGIC = b"MA"
_HEAD = struct.Struct("<2sHHHHxxIIIIIQQQ")
_EDGE = struct.Struct("<HBxII")
_CHECK = struct.Struct("<H6xQ")
_RECORDS = struct.Struct("<QQ")
_DENSE, _SPARSE, _SEEDS = range(3)

DENSE_COST_BYTES = 8
SPARSE_COST_BYTES = 12


@dataclass(frozen=True, slots=True, eq=False)
class Net:
    """Net of one edge: ``values`` uint64 at ``places`` (uint32, rising), or from ``low`` on."""

    edge: str
    low: int
    values: U64
    places: U32 | None = None


@dataclass(frozen=True, slots=True)
class Seeds:
    """Net that is the tracking ids of records of one source partition, from a place on.

    ``base`` (modulo 2^64) and the sequence number of a place add up to the record's offset.
    """

    edge: str
    low: int
    count: int
    partition: int
    base: int

    def net(self, window: int, slice_: int, slices: int) -> Net:
        """The same net as values, in one of ``slices`` slices of a window."""
        places = np.arange(self.low, self.low + self.count)
        offsets = sequences_at(window, slice_, places, slices).view(np.uint64) + np.uint64(
            self.base
        )
        source = name_id(consumer_of(self.edge))
        return Net(self.edge, self.low, range_tracking_ids(source, self.partition, offsets))


@dataclass(frozen=True, slots=True, eq=False)
class AckMessage:
    """A message. Decoded, its arrays are read-only views into the bytes."""

    attempt: AttemptId
    task: TaskId
    partition: int
    nets: tuple[Net | Seeds, ...]
    window_checks: Mapping[str, int]

    def values(self, slices: int) -> list[Net]:
        """All nets with their values, those of seeds computed, of an attempt of so many slices."""
        window, partition = self.attempt.window, self.partition
        return [
            net.net(window, partition, slices) if isinstance(net, Seeds) else net
            for net in self.nets
        ]


def net_of(edge: str, low: int, values: U64) -> Net | None:
    """Smallest form of a net over consecutive places from ``low`` on; ``None`` if it is zero."""
    nonzero = np.flatnonzero(values)
    if not len(nonzero):
        return None
    first, last = int(nonzero[0]), int(nonzero[-1])
    if (last + 1 - first) * DENSE_COST_BYTES <= len(nonzero) * SPARSE_COST_BYTES:
        return Net(edge, low + first, values[first : last + 1])
    places = (nonzero + low).astype(np.uint32)
    return Net(edge, int(places[0]), values[nonzero], places)


def encode(message: AckMessage) -> bytes:
    """Bytes of a message."""
    attempt, task = message.attempt, message.task
    names = [net.edge.encode() for net in message.nets]
    check_names = [edge.encode() for edge in message.window_checks]
    text = b"".join(names) + b"".join(check_names)
    parts = [
        _HEAD.pack(
            _MAGIC,
            FORMAT,
            message.partition,
            len(names),
            len(check_names),
            len(text),
            task.pass_no,
            task.partition,
            attempt.attempt,
            0,
            attempt.execution,
            attempt.window,
            task.task_attempt,
        )
    ]
    for name, net in zip(names, message.nets, strict=True):
        parts.append(_EDGE.pack(len(name), *_shape(net)))
    for name, value in zip(check_names, message.window_checks.values(), strict=True):
        parts.append(_CHECK.pack(len(name), value))
    parts.append(text)
    parts.append(bytes(-sum(map(len, parts)) % 8))
    for net in message.nets:
        parts += _arrays(net)
    return b"".join(parts)


def _shape(net: Net | Seeds) -> tuple[int, int, int]:
    """(kind, lowest place, count)"""
    if isinstance(net, Seeds):
        return _SEEDS, net.low, net.count
    return _DENSE if net.places is None else _SPARSE, net.low, len(net.values)


def _arrays(net: Net | Seeds) -> list[bytes]:
    if isinstance(net, Seeds):
        return [_RECORDS.pack(net.partition, net.base)]
    if net.places is None:
        return [net.values.tobytes()]
    return [net.values.tobytes(), net.places.tobytes(), bytes(len(net.places) % 2 * 4)]


def decode(data: bytes) -> AckMessage:
    """Read a message without copying its arrays.

    Raises ``NewerFormatError`` for a message of a newer release and ``ProtocolError`` for one
    that is cut short or is no ack message.
    """
    if len(data) >= 4 and data[:2] == _MAGIC:
        found = int.from_bytes(data[2:4], "little")
        if found > FORMAT:
            raise NewerFormatError(
                f"ack message has format {found}, this release reads up to {FORMAT}; "
                "upgrade the ackers before the tasks"
            )
    if len(data) < _HEAD.size or data[:2] != _MAGIC:
        raise ProtocolError(f"ack message of {len(data)} bytes: it does not begin with a head")
    try:
        return _decode(data)
    except (struct.error, ValueError) as error:
        raise ProtocolError(
            f"ack message of {len(data)} bytes is damaged: {error}; a part of it is lost"
        ) from error


def enclosed(data: bytes) -> str:
    """A message as a report and a close marker enclose it: base64."""
    return base64.b64encode(data).decode()


def read_enclosed(text: str) -> AckMessage:
    """Read what ``enclosed`` made; raises as ``decode``."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ProtocolError(
            f"ack message of {len(text)} characters in a close marker is no base64 ({error}); "
            "whoever wrote it is no driver of this topology"
        ) from error
    return decode(data)


def _decode(data: bytes) -> AckMessage:
    (_, _, partition, edges, checks, names_length, pass_no, task_partition, attempt, _) = (
        head := _HEAD.unpack_from(data)
    )[:10]
    execution, window, task_attempt = head[10:]
    at = _HEAD.size
    table = [_EDGE.unpack_from(data, at + i * _EDGE.size) for i in range(edges)]
    at += edges * _EDGE.size
    totals = [_CHECK.unpack_from(data, at + i * _CHECK.size) for i in range(checks)]
    at += checks * _CHECK.size
    text, at = data[at : at + names_length], at + names_length
    at += -at % 8
    nets: list[Net | Seeds] = []
    name_at = 0
    for length, kind, low, count in table:
        name = text[name_at : name_at + length].decode()
        name_at += length
        if kind == _SEEDS:
            if source_of(name) is None:
                raise ValueError(f"it has seeds for edge {name!r}, which is no source's own")
            nets.append(Seeds(name, low, count, *_RECORDS.unpack_from(data, at)))
            at += _RECORDS.size
            continue
        values = np.frombuffer(data, "<u8", count, at)
        at += count * 8
        places = np.frombuffer(data, "<u4", count, at) if kind == _SPARSE else None
        at += (count + count % 2) * 4 if kind == _SPARSE else 0
        nets.append(Net(name, low, values, places))
    window_checks = {}
    for length, value in totals:
        window_checks[text[name_at : name_at + length].decode()] = value
        name_at += length
    if at != len(data):
        raise ValueError(f"its parts add up to {at} bytes")
    return AckMessage(
        AttemptId(execution, window, attempt),
        TaskId(pass_no, task_partition, task_attempt),
        partition,
        tuple(nets),
        window_checks,
    )
