"""Form of a state object: one Arrow IPC stream of rows sorted by key group, in one record batch or,
where there are many rows, in chunks that can be read one by one (``chunks``).

The schema's metadata holds ``millrace.format``, ``millrace.kind`` (what kind of state wrote it),
``millrace.key_groups`` (their number K), ``millrace.time`` (that of the window that wrote it),
``millrace.updated`` ("1": the last column is the time of each row's last update) and
``millrace.groups``: "group:rows" for each group that has rows, in their order. The digests over all
bytes and over the index of the chunks lie outside, in the ``Segment`` that names the object.
Buffers of larger objects are compressed (zstd): measured, this takes a third of the time that it
saves where the file is written and fsynced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from millrace.errors import NewerFormatError
from millrace.state.errors import BlobError
from millrace.state.keyed import chunks
from millrace.state.keyed.chunks import Chunk, Span, digest_of
from millrace.state.keyed.keybytes import Array

FORMAT = 5
"""Version of state objects; a newer one is refused, an older read.

5: it says whether its rows have times, since a column may have any name. 4: it has a time, and its
rows may have one each (``ages``). 3: there may be several record batches, with an index behind
them. 1 and 2 are one, with none.
"""

UPDATED = pa.field("__updated", pa.int64())
"""The last column of an object whose rows have times: that of each row's last update, in
milliseconds. It is known by its place: a user's column may be called the same."""

_COLUMNS_DIGITS = 12
"""Enough to tell apart the few forms that a processor ever had; a record has many of them."""

COMPRESS_FROM_BYTES = 32 << 10
"""Smaller objects are not worth compressing."""

_PREFIX_BYTES = 8
"""Of a message in the stream: a mark, and the size of what follows."""

_FORMAT, _KIND = b"millrace.format", b"millrace.kind"
_KEY_GROUPS, _GROUPS = b"millrace.key_groups", b"millrace.groups"
_TIME, _UPDATED = b"millrace.time", b"millrace.updated"


@dataclass(frozen=True, slots=True)
class Blob:
    """A state object that is ready to be stored; ``groups`` is the mask of those with rows, and
    ``index`` the digest of the index of its chunks, if it has any."""

    data: bytes
    digest: str
    rows: int
    groups: int
    index: str = ""


def time_of(batch: pa.RecordBatch) -> int:
    """Time in milliseconds of the window that wrote the object of these rows; 0: not known."""
    return int((batch.schema.metadata or {}).get(_TIME, 0))


def timed(schema: pa.Schema) -> bool | None:
    """Whether the last column of an object has the times of its rows; None: it does not say."""
    said = (schema.metadata or {}).get(_UPDATED)
    return None if said is None else bool(said == b"1")


def digest_of_columns(schema: pa.Schema, kind: str) -> str:
    """Digest of the names and types of a state's columns, without the times of its rows. Equal ones
    are read alike; of others only the schemas tell."""
    written = schema.remove_metadata().serialize().to_pybytes()
    return digest_of(kind.encode() + b"\0" + written)[:_COLUMNS_DIGITS]


def kind_of(schema: pa.Schema) -> str:
    """What kind of state wrote an object."""
    found: bytes = (schema.metadata or {}).get(_KIND, b"")
    return found.decode()


def write(
    batch: pa.RecordBatch, groups: Array, key_groups: int, kind: str = "", time_ms: int = 0
) -> Blob:
    """Make a state object of rows in any order; ``groups`` (int) is each row's key group."""
    order = np.argsort(groups, kind="stable")
    starts = np.zeros(key_groups + 1, np.int64)
    np.cumsum(np.bincount(groups, minlength=key_groups), out=starts[1:])
    return write_sorted(batch.take(pa.array(order)), starts, kind, time_ms)


def write_sorted(
    batch: pa.RecordBatch,
    starts: Array,
    kind: str = "",
    time_ms: int = 0,
    updated: Array | None = None,
) -> Blob:
    """Make a state object of rows sorted by key group.

    ``starts`` (int64, K + 1) holds the first row of each group, and the number of rows; ``time_ms``
    is the time of the window, ``updated`` (int64) that of each row's last update.
    """
    counts = np.diff(starts)
    present = np.flatnonzero(counts)
    sizes = " ".join(f"{g}:{n}" for g, n in zip(present, counts[present], strict=True))
    metadata = {
        _FORMAT: str(FORMAT),
        _KIND: kind,
        _KEY_GROUPS: str(len(counts)),
        _GROUPS: sizes,
        _TIME: str(time_ms),
        _UPDATED: str(int(updated is not None)),
    }
    fields, columns = list(batch.schema), list(batch.columns)
    if updated is not None:
        fields.append(UPDATED)
        columns.append(pa.array(updated, pa.int64()))
    schema = pa.schema(fields, metadata)
    rows = pa.RecordBatch.from_arrays(columns, schema=schema)
    cut = [0, rows.num_rows] if _has_dictionaries(schema) else chunks.cuts(starts, batch.nbytes)
    stream, ends = _stream(rows, cut)
    mask = sum(1 << int(group) for group in present)
    if len(ends) == 2:
        return Blob(bytes(stream), digest_of(stream), rows.num_rows, mask)
    spans = [
        [(g, int(counts[g])) for g in present.tolist() if first <= starts[g] < end]
        for first, end in pairwise(cut)
    ]
    footer = chunks.footer(stream, ends, spans)
    data = b"".join((stream, footer))
    index = digest_of(footer[: -chunks.FOOT_BYTES])
    return Blob(data, digest_of(data), rows.num_rows, mask, index)


def _stream(rows: pa.RecordBatch, cut: Sequence[int]) -> tuple[memoryview, list[int]]:
    """A stream of rows with a batch between each two numbers of ``cut``; the ends, in it, of its
    schema and of each batch."""
    sink = pa.BufferOutputStream()
    compression = "zstd" if rows.nbytes >= COMPRESS_FROM_BYTES else None
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    ends: list[int] = []
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        for first, end in pairwise(cut):
            writer.write_batch(rows.slice(first, end - first))
            ends.append(sink.tell())
    stream = memoryview(sink.getvalue())
    return stream, [schema_bytes(stream), *ends[:-1], len(stream)]


def read(
    data: bytes, groups: int | None = None, digest: str = "", kind: str | None = None
) -> pa.RecordBatch:
    """The rows of the key groups in the bit mask ``groups`` (None: all) as one batch.

    ``digest`` and ``kind`` are compared when given. Raises ``BlobError`` for a damaged object or
    another kind, ``NewerFormatError`` for one of a newer release.
    """
    batches = read_batches(data, groups, digest, kind)
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def schema_bytes(head: bytes | memoryview) -> int:
    """How many first bytes of an object hold its schema, as the first few of them say."""
    return _PREFIX_BYTES + int.from_bytes(head[4:_PREFIX_BYTES], "little")


def read_schema(head: bytes, kind: str | None = None) -> pa.Schema:
    """The schema of an object, from its first ``schema_bytes``. Raises as ``read``."""
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(head))
        _check_format(schema.metadata or {})
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:
        raise BlobError(f"{len(head)} bytes begin no state object: {error!r}") from error
    _check_kind(schema, kind)
    return schema


def read_batches(
    data: bytes, groups: int | None = None, digest: str = "", kind: str | None = None
) -> list[pa.RecordBatch]:
    """``read`` in one batch or more, without a copy where these are all rows of the object."""
    if digest and digest_of(data) != digest:
        raise BlobError(
            f"a state object of {len(data)} bytes has digest {digest_of(data)}, the record says "
            f"{digest}: it was damaged or replaced; restore it from another copy"
        )
    found = chunks.read_index(data, len(data))
    spans = [chunk.spans for chunk in found[0].chunks] if found is not None else None
    return _decode(data, spans, groups, kind)


def read_chunks(
    schema: Chunk,
    chosen: Sequence[Chunk],
    bytes_of: Callable[[Chunk], memoryview],
    groups: int,
    kind: str | None = None,
) -> list[pa.RecordBatch]:
    """Rows of the key groups in the bit mask ``groups``, from some chunks of an object.

    Raises as ``read``.
    """
    parts = []
    for chunk in (schema, *chosen):
        parts.append(bytes_of(chunk))
        chunk.check(parts[-1])
    return _decode(b"".join(parts), [chunk.spans for chunk in chosen], groups, kind)


def _decode(
    data: bytes, spans: Sequence[Sequence[Span]] | None, groups: int | None, kind: str | None
) -> list[pa.RecordBatch]:
    """The rows in a stream; without ``spans`` of each batch there is one of them."""
    try:
        reader = pa.ipc.open_stream(pa.py_buffer(data))
        metadata = reader.schema.metadata or {}
        _check_format(metadata)
        if spans is None:
            spans = [_spans(metadata[_GROUPS].decode())]
        batches = [reader.read_next_batch() for _ in spans]
    except (pa.ArrowException, StopIteration, KeyError, ValueError, OSError) as error:
        raise BlobError(f"{len(data)} bytes are no state object: {error!r}") from error
    _check_kind(reader.schema, kind)
    if groups is None:
        return batches
    return [_pick(batch, held, groups) for batch, held in zip(batches, spans, strict=True)]


def _spans(text: str) -> list[Span]:
    return [(int(group), int(rows)) for group, rows in (part.split(":") for part in text.split())]


def _has_dictionaries(schema: pa.Schema) -> bool:
    """Whether batches cannot be read one by one, since dictionaries lie between them."""
    return any(pa.types.is_dictionary(field.type) for field in schema)


def _check_kind(schema: pa.Schema, kind: str | None) -> None:
    found = kind_of(schema)
    if kind is not None and found != kind:
        raise BlobError(
            f"a state object holds state of kind {found!r}, not {kind!r}: the processor has "
            "changed its kind; give it another name, or start over with --fresh"
        )


def _check_format(metadata: dict[bytes, bytes]) -> None:
    found = int(metadata[_FORMAT])
    if found > FORMAT:
        raise NewerFormatError(
            f"a state object has format {found}, this release of millrace reads up to format "
            f"{FORMAT}: install the release that wrote it, or a later one"
        )


def _pick(batch: pa.RecordBatch, spans: Sequence[Span], groups: int) -> pa.RecordBatch:
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
