"""User code of the recovery benchmark: a line that names many keys."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace import vectorized

KEY_BYTES = 100

_LETTERS = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8
)


@vectorized(output="key string")
def spread(batch: pa.RecordBatch) -> tuple[dict[str, pa.Array], pa.Array]:
    """A line ``first count`` becomes that many keys: numbers in 10 digits, and random letters."""
    words = pc.split_pattern(batch.column("value"), " ")
    firsts = pc.list_element(words, 0).cast(pa.int64()).to_numpy()
    counts = pc.list_element(words, 1).cast(pa.int64()).to_numpy()
    keys = [key_bytes(int(f), int(n)) for f, n in zip(firsts, counts, strict=True)]
    data = np.concatenate(keys)
    offsets = np.arange(len(data) + 1, dtype=np.int32) * KEY_BYTES
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data.reshape(-1))]
    parents = np.repeat(np.arange(len(counts)), counts)
    return {"key": pa.StringArray.from_buffers(len(data), *buffers[1:])}, pa.array(parents)


def key_bytes(first: int, count: int) -> np.ndarray:
    """Keys number ``first`` and following, uint8[count, KEY_BYTES]; equal numbers, equal keys."""
    numbers = np.arange(first, first + count, dtype=np.uint64)
    digits = numbers[:, None] // 10 ** np.arange(9, -1, -1, dtype=np.uint64) % np.uint64(10)
    letters = np.random.default_rng(first).integers(0, 64, (count, KEY_BYTES - 10), np.uint8)
    return np.hstack([digits.astype(np.uint8) + np.uint8(48), _LETTERS[letters]])
