"""The work folder lies beside the topology file, whatever folder a command is called in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_calls import called

from millrace.clock import SystemClock
from millrace.errors import ExitCode
from millrace.local.workdir import find_folder, open_folder
from millrace_e2e.valkey import free_port

TEXT = """
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {name: counts}
spec:
  stateServers: {url: URL}
  sources: [{name: lines, files: {path: texts}}]
  sinks: [{name: out, inputs: [{from: lines}], files: {path: out}}]
"""

COMMANDS = {
    "run": ("run", "FILE"),
    "fresh": ("run", "FILE", "--fresh"),
    "status": ("status", "FILE"),
    "list": ("dead-letters", "list", "-t", "FILE"),
    "drop": ("dead-letters", "drop", "-t", "FILE", "--all"),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A topology whose state server does not answer, so that no test can start anything."""
    path = tmp_path / "conf" / "topology.yaml"
    (path.parent / "texts").mkdir(parents=True)
    path.write_text(TEXT.replace("URL", f"redis://127.0.0.1:{free_port()}"))
    return path


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    path = tmp_path / "elsewhere"
    path.mkdir()
    return path


def call(
    cwd: Path, *arguments: str | Path, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "millrace.cli.app", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        input=stdin,
        env={**os.environ, "NO_COLOR": "1", "MILLRACE_REACH_S": "0.5"},
    )


def command(name: str, file: Path) -> list[str]:
    return [str(file) if part == "FILE" else part for part in COMMANDS[name]]


def beside(file: Path) -> Path:
    return file.parent / ".millrace" / "counts"


def made(path: Path, file: Path, name: str = "counts") -> Path:
    """A work folder as a run of the topology file leaves it."""
    open_folder(path, name, file, SystemClock())
    return path


def test_runs_from_two_folders_are_runs_of_one_topology(
    file: Path, elsewhere: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link.yaml"
    link.symlink_to(file)
    uids = set()
    for cwd, named in (
        (file.parent, Path(file.name)),
        (elsewhere, file),
        (elsewhere, Path("..") / "conf" / file.name),
        (tmp_path, link),
    ):
        assert call(cwd, "run", named).returncode == ExitCode.STATE_SERVER
        uids.add(find_folder(beside(file)).uid)
    assert len(uids) == 1
    assert list(tmp_path.glob("**/.millrace/*")) == [beside(file)]


def test_every_command_finds_it_from_any_folder(file: Path, elsewhere: Path) -> None:
    made(beside(file), file)
    for cwd in (elsewhere, file.parent):
        done = called("status", str(file), cwd=cwd)
        assert (done.returncode, done.stderr) == (0, "")
        assert str(beside(file)) in done.stdout.replace("\n", "")
    assert called("status", cwd=file.parent).returncode == 0
    assert called("status", cwd=elsewhere).returncode == ExitCode.WORK_FOLDER


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("owner", ["the file itself", "another that stays", "one that is gone"])
def test_one_in_the_current_folder_is_not_passed_over(
    name: str, owner: str, file: Path, elsewhere: Path, tmp_path: Path
) -> None:
    other = tmp_path / "release-1" / "topology.yaml"
    other.parent.mkdir()
    other.write_text("")
    named = {
        "the file itself": file,
        "another that stays": other,
        "one that is gone": elsewhere / "topology.yaml",
    }
    former = made(elsewhere / ".millrace" / "counts", named[owner])
    uid = find_folder(former).uid
    done = called(*command(name, file), cwd=elsewhere)
    assert done.returncode == ExitCode.WORK_FOLDER
    for part in (str(former), str(beside(file)), "--workdir", "move it"):
        assert part in done.stderr
    assert not beside(file).exists()
    assert find_folder(former).uid == uid


def test_what_the_refusal_advises_helps(file: Path, elsewhere: Path) -> None:
    former = made(elsewhere / ".millrace" / "counts", file)
    uid = find_folder(former).uid
    done = call(elsewhere, "run", file, "--workdir", former)
    assert done.returncode == ExitCode.STATE_SERVER
    beside(file).parent.mkdir()
    shutil.move(former, beside(file))
    assert call(elsewhere, "run", file).returncode == ExitCode.STATE_SERVER
    assert find_folder(beside(file)).uid == uid


def test_two_are_told_apart_by_the_user(file: Path, elsewhere: Path) -> None:
    former = made(elsewhere / ".millrace" / "counts", file)
    made(beside(file), file)
    done = called("run", str(file), cwd=elsewhere)
    assert done.returncode == ExitCode.WORK_FOLDER
    for part in (str(former), str(beside(file)), "--workdir", "delete"):
        assert part in done.stderr
    assert call(file.parent, "run", file.name).returncode == ExitCode.STATE_SERVER


def test_that_of_another_topology_is_left_alone(file: Path, elsewhere: Path) -> None:
    """A topology of the same name that lies in the current folder has its own there."""
    own = elsewhere / "own.yaml"
    own.write_text(file.read_text())
    uid = find_folder(made(elsewhere / ".millrace" / "counts", own)).uid
    assert call(elsewhere, "run", file).returncode == ExitCode.STATE_SERVER
    assert find_folder(beside(file)).uid != uid
    assert find_folder(elsewhere / ".millrace" / "counts").uid == uid


def test_a_topology_from_a_pipe_is_at_home_in_the_current_folder(
    file: Path, elsewhere: Path
) -> None:
    (elsewhere / "texts").mkdir()
    for _ in range(2):
        done = call(elsewhere, "run", "/dev/stdin", stdin=file.read_text())
        assert done.returncode == ExitCode.STATE_SERVER
    folder = find_folder(elsewhere / ".millrace" / "counts")
    assert folder.identity.topology == "/dev/stdin"
    assert not beside(file).exists()
    assert call(elsewhere, "status", "/dev/stdin", stdin=file.read_text()).returncode == 0
    assert call(elsewhere, "validate", "/dev/stdin", stdin="a: 1").returncode == (
        ExitCode.INVALID_TOPOLOGY
    )
