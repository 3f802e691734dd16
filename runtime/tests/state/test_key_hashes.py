from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.state.errors import KeyTypeError
from millrace.state.keyed.keys import distinct, hash_keys, key_groups
from millrace.state.keyed.keytable import KeyTable

_TEXT = st.none() | st.text(max_size=20)
_BYTES = st.none() | st.binary(max_size=40)
_LONG = st.none() | st.integers(-(1 << 63), (1 << 63) - 1)
_MOMENT = st.none() | st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1))
COLUMNS = [
    (pa.string(), _TEXT),
    (pa.large_string(), _TEXT),
    (pa.string_view(), _TEXT),
    (pa.binary(), _BYTES),
    (pa.large_binary(), _BYTES),
    (pa.int64(), _LONG),
    (pa.int32(), st.none() | st.integers(-(1 << 31), (1 << 31) - 1)),
    (pa.uint64(), st.none() | st.integers(0, (1 << 64) - 1)),
    (pa.int8(), st.none() | st.integers(-128, 127)),
    (pa.float64(), st.none() | st.floats(allow_nan=False)),
    (pa.float32(), st.none() | st.floats(allow_nan=False, width=32)),
    (pa.bool_(), st.none() | st.booleans()),
    (pa.date32(), st.none() | st.dates()),
    (pa.timestamp("us"), _MOMENT),
]


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[pa.Array], list[tuple[Any, ...]]]:
    """Columns of a key, some cut out of longer ones, and the same rows as tuples."""
    chosen = draw(st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=3))
    count = draw(st.integers(0, 30))
    columns, lists = [], []
    for kind, values in chosen:
        pool = draw(st.lists(values, min_size=1, max_size=4))
        held = draw(st.lists(st.sampled_from(pool), min_size=count, max_size=count))
        before = draw(st.integers(0, 9))
        columns.append(pa.array([pool[0]] * before + held, kind).slice(before))
        lists.append(held)
    return columns, list(zip(*lists, strict=True))


@settings(deadline=None)  # the first call loads compiled code
@given(tables())
def test_equal_keys_and_only_they_have_one_number(
    table: tuple[list[pa.Array], list[tuple[Any, ...]]],
) -> None:
    columns, rows = table
    # Minus zero equals zero, in Python as here; 32-bit floats are exact in both.
    numbers: dict[tuple[Any, ...], int] = {}
    expected = [numbers.setdefault(row, len(numbers)) for row in rows]
    found = distinct(columns)
    assert found.codes.tolist() == expected
    assert [rows[at] for at in found.first] == list(numbers)
    assert found.hashes.tolist() == [int(h) for h in hash_keys(columns)[found.first]]


@settings(deadline=None)  # the first call loads compiled code
@given(tables())
def test_keys_come_back_as_they_went_in(
    table: tuple[list[pa.Array], list[tuple[Any, ...]]],
) -> None:
    columns, _ = table
    keys = KeyTable([column.type for column in columns])
    keys.begin()
    rows = keys.find_or_insert(columns)
    for column, back in zip(columns, keys.keys(rows), strict=True):
        back.validate(full=True)
        assert back.type == column.type
        assert back.to_pylist() == column.to_pylist()


@settings(deadline=None)  # the first call loads compiled code
@given(st.lists(st.tuples(_TEXT, _LONG), min_size=1, max_size=20))
def test_the_form_of_a_column_does_not_matter(rows: list[tuple[str | None, int | None]]) -> None:
    texts = pa.array([text for text, _ in rows], pa.string())
    small = pa.array([n if n is None else n % 1000 for _, n in rows], pa.int16())
    expected = hash_keys([texts]).tolist()
    chunked = pa.chunked_array([texts.slice(0, 1), texts.slice(1)])
    for same in (texts.dictionary_encode(), texts.cast(pa.large_string()), chunked):
        assert hash_keys([same]).tolist() == expected
    both = hash_keys([texts, small]).tolist()
    assert hash_keys([texts.dictionary_encode(), small.cast(pa.int64())]).tolist() == both


def test_nulls_in_a_dictionary_are_the_null_key() -> None:
    entries = pa.array(["a", None], pa.string())
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), entries)
    assert hash_keys([column]).tolist() == hash_keys([pa.array(["a", None, None])]).tolist()


def test_null_is_not_the_empty_text_nor_zero() -> None:
    for kind, value in ((pa.string(), ""), (pa.int64(), 0), (pa.float64(), 0.0)):
        null, other = hash_keys([pa.array([None, value], kind)])
        assert null != other
        assert distinct([pa.array([None, value, None], kind)]).codes.tolist() == [0, 1, 0]


def test_nan_and_zero_have_one_form() -> None:
    quiet = np.array([0x7FF8000000000000, 0x7FF0000000000001, 0xFFF8000000000001], np.uint64)
    floats = pa.array(np.concatenate([quiet.view(np.float64), [0.0, -0.0]]))
    assert distinct([floats]).codes.tolist() == [0, 0, 0, 1, 1]


def test_neighbouring_columns_do_not_run_together() -> None:
    left, right = pa.array(["ab", "a", "", "abc"]), pa.array(["c", "bc", "abc", ""])
    assert len(distinct([left, right]).first) == 4


def test_the_hash_never_changes() -> None:
    """State that is stored by key group must be found by every later release."""
    words = pa.array(["", "a", "word", "longer than a word", None])
    assert [hex(h) for h in hash_keys([words])] == [
        "0x0",
        "0x580e012dbbfb4c68",
        "0x42d5089d67182e16",
        "0xed5f28a81e2f0b22",
        "0x9ae16a3b2f90404f",
    ]
    assert [hex(h) for h in hash_keys([pa.array([7])])] == ["0xede94d0e4e2a13e4"]
    both = hash_keys([pa.array(["ab"]), pa.array([7])])
    assert [hex(h) for h in both] == ["0x87d435342a0c6cd4"]


def test_processes_agree() -> None:
    code = (
        "import pyarrow as pa; from millrace.state.keyed.keys import hash_keys\n"
        "print(hash_keys([pa.array(['x', 'yy', None]), pa.array([1, None, 3])]).tolist())"
    )
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    other = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": seed},
        stdout=subprocess.PIPE,
        check=True,
    )
    mine = hash_keys([pa.array(["x", "yy", None]), pa.array([1, None, 3])]).tolist()
    assert other.stdout == f"{mine}\n".encode()


@pytest.mark.parametrize("groups", [7, 128, 1000])
@pytest.mark.parametrize("make", [str, lambda n: f"key-{n:012d}", lambda n: n, lambda n: n << 20])
def test_key_groups_are_balanced(groups: int, make: Any) -> None:
    count = 200 * groups
    hashes = hash_keys([pa.array([make(n) for n in range(count)])])
    sizes = np.bincount(key_groups(hashes, groups), minlength=groups)
    assert len(sizes) == groups
    # Mean 200, standard deviation 14: five of them either way.
    assert sizes.min() > 130
    assert sizes.max() < 270
    assert len(np.unique(hashes)) == count


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.decimal128(5, 2), pa.null()])
def test_types_that_cannot_be_keys_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(KeyTypeError, match="a key may consist of"):
        hash_keys([pa.array([None], kind)])


def _colliding_keys() -> list[bytes]:
    """Two keys of 16 bytes with one hash: the second word makes up for the first."""
    mask = (1 << 64) - 1
    c1, c2 = 0x87C37B91114253D5, 0x4CF5AD432745937F

    def rotated(x: int, by: int) -> int:
        return (x << by | x >> (64 - by)) & mask

    def scrambled(word: int) -> int:
        return rotated(word * c1 & mask, 31) * c2 & mask

    def unscrambled(x: int) -> int:
        return rotated(x * pow(c2, -1, 1 << 64) & mask, 33) * pow(c1, -1, 1 << 64) & mask

    def absorbed(word: int) -> int:
        start = 16 * 0x9E3779B97F4A7C15 & mask
        return (rotated(start ^ scrambled(word), 27) * 5 + 0x52DCE729) & mask

    first, other, second = 1, 2, 3
    made_up = unscrambled(scrambled(second) ^ absorbed(first) ^ absorbed(other))
    pairs = ((first, second), (other, made_up))
    return [a.to_bytes(8, "little") + b.to_bytes(8, "little") for a, b in pairs]


def test_keys_with_one_hash_stay_apart() -> None:
    keys = pa.array(_colliding_keys(), pa.binary())
    one, other = hash_keys([keys])
    assert one == other
    again = pa.concat_arrays([keys, keys])
    assert distinct([again]).codes.tolist() == [0, 1, 0, 1]


def test_a_table_goes_back_to_where_it_was() -> None:
    table = KeyTable([pa.string()])
    table.begin()
    old = [f"k{n}" for n in range(1000)]
    rows = table.find_or_insert([pa.array(old)])
    assert rows.tolist() == list(range(1000))
    for _ in range(3):
        table.begin()
        more = table.find_or_insert([pa.array([f"k{n}" for n in range(500, 9000)])])
        assert more.tolist() == list(range(500, 9000))
        assert table.touched().tolist() == list(range(500, 9000))
        table.truncate(1000)
        assert table.rows == 1000
        table.begin()
        assert table.find_or_insert([pa.array(old)]).tolist() == list(range(1000))
        assert table.touched().tolist() == list(range(1000))
