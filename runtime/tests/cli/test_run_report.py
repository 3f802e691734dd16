from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from millrace.cli.report import Report
from millrace.homes.documents import Status
from millrace.local.supervisor import RunResult


def test_a_label_of_any_length_stands_apart_from_what_it_says():
    counts = {"roots": 1, "windows": 1, "replays": 0, "dead": 0, "dropped": 0}
    folder: Any = SimpleNamespace(path=Path("/work"))
    sinks = {"running-out": "/out/running", "a-name-that-is-long": "/out/long", "s": "/out/s"}
    report = Report("orders", folder, RunResult(0, "asked"), 1.0, counts, counts, Status(), sinks)
    shown = io.StringIO()
    report.show(Console(file=shown, width=80))
    lines = shown.getvalue().splitlines()[1:]
    for name, place in sinks.items():
        (line,) = [line for line in lines if place in line]
        assert line.split() == ["sink", name, place]
    assert len({line.rindex("/out") for line in lines if "/out" in line}) == 1


def test_the_command_that_lists_dead_letters_can_be_typed_as_it_is(tmp_path, monkeypatch):
    counts = {"roots": 1, "windows": 1, "replays": 0, "dead": 1, "dropped": 0}
    file = tmp_path / "a b" / "t.yaml"
    file.parent.mkdir()

    def hint(place: Path, named: Path | None) -> str:
        folder: Any = SimpleNamespace(path=place)
        result = RunResult(0, "drained")
        rest = (1.0, counts, counts, Status(dead_letters=1), {}, None, named)
        return Report("orders", folder, result, *rest).dead_letters.partition(": ")[2]

    default = file.parent / ".millrace" / "orders"
    monkeypatch.chdir(file.parent)
    assert hint(default, file) == "millrace dead-letters list t.yaml"
    assert hint(default, None) == f"millrace dead-letters list --workdir '{default}'"
    monkeypatch.chdir(tmp_path)
    assert hint(default, file) == "millrace dead-letters list 'a b/t.yaml'"
    other = tmp_path / "other"
    assert hint(other, file) == f"millrace dead-letters list --workdir {other}"
