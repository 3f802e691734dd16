"""A function whose result depends on the order of its tuples."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc

from millrace import grouped, stateful


@stateful(output="word string, n long", state="n long")
def remember(word, state):
    before = state["n"] or 0
    state["n"] = before + 1
    return {"word": word["word"], "n": before}


@grouped(output="word string, n long", state="n long")
def remember_many(batch, state):
    before = pc.fill_null(state.column("n"), 0).to_numpy()
    key = batch.key_of_row
    each = before[key] + np.arange(len(key)) - batch.offsets[key]
    columns = {"word": batch.rows.column("word"), "n": each}
    return {"n": before + batch.counts}, columns, np.arange(len(key))
