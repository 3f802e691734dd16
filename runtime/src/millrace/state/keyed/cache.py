"""State kept in a worker process between windows.

Spark gives a partition to any worker, so what a process has may be of an earlier window, or of
an attempt that was never sealed. The sealed chain alone decides: ``open`` brings the state to
exactly the chain it is given::

    (absent) -- load --> Clean(links) -- open --> InAttempt(links) -- write --> Wrote(links + own)
       ^                   |  ^                       |                             |
       |                   |  +--- undo (next open) --+                             |
       +--- chain is another+  +--- kept, if the chain begins with exactly these ---+
            (or broken)           links; else undone

A process that dies loses nothing but time: the next one loads the chain. A state is marked as in
an attempt before anything in it can change, so a task that ends anywhere leaves it undoable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from millrace.ids import WindowNumber
from millrace.protocol.types import Segment
from millrace.state.keyed import blobs
from millrace.state.keyed.blobs import Blob

MAX_DELTAS = 32
"""Longest chain of deltas: each is one more object to read, and a line in the record."""

MIN_COMPACT_BYTES = 256 << 10
DELTAS_PER_BASE = 2.0
"""A base is written once the deltas weigh this much more than the base before them."""

DEFAULT_LIMIT_BYTES = 1 << 30


class State(Protocol):
    """What the cache needs of a state; see ``AggregateState`` and ``DictState``."""

    kind: str

    @property
    def size(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def broken(self) -> bool: ...
    def begin(self) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def apply(self, batch: pa.RecordBatch) -> None: ...
    def delta(self) -> Blob | None: ...
    def base(self) -> Blob: ...


S = TypeVar("S", bound=State)

Load = Callable[[Sequence[Segment]], Sequence[bytes]]
"""Reads the objects of segments, in their order, in as few round trips as it can."""


@dataclass(frozen=True, slots=True)
class Link:
    """A segment as far as it counts for some key groups: ``groups`` are those it still serves."""

    segment: Segment
    groups: int

    def same(self, other: Link) -> bool:
        mine, its = self.segment, other.segment
        return (mine.name, mine.digest, self.groups) == (its.name, its.digest, other.groups)


def links(chain: Sequence[Segment], groups: int) -> tuple[Link, ...]:
    """The part of a chain that matters for a mask of key groups, oldest first.

    A base takes its groups away from every segment before it.
    """
    found: list[Link] = []
    wanted = groups
    for segment in reversed(chain):
        serves = segment.groups & wanted
        if serves:
            found.append(Link(segment, serves))
        if segment.base:
            wanted &= ~segment.groups
    return tuple(reversed(found))


def should_compact(chain: Sequence[Segment], groups: int, max_deltas: int = MAX_DELTAS) -> bool:
    """Whether a task that holds ``groups`` should write a base instead of one more delta."""
    parts = links(chain, groups)
    deltas = [link.segment.size_bytes for link in parts if not link.segment.base]
    bases = sum(link.segment.size_bytes for link in parts if link.segment.base)
    if len(deltas) >= max_deltas:
        return True
    return sum(deltas) > max(MIN_COMPACT_BYTES, DELTAS_PER_BASE * bases)


@dataclass(frozen=True, slots=True)
class StateKey:
    """Whose state: a topology's processor, and the key groups (mask) of one task."""

    uid: str
    processor: str
    groups: int


@dataclass(slots=True)
class _Entry:
    """A cached state and the links it reflects; ``wrote`` are those if its attempt is sealed."""

    state: State
    reflects: tuple[Link, ...] = ()
    in_attempt: bool = False
    wrote: tuple[Link, ...] | None = None


class OpenState(Generic[S]):
    """A state that one task works on, at the start of a window."""

    def __init__(self, state: S, key: StateKey, chain: Sequence[Segment], entry: _Entry) -> None:
        self.state = state
        self.key = key
        self._chain = tuple(chain)
        self._entry = entry

    def write(
        self, name: str, window: WindowNumber, *, compact: bool | None = None
    ) -> tuple[Segment, bytes] | None:
        """The object to store under ``name`` for what this attempt changed, and its segment.

        To be called once, when nothing will change any more. A base when the chain is long or
        hardly anything is untouched (``compact`` overrules); None when nothing changed and there
        is no need of a base.
        """
        if compact is None:
            compact = should_compact(self._chain, self.key.groups)
        blob = None if compact else self.state.delta()
        if blob is None and not compact:
            self._entry.wrote = self._entry.reflects
            return None
        if blob is None or 2 * blob.rows >= self.state.size:
            compact, blob = True, self.state.base()
        groups = self.key.groups if compact else blob.groups
        segment = Segment(name, window, groups, compact, blob.rows, len(blob.data), blob.digest)
        self._entry.wrote = links((*self._chain, segment), self.key.groups)
        return segment, blob.data


class StateCache:
    """States of one process; a process runs one task at a time.

    ``limit_bytes`` bounds what is kept beside the states that are open.
    """

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._entries: dict[StateKey, _Entry] = {}

    def open(
        self, key: StateKey, chain: Sequence[Segment], make: Callable[[], S], load: Load
    ) -> OpenState[S]:
        """The state as of a sealed chain, ready for a window attempt.

        ``make`` gives an empty state, ``load`` reads objects. Raises what ``load`` raises, and
        ``BlobError`` for a damaged object; the state is then left out of the cache.
        """
        wanted = links(chain, key.groups)
        self._drop_overlapping(key)
        entry = self._entries.pop(key, None)
        if entry is not None and not self._settle(entry, wanted):
            entry = None
        if entry is None:
            entry = _Entry(make())
        missing = wanted[len(entry.reflects) :]
        if missing:
            for link, data in zip(missing, load([m.segment for m in missing]), strict=True):
                kind = entry.state.kind
                batch = blobs.read(data, link.groups, link.segment.digest, kind)
                entry.state.apply(batch)
        entry.reflects = wanted
        entry.in_attempt = True
        entry.wrote = None
        entry.state.begin()
        self._entries[key] = entry
        self._evict(key)
        return OpenState(entry.state, key, chain, entry)  # type: ignore[arg-type]

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()

    @property
    def size_bytes(self) -> int:
        return sum(entry.state.size_bytes for entry in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    # -- helpers

    def _settle(self, entry: _Entry, wanted: tuple[Link, ...]) -> bool:
        """Keep or undo the last attempt; whether the state is then an ancestor of ``wanted``."""
        if entry.state.broken:
            return False
        if entry.in_attempt:
            if entry.wrote is not None and _begins(wanted, entry.wrote):
                entry.state.commit()
                entry.reflects = entry.wrote
            else:
                entry.state.rollback()
            entry.in_attempt = False
            entry.wrote = None
        return _begins(wanted, entry.reflects)

    def _drop_overlapping(self, key: StateKey) -> None:
        """Key groups have moved between tasks: what is kept under the old masks is of no use."""
        for other in list(self._entries):
            same = (other.uid, other.processor) == (key.uid, key.processor)
            if same and other.groups != key.groups and other.groups & key.groups:
                del self._entries[other]

    def _evict(self, keep: StateKey) -> None:
        for oldest in list(self._entries):
            if self.size_bytes <= self._limit_bytes:
                return
            if oldest != keep:
                del self._entries[oldest]


def _begins(chain: tuple[Link, ...], start: tuple[Link, ...]) -> bool:
    return len(start) <= len(chain) and all(
        mine.same(its) for mine, its in zip(start, chain, strict=False)
    )
