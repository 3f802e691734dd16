"""The sources and sinks that ship, and those that the documents show, keep the contract."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis

from millrace.protocol.types import Staged
from millrace.sinks.files import FileSink
from millrace.sinks.redis import RedisSink
from millrace.sources.files import FileSource
from millrace.sources.generator import GeneratorSource
from millrace.testing import check_sink, check_source
from millrace_e2e.embedded import started

GUIDE = Path(__file__).parents[3] / "docs" / "code.md"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real server."""
    running = started(tmp_path_factory.mktemp("redis"))
    yield f"{running.address.url}?password={running.address.password}"
    running.stop()


def file_rows(place: Path) -> list[dict[str, Any]]:
    files = sorted((place / "out").glob("[!_.]*"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def spoil_a_file(place: Path, staged: Staged) -> None:
    (path,) = [p for p in (place / "out/_millrace/staged").iterdir() if unquote(p.stem) ==
               staged.name]  # fmt: skip
    path.write_bytes(path.read_bytes()[:-3])


def put_a_file(place: Path) -> None:
    (place / "out").mkdir()
    (place / "out" / "letter.jsonl").write_text('{"word": "theirs", "n": 1}\n')


def test_the_files_sink() -> None:
    check_sink(
        lambda place: FileSink("out", {"path": "out", "format": "jsonLines"}, place),
        file_rows,
        occupy=put_a_file,
        damage=spoil_a_file,
    )


def test_the_redis_sink_with_hashes(server: str) -> None:
    client = redis.Redis.from_url(server, decode_responses=True)
    client.flushall()

    def hashes(place: Path) -> list[dict[str, Any]]:
        keys = client.keys(f"{place.name}:*")
        return [{"word": k.split(":")[1], "n": int(client.hget(k, "n") or 0)} for k in keys]

    check_sink(
        lambda place: RedisSink(
            "out", {"url": server, "mode": "hash", "key": f"{place.name}:{{word}}"}, place
        ),
        hashes,
        upserts=True,
        occupy=lambda place: client.hset(f"{place.name}:theirs", "n", "1"),
    )
    client.close()


def test_the_redis_sink_with_a_stream(server: str) -> None:
    client = redis.Redis.from_url(server, decode_responses=True)
    client.flushall()

    def entries(place: Path) -> list[dict[str, Any]]:
        return [{"word": e["word"], "n": int(e["n"])} for _, e in client.xrange(place.name)]

    check_sink(
        lambda place: RedisSink(
            "out", {"url": server, "mode": "stream", "stream": place.name}, place
        ),
        entries,
        occupy=lambda place: client.xadd(place.name, {"word": "theirs", "n": "1"}),
    )
    client.close()


def texts(folder: Path) -> None:
    folder.mkdir()
    for number, lines in enumerate((5, 1, 0, 7)):
        text = "".join(f"line {n} of {number}\n" for n in range(lines))
        (folder / f"{number}.txt").write_text(text)


def json_lines(folder: Path) -> None:
    folder.mkdir()
    lines = [json.dumps({"n": n, "user": f"user {n}"}) for n in range(9)]
    lines[4] = "{not JSON"
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n")


def csv_rows(folder: Path) -> None:
    folder.mkdir()
    rows = ["n,user", *(f'{n},"user, {n}"' for n in range(8)), "x,bad", "9,last"]
    (folder / "a.csv").write_text("\n".join(rows) + "\n")


def parquet_rows(folder: Path) -> None:
    folder.mkdir()
    table = pa.table({"n": list(range(9)), "user": [f"user {n}" for n in range(9)]})
    pq.write_table(table, folder / "a.parquet", row_group_size=4)


FORMATS = {"text": texts, "jsonLines": json_lines, "csv": csv_rows, "parquet": parquet_rows}


@pytest.mark.parametrize("kind", FORMATS)
def test_the_files_source(kind: str, tmp_path: Path) -> None:
    FORMATS[kind](tmp_path / "in")
    options = {"path": "in", "format": kind, "watch": False, "schema": "n long, user string"}
    check_source(lambda: FileSource("in", options, tmp_path))


def test_the_files_source_that_watches(tmp_path: Path) -> None:
    texts(tmp_path / "in")
    check_source(lambda: FileSource("in", {"path": "in"}, tmp_path), bounded=False)


def test_the_generator(tmp_path: Path) -> None:
    options = {"count": 23, "partitions": 3, "seed": 5}
    check_source(lambda: GeneratorSource("made", options, tmp_path))


def test_what_the_guide_shows(tmp_path: Path) -> None:
    """The guide's source, sink and tests, in files as a user would have them."""
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.M | re.S)
    names = {"class Ticks(": "feeds.py", "class Table(": "stores.py", "check_sink(": "test_own.py"}
    for sign, name in names.items():
        (code,) = [block for block in blocks if sign in block]
        (tmp_path / name).write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_own.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
