"""Files that grow, shrink, are replaced, vanish or arrive; nothing is lost without an error."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from millrace.clock import Clock
from millrace.errors import NewerFormatError, SourceError
from millrace.protocol.types import Json, RootRange
from millrace.sources.content import BLOCK_BYTES
from millrace.sources.entries import OFFSETS_FORMAT
from millrace.sources.files import FileSource
from millrace.sources.listing import FileStat, Place

BIG = [f"line {i} {'x' * 60}" for i in range(12_000)]


class SteppingClock(Clock):
    """Every look at it takes ``step_s``."""

    at_s = step_s = 0.0

    def now_s(self) -> float:
        return self.monotonic_s()

    def monotonic_s(self) -> float:
        self.at_s += self.step_s
        return self.at_s


class Reader:
    """Plans and reads like a driver and its workers; ``restart`` forgets all but the offsets."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.options: dict[str, Any] = {"path": "in", **options}
        self.offsets: Json = None
        self.restart()

    def restart(self) -> None:
        self.clock = SteppingClock()
        self.source = FileSource("lines", self.options, self.folder, self.clock)
        self.offsets = json.loads(json.dumps(self.offsets))

    def take(self, limit: int = 1_000_000) -> list[str]:
        return [row for piece in self.plan(limit) for row in self.rows(piece)]

    def plan(self, limit: int = 1_000_000) -> tuple[RootRange, ...]:
        plan = self.source.plan(self.offsets, limit)
        self.offsets = plan.offsets
        self.drained = plan.drained
        self.lag = plan.lag_records
        return plan.ranges

    def rows(self, piece: RootRange) -> list[str]:
        return [v for part in self.source.read(piece) for v in part.data.column(0).to_pylist()]


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def write(path: Path, rows: list[str]) -> None:
    path.write_text("".join(f"{row}\n" for row in rows))


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_new_files_and_appended_lines_are_new_input(inbox: Path) -> None:
    reader = Reader(inbox.parent)
    assert reader.take() == []
    write(inbox / "a.txt", ["a1"])
    write(inbox / "_half.txt", ["no"])
    write(inbox / ".hidden", ["no"])
    (inbox / "folder").mkdir()
    write(inbox / "folder" / "c.txt", ["no"])
    assert reader.take() == ["a1"]
    append(inbox / "a.txt", "a2\nhal")
    write(inbox / "b.txt", ["b1"])
    assert reader.take() == ["a2", "b1"]
    append(inbox / "a.txt", "f\n")
    assert reader.take() == ["half"]
    assert reader.take() == []
    assert not reader.drained


def test_a_run_that_does_not_watch_is_drained_with_the_unended_last_line(inbox: Path) -> None:
    write(inbox / "a.txt", ["a1", "a2"])
    (inbox / "b.txt").write_text("b1\nb2")
    reader = Reader(inbox.parent, watch=False)
    assert reader.take(3) == ["a1", "a2", "b1"]
    assert not reader.drained
    assert reader.take() == ["b2"]
    assert reader.drained
    reader.restart()
    assert reader.take() == []
    assert reader.drained
    append(inbox / "b.txt", "\nb3\n")
    reader.restart()
    assert reader.take() == ["b3"]


def test_a_line_that_was_read_without_its_end_cannot_go_on(inbox: Path) -> None:
    (inbox / "a.txt").write_text("a1\nhal")
    reader = Reader(inbox.parent, watch=False)
    assert reader.take() == ["a1", "hal"]
    append(inbox / "a.txt", "f\n")
    reader.restart()
    with pytest.raises(SourceError, match="goes on in the middle of a line"):
        reader.take()


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("watch", [False, True])
def test_a_file_that_shrinks_is_an_error(inbox: Path, restart: bool, watch: bool) -> None:
    path = inbox / "a.txt"
    write(path, BIG)
    reader = Reader(inbox.parent, watch=watch)
    reader.plan(6000)
    os.truncate(path, 1000)
    if restart:
        reader.restart()
    with pytest.raises(
        SourceError, match=r"source 'lines': file .*a\.txt has shrunk from .*--fresh"
    ):
        reader.plan()


def test_a_read_file_that_shrinks_is_an_error(inbox: Path) -> None:
    write(inbox / "a.txt", ["a1", "a2"])
    reader = Reader(inbox.parent)
    reader.plan()
    write(inbox / "a.txt", ["a1"])
    with pytest.raises(SourceError, match="has shrunk from 6 to 3 bytes"):
        reader.plan()


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("changed_row", [0, 5000, 5999])
@pytest.mark.parametrize("longer", [False, True])
def test_a_file_that_is_replaced_is_an_error(
    inbox: Path, restart: bool, changed_row: int, longer: bool
) -> None:
    path = inbox / "a.txt"
    write(path, BIG)
    reader = Reader(inbox.parent)
    reader.plan(6000)
    rows = [*BIG, "one more"] if longer else list(BIG)
    rows[changed_row] = rows[changed_row].replace("x", "y")
    write(inbox / "_new", rows)
    (inbox / "_new").rename(path)
    if restart:
        reader.restart()
    with pytest.raises(SourceError, match="was changed in"):
        reader.plan(10)


def test_a_read_file_rewritten_in_place_is_an_error(inbox: Path) -> None:
    path = inbox / "a.txt"
    write(path, ["a1", "a2"])
    reader = Reader(inbox.parent)
    reader.plan()
    write(path, ["b1", "a2"])
    os.utime(path, ns=(1, 1))
    with pytest.raises(SourceError, match="was changed in the 2 records already read"):
        reader.plan()


def test_a_file_truncated_and_written_anew_beyond_its_old_size_is_an_error(inbox: Path) -> None:
    path = inbox / "a.txt"
    write(path, BIG[:100])
    reader = Reader(inbox.parent)
    reader.plan()
    write(path, BIG[5000:5200])
    with pytest.raises(SourceError, match="was changed in its first"):
        reader.plan()


def test_the_tail_is_checked_at_the_end_of_a_block_too(inbox: Path) -> None:
    path = inbox / "a.txt"
    rows = [f"{i:015d}" for i in range(2 * BLOCK_BYTES // 16)]
    write(path, rows)
    reader = Reader(inbox.parent)
    assert len(reader.take()) == len(rows)
    with path.open("r+b") as file:
        file.seek(-2, os.SEEK_END)
        file.write(b"X")
    append(path, "more\n")
    with pytest.raises(SourceError, match="was changed in its first"):
        reader.plan()


@pytest.mark.parametrize("restart", [False, True])
def test_a_copy_with_the_same_content_goes_on(inbox: Path, restart: bool) -> None:
    path = inbox / "a.txt"
    write(path, BIG)
    reader = Reader(inbox.parent)
    assert len(reader.take(5000)) == 5000
    write(inbox / "_copy", [*BIG, "appended"])
    (inbox / "_copy").rename(path)
    if restart:
        reader.restart()
    assert reader.take() == [*BIG[5000:], "appended"]


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("watch", [False, True])
def test_a_partly_read_file_that_vanishes_is_an_error(
    inbox: Path, restart: bool, watch: bool
) -> None:
    write(inbox / "a.txt", BIG)
    reader = Reader(inbox.parent, watch=watch)
    reader.plan(100)
    (inbox / "a.txt").unlink()
    if restart:
        reader.restart()
    with pytest.raises(SourceError, match=r"a\.txt is gone after 100 of its records were read"):
        reader.plan()


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("left", [None, "a\n", "a\nb\n"])
def test_lines_that_were_seen_do_not_go_before_their_turn(
    inbox: Path, left: str | None, restart: bool
) -> None:
    (inbox / "a.log").write_text("a\n")
    reader = Reader(inbox.parent)
    assert reader.take() == ["a"]
    (inbox / "first.log").write_text("1\n2\n3\n")
    os.utime(inbox / "first.log", (1, 1))
    (inbox / "a.log").write_text("a\nb\nc\n")
    assert reader.take(2) == ["1", "2"]
    assert reader.lag == 3
    if restart:
        reader.restart()
    if left is None:
        (inbox / "a.log").unlink()
    else:
        (inbox / "a.log").write_text(left)
    problem = "is gone after 1 of its" if left is None else "has shrunk from 6 to"
    with pytest.raises(SourceError, match=rf"a\.log {problem}"):
        [reader.take(2) for _ in range(3)]
    (inbox / "a.log").write_text("a\nb\nc\n")
    reader.restart()
    assert reader.take() in (["3", "b", "c"], ["b", "c"])


def test_a_read_file_may_go_and_its_name_come_back_as_a_new_file(inbox: Path) -> None:
    write(inbox / "a.txt", ["old 1", "old 2"])
    reader = Reader(inbox.parent)
    (old,) = reader.plan()
    (inbox / "a.txt").unlink()
    assert reader.take() == []
    reader.restart()
    write(inbox / "a.txt", ["new 1"])
    (new,) = reader.plan()
    assert reader.rows(new) == ["new 1"]
    assert (new.start, new.partition == old.partition) == (0, False)


def test_planned_bytes_that_change_before_they_are_read_are_noticed(inbox: Path) -> None:
    path = inbox / "a.txt"
    write(path, BIG)
    reader = Reader(inbox.parent)
    (piece,) = reader.plan()
    first, second = reader.source.split(piece, 6000)
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    assert reader.rows(first) == BIG[:6000]
    with pytest.raises(SourceError, match="was changed between the bytes"):
        reader.rows(second)
    os.truncate(path, 5 * BLOCK_BYTES // 2)
    with pytest.raises(SourceError, match=r"records up to byte .* were planned"):
        reader.rows(second)
    path.unlink()
    with pytest.raises(SourceError, match="is gone, but records of it are still to be read"):
        reader.rows(first)


def test_a_short_read_is_noticed_by_the_count(inbox: Path) -> None:
    write(inbox / "a.txt", ["a", "b"])
    reader = Reader(inbox.parent)
    (piece,) = reader.plan()
    wrong = RootRange(piece.source, piece.partition, 0, 2, {**piece.locator, "n": [3]})
    with pytest.raises(SourceError, match="has 2 records where 3 were planned"):
        reader.rows(wrong)


def test_the_same_offsets_always_give_the_same_plan(inbox: Path) -> None:
    write(inbox / "a.txt", BIG[:50])
    write(inbox / "b.txt", BIG[50:100])
    reader = Reader(inbox.parent)
    first = reader.source.plan(None, 70)
    second = reader.source.plan(first.offsets, 70)
    assert reader.source.plan(None, 70).ranges == first.ranges
    assert reader.source.plan(first.offsets, 70).ranges == second.ranges
    stored = json.loads(json.dumps(first.offsets))
    assert (
        FileSource("lines", reader.options, inbox.parent).plan(stored, 70).ranges == second.ranges
    )


@pytest.mark.parametrize("order", ["modified", "name"])
@pytest.mark.parametrize("restart", [False, True])
def test_a_file_that_always_has_more_does_not_keep_others_waiting(
    inbox: Path, order: str, restart: bool
) -> None:
    """It is finished up to the end that was known when its turn came; then others have theirs."""
    write(inbox / "a.txt", BIG[:150])
    write(inbox / "b.txt", ["b1"])
    os.utime(inbox / "a.txt", ns=(1, 1))
    reader = Reader(inbox.parent, order=order)
    assert reader.take(100) == BIG[:100]
    append(inbox / "a.txt", "".join(f"{row}\n" for row in BIG[150:400]))
    if restart:
        reader.restart()
    assert reader.take(100) == [*BIG[100:150], "b1", *BIG[150:199]]
    assert reader.take(1000) == BIG[199:400]


def test_offsets_stay_small_with_thousands_of_files(inbox: Path) -> None:
    for number in range(3000):
        (inbox / f"part-{number:05d}.txt").write_text(f"row {number}\n")
    reader = Reader(inbox.parent)
    assert len(reader.take(3000)) == 3000
    assert len(json.dumps(reader.offsets)) < 3000 * 40
    before = reader.offsets
    append(inbox / "part-00007.txt", "more\n")
    assert reader.take() == ["more"]
    # Only the pack of the file that grew is another one.
    assert len(set(before["read"]) & set(reader.offsets["read"])) >= len(before["read"]) - 1
    reader.restart()
    append(inbox / "part-00008.txt", "more\n")
    assert reader.take() == ["more"]
    write(inbox / "part-00009.txt", ["row X"])
    os.utime(inbox / "part-00009.txt", ns=(1, 1))
    with pytest.raises(SourceError, match="part-00009"):
        reader.take()


def test_a_large_folder_that_is_slow_to_list_is_not_listed_all_the_time(inbox: Path) -> None:
    for number in range(1000):
        (inbox / f"{number}.txt").write_text("row\n")
    reader = Reader(inbox.parent)
    reader.clock.step_s = 0.01
    assert len(reader.take(5000)) == 1000
    write(inbox / "new.txt", ["new"])
    assert reader.take() == []
    reader.clock.at_s += 0.1
    assert reader.take() == ["new"]


def test_lag_is_estimated_from_the_size_of_the_records(inbox: Path) -> None:
    write(inbox / "a.txt", BIG)
    reader = Reader(inbox.parent)
    reader.plan(6000)
    assert reader.lag == pytest.approx(6000, rel=0.01)
    reader.plan()
    assert reader.lag == 0


def test_a_pattern_names_files_of_several_folders(tmp_path: Path) -> None:
    for day in ("mon", "tue"):
        (tmp_path / day).mkdir()
        write(tmp_path / day / "a.log", [day])
        write(tmp_path / day / "_a.log", ["no"])
        write(tmp_path / day / "a.txt", ["no"])
    reader = Reader(tmp_path, path="*/*.log", watch=False)
    assert reader.take() == ["mon", "tue"]


def test_one_file_is_read_whatever_its_name(tmp_path: Path) -> None:
    write(tmp_path / "_only[1].txt", ["a"])
    assert Reader(tmp_path, path="_only[1].txt", watch=False).take() == ["a"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "missing"}, r"missing does not exist; correct files\.path \('missing'"),
        ({"path": "no-*.txt", "watch": False}, "matches no file in"),
        ({"format": "xml"}, "files.format 'xml' is not known; use text"),
        ({"format": "csv"}, "files.schema is missing; csv needs it"),
        ({"format": "csv", "schema": "a strin"}, "type 'strin' is not known"),
    ],
)
def test_wrong_options_are_explained(inbox: Path, options: dict[str, Any], message: str) -> None:
    write(inbox / "a.txt", ["a"])
    with pytest.raises(SourceError, match=message):
        Reader(inbox.parent, **options).plan()


def test_compressed_files_are_refused(inbox: Path) -> None:
    (inbox / "a.txt.gz").write_bytes(gzip.compress(b"a\n"))
    with pytest.raises(SourceError, match="is compressed \\(gzip\\)"):
        Reader(inbox.parent).plan()


def test_an_endless_line_is_an_error(inbox: Path) -> None:
    with (inbox / "a.bin").open("wb") as file:
        file.truncate(65 << 20)
    with pytest.raises(SourceError, match="line of more than 64 MiB at byte 0; check"):
        Reader(inbox.parent).plan()


def test_offsets_of_a_newer_release_are_refused(inbox: Path) -> None:
    write(inbox / "a.txt", ["a"])
    reader = Reader(inbox.parent)
    reader.plan()
    reader.offsets = {**reader.offsets, "format": OFFSETS_FORMAT + 1}
    reader.restart()
    with pytest.raises(NewerFormatError, match=f"format {OFFSETS_FORMAT + 1}"):
        reader.plan()


def test_a_plan_for_nothing_changes_nothing(inbox: Path) -> None:
    write(inbox / "a.txt", ["a"])
    reader = Reader(inbox.parent)
    reader.plan()
    before = reader.offsets
    assert reader.plan(0) == ()
    assert reader.offsets == before


@pytest.mark.parametrize("restart", [False, True])
def test_a_newline_that_comes_by_itself_ends_the_line_that_was_read(
    inbox: Path, restart: bool
) -> None:
    file = inbox / "a"
    file.write_text("a\nb")
    reader = Reader(inbox.parent, watch=False)
    assert reader.take() == ["a", "b"]
    for more, rows in (("\n", []), ("foo\n", ["foo"]), ("bar", ["bar"]), ("\nlast\n", ["last"])):
        with file.open("a") as out:
            out.write(more)
        if restart:
            reader.restart()
        else:
            reader.source = FileSource("lines", reader.options, reader.folder, reader.clock)
        assert reader.take() == rows


@pytest.mark.parametrize("files", [1, 400])
def test_a_file_goes_on_under_a_new_name(inbox: Path, files: int) -> None:
    """Also one whose entry is in a pack by now."""
    reader = Reader(inbox.parent)
    for number in range(files):
        write(inbox / f"{number:03d}.log", [f"row {number}"])
    assert len(reader.take()) == files
    (inbox / "000.log").rename(inbox / "000.log.1")
    reader.restart()
    assert reader.take() == []
    write(inbox / "000.log", ["new"])
    assert reader.take() == ["new"]
    with (inbox / "000.log.1").open("a") as out:
        out.write("late\n")
    assert reader.take() == ["late"]


def test_files_may_be_removed_while_they_are_listed(
    inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        write(inbox / f"{number}", ["row"])
    real = FileStat.of

    def removing(found: os.stat_result) -> FileStat:
        (inbox / "1").unlink(missing_ok=True)
        (inbox / "2").unlink(missing_ok=True)
        return real(found)

    monkeypatch.setattr(FileStat, "of", removing)
    assert len(Place.of("in", inbox.parent).list()) <= 2
    assert Place.of("in/*", inbox.parent).list().keys() == {"0"}


def test_the_lag_counts_what_comes_in_and_leaves_a_renamed_file_to_the_plan(inbox, tmp_path):
    write(inbox / "a.log", ["one", "two"])
    reader = Reader(tmp_path, watch=True)
    assert reader.take() == ["one", "two"]
    assert reader.source.lag(reader.offsets) == 0
    (inbox / "a.log").rename(inbox / "b.log")
    append(inbox / "b.log", "six\nten\n")
    write(inbox / "c.log", ["new"])
    assert reader.source.lag(reader.offsets) > 0
    assert sorted(reader.take()) == ["new", "six", "ten"]
    assert reader.source.lag(reader.offsets) == 0
