"""What a type cannot do is refused with its place, where sources and Spark have said the types."""

from __future__ import annotations

import pytest

from millrace.topology.checks.check import problems_of
from millrace.topology.checks.facts import gather
from millrace.topology.load import parse

TEXT = """
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {name: types}
spec:
  sources: [{name: rows, files: {path: in, format: parquet}}]
  processors:
    - {name: made, inputs: [{from: rows}], sql: {select: ["a - b AS c"]}}
    - name: counts
      inputs: [{from: made, key: [c]}]
      aggregate: {columns: [{name: n, function: count}]}
  sinks: [{name: out, inputs: [{from: counts}], files: {path: out}}]
"""


def refused(kind: str) -> list[str]:
    found = {"rows": (("a", "timestamp"), ("b", "timestamp")), "made": (("c", kind),)}
    return [str(problem) for problem in problems_of(gather(parse(TEXT), None, found))]


@pytest.mark.parametrize("kind", ["timestamp", "date", "string", "binary", "double", "boolean"])
def test_simple_types_are_keys(kind: str) -> None:
    assert refused(kind) == []


@pytest.mark.parametrize("kind", ["array<long>", "decimal128(10, 2)", "struct<a: int64>"])
def test_other_types_are_no_keys(kind: str) -> None:
    (problem,) = refused(kind)
    assert problem.startswith("spec.processors[1].inputs[0].key[0]")
    assert f"is of the type {kind}, which cannot be a key" in problem
    assert "use a column of a simple type" in problem


@pytest.mark.parametrize("kind", ["duration[us]", "month_day_nano_interval"])
def test_lengths_of_time_have_no_form_in_files(kind: str) -> None:
    found = refused(kind)
    (problem,) = [one for one in found if one.startswith("spec.processors[0].sql.select")]
    assert f"has the type {kind}" in problem
    assert "CAST it" in problem
