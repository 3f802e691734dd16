"""The ack message: what one task attempt emitted and processed, root by root and edge by edge.

One message for each tracking partition that the task touched, little-endian:

    head      magic "MA", format, partition, edges, window checks, length of names, task, attempt
    edges     for each: length of its name, kind (dense 0, sparse 1), lowest place, count
    checks    for each: length of its edge's name, XOR
    names     UTF-8, edges first; zeros up to a multiple of 8
    arrays    for each edge: uint64[count] nets; if sparse then uint32[count] places, padded to 8

A *place* is a root's position among the roots of its partition (``acklog.local_index``), so a
dense array lies over an acker's array as it is. Edges whose net is zero everywhere are left out.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from millrace.errors import NewerFormatError, ProtocolError
from millrace.protocol.types import FORMAT, AttemptId, TaskId
from millrace.tracking.ids import U32, U64

_MAGIC = b"MA"
_HEAD = struct.Struct("<2sHHHHxxIIIIIQQQ")
_EDGE = struct.Struct("<HBxII")
_CHECK = struct.Struct("<H6xQ")

DENSE_COST_BYTES = 8
SPARSE_COST_BYTES = 12


@dataclass(frozen=True, slots=True, eq=False)
class Net:
    """Net of one edge: ``values`` uint64 at ``places`` (uint32, rising), or from ``low`` on."""

    edge: str
    low: int
    values: U64
    places: U32 | None = None


@dataclass(frozen=True, slots=True, eq=False)
class AckMessage:
    """A decoded message; its arrays are read-only views into the bytes."""

    attempt: AttemptId
    task: TaskId
    partition: int
    nets: tuple[Net, ...]
    window_checks: Mapping[str, int]


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
        parts.append(_EDGE.pack(len(name), net.places is not None, net.low, len(net.values)))
    for name, value in zip(check_names, message.window_checks.values(), strict=True):
        parts.append(_CHECK.pack(len(name), value))
    parts.append(text)
    parts.append(bytes(-sum(map(len, parts)) % 8))
    for net in message.nets:
        parts.append(net.values.tobytes())
        if net.places is not None:
            parts.append(net.places.tobytes())
            parts.append(bytes(len(net.places) % 2 * 4))
    return b"".join(parts)


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
            f"ack message of {len(data)} bytes is damaged: {error}; the ack log lost a part of it"
        ) from error


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
    nets = []
    name_at = 0
    for length, sparse, low, count in table:
        name = text[name_at : name_at + length].decode()
        name_at += length
        values = np.frombuffer(data, "<u8", count, at)
        at += count * 8
        places = np.frombuffer(data, "<u4", count, at) if sparse else None
        at += (count + count % 2) * 4 if sparse else 0
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
