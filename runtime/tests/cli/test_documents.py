"""What the documents show works, and what they point to is there."""

from __future__ import annotations

import ast
import builtins
import configparser
import functools
import importlib.util
import json
import os
import pkgutil
import re
import shutil
import subprocess
import symtable
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
import typer
import yaml
from typer.core import TyperGroup

from millrace import ddl, spec_of
from millrace.cli.app import build_app
from millrace.engine.driver.home.executorload import BEHIND, GROW_AFTER_S
from millrace.errors import ExitCode, SinkError
from millrace.homes.restarts import FINAL_CODES
from millrace.local.supervisor import DRAIN_S
from millrace.protocol.windows.decide import BREAKAGE_PAUSES_S
from millrace.sinks.files import FileSink
from millrace.sinks.redis import RedisSink
from millrace.sources.files import FileSource
from millrace.topology import limits
from millrace.topology.duration import LONGEST_MS
from millrace.topology.kinds.base import SinkKind
from millrace.topology.kinds.registry import SINKS, SOURCES, Registry
from millrace.topology.load import parse
from millrace.topology.parts import Guarantee
from millrace.topology.problems import InvalidTopologyError

ROOT = Path(__file__).parents[3]
CLI = (ROOT / "docs" / "cli.md").read_text().partition("## ")[0]
DOCUMENTS = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.M | re.S)


class Emitted:
    """What a class is given to emit with, for one key."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"value": None, "run": None}
        self.rows: list[dict[str, Any]] = []

    def emit(self, values: Mapping[str, Any]) -> None:
        self.rows.append(dict(values))


def names_in(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(code, "document", "exec"), names)
    return names


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text())
    assert [t for t in targets if not (document.parent / t).exists()] == []


def anchors(document: Path) -> set[str]:
    """What its headings are called in a link."""
    prose = re.sub(r"^ *```.*?^ *```", "", document.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", prose, re.M)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_headings_that_are_there(document: Path) -> None:
    links = re.findall(r"\]\(([^)#:\s]*)#([^)]+)\)", document.read_text())
    files = [(document.parent / file if file else document, anchor) for file, anchor in links]
    assert [(file.name, anchor) for file, anchor in files if anchor not in anchors(file)] == []


def test_the_topology_of_the_readme() -> None:
    (topology,) = blocks(ROOT / "README.md", "yaml")
    parse(topology, folder=ROOT)
    shown = yaml.safe_load(topology)
    example = yaml.safe_load((ROOT / "examples/wordcount/topology.yaml").read_text())
    assert shown["spec"]["processors"][0].pop("split") == {"column": "value", "into": "word"}
    function = example["spec"]["processors"][0].pop("function")
    text = (ROOT / "README.md").read_text()
    assert f'(`function: "{function}"`' in text
    beside = example["spec"].keys() - shown["spec"].keys()
    (told,) = re.findall(r"where code, texts and counts are \((.*?)\)", " ".join(text.split()))
    assert set(re.findall(r"`(\w+)`", told)) == beside
    for field in beside:
        del example["spec"][field]
    assert shown == example


@pytest.mark.parametrize(
    ("heading", "shipped"),
    [("reads from", SOURCES), ("writes to", SINKS)],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_the_readme_names_the_kinds_that_ship(heading: str, shipped: Registry[Any]) -> None:
    table = (ROOT / "README.md").read_text().partition(f"\n| {heading} |")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| \[?`(\w+)`\S* \| (.*) \|$", table, re.M))
    own = [kind for kind in shipped if type(kind).__module__.startswith("millrace.")]
    assert list(rows) == [kind.name for kind in own]
    for kind in own:
        if isinstance(kind, SinkKind) and Guarantee.EXACTLY_ONCE not in kind.guarantees:
            assert rows[kind.name].endswith("all but `ExactlyOnce`")


def test_blocks_of_the_readme_come_to_their_end() -> None:
    """Each is pasted as a whole: what is behind a command that goes on for ever is not reached."""
    for script in blocks(ROOT / "README.md", "sh"):
        for line in script.splitlines():
            assert not re.search(r" (--watch|-f|--follow)( |$)", line.partition("   #")[0]), line


QUOTED = re.compile(r"([\d.,]*\d)(?: to ([\d.,]*\d))? (?:s|ms|microseconds|times|bytes|MB|GB)\b")
LINK = re.compile(r"\]\((?:docs/)?benchmarks\.md(?:#([\w-]+))?\)")


def measured() -> dict[str, str]:
    """The text of each section of the benchmarks with those below it, by its anchor; "" is all."""
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    heads = [*re.finditer(r"^(#+) (.*)$", text, re.M)]
    found = {"": text}
    for at, head in enumerate(heads):
        ends = [one.start() for one in heads[at + 1 :] if len(one[1]) <= len(head[1])]
        anchor = re.sub(r"[^\w\- ]", "", head[2].lower()).replace(" ", "-")
        found[anchor] = text[head.start() : min(ends, default=len(text))]
    return found


def quotes(text: str) -> Iterator[tuple[str, str]]:
    """Figures with a unit of sentences that lead to the benchmarks, with the anchor; without one,
    of the whole paragraph."""
    for part in re.split(r"\n\n|^ *(?:-|\d+\.) |^\|", text, flags=re.M):
        for sentence in re.split(r"(?<=[.:;]) (?=[A-Z])", " ".join(part.split())):
            for link in LINK.finditer(sentence):
                told = sentence if link[1] else part
                for quoted in QUOTED.finditer(" ".join(told.split())):
                    yield from ((link[1] or "", figure) for figure in quoted.groups() if figure)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_figures_that_are_quoted_are_those_of_the_benchmarks(document: Path) -> None:
    if document.name == "benchmarks.md":
        return
    sections = measured()
    wrong = [
        (anchor, figure)
        for anchor, figure in quotes(document.read_text())
        if not re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d]|\.\d)", sections[anchor])
    ]
    assert wrong == []


def test_figures_are_found_where_they_are_quoted() -> None:
    found = {
        name: {figure for _, figure in quotes((ROOT / name).read_text())}
        for name in ("README.md", "docs/guarantees.md", "docs/operations.md")
    }
    assert found["README.md"] == {"9.87", "18.0", "0.94", "0.98", "8"}
    assert {"0.33", "100"} <= found["docs/guarantees.md"]
    assert {"0.98", "1.45"} <= found["docs/operations.md"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_no_name_or_value_is_a_boolean_to_kubectl(document: Path) -> None:
    said = re.compile(
        r"(?i)(?:[:{,[-] *(?:y|n|yes|no|on|off) *(?:[,}\]]|$))|\b(?:y|n|on|off): ", re.M
    )
    for text in blocks(document, "yaml"):
        assert said.findall(re.sub(r" #.*", "", text)) == []


def test_a_sink_is_emptied_as_the_documents_say(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "operator.md").read_text()
    told = text.partition("### Emptying a sink\n")[2].partition("\n#")[0]
    assert "everything in the folder, `_millrace` too" in told
    folder = tmp_path / "counts"
    FileSink("totals", {"path": "counts"}, tmp_path).prepare("first")
    (folder / "part-000000000001-00000.jsonl").touch()
    second = FileSink("totals", {"path": "counts"}, tmp_path)
    with pytest.raises(SinkError, match="of another topology"):
        second.prepare("second")
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    second.prepare("second")
    bands = yaml.safe_load((ROOT / "examples" / "bands" / "topology.yaml").read_text())
    (settings,) = (one["redis"] for one in bands["spec"]["sinks"])
    sink = RedisSink("totals", {"url": settings["url"], "key": settings["key"]}, tmp_path)
    assert f"unlink '{sink.marker}'\n" in told
    (pattern,) = re.findall(r"--pattern '(.*?)'", told)
    assert pattern == re.sub(r"{\w+}", "*", settings["key"])


def test_executors_follow_the_lag_as_the_example_says() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    told = text.partition("## More and fewer executors\n")[2].partition("\n## ")[0]
    (part,) = re.findall(r"^```yaml\n(.*?)^```", told, re.M | re.S)
    (readme,) = blocks(ROOT / "README.md", "yaml")
    topology = yaml.safe_load(readme)
    topology["spec"] |= yaml.safe_load(part)["spec"]
    spec = parse(json.dumps(topology), folder=ROOT).spec
    asked = spec.spark.executors
    assert asked.least is not None
    assert asked.most is not None
    assert asked.most <= spec.parallelism // asked.cores
    many = f"{BEHIND * spec.window.max_records:,.0f}"
    assert (
        f"waited for\n  {GROW_AFTER_S:.0f} seconds, until there are `max`: here from {many}" in told
    )
    del topology["spec"]["spark"]["executors"]["instances"]
    with pytest.raises(InvalidTopologyError, match="is not from"):
        parse(json.dumps(topology), folder=ROOT)


def modules() -> list[tuple[str, str]]:
    return [(path.name, code) for path in DOCUMENTS for code in blocks(path, "python")]


@pytest.fixture
def guide(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that the guide's topologies and examples name, as modules."""
    named = (("feeds", "class Ticks("), ("stores", "class Table("), ("usage", "def usage("))
    for name, sign in named:
        (code,) = [text for _, text in modules() if sign in text]
        module = ModuleType(name)
        vars(module).update(names_in(code))
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize(("document", "code"), modules(), ids=lambda text: text[:20])
def test_every_example_is_a_whole_module(document: str, code: str, guide: None) -> None:
    """It runs by itself and every name that it uses is imported or defined in it."""
    names = names_in(code)
    known = {*names, *dir(builtins)}
    for scope in scopes_of(symtable.symtable(code, document, "exec")):
        unknown = [s.get_name() for s in scope.get_symbols() if s.is_global()]
        assert [name for name in unknown if name not in known] == []


def scopes_of(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for inner in table.get_children():
        yield from scopes_of(inner)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_yaml_and_commands_of_the_documents_can_be_read(document: Path) -> None:
    for text in blocks(document, "yaml"):
        assert yaml.safe_load(text)
    for script in blocks(document, "sh"):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_commands_of_the_documents_exist() -> None:
    app = typer.main.get_command(build_app())
    assert isinstance(app, TyperGroup)
    text = "\n".join(document.read_text() for document in DOCUMENTS)
    named = set(re.findall(r"`millrace ([a-z][a-z-]+)", text))
    named |= set(re.findall(r"^millrace ([a-z][a-z-]+)", text, re.M))
    named |= {name for row in re.findall(r"^\| `([a-z-]+)[ `]", CLI, re.M) for name in [row]}
    assert len(named) > 8
    assert sorted(named - set(app.commands)) == []


def test_every_exit_code_is_told_once() -> None:
    table = (ROOT / "docs" / "cli.md").read_text().partition("## Exit codes")[2]
    assert re.findall(r"^\| (\d+) \|", table, re.M) == [str(int(code)) for code in ExitCode]


def test_the_limits_that_are_told_are_those_that_hold() -> None:
    text = " ".join((ROOT / "docs" / "cli.md").read_text().split())
    for told in (
        f"{limits.MOST_CHARS:,} characters",
        f"{limits.MOST_VALUES:,} values",
        f"{limits.MOST_DEPTH} levels",
        f"{limits.MOST_PARTS:,} sources, processors and sinks",
        f"{limits.MOST_INPUTS:,} inputs",
        f"{limits.MOST_OVERRIDES} `--set`",
        f"at most {LONGEST_MS // 86_400_000} days",
    ):
        assert told in text


def test_a_service_is_not_started_again_where_that_would_end_it_at_once() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    unit = configparser.ConfigParser()
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(text.partition("```ini\n")[2].partition("```")[0])
    service = unit["Service"]
    final = {code for code, lives in FINAL_CODES.items() if lives == 1}
    told = {int(code) for code in service["RestartPreventExitStatus"].split()}
    assert told == final | {ExitCode.FENCED, ExitCode.JAVA}
    assert int(service["SuccessExitStatus"]) == ExitCode.INTERRUPTED
    assert int(service["TimeoutStopSec"]) > DRAIN_S


def test_a_reader_of_changes_takes_the_last_window(tmp_path: Path) -> None:
    (code,) = [c for name, c in modules() if "def totals" in c]
    (tmp_path / "_millrace").mkdir()
    for window, rows in ((2, [("a", 1), ("b", 1)]), (10, [("a", 7)]), (9, [("a", 5), ("c", 2)])):
        lines = [json.dumps({"word": word, "n": n}) for word, n in rows]
        (tmp_path / f"part-{window:012}-00000.jsonl").write_text("\n".join(lines) + "\n")
    found = names_in(code)["totals"](tmp_path, "word")
    assert {word: row["n"] for word, row in found.items()} == {"a": 7, "b": 1, "c": 2}


def test_what_the_guide_says_of_files(tmp_path: Path) -> None:
    (tmp_path / "in" / "deeper").mkdir(parents=True)
    for at, name in enumerate(("deeper/no.csv", "b.csv", "a.csv", "_not.csv", ".nor")):
        (tmp_path / "in" / name).write_text(f"n,name,more\n\n1,{name},x\n\n,,y\n")
        os.utime(tmp_path / "in" / name, (at, at))

    def rows(**options: Any) -> list[dict[str, Any]]:
        source = FileSource("s", {"watch": False, **options}, tmp_path)
        plan = source.plan(None, 1000)
        return [r for p in plan.ranges for b in source.read(p) for r in b.data.to_pylist()]

    csv = {"format": "csv", "schema": "name string, n long"}
    found = [{"name": "a.csv", "n": 1}, {"name": "", "n": None}]
    found += [{"name": "b.csv", "n": 1}, {"name": "", "n": None}]
    assert rows(path="in", order="name", **csv) == found
    assert rows(path="in", **csv) == [*found[2:], *found[:2]]
    names = ["a.csv", "b.csv", "deeper/no.csv"]
    for order, expected in (("name", names), ("modified", names[::-1])):
        read = [r["name"] for r in rows(path="**/*.csv", order=order, **csv) if r["name"]]
        assert read == expected
    (tmp_path / "t.txt").write_bytes(b"one\r\n\nlast")
    assert [r["value"] for r in rows(path="t.txt")] == ["one", "", "last"]


def test_the_code_of_the_guide() -> None:
    shown = blocks(ROOT / "docs" / "code.md", "python")
    _, processors, changed = map(names_in, shown[:3])
    (source,) = (names_in(block) for block in shown if "class Ticks(" in block)
    kinds = {
        name: spec_of(processors[name]).kind.value
        for name in ("split", "split_many", "long_words", "count", "Pairs", "Runs")
    }
    assert list(kinds.values()) == ["row", "vectorized", "where", "stateful", "class", "class"]
    assert spec_of(processors["Runs"]).keyed
    said = Emitted()
    for value in "aab":
        processors["Runs"]().process({"user": "u", "value": value}, said)
    assert [row["run"] for row in said.rows] == [1, 2, 1]
    columns, parents = processors["split_many"](pa.record_batch({"value": ["a b", "c"]}))
    assert columns["word"].to_pylist() == ["a", "b", "c"]
    assert parents.to_pylist() == [0, 0, 1]
    (migration,) = spec_of(changed["count"]).migrations
    assert migration.state == (("n", "long"),)
    state = migration.function({"n": 3})
    row = changed["count"]({"word": "a", "line": "a b"}, state)
    assert (row["n"], state) == (4, {"n": 4, "longest": "a b"})
    ticks = source["Ticks"]("ticks", {"count": 5}, ROOT)
    plan = ticks.plan(None, 3)
    (piece,) = plan.ranges
    assert [v for part in ticks.read(piece) for v in part.data.column(0).to_pylist()] == [0, 1, 2]
    assert plan.lag_records == 2
    assert ticks.plan(plan.offsets, 3).drained


def test_what_is_said_of_failures_of_the_engine() -> None:
    text = " ".join((ROOT / "docs" / "guarantees.md").read_text().split())
    now, *later, last = BREAKAGE_PAUSES_S
    pauses = ", ".join(f"{pause:g}" for pause in later)
    assert now == 0
    assert f"runs again at once and then after {pauses} and {last:g} seconds" in text
    assert len(BREAKAGE_PAUSES_S) == 4, "the fifth such failure in a row"
    assert "the fifth such failure in a row stops the driver" in text
    assert FINAL_CODES[ExitCode.ENGINE] == 2, "it is started once more"
    assert f"the run ends with exit code {ExitCode.ENGINE:d}." in text
    operations = (ROOT / "docs" / "operations.md").read_text()
    assert f"the second driver ends the run with exit code {ExitCode.ENGINE:d}." in operations


KIND = re.compile(r"(?:[A-Z][a-z]+){2,}|Fenced")


def kinds_in(module: Path) -> set[str]:
    """The kinds of events that a module tells of; of one that it looks up, all that it names."""
    tree = ast.parse(module.read_text())
    calls = [one for one in ast.walk(tree) if isinstance(one, ast.Call) and one.args]
    told = {"Notify", "_tell", "_warn", "warn"}
    firsts = [
        call.args[0]
        for call in calls
        if (getattr(call.func, "attr", None) or getattr(call.func, "id", None)) in told
    ]
    found = {one.value for one in firsts if isinstance(one, ast.Constant)}
    if any(isinstance(one, ast.Name | ast.Subscript) for one in firsts):
        texts = [one.value for one in ast.walk(tree) if isinstance(one, ast.Constant)]
        found |= {text for text in texts if isinstance(text, str) and KIND.fullmatch(text)}
    assert not any(isinstance(one, ast.JoinedStr) for one in firsts), module
    return {kind for kind in found if isinstance(kind, str) and KIND.fullmatch(kind)}


def test_every_event_is_explained() -> None:
    source = ROOT / "runtime" / "src" / "millrace"
    modules = [
        path
        for room in ("protocol", "engine", "local", "restoring")
        for path in (source / room).rglob("*.py")
    ]
    table = (
        (ROOT / "docs" / "operations.md").read_text().partition("## Events")[2].partition("## ")[0]
    )
    explained = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", table, re.M)
    assert len({kind for kind, _, _ in explained}) == len(explained)
    assert {kind for kind, _, _ in explained} == set().union(*map(kinds_in, modules))


def test_every_other_name_of_a_type_is_documented() -> None:
    text = " ".join((ROOT / "docs" / "code.md").read_text().split())
    others, names = list(ddl._ALIASES), list(ddl._ALIASES.values())
    told = re.search(
        r"((?:`\w+`(?:, | and )?)+) are other names of ((?:`\w+`(?:, | and )?)+)", text
    )
    assert told is not None
    listed = [re.findall(r"`(\w+)`", part) for part in told.groups()]
    assert dict(zip(*listed, strict=True)) == dict(zip(others, names, strict=True))


def test_the_way_of_a_line_names_modules_that_are_there() -> None:
    text = (ROOT / "docs" / "development.md").read_text()
    way = text.partition("## A window through the code")[2].partition("\n## ")[0]
    window, _, recovery = way.partition("And of one recovery")
    for part, most in ((window, 15), (recovery, 15)):
        steps = re.findall(r"^\d+\. ", part, re.MULTILINE)
        assert 5 <= len(steps) <= most
        modules = re.findall(r"`([a-z_.]+)`", part)
        assert len(modules) > 5
        missing = [m for m in modules if importlib.util.find_spec(f"millrace.{m}") is None]
        assert missing == []


def glossary() -> list[tuple[str, str]]:
    """(word, name in the code) of every row."""
    text = (ROOT / "docs" / "development.md").read_text()
    rows = text.partition("## Glossary")[2].partition("\n## ")[0].splitlines()
    cells = [row.removeprefix("| ").split(" | ") for row in rows if row.startswith("| ")]
    return [(row[0], name) for row in cells[2:] for name in re.findall(r"`([\w.]+)`", row[-1])]


@functools.cache
def classes() -> Counter[str]:
    """How often a class of each name is defined."""
    files = (ROOT / "runtime" / "src" / "millrace").rglob("*.py")
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text())))
    return Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))


def test_the_words_of_the_glossary_are_there_once() -> None:
    words = [word for word, _ in glossary()]
    together = [word for n, word in enumerate(words) if words[:n][-1:] != [word]]
    assert len(together) > 30
    assert len(together) == len(set(together)), "a word has two rows"


@pytest.mark.parametrize(("word", "name"), glossary(), ids=lambda text: text)
def test_a_word_of_the_glossary_names_code_and_nothing_else_has_the_name(
    word: str, name: str
) -> None:
    found = pkgutil.resolve_name(f"millrace.{name}")
    if isinstance(found, type):
        assert classes()[found.__name__] == 1, word
