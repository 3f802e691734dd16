"""Parquet files that are renamed, copied and replaced, also by ones that differ in rows alone."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from file_lives import Reader

from millrace.errors import SourceError
from millrace.protocol.types import RootRange
from millrace.sources import content
from millrace.sources.base import cut

DOCUMENTS = Path(__file__).with_name("documents")


def test_rows_of_a_renamed_parquet_file_are_found(inbox: Path) -> None:
    pq.write_table(pa.table({"n": range(100)}), inbox / "a.parquet")
    pq.write_table(pa.table({"n": range(100, 200)}), inbox / "b.parquet")
    reader = Reader(inbox.parent, format="parquet")
    first, second = reader.plan(150)
    (inbox / "a.parquet").rename(inbox / "c.parquet")
    (inbox / "b.parquet").rename(inbox / "a.parquet")
    assert [*reader.rows(first), *reader.rows(second)] == list(range(150))
    reader.restart()
    assert reader.take() == list(range(150, 200))


def test_offsets_and_locators_of_format_2_know_parquet_files_by_their_footer(inbox: Path) -> None:
    """What the release before wrote: three finished files in a pack, and one that is cut."""
    document = json.loads((DOCUMENTS / "files-format-2.json").read_text())
    for name, data in document["files"].items():
        (inbox / name).write_bytes(base64.b85decode(data))
    reader = Reader(inbox.parent, format="parquet")
    assert reader.rows(RootRange(**document["range"])) == list(range(1000, 1015))
    reader.offsets = document["offsets"]
    assert reader.take(5) == list(range(1015, 1020))
    assert reader.offsets["format"] == 3
    reader.restart()
    (inbox / "2.parquet").rename(inbox / "renamed.parquet")
    assert reader.take() == list(range(1020, 1030))
    for name, first in (("cut", 1000), ("new", 3)):
        other = list(range(first, first + 30))
        other[1], other[2] = other[2], other[1]
        write_rows(inbox / f"{name}.parquet", other, row_group_size=10)
    with pytest.raises(SourceError, match=r"cut\.parquet was changed in the 30 records"):
        reader.take()


def write_rows(path: Path, rows: list[int], **more: Any) -> None:
    """A file whose footer says nothing of the rows but their number and between which they lie."""
    pq.write_table(pa.table({"n": rows}), path, use_dictionary=False, compression="none", **more)


def twin(rows: list[int]) -> list[int]:
    """Other rows, of which a footer says the same."""
    return [rows[0], *reversed(rows[1:-1]), rows[-1]]


@pytest.fixture
def parquet_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks so small that files have many."""
    monkeypatch.setattr(content, "BLOCK_BYTES", 256)


ROWS = list(range(500))


@pytest.mark.parametrize("release", ["this", "before"])
def test_a_parquet_file_that_was_copied_elsewhere_and_removed_is_the_same(
    inbox: Path, release: str, moment: Callable[[Reader], None]
) -> None:
    document = json.loads((DOCUMENTS / "files-format-2.json").read_text())
    for name, data in document["files"].items():
        (inbox / name).write_bytes(base64.b85decode(data))
    reader = Reader(inbox.parent, format="parquet")
    if release == "before":
        reader.offsets = document["offsets"]
    reader.take()
    for path in list(inbox.iterdir()):
        shutil.copy(path, inbox / f"copy of {path.name}")
        path.unlink()
    moment(reader)
    assert reader.take() == []
    write_rows(inbox / "new.parquet", [7])
    assert reader.take() == [7]


@pytest.mark.usefixtures("parquet_blocks")
@pytest.mark.parametrize("taken", [120, 500])
@pytest.mark.parametrize("how", ["renamed over", "written over", "renamed and written over"])
def test_a_parquet_file_with_other_rows_is_not_the_one_that_was_read(
    inbox: Path, how: str, taken: int, moment: Callable[[Reader], None]
) -> None:
    write_rows(inbox / "a", ROWS, row_group_size=100)
    write_rows(inbox.parent / "twin", twin(ROWS[:100]) + ROWS[100:], row_group_size=100)
    reader = Reader(inbox.parent, format="parquet")
    (piece,) = reader.plan(taken)
    before = (inbox / "a").stat()
    if how == "renamed over":
        (inbox.parent / "twin").rename(inbox / "a")
    else:
        (inbox / "a").write_bytes((inbox.parent / "twin").read_bytes())
        os.utime(inbox / "a", ns=(1, 1))
    if how == "renamed and written over":
        (inbox / "a").rename(inbox / "b")
        with pytest.raises(SourceError, match=r"a is gone, but|a was replaced after its rows"):
            reader.rows(piece)
        (inbox / "b").rename(inbox / "a")
    moment(reader)
    assert (inbox / "a").stat().st_size == before.st_size
    with pytest.raises(SourceError, match=rf"a was changed in the {taken} records already read"):
        reader.take()
    with pytest.raises(SourceError, match="a was replaced after its rows were planned"):
        reader.rows(piece)


def test_a_parquet_file_with_other_rows_in_place_of_one_that_went_is_read(
    inbox: Path, moment: Callable[[Reader], None]
) -> None:
    write_rows(inbox / "a", ROWS)
    reader = Reader(inbox.parent, format="parquet")
    assert reader.take() == ROWS
    write_rows(inbox / "b", twin(ROWS))
    (inbox / "a").unlink()
    moment(reader)
    assert reader.take() == twin(ROWS)


@pytest.mark.usefixtures("parquet_blocks")
def test_a_copy_of_a_parquet_file_is_the_file_also_for_a_range(
    inbox: Path, moment: Callable[[Reader], None]
) -> None:
    write_rows(inbox / "a", ROWS, row_group_size=100)
    reader = Reader(inbox.parent, format="parquet")
    (piece,) = reader.plan(250)
    shutil.copy(inbox / "a", inbox / "_copy")
    (inbox / "_copy").rename(inbox / "a")
    write_rows(inbox / "_other", twin(ROWS), row_group_size=100)
    moment(reader)
    assert [row for part in cut(reader.source, piece, 3) for row in reader.rows(part)] == ROWS[:250]
    assert reader.take(200) == ROWS[250:450]
    (inbox / "a").rename(inbox / "_a")
    (inbox / "_other").rename(inbox / "a")
    assert reader.rows(piece) == ROWS[:250]
    assert reader.take() == [*ROWS[450:], *twin(ROWS)]


@pytest.mark.usefixtures("parquet_blocks")
@pytest.mark.parametrize("seed", range(10))
def test_the_life_of_parquet_files_that_differ_in_the_order_of_their_rows(
    inbox: Path, seed: int
) -> None:
    """Written, renamed, replaced by copies, hidden and removed: each is read once, in order."""
    chance = random.Random(seed)
    reader = Reader(inbox.parent, path="in/*.parquet", format="parquet")
    written: list[list[int]] = []
    found: dict[int, list[int]] = {}
    contents: dict[Path, list[int]] = {}

    def write_one(number: int) -> None:
        rows = twin(list(range(40)))
        while rows in written:
            rows = [0, *chance.sample(range(1, 39), 38), 39]
        path = inbox / f"{number}.parquet"
        write_rows(path, rows, row_group_size=chance.choice((10, 40)))
        written.append(rows)
        contents[path] = rows

    def look(limit: int) -> None:
        if not limit:
            reader.restart()  # who has just begun looks at the folder whatever is asked for
        for piece in reader.plan(limit):
            found.setdefault(piece.partition, []).extend(reader.rows(piece))

    write_one(0)
    for step in range(1, 40):
        path = chance.choice(sorted(contents))
        begun = any(len(r) > 6 and r == contents[path][: len(r)] for r in found.values())
        several = sum(other.suffix == ".parquet" for other in contents) > 1
        event = chance.choice(("write", "look", "look", "restart", "rename", "copy", "remove"))
        if event == "write":
            write_one(step)
        elif event == "look":
            look(chance.choice((7, 25, 1000)))
        elif event == "restart":
            reader.restart()
        elif event == "rename":
            hidden = begun and several and chance.random() < 0.5
            new = path.rename(inbox / (f"{step}.old" if hidden else f"{step}.parquet"))
            contents[new] = contents.pop(path)
        elif event == "copy":
            # Of what is renamed and copied between two looks nothing may be left to know it by.
            look(0)
            shutil.copy(path, inbox / "_copy")
            (inbox / "_copy").rename(path)
            look(0)
        elif several and contents[path] in found.values():
            path.unlink()
            del contents[path]
    for _ in range(5):
        look(1000)
    assert sorted(found.values()) == sorted(written)


@pytest.mark.usefixtures("parquet_blocks")
def test_a_parquet_file_is_looked_at_byte_by_byte_once_and_then_only_in_doubt(
    inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = list(range(20_000))
    write_rows(inbox / "a", rows, row_group_size=1000)
    reader = Reader(inbox.parent, format="parquet")
    seen: list[int] = []
    real = os.pread
    size = (inbox / "a").stat().st_size

    def counting(descriptor: int, count: int, at: int) -> bytes:
        data = real(descriptor, count, at)
        if at < size - 3_000:
            seen.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", counting)
    assert [len(ranges) for ranges in [reader.plan(50) for _ in range(30)]] == [1] * 30
    assert size / 20 < sum(seen) < size / 4  # two of the twenty row groups, and last blocks again
    while reader.plan(3000):
        pass
    del seen[:]
    (inbox / "a").rename(inbox / "b")
    assert reader.plan() == ()
    assert 0 < sum(seen) <= 256
    del seen[:]
    shutil.copy(inbox / "b", inbox / "_b")
    (inbox / "_b").rename(inbox / "b")
    assert reader.plan() == ()
    assert sum(seen) > size / 2
