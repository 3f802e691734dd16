"""Sources as plain specs: built-in kinds, and classes of a user's own."""

from __future__ import annotations

import json
import pickle
import re
import textwrap
from pathlib import Path

import pyarrow as pa
import pytest

from millrace.errors import SourceError
from millrace.protocol.types import Replay
from millrace.sources import SourceSpec, base, cut, make_source, open_source
from millrace.sources.base import first_row
from millrace.sources.files import FileSource
from millrace.sources.generator import GeneratorSource
from millrace.topology import model


@pytest.fixture
def feeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The class that the documentation shows, as a module of its own."""
    example = re.search(r"    class Ticks.*", base.__doc__ or "", re.DOTALL)
    assert example is not None
    imports = (
        "from collections.abc import Iterator\n"
        "import pyarrow as pa\n"
        "from millrace.protocol.types import Json, RootRange\n"
        "from millrace.sources import ReadBatch, Source, SourcePlan\n"
    )
    more = "class Once(Ticks):\n    replayable = False\nclass Other:\n    pass\n"
    name = f"feeds_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(imports + textwrap.dedent(example[0]) + more)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def declared(**part: object) -> model.Source:
    return model.Source.model_validate({"name": "s", **part})


def test_the_documented_example_works(feeds: str, tmp_path: Path) -> None:
    custom = {"class": f"{feeds}:Ticks", "options": {"count": 10}}
    spec = SourceSpec.of(declared(custom=custom), tmp_path)
    source = make_source(pickle.loads(pickle.dumps(spec)))
    plan = source.plan(None, 7)
    assert not plan.drained
    last = source.plan(plan.offsets, 7)
    assert last.drained
    pieces = [p for r in (*plan.ranges, *last.ranges) for p in cut(source, r, 2)]
    ticks = [t for p in pieces for b in source.read(p) for t in b.data["tick"].to_pylist()]
    assert ticks == list(range(10))
    lone = Replay("s", pieces[0].partition, 3, 1, 0.0, source.locate(plan.ranges[0], 3))
    assert source.payload(lone) == b'{"tick": 3}'


def test_the_payload_of_a_row_shows_what_python_has_not() -> None:
    days = pa.array([2932897, 0], pa.int32()).view(pa.date32())
    texts = pa.array([b"a\xff", b"b"], pa.binary()).view(pa.string())
    rows = pa.record_batch([days, pa.ListArray.from_arrays([0, 1, 2], texts)], names=["d", "l"])
    assert json.loads(first_row(rows)) == {"d": "10000-01-01", "l": ["a\\xff"]}
    assert json.loads(first_row(rows.slice(1))) == {"d": "1970-01-01", "l": ["b"]}


def test_built_in_kinds(tmp_path: Path) -> None:
    files = declared(files={"path": "in", "format": "csv", "schema": "a string", "watch": False})
    made = make_source(SourceSpec.of(files, tmp_path))
    assert isinstance(made, FileSource)
    assert (made.path, made.kind, made.watch, made.schema().names) == ("in", "csv", False, ["a"])
    spec = SourceSpec.of(declared(generator={"seed": 3, "count": 5}), tmp_path)
    generator = open_source(spec)
    assert isinstance(generator, GeneratorSource)
    assert generator.plan(None, 10).records == 5
    assert open_source(spec) is generator


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Once", "replayable = False.*files source"),
        ("Other", "no class derived from millrace.sources.base.Source"),
        ("Missing", "cannot be loaded: AttributeError"),
    ],
)
def test_classes_that_cannot_be_used(feeds: str, name: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        make_source(SourceSpec("s", f"{feeds}:{name}", "{}", ""))


def test_a_missing_module_is_named() -> None:
    with pytest.raises(SourceError, match="'nowhere:X' cannot be loaded: ModuleNotFoundError"):
        make_source(SourceSpec("s", "nowhere:X", "{}", ""))
