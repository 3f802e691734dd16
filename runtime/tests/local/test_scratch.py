"""Temporary files of a run: where they lie, and that nothing is left of them."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from pathlib import Path

import pytest

from millrace.local import scratch

SOCKET = ".01234567-89ab-cdef-0123-456789abcdef.sock"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """The machine's own temporary folder."""
    folder = tmp_path / "machine"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def deep(tmp_path):
    folder = tmp_path / ("x" * 80)
    folder.mkdir()
    return folder


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_short_folder_holds_its_temporary_files_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        made = scratch.make(type(tmp_path)(short))
        assert str(made) == f"{short}/tmp"
        assert mode(made) == 0o700
        scratch.remove_temporary(type(tmp_path)(short))
        assert os.listdir(short) == []


@pytest.mark.parametrize("length", [60, 61])
def test_no_folder_is_longer_than_spark_takes(length):
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        work = Path(short) / ("x" * (length - len(f"{short}//tmp")))
        work.mkdir()
        made = scratch.make(work)
        assert (made == work / "tmp") == (length == 60)
        assert len(os.fsencode(made)) <= 60
        scratch.remove_temporary(work)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_a_deep_folder_gets_one_that_sockets_fit_in(tmp_path, machine, monkeypatch, umask):
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    work = deep(tmp_path)
    before = os.umask(umask)
    try:
        made = scratch.make(work)
    finally:
        os.umask(before)
    assert len(os.fsencode(made / SOCKET)) <= 107
    assert mode(made) == 0o700
    scratch.remove_temporary(work)
    assert not made.exists()
    assert list(work.iterdir()) == []


def test_what_a_crash_left_is_deleted_by_the_next_start(tmp_path, machine):
    work = deep(tmp_path)
    first = scratch.make(work)
    (first / "left").write_text("x")
    for name in ("spark", "blackbox"):
        (work / name).mkdir()
        (work / name / "left").write_text("x")
    second = scratch.make(work)
    assert [p.name for p in machine.iterdir()] == [second.name]
    assert {p.name for p in work.iterdir()} == {"tmp.json"}
    scratch.clear(work)
    assert list(machine.iterdir()) == []


@pytest.mark.parametrize(
    "note",
    ["", "{", "[]", "{}", '{"path": 3}', '{"path": "\\u0000"}', '{"path": "keep"}', "relative"],
)
def test_a_damaged_note_deletes_nothing_else(tmp_path, machine, monkeypatch, note):
    monkeypatch.chdir(machine)
    kept = [machine / "keep", machine / "millrace-0123456789abcdex", machine / "target"]
    for folder in kept:
        folder.mkdir()
    link = machine / "millrace-0123456789abcdef"
    link.symlink_to(machine / "target")
    work = deep(tmp_path)
    relative = json.dumps({"path": "millrace-0123456789abcdef"})
    texts = [
        note if note != "relative" else relative,
        *(json.dumps({"path": str(p)}) for p in kept),
    ]
    for text in [*texts, json.dumps({"path": str(link)})]:
        (work / "tmp.json").write_text(text)
        scratch.clear(work)
        assert all(folder.is_dir() for folder in kept)
        assert not (work / "tmp.json").exists()
