"""Form of a state object: one Arrow IPC stream with one record batch, sorted by key group.

The schema's metadata holds ``millrace.format``, ``millrace.kind`` (what kind of state wrote it),
``millrace.key_groups`` (their number K) and ``millrace.groups``: "group:rows" for each group that
has rows, in the order of the batch. The digest over all bytes lies outside, in the ``Segment``
that names the object. Buffers of larger objects are compressed (zstd): measured, this takes a
third of the time that it saves where the file is written and fsynced.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import xxhash

from millrace.errors import NewerFormatError
from millrace.protocol.types import FORMAT
from millrace.state.errors import BlobError
from millrace.state.keyed.keybytes import Array

COMPRESS_FROM_BYTES = 32 << 10
"""Smaller objects are not worth compressing."""

_FORMAT, _KIND = b"millrace.format", b"millrace.kind"
_KEY_GROUPS, _GROUPS = b"millrace.key_groups", b"millrace.groups"


@dataclass(frozen=True, slots=True)
class Blob:
    """A state object that is ready to be stored; ``groups`` is the mask of those with rows."""

    data: bytes
    digest: str
    rows: int
    groups: int


def digest_of(data: bytes) -> str:
    """128-bit XXH3 in hex: notices damage, not malice."""
    return xxhash.xxh3_128_hexdigest(data)


def write(batch: pa.RecordBatch, groups: Array, key_groups: int, kind: str = "") -> Blob:
    """Make a state object of rows in any order; ``groups`` (int) is each row's key group."""
    order = np.argsort(groups, kind="stable")
    starts = np.zeros(key_groups + 1, np.int64)
    np.cumsum(np.bincount(groups, minlength=key_groups), out=starts[1:])
    return write_sorted(batch.take(pa.array(order)), starts, kind)


def write_sorted(batch: pa.RecordBatch, starts: Array, kind: str = "") -> Blob:
    """Make a state object of rows sorted by key group.

    ``starts`` (int64, K + 1) holds the first row of each group, and the number of rows.
    """
    counts = np.diff(starts)
    present = np.flatnonzero(counts)
    sizes = " ".join(f"{g}:{n}" for g, n in zip(present, counts[present], strict=True))
    metadata = {
        _FORMAT: str(FORMAT),
        _KIND: kind,
        _KEY_GROUPS: str(len(counts)),
        _GROUPS: sizes,
    }
    schema = batch.schema.with_metadata(metadata)
    sink = pa.BufferOutputStream()
    compression = "zstd" if batch.nbytes >= COMPRESS_FROM_BYTES else None
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
    data = sink.getvalue().to_pybytes()
    mask = sum(1 << int(group) for group in present)
    return Blob(data, digest_of(data), batch.num_rows, mask)


def read(
    data: bytes, groups: int | None = None, digest: str = "", kind: str | None = None
) -> pa.RecordBatch:
    """The rows of the key groups in the bit mask ``groups`` (None: all), without a copy if these
    are all that the object has.

    ``digest`` and ``kind`` are compared when given. Raises ``BlobError`` for a damaged object or
    another kind, ``NewerFormatError`` for one of a newer release.
    """
    if digest and digest_of(data) != digest:
        raise BlobError(
            f"a state object of {len(data)} bytes has digest {digest_of(data)}, the record says "
            f"{digest}: it was damaged or replaced; restore it from another copy"
        )
    try:
        reader = pa.ipc.open_stream(pa.py_buffer(data))
        metadata = reader.schema.metadata or {}
        _check_format(metadata)
        batch = reader.read_next_batch()
        sizes = [part.split(":") for part in metadata[_GROUPS].decode().split()]
        spans = [(int(group), int(rows)) for group, rows in sizes]
    except (pa.ArrowException, StopIteration, KeyError, ValueError, OSError) as error:
        raise BlobError(f"{len(data)} bytes are no state object: {error!r}") from error
    found = metadata.get(_KIND, b"").decode()
    if kind is not None and found != kind:
        raise BlobError(
            f"a state object holds state of kind {found!r}, not {kind!r}: the processor has "
            "changed its kind; give it another name, or start over with --fresh"
        )
    return batch if groups is None else _pick(batch, spans, groups)


def _check_format(metadata: dict[bytes, bytes]) -> None:
    found = int(metadata[_FORMAT])
    if found > FORMAT:
        raise NewerFormatError(
            f"a state object has format {found}, this release of millrace reads up to format "
            f"{FORMAT}: install the release that wrote it, or a later one"
        )


def _pick(batch: pa.RecordBatch, spans: list[tuple[int, int]], groups: int) -> pa.RecordBatch:
    """Rows of the wanted groups; neighbours are cut out as one piece."""
    pieces: list[tuple[int, int]] = []
    at = 0
    for group, rows in spans:
        if groups >> group & 1:
            if pieces and sum(pieces[-1]) == at:
                pieces[-1] = (pieces[-1][0], pieces[-1][1] + rows)
            else:
                pieces.append((at, rows))
        at += rows
    if at != batch.num_rows:
        raise BlobError(f"a state object has {batch.num_rows} rows, its groups have {at}")
    cut = [batch.slice(start, rows) for start, rows in pieces]
    if len(cut) == 1:
        return cut[0]
    return pa.concat_batches(cut) if cut else batch.slice(0, 0)
