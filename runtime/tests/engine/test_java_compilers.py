"""Which compilers Spark's JVM has: both only where it works on rows itself."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from millrace.engine.jobs.ahead import session_settings
from millrace.engine.jobs.session import session_conf
from millrace.topology.load import parse

ONE_COMPILER = "-XX:TieredStopAtLevel=1"

TEXT = """
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {{name: words}}
spec:
  {spark}
  sources: [{{name: lines, files: {{path: texts}}}}]
  processors:
    - {{name: step, {step}, inputs: [{{from: lines}}]}}
  sinks: [{{name: out, files: {{path: out}}, inputs: [{{from: step}}]}}]
"""

OWN = "spark: {conf: {spark.driver.extraJavaOptions: -XX:TieredStopAtLevel=4}}"


def options(folder: Path, step: str, spark: str = "") -> dict[str, list[str]]:
    """The words of Java's options, of the driver and of executors, in Java's order."""
    found = session_conf(session_settings(parse(TEXT.format(step=step, spark=spark)), folder))
    return {
        side: shlex.split(
            " ".join(found.get(f"spark.{side}.{of}JavaOptions", "") for of in ("default", "extra"))
        )
        for side in ("driver", "executor")
    }


@pytest.mark.parametrize(
    ("step", "spark", "one"),
    [
        ("split: {column: value, into: word}", "", True),
        ("function: functions:f", "", True),
        ('sql: {where: "value > 1", engine: duckdb}', "", True),
        ('sql: {where: "value > 1"}', "", False),
        ('sql: {where: "value > 1"}', "spark: {executors: {instances: 2}}", True),
    ],
)
def test_the_jvm_of_a_driver_has_the_slow_compiler_where_its_tasks_evaluate_rows(
    tmp_path: Path, step: str, spark: str, one: bool
) -> None:
    assert (ONE_COMPILER in options(tmp_path, step, spark)["driver"]) == one


def test_executors_have_both_compilers(tmp_path: Path) -> None:
    found = options(
        tmp_path, "split: {column: value, into: word}", "spark: {executors: {instances: 2}}"
    )
    assert ONE_COMPILER not in found["executor"]


def test_options_of_a_user_stand_behind_and_win(tmp_path: Path) -> None:
    found = options(tmp_path, "split: {column: value, into: word}", OWN)["driver"]
    assert found.index(ONE_COMPILER) < found.index("-XX:TieredStopAtLevel=4")
