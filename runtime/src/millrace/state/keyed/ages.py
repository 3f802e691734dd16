"""When each key's state was updated last, and which of it has expired.

The time is that of windows, never of a worker's clock, so every attempt of a window, in any process
and on any cut of the key groups, sees the same keys as expired. State that was updated at ``u`` is
expired in windows of the time ``u + ttl`` and later: nobody sees it any more, and a base is written
without it. Until then its rows lie in the chain, so whoever reads that must leave them out, too.

An object keeps the times in its last column (``blobs.UPDATED``). Rows of one without, written
while the processor had no ttl, count as updated when the object was written; where no release has
written a time at all (0) they are kept until they are updated.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.state.keyed import blobs
from millrace.state.keyed.keybytes import Array

SWEEPS = 8
"""Expired keys are looked for so often while the time of one ttl passes."""


class Ages:
    """The times of a state's table rows; ``now_ms`` is the time of the window."""

    def __init__(self, ttl_ms: int) -> None:
        self._ttl_ms = ttl_ms
        self._held: Array = np.zeros(16, np.int64)
        self._saved: list[tuple[Array, Array]] = []
        self._swept_ms = 0
        self.now_ms = 0

    @property
    def size_bytes(self) -> int:
        return self._held.nbytes

    def begin(self, now_ms: int) -> None:
        """A window attempt begins, and from here all can be undone."""
        self.now_ms = now_ms
        self._saved = []

    def reserve(self, first: int, rows: int) -> None:
        """Have room for ``rows`` rows; those from ``first`` on start anew."""
        if rows > len(self._held):
            held = np.zeros(max(rows, 2 * len(self._held)), np.int64)
            held[:first] = self._held[:first]
            self._held = held
        self._held[first:rows] = 0

    def meet(self, rows: Array) -> Array:
        """Rows that were there before the attempt are touched by it: the mask of the expired."""
        self._saved.append((rows, self._held[rows]))
        return self.expired(rows)

    def update(self, rows: Array | int) -> None:
        """Rows are updated by the window."""
        self._held[rows] = self.now_ms

    def load(self, rows: Array, times: Array) -> None:
        """Set the times of rows as a state object has them."""
        self._held[rows] = times

    def rollback(self) -> None:
        for rows, times in self._saved:
            self._held[rows] = times
        self._saved = []

    def of(self, rows: Array) -> Array:
        """Times (int64) of rows."""
        return self._held[rows]

    def before(self) -> dict[int, int]:
        """The times that touched rows had before the attempt."""
        return {
            row: time
            for rows, times in self._saved
            for row, time in zip(rows.tolist(), times.tolist(), strict=True)
        }

    def expired(self, rows: Array) -> Array:
        """Mask of the rows that have expired."""
        return is_expired(self._held[rows], self._ttl_ms, self.now_ms)

    def past(self, times: Array) -> Array:
        """Mask of the times (int64) of rows of an object that have expired."""
        return is_expired(times, self._ttl_ms, self.now_ms)

    def sweep_due(self) -> bool:
        """Whether it is worth a look which keys have expired; asked once a window."""
        if self.now_ms - self._swept_ms < self._ttl_ms / SWEEPS:
            return False
        self._swept_ms = self.now_ms
        return True


def is_expired(times: Array, ttl_ms: int, now_ms: int) -> Array:
    """Mask of the times (int64) of rows that have expired."""
    return (times > 0) & (now_ms - times >= ttl_ms)


def parted(batch: pa.RecordBatch, untimed: pa.Schema | None = None) -> tuple[pa.RecordBatch, Array]:
    """The rows of a state object without their times, and the times (int64).

    ``untimed`` is its schema without times, where that is known.
    """
    schema = bare(batch.schema, untimed)
    if len(schema) == batch.num_columns:
        return batch, np.full(batch.num_rows, blobs.time_of(batch), np.int64)
    rows = pa.RecordBatch.from_arrays(batch.columns[:-1], schema=schema)
    return rows, batch.columns[-1].to_numpy()


def bare(schema: pa.Schema, untimed: pa.Schema | None = None) -> pa.Schema:
    """The schema of a state object without the times of its rows; ``untimed`` as in ``parted``."""
    if not len(schema) or not _timed(schema, untimed):
        return schema
    return schema.remove(len(schema) - 1)


def _timed(schema: pa.Schema, untimed: pa.Schema | None) -> bool:
    said = blobs.timed(schema)
    if said is not None:
        return said
    # Objects up to format 4 do not say it. One of dicts ends otherwise with its mark of deleted
    # keys; of totals ``untimed`` tells a column of the user's that has this name.
    return schema.field(len(schema) - 1) == blobs.UPDATED and (
        untimed is None or schema.remove_metadata() != untimed
    )
