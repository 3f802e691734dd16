"""``millrace run`` where what it shows cannot be written."""

from __future__ import annotations

import errno
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from millrace.cli.output import SafeConsole
from millrace.cli.progress import Lines, Panel
from millrace.clock import SystemClock
from millrace.errors import ExitCode
from millrace.homes.documents import RunEvent
from millrace.local.logs import Display

TEXT = """
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {name: shown}
spec:
  keyGroups: 128
  guarantee: AtLeastOnce
  sources: [{name: lines, files: {path: texts}}]
  sinks: [{name: out, inputs: [{from: lines}], console: {}}]
"""

RUN = """
import sys
from millrace.cli import app, run
from millrace.clock import SystemClock
from millrace.errors import StateServerError
from millrace.homes.documents import RunEvent
from millrace.local import launch
from millrace.local.logs import Display
from millrace.local.supervisor import RunResult
from millrace.local.workdir import open_folder

def stand_in(loaded, options, listener, tell, clock):
    display = Display(listener)
    display.event(RunEvent(1.0, "RunStarted", "begins"))
    display.progress()
    if ENDS == "fails":
        raise StateServerError("it is away")
    folder = open_folder(options.workdir, loaded.topology.name, loaded.file, SystemClock())
    return folder, RunResult(0, "drained")

ENDS = sys.argv.pop()
run._look_ahead = lambda loaded: None
launch.run_topology = stand_in
app.main()
"""
"""The command, with a run that is over at once."""


@pytest.mark.parametrize(
    ("options", "ends", "code"),
    [
        ([], "well", ExitCode.OK),
        (["--json"], "well", ExitCode.FAILED),
        (["--quiet"], "well", ExitCode.OK),
        ([], "fails", ExitCode.STATE_SERVER),
    ],
)
def test_a_full_disk_decides_nothing_but_what_is_read(
    tmp_path: Path, options: list[str], ends: str, code: ExitCode
) -> None:
    (tmp_path / "texts").mkdir()
    file = tmp_path / "topology.yaml"
    file.write_text(TEXT)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", RUN, "run", str(file), *options, ends],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == code, done.stderr
    assert "Exception ignored" not in done.stderr
    lost = "the report could not be written to standard output: [Errno 28]" in done.stderr
    assert lost == (ends == "well" and options != ["--quiet"])


class Full(io.StringIO):
    """A file on a disk that is full for a while."""

    def __init__(self, *, full: bool = True) -> None:
        super().__init__()
        self.full = full

    def flush(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")


def test_a_console_forgets_what_it_could_not_write() -> None:
    """Else it would be written again with each further line, more and more."""
    file = Full()
    console = SafeConsole(file=file, width=200)
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            console.print("lost")
    file.full = False
    console.print("shown")
    assert file.getvalue().count("lost") == 3
    assert console._buffer == []


@pytest.mark.parametrize("kind", [Lines, Panel])
def test_a_display_outlives_the_terminal_that_it_shows_on(
    tmp_path: Path, kind: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Full(full=False)
    names = ("shown",) if kind is Panel else ()
    console: Console = SafeConsole(file=file, width=200, force_terminal=kind is Panel)
    shown = kind(console, tmp_path, SystemClock(), *names)
    display = Display(shown)
    with shown:
        file.full = True
        display.event(RunEvent(1.0, "RunStarted", "begins"))
        display.progress()
        display.output("row")
        assert display.lost == 1
        file.full = False
        display.output("another row")
    assert display.lost == 1
    assert "another row" in file.getvalue()
    assert "Traceback" not in capsys.readouterr().err
