"""What is said to be on disk is: content before its name, and the name by its folder."""

from __future__ import annotations

import ast
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millrace
from millrace import durable
from millrace.clock import SystemClock
from millrace.local.files import write_json
from millrace.local.workdir import open_folder
from millrace.protocol.types import Phase, View
from millrace.sinks.markers import Markers
from millrace.snapshots.places import FolderPlace
from millrace.state.viewfile import ViewFile

SOURCES = Path(millrace.__file__).parent


class Disk:
    """What is on disk: noted by inode at each fsync, of files their size, of folders the names."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: dict[int, int] = {}
        self.folders: dict[int, set[str]] = {}
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._noted)

    def _noted(self, descriptor: int) -> None:
        self._fsync(descriptor)
        found = os.fstat(descriptor)
        place = Path(f"/proc/self/fd/{descriptor}").resolve()
        if place.is_dir():
            self.folders[found.st_ino] = set(os.listdir(place))
        else:
            self.files[found.st_ino] = found.st_size

    def holds(self, path: Path) -> bool:
        """Whether a crash now would leave this file as it is."""
        stat = path.stat()
        names = self.folders.get(path.parent.stat().st_ino, set())
        return self.files.get(stat.st_ino) == stat.st_size and path.name in names


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_folders_are_on_disk_at_every_level(disk: Disk, tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "c"
    makers: list[Callable[[Path], object]] = [
        durable.make_folders,
        lambda path: FolderPlace(path.parent).write(path.name, "file", b"x"),
        lambda path: open_folder(path, "named", Path("t.yaml"), SystemClock()),
    ]
    for make in makers:
        disk.folders.clear()
        make(deep)
        for one in (deep, *deep.parents[:3]):
            assert one.name in disk.folders.get(one.parent.stat().st_ino, set()), (make, one)
        assert stat.S_IMODE(deep.stat().st_mode) == 0o700
        shutil.rmtree(tmp_path / "a")


def test_a_sinks_folder_is_on_disk_at_every_level(disk: Disk, tmp_path: Path) -> None:
    markers = Markers("out", tmp_path / "a" / "b")
    assert markers.claim("uid")
    for one in (markers.windows, *markers.windows.parents[:4]):
        assert one.name in disk.folders.get(one.parent.stat().st_ino, set()), one


def test_a_folder_that_is_there_costs_nothing(disk: Disk, tmp_path: Path) -> None:
    durable.make_folders(tmp_path)
    assert disk.folders == {}


def _view(path: Path) -> None:
    ViewFile(path).cas(0, View("u", 1, 1, Phase.OPEN, 1, (), (), 1, ()))


def _manifest(path: Path) -> None:
    markers = Markers("out", path.parents[2])
    assert markers.claim("u")
    markers.create_manifest(int(path.stem), {"digest": "ab"}, 1)


WRITERS: dict[str, Callable[[Path], Any]] = {
    "a.json": lambda path: durable.replace(path, b"new"),
    "b.json": lambda path: durable.create(path, b"new"),
    "c.json": lambda path: write_json(path, {"a": 1}),
    "view.json": _view,
    "_millrace/windows/000000000007.json": _manifest,
}


@pytest.mark.parametrize("name", WRITERS)
def test_content_and_name_are_on_disk_when_it_is_said(
    tmp_path: Path, disk: Disk, name: str
) -> None:
    WRITERS[name](tmp_path / name)
    assert disk.holds(tmp_path / name)
    drafts = [path.name for path in (tmp_path / name).parent.iterdir()]
    assert not [one for one in drafts if one.startswith(".")], "no draft is left"


@pytest.mark.parametrize("name", ["a.json", "c.json", "view.json"])
def test_the_old_file_stays_until_the_new_one_is_on_disk(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = tmp_path / name
    old = b"old" if name != "view.json" else b""
    if old:
        path.write_bytes(old)

    def broken(descriptor: int) -> None:
        raise OSError(5, "the disk is broken")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="broken"):
        WRITERS[name](path)
    assert path.read_bytes() == old if old else not path.exists()
    assert not [one.name for one in tmp_path.iterdir() if one.suffix == ".new"]


def test_a_file_that_need_not_be_on_disk_is_not_waited_for(tmp_path: Path, disk: Disk) -> None:
    durable.replace(tmp_path / "a", b"new", durable=False)
    assert (tmp_path / "a").read_bytes() == b"new"
    assert not disk.files
    assert not disk.folders


def test_only_one_creates_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert durable.create(path, b"first")
    assert not durable.create(path, b"second")
    assert path.read_bytes() == b"first"
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


def test_what_is_written_is_its_users_alone_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        durable.replace(tmp_path / "a", b"")
        durable.create(tmp_path / "b", b"")
    finally:
        os.umask(before)
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in "ab"} == {0o600}


def test_nobody_else_brings_files_to_disk() -> None:
    """Staged rows, which are streamed into a file under their final content, are the exception."""
    found = set()
    for path in SOURCES.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        called = [ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)]
        if {"os.fsync", "os.fdatasync"} & set(called):
            found.add(str(path.relative_to(SOURCES)))
    assert found == {"durable.py", "sinks/files.py"}
