"""The chart says what is said elsewhere: rights, definitions, releases, values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import millrace_operator
from millrace.homes import pods
from millrace_operator.builders.naming import MANAGED_BY, MANAGER
from millrace_operator.main import LEASE, main

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "millrace"
VERSION = millrace_operator.__version__
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
RIGHTS = yaml.safe_load((CHART / "files" / "rights.yaml").read_text())
ASKED_FOR = "in the whole cluster", "in its own namespace"

Rights = set[tuple[str, str]]


def told(where: str | None) -> Rights:
    """What docs/operator.md asks for: its last column begins with the place, if there is one."""
    text = (ROOT / "docs" / "operator.md").read_text().partition("## Rights")[2]
    rows = re.findall(r"^\| `([a-z/]+)` \| ([a-z, ]+) \|(.*)\|$", text, re.MULTILINE)
    assert len(rows) > 10
    places = [note.strip().partition(":")[0] for _, _, note in rows]
    known = [place if place in ASKED_FOR else None for place in places]
    assert where in known
    return {
        (resource, verb)
        for (resource, verbs, _), place in zip(rows, known, strict=True)
        if place == where
        for verb in verbs.split(", ")
    }


def given(rules: list[Mapping[str, Any]]) -> Rights:
    return {(what, verb) for rule in rules for what in rule["resources"] for verb in rule["verbs"]}


@pytest.mark.parametrize(
    ("part", "where"), [("topologies", None), ("cluster", ASKED_FOR[0]), ("own", ASKED_FOR[1])]
)
def test_the_chart_gives_the_rights_that_are_told(part: str, where: str | None):
    assert given(RIGHTS[part]) == told(where)


def test_the_right_that_only_some_clusters_ask_for_is_told():
    assert given(RIGHTS["ownerReferences"]) == {("streamtopologies/finalizers", "update")}
    assert VALUES["rbac"]["ownerReferences"] is True
    text = " ".join((ROOT / "docs" / "operator.md").read_text().split())
    assert "`update` of `streamtopologies/finalizers`" in text
    assert set(RIGHTS) == {"topologies", "cluster", "own", "ownerReferences"}


def test_of_leases_it_has_its_own_alone():
    rules = {tuple(rule["verbs"]): rule.get("resourceNames") for rule in RIGHTS["own"]}
    assert rules == {("create",): None, ("get", "update"): [LEASE]}
    text = (ROOT / "docs" / "operator.md").read_text()
    assert f"of the Lease `{LEASE}` alone" in text


def test_no_rule_gives_all():
    for rules in RIGHTS.values():
        for rule in rules:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]


def test_the_definitions_are_the_same_files():
    names = sorted(path.name for path in (ROOT / "crds").glob("*.yaml"))
    assert names == sorted(path.name for path in (CHART / "crds").iterdir())
    for name in names:
        assert (CHART / "crds" / name).read_bytes() == (ROOT / "crds" / name).read_bytes()


def test_the_chart_is_of_the_operators_release():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == str(chart["appVersion"]) == millrace_operator.__version__


# -- values


OF_OTHERS = {"global": {"any": "thing"}, "enabled": True}
"""What a chart that includes this one may say, and no template reads."""


def fields(schema: Mapping[str, Any], value: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Path, default and schema of every value; probes are one value each."""
    for name, one in schema["properties"].items():
        place = f"{path}{name}"
        if place in OF_OTHERS:
            continue
        if "properties" in one and not name.endswith("Probe"):
            yield from fields(one, value[name], f"{place}.")
        else:
            yield place, value[name], one


def paths(value: Mapping[str, Any], known: set[str], path: str = "") -> Iterator[str]:
    for name, one in value.items():
        place = f"{path}{name}"
        if place in known or not isinstance(one, dict):
            yield place
        else:
            yield from paths(one, known, f"{place}.")


def test_every_value_is_in_the_schema_and_fits():
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(VALUES, SCHEMA)
    known = {place for place, _, _ in fields(SCHEMA, VALUES)}
    assert sorted(paths(VALUES, known)) == sorted(known)


def test_a_chart_that_includes_this_one_may_have_a_condition_for_it():
    jsonschema.validate({**VALUES, **OF_OTHERS}, SCHEMA)
    with pytest.raises(jsonschema.ValidationError, match="'yes' is not of type 'boolean'"):
        jsonschema.validate({**VALUES, "enabled": "yes"}, SCHEMA)


def test_objects_of_the_schema_take_no_unknown_values():
    def closed(schema: Mapping[str, Any]) -> Iterator[bool]:
        for one in schema.get("properties", {}).values():
            if "properties" in one:
                yield one["additionalProperties"] is False
                yield from closed(one)

    assert SCHEMA["additionalProperties"] is False
    assert all(closed(SCHEMA))


def test_the_table_of_values_is_that_of_the_schema():
    rows = []
    for place, default, schema in fields(SCHEMA, VALUES):
        shown = json.dumps(default)
        short = f"`{shown}`" if len(shown) < 40 else "see `values.yaml`"
        rows.append(f"| `{place}` | {short} | {schema['description']} |")
    text = (ROOT / "docs" / "install.md").read_text().partition("## Values")[2]
    assert re.findall(r"^\| `.*$", text, re.MULTILINE) == rows


IMAGES = ("image", "topologyPods.runtimeImage", "topologyPods.stateServerImage")


def test_whoever_installs_names_the_images():
    """Whoever owned the name of a default could run code with the operator's rights."""
    defaults = {place: default for place, default, _ in fields(SCHEMA, VALUES)}
    assert {p for p in defaults if p.endswith(".repository")} == {f"{n}.repository" for n in IMAGES}
    assert {defaults[f"{name}.repository"] for name in IMAGES} == {""}
    helpers = (CHART / "templates" / "_helpers.tpl").read_text()
    (check,) = re.findall(r'define "millrace.imagesNamed" -}}(.*?)\{\{- end -}}\n\n', helpers, re.S)
    told = dict(re.findall(r'"([A-Za-z.]+)" \.Values\.([A-Za-z.]+)', check))
    assert told == {name: name for name in IMAGES}
    first, *_ = (CHART / "templates" / "deployment.yaml").read_text().splitlines()
    assert first == '{{- include "millrace.imagesNamed" . }}'


@pytest.mark.parametrize("file", ["README.md", "docs/install.md"])
def test_who_installs_by_a_document_names_them(file: str):
    text = (ROOT / file).read_text()
    (command,) = re.findall(r"^helm .*? install (?:.*\\\n)*.*", text, re.M)
    assert [name for name in IMAGES if f"{name}.repository=" not in command] == []
    assert [name for name in IMAGES if f'{name}.tag="$tag"' not in command] == []


def test_an_upgrade_by_the_document_changes_the_images_also_where_the_version_stays():
    """Nodes keep the image that they have of a tag."""
    text = (ROOT / "docs" / "install.md").read_text()
    install, upgrade = (
        re.findall(r"^```sh\n(.*?)^```", part, re.M | re.S)
        for part in re.split(r"^## ", text, flags=re.M)
        if part.startswith(("# Installing", "Upgrading"))
    )
    for blocks in (install, upgrade):
        made = blocks[0].splitlines()
        assert made[0] == "make venv"
        assert made[1] == f"tag={VERSION}-$(git rev-parse --short HEAD)"
        whole = "\n".join(blocks).replace("\\\n", " ")
        builds = [line for line in whole.splitlines() if "build.py" in line]
        assert all('--tag "$tag"' in line for line in builds)
        (changed,) = [one for one in blocks if re.search(r"^helm .* (install|upgrade) ", one, re.M)]
        assert [name for name in IMAGES if f'{name}.tag="$tag"' not in changed] == []
    assert VALUES["image"]["tag"] == ""


def test_commands_of_the_document_set_values_that_there_are():
    text = (ROOT / "docs" / "install.md").read_text()
    told = re.findall(r"--set (?:')?([A-Za-z.]+)=", text)
    known = {place for place, _, _ in fields(SCHEMA, VALUES)}
    assert len(told) > 5
    unknown = [one for one in told if one not in known and one.rpartition(".")[0] not in known]
    assert unknown == []


def test_no_template_reads_a_value_that_is_not_there():
    known = {place for place, _, _ in fields(SCHEMA, VALUES)}
    read = set()
    for file in sorted((CHART / "templates").rglob("*.*")):
        read |= set(re.findall(r"\.Values\.([A-Za-z.]+[A-Za-z])", file.read_text()))
    inner = {place.rsplit(".", count)[0] for place in known for count in range(4)}
    assert sorted(read - inner - known) == []
    used = {place for place in known if any(f"{place}.".startswith(f"{one}.") for one in read)}
    assert sorted(known - used) == []


def test_names_and_numbers_are_those_of_the_pods():
    text = (CHART / "templates" / "deployment.yaml").read_text()
    assert f"name: health\n              containerPort: {pods.HEALTH_PORT}\n" in text
    assert f"name: {pods.POD_NAMESPACE}\n" in text
    for path in (pods.LIVE_PATH, pods.READY_PATH):
        assert f"path: {path}\n" in text
    assert VALUES["podSecurityContext"]["runAsUser"] == pods.USER_ID


def test_metrics_are_looked_for_where_they_are_told():
    templates = CHART / "templates"
    for name, port in (("metrics", "port"), ("networkpolicy", "port")):
        assert f"{port}: {pods.HEALTH_PORT}\n" in (templates / f"{name}.yaml").read_text()
    text = (templates / "podmonitor.yaml").read_text()
    assert text.count(f"- port: health\n      path: {pods.METRICS_PATH}\n") == 2
    assert f"{MANAGED_BY}: {MANAGER}\n" in text
    assert f"key: {pods.ROLE_LABEL}\n" in text
    assert f"values: [{pods.Role.DRIVER}, {pods.Role.ACKER}]\n" in text
    # As Prometheus calls a pod's labels.
    for label in (pods.TOPOLOGY_LABEL, pods.ROLE_LABEL):
        assert f"[__meta_kubernetes_pod_label_{re.sub('[./-]', '_', label)}]" in text


def test_the_notes_remove_what_the_document_removes_in_its_order():
    notes = (CHART / "templates" / "NOTES.txt").read_text()
    part = (ROOT / "docs" / "install.md").read_text().partition("## Removing")[2]
    removing = part.partition("\n## ")[0]
    release = {"{{ .Release.Namespace }}": "millrace-system", "{{ .Release.Name }}": "millrace"}
    for name, value in release.items():
        notes = notes.replace(name, value)
    command = re.compile(r"^ *((?:kubectl delete|helm -n \S+ uninstall) .*)$", re.M)
    assert command.findall(notes) == command.findall(removing)
    assert len(command.findall(notes)) == 4
    told = notes.partition("in this order")[2]
    assert all(kind in told and kind in removing for kind in ("SnapshotDeleted", "SnapshotLeft"))
    assert "deletes every topology that is still there" in told
    assert re.findall(r"\bdocs/|\bexamples/|\.md\b", notes) == [], "who has the chart has no docs"


def test_the_operator_knows_all_options_that_it_is_given(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["--help"])
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    text = (CHART / "templates" / "deployment.yaml").read_text()
    options = set(re.findall(r"^ +- (--[a-z-]+)", text, re.MULTILINE))
    assert options
    assert options <= known


def test_a_lost_node_is_not_waited_for_by_the_pod_that_replaces_the_others():
    """Without these Kubernetes adds its own, of five minutes."""
    waited = {one["key"]: one["tolerationSeconds"] for one in VALUES["tolerations"]}
    assert waited.keys() == {f"node.kubernetes.io/{why}" for why in ("not-ready", "unreachable")}
    assert max(waited.values()) == 0
    text = (ROOT / "docs" / "install.md").read_text()
    assert f"those of a lost node for {max(waited.values())} s" in text
