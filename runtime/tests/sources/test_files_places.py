"""The words in which a dead letter says where its record is, against a plain look at the file."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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
