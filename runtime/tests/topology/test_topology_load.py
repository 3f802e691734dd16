from __future__ import annotations

import copy
import json

import pytest
from topology_texts import WORDCOUNT, WORDS_MODULE, at, changed, problems_in

from millrace.errors import ExitCode, TopologyError
from millrace.topology.load import load, parse
from millrace.topology.model import API_VERSION
from millrace.topology.problems import NOTHING, InvalidTopologyError


def test_word_count_is_valid():
    assert problems_in(WORDCOUNT) == []


@pytest.mark.parametrize(
    ("overrides", "count"),
    [
        ([], 0),
        (["spec.spark.driver.standby=1"], 1),
        (["spec.sources[lines].files.watch=true"], 1),
        (["spec.sources[lines].files.watch=true", "spec.spark.driver.standby=0"], 0),
    ],
)
def test_a_driver_stands_by_where_input_has_no_end_unless_the_file_says_else(overrides, count):
    assert parse(json.dumps(WORDCOUNT), overrides).spec.standbys == count


@pytest.mark.parametrize(
    ("override", "path", "remedy"),
    [
        ("spec.guarantee=ExactlyOnc", "spec.guarantee", "did you mean ExactlyOnce?"),
        ("spec.window.maxRecords=0", "spec.window.maxRecords", "use at least 1"),
        ("spec.keyGroups=5000", "spec.keyGroups", "use at most 4096"),
        ('spec.parallelism="2"', "spec.parallelism", "without quotes"),
        ("spec.parallelism=2.0", "spec.parallelism", "without quotes"),
        ("spec.parallelism=true", "spec.parallelism", "without quotes"),
        ("spec.tupleTimeout=30", "spec.tupleTimeout", '"30s"'),
        ("spec.tupleTimeout=soon", "spec.tupleTimeout", '"1m30s"'),
        ("spec.tupleTimeout=[1s]", "spec.tupleTimeout", '"1m30s"'),
        ("spec.window.maxInterval=0s", "spec.window.maxInterval", '"100ms"'),
        ("spec.tracking=Sometimes", "spec.tracking", "use one of On, Off"),
        ("spec.spark.driver.memory=1 GB", "spec.spark.driver.memory", '"1g"'),
        ("spec.spark.driver.standby=2", "spec.spark.driver.standby", "use at most 1"),
        ("spec.spark.conf={a: 4}", "spec.spark.conf.a", 'put it in quotes: "4"'),
        ("metadata.name=Word_Count", "metadata.name", "lower-case"),
        ("metadata.name=" + "x" * 51, "metadata.name", "at most 50"),
        ("metadata.name=on", "metadata.name", "in quotes"),
        ("metadata.name=[a]", "metadata.name", "single value"),
        ("spec.processors[split].function=words.split", "spec.processors[0].function", "module:"),
        ("spec.processors[split].name=1st", "spec.processors[0].name", "begin with a letter"),
        ("spec.sources[lines].files.watch=1", "spec.sources[0].files.watch", "true or false"),
        ("spec.sources[lines].files.path=''", "spec.sources[0].files.path", "write a text"),
        ("spec.sources[lines].files.path=", "spec.sources[0].files.path", "Folder or file"),
        ("spec.sources=[]", "spec.sources", "at least one"),
        ("spec.sinks=x", "spec.sinks", "'- '"),
        ("spec.window=5", "spec.window", "'field: value'"),
        ("spec.sinks[out]=x", "spec.sinks[0]", "'field: value'"),
        ("spec.windw={}", "spec.windw", "did you mean 'window'?"),
        ("spec.window.max_records=1", "spec.window.max_records", "did you mean 'maxRecords'?"),
        ("spec.maxRecords=1", "spec.maxRecords", "it belongs to spec.window"),
        ("spec.zzz=1", "spec.zzz", "use one of guarantee, window"),
        ("spec.sources[lines].inputs=[]", "spec.sources[0].inputs", "remove the edge"),
    ],
)
def test_a_bad_value_is_named_with_its_path_and_a_remedy(override, path, remedy):
    problem = at(problems_in(WORDCOUNT, override), path)
    assert remedy in problem.remedy


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("apiVersion", "add apiVersion: millrace.dev/v1alpha1"),
        ("kind", "add kind: StreamTopology"),
        ("metadata", "add it: Who the topology is."),
    ],
)
def test_what_is_missing_at_the_top_is_named(name, remedy):
    data = copy.deepcopy(WORDCOUNT)
    del data[name]
    problem = at(problems_in(data), name)
    assert problem.value is NOTHING
    assert problem.remedy == remedy


def test_another_version_is_refused():
    problem = at(problems_in({**WORDCOUNT, "apiVersion": "millrace.dev/v9"}), "apiVersion")
    assert problem.remedy == "write millrace.dev/v1alpha1"


def test_a_file_that_is_no_mapping_is_refused():
    assert at(problems_in("just text"), "file").message == "is no mapping"


def test_all_problems_come_at_once_across_layers():
    data = changed(
        guarantee="Always",
        parallelism=0,
        processors=[
            {"name": "split", "function": "words:split", "inputs": [{"from": "lins"}]},
            {"name": "counts", "inputs": [{"from": "split"}], "aggregate": {"colums": []}},
            {"inputs": [{"from": "split"}], "function": "words:split"},
        ],
    )
    paths = {problem.path for problem in problems_in(data)}
    assert paths == {
        "spec.guarantee",
        "spec.parallelism",
        "spec.processors[0].inputs[0].from",
        "spec.processors[1].inputs[0].key",
        "spec.processors[1].aggregate.colums",
        "spec.processors[1].aggregate.columns",
        "spec.processors[2].name",
    }


def test_a_bad_value_is_not_reported_again_by_what_depends_on_it():
    data = changed()
    data["spec"]["processors"][1]["inputs"] = [{"from": 5, "key": ["word"]}]
    assert [p.path for p in problems_in(data)] == ["spec.processors[1].inputs[0].from"]


def test_a_bad_element_hides_no_other_problem():
    data = changed(sinks=["x", {"name": "c", "inputs": [{"from": "counts"}], "console": {}}])
    assert {p.path for p in problems_in(data)} == {"spec.sinks[0]", "spec.sinks[1].console"}


def test_problems_are_in_the_order_of_the_file(tmp_path):
    file = tmp_path / "t.yaml"
    file.write_text(
        "apiVersion: millrace.dev/v1alpha1\nkind: StreamTopology\nmetadata: {name: x}\nspec:\n"
        "  sinks:\n    - name: out\n      inputs: [{from: nobody}]\n      console: {}\n"
        "  parallelism: none\n  sources:\n    - name: s\n"
    )
    with pytest.raises(InvalidTopologyError) as caught:
        load(file)
    found = [(p.line, p.path) for p in caught.value.problems]
    assert found == [
        (7, "spec.sinks[0].inputs[0].from"),
        (8, "spec.sinks[0].console"),
        (9, "spec.parallelism"),
        (11, "spec.sources[0]"),
    ]


def test_the_error_is_a_topology_error_with_one_line_for_each_problem():
    with pytest.raises(TopologyError) as caught:
        parse("a: 1\nb: 2")
    assert caught.value.exit_code is ExitCode.INVALID_TOPOLOGY
    assert len(str(caught.value).splitlines()) == len(caught.value.problems) > 2


def test_loading_names_the_folders(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "words.py").write_text(WORDS_MODULE)
    file = tmp_path / "t.yaml"
    file.write_text(str(changed(code={"path": "code"})).replace("False", "false"))
    loaded = load(file, ["spec.parallelism=3"])
    assert loaded.folder == tmp_path.resolve()
    assert loaded.code_path == (tmp_path / "code").resolve()
    assert loaded.topology.spec.parallelism == 3


@pytest.mark.parametrize("kind", ["missing", "folder", "binary", "loop"])
def test_a_file_that_cannot_be_read_says_why(tmp_path, kind):
    file = tmp_path / "t.yaml"
    if kind == "folder":
        file.mkdir()
    elif kind == "binary":
        file.write_bytes(b"name: \xff\xfe")
    elif kind == "loop":
        file.symlink_to(file)
    with pytest.raises(InvalidTopologyError) as caught:
        load(file)
    expected = {
        "missing": "does not exist",
        "folder": "is a folder",
        "binary": "UTF-8 text",
        "loop": "cannot be read: Too many levels",
    }
    assert expected[kind] in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("2024-01-01", "is a date"),
        ("2024-01-01T10:00:00Z", "is a date"),
        ("!!binary /w==", "is binary data"),
        ("!!set {a, b}", "is a set"),
        ("!!omap [a: 1]", "is a value of YAML alone"),
        (".nan", "is a number that JSON does not have"),
        (f"!!int '0x{'f' * 6000}'", "is a number that JSON does not have"),
    ],
)
@pytest.mark.parametrize("section", ["sources", "sinks"])
def test_options_that_json_does_not_have_are_named_with_their_lines(section, value, words):
    plain = {"sources": "generator: {count: 1}", "sinks": "files: {path: out}"}
    custom = 'custom: {class: "m:C", options: {since: [1, null, {at: VALUE}]}}'
    plain[section] = custom.replace("VALUE", value)
    text = f"""apiVersion: {API_VERSION}
kind: StreamTopology
metadata: {{name: dated}}
spec:
  sources: [{{name: s, {plain["sources"]}}}]
  sinks: [{{name: o, inputs: [{{from: s}}], {plain["sinks"]}}}]
"""
    with pytest.raises(InvalidTopologyError) as caught:
        parse(text)
    (problem,) = caught.value.problems
    assert problem.path.startswith(f"spec.{section}[0].custom.options.since[2].at")
    assert problem.line == (5 if section == "sources" else 6)
    assert problem.message.startswith(words)
    assert "put it in quotes" in str(problem)
    assert parse(text.replace(value, "[1, 2.5, true, null, text]")).name == "dated"


def test_the_model_cannot_be_changed():
    topology = parse(str(WORDCOUNT).replace("False", "false"))
    with pytest.raises(Exception, match="frozen"):
        topology.spec.parallelism = 5


def test_tracking_depends_on_the_guarantee():
    text = str(WORDCOUNT).replace("False", "false")
    assert parse(text).spec.tracked
    assert not parse(text, ["spec.tracking=Off"]).spec.tracked
    assert not parse(text, ["spec.guarantee=AtMostOnce"]).spec.tracked
