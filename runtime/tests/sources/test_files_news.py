"""A files source that is told of changes, by a real kernel."""

from __future__ import annotations

import queue

import pytest

from millrace.sources.files import FileSource
from millrace.sources.listing import MOST_WATCHED, FolderNews, Place


@pytest.fixture
def told():
    return queue.SimpleQueue()


@pytest.fixture
def source(tmp_path, told):
    made = []

    def make(path, watch=True):
        options = {"path": path, "format": "text", "watch": watch}
        made.append(FileSource("lines", options, tmp_path))
        made[-1].on_news(lambda: told.put(None))

    yield make
    for one in made:
        one.close()


def test_what_is_appended_and_files_that_come_are_told(tmp_path, told, source):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("one\n")
    (tmp_path / "b.txt").write_text("two\n")
    source("in")
    with (tmp_path / "in" / "a.txt").open("a") as file:
        file.write("three\n")
    told.get(timeout=30)
    while not told.empty():
        told.get()
    (tmp_path / "b.txt").rename(tmp_path / "in" / "b.txt")
    told.get(timeout=30)


def test_a_pattern_is_told_of_all_folders_that_it_leads_to(tmp_path, told, source):
    for day in ("monday", "tuesday"):
        (tmp_path / day).mkdir()
        (tmp_path / day / "a.txt").write_text("one\n")
    source("*day/*.txt")
    (tmp_path / "tuesday" / "b.txt").write_text("two\n")
    told.get(timeout=30)


def test_one_that_does_not_watch_is_told_nothing(tmp_path, told, source):
    (tmp_path / "a.txt").write_text("one\n")
    source("a.txt", watch=False)
    (tmp_path / "a.txt").write_text("two\n")
    with pytest.raises(queue.Empty):
        told.get(timeout=0.2)


@pytest.mark.parametrize("path", ["in", "in/*.txt", "in/a.txt"])
def test_files_that_are_not_read_are_no_news(tmp_path, told, source, path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("one\n")
    source(path)
    other = "b.txt" if path == "in/a.txt" else ".a.txt.part"
    (tmp_path / "in" / other).write_text("two\n")
    with pytest.raises(queue.Empty):
        told.get(timeout=0.2)
    with (tmp_path / "in" / "a.txt").open("a") as file:
        file.write("three\n")
    told.get(timeout=30)


def test_very_many_folders_take_no_watches_from_others(tmp_path, told, source, monkeypatch):
    monkeypatch.setattr("millrace.sources.listing.MOST_WATCHED", 3)
    for number in range(4):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "a.txt").write_text("one\n")
    source("*/*.txt")
    (tmp_path / "0" / "b.txt").write_text("two\n")
    with pytest.raises(queue.Empty):
        told.get(timeout=0.2)
    assert MOST_WATCHED > 100


def test_a_folder_that_is_not_there_is_no_error(tmp_path, told, source):
    source("later/*.txt")
    assert told.empty()


def test_nothing_is_told_behind_the_end(tmp_path, told):
    news = FolderNews(Place(tmp_path), lambda: told.put(None))
    (tmp_path / "a.txt").write_text("one\n")
    told.get(timeout=30)
    news.close()
    while not told.empty():
        told.get()
    (tmp_path / "b.txt").write_text("two\n")
    with pytest.raises(queue.Empty):
        told.get(timeout=0.2)
