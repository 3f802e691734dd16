"""A batch that is part of a larger one holds its own rows alone, whoever looks at it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millrace.engine.program import duck
from millrace.engine.program.schema import conform, own

DEEP = pa.struct([("geo", pa.struct([("lat", pa.float64())])), ("tags", pa.list_(pa.string()))])


@pytest.mark.parametrize("start", [0, 1, 7])
def test_duckdb_takes_structs_within_structs_of_any_part(start: int) -> None:
    rows = [{"geo": {"lat": float(n)}, "tags": [str(n)]} for n in range(10)]
    data = pa.record_batch({"u": pa.array(rows, DEEP), "n": pa.array(range(10), pa.int64())})
    part = duck.numbered(data.slice(start, 2))
    query = f"SELECT u.geo.lat AS lat, u, n, {duck.ROW} FROM {duck.INPUT} WHERE u.geo.lat >= 0"
    found = duck.evaluate(query, part)
    assert found.column("lat").to_pylist() == [float(start), float(start + 1)]
    assert found.column("u").to_pylist() == rows[start : start + 2]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([[1], [2], [1 << 40], [3]], pa.list_(pa.int64())),
        ([["a"], ["b"], [b"\xff"], ["c"]], pa.list_(pa.binary())),
    ],
)
def test_a_value_that_does_not_fit_is_none_of_the_rows_beside_it(values, kind) -> None:
    column = pa.array(values, kind)
    wanted = pa.list_(pa.int32())
    if kind == pa.list_(pa.binary()):
        storage = column.values
        text = pa.Array.from_buffers(pa.string(), len(storage), storage.buffers())
        column = pa.ListArray.from_arrays(column.offsets, text)
        wanted = pa.list_(pa.string())
    schema = pa.schema([("v", wanted)])

    def taken(start: int, count: int) -> int:
        return own(conform({"v": column.slice(start, count)}, schema, "p")).num_rows

    assert [taken(0, 2), taken(0, 1), taken(1, 1), taken(3, 1)] == [2, 1, 1, 1]
    with pytest.raises(pa.ArrowInvalid):
        taken(2, 1)


def test_a_number_too_large_for_a_float_fits_no_more_than_one_too_large_for_an_int() -> None:
    schema = pa.schema([("v", pa.float32())])
    fine = pa.array([1.5, float("inf"), None])
    assert conform({"v": fine}, schema, "p").column("v").to_pylist() == fine.to_pylist()
    with pytest.raises(pa.ArrowInvalid, match="too large for a float"):
        conform({"v": pa.array([1.5, 1e300])}, schema, "p")


@pytest.mark.parametrize("deep", [False, True])
def test_no_number_in_a_list_becomes_infinite(deep: bool) -> None:
    def column(kind: pa.DataType, *numbers: float | None) -> pa.Array:
        values = [None, [[*numbers], None] if deep else [*numbers]]
        return pa.array(values, pa.list_(pa.list_(kind)) if deep else pa.list_(kind))

    schema = pa.schema([("v", column(pa.float32()).type)])
    fine = column(pa.float64(), 1.5, float("inf"), None)
    assert conform({"v": fine}, schema, "p").column("v").to_pylist() == fine.to_pylist()
    with pytest.raises(pa.ArrowInvalid, match="too large for a float"):
        conform({"v": column(pa.float64(), 1.0, -1e300)}, schema, "p")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (pa.nulls(2), pa.list_(pa.string())),
        (pa.nulls(2), pa.list_(pa.list_(pa.float32()))),
        (pa.array([[], None]), pa.list_(pa.list_(pa.float32()))),
    ],
)
def test_lists_of_which_there_are_none_fit(given: pa.Array, wanted: pa.DataType) -> None:
    found = conform({"v": given}, pa.schema([("v", wanted)]), "p").column("v")
    assert found.to_pylist() == given.to_pylist()


def test_no_number_of_a_dictionary_becomes_infinite() -> None:
    schema = pa.schema([("v", pa.float32())])
    with pytest.raises(pa.ArrowInvalid, match="too large for a float"):
        conform({"v": pa.array([1.0, 1e300]).dictionary_encode()}, schema, "p")
