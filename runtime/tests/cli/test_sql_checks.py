"""Spark checks the SQL of a topology before it runs, in terms of the user's columns."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_support import java, topology
from command_calls import called, command

from millrace.errors import ExitCode
from millrace_e2e import quickjvm

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
    - name: lower
      inputs: [{from: lines}]
      sql: {select: ["lower(value) AS word", "length(value) AS size"], where: "value <> ''"}
  sinks:
    - {name: out, inputs: [{from: sums}], files: {path: out}}
    - {name: out2, inputs: [{from: users}], files: {path: out2}}
    - {name: out3, inputs: [{from: lower}], files: {path: out3}}
"""


QUICK = f'''
  spark: {{conf: {{spark.driver.extraJavaOptions: "{quickjvm.options()}"}}}}
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return topology(tmp_path, SPEC + QUICK)


def test_describe_shows_the_types_of_every_step(file) -> None:
    done = command("describe", str(file))
    assert done.returncode == 0, done.stderr
    assert "Spark checks the SQL" in done.stderr
    text = " ".join(done.stdout.replace("│", " ").split())
    assert text.count("sql, in the JVM while its source is read: SELECT") == 4
    assert "(word string, size int)" in text
    assert "(word string, size int, half double)" in text
    assert "(word string, total double)" in text
    assert "(user string, n string)" in text


def test_problems_of_sql_name_the_expression_and_the_users_columns(file) -> None:
    """And columns behind SQL are checked with Spark's types."""
    done = command(
        *("validate", str(file)),
        *("--set", 'spec.processors[lower].sql.select=["upper(valu) AS word", "value.x AS y"]'),
        *("--set", "spec.processors[lower].sql.where=length(value)"),
        *("--set", 'spec.processors[users].sql.select=["user", "count(*) AS n", "upper(n"]'),
        *("--set", """spec.processors[more].sql.select=["word", "split(word, ' ') AS half"]"""),
    )
    assert done.returncode == ExitCode.INVALID_TOPOLOGY
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    found = {line.split()[1].rstrip(":"): line for line in lines}
    (summed,) = (path for path in found if path.startswith("spec.processors[2]."))
    assert "sum needs numbers" in found.pop(summed)
    assert sorted(found) == [
        "spec.processors[3].sql.select[1]",
        "spec.processors[3].sql.select[2]",
        "spec.processors[4].sql.select[0]",
        "spec.processors[4].sql.select[1]",
        "spec.processors[4].sql.where",
    ]
    assert "`valu` cannot be resolved" in found["spec.processors[4].sql.select[0]"]
    assert "no condition" in found["spec.processors[4].sql.where"]
    counted = found["spec.processors[3].sql.select[1]"]
    assert "needs more than one row at a time (Aggregate)" in counted
    assert "its input has user, n" in counted
    assert "yntax error" in found["spec.processors[3].sql.select[2]"]
    assert "__mr_" not in done.stderr
    assert "SQLSTATE" not in done.stderr


def test_what_is_not_checked_is_said(file, tmp_path) -> None:
    done = called("validate", "--no-sql", str(file))
    assert (done.returncode, done.stderr) == (0, "note: the SQL was not checked\n")
    home = java(tmp_path / "jdk", 'openjdk version "11.0.2"')
    for name in ("validate", "describe"):
        done = called(name, str(file), JAVA_HOME=str(home))
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
        done = called(name, str(file), JAVA_HOME=str(home))
        assert (done.returncode, done.stderr) == (0, "")
