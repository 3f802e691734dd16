"""The work folder: whose it is, whether it can be used, and a fresh start."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from millrace import checked
from millrace.clock import SystemClock
from millrace.errors import ExitCode, WorkFolderError
from millrace.local import workdir
from millrace.local.files import write_json
from millrace.local.logs import LogFile, RunLog
from millrace.local.processes import ProcessId
from millrace.local.takeover import take_over
from millrace.local.workdir import (
    Identity,
    WorkFolder,
    default_path,
    find_folder,
    open_folder,
    start_over,
)
from millrace.protocol.types import Phase, View
from millrace.state.viewfile import ViewFile

CLOCK = SystemClock()


def opened(path: Path, name: str = "counts") -> WorkFolder:
    return open_folder(path, name, Path("topology.yaml"), CLOCK)


def test_a_new_folder_is_for_its_user_alone_and_keeps_its_uid(tmp_path: Path) -> None:
    first = opened(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    assert opened(tmp_path / "a" / "b").uid == first.uid
    assert find_folder(first.path).identity.name == "counts"


def test_the_default_is_beside_the_topology_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    file = tmp_path / "topology.yaml"
    assert default_path("counts", file, tmp_path) == tmp_path / ".millrace" / "counts"


def test_a_folder_of_another_topology_is_refused(tmp_path: Path) -> None:
    opened(tmp_path)
    with pytest.raises(WorkFolderError, match=r"belongs to topology 'counts'.*--workdir"):
        opened(tmp_path, "other")
    assert find_folder(tmp_path).identity.name == "counts"


def test_a_folder_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(WorkFolderError, match=r"letter\.txt.*--workdir"):
        opened(tmp_path)
    assert (tmp_path / "letter.txt").read_text() == "dear"


def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").touch()
    tmp_path.chmod(0o755)
    with pytest.raises(WorkFolderError, match="is no work folder"):
        opened(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert [p.name for p in tmp_path.iterdir()] == ["photo.jpg"]


def test_files_of_two_folders_are_refused(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    view = View("another", 1, 1, Phase.OPEN, 1, (), (), 1, ())
    assert ViewFile(folder.view).cas(0, view) == 1
    with pytest.raises(WorkFolderError, match=r"uid another|has another"):
        opened(tmp_path)


@pytest.mark.parametrize("where", ["file/below", "/proc/millrace"])
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkFolderError, match=r"cannot be written.*--workdir"):
        opened(tmp_path / where)


def test_a_damaged_identity_is_refused(tmp_path: Path) -> None:
    opened(tmp_path)
    (tmp_path / "identity.json").write_text("{")
    with pytest.raises(WorkFolderError, match=r"identity\.json"):
        opened(tmp_path)


def test_looking_at_a_folder_where_nothing_ran_says_so(tmp_path: Path) -> None:
    with pytest.raises(WorkFolderError, match="nothing has run here"):
        find_folder(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_fresh_start_deletes_the_state_and_makes_a_new_uid(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    (tmp_path / "state-0").mkdir()
    (tmp_path / "state-0" / "appendonly.aof").write_text("x")
    folder.status.write_text("{}")
    (folder.logs / "driver.log").write_text("old")
    fresh = start_over(folder, CLOCK)
    assert fresh.uid != folder.uid
    assert not (tmp_path / "state-0").exists()
    assert not folder.status.exists()
    assert (folder.logs / "driver.log").exists()
    assert opened(tmp_path).uid == fresh.uid


def test_a_fresh_start_that_was_cut_short_is_finished_by_the_next_run(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    (tmp_path / "state-0").mkdir()
    cut_short = Identity("new", "counts", folder.identity.topology, 0.0, clearing=True)
    document = {field: getattr(cut_short, field) for field in Identity.__slots__}
    (tmp_path / "identity.json").write_text(json.dumps(document))
    again = opened(tmp_path)
    assert again.uid == "new"
    assert not again.identity.clearing
    assert not (tmp_path / "state-0").exists()


def test_who_does_not_hold_a_folder_leaves_it_as_it_is(tmp_path: Path) -> None:
    """A fresh start may be under way in it."""
    folder = opened(tmp_path)
    (tmp_path / "state-0").mkdir()
    clearing = replace(folder.identity, clearing=True)
    write_json(tmp_path / "identity.json", checked.with_checksum(asdict(clearing)))
    before = sorted(tmp_path.iterdir())
    looked = open_folder(tmp_path, "counts", Path("moved.yaml"), CLOCK, held=False)
    assert looked.identity == clearing
    assert sorted(tmp_path.iterdir()) == before
    assert opened(tmp_path).identity == folder.identity


@pytest.mark.parametrize("left", [".probe.17", ".identity.json.0f", ".identity.json.17.140.new"])
def test_what_a_first_start_left_that_was_killed_is_no_hindrance(tmp_path: Path, left: str) -> None:
    (tmp_path / left).touch()
    assert opened(tmp_path).identity.name == "counts"


def test_of_first_starts_at_the_same_moment_one_says_who_the_topology_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one looked before that, and writes after it."""
    looked = workdir._read_identity
    others: list[WorkFolder] = []

    def look(path: Path) -> Identity | None:
        found = looked(path)
        if not others:
            monkeypatch.setattr(workdir, "_read_identity", looked)
            others.append(opened(path))
            (path / "root").touch()
        return found

    monkeypatch.setattr(workdir, "_read_identity", look)
    mine = open_folder(tmp_path, "counts", Path("counts.yaml"), CLOCK, held=False)
    assert mine.identity == others[0].identity
    assert looked(tmp_path) == others[0].identity


def test_a_first_start_on_a_full_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(WorkFolderError, match="No space left"):
            opened(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert opened(tmp_path).identity.name == "counts"


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_a_folder_and_its_files_are_closed_to_others(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "work"
    path.mkdir()
    path.chmod(0o755)
    before = os.umask(umask)
    try:
        folder = open_folder(path, "first", tmp_path / "t.yaml", SystemClock())
        write_json(folder.status, {})
        RunLog(folder.journal, SystemClock()).add("RunStarted", "x")
        LogFile(folder.logs / "driver.log").close()
        ViewFile(folder.view).read()
        take_over(folder.path, lambda _: None).release()
    finally:
        os.umask(before)
    files = [file for file in path.rglob("*") if file.is_file()]
    assert len(files) >= 6
    assert [f for f in files if f.stat().st_mode & 0o077] == []
    assert all(f.stat().st_mode & 0o077 == 0 for f in [path, *path.rglob("*/")])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "work"
    path.mkdir(0o700)
    os.chown(path, 65534, 65534)
    with pytest.raises(WorkFolderError, match="user with number 65534") as caught:
        open_folder(path, "first", tmp_path / "t.yaml", SystemClock())
    assert caught.value.exit_code == ExitCode.WORK_FOLDER
    assert "--workdir" in str(caught.value)
    assert list(path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
@pytest.mark.parametrize("command", [["stop"], ["dead-letters", "list"], ["status"], ["logs"]])
def test_no_command_believes_what_another_user_left(tmp_path: Path, command: list[str]) -> None:
    """It may name a process to be ended, or lead to a file that is written."""
    path = open_folder(tmp_path / ".millrace" / "first", "first", tmp_path / "t", CLOCK).path
    mine = tmp_path / "mine"
    mine.write_text("kept")
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            found = ProcessId.of(process.pid)
            assert found is not None
            write_json(path / "run.lock", {"generation": 1, "pid": found.pid, "ticks": found.ticks})
            if command[0] == "dead-letters":
                (path / "run.lock").unlink()
                (path / "run.lock").symlink_to(mine)
            os.chown(path, 65534, 65534)
            done = subprocess.run(
                [sys.executable, "-m", "millrace.cli.app", *command],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == ExitCode.WORK_FOLDER
            assert "belongs to the user with number 65534" in done.stderr
            assert process.poll() is None
            assert mine.read_text() == "kept"
        finally:
            process.kill()
