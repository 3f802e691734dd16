"""Files and folders that must not be read, for a while."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from file_lives import Reader, append, lines, write

from millrace.errors import SourceAwayError, SourceError
from millrace.sources.evidence import birth_of


def bar(barred: set[Path], *files: Path) -> None:
    """Take away the right to read, or give it back to the others."""
    for file in {*files, *barred}:
        file.chmod(0o000 if file in files else 0o600)
    barred.clear()
    barred.update(files)


def test_unreadable_files_are_skipped_where_somebody_comes_back_to_them(
    inbox: Path, barred: set[Path], caplog: pytest.LogCaptureFixture
) -> None:
    write(inbox / "a.log", ["a"])
    write(inbox / "b.log", ["b"])
    barred.add(inbox / "a.log")
    reader = Reader(inbox.parent)
    for rows in (["b"], [], []):
        assert reader.take() == rows
    told = [record.getMessage() for record in caplog.records]
    assert sum(f"{inbox / 'a.log'} cannot be read" in text for text in told) == len(told) == 1
    barred.clear()
    (inbox / "a.log").chmod(0o600)
    assert reader.take() == ["a"]


def test_a_folder_that_cannot_be_listed_is_skipped_where_somebody_comes_back_to_it(
    inbox: Path, barred: set[Path], caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("locked", "open"):
        (inbox / name).mkdir()
        write(inbox / name / "a.log", [name])
    barred.add(inbox / "locked")
    reader = Reader(inbox.parent, path="in/**/*.log")
    for rows in (["open"], [], []):
        assert reader.take() == rows
    told = [record.getMessage() for record in caplog.records]
    assert sum(f"{inbox / 'locked'} cannot be listed" in text for text in told) == len(told) == 1
    barred.clear()
    assert reader.take() == ["locked"]


@pytest.mark.parametrize("begun", [True, False])
def test_a_folder_that_cannot_be_listed_any_more_is_no_reason_to_take_its_files_for_gone(
    inbox: Path, begun: bool, barred: set[Path], moment: Callable[[Reader], None]
) -> None:
    (inbox / "locked").mkdir()
    write(inbox / "locked" / "a.log", lines("a", 3))
    reader = Reader(inbox.parent, path="in/**/*.log", order="name")
    assert reader.take(1 if begun else 3) == lines("a", 3)[: 1 if begun else 3]
    write(inbox / "z.log", ["z"])
    barred.update({inbox / "locked", inbox / "locked" / "a.log"})
    moment(reader)
    assert reader.take() == ([] if begun else ["z"])
    assert reader.take() == []
    barred.clear()
    assert reader.take() == ([*lines("a", 3)[1:], "z"] if begun else [])


def test_a_file_that_waits_in_a_folder_that_cannot_be_listed_any_more_is_not_lost(
    inbox: Path, barred: set[Path], caplog: pytest.LogCaptureFixture
) -> None:
    (inbox / "locked").mkdir()
    write(inbox / "a.log", lines("a", 3))
    write(inbox / "locked" / "b.log", ["b"])
    reader = Reader(inbox.parent, path="in/**/*.log", order="name")
    assert reader.take(1) == lines("a", 3)[:1]
    barred.update({inbox / "locked"})
    (inbox / "locked").rename(inbox.with_name("away"))
    (inbox / "locked").mkdir()
    for rows in (lines("a", 3)[1:], [], []):
        assert reader.take() == rows
    barred.clear()
    (inbox / "locked").rmdir()
    assert reader.take() == []
    told = [record.getMessage() for record in caplog.records]
    assert ["cannot be listed" in text for text in told] == [True, False]
    assert f"{inbox / 'locked' / 'b.log'} is gone before any of it was read" in told[1]


@pytest.mark.parametrize("what", ["locked", "open/a.log"])
def test_a_run_that_ends_ends_for_what_it_cannot_read(
    inbox: Path, barred: set[Path], what: str
) -> None:
    """It would say that all input is processed, and nobody would come back to the rest."""
    for name in ("locked", "open"):
        (inbox / name).mkdir()
        write(inbox / name / "a.log", [name])
    barred.add(inbox / what)
    reader = Reader(inbox.parent, path="in/**/*.log", watch=False)
    with pytest.raises(SourceError, match=rf"{what} cannot be .*make it readable or take it away"):
        reader.take()
    barred.clear()
    assert sorted(reader.take()) == ["locked", "open"]


@pytest.mark.parametrize("watch", [True, False])
def test_a_file_that_was_read_to_its_end_may_be_barred(
    inbox: Path, watch: bool, barred: set[Path], caplog: pytest.LogCaptureFixture
) -> None:
    """It is named once, and nobody takes it for another one."""
    write(inbox / "a.log", lines("a", 2))
    reader = Reader(inbox.parent, watch=watch)
    assert reader.take() == lines("a", 2)
    bar(barred, inbox / "a.log")
    write(inbox / "b.log", ["b"])
    reader.restart()
    for rows in (["b"], [], []):
        assert reader.take() == rows
    assert reader.drained is not watch
    (told,) = [record.getMessage() for record in caplog.records]
    assert f"{inbox / 'a.log'} cannot be read (Permission denied)" in told
    bar(barred)
    append(inbox / "a.log", ["more"])
    reader.restart()
    assert reader.take() == ["more"]


@pytest.mark.parametrize("path", ["in", "in/*.log"])
def test_a_file_that_was_rotated_and_barred_is_not_taken_for_another_one(
    inbox: Path,
    path: str,
    barred: set[Path],
    moment: Callable[[Reader], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    write(inbox / "app.log", lines("a", 2))
    reader = Reader(inbox.parent, path=path)
    assert reader.take() == lines("a", 2)
    append(inbox / "app.log", ["late"])
    (inbox / "app.log").rename(inbox / "app.log.1")
    bar(barred, inbox / "app.log.1")
    write(inbox / "app.log", lines("b", 2))
    moment(reader)
    assert reader.take() == lines("b", 2)
    assert reader.take() == []
    (told,) = [record.getMessage() for record in caplog.records]
    assert f"{inbox / 'app.log.1'} cannot be read" in told
    moment(reader)
    bar(barred)
    assert reader.take() == ["late"]


def test_a_new_file_is_not_taken_for_a_barred_one_whose_name_and_beginning_it_has(
    inbox: Path, barred: set[Path], moment: Callable[[Reader], None]
) -> None:
    write(inbox / "app.log", ["start"])
    reader = Reader(inbox.parent)
    assert reader.take() == ["start"]
    (inbox / "app.log").rename(inbox / "app.log.1")
    bar(barred, inbox / "app.log.1")
    write(inbox / "app.log", ["start", "new"])
    moment(reader)
    assert reader.take() == ["start", "new"]
    bar(barred)
    append(inbox / "app.log.1", ["late"])
    moment(reader)
    assert reader.take() == ["late"]


def test_a_barred_file_may_be_given_the_name_of_a_longer_one_that_was_read(
    inbox: Path, barred: set[Path], moment: Callable[[Reader], None]
) -> None:
    """It is known by its inode, and so no other content of that name."""
    write(inbox / "app.log.1", lines("longer", 9))
    write(inbox / "app.log", lines("a", 2))
    reader = Reader(inbox.parent)
    assert len(reader.take()) == 11
    (inbox / "app.log").rename(inbox / "app.log.1")
    bar(barred, inbox / "app.log.1")
    moment(reader)
    assert reader.take() == []
    bar(barred)
    append(inbox / "app.log.1", ["late"])
    moment(reader)
    assert reader.take() == ["late"]


@pytest.mark.parametrize("renamed", [True, False])
def test_a_file_that_was_begun_and_barred_is_waited_for(
    inbox: Path,
    renamed: bool,
    barred: set[Path],
    moment: Callable[[Reader], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What was begun is finished before another one begins."""
    write(inbox / "a.log", lines("a", 4))
    write(inbox / "b.log", lines("b", 2))
    file = inbox / "a.log"
    reader = Reader(inbox.parent, order="name")
    assert reader.take(1) == lines("a", 4)[:1]
    if renamed:
        file = file.rename(inbox / "c.log")
    bar(barred, file)
    for _ in range(2):
        moment(reader)
        assert reader.take() == []
        assert reader.take() == []
    assert {record.getMessage() for record in caplog.records} == {caplog.records[0].getMessage()}
    assert f"{file} cannot be read (Permission denied)" in caplog.records[0].getMessage()
    bar(barred)
    assert reader.take() == [*lines("a", 4)[1:], *lines("b", 2)]


def test_a_file_with_other_content_behind_a_bar_is_told_when_the_bar_is_gone(
    inbox: Path, barred: set[Path], moment: Callable[[Reader], None]
) -> None:
    write(inbox / "a.log", lines("a", 4))
    reader = Reader(inbox.parent)
    assert reader.take(1) == lines("a", 4)[:1]
    write(inbox / "a.log", lines("b", 4))
    bar(barred, inbox / "a.log")
    moment(reader)
    assert reader.take() == []
    bar(barred)
    with pytest.raises(SourceError, match=r"a\.log was changed in"):
        reader.take()


def test_a_run_that_ends_ends_for_the_rest_of_a_file_that_it_cannot_read(
    inbox: Path, barred: set[Path], moment: Callable[[Reader], None]
) -> None:
    write(inbox / "a.log", lines("a", 4))
    reader = Reader(inbox.parent, watch=False)
    assert reader.take(1) == lines("a", 4)[:1]
    bar(barred, inbox / "a.log")
    moment(reader)
    with pytest.raises(SourceAwayError, match=r"a\.log cannot be read .*; make it readable$"):
        reader.take()
    bar(barred)
    assert reader.take() == lines("a", 4)[1:]
    assert reader.drained


def test_a_range_is_read_past_files_that_are_barred(inbox: Path, barred: set[Path]) -> None:
    write(inbox / "a.log", lines("a", 4))
    reader = Reader(inbox.parent)
    (piece,) = reader.plan()
    (inbox / "a.log").rename(inbox / "b.log")
    write(inbox / "a.log", ["new"])
    bar(barred, inbox / "a.log")
    assert reader.rows(piece) == lines("a", 4)
    bar(barred, inbox / "b.log")
    with pytest.raises(SourceAwayError, match=r"b\.log cannot be read \(Permission denied\)"):
        reader.rows(piece)


@pytest.mark.parametrize("old", ["old", "an old one"])
def test_a_barred_file_that_was_never_read_may_be_moved_over_one_that_was(
    inbox: Path, old: str, barred: set[Path]
) -> None:
    """Shorter or longer, it is another file, and is read once it may be."""
    write(inbox / "app.log.1", [old])
    write(inbox / "app.log", ["secret"])
    bar(barred, inbox / "app.log")
    reader = Reader(inbox.parent)
    assert reader.take() == [old]
    (inbox / "app.log").rename(inbox / "app.log.1")
    barred.clear()
    barred.add(inbox / "app.log.1")
    assert reader.take() == []
    bar(barred)
    assert reader.take() == ["secret"]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_barred_file_in_the_inode_of_a_removed_one_is_a_new_one(
    inbox: Path, count: int, barred: set[Path], moment: Callable[[Reader], None]
) -> None:
    """When a file was made is told of one that must not be read, too."""
    write(inbox / "_other", ["start", "new"])
    write(inbox / "old.log", ["start"])
    reader = Reader(inbox.parent)
    assert reader.take() == ["start"]
    inode = (inbox / "old.log").stat().st_ino
    (inbox / "old.log").unlink()
    write(inbox / "new.log", lines("secret", count))
    with open(inbox / "new.log") as file:
        if (inbox / "new.log").stat().st_ino != inode or not birth_of(file.fileno()):
            pytest.skip("this file system gave the new file another inode, or knows no births")
    bar(barred, inbox / "new.log")
    moment(reader)
    assert reader.take() == []
    bar(barred)
    moment(reader)
    assert reader.take() == lines("secret", count)
    (inbox / "_other").rename(inbox / "old.log.1")
    assert reader.take() == ["start", "new"]


def test_a_file_that_may_be_there_behind_a_bar_is_looked_for_nowhere_else(
    inbox: Path, barred: set[Path], moment: Callable[[Reader], None]
) -> None:
    """A copy that must not be read took its place, or its folder cannot be listed."""
    for name in "abc":
        (inbox / name).mkdir()
    for name in "ab":
        write(inbox / name / "app.log", ["start", name])
    reader = Reader(inbox.parent, path="in/*/*.log")
    assert len(reader.take()) == 4
    write(inbox / "_copy", ["start", "a"])
    (inbox / "_copy").rename(inbox / "a" / "app.log")
    bar(barred, inbox / "a" / "app.log", inbox / "b")
    write(inbox / "c" / "a.log", ["start", "a", "new"])
    write(inbox / "c" / "b.log", ["start", "b"])
    moment(reader)
    assert sorted(reader.take()) == ["a", "b", "new", "start", "start"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every file")
def test_the_kernel_says_that_a_file_cannot_be_read(
    inbox: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(inbox / "a.log", ["a"])
    write(inbox / "b.log", ["b"])
    (inbox / "a.log").chmod(0)
    assert Reader(inbox.parent).take() == ["b"]
    assert sum("cannot be read" in record.getMessage() for record in caplog.records) == 1


def test_a_barred_file_that_is_moved_over_another_hides_no_new_one(
    inbox: Path, barred: set[Path], moment: Callable[[Reader], None]
) -> None:
    """Not even one that begins as the file did that was written over."""
    write(inbox / "app.log.2", ["old"])
    write(inbox / "app.log.1", ["newer"])
    reader = Reader(inbox.parent)
    assert sorted(reader.take()) == ["newer", "old"]
    write(inbox / "_new", ["old", "newest"])  # not in the inode that gets free
    (inbox / "app.log.1").rename(inbox / "app.log.2")
    bar(barred, inbox / "app.log.2")
    (inbox / "_new").rename(inbox / "app.log")
    moment(reader)
    assert reader.take() == ["old", "newest"]
    bar(barred)
    append(inbox / "app.log.2", ["late"])
    assert reader.take() == ["late"]


@pytest.mark.parametrize("pattern", ["in/*/part.txt", "in/**/part.txt"])
def test_a_folder_that_must_not_be_entered_holds_up_no_other_one(
    inbox: Path, pattern: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("closed", "open"):
        (inbox / name).mkdir()
        write(inbox / name / "part.txt", [name])
    real, closed = os.stat, [inbox / "closed"]

    def stat(path: Any, *others: Any, **more: Any) -> os.stat_result:
        if not isinstance(path, int) and Path(path).parent in closed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, *others, **more)

    monkeypatch.setattr(os, "stat", stat)
    reader = Reader(inbox.parent, path=pattern)
    assert reader.take() == ["open"]
    assert "closed/part.txt cannot be looked at (Permission denied)" in caplog.text
    closed.clear()
    assert reader.take() == ["closed"]


def test_a_place_that_cannot_be_looked_at_is_waited_for(
    inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a mount is that has gone stale: there is one error, which names the path."""
    write(inbox / "a.log", ["a"])
    real, stale = os.stat, [inbox / "a.log"]

    def stat(path: Any, *others: Any, **more: Any) -> os.stat_result:
        if not isinstance(path, int) and Path(path) in stale:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return real(path, *others, **more)

    monkeypatch.setattr(os, "stat", stat)
    reader = Reader(inbox.parent, path="in/a.log")
    with pytest.raises(SourceAwayError, match=r"a\.log cannot be read \(Stale file handle\)"):
        reader.take()
    stale.clear()
    assert reader.take() == ["a"]
