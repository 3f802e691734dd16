"""Inputs of different columns meet under equal names, within a pass and across an exchange."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.errors import TopologyError

SPEC = """
sources:
  - {name: web, files: {path: web.csv, format: csv, schema: "uid string, n long, page string"}}
  - {name: shop, files: {path: shop.csv, format: csv, schema: "n long, user string"}}
processors:
  - name: sums
    inputs:
      - {from: web, key: [user], columns: {user: uid, n: n}}
      - {from: shop, key: [user]}
    aggregate: {columns: [{name: total, function: sum, of: n}]}
  - name: words
    inputs: [{from: web, columns: {value: page}}, {from: shop, columns: {value: user}}]
    function: "wordsteps:split"
sinks:
  - {name: rows, inputs: [{from: sums}], files: {path: rows, format: jsonLines}}
  - {name: split, inputs: [{from: words}], files: {path: split, format: jsonLines}}
  - name: both
    inputs: [{from: shop, columns: {who: user, n: n}}, {from: web, columns: {n: n, who: uid}}]
    files: {path: both, format: jsonLines}
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "web.csv").write_text("uid,n,page\nann,1,in out\nbob,2,in\nann,4,out\n")
    (tmp_path / "shop.csv").write_text("n,user\n10,bob\n20,cid\n")


@pytest.mark.parametrize("whole", [True, False])
def test_inputs_are_mapped_by_name(files, windows, whole):
    outcome = windows(SPEC, whole).go()
    totals = {row["user"]: row["total"] for row in outcome.rows["rows"]}
    assert totals == {"ann": 5, "bob": 12, "cid": 20}
    assert Counter(row["word"] for row in outcome.rows["split"]) == Counter(
        ["in", "out", "in", "out", "bob", "cid"]
    )
    assert sorted((row["who"], row["n"]) for row in outcome.rows["both"]) == [
        ("ann", 1),
        ("ann", 4),
        ("bob", 2),
        ("bob", 10),
        ("cid", 20),
    ]
    assert outcome.verdict.complete


def test_a_column_that_is_not_there_is_named_when_it_is_compiled(tmp_path, windows):
    """What a Parquet file holds is known only then."""
    pq.write_table(pa.table({"uid": ["ann"]}), tmp_path / "web.parquet")
    spec = """
sources: [{name: web, files: {path: web.parquet, format: parquet}}]
sinks:
  - {name: rows, inputs: [{from: web, columns: {user: WHAT}}], files: {path: rows}}
"""
    outcome = windows(spec.replace("WHAT", "uid")).go()
    assert outcome.rows["rows"] == [{"user": "ann"}]
    with pytest.raises(TopologyError, match="'web' takes the column 'user'"):
        windows(spec.replace("WHAT", "user"))
