"""What the documents show works, and what they point to is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from millrace import spec_of
from millrace.functions import FunctionKind
from millrace.topology.load import parse

ROOT = Path(__file__).parents[3]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.M | re.S)


def names_in(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(code, "document", "exec"), names)
    return names


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text())
    assert [t for t in targets if not (document.parent / t).exists()] == []


def test_the_topology_and_the_code_of_the_readme() -> None:
    (topology,) = blocks(ROOT / "README.md", "yaml")
    (code,) = blocks(ROOT / "README.md", "python")
    parse(topology, folder=ROOT, import_code=False)
    assert yaml.safe_load(topology) == yaml.safe_load(
        re.sub(r"(?m)^\s*#.*\n", "", (ROOT / "examples/wordcount/topology.yaml").read_text())
    )
    split = names_in(code)["split"]
    assert spec_of(split).kind is FunctionKind.ROW
    assert list(split({"value": "a b"})) == [{"word": "a"}, {"word": "b"}]


def test_the_code_of_the_guide() -> None:
    processors, source = map(names_in, blocks(ROOT / "docs" / "code.md", "python"))
    kinds = {
        name: spec_of(processors[name]).kind.value
        for name in ("split", "split_many", "long_words", "count", "Pairs")
    }
    assert list(kinds.values()) == ["row", "vectorized", "where", "stateful", "class"]
    columns, parents = processors["split_many"](pa.record_batch({"value": ["a b", "c"]}))
    assert columns["word"].to_pylist() == ["a", "b", "c"]
    assert parents.to_pylist() == [0, 0, 1]
    ticks = source["Ticks"]("ticks", {"count": 5}, ROOT)
    plan = ticks.plan(None, 3)
    (piece,) = plan.ranges
    assert [v for part in ticks.read(piece) for v in part.data.column(0).to_pylist()] == [0, 1, 2]
    assert ticks.plan(plan.offsets, 3).drained
