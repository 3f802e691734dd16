"""The CRDs are what Kubernetes takes, say what the model says, and name what is wrong where."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import manifests
import pytest
import yaml
from manifests import WORDS, Broken
from pydantic import Field
from rule_evaluation import broken_at, holds
from schema_rules import (
    faults,
    invalid_at,
    nodes,
    twice_at,
    unknown_fields,
    with_defaults,
)

from millrace.topology.load import parse
from millrace.topology.model import StreamTopology
from millrace.topology.parts import Part
from millrace.topology.problems import InvalidTopologyError
from millrace.topology.schema import schema_of
from millrace_operator.api.definitions import MOST_BYTES, definitions
from millrace_operator.api.structural import UnfitSchemaError, structural
from millrace_operator.crds import main, rendered

ROOT = Path(__file__).parents[3]
CRDS = definitions()
TOPOLOGY = CRDS["streamtopologies.yaml"]
SNAPSHOT = CRDS["topologysnapshots.yaml"]
EXAMPLES = sorted(ROOT.glob("examples/*/topology.yaml"))


def version(crd: dict[str, Any]) -> dict[str, Any]:
    (only,) = crd["spec"]["versions"]
    return only


def schema(crd: dict[str, Any] = TOPOLOGY) -> dict[str, Any]:
    return version(crd)["schema"]["openAPIV3Schema"]


def refused(manifest: dict[str, Any], old: dict[str, Any] | None = None) -> list[str]:
    """Paths at which an API server refuses a topology."""
    unknown = unknown_fields({**schema(), "properties": _open_metadata()}, manifest)
    paths = [*unknown, *invalid_at(schema(), manifest), *twice_at(schema(), manifest)]
    if paths:
        return paths  # rules are only asked of what is valid otherwise
    was = with_defaults(schema(), old) if old is not None else None
    return list(broken_at(schema(), with_defaults(schema(), manifest), was))


def _open_metadata() -> dict[str, Any]:
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {**schema()["properties"], "metadata": free}


def problems(manifest: dict[str, Any]) -> list[str]:
    try:
        parse(json.dumps(manifest))
    except InvalidTopologyError as error:
        return [problem.path for problem in error.problems]
    return []


@pytest.mark.parametrize("name", CRDS)
def test_the_schema_is_structural(name: str):
    assert faults(schema(CRDS[name])) == []


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        ({"type": "object", "additionalProperties": False}, "must be a schema"),
        ({"$ref": "#/x"}, "keyword $ref"),
        ({"anyOf": [{"type": "string"}]}, "keyword anyOf"),
        ({"type": "string", "pattern": "^(?=a)"}, "RE2"),
        ({"type": "integer", "maximum": 2**63 - 1}, "float64"),
        ({"type": "string", "default": 1}, "the default is invalid"),
        ({"type": "object", "properties": {}, "default": {"a": 1}}, "would be pruned"),
        ({"type": "array"}, "has items"),
        (
            {
                "type": "array",
                "items": {"type": "object"},
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
            "no single value",
        ),
    ],
)
def test_the_checker_sees_what_kubernetes_refuses(broken: dict[str, Any], fault: str):
    whole = {"type": "object", "properties": {"field": broken}}
    assert any(fault in said for said in faults(whole)), faults(whole)


@pytest.mark.parametrize("name", CRDS)
def test_plain_apply_takes_it(name: str):
    assert len(json.dumps(CRDS[name])) < MOST_BYTES / 2


@pytest.mark.parametrize("name", CRDS)
def test_every_field_is_explained(name: str):
    known = {"apiVersion", "kind", "metadata", "metadata.name"}
    bare = [p for p, n in nodes(schema(CRDS[name])) if p and p[-1] not in "]}" and p not in known]
    described = {p for p, n in nodes(schema(CRDS[name])) if n.get("description")}
    assert sorted(set(bare) - described) == []


def test_all_fields_of_the_model_are_in_it():
    declared = {p for p, _ in nodes(schema()) if p.startswith("spec.") and p[-1] not in "]}"}
    reference = (ROOT / "docs" / "topology.md").read_text()
    fields = set(re.findall(r"^\| `(spec\.[^`]+)` \|", reference, re.MULTILINE))
    assert declared == fields


def test_bounds_and_defaults_are_those_of_the_model():
    spec = schema()["properties"]["spec"]["properties"]
    ackers = spec["ackers"]["properties"]["replicas"]
    assert (ackers["minimum"], ackers["maximum"], ackers["default"]) == (0, 64, 1)
    assert spec["tracking"]["enum"] == ["On", "Off"]
    assert spec["keyGroups"]["default"] == 128
    options = spec["sources"]["items"]["properties"]["custom"]["properties"]["options"]
    assert options["x-kubernetes-preserve-unknown-fields"] is True
    count = spec["sources"]["items"]["properties"]["generator"]["properties"]["count"]
    assert (count["format"], "maximum" in count, count["minimum"]) == ("int64", False, 1)


def test_only_options_of_user_code_are_free():
    free = [p for p, n in nodes(schema()) if "x-kubernetes-preserve-unknown-fields" in n]
    assert free == ["spec.sources[].custom.options", "spec.sinks[].custom.options"]


def test_names_columns_and_subresources():
    names = TOPOLOGY["spec"]["names"]
    assert (names["shortNames"], names["categories"]) == (["topo"], ["millrace"])
    assert TOPOLOGY["metadata"]["name"] == "streamtopologies.millrace.dev"
    columns = {
        c["name"]: c.get("priority", 0) for c in version(TOPOLOGY)["additionalPrinterColumns"]
    }
    assert [n for n, wide in columns.items() if not wide] == [
        *("Ready", "Phase", "Ackers", "Executors", "Window", "Age")
    ]
    assert {"Message", "Epoch", "Snapshot"} <= set(columns)


@pytest.mark.parametrize("name", CRDS)
def test_paths_of_columns_and_scale_are_there(name: str):
    found = dict(nodes(schema(CRDS[name])))
    one = version(CRDS[name])
    paths = {c["jsonPath"]: c["type"] for c in one["additionalPrinterColumns"]}
    scale = one["subresources"].get("scale", {})
    paths |= {p: "string" if "elector" in k else "integer" for k, p in scale.items()}
    for path, kind in paths.items():
        place = re.sub(r"\[\?.*?\]", "[]", path.removeprefix("."))
        if place != "metadata.creationTimestamp":
            assert found[place]["type"] == kind, path


def test_the_status_is_a_subresource_with_standard_conditions():
    for crd in CRDS.values():
        assert version(crd)["subresources"]["status"] == {}
        status = schema(crd)["properties"]["status"]["properties"]
        conditions = status["conditions"]
        assert conditions["x-kubernetes-list-map-keys"] == ["type"]
        assert set(conditions["items"]["required"]) == {
            *("type", "status", "lastTransitionTime", "reason", "message")
        }
        assert conditions["items"]["properties"]["status"]["enum"] == ["True", "False", "Unknown"]
        assert "observedGeneration" in status


class AsKubectl(yaml.SafeLoader):
    """Reads a bare y or n as a boolean too, as kubectl does."""


AsKubectl.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^[yYnN]$"), list("yYnN"))
AsKubectl.bool_values = {**yaml.SafeLoader.bool_values, "y": True, "n": False}


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda f: str(f.relative_to(ROOT)))
def test_every_example_is_taken(file: Path):
    assert EXAMPLES
    assert refused(yaml.load(file.read_text(), AsKubectl)) == []


def test_a_bare_n_is_no_text_for_kubectl():
    assert yaml.load("[n, 'n', name]", AsKubectl) == [False, "n", "name"]


def test_the_topology_of_the_tests_is_taken():
    assert refused(WORDS) == []
    assert problems(WORDS) == []


@pytest.mark.parametrize(
    "broken", [*manifests.BY_SCHEMA, *manifests.BY_KEYS, *manifests.BY_FIELDS], ids=lambda b: b.name
)
def test_the_schema_refuses_at_the_path(broken: Broken):
    assert broken.path in refused(broken.manifest)


@pytest.mark.parametrize("broken", manifests.BY_RULES, ids=lambda b: b.name)
def test_a_rule_refuses_at_the_path(broken: Broken):
    assert set(refused(broken.manifest)) == {broken.path}


@pytest.mark.parametrize("broken", [*manifests.BY_KEYS, *manifests.BY_RULES], ids=lambda b: b.name)
def test_a_rule_refuses_only_what_the_model_refuses(broken: Broken):
    assert problems(broken.manifest) != []


@pytest.mark.parametrize("broken", manifests.OPERATOR_ALONE, ids=lambda b: b.name)
def test_what_the_schema_lets_through_is_known(broken: Broken):
    assert refused(broken.manifest) == []
    assert broken.path in problems(broken.manifest)


def test_every_rule_has_a_manifest_that_it_refuses():
    """So that none is true of everything."""
    unproven = []
    for path, node in nodes(schema()):
        for rule in node.get("x-kubernetes-validations", ()):
            field = rule.get("fieldPath", "")
            places = {re.sub(r"\[\d+\]", "[]", b.path) for b in manifests.BY_RULES}
            if "oldSelf" not in rule["rule"] and f"{path}{field}" not in places:
                unproven.append(rule["rule"])
    assert unproven == []


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"keyGroups": 64}, "spec.keyGroups"),
        ({"stateServers": {"replicas": 1, "url": "redis://r"}}, "spec.stateServers"),
    ],
)
def test_what_cannot_be_changed(change: dict[str, Any], path: str):
    after = {**WORDS, "spec": {**WORDS["spec"], **change}}
    assert refused(after) == []
    assert refused(after, old=WORDS) == [path]


def test_an_edit_that_changes_nothing_fixed_is_taken():
    after = {**WORDS, "spec": {**WORDS["spec"], "parallelism": 7}}
    assert refused(after, old=WORDS) == []


def test_a_topology_can_begin_with_a_snapshot_that_another_took_by_itself():
    """Their names have dots."""
    begins = {"restoreFrom": {"snapshot": "auto-0a1b2c3d-2.1.12"}}
    assert refused({**WORDS, "spec": {**WORDS["spec"], **begins}}) == []
    begins = {"restoreFrom": {"snapshot": "auto-.12"}}
    after = {**WORDS, "spec": {**WORDS["spec"], **begins}}
    assert refused(after) == ["spec.restoreFrom.snapshot"]


def test_a_snapshot_is_asked_for_once():
    spec = {"topology": "words", "deletionPolicy": "Retain"}
    rules = schema(SNAPSHOT)["properties"]["spec"]
    assert list(broken_at(rules, {**spec, "deletionPolicy": "Delete"}, spec)) == []
    # An operator that is away hears of a deletion, and not of what was changed before it.
    deletes = {**spec, "deletionPolicy": "Delete"}
    assert list(broken_at(rules, spec, deletes)) == ["deletionPolicy"]
    assert list(broken_at(rules, deletes, deletes)) == []
    assert list(broken_at(rules, {**spec, "topology": "other"}, spec)) == ["topology"]
    assert len(list(broken_at(rules, {**spec, "to": "/s"}, spec))) == 1
    snapshot = {"metadata": {"name": "s"}, "spec": {"topology": "words"}}
    assert invalid_at(schema(SNAPSHOT), snapshot) == []
    assert invalid_at(schema(SNAPSHOT), {"spec": {}}) == ["spec"]
    assert invalid_at(schema(SNAPSHOT), {"spec": {"topology": "W"}}) == ["spec.topology"]
    assert invalid_at(
        schema(SNAPSHOT), {"spec": {"topology": "w", "deletionPolicy": "delete"}}
    ) == ["spec.deletionPolicy"]


def test_defaults_make_the_same_topology():
    stored = with_defaults(schema(), WORDS)
    assert StreamTopology.model_validate(stored) == StreamTopology.model_validate(WORDS)
    assert stored["spec"]["window"] == {"maxRecords": 200_000, "maxInterval": "100ms"}


def test_what_is_stored_has_no_defaults_of_nothing():
    stored = with_defaults(schema(), {"spec": {"ackers": {}}})
    assert stored["spec"]["ackers"]["replicas"] == 1
    assert not {"pods", "volumes", "code"} & set(stored["spec"])
    defaults = [node["default"] for _, node in nodes(schema()) if "default" in node]
    assert "{}" not in json.dumps(defaults)
    assert "[]" not in json.dumps(defaults)


def test_an_evaluator_that_says_yes_to_all_would_be_noticed():
    assert holds("self.a == 1", {"a": 1})
    assert not holds("self.a == 1", {"a": 2})
    assert not holds("has(self.__function__)", {"a": 2})
    assert not holds("self == oldSelf", 1, 2)


def test_a_model_that_no_crd_can_say_is_an_error():
    class Several(Part):
        field: list[str] | dict[str, str] = Field(description="One of two.")

    class Named(Part):
        model_config = {"extra": "allow"}
        field: str = Field(description="And others.")

    with pytest.raises(UnfitSchemaError, match="field: is one of several forms"):
        structural(schema_of(Several))
    with pytest.raises(UnfitSchemaError, match="has named fields and others"):
        structural(schema_of(Named))
    with pytest.raises(UnfitSchemaError, match=r"no field 'spec\.nothing'"):
        structural({"type": "object", "properties": {}}, {"spec.nothing": {}})
    with pytest.raises(UnfitSchemaError, match="no CRD can say 'uniqueItems'"):
        structural({"type": "array", "items": {"type": "string"}, "uniqueItems": True})


def test_text_or_number_is_said_in_the_way_of_kubernetes():
    class Quantity(Part):
        cpu: int | str = Field(description="Cores.")

    made = structural(schema_of(Quantity))
    assert made["properties"]["cpu"] == {
        "description": "Cores.",
        "x-kubernetes-int-or-string": True,
    }
    assert faults(made | {"properties": made["properties"]}) == []


def test_the_files_are_those_that_the_models_make(tmp_path: Path, capsys):
    for name, text in rendered().items():
        assert (ROOT / "crds" / name).read_text() == text
        assert yaml.safe_load(text) == CRDS[name]
    assert main([str(tmp_path)]) == 0
    assert main(["--verify", str(tmp_path)]) == 0
    file = tmp_path / "streamtopologies.yaml"
    file.write_text(file.read_text().replace("maximum: 64", "maximum: 65"))
    assert main(["--verify", str(tmp_path)]) == 1
    assert "-" in capsys.readouterr().out
    (tmp_path / "topologysnapshots.yaml").unlink()
    file.write_text(rendered()[file.name])
    assert main(["--verify", str(tmp_path)]) == 1


def test_the_readme_lists_what_the_operator_alone_refuses():
    text = (ROOT / "crds" / "README.md").read_text()
    listed = re.findall(r"^- (.+?)(?:[:;]|$)", text.partition("operator alone")[2], re.MULTILINE)
    assert sorted(listed) == sorted(broken.name for broken in manifests.OPERATOR_ALONE)
