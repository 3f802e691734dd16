"""What ``validate`` knows of DuckDB's steps: checked behind whatever has columns that are known."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.engine.jobs.analyse import Findings, analyse
from millrace.topology.checks.check import problems_of
from millrace.topology.checks.facts import gather
from millrace.topology.load import parse

SPEC = """
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {name: t}
spec:
  sources:
    - {name: lines, files: {path: in, format: text}}
  processors:
    - name: front
      inputs: [{from: lines}]
      %(front)s
    - name: large
      inputs: [%(edge)s]
      sql: {engine: duckdb, select: %(select)s, where: %(where)s}
    - name: totals
      inputs: [{from: large, key: [user]}]
      aggregate: {columns: [{name: total, function: sum, of: gross}]}
  sinks:
    - {name: out, inputs: [{from: totals}], files: {path: out, format: jsonLines}}
"""
READ = "json: {column: value, columns: [{name: user, type: string}, {name: net, type: double}]}"
CODE = """
from millrace import row


@row(output="user string, net double")
def made(line):
    return line
"""
FRONTS = {
    "json": (READ, "{from: front}", ("user", "net")),
    "split": ("split: {column: value, into: user}", "{from: front}", ("user", "length(user)")),
    "aggregate": (
        "aggregate: {emit: final, columns: [{name: net, function: count}]}",
        "{from: front, columns: {user: value, net: net}}",
        ("user", "net"),
    ),
    "function": ("function: 'made:made'", "{from: front}", ("user", "net")),
}


@dataclass
class Asked:
    findings: Findings
    problems: list[str]


def ask(folder: Path, front: str, select: list[str], where: str = "user <> ''") -> Asked:
    """What analysing says, and what the checks say with the columns that it found."""
    declared, edge, _ = FRONTS[front]
    text = SPEC % {
        "front": declared,
        "edge": edge,
        "select": json.dumps(select),
        "where": json.dumps(where),
    }
    if front == "aggregate":
        text = text.replace("[{from: lines}]", "[{from: lines, key: [value]}]")
        text = text.replace("format: text", "format: text, watch: false")
    (folder / "made.py").write_text(CODE)
    topology = parse(text)

    def nobody():
        raise AssertionError("Spark was asked")

    findings = analyse(topology, folder, (), nobody)
    known = {name: tuple(columns) for name, columns in findings.columns.items()}
    return Asked(findings, [str(p) for p in problems_of(gather(topology, folder, known))])


@pytest.mark.parametrize("front", FRONTS)
def test_a_step_is_checked_behind_each_kind(tmp_path, front):
    user, net = FRONTS[front][2]
    found = ask(tmp_path, front, [f"upper({user}) AS user", f"{net} * 2 AS gross"])
    assert (found.findings.unknown, found.findings.problems, found.problems) == ([], [], [])
    (first, second) = found.findings.columns["large"]
    assert first == ("user", "string")
    assert second[0] == "gross"
    wrong = ask(tmp_path, front, [f"uper({user}) AS user", f"{net} AS gross"], "nett > 1")
    paths = [(path, value) for path, value, _, _ in wrong.findings.problems]
    assert paths == [
        ("spec.processors[1].sql.select[0]", f"uper({user}) AS user"),
        ("spec.processors[1].sql.where", "nett > 1"),
    ]
    assert "call upper, or use a function" in wrong.findings.problems[0][2]
    assert wrong.findings.unknown == []


def test_the_aggregate_behind_knows_the_types(tmp_path):
    found = ask(tmp_path, "json", ["user", "CAST(net AS decimal(9, 2)) AS gross"])
    (problem,) = found.problems
    assert "is decimal128(9, 2) in what comes from 'large', and sum needs numbers" in problem
    assert "CAST(... AS double) AS gross" in problem
    found = ask(tmp_path, "json", ["user", "upper(user) AS gross"])
    (problem,) = found.problems
    assert "is string in what comes from 'large'" in problem


def test_what_cannot_be_known_is_said_once(tmp_path):
    topology = parse(
        (
            SPEC
            % {
                "front": READ,
                "edge": "{from: front}",
                "select": '["user", "x AS gross"]',
                "where": "a",
            }
        )
        .replace("format: text", "format: parquet")
        .replace("column: value,", "column: value, keep: [x],")
    )
    findings = analyse(topology, tmp_path, (), lambda: pytest.fail("Spark was asked"))
    (said,) = findings.unknown
    assert said == (
        "the SQL of 'large' was not checked: the columns of 'front', or their types, are not known"
    )
    assert findings.problems == []


TABLED = """
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {name: t}
spec:
  sources:
    - {name: lines, files: {path: in, format: text}}
  processors:
    - name: named
      inputs: [{from: lines, columns: {user: value}}]
      lookup: {table: {path: users.parquet}, key: [{column: user, of: %s}], columns: [{name: age}]}
    - name: large
      inputs: [{from: named}]
      sql: {engine: duckdb, select: [user, "age * 1.5 AS older"], where: age > 3}
    - name: totals
      inputs: [{from: large, key: [user]}]
      aggregate: {columns: [{name: n, function: count}]}
  sinks:
    - {name: out, inputs: [{from: totals}], files: {path: out, format: jsonLines}}
"""


def tabled(folder: Path, key: str, **more: bool) -> Findings:
    return analyse(parse(TABLED % key), folder, (), lambda: pytest.fail("Spark was asked"), **more)


def test_the_types_of_a_table_are_known_to_what_stands_behind(tmp_path):
    table = pa.table({"id": ["ann"], "n": [1], "age": pa.array([4.0])})
    pq.write_table(table, tmp_path / "users.parquet")
    found = tabled(tmp_path, "id")
    assert (found.problems, found.unknown) == ([], [])
    assert found.columns["named"] == [("user", "string"), ("age", "double")]
    assert found.columns["large"] == [("user", "string"), ("older", "double")]
    assert tabled(tmp_path, "id", sql_too=False).columns.keys() == {"named"}


@pytest.mark.parametrize(
    ("key", "field", "message"),
    [
        ("n", "key[0].column", "is of the type string, and 'n' of the table long"),
        ("ident", "key[0].of", "is no column of users.parquet"),
        ("both", "table.path", "has the key both = 'x' twice, in row 1 and in row 2"),
    ],
)
def test_a_table_that_does_not_fit_is_a_problem(tmp_path, key, field, message):
    table = pa.table({"id": ["a", "b"], "n": [1, 2], "age": [3, 4], "both": ["x", "x"]})
    pq.write_table(table, tmp_path / "users.parquet")
    found = tabled(tmp_path, key)
    ((path, _, said, remedy),) = found.problems
    assert path == f"spec.processors[0].lookup.{field}"
    assert message in said
    assert remedy
    assert found.unknown == []


def test_a_table_that_is_elsewhere_is_no_problem_of_the_file(tmp_path):
    found = tabled(tmp_path, "id")
    assert found.problems == []
    assert any("the table of 'named' was not looked at: " in said for said in found.unknown)
    assert any("No such file" in said for said in found.unknown)
