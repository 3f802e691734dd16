"""Grouped functions of the tests: what they are given, and what they must not give back."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace import grouped

GIVEN: list[tuple[list[dict], list[dict], list[int], list[dict]]] = []
"""Rows, keys, offsets and state of each call in this process; tests clear it."""


@grouped(output="k string, day int, n long, v long", state="n long, last long")
def totals(batch, state):
    """One row for each key; a ``v`` of -1 deletes the state of its key, from 1000 on it raises."""
    GIVEN.append(
        (
            batch.rows.to_pylist(),
            batch.keys.to_pylist(),
            batch.offsets.tolist(),
            state.to_pylist(),
        )
    )
    v = batch.rows.column("v").to_numpy()
    if (v >= 1000).any():
        raise ValueError(f"cannot take {v.max()}")
    n = pc.add(pc.fill_null(state.column("n"), 0), pa.array(batch.counts))
    last = v[batch.last]
    kept = pa.array(last == -1)
    held = {
        "n": pc.if_else(kept, None, n),
        "last": pc.if_else(kept, None, pa.array(last)),
    }
    put_out = {"k": batch.keys.column("k"), "day": batch.keys.column("day"), "n": n, "v": last}
    return held, put_out, batch.last


@grouped(output="k string", state="n long")
def silent(batch, state):
    """Keeps a count and puts out nothing."""
    return pa.table({"n": pc.add(pc.fill_null(state.column("n"), 0), pa.array(batch.counts))})


@grouped(output="k string, n long", state="n long")
def told(batch, state):
    """What ``silent`` has kept, without a change."""
    return state, {"k": batch.keys.column("k"), "n": state.column("n")}, batch.last


def wrong(give):
    @grouped(output="k string", state="n long")
    def function(batch, state):
        return give(batch, {"n": batch.counts}, {"k": batch.keys.column("k")})

    return function


nothing = wrong(lambda batch, state, out: None)
pair = wrong(lambda batch, state, out: (out, batch.last))
short_state = wrong(lambda batch, state, out: ({"n": state["n"][1:]}, out, batch.last))
no_state_column = wrong(lambda batch, state, out: ({}, out, batch.last))
other_state_column = wrong(lambda batch, state, out: ({**state, "m": state["n"]}, out, batch.last))
text_state = wrong(lambda batch, state, out: ({"n": out["k"]}, out, batch.last))
few_parents = wrong(lambda batch, state, out: (state, out, batch.last[1:]))
far_parents = wrong(lambda batch, state, out: (state, out, batch.last + batch.rows.num_rows))
no_parents = wrong(lambda batch, state, out: (state, out, None))
ragged_parents = wrong(lambda batch, state, out: (state, out, [[0], [1, 2]]))
wrong_output = wrong(lambda batch, state, out: (state, {"k": batch.counts}, batch.last))


@grouped(output="k string", state="n long")
def scribbles(batch, state):
    """Nothing that it is given can be written to."""
    arrays = [batch.offsets]
    if not state.column("n").null_count:
        arrays.append(state.column("n").to_numpy())
    for array in arrays:
        try:
            array[0] = np.int64(1)
        except ValueError:
            continue
        return None
    return {"n": batch.counts}
