"""What declared processors do, as functions of Python: for ``native.py``."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa

from millrace import vectorized


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
