"""``millrace run`` over ranges with holes: a worker that dies, halves, dead letters, SQL."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millrace_e2e import quickjvm

CODE = Path(__file__).parents[1] / "engine" / "code"
END_S = 500.0

TOPOLOGY = f"""
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {{name: holes}}
spec:
  window: {{maxRecords: 12}}
  ackers: {{maxReplays: 0}}
  parallelism: 2
  spark:
    conf: {{spark.driver.extraJavaOptions: "{quickjvm.options()}"}}
    driver: {{memory: 512m}}
  sources: [{{name: numbers, custom: {{class: "holeysource:Holey", options: {{count: 60}}}}}}]
  processors:
    - {{name: step, function: "holeysource:deadly", inputs: [{{from: numbers}}]}}
    - name: checked
      inputs: [{{from: numbers}}]
      sql:
        select: ["CASE WHEN n IS NULL THEN CAST(raise_error('nothing') AS long) ELSE n END AS n"]
    - name: picked
      inputs: [{{from: checked}}]
      function: "holeysource:picky"
  sinks:
    - {{name: out, inputs: [{{from: step}}], files: {{path: out}}}}
    - {{name: sql, inputs: [{{from: picked}}], files: {{path: sql}}}}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for module in ("holeysource.py", "numbersource.py"):
        shutil.copy(CODE / module, tmp_path)
    (tmp_path / "t.yaml").write_text(TOPOLOGY)
    return tmp_path


def millrace(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "millrace.cli.app", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=place,
        timeout=END_S,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"},
    )


def shown(folder: Path) -> list[int]:
    rows = [json.loads(line) for f in folder.glob("*.jsonl") for line in f.read_text().splitlines()]
    return sorted(row["n"] for row in rows)


def test_every_record_shows_once_and_no_hole_is_ever_anything(place: Path) -> None:
    sys.path.insert(0, str(place))
    try:
        from holeysource import is_hole
    finally:
        sys.path.remove(str(place))
    done = millrace(place, "run", "t.yaml", "-q", "--json")
    assert done.returncode == 0, done.stderr
    bad = {30, 31}
    records = {n for n in range(60) if not is_hole(n)}
    assert bad < records
    assert shown(place / "out") == sorted(records - bad)
    assert shown(place / "sql") == sorted(records - bad)
    listed = millrace(place, "dead-letters", "list", "--json", "-t", "t.yaml").stdout.splitlines()
    letters: list[dict[str, Any]] = [json.loads(line) for line in listed]
    assert {one["offset"] for one in letters} == bad
    assert {json.loads(one["payload"])["n"] for one in letters} == bad
    totals = json.loads(done.stdout.splitlines()[-1])["totals"]
    assert (totals["roots"], totals["dead"]) == (len(records - bad), len(bad))
