"""Spark checks the SQL of a topology before it runs, in terms of the user's columns."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_support import command, java, topology

from millrace.errors import ExitCode

SPEC = """
  sources:
    - {name: lines, files: {path: texts, watch: false}}
    - {name: rows, files: {path: rows, format: csv, schema: "user string, n int", watch: false}}
  processors:
    - name: upper
      inputs: [{from: lines}]
      sql: {select: ["upper(value) AS word", "length(value) AS size"], where: "value <> ''"}
    - name: more
      inputs: [{from: upper}]
      sql: {select: ["*", "size / 2 AS half"]}
    - name: sums
      inputs: [{from: more, key: [word]}]
      aggregate: {columns: [{name: total, function: sum, of: half}]}
    - name: users
      inputs: [{from: rows}]
      sql: {select: ["user", "CAST(n AS string) AS n"]}
  sinks:
    - {name: out, inputs: [{from: sums}], files: {path: out}}
    - {name: out2, inputs: [{from: users}], files: {path: out2}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return topology(tmp_path, SPEC)


def test_describe_shows_the_types_of_every_step(file) -> None:
    done = command("describe", str(file))
    assert done.returncode == 0, done.stderr
    assert "Spark checks the SQL" in done.stderr
    text = " ".join(done.stdout.replace("│", " ").split())
    assert text.count("sql, in the JVM while its source is read: SELECT") == 3
    assert "(word string, size int)" in text
    assert "(word string, size int, half double)" in text
    assert "(word string, total double)" in text
    assert "(user string, n string)" in text


def test_problems_of_sql_name_the_expression_and_the_users_columns(file) -> None:
    done = command(
        *("validate", str(file)),
        *("--set", 'spec.processors[upper].sql.select=["upper(valu) AS word", "value.x AS y"]'),
        *("--set", "spec.processors[upper].sql.where=length(value)"),
        *("--set", 'spec.processors[users].sql.select=["user", "count(*) AS n", "upper(n"]'),
    )
    assert done.returncode == ExitCode.INVALID_TOPOLOGY
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    found = {line.split()[1]: line for line in lines}
    assert sorted(path.rstrip(":") for path in found) == [
        "spec.processors[0].sql.select[0]",
        "spec.processors[0].sql.select[1]",
        "spec.processors[0].sql.where",
        "spec.processors[3].sql.select[1]",
        "spec.processors[3].sql.select[2]",
    ]
    texts = list(found.values())
    assert "`valu` cannot be resolved" in texts[0]
    assert "no condition" in texts[2]
    assert "needs more than one row at a time (Aggregate)" in texts[3]
    assert "its input has user, n" in texts[3]
    assert "yntax error" in texts[4]
    assert "__mr_" not in done.stderr
    assert "SQLSTATE" not in done.stderr


def test_columns_behind_sql_are_checked_with_sparks_types(file) -> None:
    done = command(
        *("validate", str(file)),
        *("--set", """spec.processors[more].sql.select=["word", "split(word, ' ') AS half"]"""),
    )
    assert done.returncode == ExitCode.INVALID_TOPOLOGY
    assert "sum needs numbers" in done.stderr


def test_what_is_not_checked_is_said(file, tmp_path) -> None:
    done = command("validate", "--no-sql", str(file))
    assert (done.returncode, done.stderr) == (0, "note: the SQL was not checked\n")
    home = java(tmp_path / "jdk", 'openjdk version "11.0.2"')
    for name in ("validate", "describe"):
        done = command(name, str(file), JAVA_HOME=str(home))
        assert done.returncode == 0
        assert "the SQL was not checked" in done.stderr
        assert "is Java 11" in done.stderr


def test_without_sql_nothing_is_started(tmp_path) -> None:
    spec = """
  sources: [{name: lines, files: {path: texts}}]
  sinks: [{name: out, inputs: [{from: lines}], files: {path: out}}]
"""
    home = java(tmp_path / "jdk", "not to be asked", 1)
    file = topology(tmp_path, spec)
    for name in ("validate", "describe"):
        done = command(name, str(file), JAVA_HOME=str(home))
        assert (done.returncode, done.stderr) == (0, "")
