"""State of a processor as of a sealed window, while windows go on.

The record that a server holds names the objects; what it names may be deleted while it is read,
since the next window no longer needs it. Then the next record is read, so an answer is always of
one window as a whole. Objects never change: what was read of one serves for every later record
that names it, so each try has less to read, as long as windows write less than is read meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from millrace.errors import MillraceError, StateServerError
from millrace.loading import LoadError, load_named
from millrace.local.inspect.reading import committed_record, fetch_parts, reachable, topology_of
from millrace.local.workdir import WorkFolder
from millrace.protocol.types import Record, Segment
from millrace.state.keyed import query
from millrace.state.keyed.loading import Extent, Load
from millrace.state.keyed.query import Lifetime
from millrace.state.readable import Readable
from millrace.state.servers import WHOLE
from millrace.topology.model import Processor, StreamTopology

_TRIES = 20


class _GoneError(Exception):
    """An object of the record was deleted: a later window has been sealed."""


class NoStateError(MillraceError):
    """There is no state of that name, or of that key."""


@dataclass(frozen=True, slots=True)
class StateRows:
    """Rows of one processor's state behind ``window``; the first ``keys`` columns are the key."""

    window: int
    keys: int
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Holder:
    """Who keeps the state of a topology: its state servers, wherever they are."""

    topology: StreamTopology
    clients: Sequence[Readable]


@contextmanager
def holder_of(folder: WorkFolder) -> Iterator[Holder]:
    """That of a work folder. Raises ``WorkFolderError``, ``StateServerError``."""
    topology = topology_of(folder)
    with reachable(folder) as clients:
        yield Holder(topology, clients)


def scan(folder: WorkFolder, processor: str) -> StateRows:
    """All state of a processor, by key.

    Raises ``NoStateError`` for a name that is no processor with state, ``StateServerError`` where
    no server can be reached.
    """
    with holder_of(folder) as holder:
        return scan_of(holder, processor)


def get(folder: WorkFolder, processor: str, key: Sequence[str]) -> StateRows:
    """The state of one key; see ``get_of``."""
    with holder_of(folder) as holder:
        return get_of(holder, processor, key)


def scan_of(holder: Holder, processor: str) -> StateRows:
    """As ``scan``."""

    def look(
        chain: Sequence[Segment], groups: int, keys: int, get: Load, lifetime: Lifetime
    ) -> pa.RecordBatch:
        return query.read_state(chain, (1 << groups) - 1, keys, get, lifetime)

    return _read(holder, processor, look)


def get_of(holder: Holder, processor: str, key: Sequence[str]) -> StateRows:
    """The state of one key, given as texts in the order of its columns; one row or none.

    Reads the objects of the key's group alone. Raises as ``scan``, and ``KeyTextError``.
    """

    def look(
        chain: Sequence[Segment], groups: int, keys: int, get: Load, lifetime: Lifetime
    ) -> pa.RecordBatch:
        fields = query.key_fields(chain, keys, get)
        if not fields:
            return pa.RecordBatch.from_arrays([], names=[])
        wanted = query.parse_key(key, fields)
        mask = 1 << query.group_of(wanted, groups)
        return query.pick(query.read_state(chain, mask, keys, get, lifetime), wanted)

    return _read(holder, processor, look)


_Look = Callable[[Sequence[Segment], int, int, Load, Lifetime], pa.RecordBatch]


def _read(holder: Holder, name: str, look: _Look) -> StateRows:
    topology, clients = holder.topology, holder.clients
    objects = _Objects(clients)
    for _ in range(_TRIES):
        record = committed_record(clients)
        if record is None:
            raise NoStateError(f"{topology.name}: no window has been sealed yet")
        processor, keys = _stateful(topology, record, name)
        chain = record.chains.get(name, ())
        objects.forget_but(chain)
        ttl_ms = processor.ttl.milliseconds if processor.ttl is not None else 0
        lifetime = Lifetime(ttl_ms, record.time_ms)
        try:
            rows = look(chain, topology.spec.key_groups, keys, objects.load, lifetime)
        except _GoneError:
            continue
        return StateRows(record.sealed, keys, _shown(processor, rows))
    raise StateServerError(
        f"state of {name}: in {_TRIES} tries what one window left was deleted by the next before "
        "it was read; ask again when windows write less, or for one key alone, which reads less"
    )


def _stateful(topology: StreamTopology, record: Record, name: str) -> tuple[Processor, int]:
    """The processor and the number of its key's columns."""
    for processor in topology.spec.processors:
        edges = [edge for edge in processor.inputs if edge.key]
        if processor.name == name and edges:
            return processor, len(edges[0].key)
    having = ", ".join(sorted(record.chains)) or "none"
    raise NoStateError(
        f"{name!r} is no processor with a key, so it has no state; processors that have: {having}"
    )


def _shown(processor: Processor, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of kept state as the processor's kind shows them."""
    kind = processor.kind
    if not kind.shows:
        return rows
    try:
        shown: pa.RecordBatch = load_named(kind.shows)(processor.settings, rows)
    except LoadError as error:
        raise MillraceError(
            f"state of {processor.name}: {kind.name} is shown by {error}"
        ) from error
    return shown


_Part = tuple[str, int, int]
"""Of an object: its name, a start and a size in bytes."""


class _Objects:
    """What was read of objects in all tries."""

    def __init__(self, clients: Sequence[Readable]) -> None:
        self._clients = clients
        self._read: dict[_Part, bytes] = {}

    def forget_but(self, chain: Sequence[Segment]) -> None:
        """What ``chain`` does not name will not be asked for again."""
        names = {segment.name for segment in chain}
        self._read = {part: data for part, data in self._read.items() if part[0] in names}

    def load(self, parts: Sequence[Extent]) -> list[bytes]:
        """As ``Load``. Raises ``_GoneError`` where one is gone, once all others are read."""
        wanted = [(p.segment.name, p.start, p.size or WHOLE) for p in parts]
        extents = dict(zip(wanted, parts, strict=True))
        lacking = [part for part in extents if part not in self._read]

        def is_intact(at: int, data: bytes) -> bool:
            return extents[lacking[at]].is_intact(data)

        found = zip(lacking, fetch_parts(self._clients, lacking, is_intact), strict=True)
        self._read.update((part, data) for part, data in found if data is not None)
        if not all(part in self._read for part in wanted):
            raise _GoneError
        return [self._read[part] for part in wanted]
