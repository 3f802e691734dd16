"""Parquet files on file systems and in processes that fail, and such as their footers belie."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from file_lives import Reader

from millrace.engine.task.steps.ends import Piece, read_piece
from millrace.errors import SourceAwayError, SourceError
from millrace.protocol.types import Replay, RootRange
from millrace.sources import parquet
from millrace.sources.files import FileSource

ROWS = list(range(100))
FAULTS = [
    pytest.param(OSError(errno.EMFILE, os.strerror(errno.EMFILE)), id="descriptors"),
    pytest.param(OSError(errno.EIO, os.strerror(errno.EIO)), id="disk"),
    pytest.param(pa.ArrowMemoryError("malloc of size 531431424 failed"), id="memory"),
]


def rows_file(path: Path, rows: list[int] = ROWS) -> None:
    table = pa.table({"n": pa.array(rows, pa.int64())})
    pq.write_table(table, path, row_group_size=25)


class Failing:
    """Opens files as ``pq.ParquetFile`` does; while there is a ``fault`` that is raised, when one
    is opened or only when it is read from."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fault: Exception | None = None
        self.reading = False
        real = pq.ParquetFile

        def opened(*given: Any, **more: Any) -> Any:
            if self.fault is not None and not self.reading:
                raise self.fault
            file = real(*given, **more)
            if self.fault is not None:
                file.iter_batches = self._read
            return file

        monkeypatch.setattr(parquet.pq, "ParquetFile", opened)

    def _read(self, *_: Any, **__: Any) -> Any:
        assert self.fault is not None
        raise self.fault


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    return Failing(monkeypatch)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("restarted", [False, True])
def test_a_file_that_cannot_be_looked_at_for_a_moment_is_no_other_file(
    inbox: Path, failing: Failing, fault: Exception, restarted: bool
) -> None:
    rows_file(inbox / "a.parquet")
    reader = Reader(inbox.parent, format="parquet")
    assert reader.take() == ROWS
    if restarted:
        reader.restart()
        reader.source.schema()
    (inbox / "a.parquet").rename(inbox / "done.parquet")
    failing.fault = fault
    with pytest.raises(MemoryError if isinstance(fault, MemoryError) else SourceAwayError):
        reader.take()
    failing.fault = None
    assert reader.take() == []
    (inbox / "done.parquet").rename(inbox / "b.parquet")
    rows_file(inbox / "new.parquet", [7])
    assert reader.take() == [7]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("reading", [False, True])
def test_rows_that_cannot_be_read_for_a_moment_are_read_later(
    inbox: Path, failing: Failing, fault: Exception, reading: bool
) -> None:
    """What fails is not told as a fault of the file: a user cannot mend that."""
    rows_file(inbox / "a.parquet")
    reader = Reader(inbox.parent, format="parquet")
    (piece,) = reader.plan()
    failing.fault, failing.reading = fault, reading
    wanted = MemoryError if isinstance(fault, MemoryError) else SourceAwayError
    for ask in (lambda: reader.rows(piece), lambda: reader.source.payload(replay(piece))):
        with pytest.raises(wanted) as told:
            ask()
        assert wanted is MemoryError or "a.parquet cannot be read" in str(told.value)
    failing.fault = None
    assert reader.rows(piece) == ROWS


def replay(piece: RootRange) -> Replay:
    return Replay(piece.source, piece.partition, piece.start, 1, 0.0, piece.locator)


@pytest.mark.parametrize("rows", [15, 30, -100])
def test_a_footer_that_counts_other_rows_than_it_has_is_refused(
    inbox: Path, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_file(inbox / "a.parquet", [1])
    rows_file(inbox / "b.parquet", list(range(20)))
    reader = Reader(inbox.parent, format="parquet")
    reader.source.schema()
    real = pq.ParquetFile

    class Belied:
        """Its metadata with another number of rows."""

        def __init__(self, metadata: Any) -> None:
            self._metadata = metadata

        num_rows = rows

        def __getattr__(self, name: str) -> Any:
            return getattr(self._metadata, name)

    def opened(path: Any, *given: Any, **more: Any) -> Any:
        file = real(path, *given, **more)
        if file.metadata.num_rows == 20:
            return FileWith(file, Belied(file.metadata))
        return file

    monkeypatch.setattr(parquet.pq, "ParquetFile", opened)
    with pytest.raises(SourceError, match=rf"b\.parquet says .* {rows} rows, and 20 in its row"):
        reader.take()


class FileWith:
    """A Parquet file with other metadata."""

    def __init__(self, file: Any, metadata: Any) -> None:
        self._file, self.metadata = file, metadata

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> FileWith:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def test_a_column_twice_is_told_with_the_file(inbox: Path) -> None:
    rows_file(inbox / "a.parquet", [1])
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["n", "n"])
    pq.write_table(twice, inbox / "b.parquet")
    reader = Reader(inbox.parent, format="parquet")
    with pytest.raises(SourceError, match=r"b\.parquet has the column 'n' twice"):
        reader.take()


@pytest.mark.parametrize("columns", [{"z": [1], "n": [1]}, {"m": [1]}])
def test_a_worker_reads_what_was_planned_whatever_file_is_the_first_by_now(
    inbox: Path, columns: dict[str, list[int]]
) -> None:
    pq.write_table(pa.table({"n": [1, 2], "m": [3, 4]}), inbox / "b.parquet")
    reader = Reader(inbox.parent, format="parquet")
    schema = reader.source.schema()
    (piece,) = reader.plan()
    pq.write_table(pa.table(columns), inbox / "a.parquet")
    worker = FileSource("lines", reader.options, reader.folder)
    (part,) = read_piece(worker, Piece(0, piece), schema, drop_gone=False)
    assert part.data.to_pydict() == {"n": [1, 2], "m": [3, 4]}


def test_columns_that_only_later_files_have_are_left_out(inbox: Path) -> None:
    rows_file(inbox / "a.parquet", [1])
    reader = Reader(inbox.parent, format="parquet")
    schema = reader.source.schema()
    pq.write_table(pa.table({"z": ["x"], "n": [2]}), inbox / "b.parquet")
    worker = FileSource("lines", reader.options, reader.folder)
    found = [
        part.data
        for piece in reader.plan()
        for part in read_piece(worker, Piece(0, piece), schema, drop_gone=False)
    ]
    assert [one.to_pydict() for one in found] == [{"n": [1]}, {"n": [2]}]


def test_a_driver_begins_in_a_folder_whose_files_are_gone_with_one_without_rows(
    inbox: Path,
) -> None:
    rows_file(inbox / "a.parquet")
    reader = Reader(inbox.parent, format="parquet")
    assert reader.take() == ROWS
    (inbox / "a.parquet").unlink()
    reader.restart()
    with pytest.raises(SourceError, match="put one there before the start, it need not have rows"):
        reader.take()
    rows_file(inbox / "columns.parquet", [])
    assert reader.take() == []
    rows_file(inbox / "b.parquet", [7])
    assert reader.take() == [7]


def test_a_small_range_of_large_rows_takes_little_memory(
    inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same text in every row takes next to nothing in the file."""
    text, count = "x" * 8_000, 20_000
    table = pa.table({"t": pa.array([text]).take(pa.array([0] * count, pa.int32()))})
    pq.write_table(table, inbox / "a.parquet", compression="zstd")
    del table
    asked = []
    real = pq.ParquetFile.iter_batches

    def recorded(self: Any, batch_size: int, **more: Any) -> Any:
        asked.append(batch_size)
        return real(self, batch_size, **more)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", recorded)
    reader = Reader(inbox.parent, format="parquet")
    (piece,) = reader.plan()
    assert sum(len(part.data) for part in reader.source.read(piece)) == count
    assert max(asked) * len(text) <= parquet.BATCH_BYTES * 1.01
    asked.clear()
    assert [len(part.data) for part in reader.source.read(reader.source.split(piece, 3)[0])] == [3]
    assert asked == [3]
