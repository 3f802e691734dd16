from __future__ import annotations

import copy
import json

import pytest
from pydantic import ValidationError
from topology_texts import WORDCOUNT, model

from millrace.topology.document import read_document
from millrace.topology.edits import classify, worst
from millrace.topology.kinds.base import Effect
from millrace.topology.problems import NOTHING


def edited(*overrides: str, base=WORDCOUNT):
    return model(read_document(str(base).replace("False", "false"), overrides).data)


def edits(*overrides: str, stateful=None, base=WORDCOUNT):
    return classify(model(base), edited(*overrides, base=base), stateful)


def test_equal_topologies_have_no_edits():
    assert classify(model(WORDCOUNT), model(WORDCOUNT)) == []
    # A default that is written out changes nothing.
    assert edits("spec.window.maxRecords=200000", "spec.tupleTimeout=0.5m") == []


@pytest.mark.parametrize(
    "field", ["spec.stateServers.memory", "spec.spark.driver.memory", "spec.spark.executors.memory"]
)
def test_an_amount_of_memory_is_the_same_in_both_forms(field: str):
    for spark, kubernetes in (("9m", "9Mi"), ("2g", "2Gi"), ("9000k", "9000Ki"), ("1t", "1Ti")):
        one, other = edited(f"{field}={spark}"), edited(f"{field}={kubernetes}")
        assert classify(one, other) == []
        assert one.document() == other.document()
        assert f'"memory": "{spark}"' in json.dumps(other.document()), "what Spark reads"
    (edit,) = edits(f"{field}=512Mi")
    assert edit.new == "512m"


@pytest.mark.parametrize(
    "text",
    ["512", "512M", "512mi", "512MI", "512Gb", "0Mi", "1.5Gi", "512 Mi", "Mi", "512Pi", "1gi"],
)
def test_other_amounts_of_memory_are_refused(text: str):
    with pytest.raises(ValidationError, match="is no amount of memory"):
        edited(f'spec.stateServers.memory="{text}"')


@pytest.mark.parametrize(
    ("override", "effect"),
    [
        ("metadata.labels={a: b}", Effect.NONE),
        ("spec.window.maxRecords=5", Effect.RESTART),
        ("spec.window.maxInterval=1s", Effect.RESTART),
        ("spec.window.minInterval=50ms", Effect.RESTART),
        ("spec.ackers.replicas=3", Effect.RESTART),
        ("spec.ackers.min=1", Effect.RESTART),
        ("spec.ackers.max=4", Effect.RESTART),
        ("spec.ackers.backoff=5s", Effect.RESTART),
        ("spec.ackers.maxReplays=9", Effect.RESTART),
        ("spec.deadLetters.maxShare=9%", Effect.RESTART),
        ("spec.tupleTimeout=1m", Effect.RESTART),
        ("spec.guarantee=AtLeastOnce", Effect.RESTART),
        ("spec.tracking=Off", Effect.RESTART),
        ("spec.parallelism=4", Effect.RESTART),
        ("spec.code.path=code", Effect.RESTART),
        ('spec.spark.conf={a: "b"}', Effect.RESTART),
        ("spec.stateServers.replicas=3", Effect.RESTART),
        ("spec.processors[split].function=words:other", Effect.RESTART),
        ("spec.processors[counts].aggregate.emit=final", Effect.RESTART),
        ("spec.sources[lines].files.watch=true", Effect.RESTART),
        ("metadata.name=other", Effect.REFUSED),
        ("spec.keyGroups=64", Effect.REFUSED),
        ("spec.stateServers.url=redis://h", Effect.REFUSED),
        ("spec.sources[lines].files.path=other", Effect.REFUSED),
        ("spec.sources[lines].files.format=parquet", Effect.REFUSED),
        ("spec.processors[counts].inputs[0].key=[letter]", Effect.REFUSED),
        ("spec.processors[counts].aggregate.columns[0].name=m", Effect.REFUSED),
        ("spec.sinks[out].files.path=elsewhere", Effect.REFUSED),
    ],
)
def test_each_edit_has_its_effect_and_a_reason(override, effect):
    (edit,) = edits(override)
    assert edit.effect is effect
    assert edit.reason
    if effect is Effect.REFUSED and "namespace" not in edit.path:
        assert "change it back" in edit.reason


SECRET = {"secretRef": {"name": "own", "key": "password"}}


@pytest.mark.parametrize(
    ("old", "new", "effect"),
    [
        ({"url": "redis://:old@h"}, {"url": "redis://:new@h"}, Effect.RESTART),
        ({"url": "redis://me:old@h"}, {"url": "redis://me@h", "password": SECRET}, Effect.RESTART),
        ({"url": "redis://h?password=a&db=1"}, {"url": "redis://h?db=1"}, Effect.RESTART),
        ({"url": "redis://:old@h"}, {"url": "redis://:old@other"}, Effect.REFUSED),
        ({"url": "redis://:old@h/1"}, {"url": "redis://:new@h/2"}, Effect.REFUSED),
        ({"url": "redis://me:old@h"}, {"url": "redis://you:old@h"}, Effect.REFUSED),
    ],
)
def test_another_password_is_no_other_server(old, new, effect):
    def made(server):
        data = copy.deepcopy(WORDCOUNT)
        data["spec"]["stateServers"] = server
        data["spec"]["sinks"].append(
            {"name": "r", "inputs": [{"from": "counts"}], "redis": {**server, "key": "a:{word}"}}
        )
        return model(data)

    found = classify(made(old), made(new))
    assert {e.path for e in found} >= {"spec.stateServers.url", "spec.sinks[r].redis.url"}
    assert {e.effect for e in found} == {effect}


def test_a_namespace_that_is_named_changes_nothing_on_one_machine():
    (edit,) = edits("metadata.namespace=jobs")
    assert edit.effect is Effect.NONE


def test_an_edit_names_the_component_and_both_values():
    (edit,) = edits("spec.sources[lines].files.path=other")
    assert (edit.path, edit.old, edit.new) == ("spec.sources[lines].files.path", "texts", "other")
    assert '"texts" → "other": refused' in str(edit)


def test_the_order_of_components_and_inputs_means_nothing():
    data = copy.deepcopy(WORDCOUNT)
    data["spec"]["processors"].reverse()
    assert classify(model(WORDCOUNT), model(data)) == []


def test_components_come_and_go_with_a_restart():
    added = copy.deepcopy(WORDCOUNT)
    added["spec"]["sources"].append({"name": "made", "generator": {}})
    added["spec"]["sinks"].append(
        {"name": "raw", "inputs": [{"from": "made"}], "files": {"path": "raw"}}
    )
    there = classify(model(WORDCOUNT), model(added))
    assert [(e.path, e.old, e.effect) for e in there] == [
        ("spec.sources[made]", NOTHING, Effect.RESTART),
        ("spec.sinks[raw]", NOTHING, Effect.RESTART),
    ]
    back = classify(model(added), model(WORDCOUNT))
    assert [(e.path, e.new, e.effect) for e in back] == [
        ("spec.sources[made]", NOTHING, Effect.RESTART),
        ("spec.sinks[raw]", NOTHING, Effect.RESTART),
    ]
    assert "read position" in back[0].reason
    assert "its open roots and replays" in back[0].reason
    assert "its dead letters stay" in back[0].reason
    assert back[1].reason == "what is sealed is shown there first"


@pytest.mark.parametrize(
    ("kind", "other", "effect"),
    [
        ({"files": {"path": "out"}}, {"files": {"path": "out"}}, Effect.REFUSED),
        ({"files": {"path": "out"}}, {"files": {"path": "new"}}, Effect.RESTART),
        (
            {"redis": {"url": "redis://h", "mode": "stream", "stream": "s"}},
            {"redis": {"url": "redis://h", "mode": "stream", "stream": "s"}},
            Effect.REFUSED,
        ),
        ({"console": {}}, {"console": {}}, Effect.RESTART),
    ],
)
def test_what_a_sink_has_written_belongs_to_its_name(kind, other, effect):
    """The sink itself would refuse a place that bears another name."""
    data, renamed = copy.deepcopy(WORDCOUNT), copy.deepcopy(WORDCOUNT)
    data["spec"]["sinks"] = [{"name": "out", "inputs": [{"from": "counts"}], **kind}]
    renamed["spec"]["sinks"] = [{"name": "new", "inputs": [{"from": "split"}], **other}]
    found = classify(model(data), model(renamed))
    assert worst(found) is effect
    if effect is Effect.REFUSED:
        assert found[0].path == "spec.sinks[out].name"
        assert "keep the name 'out'" in found[0].reason


def test_renaming_what_keeps_something_is_refused():
    renamed = copy.deepcopy(WORDCOUNT)
    renamed["spec"]["sources"][0]["name"] = "text"
    renamed["spec"]["processors"][0]["inputs"] = [{"from": "text"}]
    renamed["spec"]["processors"][1]["name"] = "totals"
    renamed["spec"]["sinks"][0]["inputs"] = [{"from": "totals"}]
    refused = {
        e.path: e.new
        for e in classify(model(WORDCOUNT), model(renamed))
        if e.effect is Effect.REFUSED
    }
    assert refused == {
        "spec.sources[lines].name": "text",
        "spec.processors[counts].name": "totals",
    }


def test_another_kind_of_source_is_refused_once():
    data = copy.deepcopy(WORDCOUNT)
    data["spec"]["sources"][0] = {"name": "lines", "generator": {"seed": 3}}
    (edit,) = classify(model(WORDCOUNT), model(data))
    assert (edit.old, edit.new, edit.effect) == ("files", "generator", Effect.REFUSED)


def test_another_kind_of_processor_is_refused_where_it_keeps_state():
    data = copy.deepcopy(WORDCOUNT)
    for processor in data["spec"]["processors"]:
        for kind in ("function", "aggregate"):
            processor.pop(kind, None)
        processor["sql"] = {"select": ["*"]}
    kinds = {e.path: e.effect for e in classify(model(WORDCOUNT), model(data))}
    assert kinds["spec.processors[split]"] is Effect.RESTART
    assert kinds["spec.processors[counts]"] is Effect.REFUSED


def test_the_key_of_a_processor_without_state_may_change():
    data = copy.deepcopy(WORDCOUNT)
    data["spec"]["processors"][0]["inputs"] = [{"from": "lines", "key": ["value"]}]
    other = "spec.processors[split].inputs[0].key=[other]"
    (guarded,) = edits(other, base=data)
    assert guarded.effect is Effect.REFUSED
    (edit,) = edits(other, base=data, stateful={"counts"})
    assert (edit.path, edit.effect) == ("spec.processors[split].inputs[lines].key", Effect.RESTART)


def test_another_input_of_the_same_key_keeps_the_state():
    data = copy.deepcopy(WORDCOUNT)
    data["spec"]["processors"][1]["inputs"].append({"from": "more", "key": ["word"]})
    (edit,) = classify(model(WORDCOUNT), model(data))
    assert (edit.path, edit.effect) == ("spec.processors[counts].inputs[more]", Effect.RESTART)


def test_options_of_custom_parts_may_hold_anything():
    data = copy.deepcopy(WORDCOUNT)
    custom = {"class": "m:C", "options": {"inputs": [1]}}
    data["spec"]["sources"][0] = {"name": "lines", "custom": custom}
    (edit,) = edits("spec.sources[lines].custom.options.inputs=[2]", base=data)
    assert edit.effect is Effect.RESTART


def test_the_worst_effect_counts():
    assert worst([]) is Effect.NONE
    assert worst(edits("spec.window.maxRecords=5")) is Effect.RESTART
    assert worst(edits("spec.window.maxRecords=5", "spec.parallelism=4")) is Effect.RESTART
    assert worst(edits("spec.keyGroups=5", "spec.parallelism=4")) is Effect.REFUSED
