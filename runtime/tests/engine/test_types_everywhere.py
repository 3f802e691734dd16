"""Every type through every kind of step, source and sink, in several time zones of the process.

One window of one topology with a branch for each step; ``type_values`` says what must come out.
SQL steps need Spark and are in ``test_types_sql.py``.
"""

from __future__ import annotations

import csv
import datetime as dt
import decimal
import io
import json
import os

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import redis
import type_values as tv
from engine_support import Windows, compiled

from millrace.errors import TopologyError
from millrace.protocol.types import Sealed
from millrace.sinks import open_sink
from millrace.sinks.redis import RedisSink
from millrace.state.keyed import blobs
from millrace.state.keyed.columnstate import ColumnState
from millrace.state.keyed.dictstate import DictState
from millrace.state.keyed.typedstate import DELETED

STEPS = {
    "row": ("by_row", ""),
    "batch": ("by_batch", ""),
    "where": ("all_of_them", ""),
    "cls": ("ByClass", ""),
    "copies": ("by_row", ", broadcast: true"),
    "state": ("by_state", ", key: [id]"),
    "groups": ("by_groups", ", key: [id]"),
    "keyed": ("ByKeyedClass", ", key: [b, i, l, d, s, x, t, y]"),
    **{f"by_{key}": ("ByKeyedClass", f", key: [{key}]") for key in "bildsxty"},
}
EXTREMES = ("i", "l", "s", "t", "y", "id")
SOURCES = ("rows", "lines", "table", "own")


def spec() -> str:
    steps = "".join(
        f'  - {{name: {name}, function: "typesteps:{function}", inputs: [{{from: rows{more}}}]}}\n'
        for name, (function, more) in STEPS.items()
    )
    counts = "".join(
        f"  - {{name: count_{key}, inputs: [{{from: rows, key: [{key}]}}], aggregate: "
        "{columns: [{name: n, function: count}, {name: top, function: max, of: id}]}}\n"
        for key in "bildsxty"
    )
    counts += (
        "  - {name: extremes, inputs: [{from: rows, key: [b]}], aggregate: {columns: ["
        + ", ".join(
            f"{{name: {function}_{of}, function: {function}, of: {of}}}"
            for of in EXTREMES
            for function in ("min", "max")
        )
        + "]}}\n"
    )
    shown = [*SOURCES, *STEPS, *(f"count_{key}" for key in "bildsxty"), "extremes", "merged"]
    sinks = "".join(
        f"  - {{name: out_{name}, inputs: [{{from: {name}}}], files: {{path: out/{name}}}}}\n"
        for name in shown
    )
    return f"""
sources:
  - {{name: rows, files: {{path: parquet, format: parquet}}}}
  - {{name: lines, files: {{path: json, format: jsonLines, schema: "{tv.DECLARED}"}}}}
  - {{name: table, files: {{path: csv, format: csv, schema: "{tv.DECLARED_CSV}"}}}}
  - {{name: own, custom: {{class: "typesource:Rows"}}}}
processors:
{steps}{counts}
  - name: merged
    function: "typesteps:by_row"
    inputs: [{{from: row}}, {{from: batch}}, {{from: rows}}]
sinks:
{sinks}
  - {{name: as_csv, inputs: [{{from: row}}], files: {{path: out/as_csv, format: csv}}}}
  - {{name: as_parquet, inputs: [{{from: row}}], files: {{path: out/as_parquet, format: parquet}}}}
"""


class TypeWindows(Windows):
    """Keeps what was staged as bytes, by sink."""

    def staged_rows(self, outcome):
        staged = {}
        for report in outcome.reports.values():
            for one in report.staged:
                sink = open_sink(self.program.components[one.sink].connector)
                staged.setdefault(one.sink, []).append(sink._staged_path(one.name).read_bytes())
        return staged


def feed(folder):
    for kind in ("parquet", "json", "csv"):
        (folder / kind).mkdir()
    pq.write_table(tv.table(), folder / "parquet" / "a.parquet")
    lines = "".join(tv.json_line(row) + "\n" for row in tv.rows())
    (folder / "json" / "a.jsonl").write_text(lines)
    (folder / "csv" / "a.csv").write_text(tv.csv_text())


def test_every_value_comes_out_of_every_step_as_it_went_in(tmp_path, state_server, uid, zone):
    feed(tmp_path)
    windows = TypeWindows(compiled(spec(), tmp_path, uid), state_server.address)
    outcome = windows.attempt(windows.plan())
    assert outcome.failed == {}
    assert outcome.verdict.complete
    want = {row["id"]: tv.as_json(row) for row in tv.rows()}
    for name in ("rows", "own", *(n for n in STEPS if n != "copies"), "merged", "copies"):
        times = {"merged": 3, "copies": windows.program.parallelism}.get(name, 1)
        assert by_id(outcome.rows[f"out_{name}"]) == {n: [r] * times for n, r in want.items()}, name
    finite = {n: [tv.without_odd_floats(row)] for n, row in want.items()}
    assert by_id(outcome.rows["out_lines"]) == finite
    assert by_id(outcome.rows["out_table"]) == {
        row["id"]: [tv.as_read_from_csv(row)] for row in tv.rows()
    }
    for key in "bildsxty":
        assert groups(outcome.rows[f"out_count_{key}"], key) == expected_groups(want, key), key
    rows = [json.loads(line) for line in b"".join(outcome.rows["out_extremes"]).splitlines()]
    assert {row["b"]: row for row in rows} == expected_extremes(want.values())
    table = from_parquet(outcome.rows["as_parquet"])
    assert table.schema.equals(tv.SCHEMA)
    # As texts, since what is not a number differs from itself.
    assert repr(table.to_pylist()) == repr(tv.table().to_pylist())
    assert from_csv(outcome.rows["as_csv"]) == [numbered(tv.as_csv(row)) for row in tv.rows()]


def test_columns_of_state_hold_every_value():
    keys = pa.schema([tv.SCHEMA.field("id")])
    values = tv.SCHEMA.remove(tv.SCHEMA.get_field_index("id"))
    rows = tv.table().combine_chunks().to_batches()[0]
    columns = rows.select(values.names)
    held = ColumnState(keys, values, 8)
    held.begin()
    held.write(held.find([rows.column("id")]), held.converted(columns))
    written = blobs.read(held.base().data)
    # A key whose columns are all null has no state.
    want = [row for row in tv.rows() if any(row[name] is not None for name in values.names)]
    assert len(want) < rows.num_rows
    want = rows.take(pa.array([row["id"] for row in want])).to_pylist()
    for form in (ColumnState, DictState):
        again = form(keys, values, 8)
        again.apply(written)
        found = blobs.read(again.base().data).drop_columns([DELETED])
        # As texts, since what is not a number differs from itself.
        found = found.take(pc.sort_indices(found.column("id"))).select(rows.schema.names)
        assert repr(found.to_pylist()) == repr(want)
        assert found.schema.remove_metadata() == rows.schema.remove_metadata()


def by_id(parts):
    found = {}
    for line in b"".join(parts).splitlines():
        row = json.loads(line)
        found.setdefault(row["id"], []).append(row)
    return found


def groups(parts, key):
    rows = [json.loads(line) for line in b"".join(parts).splitlines()]
    for row in rows:
        if key == "d" and isinstance(row[key], int):
            row[key] = float(row[key])  # JSON has one kind of number
    return {json.dumps(row[key]): (row["n"], row["top"]) for row in rows}


def expected_groups(want, key):
    """Zeros of either sign are one key, as are all values that are not a number."""
    found = {}
    for number, row in want.items():
        value = 0.0 if row[key] == 0 and isinstance(row[key], float) else row[key]
        found.setdefault(json.dumps(value), []).append(number)
    return {value: (len(numbers), max(numbers)) for value, numbers in found.items()}


def expected_extremes(want):
    """Instants and dates in ISO 8601 and texts have the order of their code points."""
    found = {}
    for flag in {row["b"] for row in want}:
        mine = [row for row in want if row["b"] is flag]
        found[flag] = {"b": flag}
        for of in EXTREMES:
            values = [row[of] for row in mine if row[of] is not None]
            found[flag][f"min_{of}"] = min(values, default=None)
            found[flag][f"max_{of}"] = max(values, default=None)
    return found


def from_parquet(parts):
    tables = [pq.read_table(io.BytesIO(part)) for part in parts]
    return pa.concat_tables(tables).sort_by("id").combine_chunks()


def from_csv(parts):
    rows = [row for part in parts for row in csv.DictReader(io.StringIO(part.decode(), newline=""))]
    return [numbered(row) for row in sorted(rows, key=lambda row: int(row["id"]))]


def numbered(row):
    """Floats by value, since one number has several texts."""
    return {**row, **{name: repr(float(row[name])) for name in "fd" if row[name]}}


def test_the_process_really_was_in_the_zone(zone):
    assert os.environ["TZ"] == zone
    shown = dt.datetime.fromtimestamp(1_700_000_000).astimezone().utcoffset()
    assert (shown == dt.timedelta(0)) == (zone == "UTC")


def test_instants_that_user_code_puts_out_may_have_any_offset(tmp_path, state_server, uid, zone):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a").write_text("one\n")
    spec = """
sources: [{name: lines, files: {path: texts}}]
processors: [{name: made, function: "typesteps:instants_of_all_kinds", inputs: [{from: lines}]}]
sinks: [{name: out, inputs: [{from: made}], files: {path: out}}]
"""
    windows = TypeWindows(compiled(spec, tmp_path, uid), state_server.address)
    outcome = windows.attempt(windows.plan())
    rows = b"".join(outcome.rows["out"]).decode().splitlines()
    assert rows == ['{"t":"2024-02-29T12:00:00.000001Z"}'] * 3


ODD = {
    "decimal": (pa.array([decimal.Decimal("1.50"), None], pa.decimal128(10, 2)), 1.5),
    "struct": (pa.array([{"a": tv.instant(tv.INSTANTS[0])}, None]), {"a": tv.INSTANTS[0]}),
    "time": (pa.array([dt.time(1, 2, 3), None], pa.time64("us")), "01:02:03.000000"),
    "no zone": (pa.array([dt.datetime(2020, 1, 1), None]), "2020-01-01T00:00:00.000000Z"),
    "milliseconds": (
        pa.array([1577836800001, None], pa.timestamp("ms", "Asia/Kathmandu")),
        "2020-01-01T00:00:00.001000Z",
    ),
    "date in milliseconds": (pa.array([dt.date(1969, 1, 1), None], pa.date64()), "1969-01-01"),
    "half": (pa.array([1.5, None], pa.float32()).cast(pa.float16()), 1.5),
    "fixed binary": (pa.array([b"abc", None], pa.binary(3)), "YWJj"),
    "fixed list": (pa.array([[1, 2], None], pa.list_(pa.int64(), 2)), [1, 2]),
    "unsigned": (pa.array([2**32 - 1, None], pa.uint32()), 2**32 - 1),
    "nothing": (pa.array([None, None]), None),
}


def of_column(folder, column, more="", source="rows"):
    (folder / "parquet").mkdir()
    pq.write_table(pa.table({"id": pa.array([1, 2]), "c": column}), folder / "parquet/a.parquet")
    return f"""
sources: [{{name: rows, files: {{path: parquet, format: parquet}}}}]
processors: [{{name: step, function: "typesteps:every_one", inputs: [{{from: rows{more}}}]}}]
sinks: [{{name: out, inputs: [{{from: step}}], files: {{path: out}}}}]
"""


@pytest.mark.parametrize("kind", ODD)
def test_types_that_only_sources_have_are_handed_on(tmp_path, state_server, uid, kind):
    column, shown = ODD[kind]
    program = compiled(of_column(tmp_path, column), tmp_path, uid)
    windows = TypeWindows(program, state_server.address)
    outcome = windows.attempt(windows.plan())
    assert outcome.failed == {}
    rows = {n: row["c"] for n, (row,) in by_id(outcome.rows["out"]).items()}
    assert rows == {1: shown, 2: None}


@pytest.mark.parametrize("column", [ODD["decimal"][0], ODD["struct"][0], ODD["fixed list"][0]])
def test_a_type_that_cannot_be_a_key_is_refused_before_anything_runs(tmp_path, uid, column):
    with pytest.raises(TopologyError, match=r"'step': input from 'rows' is keyed by 'c'.*key by"):
        compiled(of_column(tmp_path, column, ", key: [c]"), tmp_path, uid)


def test_a_type_that_no_file_holds_is_refused_with_its_place(tmp_path, uid):
    column = pa.array([dt.timedelta(1), None])
    with pytest.raises(TopologyError, match=r"spec.sources\[rows\]: column 'c'.*duration.*write"):
        compiled(of_column(tmp_path, column), tmp_path, uid)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1577836800000000001, 0], pa.timestamp("ns", "UTC")),
        pa.array([2**64 - 1, 0], pa.uint64()),
    ],
)
def test_a_value_beyond_its_type_is_a_record_that_cannot_be_decoded(
    tmp_path, state_server, uid, column
):
    windows = TypeWindows(
        compiled(of_column(tmp_path, column), tmp_path, uid), state_server.address
    )
    outcome = windows.attempt(windows.plan())
    failed = [f for report in outcome.reports.values() for f in report.failed]
    assert [(f.sequence, f.processor, f.unreadable) for f in failed] == [(0, "rows", True)]
    assert sorted(by_id(outcome.rows["out"])) == [2]


@pytest.mark.parametrize("mode", [{"mode": "hash", "key": "r:{id}"}, {"mode": "stream"}])
def test_redis_shows_every_value_as_files_do(tmp_path, state_server, uid, zone, mode):
    """But for binary, which Redis holds as it is."""
    address = state_server.address
    url = f"{address.url}?password={address.password}"
    options = {"url": url, "stream": f"{uid}-rows", **mode}
    if "key" in mode:
        options = {**mode, "url": url, "key": f"{uid}:{{id}}"}
    sink = RedisSink("out", options, tmp_path)
    sink.prepare(uid)
    sink.fence(1)
    staged = sink.stage("1.1.1.0.0.0/out/out", tv.table().to_batches())
    sink.publish(Sealed(1, staged.digest, (staged,)), (staged,), 1)
    client = redis.Redis.from_url(url)
    if "key" in mode:
        shown = [client.hgetall(f"{uid}:{row['id']}") for row in tv.rows()]
    else:
        shown = [fields for _, fields in client.xrange(f"{uid}-rows")]
    nulls = [{k for k, v in row.items() if v is None} for row in tv.rows()]
    want = [numbered(tv.as_csv(row)) for row in tv.rows()]
    for got, row, expected, missing in zip(shown, tv.rows(), want, nulls, strict=True):
        assert got.pop(b"x", b"") == (row["x"] or b"")
        texts = {name.decode(): value.decode() for name, value in got.items()}
        texts.setdefault("id", expected["id"])  # of a hash it is in the key
        found = {name: texts.get(name, "") for name in expected if name != "x"}
        assert numbered(found) == {k: v for k, v in expected.items() if k != "x"}
        assert not any(texts.get(name) for name in missing)
