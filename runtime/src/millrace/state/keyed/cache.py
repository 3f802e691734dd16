"""State kept in a worker process between windows.

Spark gives a partition to any worker, so what a process has may be of an earlier window, or of
an attempt that was never sealed. The sealed chain alone decides: ``open`` brings the state to
exactly the chain it is given::

    (absent) -- load --> Clean(links) -- open --> InAttempt(links) -- write --> Wrote(links + own)
       ^                   |  ^                       |                             |
       |                   |  +--- undo (next open) --+                             |
       +------ broken -----+  +--- kept, if the chain has one of its own segments; -+
                                   else undone

A process that dies loses nothing but time: the next one loads the chain. A state is marked as in
an attempt before anything in it can change, so a task that ends anywhere leaves it undoable. Once
the attempt is kept or undone the links say exactly what the state is of, and ``ancestry`` of which
key groups that is worth anything for the chain: the others are loaded anew, and keys of theirs that
no object has are forgotten.

A state that is large is loaded by key group, those that a window touches: an entry *holds* a mask
of groups and is of the chain as far as it matters for them. It is *whole* when that is all of them,
and only then may it become a base, in parts where it is large (``chain.part_for_base``). Groups
are added at ``open``, before the attempt begins.

The columns of all objects of the chain are compared when a process first opens a state of it, of
other key groups', too: where the code cannot read one of them, nothing may be written beside it.
Only of those that may have others than today's the schema is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from millrace.errors import EngineError
from millrace.ids import WindowNumber
from millrace.protocol.types import Segment
from millrace.state import messages
from millrace.state.keyed.ancestry import Common, common, history
from millrace.state.keyed.blobs import Blob
from millrace.state.keyed.chain import Link, bits, links, part_for_base, should_compact
from millrace.state.keyed.keybytes import Array
from millrace.state.keyed.keys import mask_of
from millrace.state.keyed.loading import Load, read_links, read_schemas

PART = "+"
"""Ends the name of a base of a part of the key groups."""

DEFAULT_LIMIT_BYTES = 1 << 30

SMALL_BYTES = 1 << 20
"""A chain up to this size is loaded whole: that is quicker than asking which groups are touched."""


class State(Protocol):
    """What the cache needs of a state; see ``AggregateState`` and ``DictState``."""

    kind: str
    columns: str

    @property
    def size(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def broken(self) -> bool: ...
    def begin(self, time_ms: int = 0) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def check_columns(self, schema: pa.Schema) -> None: ...
    def apply(self, batch: pa.RecordBatch) -> Array: ...
    def forget(self, groups: int, but: Array) -> None: ...
    def touched(self) -> Array: ...
    def groups(self, rows: Array) -> Array: ...
    def delta(self) -> Blob | None: ...
    def base(self, groups: int = -1) -> Blob: ...


S = TypeVar("S", bound=State)

Touched = Callable[[], int]
"""Mask with at least the key groups that a window touches."""


@dataclass(frozen=True, slots=True)
class StateKey:
    """Whose state: a topology's processor, and the key groups (mask) of one task."""

    uid: str
    processor: str
    groups: int


@dataclass(slots=True)
class _Entry:
    """A cached state, the key groups (mask) that it holds, and the links to them that it reflects;
    ``wrote`` are those if its attempt is sealed."""

    state: State
    holds: int = 0
    reflects: tuple[Link, ...] = ()
    in_attempt: bool = False
    wrote: tuple[Link, ...] | None = None


class OpenState(Generic[S]):
    """A state that one task works on, at the start of a window."""

    def __init__(
        self,
        state: S,
        key: StateKey,
        chain: Sequence[Segment],
        entry: _Entry,
        learning: bool = False,
    ) -> None:
        self.state = state
        self.key = key
        self._learning = learning
        self._chain = tuple(chain)
        self._entry = entry

    @property
    def whole(self) -> bool:
        """Whether the state of all key groups is there."""
        return self._entry.holds == self.key.groups

    def require(self, groups: int) -> None:
        """Raises ``EngineError`` unless the state of all these key groups (mask) is there."""
        if groups & ~self._entry.holds:
            raise EngineError(
                f"{self.key.processor}: state of the key groups {groups:#x} was used, but only "
                f"{self._entry.holds:#x} had been loaded; this is an error of millrace, please "
                "report it"
            )

    def write(
        self,
        name: str,
        window: WindowNumber,
        *,
        compact: bool | None = None,
    ) -> list[tuple[Segment, bytes]]:
        """The objects to store for what this attempt changed, and their segments: one under
        ``name``, and a base of a part of the state before it under ``name`` and ``PART``.

        To be called once, when nothing will change any more. A base when the chain is long or
        hardly anything is untouched (``compact`` overrules), never of a state that is not whole,
        and of a part of one that is too large for an object; nothing when nothing changed and there
        is no need of a base. Raises ``EngineError`` where key groups were touched that had not been
        loaded.
        """
        if not self.whole:
            self.require(mask_of(self.state.groups(self.state.touched())))
            compact = False
        due = compact
        if due is None:
            due = should_compact(self._chain, self.key.groups, learning=self._learning)
        blob = None if compact else self.state.delta()
        if self.whole and blob is not None and 2 * blob.rows >= self.state.size:
            due = compact = True
        part = 0
        if due:
            all_groups, size = self.key.groups, 0 if blob is None else len(blob.data)
            part = all_groups if compact else part_for_base(self._chain, all_groups, size)
        part, base = self._base(part)
        if compact and part != self.key.groups:
            blob = self.state.delta()
        written = []
        if base is not None and part == self.key.groups:
            written.append(self._object(name, window, base, part, base=True))
            blob = None
        elif base is not None:
            segment, data = self._object(f"{name}{PART}", window, base, part, base=True)
            covers = history(links(self._chain, part), part)
            written.append((replace(segment, covers=covers), data))
        if blob is not None:
            # Also of the groups of the base: who has what that covers needs but this.
            written.append(self._object(name, window, blob, blob.groups, base=False))
        added = [segment for segment, _ in written]
        # As in the record: a base takes its key groups away from what was before it.
        self._entry.wrote = (
            links((*self._chain, *added), self._entry.holds) if added else self._entry.reflects
        )
        return written

    def _base(self, groups: int) -> tuple[int, Blob | None]:
        """A base of key groups (mask), or of as many of them as a server takes in one object."""
        while groups:
            blob = self.state.base(-1 if groups == self.key.groups else groups)
            if len(blob.data) <= messages.MAX_OBJECT_BYTES:
                return groups, blob
            groups = sum(1 << group for group in [*bits(groups)][: groups.bit_count() // 2])
        return 0, None

    def _object(
        self, name: str, window: WindowNumber, blob: Blob, groups: int, *, base: bool
    ) -> tuple[Segment, bytes]:
        size_bytes, columns = len(blob.data), self.state.columns
        segment = Segment(
            name, window, groups, base, blob.rows, size_bytes, blob.digest, blob.index, columns
        )
        return segment, blob.data


class StateCache:
    """States of one process; a process runs one task at a time.

    ``limit_bytes`` bounds what is kept beside the states that are open; chains up to
    ``small_bytes`` are always loaded whole.
    """

    def __init__(
        self, limit_bytes: int = DEFAULT_LIMIT_BYTES, small_bytes: int = SMALL_BYTES
    ) -> None:
        self._limit_bytes = limit_bytes
        self._small_bytes = small_bytes
        self._entries: dict[StateKey, _Entry] = {}
        self._fitting: dict[tuple[str, str], frozenset[str]] = {}

    def open(
        self,
        key: StateKey,
        chain: Sequence[Segment],
        make: Callable[[], S],
        load: Load,
        touched: Touched | None = None,
        time_ms: int = 0,
        learning: bool = False,
    ) -> OpenState[S]:
        """The state as of a sealed chain, ready for an attempt of a window of this time.

        ``make`` gives an empty state, ``load`` reads objects. ``touched`` is asked only where not
        all is there, and what the window does not touch then stays away; None: all is needed. Bases
        are rarer while servers are ``learning`` the chain.
        Raises what ``load`` raises, ``StateSchemaError`` where objects of the chain have other
        columns than the state, and ``BlobError`` for a damaged object; the state is then left out
        of the cache.
        """
        self._drop_overlapping(key)
        entry = self._entries.pop(key, None)
        found = Common(0) if entry is None else _settle(entry, chain)
        fresh = entry is None or not found.kept
        if entry is None or fresh:
            entry = _Entry(make())
        lost = entry.holds & ~found.kept
        holds = self._to_hold(entry, key, chain, touched, learning)
        wanted = links(chain, holds)
        missing = found.missing(wanted)
        if fresh:
            self._check(key, chain, entry.state, missing, load)
        if missing or lost:
            entry.state.begin(time_ms)  # what has expired by then is not looked at
            read = [
                entry.state.apply(batch)
                for batches in read_links(missing, load, entry.state.kind)
                for batch in batches
            ]
            if lost:
                entry.state.forget(lost, np.concatenate([np.zeros(0, np.int64), *read]))
        entry.holds = holds
        entry.reflects = wanted
        entry.in_attempt = True
        entry.wrote = None
        entry.state.begin(time_ms)
        self._entries[key] = entry
        self._evict(key)
        return OpenState(entry.state, key, chain, entry, learning)  # type: ignore[arg-type]

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._fitting.clear()

    @property
    def size_bytes(self) -> int:
        return sum(entry.state.size_bytes for entry in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    # -- helpers

    def _check(
        self,
        key: StateKey,
        chain: Sequence[Segment],
        state: State,
        read: Sequence[Link],
        load: Load,
    ) -> None:
        """Raises ``StateSchemaError`` unless the state can hold the rows of all objects; each is
        looked at once by a process, those that are ``read`` anyway when that is done."""
        processor = key.uid, key.processor
        needed = {link.segment.name: link.segment for link in links(chain, -1)}
        known = self._fitting.get(processor, frozenset())
        seen = known | {link.segment.name for link in read}
        others = [
            segment
            for name, segment in needed.items()
            if name not in seen and segment.columns != state.columns
        ]
        for schema in read_schemas(others, load, state.kind):
            state.check_columns(schema)
        checked = known.union(segment.name for segment in others)
        self._fitting[processor] = checked.intersection(needed)

    def _to_hold(
        self,
        entry: _Entry,
        key: StateKey,
        chain: Sequence[Segment],
        touched: Touched | None,
        learning: bool,
    ) -> int:
        """Mask of the key groups that an entry is to hold for a window."""
        if touched is None or entry.holds == key.groups:
            return key.groups
        parts = links(chain, key.groups)
        small = sum(link.segment.size_bytes for link in parts) <= self._small_bytes
        if small or should_compact(chain, key.groups, whole=False, learning=learning):
            return key.groups
        stored = 0
        for link in parts:
            stored |= link.groups
        return entry.holds | key.groups & (touched() | ~stored)

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


def _settle(entry: _Entry, chain: Sequence[Segment]) -> Common:
    """Keep or undo the last attempt, and say what the state then has of a chain."""
    if entry.state.broken:
        return Common(0)
    wanted = links(chain, entry.holds)
    if entry.in_attempt:
        if entry.wrote is not None and _is_sealed(entry.wrote, entry.reflects, wanted):
            entry.state.commit()
            entry.reflects = entry.wrote
        else:
            entry.state.rollback()
        entry.in_attempt = False
        entry.wrote = None
    return common(entry.reflects, wanted, entry.holds)


def _is_sealed(wrote: Sequence[Link], before: Sequence[Link], wanted: Sequence[Link]) -> bool:
    """Whether an attempt is part of a chain: all of it is sealed, or nothing. Where bases of others
    have taken all of it away it is not seen to be, and they are read."""
    known = {(one.segment.name, one.segment.digest) for one in before}
    own = {(one.segment.name, one.segment.digest) for one in wrote} - known
    return not own or any((one.segment.name, one.segment.digest) in own for one in wanted)
