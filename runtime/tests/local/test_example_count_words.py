"""The demo's checker sees every way in which the counts could be wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "examples" / "wordcount" / "count_words.py"

GOOD = {
    "part-00000001-0.jsonl": [("mill", 1), ("race", 2)],
    "part-00000002-0.jsonl": [("mill", 3)],
    "part-00000010-0.jsonl": [("weir", 1)],
}


def check(folder: Path, rows: dict[str, list[tuple[str, int]]]) -> tuple[int, dict[str, Any]]:
    texts, counts = folder / "texts", folder / "counts"
    texts.mkdir()
    (texts / "a.txt").write_text("mill race\nrace  mill\t")
    (texts / "b.txt").write_text("mill weir")
    (texts / "_c.txt").write_text("hidden")
    (counts / "_staged").mkdir(parents=True)
    (counts / "_staged" / "part-00000003-0.jsonl").write_text("not JSON")
    for name, found in rows.items():
        lines = [json.dumps({"word": word, "n": n}) + "\n" for word, n in found]
        (counts / name).write_text("".join(lines))
    done = subprocess.run(
        [sys.executable, "-I", str(SCRIPT), str(texts), str(counts)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)


def test_right_counts_are_equal(tmp_path: Path) -> None:
    code, found = check(tmp_path, GOOD)
    assert (code, found["equal"], found["repeated"]) == (0, True, 0)
    assert (found["words"], found["distinct"]) == (6, 3)
    assert (found["rows"], found["windows"]) == (4, 3)
    assert found["top"][0] == ["mill", 3]


@pytest.mark.parametrize(
    ("name", "rows", "difference"),
    [
        ("part-00000002-0.jsonl", [], ["mill", 3, 1]),
        ("part-00000010-0.jsonl", [], ["weir", 1, 0]),
        ("part-00000011-0.jsonl", [("mill", 4)], ["mill", 3, 4]),
        ("part-00000011-0.jsonl", [("dam", 1)], ["dam", 0, 1]),
    ],
)
def test_a_lost_doubled_or_invented_word_is_found(
    tmp_path: Path, name: str, rows: list[tuple[str, int]], difference: list[object]
) -> None:
    code, found = check(tmp_path, {**GOOD, name: rows})
    assert (code, found["equal"]) == (1, False)
    assert found["differences"] == [difference]


def test_a_window_that_is_shown_twice_is_found_although_the_totals_agree(tmp_path: Path) -> None:
    code, found = check(tmp_path, {**GOOD, "part-00000002-1.jsonl": [("mill", 3)]})
    assert (code, found["equal"], found["repeated"]) == (1, True, 1)
