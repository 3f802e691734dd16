"""What declared processors do, as functions of Python: for ``native.py``."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa

from millrace import vectorized

REGIONS = {f"name {number}": f"region {number * 31 % 50}" for number in range(100_000)}


@vectorized(output="word string, n long, amount double, at timestamp")
def read(batch: pa.RecordBatch) -> tuple[dict[str, pa.Array], np.ndarray]:
    """The fields of each object."""
    rows = [json.loads(text) for text in batch.column("value").to_pylist()]
    columns = {
        "word": pa.array([row["order"]["item"] for row in rows], pa.string()),
        "n": pa.array([row["order"]["count"] for row in rows], pa.int64()),
        "amount": pa.array([row["amount"] for row in rows], pa.float64()),
        "at": pa.array([row["at"] for row in rows]).cast(pa.timestamp("us", "UTC")),
    }
    return columns, np.arange(len(rows))


@vectorized(output="value string, word string")
def look_up(batch: pa.RecordBatch) -> tuple[dict[str, pa.Array], np.ndarray]:
    """The region of each name."""
    names = batch.column("value")
    regions = [REGIONS.get(name) for name in names.to_pylist()]
    return {"value": names, "word": pa.array(regions, pa.string())}, np.arange(len(names))
