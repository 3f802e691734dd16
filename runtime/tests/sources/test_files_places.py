"""What ``files.path`` leads to, and the words in which a dead letter says where its record is."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from file_lives import Reader, append, lines, write

from millrace.errors import SourceAwayError
from millrace.protocol.types import Replay
from millrace.sources.files import FileSource


def letters(source: FileSource, limit: int) -> list[Replay]:
    """A letter for each record, in the order of reading."""
    found, offsets = [], None
    while True:
        plan = source.plan(offsets, limit)
        for piece in plan.ranges:
            for index in range(piece.count):
                where = source.locate(piece, index)
                found.append(
                    Replay(piece.source, piece.partition, piece.start + index, 0, 0.0, where)
                )
        if plan.offsets == offsets or not plan.ranges:
            return found
        offsets = plan.offsets


@pytest.mark.parametrize("limit", [3, 1_000])
@pytest.mark.parametrize("kind", ["text", "jsonLines", "csv"])
def test_the_line_that_is_named_holds_the_record(tmp_path: Path, kind: str, limit: int) -> None:
    """With blank lines, both line ends, a byte order mark, a header, and letters in any order."""
    (tmp_path / "in").mkdir()
    made = random.Random(7)
    for name in ("a", "b"):
        lines = ["word"] if kind == "csv" else []
        for n in range(60):
            lines += [""] * made.choice((0, 0, 1, 3))
            lines.append(f'{{"word": "{name}{n}"}}' if kind == "jsonLines" else f"{name}{n}")
        text = "".join(line + made.choice(("\n", "\r\n")) for line in lines)
        (tmp_path / "in" / name).write_bytes(b"\xef\xbb\xbf" + text.encode())
    options = {"path": "in", "format": kind, "watch": False}
    if kind != "text":
        options["schema"] = "word string"
    source = FileSource("lines", options, tmp_path)
    found = letters(source, limit)
    assert len(found) >= 120
    for order in (found, made.sample(found, len(found))):
        for letter in order:
            place, line = source.place(letter).split(", line ")
            lines = (tmp_path / place).read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
            assert lines[int(line) - 1].removesuffix(b"\r") == source.payload(letter)


def test_the_row_that_is_named_holds_the_record(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"n": list(range(40))}), tmp_path / "in" / "x.parquet")
    source = FileSource("rows", {"path": "in", "format": "parquet", "watch": False}, tmp_path)
    found = letters(source, 7)
    assert [source.place(letter) for letter in found] == [
        f"in/x.parquet, row {n + 1}" for n in range(40)
    ]


def test_a_renamed_file_is_named_as_it_is_called_now(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.log").write_text("one\ntwo\n")
    source = FileSource("lines", {"path": "in", "watch": False}, tmp_path)
    found = letters(source, 10)
    (tmp_path / "in" / "a.log").rename(tmp_path / "in" / "a.log.1")
    assert source.place(found[1]) == "in/a.log.1, line 2"
    (tmp_path / "in" / "a.log.1").unlink()
    assert source.place(found[1]) == "a.log, record 2"


def test_a_folder_that_comes_later_is_a_folder(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    with pytest.raises(SourceAwayError, match="in does not exist; correct"):
        reader.take()
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "a.log", ["a"])
    assert reader.take() == ["a"]
    assert reader.take() == []


@pytest.mark.parametrize("path", ["in", "in/deep"])
@pytest.mark.parametrize("read", [1, 3])
def test_a_folder_that_is_away_when_a_driver_and_a_worker_begin_is_waited_for(
    tmp_path: Path, path: str, read: int
) -> None:
    inbox = tmp_path / path
    inbox.mkdir(parents=True)
    write(inbox / "a.log", lines("a", 3))
    reader = Reader(tmp_path, path=path)
    (piece,) = reader.plan(read)
    away = (tmp_path / "in").rename(tmp_path / "away")
    reader.restart()
    worker = FileSource("lines", reader.options, reader.folder)
    for ask in (reader.take, lambda: list(worker.read(piece))):
        with pytest.raises(SourceAwayError, match="does not exist"):
            ask()
    away.rename(tmp_path / "in")
    append(inbox / "a.log", ["more"])
    assert [v for b in worker.read(piece) for v in b.data[0].to_pylist()] == lines("a", 3)[:read]
    assert reader.take() == [*lines("a", 3)[read:], "more"]


@pytest.mark.parametrize("read", [1, 3])
def test_one_file_that_is_renamed_when_a_driver_and_a_worker_begin_is_found(
    inbox: Path, read: int
) -> None:
    log = inbox / "app.log"
    write(log, lines("a", 3))
    reader = Reader(inbox.parent, path="in/app.log")
    (piece,) = reader.plan(read)
    for name in ("app.log.1", "app.log.2"):
        log = log.rename(inbox / name)
        reader.restart()
        assert reader.rows(piece) == lines("a", 3)[:read]
        append(log, [name])
        assert reader.take()[-1] == name
    write(inbox / "app.log", ["b"])
    assert reader.take() == ["b"]


@pytest.mark.parametrize("pattern", ["outs/**/*.jsonl", "outs/**", "outs/*/*/*.jsonl", "outs/*/*"])
def test_what_another_topology_has_only_staged_is_not_read(tmp_path: Path, pattern: str) -> None:
    staged = tmp_path / "outs" / "a" / "_millrace" / "staged"
    staged.mkdir(parents=True)
    write(staged / "attempt.jsonl", ["lost"])
    (tmp_path / "outs" / ".hidden").mkdir()
    write(tmp_path / "outs" / ".hidden" / "b.jsonl", ["hidden"])
    write(tmp_path / "outs" / "a" / "000000000001.jsonl", ["shown"])
    assert set(Reader(tmp_path, path=pattern).take()) <= {"shown"}
    if pattern != "outs/*/*/*.jsonl":
        assert Reader(tmp_path, path=pattern).take() == ["shown"]
    assert Reader(tmp_path, path="outs/a/_*/staged/*.jsonl").take() == ["lost"]
