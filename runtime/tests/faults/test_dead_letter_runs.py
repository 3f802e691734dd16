"""``millrace run`` over input of which some or most fails for good: what is said, and its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_calls import called

from millrace.errors import ExitCode
from millrace_e2e import quickjvm

CODE = """
from millrace import row

@row(output="value string")
def step(line):
    return {"value": checked(line["value"])}

def checked(text):
    if text.startswith("boom"):
        raise ValueError(f"cannot take {text}")
    return text
"""

TOPOLOGY = f"""
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {{name: letters}}
spec:
  window: {{maxRecords: 50}}
  ackers: {{maxReplays: 0}}
  parallelism: 1
  spark:
    conf: {{spark.driver.extraJavaOptions: "{quickjvm.options()}"}}
    driver: {{memory: 512m}}
  sources: [{{name: lines, files: {{path: texts, watch: false}}}}]
  processors: [{{name: step, function: "steps:step", inputs: [{{from: lines}}]}}]
  sinks: [{{name: out, inputs: [{{from: step}}], files: {{path: out}}}}]
"""

END_S = 400.0


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "texts").mkdir()
    (tmp_path / "steps.py").write_text(CODE)
    (tmp_path / "t.yaml").write_text(TOPOLOGY)
    return tmp_path


def feed(place: Path, lines: list[bytes]) -> None:
    (place / "texts" / "a.txt").write_bytes(b"".join(line + b"\n" for line in lines))


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


def events(place: Path, kind: str) -> list[dict[str, Any]]:
    (path,) = place.glob(".millrace/*/events.jsonl")
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [one for one in found if one["kind"] == kind]


def shown(place: Path) -> list[str]:
    rows = [
        json.loads(line)["value"]
        for file in (place / "out").glob("*.jsonl")
        for line in file.read_text().splitlines()
    ]
    return sorted(rows)


def letters(place: Path) -> list[dict[str, Any]]:
    done = called("dead-letters", "list", "--json", "-t", "t.yaml", cwd=place)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_few_dead_letters_say_where_and_why_until_they_are_replayed(place: Path) -> None:
    """They are named last by each run, and keep their ids while later windows carry them over; one
    whose record is gone stops its replay."""
    lines = [b"line %d" % n for n in range(150)]
    lines[16], lines[70] = b"broken \xff", b"boom 70"
    feed(place, lines)
    others = [f"other {n}" for n in range(20)]
    (place / "texts" / "b.txt").write_text("".join(f"{line}\n" for line in others))
    done = millrace(place, "run", "t.yaml", "-q", "--fail-on-dead-letters")
    assert done.returncode == ExitCode.DEAD_LETTERS, done.stderr
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("warning: 2 roots failed for good and are dead letters: millrace dead-")
    good = [*(f"line {n}" for n in range(150) if n not in (16, 70)), *others]
    assert shown(place) == sorted(good)

    (again,) = events(place, "WindowRunAgain")
    assert again["window"] == 2, "what cannot be decoded costs no second run"
    assert "1 in 'step' (ValueError: cannot take boom 70)" in again["text"]
    sealed = [one["text"] for one in events(place, "DeadLetters")]
    assert [text.split(" is ")[0] for text in sealed] == ["window 1", "window 2"]
    assert "1 in 'lines' (the line is not valid UTF-8" in sealed[0]

    first, second = letters(place)
    assert first["where"] == "texts/a.txt, line 17"
    assert second["where"] == "texts/a.txt, line 71"
    assert (first["processor"], first["replays"], first["trace"]) == ("lines", 0, "")
    assert second["error"] == "ValueError: cannot take boom 70"
    assert second["trace"].splitlines() == [
        f'File "{place / "steps.py"}", line 6, in step',
        '    return {"value": checked(line["value"])}',
        f'File "{place / "steps.py"}", line 10, in checked',
        '    raise ValueError(f"cannot take {text}")',
    ]
    text = millrace(place, "dead-letters", "show", "-t", "t.yaml", second["id"]).stdout
    assert 'raise ValueError(f"cannot take {text}")' in text
    assert second["where"] in text

    (place / "texts" / "c.txt").write_text("fine\nboom c\n")
    done = millrace(place, "run", "t.yaml", "-q")
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1].startswith("warning: 3 roots failed for good")
    *before, third = letters(place)
    assert before == [first, second]
    assert [one["window"] for one in before] == [1, 2]
    assert all(one["id"].endswith(":0") for one in (first, second, third))

    (place / "steps.py").write_text(CODE.replace('startswith("boom")', 'startswith("never")'))
    asked = millrace(place, "dead-letters", "replay", second["id"], "-t", "t.yaml")
    assert asked.returncode == 0, asked.stderr
    (request,) = [json.loads(one.read_text()) for one in place.glob(".millrace/*/requests/*.json")]
    assert request["segment"] == third["id"].replace(":0", "/dead"), "one object has all three"
    assert request["indexes"] == [1]
    file = place / "texts" / "a.txt"
    file.unlink()
    done = millrace(place, "run", "t.yaml", "-q")
    assert done.returncode == ExitCode.SOURCE, done.stderr
    assert f"file {file} is gone, but records of it are still to be read" in done.stderr
    assert "--drop-gone gives up" in done.stderr
    assert letters(place) == [first, third], "the other waits for its replay, none stands for it"

    feed(place, lines)
    done = millrace(place, "run", "t.yaml", "-q")
    assert done.returncode == 0, done.stderr
    assert shown(place) == sorted(["boom 70", "fine", *good])
    assert letters(place) == [first, third]


def test_a_run_stops_before_it_seals_most_of_its_input_as_dead_letters(place: Path) -> None:
    """Again after each start, at the same window, until the cause is mended or more is allowed."""
    feed(place, [b"boom %d" % n if n % 3 else b"line %d" % n for n in range(300)])
    for _ in range(2):
        done = millrace(place, "run", "t.yaml", "-q")
        assert done.returncode == ExitCode.TOO_MANY_DEAD, done.stderr
        assert "window 2 is not sealed" in done.stderr
        assert "spec.deadLetters.maxShare (50%)" in done.stderr
        assert "in 'step' (ValueError: cannot take boom" in done.stderr
        assert len(letters(place)) == 33, "of the first window, with fewer than 100 roots"
        assert shown(place) == sorted(f"line {n}" for n in range(0, 50, 3))
    more = ("--set", 'spec.deadLetters.maxShare="100%"')
    done = millrace(place, "run", "t.yaml", "-q", *more)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1].startswith("warning: 200 roots failed for good")
    assert shown(place) == sorted(f"line {n}" for n in range(0, 300, 3))
    assert len(letters(place)) == 200
