"""Envelopes: what one task sends another between two passes.

An envelope is one value for each (map partition, reduce partition): a header and the Arrow data
of every edge that crosses. Layout: magic, format version (uint16), header size (uint32), signed
header, one Arrow IPC stream for each edge in the header's order, each padded to 8 bytes.

What is checked where: the sender notes count and XOR of ids for each edge before a ``Transport``
touches the tuples, the reader computes both again from what came out. So whatever a transport
loses, doubles or sends to the wrong reader shows in the task that reads it, besides what the
ackers see; and a reader takes exactly one envelope from each map partition.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from millrace.engine.program import signing
from millrace.engine.task import kernels
from millrace.engine.task.batch import ANCHORS, ID, ROOT
from millrace.errors import EngineError, NewerFormatError
from millrace.protocol.types import FORMAT, TaskId, TaskReport
from millrace.tracking.collector import Messages

_MAGIC = b"MRENV\0"
_PREFIX = struct.Struct("<6sHI")
_ALIGNMENT = 8


class EnvelopeError(EngineError):
    """An envelope is damaged, missing or doubled; the window attempt is run again."""


@dataclass(frozen=True, slots=True)
class Check:
    """Number of tuples on an edge and XOR of their ids (0 with tracking off)."""

    count: int
    xor: int = 0


@dataclass(frozen=True, slots=True)
class Header:
    """What an envelope says of itself; ``reports`` are those of tasks further up too."""

    task: TaskId
    reader: int
    checks: Mapping[str, Check]
    reports: tuple[TaskReport, ...] = ()


@dataclass(frozen=True, slots=True)
class Parcel:
    """An envelope before it is packed, or after: the tables of each edge, by edge name.

    ``acks`` are ack messages of its task, told by who takes it: in the same process alone.
    """

    header: Header
    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    acks: Messages = ()


class Transport:
    """Turns parcels into bytes and back. A program names the class to use by import path."""

    def send(self, parcels: Sequence[Parcel]) -> Iterator[tuple[int, bytes]]:
        """(reader, envelope) of every parcel of one task, one for each reader."""
        for parcel in parcels:
            yield parcel.header.reader, pack(parcel)

    def receive(self, envelopes: Iterable[bytes]) -> list[Parcel]:
        """Parcels of the envelopes that one reader got, in no particular order."""
        return [unpack(envelope) for envelope in envelopes]


def check_of(tables: pa.Table | pa.RecordBatch) -> Check:
    """Count and XOR of what is about to travel, or has travelled."""
    if ID not in tables.schema.names:
        return Check(tables.num_rows)
    column = tables.column(ID)
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    xor = 0
    for chunk in chunks:
        xor ^= kernels.xor(chunk.to_numpy())
    return Check(tables.num_rows, xor)


def check_envelopes(parcels: Sequence[Parcel], writers: int, reader: int, tracked: bool) -> None:
    """Refuse what is not exactly one whole envelope from each of ``writers`` partitions.

    Raises ``EnvelopeError``.
    """
    partitions = sorted(p.header.task.partition for p in parcels)
    if partitions != list(range(writers)):
        raise EnvelopeError(
            f"partition {reader} got envelopes of the partitions {partitions}, expected one of "
            f"each of {writers}"
        )
    for parcel in parcels:
        if parcel.header.reader != reader:
            raise EnvelopeError(
                f"partition {reader} got an envelope for partition {parcel.header.reader}"
            )
        if tracked:
            _check_content(parcel)


def _check_content(parcel: Parcel) -> None:
    for edge, expected in parcel.header.checks.items():
        table = parcel.tables.get(edge)
        got = check_of(table) if table is not None else Check(0)
        if got != expected:
            raise EnvelopeError(
                f"the envelope of partition {parcel.header.task.partition} for partition "
                f"{parcel.header.reader} brought {got.count} tuples on {edge} (check value "
                f"{got.xor:016x}), sent were {expected.count} ({expected.xor:016x})"
            )
    extra = sorted(set(parcel.tables) - set(parcel.header.checks))
    if extra:
        raise EnvelopeError(f"an envelope brought the edge {extra[0]}, which was not sent")


def check_roots(table: pa.Table, roots: int, edge: str) -> None:
    """Refuse root numbers outside the window, which the kernels could not index."""
    chunks = table.column(ROOT).chunks
    for lists in table.column(ANCHORS).chunks if ANCHORS in table.column_names else ():
        try:
            lists.validate(full=True)
        except pa.ArrowInvalid as error:
            raise EnvelopeError(f"an envelope brought damaged anchors on {edge}") from error
        chunks.append(lists.flatten())
    for chunk in chunks:
        if kernels.count_foreign(chunk.to_numpy(), roots):
            raise EnvelopeError(f"an envelope brought roots on {edge} that the window lacks")


def pack(parcel: Parcel) -> bytes:
    """The bytes of an envelope."""
    edges, streams = [], []
    for edge, table in parcel.tables.items():
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        stream = sink.getvalue()
        edges.append((edge, stream.size))
        streams.append(stream)
    header = signing.signed("envelope", (parcel.header, edges))
    out = bytearray(_PREFIX.pack(_MAGIC, FORMAT, len(header)))
    out += header
    for stream in streams:
        out += bytes(-len(out) % _ALIGNMENT)
        out += memoryview(stream)
    return bytes(out)


def unpack(envelope: bytes) -> Parcel:
    """Read an envelope without copying its columns.

    Raises ``EnvelopeError`` for damaged bytes, ``NewerFormatError`` for a newer layout.
    """
    if len(envelope) < _PREFIX.size:
        raise EnvelopeError(f"an envelope of {len(envelope)} bytes is too short")
    magic, version, header_size = _PREFIX.unpack_from(envelope)
    if magic != _MAGIC:
        raise EnvelopeError("the bytes read from the exchange are no envelope")
    if version > FORMAT:
        raise NewerFormatError(
            f"an envelope has format {version}, this release reads up to {FORMAT}; "
            "use one release for driver and executors"
        )
    at = _PREFIX.size + header_size
    try:
        header, edges = signing.verified("envelope", memoryview(envelope)[_PREFIX.size : at])
        whole = pa.py_buffer(envelope)
        tables = {}
        for edge, size in edges:
            at += -at % _ALIGNMENT
            with pa.ipc.open_stream(whole.slice(at, size)) as reader:
                tables[edge] = reader.read_all()
            at += size
    except (signing.UnsignedError, EOFError, pa.ArrowException, ValueError) as error:
        raise EnvelopeError(f"an envelope cannot be read: {error}") from error
    if at != len(envelope):
        raise EnvelopeError(f"an envelope has {len(envelope)} bytes, its header says {at}")
    return Parcel(header, tables)
