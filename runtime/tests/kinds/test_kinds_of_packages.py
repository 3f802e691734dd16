"""A package brings kinds by its entry points, and breaks nothing but itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from command_calls import command
from forked import Forks
from packages import THIN_ENGINE, install, install_tallies, install_thinning

from millrace_e2e import quickjvm

ENGINE_TESTS = Path(__file__).parents[1] / "engine"

HEAD = """
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {name: counting}
spec:
"""

COUNTING = """
  guarantee: AtLeastOnce
  sources:
    - name: counted
      tally: {firstNumber: 5, count: 40}
  sinks:
    - name: book
      inputs: [{from: counted}]
      ledger: {file: book.txt}
"""

THINNED = """
  sources:
    - name: numbers
      generator: {count: 200, seed: 3}
  processors:
    - name: some
      inputs: [{from: numbers}]
      thin: {byColumn: id, every: 3}
    - name: fewer
      inputs: [{from: some}]
      thin: {byColumn: id, every: 5}
  sinks:
    - name: out
      inputs: [{from: fewer}]
      files: {path: out, format: jsonLines}
"""

PLAIN = """
  guarantee: AtLeastOnce
  sources:
    - {name: numbers, generator: {count: 3}}
  sinks:
    - {name: out, inputs: [{from: numbers}], console: {}}
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return tmp_path / "site"


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    made = Forks(tmp_path_factory.mktemp("forks"))
    yield made
    made.close()


@pytest.fixture
def millrace(forks: Forks, site: Path):
    """``millrace ARGUMENTS`` where packages of ``site`` are installed."""

    def call(*arguments: str, spec: str = "") -> subprocess.CompletedProcess[str]:
        if spec:
            arguments = (arguments[0], written(site, spec), *arguments[1:])
        program = "from millrace.cli.app import main; main()"
        return forks.call(program, *arguments, site=site)

    return call


def written(site: Path, spec: str) -> str:
    """The file of a topology beside the packages."""
    file = site.parent / "topology.yaml"
    file.write_text(HEAD + spec)
    return str(file)


def test_kinds_of_a_package_are_checked_and_described_like_those_that_ship(millrace, site):
    install_tallies(site)
    valid = millrace("validate", spec=COUNTING)
    assert (valid.returncode, valid.stderr) == (0, "")
    drawn = millrace("describe", spec=COUNTING).stdout
    assert "tally of 40 from 5  (n long)" in drawn
    assert "ledger book.txt" in drawn

    wrong = COUNTING.replace("count: 40", "count: 13").replace("file: book.txt", "fiel: x")
    refused = millrace("validate", spec=wrong)
    assert refused.returncode == 3
    assert "spec.sources[0].tally.count (line 10): 13 brings bad luck; take" in refused.stderr
    assert "ledger.fiel" in refused.stderr
    assert "did you mean 'file'?" in refused.stderr
    weak = millrace("validate", spec=COUNTING.replace("AtLeast", "Exactly"))
    assert "cannot give ExactlyOnce: a ledger is only added to; set spec.guarantee to" in (
        weak.stderr
    )

    schema = json.loads(millrace("schema").stdout)
    assert list(schema["$defs"]["TallySettings"]["properties"]) == ["firstNumber", "count"]
    assert schema["$defs"]["Source"]["properties"]["tally"]["description"] == "Numbers in a row."
    assert "| `spec.sinks[].ledger.file` |" in millrace("schema", "--markdown").stdout


@pytest.fixture
def python(forks: Forks, site: Path):
    """What a program says to a text where packages of ``site`` are installed."""

    def call(program: str, text: str) -> str:
        done = forks.call(program, site=site, text=text)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


def effects(python, spec: str, *edits: tuple[str, str]) -> list[str]:
    """What each edit, (old text, new text), is said to mean."""
    program = f"""
import sys
from millrace.topology.edits import classify
from millrace.topology.load import parse
old = sys.stdin.read()
for was, now in {edits!r}:
    assert was in old
    print(*classify(parse(old), parse(old.replace(was, now))), sep="; ")
"""
    return python(program, HEAD + spec).splitlines()


def test_edits_mean_what_the_kind_of_a_package_says(python, site):
    install_tallies(site)
    edits = ("count: 40", "count: 41"), ("firstNumber: 5", "firstNumber: 6"), ("book.txt", "x.txt")
    count, first, file = effects(python, COUNTING, *edits)
    assert count.endswith("40 → 41: restart, counted at the start")
    assert "firstNumber: 5 → 6: refused, others are meant; change it back" in first
    assert "refused, a sealed window may still wait to be shown there" in file


def test_kinds_of_packages_run_from_end_to_end(site):
    """A source and a sink of one, and between others a processor of another one. AtLeastOnce, the
    most that this sink can do."""
    install_tallies(site)
    install_thinning(site)
    quick = {"spark.driver.extraJavaOptions": quickjvm.options()}
    spark = {"spark": {"conf": quick, "driver": {"memory": "512m"}}}
    counting, thinned = yaml.safe_load(COUNTING), yaml.safe_load(THINNED)
    joined = {part: [*counting.get(part, ()), *thinned[part]] for part in thinned}
    spec = textwrap.indent(yaml.safe_dump({**counting, **joined, **spark}), "  ")
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    options = {"NO_COLOR": "1", "TERMINAL_WIDTH": "200", "PYTHONPATH": path}
    done = command("run", written(site, spec), "--no-progress", cwd=site.parent, **options)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (site.parent / "book.txt").read_text().splitlines()]
    assert Counter(row["n"] for row in rows) == Counter(range(5, 45))
    said = " ".join((done.stdout + done.stderr).split())
    assert f"sink book {site.parent / 'book.txt'}" in said
    shown = [file for file in (site.parent / "out").rglob("*.jsonl") if file.is_file()]
    ids = [json.loads(line)["id"] for file in shown for line in file.read_text().splitlines()]
    assert sorted(ids) == list(range(0, 200, 15))


GONE = {"millrace.sources": {"tally": "broken.kind:TALLY"}}


@pytest.mark.parametrize(
    ("entries", "text", "said"),
    [
        (
            GONE,
            "import nothing_here",
            "ModuleNotFoundError: No module named 'nothing_here'; mend or uninstall the package",
        ),
        (GONE, "raise SystemExit('bye')", "SystemExit: bye; mend or uninstall the package broken"),
        (GONE, "TALLY = 7", "is int in broken.kind:TALLY, not an instance of a class derived from"),
        (
            GONE,
            "from millrace.topology.kinds.source_files import FILES_SOURCE as TALLY",
            "'tally' calls itself 'files'; mend or uninstall the package broken 1.0",
        ),
        (
            GONE,
            """
            from millrace.topology.kinds.base import SourceKind
            class Tally(SourceKind[object]):
                name = "tally"
                settings = dict
                def summary(self, settings): return ""
            TALLY = Tally()
            """,
            "'tally' declares no settings derived from millrace.topology.parts.Part; mend or",
        ),
        (
            GONE,
            """
            from millrace.topology.kinds.base import SourceKind
            class Tally(SourceKind[object]):
                @property
                def name(self): raise ZeroDivisionError("no name")
                settings = property(lambda self: 1 / 0)
                def summary(self, settings): return ""
            TALLY = Tally()
            """,
            "'tally' cannot say what it is: ZeroDivisionError: division by zero; mend",
        ),
    ],
)
def test_a_broken_kind_is_one_error_for_those_who_name_it(millrace, site, entries, text, said):
    install(site, "broken", entries, kind=text)
    used = millrace("describe", spec=COUNTING)
    assert used.returncode == 3
    (line,) = [line for line in used.stderr.splitlines() if "tally" in line]
    assert "spec.sources[0].tally (line 10): cannot be used: millrace.sources of package" in line
    assert said in line
    # Whoever does not name it is told in passing by those commands that are about checking.
    for arguments in (["validate"], ["schema"]):
        other = millrace(*arguments, spec="" if arguments == ["schema"] else PLAIN)
        assert other.returncode == 0
        assert other.stderr.count("note: a kind cannot be used") == 1
        assert said in " ".join(other.stderr.split())
    assert "tally" not in other.stdout


def test_a_package_cannot_take_a_kind_that_ships(millrace, site):
    entries = {"millrace.sources": {"generator": "tallies.kind:TALLY"}}
    install(site, "tallies", entries, kind="raise ValueError('never imported')")
    valid = millrace("validate", spec=PLAIN)
    assert valid.returncode == 0
    said = "package tallies 1.0: 'generator' is a kind that Millrace has itself; uninstall the"
    assert said in " ".join(valid.stderr.split())
    assert "generator (3 records)" in millrace("describe", spec=PLAIN).stdout


def test_two_packages_with_one_kind_are_both_named(millrace, site):
    install_tallies(site)
    install(site, "zahlen", {"millrace.sources": {"tally": "zahlen.kind:TALLY"}}, kind="TALLY = 1")
    used = millrace("describe", spec=COUNTING)
    assert used.returncode == 3
    said = " ".join(used.stderr.split())
    assert "of package zahlen 1.0: 'tally' is a kind of tallies 1.0 too; uninstall one of" in said
    assert millrace("validate", spec=PLAIN).returncode == 0


@pytest.mark.parametrize("name", ["name", "kind", "copy", "Tally", "a-b"])
def test_what_cannot_be_a_field_cannot_be_a_kind(millrace, site, name):
    install(site, "odd", {"millrace.sources": {name: "odd.kind:KIND"}}, kind="KIND = 1")
    valid = millrace("validate", spec=PLAIN)
    assert valid.returncode == 0
    assert f"{name!r} cannot name a kind" in " ".join(valid.stderr.split())


def test_topologies_are_looked_at_without_arrow_spark_and_servers(site):
    install_tallies(site)
    program = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {NAMES}:
            raise ImportError(f"{name} is imported")
sys.meta_path.insert(0, Refuse())
from millrace.topology.edits import classify
from millrace.topology.load import parse
from millrace.topology.schema import json_schema
topology = parse(sys.stdin.read())
assert classify(topology, topology) == []
assert [part.kind.summary(part.settings) for part in topology.spec.sources]
json_schema()
""".replace("{NAMES}", repr(("pyarrow", "pyspark", "numpy", "numba", "redis", "pandas")))
    subprocess.run(
        [sys.executable, "-c", program],
        input=HEAD + COUNTING,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(site)},
    )


def test_a_processor_of_a_package_is_checked_and_described_like_those_that_ship(millrace, site):
    install_thinning(site)
    valid = millrace("validate", spec=THINNED)
    assert (valid.returncode, valid.stderr) == (0, "")
    drawn = millrace("describe", spec=THINNED).stdout
    assert "thin id by 3  (id long, key string, value double)" in drawn

    wrong = THINNED.replace("every: 3", "every: 13").replace(
        "byColumn: id, every: 5", "byColum: id"
    )
    refused = millrace("validate", spec=wrong)
    assert refused.returncode == 3
    assert "spec.processors[0].thin.every (line 13): 13 brings bad luck; take" in refused.stderr
    assert "did you mean 'byColumn'?" in refused.stderr
    assert "spec.processors[1].thin.every" in refused.stderr

    schema = json.loads(millrace("schema").stdout)
    assert list(schema["$defs"]["ThinSettings"]["properties"]) == ["byColumn", "every"]
    told = schema["$defs"]["Processor"]["properties"]["thin"]["description"]
    assert told == "Lets some tuples go on."


def test_edits_of_a_processor_mean_what_the_kind_of_a_package_says(python, site):
    install_thinning(site)
    edits = effects(
        python,
        THINNED,
        ("every: 3", "every: 4"),
        ("byColumn: id, every: 3", "byColumn: value, every: 3"),
    )
    every, column = edits
    assert every.endswith(
        "spec.processors[some].thin.every: 3 → 4: restart, the graph is compiled at the start"
    )
    assert column.endswith('"id" → "value": refused, it is another choice; change it back')


THIN_GONE = {"millrace.processors": {"thin": "broken.kind:THIN"}}
THIN_BEGUN = """
from millrace.topology.kinds.base import ProcessorKind
from millrace.topology.parts import Part
class Thin(ProcessorKind[Part]):
    name = "thin"
    meaning = "Lets some tuples go on."
    settings = Part
    def summary(self, settings): return ""
    def columns(self, settings, incoming): return None
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nothing_here", "ModuleNotFoundError: No module named 'nothing_here'; mend or"),
        ("THIN = 7", "is int in broken.kind:THIN, not an instance of a class derived from"),
        (
            "from millrace.topology.kinds.sink_files import FILES_SINK as THIN",
            "not an instance of a class derived from millrace.topology.kinds.base.ProcessorKind",
        ),
        (
            f"{THIN_BEGUN}THIN = Thin()",
            "'thin' has the compiler None, which is no 'module:function'; mend or uninstall the",
        ),
        (
            f"{THIN_BEGUN}    compiler = 'broken.engine:compiled'\nTHIN = Thin()",
            "'thin' has the step None, which is no 'module:function'; mend or uninstall the",
        ),
    ],
)
def test_a_broken_kind_of_processor_is_one_error_for_those_who_name_it(millrace, site, text, said):
    install(site, "broken", THIN_GONE, kind=text)
    used = millrace("describe", spec=THINNED)
    assert used.returncode == 3
    lines = [line for line in used.stderr.splitlines() if ".thin " in line]
    assert len(lines) == 2, used.stderr
    begins = "spec.processors[0].thin (line 13): cannot be used: millrace.processors of package"
    assert begins in lines[0]
    assert all(said in line for line in lines)
    other = millrace("validate", spec=PLAIN)
    assert other.returncode == 0
    assert other.stderr.count("note: a kind cannot be used") == 1
    assert said in " ".join(other.stderr.split())


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        (
            "from dataclasses import replace",
            "import nothing_here",
            (
                "cannot be loaded: the module 'thinning.engine' cannot be imported: "
                "ModuleNotFoundError: No module named 'nothing_here'; mend, install or uninstall"
            ),
        ),
        (
            "def step(site)",
            "def stepp(site)",
            "cannot be loaded: the module 'thinning.engine' has no 'step'; check the name; mend,",
        ),
        (
            "column = part.settings.by_column",
            "raise ValueError('not today')",
            "cannot be compiled: ValueError: not today; mend, install or uninstall the package",
        ),
        (
            "return replace(base, output=incoming, settings=(column, part.settings.every))",
            "return 7",
            "is compiled by 'thinning.engine:compiled' to int, which is no component",
        ),
    ],
)
def test_what_the_engine_cannot_use_of_a_package_names_the_package(
    python, site, was, becomes, said
):
    assert was in THIN_ENGINE
    install_thinning(site, THIN_ENGINE.replace(was, becomes))
    program = """
import sys
from pathlib import Path
from millrace.engine.program.compile import CompileOptions, compile_topology
from millrace.errors import TopologyError
from millrace.topology.load import parse
try:
    compile_topology(parse(sys.stdin.read()), CompileOptions("u", Path(), Path()))
except TopologyError as error:
    print(error)
"""
    done = python(program, HEAD + THINNED)
    assert done.startswith("processor 'some': thin of package thinning 1.0 ")
    assert said in done
    assert "the package thinning 1.0" in done


def test_every_tree_through_a_processor_of_a_package_is_proven_complete(python, site):
    """The tasks of a window without Spark, with all that is tracked."""
    install_thinning(site)
    program = """
import sys
from pathlib import Path
import yaml
from engine_support import Windows, compiled
from millrace_e2e.embedded import started
place = Path(sys.stdin.readline().strip())
spec = yaml.safe_dump(yaml.safe_load(sys.stdin.read())["spec"])
server = started(place)
try:
    for whole in (False, True):
        folder = place / f"whole-{whole}"
        folder.mkdir()
        run = Windows(compiled(spec, folder, f"u{whole}"), server.address, whole)
        outcome = run.attempt(run.plan())
        ids = sorted(row["id"] for row in outcome.rows["out"])
        print(ids == list(range(0, 200, 15)), outcome.verdict.complete, outcome.failed)
finally:
    server.stop()
"""
    (site.parent / "state").mkdir()
    told = f"{site.parent / 'state'}\n{HEAD}{THINNED}"
    path = f"import sys; sys.path.insert(0, {str(ENGINE_TESTS)!r})\n"
    assert python(path + program, told).splitlines() == ["True True {}"] * 2
