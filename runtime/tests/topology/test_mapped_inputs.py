"""Inputs that take columns under names of their own: what is checked, and what edits mean."""

from __future__ import annotations

import pytest
from topology_texts import at, problems_in

from millrace.topology.checks.facts import gather
from millrace.topology.edits import classify
from millrace.topology.graph import graph_of
from millrace.topology.kinds.base import Effect
from millrace.topology.load import parse

TEXT = """
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {name: merged}
spec:
  sources:
    - {name: web, files: {path: web, format: csv, schema: "uid string, n long, page string"}}
    - {name: shop, files: {path: shop, format: csv, schema: "user string, n long"}}
  processors:
    - name: sums
      inputs:
        - {from: web, key: [user], columns: {user: uid, n: n}}
        - {from: shop, key: [user]}
      aggregate: {columns: [{name: total, function: sum, of: n}]}
  sinks:
    - {name: out, inputs: [{from: sums}], files: {path: out}}
    - name: all
      inputs: [{from: web, columns: {user: uid, n: n}}, {from: shop}]
      redis: {url: "redis://localhost", key: "u:{user}"}
"""


def test_inputs_with_different_columns_merge_under_equal_names() -> None:
    topology = parse(TEXT)
    facts = gather(topology, None)
    assert facts.columns["sums"] == (("user", "string"), ("total", "long"))
    (edge, _) = graph_of(topology).inputs("sums")
    assert facts.columns_on(edge) == (("user", "string"), ("n", "long"))


@pytest.mark.parametrize(
    ("old", "new", "path", "words"),
    [
        ("{user: uid, n: n}}\n", "{user: uidd, n: n}}\n", "user", "did you mean 'uid'?"),
        ("key: [user], columns", "key: [uid], columns", None, "is no column of 'web'"),
        ("columns: {user: uid, n: n}}\n", "columns: {user: uid, m: n}}\n", None, "'n' in what"),
        ("{user: uid, n: n}}, {from: shop}", "{user: n, n: n}}, {from: shop}", None, "by columns:"),
        ("{user: uid, n: n}}\n", "{user: uid, __mr_x: n, n: n}}\n", None, "is reserved"),
    ],
    ids=["unknown", "key", "of", "types", "reserved"],
)
def test_what_does_not_fit_is_named(old, new, path, words) -> None:
    assert old in TEXT
    problems = problems_in(TEXT.replace(old, new, 1))
    if path is not None:
        assert words in at(problems, "spec.processors[0].inputs[0].columns.user").remedy
    elif words != "'n' in what":
        assert any(words in str(problem) for problem in problems)
    else:
        assert any(problem.value == "n" and problem.remedy for problem in problems)


def test_sql_takes_columns_by_select_alone() -> None:
    sql = "    - {name: q, inputs: [{from: web, columns: {user: uid}}], sql: {}}\n  sinks:\n"
    text = TEXT.replace("  sinks:\n", sql).replace("{from: shop}]", "{from: q}]")
    problem = at(problems_in(text), "spec.processors[1].inputs[0].columns")
    assert "does not go with SQL" in problem.message


def edits(old: str, new: str) -> dict[str, Effect]:
    assert old in TEXT
    found = classify(parse(TEXT), parse(TEXT.replace(old, new)))
    return {edit.path: edit.effect for edit in found}


def test_what_edits_of_a_mapping_mean() -> None:
    columns = "spec.processors[sums].inputs[web].columns"
    key = "key: [user], columns: {user: uid, n: n}"
    assert edits(key, "key: [user], columns: {user: page, n: n}") == {columns: Effect.REFUSED}
    assert edits(key, "key: [user], columns: {user: uid, n: n, page: page}") == {
        f"{columns}.page": Effect.RESTART
    }
    sink = "{from: web, columns: {user: uid, n: n}}, {from: shop}"
    assert edits(sink, sink.replace("user: uid", "user: page")) == {
        "spec.sinks[all].inputs[web].columns.user": Effect.RESTART
    }
