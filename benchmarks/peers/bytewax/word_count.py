"""Word count in Bytewax, exactly once: the program of the side ``bytewax`` of ``peers.py``.

Runs in an environment of its own, which has neither Millrace nor Spark::

    python word_count.py --folder FOLDER --addresses HOST:PORT ... --process N --snapshot-ms MS

That is what ``python -m bytewax.run`` does, which takes only whole seconds between snapshots.
Before the first start ``python -m bytewax.recovery FOLDER/recovery PARTS``.

Files come into ``FOLDER/input``, named ``ROUND-NUMBER.txt`` in the order of their arrival; process
``N`` reads those whose number leaves ``N``, and makes ``FOLDER/N.started`` when it begins to. What
a file changed is appended to ``FOLDER/output`` as JSON lines, which a start from a snapshot cuts to
where the snapshot was taken, as Bytewax's own file sink does.

Words are counted by ``collections.Counter`` before they are exchanged, in pieces that stay in the
processor's cache, and the totals lie in a few dictionaries instead of one state for each word:
a call into Python for each word, or a pickle for each, would be many times slower.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators import StatefulBatchLogic
from bytewax.outputs import FixedPartitionedSink, StatefulSinkPartition
from bytewax.recovery import RecoveryConfig
from bytewax.run import cli_main

SHARDS = 16
PIECE_BYTES = 1 << 18
LOOK = timedelta(milliseconds=10)
_PLAIN = bytes(b for b in range(0x20, 0x100) if b not in b'"\\')


def main() -> None:
    """Run one process until it is killed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--addresses", nargs="+", required=True)
    parser.add_argument("--process", type=int, required=True)
    parser.add_argument("--snapshot-ms", type=int, required=True)
    options = parser.parse_args()
    cli_main(
        flow(options.folder, options.process, len(options.addresses)),
        process_id=options.process,
        addresses=options.addresses,
        epoch_interval=timedelta(milliseconds=options.snapshot_ms),
        recovery_config=RecoveryConfig(str(options.folder / "recovery"), timedelta(0)),
    )


def flow(folder: Path, process: int, parts: int) -> Dataflow:
    """The dataflow over a folder, for one of so many processes."""
    dataflow = Dataflow("wordcount")
    texts = op.input("files", dataflow, Files(folder / "input", process, parts))
    counts = op.flat_map("count", texts, counted)
    lines = op.stateful_batch("totals", counts, Totals)
    op.output("changes", lines, Appended(folder / "output", process))
    return dataflow


def counted(text: bytes) -> Iterable[tuple[str, dict[bytes, int]]]:
    """How often each word stands in a file, by the shard that keeps its total."""
    counts: Counter[bytes] = Counter()
    for piece in pieces(text):
        counts.update(piece.split())
    shards: list[dict[bytes, int]] = [{} for _ in range(SHARDS)]
    for word, count in counts.items():
        shards[zlib.crc32(word) % SHARDS][word] = count
    return [(str(number), shard) for number, shard in enumerate(shards) if shard]


def pieces(text: bytes) -> Iterator[bytes]:
    """Whole lines, so many that their words are still at hand when they are counted."""
    begin = 0
    while begin < len(text):
        end = text.find(b"\n", begin + PIECE_BYTES) + 1 or len(text)
        yield text[begin:end]
        begin = end


class Files(FixedPartitionedSource[bytes, "str | None"]):
    """The texts of files as they come; a snapshot names the last one that was read."""

    def __init__(self, folder: Path, process: int, parts: int) -> None:
        self._folder = folder
        self._process = process
        self._parts = parts

    def list_parts(self) -> list[str]:
        return [str(self._process)]

    def build_part(self, step_id: str, for_part: str, resume_state: str | None) -> Reader:
        (self._folder.parent / f"{for_part}.started").touch()
        return Reader(self._folder, int(for_part), self._parts, resume_state)


class Reader(StatefulSourcePartition[bytes, "str | None"]):
    """One process's files, one a batch."""

    def __init__(self, folder: Path, part: int, parts: int, last: str | None) -> None:
        self._folder = folder
        self._part = part
        self._parts = parts
        self._last = last
        self._there: list[str] = []

    def next_batch(self) -> list[bytes]:
        if not self._there:
            self._there = self._new()
        if not self._there:
            return []
        self._last = self._there.pop()
        return [(self._folder / self._last).read_bytes()]

    def next_awake(self) -> datetime | None:
        return None if self._there else datetime.now(UTC) + LOOK

    def snapshot(self) -> str | None:
        return self._last

    def _new(self) -> list[str]:
        """Names behind the last one, the next one last."""
        names = (entry.name for entry in os.scandir(self._folder))
        later = (name for name in names if self._last is None or name > self._last)
        mine = (name for name in later if int(name[6:11]) % self._parts == self._part)
        return sorted(mine, reverse=True)


class Totals(StatefulBatchLogic[dict[bytes, int], bytes, dict[bytes, int]]):
    """The totals of one shard; puts out those that a batch changed, each once."""

    def __init__(self, totals: dict[bytes, int] | None) -> None:
        self._totals = totals or {}

    def on_batch(self, values: list[dict[bytes, int]]) -> tuple[list[bytes], bool]:
        totals = self._totals
        changed: set[bytes] = set()
        for counts in values:
            for word, count in counts.items():
                totals[word] = totals.get(word, 0) + count
            changed.update(counts)
        out = io.BytesIO()
        for word in changed:
            out.write(b'{"word":%b,"n":%d}\n' % (quoted(word), totals[word]))
        return [out.getvalue()], self.RETAIN

    def snapshot(self) -> dict[bytes, int]:
        return self._totals.copy()


def quoted(word: bytes) -> bytes:
    """A string of JSON."""
    if word.translate(None, _PLAIN):
        return json.dumps(word.decode(), ensure_ascii=False).encode()
    return b'"%b"' % word


class Appended(FixedPartitionedSink[bytes, int]):
    """One file for each process."""

    def __init__(self, folder: Path, process: int) -> None:
        self._folder = folder
        self._process = process

    def list_parts(self) -> list[str]:
        return [str(self._process)]

    def part_fn(self, item_key: str) -> int:
        return int(item_key)

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Writer:
        return Writer(self._folder / f"{for_part}.jsonl", resume_state or 0)


class Writer(StatefulSinkPartition[bytes, int]):
    """Appends, with an fsync for each batch as Bytewax's own file sink."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        self._file.truncate(size_bytes)

    def write_batch(self, items: list[bytes]) -> None:
        self._file.write(b"".join(items))
        self._file.flush()
        os.fsync(self._file.fileno())

    def snapshot(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


if __name__ == "__main__":
    main()
