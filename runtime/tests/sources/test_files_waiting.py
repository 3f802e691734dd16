"""Files that were seen and are renamed, spoiled or removed before any of them was read."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from file_lives import Reader, Restless, append, lines, write

from millrace.errors import SourceAwayError, SourceError
from millrace.sources import files
from millrace.sources.evidence import birth_of
from millrace.sources.files import FileSource
from millrace.sources.listing import RESTLESS_S, Place


def spoil(file: Path, how: str) -> None:
    """What may become of a file of the lines 1, 2 and 3."""
    if how == "removed":
        file.unlink()
    elif how == "cut off":
        os.truncate(file, 2)
    elif how == "written anew":
        write(file, ["1"])
    else:
        write(file.with_name("_new"), ["1", "2", "3", "4"])
        file.with_name("_new").rename(file)


SPOILT = {
    "removed": "is gone before any",
    "cut off": "has shrunk from 6 to 2 bytes before any",
    "written anew": "has shrunk from 6 to 2 bytes before any",
    "renamed over": "was replaced before any",
}


@pytest.mark.parametrize("how", SPOILT)
@pytest.mark.parametrize("path", ["in", "in/*.log"])
def test_a_run_that_ends_reads_what_it_found_or_says_what_is_missing(
    inbox: Path, path: str, how: str
) -> None:
    write(inbox / "a.log", lines("a", 3))
    write(inbox / "b.log", ["1", "2", "3"])
    reader = Reader(inbox.parent, path=path, order="name", watch=False)
    assert reader.take(1) == lines("a", 3)[:1]
    spoil(inbox / "b.log", how)
    with pytest.raises(SourceError, match=rf"b\.log {SPOILT[how]} of it was read; put it back"):
        reader.take()
    (inbox / "b.log").unlink(missing_ok=True)
    write(inbox / "b.log", ["1", "2", "3"])
    reader.restart()
    assert reader.take() == [*lines("a", 3)[1:], "1", "2", "3"]
    assert reader.drained


@pytest.mark.parametrize("how", SPOILT)
def test_a_file_that_is_lost_before_its_turn_is_named_once(
    inbox: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(inbox / "a.log", lines("a", 3))
    write(inbox / "b.log", ["1", "2", "3"])
    reader = Reader(inbox.parent, order="name")
    assert reader.take(1) == lines("a", 3)[:1]
    spoil(inbox / "b.log", how)
    left = (inbox / "b.log").read_text().split() if (inbox / "b.log").exists() else []
    for rows in (lines("a", 3)[1:] + left, [], []):
        assert reader.take() == rows
    (told,) = [record.getMessage() for record in caplog.records]
    assert f"{inbox / 'b.log'} {SPOILT[how]} of it was read" in told
    (inbox / "b.log").unlink(missing_ok=True)
    write(inbox / "c.log", ["c"])
    assert reader.take() == ["c"]


@pytest.mark.parametrize("watch", [True, False])
@pytest.mark.parametrize("name", ["b.log.1", "0.log"])
@pytest.mark.parametrize("grows", [True, False])
def test_a_file_that_is_renamed_before_its_turn_is_read(
    inbox: Path, name: str, watch: bool, grows: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the new name is not one that is read."""
    write(inbox / "a.log", lines("a", 3))
    write(inbox / "b.log", lines("b", 3))
    write(inbox / "b.log.0", ["nobody asked for it"])
    reader = Reader(inbox.parent, path="in/*.log", order="name", watch=watch)
    assert reader.take(1) == lines("a", 3)[:1]
    (inbox / "b.log").rename(inbox / name)
    assert reader.take(1) == lines("a", 3)[1:2]
    if grows:
        append(inbox / name, ["late"])
    with open(inbox / name) as file:
        if grows and not birth_of(file.fileno()):
            pytest.skip("this file system does not say when files were made")
    rows = [*lines("a", 3)[2:], *lines("b", 3), *["late"] * grows]
    assert reader.take(2) == rows[:2]
    if watch:
        reader.restart()
    assert reader.take() == rows[2:]
    assert reader.drained is not watch
    (inbox / name).unlink()
    assert reader.take() == []
    assert not caplog.records


@pytest.mark.parametrize("watch", [True, False])
def test_a_single_file_that_is_rotated_before_its_turn_is_read(inbox: Path, watch: bool) -> None:
    write(inbox / "app.log", lines("a", 3))
    reader = Reader(inbox.parent, path="in/app.log", watch=watch)
    assert reader.take(0) == []
    (inbox / "app.log").rename(inbox / "app.log.1")
    assert reader.take() == lines("a", 3)


@pytest.mark.parametrize("watch", [True, False])
@pytest.mark.parametrize("grown", [[], ["more"]])
def test_a_file_that_waits_may_be_moved_over_one_that_was_read(
    inbox: Path, watch: bool, grown: list[str]
) -> None:
    """The oldest of a chain is written over, whether or not the next one had its turn already."""
    write(inbox / "app.log.2", lines("old", 3))
    write(inbox / "app.log", lines("new", 3))
    os.utime(inbox / "app.log.2", ns=(0, 0))
    reader = Reader(inbox.parent, watch=watch)
    assert reader.take(3) == lines("old", 3)
    append(inbox / "app.log", grown)
    (inbox / "app.log").rename(inbox / "app.log.2")
    with open(inbox / "app.log.2") as file:
        if grown and not birth_of(file.fileno()):
            pytest.skip("this file system does not say when files were made")
    assert reader.take() == lines("new", 3) + grown
    reader.restart()
    assert reader.take() == []


def test_a_file_that_waits_hides_no_record_of_the_one_it_is_moved_over(inbox: Path) -> None:
    write(inbox / "app.log.2", lines("old", 3))
    write(inbox / "app.log", lines("new", 3))
    os.utime(inbox / "app.log.2", ns=(0, 0))
    reader = Reader(inbox.parent)
    assert reader.take(2) == lines("old", 3)[:2]
    (inbox / "app.log").rename(inbox / "app.log.2")
    with pytest.raises(SourceError, match=r"app\.log\.2 is gone after 2 of its records were read"):
        reader.take()


@pytest.mark.parametrize("watch", [True, False])
@pytest.mark.parametrize("more", [[], ["row"]])
def test_a_file_that_waits_and_is_moved_over_what_it_begins_with_is_another_one(
    inbox: Path, more: list[str], watch: bool
) -> None:
    write(inbox / "app.log.1", ["banner"])
    write(inbox / "app.log", ["banner", *more])
    os.utime(inbox / "app.log.1", ns=(0, 0))
    reader = Reader(inbox.parent, watch=watch)
    assert reader.take(1) == ["banner"]
    (inbox / "app.log").rename(inbox / "app.log.1")
    assert reader.take() == ["banner", *more]
    assert reader.take() == []
    assert reader.drained is not watch


@pytest.mark.parametrize("watch", [True, False])
@pytest.mark.parametrize("renamed", ["b.log", "c.log"])
def test_a_file_that_waits_is_not_an_equal_one_that_was_read_and_removed(
    inbox: Path, renamed: str, watch: bool
) -> None:
    """Wherever it is by now, and whatever else is renamed."""
    for name, row in (("a.log", "banner"), ("b.log", "b"), ("c.log", "banner")):
        write(inbox / name, [row])
    reader = Reader(inbox.parent, order="name", watch=watch)
    assert reader.take(1) == ["banner"]
    (inbox / "a.log").unlink()
    (inbox / renamed).rename(inbox / "d.log")
    assert sorted(reader.take()) == ["b", "banner"]
    assert reader.take() == []
    assert reader.drained is not watch


@pytest.mark.parametrize("header", [[], ["word"]])
def test_a_file_without_a_record_may_be_moved_over_the_oldest_of_a_chain(
    inbox: Path, header: list[str]
) -> None:
    """It hides no new file that begins as the oldest did, and what comes in it later is read."""
    for name, rows in (("app.log.2", ["banner"]), ("app.log.1", []), ("app.log", ["x"])):
        write(inbox / name, header + rows)
    options = {"format": "csv", "schema": "word string"} if header else {}
    reader = Reader(inbox.parent, **options)
    assert sorted(reader.take()) == ["banner", "x"]
    write(inbox / "_new", [*header, "banner", "day"])  # not in the inode that gets free
    for old, new in (("app.log.1", "app.log.2"), ("app.log", "app.log.1"), ("_new", "app.log")):
        (inbox / old).rename(inbox / new)
    assert reader.take() == ["banner", "day"]
    append(inbox / "app.log.2", ["late"])
    assert reader.take() == ["late"]
    (inbox / "app.log.2").rename(inbox / "app.log.1")
    assert reader.take() == []


def test_a_name_that_was_given_to_another_file_does_not_hide_that_one_is_lost(
    inbox: Path,
) -> None:
    """Not even where it has the inode, as file systems like to give it away."""
    write(inbox / "a.log", lines("a", 3))
    write(inbox / "b.log", ["1"])
    reader = Reader(inbox.parent, order="name", watch=False)
    assert reader.take(1) == lines("a", 3)[:1]
    inode = (inbox / "b.log").stat().st_ino
    (inbox / "b.log").unlink()
    write(inbox / "b.log", ["1", "2"])
    with open(inbox / "b.log") as file:
        if (inbox / "b.log").stat().st_ino == inode and not birth_of(file.fileno()):
            pytest.skip("this file system does not say when files were made")
    with pytest.raises(SourceError, match=r"b\.log was replaced before any of it was read"):
        reader.take()


@pytest.mark.parametrize("limit", [2, 100])
def test_a_plan_that_does_not_count_has_begun_no_file(inbox: Path, limit: int) -> None:
    """A driver asks again from the same offsets, and of that plan alone something comes."""
    write(inbox / "a.log", ["a"])
    write(inbox / "b.log", ["b"])
    reader = Reader(inbox.parent, order="name", watch=False)
    assert len(reader.source.plan(None, limit).ranges) == 2
    (inbox / "b.log").rename(inbox.with_name("away"))
    with pytest.raises(SourceError, match=r"b\.log is gone before any of it was read"):
        reader.source.plan(None, limit)
    inbox.with_name("away").rename(inbox / "b.log")
    assert reader.take() == ["a", "b"]
    (inbox / "b.log").unlink()
    assert reader.take() == []
    assert reader.drained


def test_a_file_of_a_plan_that_does_not_count_is_named_if_it_goes(
    inbox: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(inbox / "a.log", ["a"])
    write(inbox / "b.log", ["b"])
    reader = Reader(inbox.parent, order="name")
    assert len(reader.source.plan(None, 100).ranges) == 2
    (inbox / "b.log").unlink()
    assert reader.take() == ["a"]
    (told,) = [record.getMessage() for record in caplog.records]
    assert f"{inbox / 'b.log'} is gone before any of it was read" in told
    (inbox / "a.log").unlink()
    assert reader.take() == []
    assert len(caplog.records) == 1


def test_a_plan_that_ends_with_an_error_has_begun_no_file(
    inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        write(inbox / name, [name])
    reader = Reader(inbox.parent, order="name", watch=False)
    assert reader.take(1) == ["a"]
    real = files.open_regular

    def failing(path: Path) -> Any:
        if path.name == "c":
            raise OSError(errno.EIO, os.strerror(errno.EIO), os.fspath(path))
        return real(path)

    with monkeypatch.context() as patched:
        patched.setattr(files, "open_regular", failing)
        with pytest.raises(SourceAwayError, match="c cannot be read"):
            reader.take()
    assert reader.take() == ["b", "c"]


def test_a_file_without_a_record_may_go_before_its_turn(inbox: Path) -> None:
    write(inbox / "a.log", lines("a", 3))
    (inbox / "empty.log").touch()
    reader = Reader(inbox.parent, order="name", watch=False)
    assert reader.take(1) == lines("a", 3)[:1]
    (inbox / "empty.log").unlink()
    assert reader.take() == lines("a", 3)[1:]
    assert reader.drained


def test_names_that_never_rest_hold_nothing_up_where_one_that_waits_is_missing(
    inbox: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(inbox / "a.log", lines("a", 3))
    write(inbox / "b.log", ["1"])
    reader = Reader(inbox.parent, order="name")
    restless = Restless(inbox, 0.2)
    reader.source = FileSource("lines", reader.options, reader.folder, clock=restless)
    assert reader.take(1) == lines("a", 3)[:1]
    (inbox / "b.log").unlink()
    real = Place.list

    def listing(*args: Any) -> Any:
        restless.look()
        return real(*args)

    monkeypatch.setattr(Place, "list", listing)
    assert reader.take() == lines("a", 3)[1:]
    while restless.passed_s < 2 * RESTLESS_S:
        assert restless.passed_s > RESTLESS_S or not caplog.records
        append(inbox / "a.log", ["more"])
        assert reader.take() == ["more"]
    assert len(caplog.records) == 1
