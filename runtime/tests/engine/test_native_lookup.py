"""Tuples looked up in a small table without user code, held to dicts of Python."""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import pickle
import re
from collections import defaultdict
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import yaml
from engine_support import compiled
from hypothesis import given
from hypothesis import strategies as st

from millrace.engine.program import kit, tables
from millrace.engine.program.kit import Kit
from millrace.engine.program.tables import BadTableError, look, read_table
from millrace.engine.task import worker
from millrace.engine.task.batch import widest_row
from millrace.engine.task.faults import TaskError
from millrace.engine.task.steps import matching
from millrace.engine.task.steps.matching import TableIndex
from millrace.errors import EngineError, TopologyError
from millrace.topology.kinds.processor_lookup import LookupSettings

SPEC = """
parallelism: 2
sources:
  - {name: lines, files: {path: texts, format: jsonLines, schema: "%s"}}
processors:
  - {name: named, inputs: [{from: lines}], lookup: %s}
%s
sinks:
  - {name: rows, inputs: [{from: named}], files: {path: rows, format: jsonLines}}
"""
USERS = """{table: {path: users.csv, schema: "id string, city string, age int"},
  key: [{column: user, of: id}], columns: [{name: city}, {name: years, of: age}]%s}"""
CITIES = "id,city,age\nann,Rome,41\nbob,Oslo,\ncid,,7\n"


def spec(missing: str = "Keep", schema: str = "user string, n long", more: str = "") -> str:
    return SPEC % (schema, USERS % f", missing: {missing}", more)


def feed(tmp_path, rows, table: str = CITIES) -> None:
    (tmp_path / "texts").mkdir(exist_ok=True)
    (tmp_path / "texts" / "a").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "users.csv").write_text(table)


def failures(outcome):
    return {f.sequence: f for report in outcome.reports.values() for f in report.failed}


def settings(path: str, key: str, added: str = "", schema: str | None = None, **table):
    """``key`` and ``added`` are names in a text, "column=of" where they differ."""

    def parts(text: str, own: str):
        pairs = (name.partition("=") for name in text.split())
        return [{own: mine, **({"of": of} if of else {})} for mine, _, of in pairs]

    declared = {} if schema is None else {"schema": schema}
    return LookupSettings.model_validate(
        {
            "table": {"path": path, **declared, **table},
            "key": parts(key, "column"),
            "columns": parts(added, "name"),
        }
    )


def index_of(folder: Path, said: LookupSettings) -> TableIndex:
    content = read_table(said, "p", folder)
    (folder / content.name).write_bytes(content.data)
    return TableIndex(folder / content.name)


# -- which row it is

INSTANT = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1)).map(
    lambda t: t.replace(tzinfo=dt.UTC)
)
FEW = st.sampled_from
TYPES = {
    pa.string(): FEW(["", "a", "b", "ab", "\x00", "\u00e9", "a" * 9, "a" * 13]) | st.text(),
    pa.binary(): FEW([b"", b"a", b"\xff"]) | st.binary(),
    pa.int64(): FEW([0, 1, -1, 2**31, 2**63 - 1, -(2**63)]) | st.integers(-(2**63), 2**63 - 1),
    pa.int32(): FEW([0, 1, -1, 2**31 - 1]) | st.integers(-(2**31), 2**31 - 1),
    pa.float64(): FEW([0.0, -0.0, math.nan, -math.nan, math.inf, 0.1]) | st.floats(),
    pa.float32(): FEW([0.0, -0.0, math.nan, math.inf, 0.5]) | st.floats(width=32),
    pa.bool_(): st.booleans(),
    pa.timestamp("us", "UTC"): FEW([dt.datetime(2024, 1, 1, tzinfo=dt.UTC)]) | INSTANT,
    pa.date32(): FEW([dt.date(2024, 1, 1), dt.date(1969, 12, 31)]) | st.dates(),
}
WIDER = {pa.int32(): pa.int64(), pa.int64(): pa.int32()}


def plain(value):
    """What a key is compared by: every NaN is one, and -0.0 is 0.0."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


@given(st.data())
def test_the_row_is_the_one_that_a_dict_has(tmp_path_factory, data):
    kinds = data.draw(st.lists(FEW(list(TYPES)), min_size=1, max_size=3))
    names = [f"k{n}" for n in range(len(kinds))]
    some = st.tuples(*(st.none() | TYPES[kind] for kind in kinds))
    kept, held = [], {}
    for row in data.draw(st.lists(some, max_size=20)):
        key = tuple(map(plain, row))
        if None in key:
            kept.append(row)
        elif key not in held:
            held[key] = len(kept)
            kept.append(row)
    columns = [pa.array([row[n] for row in kept], kind) for n, kind in enumerate(kinds)]
    table = pa.table([*columns, pa.array(range(len(kept)))], names=[*names, "at"])
    folder = tmp_path_factory.mktemp("table")
    chunk = data.draw(st.integers(1, 7))
    with pa.ipc.new_file(str(folder / "t.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=chunk)
    index = index_of(folder, settings("t.arrow", " ".join(names), "at"))
    asked = data.draw(st.lists(some | FEW(kept or [(None,) * len(kinds)]), max_size=30))
    low = data.draw(st.integers(0, len(asked)))
    batch = []
    for n, kind in enumerate(kinds):
        values = [row[n] for row in asked]
        fits = kind == pa.int32() or all(
            v is None or abs(v) < 2**31 for v in values if kind == pa.int64()
        )
        other = WIDER.get(kind, kind) if fits else kind
        batch.append(pa.array(values, other if data.draw(st.booleans()) else kind).slice(low))
    for _ in range(2):  # what it did not find leaves nothing behind
        rows = index.find(batch)
        at = index.rows.column("at").to_pylist()
        found = [at[row] if row < len(at) else None for row in rows.tolist()]
        assert found == [held.get(tuple(map(plain, row))) for row in asked[low:]]


FORMATS = ("csv", "jsonl", "ndjson", "parquet", "arrow", "feather")


def write(folder: Path, name: str, rows: list[dict], schema: pa.Schema) -> str | None:
    """Write rows in the format that a name ends with; the schema that the topology must say."""
    table = pa.Table.from_pylist(rows, schema)
    ending = name.rpartition(".")[2]
    if ending == "parquet":
        pq.write_table(table, folder / name, row_group_size=2)
    elif ending == "arrow":
        with pa.ipc.new_stream(str(folder / name), schema) as writer:
            writer.write_table(table, max_chunksize=2)
    elif ending == "feather":
        feather.write_feather(table, str(folder / name), compression="zstd")
    else:
        if ending == "csv":
            lines = [",".join("" if v is None else str(v) for v in row.values()) for row in rows]
            lines = [",".join(schema.names), *lines]
        else:
            lines = [json.dumps(row) for row in rows]
        (folder / name).write_text("\n\n".join(lines))
        return "id string, n long, x double"
    return None


def test_the_formats_hold_the_same(tmp_path):
    rows = [{"id": "a", "n": 1, "x": 0.5}, {"id": "\u00e9", "n": None, "x": 2.0}]
    schema = pa.schema([("id", pa.string()), ("n", pa.int64()), ("x", pa.float64())])
    names = set()
    for ending in FORMATS:
        declared = write(tmp_path, f"t.{ending}", rows, schema)
        content = read_table(settings(f"t.{ending}", "id", "n x", declared), "p", tmp_path)
        names.add(content.name)
        assert pa.ipc.open_file(content.data).read_all().to_pylist() == rows
    assert len(names) == 1


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("count", [tables._GROUP_ROWS, 2 * tables._GROUP_ROWS + 1, 40_000])
def test_every_row_of_a_longer_table_is_there_once(tmp_path, ending, count):
    schema = pa.schema([("id", pa.string()), ("n", pa.int64()), ("x", pa.float64())])
    rows = [{"id": f"k{n}", "n": n, "x": 0.5} for n in range(count)]
    declared = write(tmp_path, f"t.{ending}", rows, schema)
    content = read_table(settings(f"t.{ending}", "id", "n", declared), "p", tmp_path)
    found = pa.ipc.open_file(content.data).read_all()
    assert found.column("n").to_pylist() == list(range(count))
    assert found.column("id").to_pylist() == [row["id"] for row in rows]


@pytest.mark.parametrize("row", [0, tables._GROUP_ROWS + 7, 3 * tables._GROUP_ROWS - 1])
def test_a_mistake_far_down_is_told_with_its_line(tmp_path, row):
    lines = [f"k{n},{n}" for n in range(3 * tables._GROUP_ROWS)]
    said = settings("t.csv", "id", "n", PLAIN)
    for wrong, message in (("z,x", "'x' is no long"), (lines[row - 1], f"in line {row + 2}")):
        if row or wrong == "z,x":
            text = [*lines[:row], wrong, *lines[row + 1 :]]
            (tmp_path / "t.csv").write_text("\n".join(["id,n", *text]))
            with pytest.raises(BadTableError, match=re.escape(message)) as caught:
                read_table(said, "p", tmp_path)
            assert f"line {row + 2}" in str(caught.value)


def test_columns_that_nobody_reads_are_not_read(tmp_path):
    (tmp_path / "t.csv").write_text("id,n,note\na,1,x\nb,2,\n")
    said = settings("t.csv", "id", "n", "id string, n long, note date")
    assert read_table(said, "p", tmp_path).columns.names == ["id", "n"]


def test_types_are_brought_into_those_that_topologies_have(tmp_path):
    columns = {
        "id": pa.array(["a", "b"]).dictionary_encode(),
        "large": pa.array(["x", None], pa.large_string()),
        "small": pa.array([1, None], pa.uint8()),
        "at": pa.array([0, 1], pa.timestamp("ms")),
        "price": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
        "o": pa.array([{"a": [1, 2]}, None]),
    }
    feather.write_feather(pa.table(columns), str(tmp_path / "t.feather"))
    content = read_table(settings("t.feather", "id", "large small at price o"), "p", tmp_path)
    assert [str(f.type) for f in content.columns] == [
        "string",
        "string",
        "int32",
        "timestamp[us, tz=UTC]",
        "decimal128(9, 2)",
        "struct<a: list<item: int64>>",
    ]
    assert pa.ipc.open_file(content.data).read_all().to_pylist()[0] == {
        "id": "a",
        "large": "x",
        "small": 1,
        "at": dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
        "price": Decimal("1.50"),
        "o": {"a": [1, 2]},
    }


# -- what is refused

PLAIN = "id string, n long"
TEXTS = {
    "not there": ("t.csv", PLAIN, None, "table.path", "cannot be read: No such file"),
    "a folder": ("folder.csv", PLAIN, None, "table.path", "cannot be read: is no regular file"),
    "empty": ("t.csv", PLAIN, "", "table.path", "is empty, and a csv begins with a header"),
    "header": ("t.csv", PLAIN, "id,m\n", "table.schema", "has the declared column 'n' not in its"),
    "twice": (
        "t.csv",
        PLAIN,
        "id,n\na,1\n\nb,2\na,3\n",
        "table.path",
        "has the key id = 'a' twice, in line 2 and in line 5",
    ),
    "value": (
        "t.csv",
        PLAIN,
        "id,n\na,1\nb,x\n",
        "table.path",
        "line 3: column 'n': 'x' is no long",
    ),
    "fields": ("t.csv", PLAIN, "id,n\na\n", "table.path", "line 2: the line has 1 fields"),
    "json": ("t.jsonl", PLAIN, '{"id": "a"}\n[1]\n', "table.path", "line 2: the line is no JSON"),
    "text": ("t.csv", PLAIN, b"id,n\n\xff,1\n", "table.path", "line 2: column 'id'"),
    "schema": ("t.csv", "n long", "id,n\na,1\n", "key[0].column", "is no column of t.csv"),
    "array": (
        "t.csv",
        "id array<long>, n long",
        "id,n\n",
        "key[0].column",
        "array<long>, which can",
    ),
    "parquet": ("t.parquet", None, "PAR1", "table.path", "cannot be read as parquet"),
    "arrow": ("t.arrow", None, "ARROW1", "table.path", "cannot be read as arrow"),
}


@pytest.mark.parametrize("what", TEXTS)
def test_a_table_that_cannot_be_used_says_where_and_why(tmp_path, what):
    name, schema, text, field, message = TEXTS[what]
    (tmp_path / "folder.csv").mkdir()
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadTableError) as caught:
        read_table(settings(name, "id", "n", schema), "spec.processors[0].lookup", tmp_path)
    problem = caught.value.problem("spec.processors[0].lookup")
    assert problem.path == f"spec.processors[0].lookup.{field}"
    assert message in problem.message
    assert problem.remedy
    assert caught.value.absent is (what in ("not there", "a folder"))


NS = pa.array([0, 1], pa.timestamp("ns", "UTC"))
ARRAYS = {
    "no column": ({"key": ["a"]}, "key[0].column", "is no column of t.feather"),
    "a decimal": ({"id": [Decimal("1.5")]}, "key[0].column", "decimal128(2, 1), which cannot"),
    "an array": ({"id": [[1]]}, "key[0].column", "array<long>, which cannot be a key"),
    "too fine": ({"id": NS, "n": [1, 2]}, "table.path", "row 2: column 'id'"),
    "too large": (
        {"id": [1, 2], "n": pa.array([1, 2**63], pa.uint64())},
        "table.path",
        "row 2: column 'n'",
    ),
    "twice": (
        {"id": [1.5, math.nan, 0.0, math.nan], "n": [1] * 4},
        "table.path",
        "row 2 and in row 4",
    ),
    "zeros": ({"id": [0.0, -0.0], "n": [1] * 2}, "table.path", "in row 1 and in row 2"),
    "behind nulls": ({"id": [None, 1, None, 1], "n": [1] * 4}, "table.path", "row 2 and in row 4"),
    "a duration": ({"id": [1], "n": [dt.timedelta(1)]}, "table.path", "duration[us] of its column"),
}


@pytest.mark.parametrize("what", ARRAYS)
def test_a_table_of_arrays_that_cannot_be_used_says_why(tmp_path, what):
    columns, field, message = ARRAYS[what]
    feather.write_feather(
        pa.table({"n": [1] * len(columns.get("id", [1])), **columns}), str(tmp_path / "t.feather")
    )
    with pytest.raises(BadTableError) as caught:
        read_table(settings("t.feather", "id", "n"), "p", tmp_path)
    problem = caught.value.problem("p")
    assert problem.path == f"p.{field}"
    assert message in problem.message


@pytest.mark.parametrize("ending", FORMATS)
def test_large_tables_are_refused(tmp_path, monkeypatch, ending):
    rows = [{"id": f"u{n}", "n": n, "x": 0.5} for n in range(100)]
    schema = pa.schema([("id", pa.string()), ("n", pa.int64()), ("x", pa.float64())])
    declared = write(tmp_path, f"t.{ending}", rows, schema)
    said = settings(f"t.{ending}", "id", "n x", declared)
    size = (tmp_path / f"t.{ending}").stat().st_size
    read_table(said, "p", tmp_path)
    for limit, value, told in (
        ("MOST_ROWS", 99, "has more than 99 rows"),
        ("MOST_BYTES", size - 1, f"has {size:,} bytes"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(tables, limit, value)
            with pytest.raises(BadTableError, match=told) as caught:
                read_table(said, "p", tmp_path)
        assert "64 MiB and 1,000,000 rows" in caught.value.problem("p").remedy


def test_what_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    table = pa.table({"id": pa.array(range(20_000)), "t": ["x" * 100] * 20_000})
    pq.write_table(table, tmp_path / "t.parquet", compression="zstd")
    assert (tmp_path / "t.parquet").stat().st_size < 200_000
    monkeypatch.setattr(tables, "MOST_BYTES", 2_000_000)
    assert read_table(settings("t.parquet", "id"), "p", tmp_path).rows == 20_000
    with pytest.raises(BadTableError, match="takes more than 64 MiB of memory"):
        read_table(settings("t.parquet", "id", "t"), "p", tmp_path)


def test_a_file_that_is_written_meanwhile_is_read_again(tmp_path, monkeypatch):
    """It is the old one or the new one, whole; one that is never at rest is refused."""
    path = tmp_path / "t.csv"
    path.write_text("id,n\na,1\n")
    left, opens = [2], tables.open_regular

    def opening(file):
        found = opens(file)
        if left[0]:
            left[0] -= 1
            with path.open("a") as more:
                more.write(f"b{left[0]},1\n")
        return found

    monkeypatch.setattr(tables, "open_regular", opening)
    said = settings("t.csv", "id", "n", PLAIN)
    assert read_table(said, "p", tmp_path).rows == 3
    left[0] = 100
    with pytest.raises(BadTableError, match="is being written again and again") as caught:
        read_table(said, "p", tmp_path)
    assert "rename it when it is whole" in caught.value.problem("p").remedy


def test_types_are_compared_when_they_are_known(tmp_path):
    feather.write_feather(pa.table({"id": [1], "n": [2]}), str(tmp_path / "t.feather"))
    said = settings("t.feather", "user=id", "n")
    for kind, refused in (("long", False), ("int", False), ("string", True), ("double", True)):
        looked = look(said, "p", tmp_path, (("user", kind),), "lines")
        assert bool(looked.problems) is refused
        if refused:
            (problem,) = looked.problems
            assert problem.path == "p.key[0].column"
            assert f"is of the type {kind}, and 'id' of the table long" in problem.message
    assert look(said, "p", tmp_path, (("user", "int"),), "lines").columns == (
        ("user", "int"),
        ("n", "long"),
    )


# -- in windows

ROWS = [{"user": user, "n": n} for n, user in enumerate(["ann", "zed", None, "bob", "cid"] * 9)]
HELD = {"ann": ("Rome", 41), "bob": ("Oslo", None), "cid": ("", 7)}


def named(row):
    city, years = HELD.get(row["user"], (None, None))
    return {**row, "city": city, "years": years}


def by_n(rows):
    return sorted(rows, key=lambda row: row["n"])


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("missing", ["Keep", "Drop", "Fail"])
def test_each_tuple_gets_its_row(windows, tmp_path, missing, whole):
    feed(tmp_path, ROWS)
    outcome = windows(spec(missing), whole).go()
    there = [row for row in ROWS if missing == "Keep" or row["user"] in HELD]
    assert by_n(outcome.rows["rows"]) == [named(row) for row in there]
    failed = failures(outcome)
    if missing == "Fail":
        lacking = {at: row["user"] for at, row in enumerate(ROWS) if row["user"] not in HELD}
        assert outcome.verdict.incomplete == failed.keys() == lacking.keys()
        assert all(f.unreadable and f.processor == "named" for f in failed.values())
        assert {at: f.error for at, f in failed.items()} == {
            at: f"users.csv has no row of id = {user!r}" for at, user in lacking.items()
        }
    else:
        assert not failed
        assert outcome.verdict.complete


def test_where_something_went_elsewhere_the_window_runs_again(windows, tmp_path):
    feed(tmp_path, ROWS[:2])
    other = """  - {name: other, inputs: [{from: lines}], split: {column: user, into: w}}
  - {name: n, inputs: [{from: other, key: [w]}], aggregate: {columns: [{name: c, function: count}]}}
"""
    counts = "  - {name: counts, inputs: [{from: n}], files: {path: counts, format: jsonLines}}\n"
    run = windows(spec("Fail", more=other) + counts)
    intent = run.plan()
    (failed,) = failures(run.attempt(intent)).values()
    assert (failed.sequence, failed.unreadable, failed.lasting) == (1, False, True)
    again = run.attempt(intent, excluded={1})
    assert again.verdict.complete
    assert again.rows["rows"] == [named(ROWS[0])]


@pytest.mark.parametrize("missing", ["Keep", "Drop", "Fail"])
@pytest.mark.parametrize("whole", [True, False])
def test_what_is_added_is_combined_in_the_same_pass(windows, tmp_path, whole, missing):
    feed(tmp_path, ROWS)
    more = """  - name: s
    inputs: [{from: named, key: [city]}]
    aggregate: {columns: [{name: s, function: sum, of: n}]}
"""
    text = spec(missing, more=more) + (
        "  - {name: totals, inputs: [{from: s}], files: {path: totals, format: jsonLines}}\n"
    )
    run = windows(text, whole)
    assert len(run.program.passes) == 2
    outcome = run.go()
    totals: dict[str | None, int] = defaultdict(int)
    for row in ROWS:
        if missing == "Keep" or row["user"] in HELD:
            totals[named(row)["city"]] += row["n"]
    assert {row["city"]: row["s"] for row in outcome.rows["totals"]} == totals


BY_TWO = """{table: {path: users.csv, schema: "w string, n int, x string"},
  key: [{column: w}, {column: n}], columns: [{name: x}], missing: Drop}"""


def test_behind_pieces_and_an_exchange(windows, tmp_path):
    """Pieces of one tuple, by two columns, each in the partition that has its key."""
    feed(tmp_path, [{"user": "ann bob zed", "n": 1}, {"user": "", "n": 2}, {"user": "ann", "n": 2}])
    (tmp_path / "users.csv").write_text("w,n,x\nann,1,one\nann,2,two\nbob,2,three\n")
    cut = "  - {name: cut, inputs: [{from: lines}], split: {column: user, into: w, keep: [n]}}\n"
    text = (SPEC % ("user string, n long", BY_TWO, "")).replace(
        "processors:\n", f"processors:\n{cut}"
    )
    outcome = windows(
        text.replace("named, inputs: [{from: lines}]", "named, inputs: [{from: cut, key: [w]}]")
    ).go()
    assert sorted(outcome.rows["rows"], key=lambda row: row["x"]) == [
        {"w": "ann", "n": 1, "x": "one"},
        {"w": "ann", "n": 2, "x": "two"},
    ]
    assert outcome.verdict.complete


CHOOSING = """{table: {path: users.csv, schema: "id string"}, key: [{column: user, of: id}],
  missing: Drop}"""


def test_nothing_is_added_where_the_table_only_chooses(windows, tmp_path):
    feed(tmp_path, ROWS)
    text = SPEC % ("user string, n long", CHOOSING, "")
    outcome = windows(text).go()
    assert by_n(outcome.rows["rows"]) == [row for row in ROWS if row["user"] in HELD]


def test_a_table_without_rows_has_none_for_anybody(windows, tmp_path):
    feed(tmp_path, ROWS[:3], "id,city,age\n")
    outcome = windows(spec()).go()
    assert by_n(outcome.rows["rows"]) == [{**row, "city": None, "years": None} for row in ROWS[:3]]


def test_long_texts_are_added_to_few_tuples_at_a_time(windows, tmp_path, monkeypatch):
    """A column of text ends at 2 GiB, and a batch may have many tuples."""
    taken = []
    with_added = matching.LookupStep._with_added

    def counted(step, data, where):
        taken.append(len(where))
        return with_added(step, data, where)

    monkeypatch.setattr(matching.LookupStep, "_with_added", counted)
    monkeypatch.setattr(matching, "MOST_TAKEN", 5_000)
    feed(tmp_path, ROWS, f"id,city,age\nann,{'x' * 1_000},1\n")
    outcome = windows(spec(), whole=True).go()
    assert sum(taken) == len(ROWS)
    assert max(taken) <= 5
    assert outcome.verdict.complete
    assert [row["city"] for row in by_n(outcome.rows["rows"])][:2] == ["x" * 1_000, None]


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "t": st.none() | st.text(max_size=9),
                "l": st.none() | st.lists(st.text(max_size=3), max_size=4),
                "s": st.none() | st.fixed_dictionaries({"a": st.none() | st.binary(max_size=9)}),
                "n": st.none() | st.integers(0, 9),
            }
        )
    )
)
def test_the_widest_row_is_not_wider_than_is_said(rows):
    kinds = [pa.string(), pa.list_(pa.string()), pa.struct([("a", pa.binary())]), pa.int64()]
    columns = [
        pa.array([row[name] for row in rows], kind)
        for name, kind in zip("tlsn", kinds, strict=True)
    ]
    most = widest_row(columns)
    assert most > 0
    for row in rows:
        alone = len((row["t"] or "").encode()) + sum(len(t.encode()) for t in row["l"] or [])
        assert alone + len((row["s"] or {}).get("a") or b"") + 8 <= most


# -- what it holds

OTHER = "id,city,age\nann,Paris,1\nzed,Bonn,2\n"


def gone(path: Path) -> None:
    path.unlink()


def other(path: Path) -> None:
    draft = path.with_suffix(".new")
    draft.write_text(OTHER)
    os.replace(draft, path)


def torn(path: Path) -> None:
    path.write_text("id,ci")


@pytest.mark.parametrize("change", [gone, other, torn])
def test_a_replay_sees_what_the_first_attempt_saw(windows, tmp_path, change):
    """Whatever became of the file, in whatever process; the next program has what is there now."""
    feed(tmp_path, ROWS)
    run = windows(spec())
    intent = run.plan()
    first = run.attempt(intent)
    change(tmp_path / "users.csv")
    worker._PROCESS.clear()
    again = run.attempt(intent)
    assert by_n(again.rows["rows"]) == by_n(first.rows["rows"]) == [named(row) for row in ROWS]
    if change is not other:
        with pytest.raises(TopologyError, match=r"spec.processors\[named\].lookup.table"):
            windows(spec())
        return
    later = windows(spec()).attempt(intent)
    found = {row["user"]: row["city"] for row in later.rows["rows"]}
    assert found == {"ann": "Paris", "bob": None, "cid": None, "zed": "Bonn", None: None}


def test_tables_travel_beside_the_program(tmp_path, caplog):
    feed(tmp_path, ROWS)
    with caplog.at_level("INFO", "millrace.driver"):
        program = compiled(spec(), tmp_path, "uid")
    ((name, content),) = program.tables.items()
    assert f"named: users.csv has 3 rows with a key ({name})" in caplog.messages
    path = kit.store(Kit(program), tmp_path / "kits")
    assert (tmp_path / "kits" / name).read_bytes() == content
    assert b"Rome" in content
    assert b"Rome" not in path.read_bytes()
    assert os.stat(tmp_path / "kits" / name).st_mode & 0o077 == 0
    loaded = kit.load(path)
    assert loaded.program.tables == {name: b""}
    elsewhere = kit.store(Kit(program, {"state-0": "sesame"}), tmp_path / "kits")
    assert kit.load(elsewhere).digest() == loaded.digest()
    other(tmp_path / "users.csv")
    later = kit.store(Kit(compiled(spec(), tmp_path, "uid")), tmp_path / "kits")
    assert kit.load(later).digest() != loaded.digest()
    assert len(pickle.dumps(loaded.program)) < 20_000


def test_the_name_tells_which_columns_are_the_key(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    both = settings("t.csv", "a b", "", "a long, b long")
    one = settings("t.csv", "a", "b", "a long, b long")
    names = {read_table(said, "p", tmp_path).name for said in (both, one)}
    assert len(names) == 2


@pytest.mark.parametrize("damage", ["gone", "altered"])
def test_a_table_that_is_damaged_on_its_way_blames_nobody(windows, tmp_path, damage):
    feed(tmp_path, ROWS)
    run = windows(spec())
    (name,) = run.program.tables
    path = Path(run.kit).parent / name
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes().replace(b"Rome", b"Roma"))
    worker._PROCESS.clear()
    with pytest.raises(TaskError) as caught:
        run.attempt(run.plan())
    error = run.error_in(caught.value)
    assert type(error) is EngineError
    assert name in str(error)


def test_a_table_is_hashed_once_in_a_process(windows, tmp_path, monkeypatch):
    """Also where the program is another one, of which it is a part as before."""
    made = []
    make = TableIndex.__init__

    def making(self, file):
        made.append(file.name)
        make(self, file)

    monkeypatch.setattr(TableIndex, "__init__", making)
    feed(tmp_path, ROWS)
    run = windows(spec())
    for _ in range(3):
        run.attempt(run.plan())
        run.offsets.clear()
    assert len(made) == 1
    tuned = windows(spec(), tuple_timeout_s=7.0)
    tuned.attempt(tuned.plan())
    assert len(made) == 1
    assert made == list(run.program.tables)
    other(tmp_path / "users.csv")
    later = windows(spec())
    later.attempt(later.plan())
    assert made == [*run.program.tables, *later.program.tables]
    assert worker._PROCESS[str(later.kit)].tables.keys() == later.program.tables.keys()


def test_what_does_not_fit_the_input_is_refused_at_the_start(windows, tmp_path):
    feed(tmp_path, ROWS)
    feather.write_feather(pa.table({"id": [1], "n": [2]}), str(tmp_path / "t.feather"))
    for said, message in (
        ("key: [{column: user, of: id}], columns: [{name: m, of: n}]", "type string, and 'id'"),
        ("key: [{column: n, of: id}], columns: [{name: n}]", "is a column of 'lines' already"),
        ("key: [{column: n, of: ident}], missing: Drop", "is no column of t.feather"),
    ):
        text = SPEC % ("user string, n long", f"{{table: {{path: t.feather}}, {said}}}", "")
        with pytest.raises(TopologyError, match=message):
            windows(text)


def test_the_pages_topology_makes_what_the_page_says(windows, tmp_path):
    text = (Path(__file__).parents[3] / "docs" / "native.md").read_text()
    section = text[text.index("## Look-ups in a small table") :]
    whole = yaml.safe_load(re.findall(r"```yaml\n(apiV.*?)```", section, re.S)[0])
    (tmp_path / "users.csv").write_text(re.findall(r"```csv\n(.*?)```", section, re.S)[0])
    (tmp_path / "orders").mkdir()
    lines = re.findall(r"```json\n(.*?)```", section, re.S)[0]
    (tmp_path / "orders" / "a.jsonl").write_text(lines)
    outcome = windows(yaml.safe_dump(whole["spec"])).go()
    told = [json.loads(line) for line in re.findall(r"`(\{\"city\".*?\})`", section)]
    rows = outcome.rows["out"]
    assert len(told) > 1
    assert sorted(rows, key=str) == sorted(told, key=str)
    assert outcome.verdict.complete
