from __future__ import annotations

import pytest
from topology_texts import WORDCOUNT, at, problems_in

from millrace.topology.document import read_document
from millrace.topology.load import parse
from millrace.topology.model import Tracking
from millrace.topology.problems import InvalidTopologyError, shorten

TEXT = """\
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata:
  name: copying
spec:
  tracking: Off
  window:
  ackers: {replicas: 0}
  guarantee: AtLeastOnce
  sources:
    - name: lines
      files: {path: texts}
    - name: made
      generator:
  sinks:
    - name: out
      inputs: [{from: lines}]
      files: {path: out}
    - name: shown
      inputs: [{from: made}]
      console:
"""


def problem_in(text: str, *overrides: str):
    with pytest.raises(InvalidTopologyError) as caught:
        read_document(text, overrides)
    (problem,) = caught.value.problems
    return problem


def test_a_file_becomes_a_model():
    topology = parse(TEXT)
    assert topology.name == "copying"
    assert topology.spec.window.max_records == 200_000
    assert topology.spec.sources[1].generator.seed == 0
    assert topology.spec.sinks[1].console is not None


@pytest.mark.parametrize(
    ("written", "meant"),
    [("On", "On"), ("off", "Off"), ("true", "On"), ("false", "Off"), ('"Off"', "Off")],
)
def test_tracking_survives_the_booleans_of_yaml(written, meant):
    text = TEXT.replace("tracking: Off", f"tracking: {written}").replace("replicas: 0", "")
    assert parse(text).spec.tracking is Tracking(meant)


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ("spec:\n  a: [1, 2", "line 2, column 11", "malformed YAML"),
        ("spec:\n\ta: 1", "line 2, column 1", "malformed YAML"),
        ("a: b: c", "line 1, column 5", "malformed YAML"),
        ("a: 1\n---\nb: 2", "line 2, column 1", "malformed YAML"),
        ("a: !!python/name:os.system x", "line 1, column 4", "malformed YAML"),
        ("# nothing", "file", "is empty"),
        ("spec:\n  day: 2024-02-31", "file", "bad value"),
        ("a: &x\n  b: *x", "a.b", "holds itself"),
    ],
)
def test_malformed_yaml_is_located(text, path, message):
    problem = problem_in(text)
    assert problem.path == path
    assert message in problem.message
    assert problem.remedy


def test_control_characters_are_no_yaml():
    problem = problem_in("a: \x00")
    assert problem.path == "character 4"
    assert "U+0000" in problem.message


def test_a_field_that_stands_twice_is_refused():
    problem = problem_in("spec:\n  window: {}\n  parallelism: 1\n  window: {}\n")
    assert problem.path == "spec.window"
    assert problem.line == 4
    assert "first in line 2" in problem.message


def test_a_field_name_that_yaml_reads_as_a_boolean_is_refused():
    problem = problem_in("spec:\n  on: 1\n")
    assert (problem.path, problem.value, problem.line) == ("spec", "on", 2)
    assert problem.remedy == 'put it in quotes: "on"'


def test_an_override_changes_the_place_that_it_names_and_no_alias_of_it():
    text = """
      spec:
        processors:
          - {name: a, inputs: &in [{from: lines, key: [word]}]}
          - {name: b, inputs: *in}
        sinks:
          - {name: x, files: &f {path: out, options: &o {a: 1}}}
          - {name: y, files: {<<: *f}}
    """
    overrides = [
        "spec.processors[a].inputs[0].key=[user]",
        "spec.sinks[y].files.options.a=2",
        "spec.sinks[x].console={p: &new {q: 1}, r: *new}",
        "spec.sinks[x].console.p.q=2",
    ]
    spec = read_document(text, overrides).data["spec"]
    assert [part["inputs"][0]["key"] for part in spec["processors"]] == [["user"], ["word"]]
    assert [part["files"]["options"]["a"] for part in spec["sinks"]] == [1, 2]
    assert spec["sinks"][0]["console"] == {"p": {"q": 2}, "r": {"q": 1}}


def test_merge_keys_and_aliases_work():
    document = read_document("base: &b {x: 1, y: 2}\nspec:\n  <<: *b\n  y: 3\n")
    assert document.data["spec"] == {"x": 1, "y": 3}


def test_an_empty_value_counts_as_left_out_except_in_options():
    document = read_document("spec:\n  window:\n  sinks:\n    - custom: {options: {a: }}\n")
    assert document.data == {"spec": {"sinks": [{"custom": {"options": {"a": None}}}]}}


def test_overrides_reach_fields_and_list_elements_by_name_and_index():
    topology = parse(
        TEXT,
        [
            "spec.window.maxRecords=10",
            "spec.sources[lines].files.path=other",
            "spec.sources[1].generator.count=5",
            "spec.sinks[out].files={path: elsewhere, format: csv}",
            'spec.spark.conf[spark.sql.shuffle.partitions]="4"',
            "metadata.labels.team=mills",
        ],
    )
    assert topology.spec.window.max_records == 10
    assert topology.spec.sources[0].files.path == "other"
    assert topology.spec.sources[1].generator.count == 5
    assert topology.spec.sinks[0].files.format.value == "csv"
    assert topology.spec.spark.conf == {"spark.sql.shuffle.partitions": "4"}
    assert topology.metadata.labels == {"team": "mills"}


@pytest.mark.parametrize(
    ("override", "path", "words"),
    [
        ("spec.window.maxRecords", "--set spec.window.maxRecords", "has no value"),
        ("window.maxRecords=1", "--set window.maxRecords", "is no path"),
        ("spec=1", "--set spec", "is no path"),
        ("spec..x=1", "--set spec..x", "is no path"),
        ("spec.sources[lins].files.path=x", "--set spec.sources[lins].files.path", "'lines'"),
        ("spec.sources[7].name=x", "--set spec.sources[7].name", "neither a name nor an index"),
        ("spec.guarantee.x=1", "--set spec.guarantee.x", "holds no fields"),
        ("spec.window=[1", "--set spec.window", "malformed YAML"),
    ],
)
def test_an_override_that_fits_nowhere_says_so(override, path, words):
    problem = problem_in(TEXT, override)
    assert problem.path == path
    assert words in str(problem)


def test_every_bad_override_is_reported():
    with pytest.raises(InvalidTopologyError) as caught:
        read_document(TEXT, ["x", "y"])
    assert len(caught.value.problems) == 2


def test_a_problem_of_an_override_names_no_line_of_the_file():
    problem = at(problems_in(TEXT, "spec.parallelism=0"), "spec.parallelism")
    assert problem.line is None
    kept = at(problems_in(TEXT.replace("AtLeastOnce", "Always")), "spec.guarantee")
    assert kept.line == 9


def test_overrides_are_validated_like_the_file():
    problem = at(problems_in(WORDCOUNT, "spec.windw.maxRecords=1"), "spec.windw")
    assert problem.remedy == "did you mean 'window'?"


def test_passwords_are_blotted_out_of_messages():
    assert shorten("redis://:secret@host:6379") == '"redis://:***@host:6379"'
    assert shorten("redis://me:secret@host:6379") == '"redis://:***@host:6379"'


def test_a_share_is_a_whole_percentage() -> None:
    assert parse(TEXT).spec.dead_letters.max_percent == 50
    for text, percent in (("0%", 0), ("7%", 7), ("100%", 100)):
        found = parse(TEXT, [f'spec.deadLetters.maxShare="{text}"'])
        assert found.spec.dead_letters.max_percent == percent


@pytest.mark.parametrize("text", ['"101%"', '"50"', '"0.5"', '"5.5%"', '"-1%"', '"%"', '"07%"'])
def test_another_share_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(InvalidTopologyError) as refused:
        parse(TEXT, [f"spec.deadLetters.maxShare={text}"])
    assert "spec.deadLetters.maxShare" in str(refused.value)
    assert '"50%"' in str(refused.value)


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ("spec.deadLetters.maxShare=0.5", 'write a whole number from 0 to 100 and %: "50%"'),
        (
            "spec.spark.driver.memory=1",
            'write a whole number and k, m, g or t, or Ki, Mi, Gi or Ti: "1g"',
        ),
        ("metadata.name=7", 'put it in quotes: "7"'),
    ],
)
def test_what_to_write_for_a_bare_number_is_right_when_it_is_done(override, remedy):
    with pytest.raises(InvalidTopologyError) as refused:
        parse(TEXT, [override])
    assert str(refused.value).endswith(f"; {remedy}")
    path = override.partition("=")[0]
    parse(TEXT, [f"{path}={remedy.partition(': ')[2]}"])


def test_an_override_with_null_takes_the_field_away():
    spec = read_document(TEXT, ["spec.sinks[shown].console=null"]).data["spec"]
    assert spec["sinks"][1] == {"name": "shown", "inputs": [{"from": "made"}]}
    switched = ["spec.sources[made].generator=~", "spec.sources[made].files={path: x}"]
    assert parse(TEXT, switched).spec.sources[1].generator is None
    assert (
        parse(TEXT, ["spec.ackers.replicas=null", "spec.tracking=null"]).spec.ackers.replicas == 1
    )
    untouched = read_document(TEXT, ["spec.sources[lines].generator.seed=null"]).data
    assert untouched == read_document(TEXT).data, "what is not there is not made to be taken away"
    custom = "spec:\n  sinks:\n    - {name: s, custom: {options: {a: 1}}}\n"
    kept = read_document(custom, ["spec.sinks[s].custom.options.a=null"]).data["spec"]["sinks"][0]
    assert kept["custom"]["options"] == {"a": None}, "options belong to the user's code"
