"""One topology, run from several folders, and with a work folder that was moved."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace_e2e import feed, ledger
from millrace_e2e.checker import Promise
from millrace_e2e.harness import Place, await_nothing_left
from millrace_e2e.judge import judge
from millrace_e2e.topologies import Shape, history

SEED = 5
RUN_S = 400.0


def run_in(cwd: Path, place: Place, *arguments: str) -> None:
    """``millrace run`` to its end, called in ``cwd``."""
    cwd.mkdir(exist_ok=True)
    environment = {"MILLRACE_E2E_GATE": str(place.gate), "MILLRACE_E2E_MARKS": str(place.flaky)}
    done = subprocess.run(
        [sys.executable, "-m", "millrace.cli.app", "run", str(place.topology), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, **environment, "NO_COLOR": "1"},
        timeout=RUN_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def moved() -> Iterator[Path]:
    """A work folder whose path has the length at which Spark refuses folders for its sockets."""
    with tempfile.TemporaryDirectory() as short:
        yield Path(short) / ("m" * (61 - len(f"{short}//tmp")))


def test_every_line_is_shown_once_whatever_folder_it_is_run_from(
    place: Place, tmp_path: Path, moved: Path
) -> None:
    place.write(history(Shape(max_records=30)))
    place.gate.touch()
    default = place.base / ".millrace" / "history"

    feed.add_file(place.texts / "a.txt", feed.text(range(60), SEED))
    run_in(tmp_path / "one", place)
    feed.add_file(place.texts / "b.txt", feed.text(range(60, 90), SEED))
    run_in(tmp_path / "two", place)
    assert len(ledger.read_rows(place.sink("rows"))) == 90

    await_nothing_left(default)
    shutil.move(default, moved)
    feed.add_file(place.texts / "c.txt", feed.text(range(90, 120), SEED))
    run_in(tmp_path / "one", place, "--workdir", str(moved))
    assert len(ledger.read_rows(place.sink("rows"))) == 120
    assert judge(place, Promise.EXACTLY_ONCE) == []
    assert not default.exists()
    await_nothing_left(moved)
