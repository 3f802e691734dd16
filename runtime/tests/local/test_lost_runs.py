"""A run whose driver finds all copies of the state gone: real supervisor, state server and
snapshot, and a stand-in for the driver."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from typing import Any

import pytest
from lived_topology import LAST, Lived, judge, place, topology

from millrace.errors import ExitCode
from millrace.local.snapshots.restoring import Restored
from millrace.local.snapshots.unfinished import marked
from millrace.snapshots.reading import load
from millrace.state.viewfile import ViewFile

DRIVER = """
import json, os, sys
from pathlib import Path
from millrace.errors import ExitCode
from millrace.homes import codec
from millrace.homes.documents import Status
from millrace.state.viewfile import ViewFile

work, enough = Path(sys.argv[1]), int(sys.argv[2])
with (work / "lives").open("a") as file:
    told = json.loads((work / "driver.json").read_text())
    file.write(f"{told.get('fresh', False)}\\n")
if ViewFile(work / "view.json").read()[1].timeline < enough:
    if "STANDIN_SAYS_NOTHING" not in os.environ:
        told = codec.encode(Status(os.getpid(), "lost", "running"))
        (work / "status.json").write_text(json.dumps(told))
    print("2030-01-01 ERROR millrace.driver all copies are gone", file=sys.stderr, flush=True)
    sys.exit(ExitCode.STATE_LOST)
told = codec.encode(Status(os.getpid(), "drained", "running"))
(work / "status.json").write_text(json.dumps(told))
"""
"""Says that all is gone until the view has a timeline, and is drained then."""

RUN = """
import json, os, signal, sys
from dataclasses import asdict
from pathlib import Path
from millrace import crash
from millrace.clock import SystemClock
from millrace.errors import MillraceError
from millrace.local import launch
from millrace.local.children import ProcessSpec
from millrace.topology.load import load

class Printer:
    def event(self, event): print(json.dumps(asdict(event)), flush=True)
    def progress(self): return
    def output(self, line): return

file, work, driver, enough = sys.argv[1:]

def stand_in(plan, addresses):
    command = (sys.executable, driver, work, enough)
    return ProcessSpec("driver", "driver", command, folder=Path(work), tree=True)

def reached(point, real=crash.reached):
    if point == os.environ.get("STANDIN_STOP_AT"):
        os.kill(os.getpid(), signal.SIGTERM)
    real(point)

crash.reached = reached
launch._Plan.driver = stand_in
options = launch.LaunchOptions(Path(work))
try:
    _, result = launch.run_topology(load(Path(file), ()), options, Printer(), print, SystemClock())
except MillraceError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
print(json.dumps(asdict(result)))
sys.exit(result.code)
"""


def run(lived: Lived, policy: str, enough: int = 2, **environment: str) -> tuple[int, list[Any]]:
    """Exit code, and the events and the result."""
    loaded = topology(lived.base, onStateLoss=policy)
    driver = lived.base / "driver.py"
    driver.write_text(DRIVER)
    command = [sys.executable, "-c", RUN, loaded.file, lived.folder.path, driver, str(enough)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env={**os.environ, **environment}
    )
    lines = [json.loads(one) for one in done.stdout.splitlines() if one.startswith("{")]
    return done.returncode, [*lines, done.stderr]


def kinds(lines: list[Any]) -> list[str]:
    return [one["kind"] for one in lines if isinstance(one, dict) and "kind" in one]


def lives(lived: Lived) -> int:
    return len((lived.folder.path / "lives").read_text().splitlines())


@pytest.fixture
def gone(lived: Lived) -> Lived:
    shutil.rmtree(lived.folder.path / "state-0")
    return lived


def judged(lived: Lived) -> None:
    _, view = ViewFile(lived.folder.view).read()
    assert view is not None
    restored = Restored(lived.folder, load(place(lived), "seven"), view.timeline, None)
    judge(restored, lived, 1, 1, timeline=view.timeline)
    assert lived.windows() == set(range(1, 8))


def test_the_run_restores_and_starts_the_next_driver(gone: Lived) -> None:
    code, lines = run(gone, "Restore")
    assert code == ExitCode.OK, lines
    told = kinds(lines)
    assert [kind for kind in told if kind.startswith("State")] == ["StateLost", "StateRestored"]
    assert lives(gone) == 2
    judged(gone)
    texts = {one["kind"]: one["text"] for one in lines if isinstance(one, dict) and "kind" in one}
    assert texts["StateLost"] == "all copies are gone"
    assert f"windows 8 to {LAST} are given up" in texts["StateRestored"]


def test_a_code_alone_is_not_believed(gone: Lived) -> None:
    """Some constructor of the user's may call ``sys.exit(15)``."""
    before = ViewFile(gone.folder.view).read()
    code, lines = run(gone, "Restore", STANDIN_SAYS_NOTHING="1")
    assert code == ExitCode.STATE_LOST
    assert lines[-2]["reason"] == "failed"
    assert "StateRestored" not in kinds(lines)
    assert ViewFile(gone.folder.view).read() == before
    assert gone.windows() == set(range(1, LAST + 1))


def test_by_default_the_run_ends_and_says_so(gone: Lived) -> None:
    before = ViewFile(gone.folder.view).read()
    code, lines = run(gone, "Stop")
    assert code == ExitCode.STATE_LOST
    assert lines[-2]["reason"] == "lost"
    assert lines[-2]["message"] == "driver: all copies are gone"
    assert lives(gone) == 1
    assert ViewFile(gone.folder.view).read() == before
    assert gone.windows() == set(range(1, LAST + 1))


def test_without_a_snapshot_the_run_ends_with_both_reasons(gone: Lived) -> None:
    shutil.rmtree(place(gone).root)
    code, lines = run(gone, "Restore")
    assert code == ExitCode.STATE_LOST
    assert "all copies are gone\nno snapshot takes its place: first: " in lines[-2]["message"]
    assert gone.windows() == set(range(1, LAST + 1))


def test_state_that_is_lost_again_and_again_ends_the_run(gone: Lived) -> None:
    code, lines = run(gone, "Restore", enough=99)
    assert code == ExitCode.STATE_LOST
    assert kinds(lines).count("StateRestored") == 3
    assert lives(gone) == 4


@pytest.mark.parametrize("point", ["restore.retracted", "lost.restored"])
def test_a_run_that_is_stopped_in_its_restore_says_so_and_the_next_one_goes_on(
    gone: Lived, point: str
) -> None:
    code, lines = run(gone, "Restore", STANDIN_STOP_AT=point)
    assert code == ExitCode.INTERRUPTED, lines
    assert lines[-2]["reason"] == "asked"
    assert kinds(lines)[-1] == "StopAsked"
    assert lives(gone) == 1
    assert (marked(gone.folder.path) is not None) == (point == "restore.retracted")
    code, lines = run(gone, "Restore")
    assert code == ExitCode.OK, lines
    assert lives(gone) == 2
    judged(gone)


def test_a_run_that_dies_in_its_restore_is_followed_by_one_that_goes_on(gone: Lived) -> None:
    code, _ = run(gone, "Restore", MILLRACE_CRASH_AT="restore.put")
    assert code == -signal.SIGKILL
    assert marked(gone.folder.path) is not None
    # The file says by now that a loss is to stop the run: then it is for somebody to decide.
    code, lines = run(gone, "Stop")
    assert code == ExitCode.SNAPSHOT
    assert "a restore of snapshot seven was begun and is not done" in lines[-1]
    assert "millrace run with onStateLoss: Restore goes on with it" in lines[-1]
    assert lives(gone) == 1
    code, lines = run(gone, "Restore", enough=3)
    assert code == ExitCode.OK, lines
    assert kinds(lines)[0] == "StateRestored", "before any driver"
    assert lives(gone) == 2
    judged(gone)
