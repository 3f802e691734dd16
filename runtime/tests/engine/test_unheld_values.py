"""Values that Arrow holds and Python does not: a row with one fails where code gets it."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from engine_support import CODE, write_lines

from millrace.engine.program.schema import rows_held, rows_of
from millrace.engine.program.usercode import use_path
from millrace.engine.task.steps.ends import Piece, read_piece
from millrace.protocol.types import Replay, RootRange
from millrace.sources.base import ReadBatch, Source
from millrace.sources.generator import GeneratorSource
from millrace.state.keyed.aggregates import Aggregate, AggregateOverflowError
from millrace.state.keyed.aggregatestate import AggregateState

DOCS = Path(__file__).parents[3] / "docs"

use_path(str(CODE))
import heldsteps  # noqa: E402

SPEC = """
parallelism: 2
sources: [{name: rows, files: {path: texts, format: %s}}]
processors:
  - {name: step, inputs: [{from: rows%s}], function: "heldsteps:%s"}
sinks:
  - {name: out, inputs: [{from: step}], files: {path: out, format: jsonLines}}
"""
JSON = 'jsonLines, schema: "k string, n long, t timestamp, d date"'
STEPS = [
    ("in_row", ""),
    ("in_where", ""),
    ("InClass", ""),
    ("in_state", ", key: [k]"),
    ("in_state", ", key: [t, k]"),
    ("in_state", ", key: [t]"),
    ("InKeyedClass", ", key: [k]"),
    ("InKeyedClass", ", key: [t]"),
]
GOOD = "2024-01-31T00:00:00Z"
BEYOND = {
    3: "9999-12-31T23:59:59-05:00",
    4: "0001-01-01T00:00:00+05:00",
    17: "0000-01-01T00:00:00Z",
    39: "9999-12-31T23:59:59-05:00",
}


@pytest.fixture(autouse=True)
def forget_calls():
    heldsteps.CALLS.clear()


def feed(tmp_path, beyond=BEYOND):
    rows = [{"k": f"k{n % 3}", "n": n, "t": beyond.get(n, GOOD)} for n in range(40)]
    write_lines(tmp_path, [json.dumps(row) for row in rows])


def good(outcome):
    return sorted(row["n"] for row in outcome.rows["out"])


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("function", "key"), STEPS)
def test_a_moment_that_python_has_not_fails_its_root_alone(windows, tmp_path, function, key, whole):
    feed(tmp_path)
    run = windows(SPEC % (JSON, key, function), whole)
    intent = run.plan()
    outcome = run.attempt(intent)
    assert outcome.failed.keys() == BEYOND.keys()
    assert {processor for processor, _ in outcome.failed.values()} == {"step"}
    assert outcome.failed[3][1].startswith(
        "column 't': Python has no timestamp '10000-01-01 04:59:59.000000Z' ("
    )
    assert outcome.failed[4][1].startswith("column 't': Python has no timestamp '0000-12-31 19:00")
    assert good(outcome) == [n for n in range(40) if n not in BEYOND]
    assert heldsteps.CALLS  # one of them was called a second time
    again = run.attempt(intent, excluded=set(BEYOND))
    assert (again.failed, good(again)) == ({}, good(outcome))
    assert again.verdict.complete


@pytest.mark.parametrize(("function", "key"), STEPS)
def test_where_python_has_no_row_at_all_every_root_fails(windows, tmp_path, function, key):
    feed(tmp_path, dict.fromkeys(range(40), BEYOND[3]))
    outcome = windows(SPEC % (JSON, key, function)).go()
    assert outcome.failed.keys() == set(range(40))
    assert good(outcome) == []


def test_behind_an_aggregate_it_is_traced_to_its_roots(windows, tmp_path):
    feed(tmp_path, {5: BEYOND[3]})
    spec = SPEC % (JSON, "", "in_row")
    spec = spec.replace(
        "processors:\n",
        "processors:\n  - {name: last, inputs: [{from: rows, key: [n]}],"
        " aggregate: {columns: [{name: t, function: max, of: t}]}}\n",
    ).replace("[{from: rows}]", "[{from: last}]")
    run = windows(spec)
    intent = run.plan()
    first = run.attempt(intent)
    assert set(first.combined) == {"last"}
    second = run.attempt(intent, uncombined=first.combined)
    assert second.failed.keys() == {5}
    third = run.attempt(intent, excluded={5}, uncombined=first.combined)
    assert third.verdict.complete
    assert good(third) == [n for n in range(40) if n != 5]


@pytest.mark.parametrize(
    "made",
    [
        "CAST('infinity' AS timestamp)",
        "CAST('-infinity' AS timestamp)",
        "CAST('20000-01-01' AS timestamp)",
        "CAST('infinity' AS date)",
        "CAST('20000-01-01' AS date)",
    ],
)
def test_what_duckdb_makes_of_a_row_fails_its_root_alone(windows, tmp_path, made):
    feed(tmp_path, {})
    select = f"CASE WHEN n % 10 = 7 THEN {made} END AS v"
    spec = SPEC % (JSON, "", "in_row")
    spec = spec.replace(
        "processors:\n",
        "processors:\n  - {name: made, inputs: [{from: rows}],"
        f' sql: {{engine: duckdb, select: [n, "{select}"]}}}}\n',
    ).replace("  - {name: step, inputs: [{from: rows}]", "  - {name: step, inputs: [{from: made}]")
    outcome = windows(spec).go()
    assert outcome.failed.keys() == {7, 17, 27, 37}
    assert all("column 'v': Python has no " in text for _, text in outcome.failed.values())
    assert good(outcome) == [n for n in range(40) if n % 10 != 7]


def text_of(*values: bytes) -> pa.Array:
    return pa.array(values, pa.binary()).view(pa.string())


def write(tmp_path, **columns):
    (tmp_path / "texts").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "texts" / "a.parquet", row_group_size=3)


def test_parquet_files_may_hold_days_that_python_has_not(windows, tmp_path):
    days = pa.array([0, 2932897, 1, -800_000, 2], pa.int32()).view(pa.date32())
    write(tmp_path, n=list(range(5)), d=days)
    run = windows(SPEC % ("parquet", "", "in_row"))
    intent = run.plan()
    outcome = run.attempt(intent)
    assert outcome.failed.keys() == {1, 3}
    assert "column 'd': Python has no date '10000-01-01' (" in outcome.failed[1][1]
    assert good(outcome) == [0, 2, 4]
    assert payload(run, intent, 1) == {"n": 1, "d": "10000-01-01"}
    assert payload(run, intent, 2) == {"n": 2, "d": "1970-01-02"}


def payload(run, intent, index):
    (piece,) = intent.ranges
    source = run.sources["rows"]
    locator = source.locate(piece, index)
    replay = Replay("rows", piece.partition, piece.start + index, 1, 0.0, locator)
    return json.loads(source.payload(replay))


TEXTS = {
    "text": (text_of(b"good", b"a\xff", b"\xc3\xa9", b"\x80", b""), "'a\\\\xff'"),
    "list": (
        pa.ListArray.from_arrays(
            pa.array([0, 1, 3, 3, 4, 5], pa.int32()), text_of(b"x", b"y", b"a\xff", b"\x80", b"z")
        ),
        "['y', 'a\\\\xff']",
    ),
    "struct": (
        pa.StructArray.from_arrays([text_of(b"good", b"a\xff", b"", b"\x80", b"")], ["f"]),
        "{'f': 'a\\\\xff'}",
    ),
}


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("whole", [False, True])
def test_a_text_in_parquet_that_is_no_utf_8_cannot_be_read(windows, tmp_path, kind, whole):
    column, told = TEXTS[kind]
    write(tmp_path, n=list(range(5)), s=column)
    run = windows(SPEC % ("parquet", "", "in_where"), whole)
    intent = run.plan()
    outcome = run.attempt(intent)
    failed = {f.sequence: f for report in outcome.reports.values() for f in report.failed}
    assert {n: (f.processor, f.unreadable) for n, f in failed.items()} == {
        1: ("rows", True),
        3: ("rows", True),
    }
    assert failed[1].error == f"column 's': {told} is not valid UTF-8"
    assert good(outcome) == [0, 2, 4]
    assert outcome.verdict.incomplete == {1, 3}
    assert payload(run, intent, 1)["n"] == 1
    assert "a\\xff" in str(payload(run, intent, 1)["s"]).replace("\\\\", "\\")


def test_a_key_that_no_row_of_a_table_has_is_told_also_where_python_has_it_not(windows, tmp_path):
    feed(tmp_path)
    (tmp_path / "days.csv").write_text(f"id,name\n{GOOD},good\n")
    spec = """
sources: [{name: rows, files: {path: texts, format: %s}}]
processors:
  - name: step
    inputs: [{from: rows}]
    lookup:
      table: {path: days.csv, schema: "id timestamp, name string"}
      key: [{column: t, of: id}]
      missing: Fail
sinks:
  - {name: out, inputs: [{from: step}], files: {path: out, format: jsonLines}}
"""
    outcome = windows(spec % JSON).go()
    assert outcome.failed.keys() == BEYOND.keys()
    assert outcome.failed[3][1] == "days.csv has no row of id = '10000-01-01 04:59:59.000000Z'"
    assert good(outcome) == [n for n in range(40) if n not in BEYOND]


def test_a_sum_that_overflows_is_told_also_of_a_key_that_python_has_not():
    inputs = pa.schema([("d", pa.date32()), ("n", pa.int64())])
    days = pa.array([2932897] * 2, pa.int32()).view(pa.date32())
    rows = pa.RecordBatch.from_arrays([days, pa.array([2**62] * 2)], schema=inputs)
    state = AggregateState(inputs, ["d"], [Aggregate("s", "sum", "n")], 8)
    state.begin()
    with pytest.raises(AggregateOverflowError, match="sum s of key 10000-01-01 leaves the range"):
        state.update(rows)


def test_rows_are_told_apart_in_every_layout_of_a_column():
    """Entries of an encoded column, too, which all of its parts have."""
    texts = text_of(b"a", b"\xff", b"b", b"\xff", b"c")
    days = pa.array([0, 1, 2, 3, 2932897], pa.int32()).view(pa.date32())
    for column in (texts, texts.dictionary_encode()):
        data = pa.record_batch([pa.array(range(5)), column, days], names=["n", "s", "d"])
        rows, unheld = rows_held(data)
        assert [row["n"] for row in rows] == [0, 2]
        assert rows[1] == {"n": 2, "s": "b", "d": dt.date(1970, 1, 3)}
        assert {at: text.split(" has")[0] for at, text in unheld.items()} == {
            1: "column 's': Python",
            3: "column 's': Python",
            4: "column 'd': Python",
        }
        part = data.take([0, 2])
        assert rows_held(part) == (rows, {})
        assert rows_held(part.slice(1)) == (rows[1:], {})
    assert rows_held(part.select(["n"])) == (rows_of(part.select(["n"])), {})


def test_a_text_of_ones_own_source_that_is_not_utf_8_is_a_record_that_cannot_be_decoded():
    """A source's batch is taken as it is where its columns have the types of its schema."""
    schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
    texts = text_of(b"a", b"\xff", b"c", None, b"\xc3")
    data = pa.RecordBatch.from_arrays([pa.array(range(5)), texts], schema=schema)
    read = ReadBatch(data, ((0, "of its own"),))

    class Own(GeneratorSource):
        sound = False

        def read(self, _piece):
            yield read

    piece = Piece(0, RootRange("own", 1, 0, 5))
    (part,) = read_piece(Own("own", {"count": 5}, Path()), piece, schema, False)
    assert part.data.column("s").to_pylist() == ["a", None, "c", None, None]
    assert [place for place, _ in part.errors] == [1, 4, 0]
    assert all("'s'" in text and "UTF8" in text for _, text in part.errors[:2])
    assert not Source.sound


@pytest.mark.parametrize("whole", [False, True])
def test_what_duckdb_gives_and_arrow_cannot_hold_fails_its_row(windows, tmp_path, whole):
    """A time of day of 24 hours would be shown as another one, or as the text of an error."""
    lines = ["10:00:00", "24:00:00", "23:59:59"]
    write_lines(tmp_path, lines)
    run = windows(TIMES, whole)
    intent = run.plan()
    assert set(run.attempt(intent).failed) == {1}
    good = run.attempt(intent, excluded={1})
    assert [row["moment"] for row in good.rows["out"]] == ["10:00:00.000000", "23:59:59.000000"]


TIMES = """
sources: [{name: rows, files: {path: texts, format: text}}]
processors:
  - name: step
    inputs: [{from: rows}]
    sql: {engine: duckdb, select: ["CAST(value AS time) AS moment"]}
sinks:
  - {name: out, inputs: [{from: step}], files: {path: out, format: jsonLines}}
"""


@pytest.mark.parametrize(
    ("step", "bad"),
    [
        ('select: ["n <> 0 AND 100 // n > 5 AS ok"]', {1}),
        ('select: ["n = 0 OR 100 // n > 5 AS ok"]', {1}),
        ('select: ["CASE WHEN n <> 0 THEN 100 // n > 5 END AS ok"]', set()),
        ('where: "n <> 0 AND 100 // n > 5"', set()),
    ],
)
def test_what_may_raise_is_guarded_in_select_by_case_as_the_documentation_says(
    windows, tmp_path, step, bad
):
    write_lines(tmp_path, [json.dumps({"n": n}) for n in (7, 0, 50)])
    run = windows(
        f"""
sources: [{{name: rows, files: {{path: texts, format: jsonLines, schema: "n long"}}}}]
processors:
  - {{name: step, inputs: [{{from: rows}}], sql: {{engine: duckdb, {step}}}}}
sinks:
  - {{name: out, inputs: [{{from: step}}], files: {{path: out, format: jsonLines}}}}
"""
    )
    assert set(run.attempt(run.plan()).failed) == bad
    text = " ".join((DOCS / "native.md").read_text().split())
    assert "in `select` both are evaluated, where Spark stops" in text
