"""What a function puts out stands in its column as it was given, or its root fails alone."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from millrace.engine.task.steps.output import RowBuffer

LONG = pa.int64()
LIST = pa.list_(pa.int64())
STRUCT = pa.struct([("a", pa.int32()), ("b", pa.string())])
MAP = pa.map_(pa.string(), pa.int64())


def built(kind: pa.DataType, values: list[Any]) -> tuple[list[Any], list[int]]:
    """(values that are stored, the parents of those that are not)."""
    rows = RowBuffer(pa.schema([("n", kind)]), "step")
    for parent, value in enumerate(values):
        rows.add({"n": value}, parent)
    data, parents, bad = rows.build()
    assert sorted([*parents, *bad]) == list(range(len(values)))
    assert all("processor 'step', column 'n': expected" in str(error) for error in bad.values())
    return data.column("n").to_pylist(), sorted(bad)


@pytest.mark.parametrize(
    ("kind", "good", "stored", "bad"),
    [
        (LONG, [3, 2.0, Decimal(2), np.int64(7), None], [3, 2, 2, 7, None], 1.5),
        (LONG, [3], [3], Decimal("2.7")),
        (LONG, [3], [3], np.float64(2.999)),
        (LONG, [3], [3], "4"),
        (LIST, [[1, 2.0], None, np.array([5])], [[1, 2], None, [5]], [1, 2.5]),
        (STRUCT, [{"a": 1, "b": "x"}, None], [{"a": 1, "b": "x"}, None], {"a": 1.25}),
        (STRUCT, [(1, "x")], [{"a": 1, "b": "x"}], (1.25, "x")),
        (MAP, [{"k": 1}, [("k", 3)]], [[("k", 1)], [("k", 3)]], {"z": 1.5}),
        (pa.list_(STRUCT), [[{"a": 1}]], [[{"a": 1, "b": None}]], [{"a": 1}, {"a": 0.5}]),
        (pa.float64(), [1, 1.5], [1.0, 1.5], "x"),
    ],
    ids=str,
)
def test_no_number_is_cut_to_an_integer(
    kind: pa.DataType, good: list[Any], stored: list[Any], bad: Any
) -> None:
    assert built(kind, good) == (stored, [])
    assert built(kind, [*good, bad]) == (stored, [len(good)])
    assert built(kind, [bad, *good, bad]) == (stored, [0, len(good) + 1])


def test_values_of_two_forms_stand_side_by_side() -> None:
    """Arrow takes a struct as a dict and as a tuple, but not one beside the other."""
    values = [{"a": 1, "b": "x"}, (2, "y"), {"a": "no number"}, None]
    held = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, None]
    assert built(STRUCT, values) == (held, [2])
    assert built(STRUCT, values[:2]) == (held[:2], [])


TIMESTAMP = pa.timestamp("us", "UTC")
MOMENT = dt.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (TIMESTAMP, 1767225600.25),
        (TIMESTAMP, 1),
        (TIMESTAMP, pd.Timestamp(2_000_000_000_000_000_001, unit="ns", tz="UTC")),
        (TIMESTAMP, np.datetime64("2024-01-01T00:00:00.000000001")),
        (pa.date32(), dt.datetime(2024, 1, 1, 12, 30)),
        (pa.date32(), dt.datetime(2024, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=-5)))),
        (pa.date32(), 1),
        (pa.date32(), 2.5),
        (pa.date32(), pd.NaT),
        (pa.list_(pa.date32()), [2.5]),
        (pa.list_(TIMESTAMP), [1]),
        (pa.float32(), 1e300),
        (pa.list_(pa.float32()), [1.0, -1e39]),
    ],
)
def test_a_value_that_would_quietly_become_another_one_fails_its_root(
    kind: pa.DataType, value: Any
) -> None:
    assert built(kind, [None, value, None]) == ([None, None], [1])


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (TIMESTAMP, MOMENT, MOMENT),
        (TIMESTAMP, MOMENT.replace(tzinfo=None), MOMENT),
        (TIMESTAMP, pd.Timestamp(MOMENT), MOMENT),
        (pa.date32(), dt.date(2024, 1, 2), dt.date(2024, 1, 2)),
        (pa.date32(), dt.datetime(2024, 1, 2), dt.date(2024, 1, 2)),
        (pa.date32(), pd.Timestamp("2024-01-02"), dt.date(2024, 1, 2)),
        (pa.float32(), math.inf, math.inf),
        (pa.float32(), 1e38, float(np.float32(1e38))),
    ],
)
def test_a_value_in_another_form_is_taken(kind: pa.DataType, value: Any, stored: Any) -> None:
    assert built(kind, [value]) == ([stored], [])
