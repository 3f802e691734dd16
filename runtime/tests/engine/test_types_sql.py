"""Every type through SQL steps, whatever the time zones of the process, the JVM and the session."""

from __future__ import annotations

import datetime as dt
import os
import time

import pyarrow.parquet as pq
import pytest
import type_values as tv
from engine_support import SparkWindows, compiled

from millrace.engine.jobs.session import SessionSettings, build_session
from millrace.engine.program.sql import SqlAnalyser
from millrace.errors import TopologyError

SPEC = """
sources: [{name: rows, files: {path: in, format: parquet}}]
processors:
  - {name: same, inputs: [{from: rows}], sql: {select: ["*"]}}
  - {name: again, inputs: [{from: same}], sql: {select: ["*"], where: "id >= 0"}}
  - {name: row, function: "typesteps:by_row", inputs: [{from: again}]}
  - {name: keyed, function: "typesteps:ByKeyedClass", inputs: [{from: same, key: [t, y]}]}
  - name: made
    inputs: [{from: rows}]
    sql:
      where: "id = 0"
      select:
        - "timestamp_micros(1711846799999999) AS t"
        - "t + INTERVAL 1 DAY AS later"
        - "date'2024-02-29' AS y"
        - "timestamp_ntz'2024-02-29 12:34:56.789012' AS wall"
        - "cast(1.5 AS decimal(10, 2)) AS decimal"
        - "named_struct('t', t) AS struct"
        - "map('y', y) AS map"
        - "cast(3 AS tinyint) AS tiny"
        - "NULL AS nothing"
sinks:
"""
SHOWN = ("rows", "same", "again", "row", "keyed", "made")
BROKEN = """
sources: [{name: lines, files: {path: in, format: text}}]
processors: [{name: upper, inputs: [{from: lines}], sql: {select: ["upper(value) AS value"]}}]
sinks: [{name: out, inputs: [{from: upper}], files: {path: out}}]
"""


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    before = os.environ.get("TZ")
    os.environ["TZ"] = "America/St_Johns"
    time.tzset()
    session = build_session(SessionSettings("types", tmp_path_factory.mktemp("spark"), threads=2))
    yield session
    session.stop()
    os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
    time.tzset()


@pytest.mark.parametrize("zone", tv.ZONES)
def test_every_value_comes_out_of_sql_as_it_went_in(tmp_path, state_server, uid, spark, zone):
    (tmp_path / "in").mkdir()
    pq.write_table(tv.table(), tmp_path / "in" / "a.parquet")
    sinks = "".join(
        f"  - {{name: {name}_out, inputs: [{{from: {name}}}], files: {{path: out/{name}}}}}\n"
        for name in SHOWN
    )
    spark.conf.set("spark.sql.session.timeZone", zone)
    program = compiled(SPEC + sinks, tmp_path, uid, SqlAnalyser(lambda: spark))
    windows = SparkWindows(program, state_server.address, spark, 4096)
    outcome = windows.attempt(windows.plan())
    assert outcome.failed == {}
    assert outcome.verdict.complete
    want = [tv.as_json(row) for row in tv.rows()]
    for name in SHOWN[:-1]:
        rows = sorted(outcome.rows[f"{name}_out"], key=lambda row: row["id"])
        assert rows == want, name
    first = tv.instant(tv.INSTANTS[0])
    (made,) = outcome.rows["made_out"]
    assert made == {
        "t": "2024-03-31T00:59:59.999999Z",
        "later": tv.INSTANTS[0].replace("02-29", "03-01"),
        "y": "2024-02-29",
        "wall": "2024-02-29T12:34:56.789012Z",
        "decimal": 1.5,
        "struct": {"t": tv.INSTANTS[0]},
        "map": [["y", first.date().isoformat()]],
        "tiny": 3,
        "nothing": None,
    }
    assert first.utcoffset() == dt.timedelta(0)


def test_what_sql_puts_out_and_no_file_holds_is_refused_with_its_place(tmp_path, uid, spark):
    (tmp_path / "in").mkdir()
    pq.write_table(tv.table(), tmp_path / "in" / "a.parquet")
    spec = """
sources: [{name: rows, files: {path: in, format: parquet}}]
processors:
  - {name: age, inputs: [{from: rows}], sql: {select: ["t - timestamp'2020-01-01' AS age"]}}
sinks: [{name: out, inputs: [{from: age}], files: {path: out}}]
"""
    with pytest.raises(
        TopologyError, match=r"spec.processors\[age\].sql.select: column 'age'.*CAST"
    ):
        compiled(spec, tmp_path, uid, SqlAnalyser(lambda: spark))


def test_a_record_that_cannot_be_decoded_goes_past_sql_without_a_trace(
    tmp_path, state_server, uid, spark
):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes(b"one\n\xff\xfe\nthree\n")
    program = compiled(BROKEN, tmp_path, uid, SqlAnalyser(lambda: spark))
    windows = SparkWindows(program, state_server.address, spark, 4096)
    outcome = windows.attempt(windows.plan())
    failed = [f for report in outcome.reports.values() for f in report.failed]
    assert [(f.sequence, f.processor, f.unreadable) for f in failed] == [(1, "lines", True)]
    assert outcome.verdict.incomplete == {1}
    assert outcome.rows["out"] == [{"value": "ONE"}, {"value": "THREE"}]
