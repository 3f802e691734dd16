"""Real folders in which files are renamed, rotated, taken away and brought back, at any moment."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from file_lives import Reader, Restless, append, lines, write

from millrace.errors import SourceAwayError, SourceError
from millrace.protocol.types import Replay, RootRange
from millrace.sources import evidence, files
from millrace.sources.content import BLOCK_BYTES
from millrace.sources.entries import GONE_FILES
from millrace.sources.evidence import birth_of
from millrace.sources.files import FileSource
from millrace.sources.listing import RESTLESS_S, Place

DOCUMENTS = Path(__file__).with_name("documents")


# -- renames and rotations


def test_a_renamed_file_is_not_read_again_with_or_without_a_new_record(
    inbox: Path, moment: Callable[[Reader], None]
) -> None:
    write(inbox / "a.log", lines("a", 900))
    reader = Reader(inbox.parent)
    assert len(reader.take()) == 900
    before = reader.offsets
    (inbox / "a.log").rename(inbox / "b.log")
    for _ in range(3):
        moment(reader)
        assert reader.source.plan(before, 1000).ranges == ()
    append(inbox / "b.log", ["more"])
    reader.offsets = before
    assert reader.take() == ["more"]


def test_rotation_by_rename_is_ordinary_life(inbox: Path, moment: Callable[[Reader], None]) -> None:
    """Also several steps between two looks, with the oldest written over, and a late line."""
    reader = Reader(inbox.parent)
    log = inbox / "app.log"
    fed: list[str] = []
    shown: list[str] = []
    for day in range(8):
        rows = lines(f"day {day}", 20)
        append(log, rows)
        fed += rows
        if day % 3 != 1:
            shown += reader.take()
            moment(reader)
        append(log, [f"late {day}"])
        fed.append(f"late {day}")
        if day == 3:
            shown += reader.take(3)
        if day >= 4:
            shown += reader.take()
        for number in range(3, 0, -1):
            older = inbox / f"app.log.{number}"
            if older.exists():
                older.rename(inbox / f"app.log.{number + 1}")
        log.rename(inbox / "app.log.1")
    assert shown + reader.take() == fed


@pytest.mark.parametrize("same", [False, True])
def test_names_change_places(inbox: Path, same: bool, moment: Callable[[Reader], None]) -> None:
    """Swapped and moved in a circle, also where all have the same content."""
    names = ["a", "b", "c", "d"]
    for name in names:
        write(inbox / name, lines("same" if same else name, 10))
    reader = Reader(inbox.parent)
    assert len(reader.take()) == 40
    for old in names:
        (inbox / old).rename(inbox / f"_{old}")
    for old, new in zip(names, "badc", strict=True):
        (inbox / f"_{old}").rename(inbox / new)
    moment(reader)
    append(inbox / "b", ["of a"])
    append(inbox / "c", ["of d"])
    assert reader.take() == ["of a", "of d"]


def test_one_of_many_finished_files_grows_under_a_new_name(inbox: Path) -> None:
    for number in range(300):
        write(inbox / f"{number:03d}.log", lines(f"{number}", 3))
    reader = Reader(inbox.parent, watch=False)
    assert len(reader.take()) == 900
    (inbox / "007.log").rename(inbox / "old.log")
    append(inbox / "old.log", ["more"])
    reader.restart()
    assert reader.take() == ["more"]
    assert reader.drained


@pytest.mark.parametrize("path", ["in/app.log", "in/*.log"])
def test_a_file_that_is_rotated_out_of_sight_is_read_to_its_end(
    inbox: Path, path: str, moment: Callable[[Reader], None]
) -> None:
    write(inbox / "app.log", lines("one", 5))
    reader = Reader(inbox.parent, path=path)
    assert reader.take(3) == lines("one", 5)[:3]
    (inbox / "app.log").rename(inbox / "app.log.1")
    moment(reader)
    assert reader.take() == lines("one", 5)[3:]
    append(inbox / "app.log.1", ["late"])
    write(inbox / "app.log", lines("two", 2))
    moment(reader)
    assert reader.take() == ["late", *lines("two", 2)]
    write(inbox / "app.log.7", ["nobody asked for it"])
    (inbox / "app.log.1").unlink()
    moment(reader)
    assert reader.take() == []


# -- files that go, and inodes that are given away


@pytest.mark.parametrize("looked", [False, True])
def test_a_new_file_with_the_inode_of_a_removed_one_is_read(
    inbox: Path, looked: bool, moment: Callable[[Reader], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(inbox / "a.log", lines("old", 2))
    reader = Reader(inbox.parent)
    reader.take()
    for rows in (lines("new", 2), lines("old", 2)):
        monkeypatch.setattr(evidence, "birth_of", birth_of)
        for path in inbox.iterdir():
            inode = path.stat().st_ino
            path.unlink()
        if looked:
            assert reader.take() == []
        moment(reader)
        write(inbox / f"b{len(rows[0])}.log", rows)
        (new,) = inbox.iterdir()
        with new.open() as file:
            known = birth_of(file.fileno())
        if new.stat().st_ino != inode or (not known and not looked):
            pytest.skip("this file system gave the new file another inode, or knows no births")
        assert reader.take() == rows
        new.rename(inbox / "a.log")
        assert reader.take() == []


def test_a_file_that_comes_back_under_its_name_is_known(
    inbox: Path, moment: Callable[[Reader], None]
) -> None:
    """Moved away and back, restored as a copy, and restored longer."""
    log = inbox / "a.log"
    write(log, lines("a", 50))
    reader = Reader(inbox.parent)
    reader.take()
    log.rename(inbox.parent / "away")
    for _ in range(2):
        assert reader.take() == []
        moment(reader)
    (inbox.parent / "away").rename(log)
    assert reader.take() == []
    shutil.copy(log, inbox.parent / "copy")
    log.unlink()
    assert reader.take() == []
    moment(reader)
    append(inbox.parent / "copy", ["more"])
    shutil.copy(inbox.parent / "copy", log)
    assert reader.take() == ["more"]


def test_many_files_that_are_gone_cost_little_and_are_known_when_they_come_back(
    inbox: Path,
) -> None:
    reader = Reader(inbox.parent)
    for number in range(1000):
        write(inbox / f"{number:04d}.log", lines(f"{number}", 1))
    assert len(reader.take()) == 1000
    size = len(json.dumps(reader.offsets))
    inbox.rename(inbox.parent / "unmounted")
    inbox.mkdir()
    reader.restart()
    assert reader.take() == []
    assert len(json.dumps(reader.offsets)) < size + 100
    inbox.rmdir()
    (inbox.parent / "unmounted").rename(inbox)
    append(inbox / "0500.log", ["more"])
    reader.restart()
    assert reader.take() == ["more"]


def few_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.sources.entries.GONE_FILES", 150)
    monkeypatch.setattr("millrace.sources.entries._FORGET_FILES", 20)


@pytest.mark.parametrize("new", [0, 100])
def test_a_folder_that_is_away_for_a_while_is_known_again_however_many_files_it_has(
    new: int, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty mount point, also one that is written to meanwhile, says nothing of its files."""
    few_are_remembered(monkeypatch)
    for number in range(400):
        write(inbox / f"{number}", lines(f"{number}", 1))
    reader = Reader(inbox.parent)
    assert len(reader.take()) == 400
    inbox.rename(inbox.with_name("away"))
    inbox.mkdir()
    for number in range(new):
        write(inbox / f"new {number}", lines(f"new {number}", 1))
        assert len(reader.take()) == 1
    assert reader.take() == []
    reader.restart()
    assert reader.take() == []
    shutil.rmtree(inbox)
    inbox.with_name("away").rename(inbox)
    write(inbox / "last", ["last"])
    assert reader.take() == ["last"]


def test_files_that_went_before_others_were_begun_are_forgotten(
    inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a folder through which files only pass does not let the record grow for ever."""
    few_are_remembered(monkeypatch)
    reader = Reader(inbox.parent)
    for number in range(400):
        write(inbox / f"{number}", lines(f"{number}", 1))
        assert len(reader.take()) == 1
        (inbox / f"{number}").unlink()
    reader.take()
    reader.restart()
    assert len(json.dumps(reader.offsets)) < 220 * 60
    for number in (399, 300):
        write(inbox / f"{number}", lines(f"{number}", 1))
    assert reader.take() == []
    write(inbox / "1", lines("1", 1))
    assert reader.take() == lines("1", 1)


def test_equal_files_side_by_side_are_both_read(
    inbox: Path, moment: Callable[[Reader], None]
) -> None:
    write(inbox / "a", lines("same", 3))
    reader = Reader(inbox.parent)
    assert reader.take() == lines("same", 3)
    shutil.copy(inbox / "a", inbox / "b")
    moment(reader)
    assert reader.take() == lines("same", 3)
    append(inbox / "a", ["of a"])
    append(inbox / "b", ["of b"])
    moment(reader)
    assert sorted(reader.take()) == ["of a", "of b"]


def replace(path: Path, rows: list[str]) -> None:
    """As editors and copying programs do: another file takes the name at once."""
    write(path.parent.parent / "new", rows)
    (path.parent.parent / "new").rename(path)


def test_a_copy_under_its_name_is_the_file_whatever_else_it_begins_with(
    inbox: Path, moment: Callable[[Reader], None]
) -> None:
    """Also where more was read of another file with that content, which went just now."""
    write(inbox / "a", ["ok", "ok"])
    write(inbox / "b", ["ok"])
    reader = Reader(inbox.parent)
    assert len(reader.take()) == 3
    (inbox / "a").rename(inbox.parent / "away")
    replace(inbox / "b", ["ok", "ok"])
    moment(reader)
    assert reader.take() == ["ok"]
    (inbox.parent / "away").rename(inbox / "a")
    assert reader.take() == []
    append(inbox / "a", ["of a"])
    moment(reader)
    assert reader.take() == ["of a"]


def test_a_copy_under_its_name_is_no_older_file_of_that_name(
    inbox: Path, moment: Callable[[Reader], None]
) -> None:
    log = inbox / "a.log"
    write(log, ["start", "ok", "stop"])
    reader = Reader(inbox.parent)
    assert len(reader.take()) == 3
    log.unlink()
    assert reader.take() == []
    write(inbox / "other", ["other"])
    write(log, ["start"])
    assert sorted(reader.take()) == ["other", "start"]
    replace(log, ["start", "ok", "stop"])
    moment(reader)
    assert reader.take() == ["ok", "stop"]
    replace(log, ["start", "ok", "stop", "more"])
    moment(reader)
    assert reader.take() == ["more"]


def test_a_file_with_several_names_is_read_once(
    inbox: Path, moment: Callable[[Reader], None]
) -> None:
    """Hard links, also those of a rotation that links and unlinks, and symbolic ones."""
    write(inbox / "app.log", lines("a", 3))
    (inbox / "current").symlink_to("app.log")
    reader = Reader(inbox.parent)
    assert reader.take() == lines("a", 3)
    os.link(inbox / "app.log", inbox / "app.log.1")
    moment(reader)
    assert reader.take() == []
    (inbox / "app.log").unlink()
    append(inbox / "app.log.1", ["late"])
    assert reader.take() == ["late"]


# -- copied and truncated


@pytest.mark.parametrize("grown", [0, 3, 500])
def test_a_file_that_is_copied_and_truncated_goes_on_in_its_copy(
    inbox: Path, grown: int, moment: Callable[[Reader], None]
) -> None:
    log = inbox / "app.log"
    write(log, lines("a", 100))
    reader = Reader(inbox.parent)
    assert len(reader.take(60)) == 60
    append(log, ["late"])
    shutil.copy(log, inbox / "app.log.1")
    os.truncate(log, 0)
    append(log, lines("b", grown))
    moment(reader)
    assert sorted(reader.take()) == sorted([*lines("a", 100)[60:], "late", *lines("b", grown)])
    append(inbox / "app.log", ["b"])
    assert reader.take() == ["b"]


@pytest.mark.parametrize("other", ["rests", "goes"])
@pytest.mark.parametrize("path", ["in/app.log", "in/*.log", "in/**/*.log"])
def test_a_copy_that_is_not_read_goes_on_for_the_file_that_is_truncated(
    inbox: Path, path: str, other: str, moment: Callable[[Reader], None]
) -> None:
    """Whatever becomes of other files; and both grow again later."""
    folder = inbox / "deep" if "**" in path else inbox
    folder.mkdir(exist_ok=True)
    log = folder / "app.log"
    write(log, lines("a", 2))
    write(inbox / "other.log", ["other"])
    reader = Reader(inbox.parent, path=path, order="name")
    assert set(reader.take()) - {"other"} == {*lines("a", 2)}
    append(log, ["late"])
    if other == "goes":
        (inbox / "other.log").unlink()
    shutil.copy(log, folder / "app.log.1")
    os.truncate(log, 0)
    moment(reader)
    assert reader.take() == ["late"]
    append(log, ["b"])
    moment(reader)
    assert reader.take() == ["b"]
    append(folder / "app.log.1", ["later"])
    append(log, ["c"])
    moment(reader)
    assert sorted(reader.take()) == ["c", "later"]
    shutil.copy(log, folder / "app.log.2")
    os.truncate(log, 0)
    append(log, lines("longer than before", 9))
    moment(reader)
    assert reader.take() == lines("longer than before", 9)


@pytest.mark.parametrize("read", [3, 2])
@pytest.mark.parametrize("rows", [[], ["other"] * 9])
def test_a_name_that_is_not_read_may_be_written_over_when_its_file_was_read_to_its_end(
    inbox: Path, rows: list[str], read: int, moment: Callable[[Reader], None]
) -> None:
    """Who keeps one copy writes the next one over it."""
    log, copy = inbox / "app.log", inbox / "app.log.bak"
    write(log, lines("a", 3))
    reader = Reader(inbox.parent, path="in/*.log")
    assert reader.take(read) == lines("a", 3)[:read]
    shutil.copy(log, copy)
    os.truncate(log, 0)
    reader.restart()
    assert reader.take(0) == []
    write(copy, rows)
    moment(reader)
    if read < 3:
        with pytest.raises(SourceError, match=r"app\.log\.bak (has shrunk|was changed)"):
            reader.take()
        return
    assert reader.take() == []
    append(log, lines("b", 2))
    assert reader.take() == lines("b", 2)
    shutil.copy(log, copy)
    os.truncate(log, 0)
    append(log, ["c"])
    moment(reader)
    assert reader.take() == ["c"]


@pytest.mark.parametrize("grown", [0, 500])
def test_a_truncated_file_whose_copy_is_elsewhere_or_was_read_is_refused(
    inbox: Path, grown: int, moment: Callable[[Reader], None]
) -> None:
    for copied in (False, True):
        log = inbox / f"{copied}.log"
        write(log, lines(f"{copied}", 100))
        reader = Reader(inbox.parent)
        reader.take()
        if copied:
            # This copy is seen beside the file, so it is a file of its own.
            shutil.copy(log, inbox / "copy.log")
            assert len(reader.take()) == 100
        os.truncate(log, 0)
        append(log, lines("b", grown))
        moment(reader)
        with pytest.raises(SourceError, match=rf"{copied}\.log (has shrunk|was changed)"):
            reader.take()
        log.unlink()


# -- between plan and read


def test_a_range_is_read_whatever_its_file_is_called_by_then(inbox: Path) -> None:
    write(inbox / "app.log", lines("a", 9000, width=60))
    reader = Reader(inbox.parent)
    reader.plan(100)
    (piece,) = reader.plan(8000)
    first, second = reader.source.split(piece, 4000)
    replay = Replay("lines", piece.partition, 150, 1, 0.0, reader.source.locate(piece, 50))
    (inbox / "app.log").rename(inbox / "app.log.1")
    write(inbox / "app.log", lines("b", 9000, width=60))
    worker = FileSource("lines", reader.options, inbox.parent)
    rows = [v for p in (first, second) for b in worker.read(p) for v in b.data[0].to_pylist()]
    assert rows == lines("a", 9000, width=60)[100:8100]
    assert worker.place(replay) == f"{inbox.name}/app.log.1, line 151"
    assert worker.payload(replay).decode() == lines("a", 9000, width=60)[150]
    (inbox / "app.log.1").rename(inbox.parent / "away")
    for read in (lambda: list(worker.read(first)), lambda: worker.payload(replay)):
        with pytest.raises(SourceError, match=r"file .*app\.log (is gone|was changed)"):
            read()


def test_a_folder_that_is_away_is_told_from_a_record_that_is_gone(inbox: Path) -> None:
    """So that no root is blamed for an unmounted folder."""
    write(inbox / "a.log", lines("a", 10))
    reader = Reader(inbox.parent)
    (piece,) = reader.plan(5)
    inbox.rename(inbox.parent / "unmounted")
    with pytest.raises(SourceAwayError, match="in does not exist"):
        reader.rows(piece)
    inbox.mkdir()
    with pytest.raises(SourceError, match="is gone") as gone:
        reader.rows(piece)
    assert not isinstance(gone.value, SourceAwayError)


def test_a_range_goes_on_in_the_copy_of_a_file_that_is_truncated_meanwhile(inbox: Path) -> None:
    log = inbox / "app.log"
    write(log, lines("a", 80_000, width=60))
    reader = Reader(inbox.parent)
    (piece,) = reader.plan(80_000)
    shown = []
    for batch in reader.source.read(piece):
        shown += batch.data[0].to_pylist()
        if log.stat().st_size:
            shutil.copy(log, inbox / "app.log.1")
            os.truncate(log, 0)
    assert shown == lines("a", 80_000, width=60)


# -- order


@pytest.mark.parametrize("order", ["modified", "name"])
@pytest.mark.parametrize("limit", [7, 25, 64])
def test_a_file_that_was_begun_is_finished_before_the_next(
    inbox: Path, order: str, limit: int, moment: Callable[[Reader], None]
) -> None:
    """A backlog of 30 files, cut by windows anywhere."""
    for number in range(30):
        write(inbox / f"{number:02d}.log", lines(f"{number:02d}", 20))
        os.utime(inbox / f"{number:02d}.log", ns=(1, (30 - number) * 10**9))
    reader = Reader(inbox.parent, order=order)
    shown: list[str] = []
    while taken := reader.take(limit):
        shown += taken
        moment(reader)
    names = [f"{n:02d}" for n in (range(30) if order == "name" else reversed(range(30)))]
    assert shown == [row for name in names for row in lines(name, 20)]


def test_what_was_written_before_a_rotation_comes_before_what_came_after(inbox: Path) -> None:
    """Even where both happened in the same tick of the file system's clock."""
    write(inbox / "app.log", ["1"])
    reader = Reader(inbox.parent)
    reader.take()
    append(inbox / "app.log", ["2"])
    (inbox / "app.log").rename(inbox / "app.log.1")
    write(inbox / "app.log", ["3"])
    for name in ("app.log", "app.log.1"):
        os.utime(inbox / name, ns=(5, 5))
    assert reader.take() == ["2", "3"]


# -- names and other things that are no files


def test_names_of_any_bytes_are_read(
    inbox: Path, moment: Callable[[Reader], None], capsys: pytest.CaptureFixture[str]
) -> None:
    strange = os.fsencode(inbox) + b"/caf\xe9 \xff\\.log"
    with open(strange, "w") as file:
        file.write("1\n2\n3\n")
    reader = Reader(inbox.parent)
    (piece,) = reader.plan(2)
    assert json.loads(json.dumps(piece.locator)) == piece.locator
    json.dumps([piece.locator, reader.offsets], ensure_ascii=False).encode()
    assert reader.rows(piece) == ["1", "2"]
    moment(reader)
    assert reader.take() == ["3"]
    for number in range(200):
        write(inbox / f"{number}", ["x"])
    reader.take()
    reader.take()
    os.rename(strange, strange + b"\xfe")
    moment(reader)
    assert reader.take() == []
    os.truncate(strange + b"\xfe", 1)
    moment(reader)
    with pytest.raises(SourceError, match=r"caf\\xe9 \\xff\\\.log\\xfe has shrunk") as stopped:
        reader.take()
    str(stopped.value).encode()


@pytest.mark.parametrize("watch", [True, False])
@pytest.mark.parametrize("path", ["in", "in/**/*"])
def test_what_is_no_file_is_skipped_with_one_warning(
    inbox: Path, path: str, watch: bool, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(inbox / "fifo")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(inbox / "socket"))
    (inbox / "circle").symlink_to("circle")
    (inbox / "nowhere").symlink_to("missing")
    (inbox / "device").symlink_to("/dev/null")
    for name in ("below", "below/deeper"):
        (inbox / name).mkdir()
        (inbox / name / "up").symlink_to("..")
        (inbox / name / "top").symlink_to(inbox)
    write(inbox / "a.log", ["a"])
    reader = Reader(inbox.parent, path=path, watch=watch)
    with caplog.at_level(logging.WARNING):
        assert reader.take() == ["a"]
        for _ in range(3):
            assert reader.take() == []
    told = [record.getMessage() for record in caplog.records]
    for name, why in (
        ("fifo", "is a FIFO"),
        ("socket", "is a socket"),
        ("circle", "is a link that leads to itself"),
        ("nowhere", "is a link to nothing"),
        ("device", "is a device"),
    ):
        assert sum(f"{inbox / name} {why}" in text for text in told) == 1
    assert len(told) == 5


def test_a_fifo_in_place_of_a_file_holds_nothing_up(inbox: Path) -> None:
    write(inbox / "a.log", lines("a", 10))
    reader = Reader(inbox.parent)
    (piece,) = reader.plan(5)
    (inbox / "a.log").rename(inbox / "b.log")
    os.mkfifo(inbox / "a.log")
    assert reader.rows(piece) == lines("a", 10)[:5]
    assert reader.take() == lines("a", 10)[5:]


def test_a_pattern_finds_what_links_lead_to_once_under_its_own_name(tmp_path: Path) -> None:
    for name in ("mon", "tue/early"):
        (tmp_path / name).mkdir(parents=True)
        write(tmp_path / name / "a.log", [name])
    (tmp_path / "all").symlink_to(tmp_path)
    (tmp_path / "mon" / "again").symlink_to("../tue")
    reader = Reader(tmp_path, path="**/*.log", order="name", watch=False)
    assert [(p.locator["f"], reader.rows(p)) for p in reader.plan()] == [
        ("mon/a.log", ["mon"]),
        ("tue/early/a.log", ["tue/early"]),
    ]


# -- listings, cost, older offsets


def test_a_rename_while_the_folder_is_listed_loses_and_doubles_nothing(
    inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing shows a file under neither of its names, or under both."""
    for name in ("a", "b", "c"):
        write(inbox / name, lines(name, 3))
    reader = Reader(inbox.parent)
    assert len(reader.take()) == 9
    real = os.scandir
    torn: list[list[str]] = []

    class Torn:
        def __init__(self, path: Any) -> None:
            with real(path) as entries:
                self.entries = list(entries)
            if torn:
                hidden = torn.pop(0)
                self.entries = [e for e in self.entries if e.name not in hidden]

        def __enter__(self) -> list[os.DirEntry[str]]:
            return self.entries

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(os, "scandir", Torn)
    torn = [["a"], ["a"]]
    assert reader.take() == []
    torn = [["a", "b"], ["c"], ["a"]]
    append(inbox / "c", ["c"])
    reader.restart()
    assert reader.take() == ["c"]


def test_a_file_that_is_renamed_again_and_again_while_it_is_read(inbox: Path) -> None:
    """Another thread renames as fast as it can; every row comes once and in order."""
    import threading

    write(inbox / "0", lines("a", 4000))
    reader = Reader(inbox.parent)
    done = threading.Event()

    def rename() -> None:
        number = 0
        while not done.is_set():
            (inbox / f"{number}").rename(inbox / f"{1 - number}")
            number = 1 - number

    thread = threading.Thread(target=rename)
    thread.start()
    shown: list[str] = []
    try:
        for _ in range(2000):
            shown += [row for piece in reader.plan(50) for row in reader.rows(piece)]
            if len(shown) >= 4000:
                break
    finally:
        done.set()
        thread.join()
    assert shown == lines("a", 4000)


def test_what_no_listing_shows_is_not_gone_while_names_do_not_rest(
    inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(inbox / "a", lines("a", 10))
    reader = Reader(inbox.parent)
    assert reader.take(5) == lines("a", 10)[:5]
    reader.restart()
    restless = Restless(inbox, 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(Place, "look", restless.look)
        patched.setattr(Place, "around", restless.look)
        assert reader.take(5) == []
        assert restless.looks > 8
        assert not reader.drained
    assert reader.take() == lines("a", 10)[5:]


def test_names_that_never_rest_do_not_hide_for_ever_that_a_file_is_gone(
    inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(inbox / "a", lines("a", 10))
    reader = Reader(inbox.parent)
    reader.take(5)
    restless = Restless(inbox, 1.0)
    reader.source = FileSource("lines", reader.options, reader.folder, clock=restless)
    monkeypatch.setattr(Place, "look", restless.look)
    monkeypatch.setattr(Place, "around", restless.look)
    with pytest.raises(SourceError, match="a is gone after 5 of its records"):
        assert [reader.take(5) for _ in range(20)] == []
    assert restless.passed_s >= RESTLESS_S


def test_files_at_rest_are_not_opened(inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(500):
        write(inbox / f"{number}", lines(f"{number}", 2))
    reader = Reader(inbox.parent)
    reader.take()
    reader.restart()
    opened: list[Path] = []
    real = files.open_regular

    def counting(path: Path) -> Any:
        opened.append(path)
        return real(path)

    monkeypatch.setattr(files, "open_regular", counting)
    monkeypatch.setattr(evidence, "open_regular", counting)
    assert reader.take() == []
    assert opened == []
    append(inbox / "7", ["more"])
    (inbox / "8").rename(inbox / "8.old")
    assert reader.take() == ["more"]
    assert {path.name for path in opened} == {"7", "8.old"}
    del opened[:]
    assert reader.take() == []
    assert opened == []


def test_offsets_and_locators_of_format_1_are_read(inbox: Path) -> None:
    """What the release before wrote: 140 finished files and a large one, and one that is cut."""
    document = json.loads((DOCUMENTS / "files-format-1.json").read_text())
    for number in range(140):
        write(inbox / f"day-{number:03d}.log", lines(f"day-{number:03d}", 1, 60))
    for name in ("big", "cut"):
        write(inbox / f"{name}.log", lines(name, 9000, 60))
    assert (inbox / "big.log").stat().st_size > 2 * BLOCK_BYTES
    (inbox / "day-007.log").rename(inbox / "renamed.log")
    reader = Reader(inbox.parent)
    assert reader.rows(RootRange(**document["range"])) == lines("cut", 9000, 60)[:5000]
    (inbox / "cut.log").rename(inbox / "cut.log.1")
    assert reader.rows(RootRange(**document["range"])) == lines("cut", 9000, 60)[:5000]
    reader.offsets = document["offsets"]
    append(inbox / "big.log", ["more"])
    assert sorted(reader.take()) == sorted([*lines("cut", 9000, 60)[5000:], "more"])
    assert reader.offsets["format"] == 3
    reader.restart()
    assert reader.take() == []


def test_the_documentation_says_how_many_files_are_remembered() -> None:
    text = (Path(__file__).parents[3] / "docs" / "guarantees.md").read_text()
    said = f"is remembered until {GONE_FILES:,} others were begun since"
    assert said in " ".join(text.split())
