"""Logs and events stay small, and nothing is lost between a child and its file."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from millrace.clock import SystemClock
from millrace.local.crew import cause_in
from millrace.local.logs import Lines, LogFile, LogPump, RunLog
from millrace.state.journalfiles import EventFollower, JournalFiles


def test_a_log_is_put_aside_when_it_is_full(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "x.log", max_bytes=100)
    for number in range(50):
        log.write(b"%09d\n" % number)
    log.close()
    kept = (tmp_path / "x.log.1").read_bytes() + (tmp_path / "x.log").read_bytes()
    assert (tmp_path / "x.log").stat().st_size <= 100
    assert (tmp_path / "x.log.1").stat().st_size <= 100
    assert kept.splitlines()[-1] == b"%09d" % 49
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.log", "x.log.1"]


def test_the_pump_brings_everything_that_was_written_before_settle() -> None:
    pump = LogPump()
    lines: list[str] = []
    chunks: list[bytes] = []
    first, second = pump.pipe(Lines(lines.append).write), pump.pipe(chunks.append)
    os.write(first, b"one\ntw")
    os.write(second, b"x" * 60_000)
    pump.settle()
    assert (lines, sum(map(len, chunks))) == (["one"], 60_000)
    os.write(first, b"o\n")
    pump.settle()
    assert lines == ["one", "two"]
    os.close(first)
    os.close(second)
    pump.close()


def test_what_has_no_end_of_line_comes_in_pieces() -> None:
    lines: list[str] = []
    cut = Lines(lines.append, longest_bytes=10)
    for _ in range(9):
        cut.write(b"\r42%")
    cut.write(b"done\nnext")
    assert lines == ["\r42%" * 3] * 3 + ["done"]
    cut.write(b"\n")
    assert lines[4:] == ["next"]


def test_a_row_of_a_sink_comes_in_one_piece() -> None:
    lines: list[str] = []
    shown = Lines(lines.append)
    for _ in range(64):
        shown.write(b"x" * (1 << 16))
    shown.write(b"\n")
    assert [len(line) for line in lines] == [1 << 22]


def test_the_cause_of_a_death_is_the_last_error_that_was_written() -> None:
    lines = [
        "2030-01-01 INFO millrace.driver all is well",
        "Traceback (most recent call last):",
        "millrace.errors.SourceError: lines.txt has shrunk",
        "bye",
    ]
    assert cause_in(lines) == "lines.txt has shrunk"
    assert cause_in(["2030-01-01 ERROR millrace.driver the sink is full"]) == "the sink is full"
    assert cause_in(["error: no such module"]) == "no such module"
    assert cause_in(["something else", ""]) == "something else"
    of_jvm = "30/01/01 12:00:00 ERROR DAGScheduler: Failed to update accumulator 0 for task 0"
    assert cause_in([*lines, of_jvm]) == "lines.txt has shrunk", "the driver's own is nearer"
    thrown = "30/01/01 12:00:00 ERROR Utils: Aborting java.lang.IllegalAccessError: x"
    assert cause_in([*lines, thrown]) == "lines.txt has shrunk"
    assert cause_in([of_jvm, "bye"]) == "Failed to update accumulator 0 for task 0"


def test_events_are_followed_from_now_on_whole_lines_only(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = RunLog(JournalFiles(tmp_path / "status.json", path), SystemClock())
    log.add("Before", "not seen")
    follower = EventFollower(path)
    assert list(follower.new()) == []
    log.add("After", "seen", warning=True)
    half = json.dumps({"time": 1, "kind": "Half", "text": "h", "window": 3, "warning": False})
    with path.open("a") as file:
        file.write(half[:10])
    assert [(e.kind, e.warning) for e in follower.new()] == [("After", True)]
    with path.open("a") as file:
        file.write(half[10:] + "\n")
    assert [(e.kind, e.window) for e in follower.new()] == [("Half", 3)]
    path.replace(tmp_path / "events.jsonl.1")
    log.add("Rotated", "in a new file")
    assert [e.kind for e in follower.new()] == ["Rotated"]


def test_events_that_cannot_be_read_now_are_read_later(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.symlink_to(path)
    follower = EventFollower(path)
    assert follower.new() == []
    path.unlink()
    RunLog(JournalFiles(tmp_path / "status.json", path), SystemClock()).add("Late", "x")
    assert [event.kind for event in follower.new()] == ["Late"]


def test_nobody_is_held_up_by_a_sink_that_fails() -> None:
    """A pipe holds 64 KiB: who writes more would wait for ever, were it not read."""
    pump = LogPump()
    lines: list[str] = []

    def gone(_: bytes) -> None:
        raise SystemExit(1)

    broken, whole = pump.pipe(gone), pump.pipe(Lines(lines.append).write)
    for _ in range(4):
        os.write(broken, b"x" * 60_000)
        pump.settle()
    os.write(whole, b"one\n")
    pump.settle()
    assert lines == ["one"]
    os.close(broken)
    os.close(whole)
    pump.close()


def test_a_log_whose_folder_is_gone_loses_the_log_only(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = LogFile(folder / "x.log", max_bytes=100)
    log.write(b"x" * 90)
    shutil.rmtree(folder)
    for _ in range(3):
        log.write(b"y" * 90)
    log.close()
