"""Functions of whole batches that fill the same arrays in each call, or make values that are not
what their type says."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace import grouped, vectorized

ROOM = np.zeros(1000, np.int64)
PLACES = np.zeros(1000, np.int64)


def filled(values, wrapped):
    """The values in ``ROOM``: as an array of numpy, or in one of Arrow that lies in it."""
    found = ROOM[: len(values)]
    found[:] = values
    return pa.array(found) if wrapped else found


def tens(wrapped):
    @vectorized(output="n long")
    def function(batch):
        v = batch.column("v").to_numpy()
        if (v >= 1000).any():
            raise ValueError(f"cannot take {v.max()}")
        parents = PLACES[: len(v)]
        parents[:] = np.arange(len(v))
        return {"n": filled(v * 10, wrapped)}, parents

    return function


tens_of_numpy, tens_of_arrow = tens(wrapped=False), tens(wrapped=True)


def counts(wrapped):
    @grouped(output="k string, n long", state="n long")
    def function(batch, state):
        before = pc.fill_null(state.column("n"), 0).to_numpy()
        n = filled(before + batch.counts, wrapped)
        parents = PLACES[: len(n)]
        parents[:] = batch.last
        return {"n": n}, {"k": batch.keys.column("k"), "n": n}, parents

    return function


counts_of_numpy, counts_of_arrow = counts(wrapped=False), counts(wrapped=True)


def cut(texts):
    """The first two bytes of texts, which may end within a character."""
    return pc.binary_slice(texts.cast(pa.binary()), 0, 2).view(pa.string())


@vectorized(output="k string")
def cuts(batch):
    return {"k": cut(batch.column("k"))}, np.arange(batch.num_rows)


@grouped(output="k string", state="n long")
def puts_out_cuts(batch, state):
    return {"n": batch.counts}, {"k": cut(batch.keys.column("k"))}, batch.last


@grouped(output="k string", state="t string")
def keeps_cuts(batch, state):
    return {"t": cut(batch.keys.column("k"))}, {"k": batch.keys.column("k")}, batch.last


def keeps_far(kind, state):
    """Keeps -1, or a list of 0 and an instant that Python's types have not, for long texts."""

    @grouped(output="k string", state=state)
    def function(batch, state):
        long = pc.greater(pc.utf8_length(batch.keys.column("k")), 1)
        dtype = np.int32 if kind == pa.date32() else np.int64
        far = np.where(long.to_numpy(zero_copy_only=False), np.iinfo(dtype).max, 0).astype(dtype)
        starts = pa.array(np.arange(len(far) + 1, dtype=np.int32))
        lists = pa.ListArray.from_arrays(starts, pa.array(far).view(kind))
        return {"t": lists}, {"k": batch.keys.column("k")}, batch.last

    return function


keeps_far_times = keeps_far(pa.timestamp("us", "UTC"), "t array<timestamp>")
keeps_far_days = keeps_far(pa.date32(), "t array<date>")
