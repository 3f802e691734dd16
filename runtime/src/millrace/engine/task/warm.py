"""Makes compiled code ready before workers are forked, so that none of them waits for it.

``python -m millrace.engine.task.warm`` does that alone, and leaves it in numba's cache.
"""

from __future__ import annotations

import gc

import pyarrow as pa

from millrace.compiled.jit import compile_all
from millrace.engine.task.steps.whitespace import Finder
from millrace.state.keyed import blobs
from millrace.state.keyed.aggregates import Aggregate
from millrace.state.keyed.aggregatestate import AggregateState
from millrace.state.keyed.dictstate import DictState
from millrace.state.keyed.keys import hash_keys

_KEY_GROUPS = 2
_KEYS = 5_000


def warm_up() -> None:
    """Compile every kernel of a worker, or load it from the cache on disk."""
    import millrace.compiled.newlines
    import millrace.engine.task.sqlstage  # noqa: F401

    if compile_all():
        gc.collect()  # what a compiler leaves behind is as large as all else
    _use_state()


def _use_state() -> None:
    """Go once through what tasks do with keyed state, for each form of column."""
    text = pa.array(["a", "b", "a"])
    words, _ = Finder().views(text)
    rows = _rows(text, pa.array([1, None, 3]), pa.array([1.0, None, 3.0]))
    functions = ("count", "sum", "min", "max", "avg")
    columns = [Aggregate(f"{f}_{c}", f, c) for f in functions for c in ("n", "x")]
    for keys in (["t"], ["n"], ["t", "n"]):
        hash_keys([rows.column(k) for k in keys])
        for aggregates in (columns, [Aggregate("count", "count")]):
            state = AggregateState(rows.schema, keys, aggregates, _KEY_GROUPS)
            state.begin()
            state.update(rows)
            state.update(rows.slice(0, 1))
            if keys == ["t"] and aggregates is not columns:
                state.update(pa.RecordBatch.from_arrays([words], names=["t"]))
            if keys == ["n"] and aggregates is not columns:
                # So many that their table has to grow, which is the same for every form of key.
                state.update(_rows_of(_KEYS))
            delta = state.delta()
            assert delta is not None
            state.rows(state.touched())
            state.rollback()
            state.apply(blobs.read(delta.data))
    values = DictState(
        pa.schema([rows.schema.field("t")]), pa.schema([rows.schema.field("n")]), _KEY_GROUPS
    )
    values.begin()
    values.values[int(values.find([text])[0])]["n"] = 1
    values.delta()
    values.commit()


def _rows(text: pa.Array, whole: pa.Array, real: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([text, whole, real], names=["t", "n", "x"])


def _rows_of(keys: int) -> pa.RecordBatch:
    numbers = pa.array(range(keys), pa.int64())
    return _rows(numbers.cast(pa.string()), numbers, numbers.cast(pa.float64()))


if __name__ == "__main__":
    warm_up()
