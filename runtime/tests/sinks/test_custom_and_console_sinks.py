"""The console sink, sinks of a user's own, and sinks as plain specs."""

from __future__ import annotations

import importlib
import io
import os
import pickle
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millrace.crash import CONSOLE_POINTS
from millrace.errors import FencedError, SinkError
from millrace.protocol.types import Guarantee, Sealed, Staged
from millrace.sinks import Sink, SinkSpec, make_sink, open_sink
from millrace.sinks.console import INLINE_BYTES, ConsoleSink
from millrace.sinks.files import FileSink
from millrace.sinks.redis import RedisSink
from millrace.topology import model

GUIDE = Path(__file__).parents[3] / "docs" / "code.md"


class Area:
    """A staging area in memory, as the engine's on its state servers."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def put(self, name: str, data: bytes) -> None:
        self.objects[name] = data

    def get(self, name: str, digest: str) -> bytes:
        return self.objects[name]


def seal(window: int, *staged: Staged | None) -> Sealed:
    mine = tuple(s for s in staged if s is not None)
    return Sealed(window, "+".join(s.digest for s in mine), mine)


def rows(*words: str) -> list[pa.RecordBatch]:
    return [pa.record_batch({"word": list(words), "n": list(range(len(words)))})]


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The class that the documentation shows, as a module of its own."""
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.M | re.S)
    (example,) = [block for block in blocks if "class Table(Sink)" in block]
    name = f"stores_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(example + "\n\nclass Other:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return name


class TestCustom:
    def make(self, stores: str, folder: Path, area: Area, execution: int) -> Sink:
        inputs = [{"from": "counts"}]
        custom = {"class": f"{stores}:Table", "options": {"file": "totals.db"}}
        document = {"name": "totals", "inputs": inputs, "custom": custom}
        declared = model.Sink.model_validate(document)
        sink = make_sink(pickle.loads(pickle.dumps(SinkSpec.of(declared, folder))))
        sink.staging = area
        sink.prepare("life")
        sink.fence(execution)
        return sink

    def totals(self, folder: Path) -> dict[str, int]:
        with sqlite3.connect(folder / "totals.db") as db:
            return dict(db.execute("SELECT word, n FROM totals").fetchall())

    def test_the_documented_example_works(self, stores: str, tmp_path: Path) -> None:
        area = Area()
        old = self.make(stores, tmp_path, area, 1)
        assert old.last_shown() is None
        first = seal(1, old.stage("a", rows("x", "y")), old.stage("b", rows("z")))
        assert old.stage("c", rows()) is None
        old.publish(first, first.staged, 1)
        assert self.totals(tmp_path) == {"x": 0, "y": 1, "z": 0}
        new = self.make(stores, tmp_path, area, 2)
        new.publish(first, first.staged, 2)
        assert new.last_shown() == (1, first.digest)
        with pytest.raises(FencedError):
            old.publish(first, first.staged, 1)
        other = seal(1, new.stage("d", rows("w")))
        with pytest.raises(SinkError, match="window 1 is shown with other rows"):
            new.publish(other, other.staged, 2)
        second = seal(2, new.stage("e", rows("v")))
        area.objects["e"] = area.objects["e"][:-1]
        with pytest.raises(SinkError, match="nothing of the window is shown"):
            new.publish(second, second.staged, 2)
        assert self.totals(tmp_path) == {"x": 0, "y": 1, "z": 0}

    def test_without_a_staging_area(self, stores: str, tmp_path: Path) -> None:
        sink = make_sink(SinkSpec("s", f"{stores}:Table", '{"file": "t.db"}', str(tmp_path)))
        with pytest.raises(SinkError, match="there is no staging area"):
            sink.stage("a", rows("x"))

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("Other", "no class derived from millrace.sinks.base.Sink"),
            ("Missing", "cannot be loaded: AttributeError"),
        ],
    )
    def test_classes_that_cannot_be_used(self, stores: str, name: str, message: str) -> None:
        with pytest.raises(SinkError, match=message):
            make_sink(SinkSpec("s", f"{stores}:{name}", "{}", ""))


class TestSpecs:
    def of(self, folder: Path, **part: Any) -> SinkSpec:
        document = {"name": "s", "inputs": [{"from": "a"}], **part}
        return SinkSpec.of(model.Sink.model_validate(document), folder)

    def test_built_in_kinds(self, tmp_path: Path) -> None:
        files = make_sink(self.of(tmp_path, files={"path": "out", "format": "csv"}))
        assert isinstance(files, FileSink)
        assert (files.root, files.extension) == (tmp_path / "out", "csv")
        spec = self.of(tmp_path, redis={"url": "redis://h", "mode": "stream", "stream": "x"})
        stream = open_sink(spec)
        assert isinstance(stream, RedisSink)
        assert (stream.mode, stream.target, stream.url) == ("stream", "x", "redis://h")
        assert open_sink(spec) is stream
        assert isinstance(make_sink(self.of(tmp_path, console={})), ConsoleSink)


PRINT = """
from pathlib import Path
from millrace.protocol.types import Sealed
from millrace.sinks.console import ConsoleSink
import pyarrow as pa

sink = ConsoleSink("c", {}, Path())
parts = [pa.record_batch({"n": [n]}) for n in (1, 2)]
mine = [sink.stage(f"1.7.0.0.{n}.0/out/c", [part]) for n, part in enumerate(parts)]
sink.publish(Sealed(7, "digest", tuple(mine)), mine, 1)
"""


def test_a_window_that_was_printed_in_part_is_printed_again() -> None:
    def run(crash_at: str) -> tuple[int, str]:
        environment = {**os.environ, "MILLRACE_CRASH_AT": crash_at}
        command = [sys.executable, "-c", PRINT]
        done = subprocess.run(
            command, env=environment, check=False, timeout=120, stdout=subprocess.PIPE, text=True
        )
        return done.returncode, done.stdout

    (point,) = CONSOLE_POINTS
    code, printed = run(point)
    assert code == -signal.SIGKILL
    assert '{"n":2}' not in printed
    assert run("") == (0, '{"n":1}\n{"n":2}\n')


class TestConsole:
    def make(self, area: Area | None) -> tuple[ConsoleSink, io.StringIO]:
        out = io.StringIO()
        sink = ConsoleSink("c", {}, Path(), out)
        sink.staging = area
        sink.prepare("life")
        sink.fence(1)
        return sink, out

    @pytest.mark.parametrize("area", [None, Area()])
    def test_rows_are_printed_as_json_lines_once_per_process(self, area: Area | None) -> None:
        sink, out = self.make(area)
        sealed = seal(1, sink.stage("a", rows("x", "ü")), sink.stage("b", rows("z")))
        for _ in range(2):
            sink.publish(sealed, sealed.staged, 1)
        assert out.getvalue() == ('{"word":"x","n":0}\n{"word":"ü","n":1}\n{"word":"z","n":0}\n')
        again, out = self.make(area)
        again.publish(sealed, sealed.staged, 1)
        assert out.getvalue().count("\n") == 3

    def test_without_a_staging_area_the_first_rows_are_shown(self) -> None:
        sink, out = self.make(None)
        staged = sink.stage("a", rows(*(f"wörd{i}" for i in range(5000))))
        assert staged is not None
        assert len(str(staged.locator).encode()) <= INLINE_BYTES
        sink.publish(seal(1, staged), [staged], 1)
        *shown, last = out.getvalue().splitlines()
        assert last == f"... and {5000 - len(shown)} more rows of sink c"

    def test_no_rows(self) -> None:
        sink, out = self.make(None)
        assert sink.stage("a", rows()) is None
        sink.publish(seal(1), (), 1)
        assert out.getvalue() == ""

    def test_it_is_fenced_and_cannot_give_exactly_once(self) -> None:
        sink, _ = self.make(None)
        sink.fence(3)
        with pytest.raises(FencedError):
            sink.publish(seal(1), (), 2)
        assert Guarantee.EXACTLY_ONCE not in ConsoleSink.guarantees
        assert Guarantee.EXACTLY_ONCE in FileSink.guarantees
