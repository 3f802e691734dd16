"""Any way of planning, cutting and reading a file gives its lines, each once and in order."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from millrace.protocol.types import Json, Replay, RootRange
from millrace.sources import content, lines
from millrace.sources.base import cut, range_of
from millrace.sources.files import FileSource
from millrace.sources.text import TextDecoder

NO_TEXT = (b"\xef\xbb\xbf", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00")
"""Files that begin so are compressed or have a byte order mark; other tests see to those."""

LINE = st.one_of(
    st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"")),
    st.just(b""),
    st.just(b"\r"),
    st.just("größer ☃".encode()),
    st.integers(0, 200).map(lambda n: b"x" * n),
)


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    """Blocks of 32 bytes, so that small files have many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(content, "BLOCK_BYTES", 32)
        patch.setattr(lines, "BLOCK_BYTES", 32)
        patch.setattr(lines, "GROUP_BYTES", 100)
        yield


def rows(source: FileSource, piece: RootRange) -> list[str | None]:
    return [v for batch in source.read(piece) for v in batch.data.column(0).to_pylist()]


def expected(raw: list[bytes]) -> list[str | None]:
    plain: list[str | None] = []
    for line in raw:
        try:
            plain.append(line.removesuffix(b"\r").decode())
        except UnicodeDecodeError:
            plain.append(None)
    return plain


def drain(folder: Path, limits: list[int], restart: bool) -> tuple[list[RootRange], FileSource]:
    """Plan until drained; with ``restart`` by a new source each time, from stored offsets."""
    source = FileSource("s", {"path": "f.txt", "watch": False}, folder)
    offsets: Json = None
    ranges: list[RootRange] = []
    for step in range(10_000):
        if restart:
            source = FileSource("s", source.options, folder)
            offsets = json.loads(json.dumps(offsets))
        plan = source.plan(offsets, limits[step % len(limits)])
        assert plan.records <= limits[step % len(limits)]
        ranges += plan.ranges
        offsets = plan.offsets
        if plan.drained:
            return ranges, source
    raise AssertionError("the source is never drained")


@given(st.lists(LINE | st.text(max_size=5).map(str.encode), min_size=1), st.booleans())
def test_lines_cut_at_a_stroke_are_those_cut_one_by_one(parts, terminated):
    data = b"\n".join(parts) + b"\n" * terminated
    assume(data)
    decoder = TextDecoder()
    plain, single = (
        decoder.decode_plain(data, 1),
        decoder.decode(lines.find_lines(data, True), None),
    )
    if plain is None:
        assert single.errors or b"\r" in data
    else:
        assert plain.equals(single.data)
        assert not single.errors


@settings(deadline=None, max_examples=150)
@given(
    raw=st.lists(LINE, max_size=60),
    ended=st.booleans(),
    limits=st.lists(st.integers(1, 25), min_size=1, max_size=4),
    restart=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_pieces_hold_exactly_the_lines_of_the_file(
    raw: list[bytes], ended: bool, limits: list[int], restart: bool, seed: int
) -> None:
    with TemporaryDirectory() as name:
        data = b"".join(line + b"\n" for line in raw)
        if not ended and raw and raw[-1]:
            data = data[:-1]
        assume(not data.startswith(NO_TEXT))
        Path(name, "f.txt").write_bytes(data)
        ranges, source = drain(Path(name), limits, restart)
        assert [v for piece in ranges for v in rows(source, piece)] == expected(raw)
        assert [p.start for p in ranges] == [
            sum(q.count for q in ranges[:i]) for i in range(len(ranges))
        ]
        chance = random.Random(seed)
        for piece in ranges:
            whole = rows(source, piece)
            parts = cut(source, piece, chance.randint(1, 7))
            assert max(p.count for p in parts) - min(p.count for p in parts) <= 1
            assert [v for part in parts for v in rows(source, part)] == whole
            index = chance.randrange(piece.count)
            inner = chance.choice([p for p in parts if p.count])
            assert json.loads(json.dumps(inner.locator)) == inner.locator
            lone = Replay("s", piece.partition, 0, 1, 0.0, source.locate(piece, index))
            assert rows(source, range_of(lone)) == [whole[index]]
            line = raw[piece.start + index].removesuffix(b"\r")
            assert source.payload(lone) == line


@settings(deadline=None, max_examples=60)
@given(
    raw=st.lists(LINE, min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 400), max_size=5),
    restart=st.booleans(),
)
def test_a_growing_file_gives_each_whole_line_once(
    raw: list[bytes], cuts: list[int], restart: bool
) -> None:
    with TemporaryDirectory() as name:
        data = b"".join(line + b"\n" for line in raw)
        assume(not data.startswith(NO_TEXT))
        path = Path(name, "f.txt")
        path.touch()
        source = FileSource("s", {"path": "f.txt"}, Path(name))
        offsets: Json = None
        seen: list[str | None] = []
        done = 0
        for end in [*sorted(min(c, len(data)) for c in cuts), len(data)]:
            with path.open("ab") as file:
                file.write(data[done:end])
            done = end
            if restart:
                source = FileSource("s", {"path": "f.txt"}, Path(name))
                offsets = json.loads(json.dumps(offsets))
            plan = source.plan(offsets, 1000)
            assert not plan.drained
            offsets = plan.offsets
            seen += [v for piece in plan.ranges for v in rows(source, piece)]
            assert len(seen) == data[:end].count(b"\n")
        assert seen == expected(raw)


@settings(deadline=None, max_examples=100)
@given(raw=st.lists(LINE, min_size=1, max_size=40), limit=st.integers(1, 9), ended=st.booleans())
def test_formats_that_skip_empty_lines_count_the_others(
    raw: list[bytes], limit: int, ended: bool
) -> None:
    raw = [b'{"v":"%d"}' % len(line) if line.strip() else line for line in raw]
    full = [line for line in raw if line.removesuffix(b"\r")]
    with TemporaryDirectory() as name:
        data = b"".join(line + b"\n" for line in raw)
        Path(name, "f.jsonl").write_bytes(data if ended else data[:-1])
        options = {"path": "f.jsonl", "format": "jsonLines", "watch": False, "schema": "v string"}
        source = FileSource("s", options, Path(name))
        offsets: Json = None
        seen: list[str | None] = []
        while True:
            plan = source.plan(offsets, limit)
            offsets = plan.offsets
            for piece in plan.ranges:
                for part in cut(source, piece, 3):
                    seen += rows(source, part)
            if plan.drained:
                break
        assert len(seen) == len(full)
        assert seen == [_value(line) for line in full]


def _value(line: bytes) -> str | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return str(value["v"]) if isinstance(value, dict) else None
