"""User code of the shuffle benchmark: words and a stateful count, both in Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millrace import stateful, vectorized


@vectorized(output="word string")
def split(batch: pa.RecordBatch) -> tuple[dict[str, pa.Array], pa.Array]:
    """Every line becomes its words, which one space separates."""
    words = pc.split_pattern(batch.column("value"), " ")
    return {"word": pc.list_flatten(words)}, pc.list_parent_indices(words)


@stateful(output="word string, n long", state="n long")
def count(row: Mapping[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """The running count of a word."""
    n = (state["n"] or 0) + 1
    state["n"] = n
    return {"word": row["word"], "n": n}
