"""Every type through native steps, SQL in the worker, and the sinks that files are not, in several
time zones of the process. ``type_values`` says what must come out."""

from __future__ import annotations

import base64
import io
import json
import time
import zoneinfo
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import type_values as tv
from engine_support import Windows, compiled

from millrace.engine.program.duck import DuckAnalyser
from millrace.engine.task.state import TaskStaging
from millrace.protocol.types import Sealed
from millrace.sinks import open_sink
from millrace.sinks.console import ConsoleSink
from millrace.sinks.encode import encode_csv, encode_json_lines
from millrace.sources.files import FileSource
from millrace.state.servers import StateServers

OTHERS = [name for name in tv.SCHEMA.names if name != "s"]
ADDED = [name for name in OTHERS if name != "id"]
SHOWN = ("duck", "made", "read", "cut", "joined", "at")
HELD = 15
"""So many of the rows a table of a look-up holds."""

COLUMNS = ", ".join(
    f"{{name: {name}, type: {kind}}}" for name, kind in (c.split() for c in tv.DECLARED.split(", "))
)
SINKS = "\n".join(
    f"  - {{name: of_{name}, inputs: [{{from: {name}}}], files: {{path: out/{name}}}}}"
    for name in SHOWN
)
SPEC = f"""
guarantee: AtLeastOnce
sources:
  - {{name: rows, files: {{path: parquet, format: parquet}}}}
  - {{name: texts, files: {{path: json, format: text}}}}
processors:
  - name: duck
    inputs: [{{from: rows}}]
    sql: {{engine: duckdb, select: ["*"], where: "id >= 0"}}
  - name: made
    inputs: [{{from: rows}}]
    sql:
      engine: duckdb
      where: "id < {HELD} AND t < TIMESTAMPTZ '9000-01-01 00:00:00Z'"
      select:
        - id
        - "t + INTERVAL 1 MICROSECOND - INTERVAL 1 MICROSECOND AS t"
        - "TIMESTAMPTZ '2024-03-31 00:59:59.999999Z' AS instant"
        - "y + 0 AS y"
  - {{name: read, inputs: [{{from: texts}}], json: {{column: value, columns: [{COLUMNS}]}}}}
  - name: cut
    inputs: [{{from: rows}}]
    split: {{column: s, into: piece, delimiter: "§", keep: [{", ".join(OTHERS)}]}}
  - name: joined
    inputs: [{{from: rows}}]
    lookup:
      table: {{path: held.parquet, format: parquet}}
      key: [{{column: id}}]
      columns: [{", ".join(f"{{name: of_{name}, of: {name}}}" for name in ADDED)}]
  - name: at
    inputs: [{{from: rows}}]
    lookup:
      table: {{path: held.parquet, format: parquet}}
      key: [{{column: t}}, {{column: y}}]
      columns: [{{name: n, of: id}}]
sinks:
{SINKS}
  - {{name: told, inputs: [{{from: rows}}], console: {{}}}}
  - {{name: own, inputs: [{{from: rows}}], custom: {{class: "typesink:Kept"}}}}
"""


class NativeWindows(Windows):
    """Keeps what the console and the user's own sink staged as it is; rows of files are read."""

    def staged_rows(self, outcome):
        staged = [one for report in outcome.reports.values() for one in report.staged]
        files = {name: [] for name in SHOWN}
        for one in staged:
            name = one.sink.removeprefix("of_")
            if name in files:
                path = open_sink(self.program.components[one.sink].connector)._staged_path(one.name)
                files[name] += map(json.loads, path.read_text().splitlines())
        return files | {n: [one for one in staged if one.sink == n] for n in ("told", "own")}

    def printed(self, staged):
        out = io.StringIO()
        sink = ConsoleSink("told", {}, Path(), out)
        sink.staging = TaskStaging(lambda: StateServers(self.services.access))
        sink.publish(Sealed(1, "", tuple(staged)), staged, 1)
        return out.getvalue()


def test_every_value_comes_out_of_native_steps_and_of_every_sink(tmp_path, state_server, uid, zone):
    for name in ("parquet", "json"):
        (tmp_path / name).mkdir()
    pq.write_table(tv.table(), tmp_path / "parquet" / "a.parquet")
    pq.write_table(tv.table().slice(0, HELD), tmp_path / "held.parquet")
    texts = [tv.json_line(row) for row in tv.rows()]
    (tmp_path / "json" / "a.txt").write_text("".join(f"{text}\n" for text in texts))
    windows = NativeWindows(compiled(SPEC, tmp_path, uid, DuckAnalyser()), state_server.address)
    outcome = windows.attempt(windows.plan())
    assert outcome.failed == {}
    assert outcome.verdict.complete
    want = {row["id"]: tv.as_json(row) for row in tv.rows()}
    rows = {name: sorted(outcome.rows[name], key=lambda row: row["id"]) for name in SHOWN}
    assert rows["duck"] == list(want.values())
    assert rows["read"] == [tv.without_odd_floats(row) for row in want.values()]
    before = "9000"
    assert rows["made"] == [
        {"id": n, "t": row["t"], "instant": "2024-03-31T00:59:59.999999Z", "y": row["y"]}
        for n, row in want.items()
        if n < HELD and row["t"] < before
    ]
    pieces = [{name: row[name] for name in OTHERS} for row in want.values() if row["s"] is not None]
    assert [{name: row[name] for name in OTHERS} for row in rows["cut"]] == pieces
    assert [row["piece"] for row in rows["cut"]] == [
        r["s"] for r in want.values() if r["s"] is not None
    ]
    nothing = dict.fromkeys(want[0])
    for row in rows["joined"]:
        held = want[row["id"]] if row["id"] < HELD else nothing
        assert {name: row[f"of_{name}"] for name in ADDED} == {name: held[name] for name in ADDED}
    assert [row["n"] for row in rows["at"]] == [n if n < HELD else None for n in want]
    told = windows.printed(outcome.rows["told"])
    assert {row["id"]: row for row in map(json.loads, told.splitlines())} == want
    kept = pa.concat_tables(
        pa.ipc.open_stream(base64.b64decode(one.locator)).read_all() for one in outcome.rows["own"]
    )
    # As texts, since what is not a number differs from itself.
    assert repr(kept.sort_by("id").to_pylist()) == repr(tv.table().to_pylist())
    assert kept.schema.equals(tv.SCHEMA)


def test_every_value_is_written_and_read_in_every_time_zone(tmp_path, monkeypatch):
    """By files, the console and whoever else encodes rows."""
    batches = tv.table().combine_chunks().to_batches()
    want = [tv.as_json(row) for row in tv.rows()]
    (tmp_path / "json").mkdir()
    (tmp_path / "csv").mkdir()
    lines = "".join(tv.json_line(row) + "\n" for row in tv.rows())
    (tmp_path / "json" / "a.jsonl").write_text(lines)
    (tmp_path / "csv" / "a.csv").write_text(tv.csv_text())
    read = []
    for form, schema in (("jsonLines", tv.DECLARED), ("csv", tv.DECLARED_CSV)):
        options = {"path": form.removesuffix("Lines"), "format": form, "schema": schema}
        source = FileSource("rows", {**options, "watch": False}, tmp_path)
        (piece,) = source.plan(None, 100).ranges
        read.append((source, piece))
    seen = None
    zones = zoneinfo.available_timezones()
    assert len(zones) > 400
    try:
        for zone in sorted(zones):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            data = b"".join(part.to_pybytes() for part in encode_json_lines(batches))
            table = b"".join(part.to_pybytes() for part in encode_csv(batches))
            found = [
                [row for part in source.read(piece) for row in part.data.to_pylist()]
                for source, piece in read
            ]
            if seen is None:
                assert [json.loads(line) for line in data.splitlines()] == want
                seen = (data, table, repr(found))
            assert (data, table, repr(found)) == seen, zone
    finally:
        monkeypatch.undo()
        time.tzset()
    for one, rows in zip(found, (tv.rows(), tv.rows()), strict=True):
        assert [row["t"] for row in one] == [row["t"] for row in rows]
        assert [row["y"] for row in one] == [row["y"] for row in rows]
