"""A twin reads what the run reads, wherever its paths start, and has its dead letters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millrace.chaos.expected import Judged, run_twin


def test_a_twin_finds_all_files_beside_the_topology(tmp_path: Path) -> None:
    home, place = tmp_path / "home", tmp_path / "twin"
    place.mkdir()
    (home / "texts").mkdir(parents=True)
    (home / "texts" / "a.txt").write_text("x\ny\nx\n")
    (home / "table.csv").write_text("letter,number\nx,1\n")
    # A module of Python's own has this name.
    (home / "statistics.py").write_text("raise AssertionError('not mine')\n")
    table = {
        "table": {"path": "table.csv", "schema": "letter string, number long"},
        "key": [{"column": "value", "of": "letter"}],
        "missing": "Fail",
        "columns": [{"name": "number"}],
    }
    document: dict[str, Any] = {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "StreamTopology",
        "metadata": {"name": "with-table"},
        "spec": {
            "sources": [{"name": "lines", "files": {"path": "texts", "watch": True}}],
            "processors": [{"name": "known", "inputs": [{"from": "lines"}], "lookup": table}],
            "sinks": [{"name": "out", "inputs": [{"from": "known"}], "console": {}}],
        },
    }
    twin = run_twin(document, home, place, [Judged("out", home / "out")], 240.0)
    assert list(twin.rows["out"]) == [{"value": "x", "number": 1}] * 2
    assert twin.roots == 3
    assert [(one.source, one.payload) for one in twin.letters] == [("lines", b"y")]
    assert sorted(path.name for path in home.iterdir()) == ["statistics.py", "table.csv", "texts"]
