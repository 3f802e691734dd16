"""User code of the shuffle benchmark: words and a stateful count, both in Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millrace import GroupedBatch, grouped, stateful, vectorized


@vectorized(output="word string")
def split(batch: pa.RecordBatch) -> tuple[dict[str, pa.Array], pa.Array]:
    """Every line becomes its words, which one space separates."""
    words = pc.split_pattern(batch.column("value"), " ")
    return {"word": pc.list_flatten(words)}, pc.list_parent_indices(words)


@grouped(output="word string, n long", state="n long")
def totals(
    batch: GroupedBatch, state: pa.RecordBatch
) -> tuple[dict[str, pa.Array], dict[str, pa.Array], Any]:
    """The count of each word of a batch, once."""
    n = pc.add(pc.fill_null(state["n"], 0), pa.array(batch.counts))
    return {"n": n}, {"word": batch.keys["word"], "n": n}, batch.last


@stateful(output="word string, n long", state="n long")
def count(row: Mapping[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """The running count of a word."""
    n = (state["n"] or 0) + 1
    state["n"] = n
    return {"word": row["word"], "n": n}
