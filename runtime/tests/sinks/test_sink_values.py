"""Rows as text: what was written is read back equal by Python's own readers."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.ddl import parse_schema
from millrace.sinks import encode
from millrace.sinks.encode import encode_csv, encode_json_lines
from millrace.sinks.values import _DAY, _FIRST_DAY, _LAST_DAY, as_text
from millrace.sources.arrow_types import arrow_schema
from millrace.sources.csv_rows import CsvDecoder
from millrace.sources.lines import find_lines

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "text": (pa.string(), TEXT),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), TEXT),
    "large": (pa.large_string(), TEXT),
    "view": (pa.string_view(), TEXT),
    "long": (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    "float": (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    "flag": (pa.bool_(), st.booleans()),
    "list": (pa.list_(pa.string()), st.lists(TEXT, max_size=3)),
    "struct": (
        pa.struct([('a "', pa.int64()), ("ü", pa.list_(pa.string()))]),
        st.fixed_dictionaries(
            {'a "': st.none() | st.integers(0, 9), "ü": st.none() | st.lists(TEXT, max_size=2)}
        ),
    ),
    "nothing": (pa.null(), st.none()),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.RecordBatch:
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=4))
    size = draw(st.integers(1, 20))
    columns, labels = [], []
    for number, name in enumerate(names):
        kind, values = COLUMNS[name]
        data = draw(st.lists(st.none() | values, min_size=size, max_size=size))
        columns.append(pa.array(data, kind))
        labels.append(f'{name} "{number}\\')
    start = draw(st.integers(0, size - 1))
    return pa.RecordBatch.from_arrays(columns, names=labels).slice(start)


@settings(deadline=None, max_examples=300)
@given(batch=tables())
def test_json_lines_are_read_back_equal(batch: pa.RecordBatch) -> None:
    data = b"".join(part.to_pybytes() for part in encode_json_lines([batch]))
    assert data.count(b"\n") == batch.num_rows
    assert [json.loads(line) for line in data.split(b"\n")[:-1]] == batch.to_pylist()


def test_many_rows_in_several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "BATCH_ROWS", 7)
    batches = [pa.record_batch({"n": list(range(a, b))}) for a, b in ((0, 20), (20, 21), (21, 40))]
    data = b"".join(part.to_pybytes() for part in encode_json_lines(batches))
    assert [json.loads(line)["n"] for line in data.splitlines()] == list(range(40))


def values(column: pa.Array) -> list[Any]:
    data = b"".join(
        part.to_pybytes() for part in encode_json_lines([pa.record_batch({"v": column})])
    )
    return [json.loads(line)["v"] for line in data.splitlines()]


UTC = dt.UTC


def test_values_that_json_has_no_type_for() -> None:
    moment = dt.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    paris = pa.timestamp("us", "Europe/Paris")
    assert values(pa.array([moment], pa.timestamp("us", "UTC"))) == ["2024-01-02T03:04:05.000006Z"]
    assert values(pa.array([moment], paris)) == ["2024-01-02T03:04:05.000006Z"]
    assert values(pa.array([dt.date(2024, 1, 2), None])) == ["2024-01-02", None]
    assert values(pa.array([b"\x00\xff", None])) == ["AP8=", None]
    assert values(pa.array([math.nan, math.inf, -math.inf, 1.5, None])) == [
        "NaN",
        "Infinity",
        "-Infinity",
        1.5,
        None,
    ]
    assert values(pa.array([Decimal("1.50")])) == [1.5]
    assert values(pa.array([[{"a": b"\x00", "t": moment, "f": math.nan}]])) == [
        [{"a": "AA==", "t": "2024-01-02T03:04:05.000006Z", "f": "NaN"}]
    ]


def test_values_inside_of_others_are_written_as_those_of_columns_are() -> None:
    second = 1_700_000_000_000_000_000
    inner = pa.struct([("d", pa.decimal128(9, 2)), ("t", pa.timestamp("ns", "UTC"))])
    row = {"d": Decimal("1.50"), "t": second + 1}
    wanted = '{"d":1.50,"t":"2023-11-14T22:13:20.000000001Z"}'
    for kind, value, text in (
        (inner, row, wanted),
        (pa.list_(inner), [row, None], f"[{wanted},null]"),
        (pa.map_(pa.int64(), inner), [(7, row), (8, None)], f"[[7,{wanted}],[8,null]]"),
        (pa.map_(pa.string(), pa.binary()), [('"', b"\x00")], '[["\\"","AA=="]]'),
        (pa.struct([("m", pa.map_(pa.string(), inner))]), {"m": []}, '{"m":[]}'),
        (pa.struct([]), {}, "{}"),
    ):
        column = pa.array([value, None, value, value], kind).slice(1)
        assert as_text(column).to_pylist() == [None, text, text]
        batch = pa.record_batch({"v": column})
        data = b"".join(part.to_pybytes() for part in encode_json_lines([batch]))
        found = data.split(b"\n")[1]
        assert found.decode() == f'{{"v":{text}}}'


def test_csv_writes_what_has_no_csv_form_as_text() -> None:
    batch = pa.record_batch(
        {
            "t": pa.array([dt.datetime(2024, 1, 2, tzinfo=UTC)], pa.timestamp("us", "UTC")),
            "l": pa.array([["a", None]]),
            "b": pa.array([b"\x00"]),
            "d": pa.array(["x"]).dictionary_encode(),
        }
    )
    data = b"".join(part.to_pybytes() for part in encode_csv([batch, batch])).decode()
    row = '"2024-01-02T00:00:00.000000Z","[""a"",null]","AA==","x"'
    assert data.splitlines() == ['"t","l","b","d"', row, row]


@pytest.mark.parametrize(
    ("kind", "text", "values"),
    [
        ("string", "string", ["x", "", None]),
        ("int64", "long", [1, None, 2]),
        ("float64", "double", [None, 1.5]),
        ("bool", "boolean", [True, None]),
        ("date32", "date", [None, dt.date(2024, 2, 29)]),
    ],
)
def test_a_null_that_is_alone_in_its_line_is_read_again(kind, text, values) -> None:
    column = pa.array(values, kind)
    data = b"".join(part.to_pybytes() for part in encode_csv([pa.record_batch({"c": column})]))
    head, _, rest = data.partition(b"\n")
    decoder = CsvDecoder(arrow_schema(parse_schema(f"c {text}")))
    read = decoder.decode(find_lines(rest, blanks=False), None)
    assert head == b'"c"'
    assert not read.errors
    found = read.data.column("c").to_pylist()
    assert found == (["" if v is None else v for v in values] if kind == "string" else values)


LIMITS = [
    (pa.date32(), 1),
    *((pa.timestamp(u, zone), _DAY[u]) for u in ("s", "ms", "us") for zone in (None, "UTC")),
]
"""Type and length of a day in it; nanoseconds do not reach as far."""


@pytest.mark.parametrize(("kind", "day"), LIMITS, ids=str)
@pytest.mark.parametrize("edge", [_FIRST_DAY, _LAST_DAY])
def test_moments_have_a_text_up_to_the_edges_of_the_calendar(
    kind: pa.DataType, day: int, edge: int
) -> None:
    """Beyond them Arrow writes that a value is out of range, or another moment."""
    (text,) = as_text(pa.array([edge * day], kind)).to_pylist()
    assert str(32767 if edge > 0 else -32767) in text
    over = edge + (1 if edge > 0 else -1)
    with pytest.raises(ValueError, match="its year has no text"):
        as_text(pa.array([0, None, over * day], kind))
    with pytest.raises(ValueError, match="its year has no text"):
        as_text(pa.array([[over * day]], pa.list_(kind)))
    for write in (encode_csv, encode_json_lines):
        column = pa.array([0, None, over * day], kind)
        with pytest.raises(ValueError, match="its year has no text"):
            list(write([pa.record_batch({"t": column})]))
