"""docs/install.md leads to a topology that runs, docs/gaps.md says what a cluster cannot do."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from memory_cluster import SETTINGS, Cluster

from millrace.errors import ExitCode
from millrace.homes.pods import USER_ID
from millrace.topology.model import StreamTopology
from millrace.topology.pods import PodSettings
from millrace.topology.scalars import quantity
from millrace_operator.api.definitions import definitions
from millrace_operator.builders.naming import Owner
from millrace_operator.builders.network import budgets, policies
from millrace_operator.builders.pods import acker_pod, driver_pod, state_server_pod
from millrace_operator.reconcile.observe import PodPhase

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "operator" / "tests" / "builders"))

from pod_standards import violations  # noqa: E402

TEXT = (ROOT / "docs" / "install.md").read_text()
GAPS_TEXT = (ROOT / "docs" / "gaps.md").read_text()
EXAMPLE = ROOT / "examples" / "bands"
OWNER = Owner("bands", "bands", "uid-1", "0.1.0")


def section(title: str, text: str = TEXT) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert found is not None
    return found[1]


def documents(file: str) -> list[Any]:
    return list(yaml.safe_load_all((EXAMPLE / file).read_text()))


def spec() -> dict[str, Any]:
    (topology,) = documents("topology.yaml")
    found: dict[str, Any] = topology["spec"]
    return found


def kustomized() -> dict[str, Any]:
    (found,) = documents("kustomization.yaml")
    made: dict[str, Any] = found
    return made


def test_the_first_topology_runs_on_a_cluster():
    cluster = Cluster()
    cluster.spec = spec()
    cluster.settle()
    conditions = {c.type: (c.status.value, c.reason) for c in cluster.status.conditions}
    assert conditions["Stalled"] == ("False", "NothingStalls")
    assert conditions["Ready"] == ("True", "AllReady")
    assert sum(name.startswith("words-state-") for name in cluster.pods) == 2


def test_its_code_comes_as_a_config_map_of_the_modules_that_it_names():
    (maps,) = kustomized()["configMapGenerator"]
    assert maps["name"] == spec()["code"]["configMap"]
    assert kustomized()["generatorOptions"] == {"disableNameSuffixHash": True}
    modules = {p["function"].partition(":")[0] for p in spec()["processors"] if "function" in p}
    assert maps["files"] == [f"{name}.py" for name in modules]
    assert all((EXAMPLE / file).is_file() for file in maps["files"])


def test_all_that_is_applied_is_named():
    files = set(kustomized()["resources"])
    modules = {file for made in kustomized()["configMapGenerator"] for file in made["files"]}
    there = {path.name for path in EXAMPLE.iterdir() if path.is_file()}
    assert there == {"kustomization.yaml", *files, *modules}


def test_the_commands_go_with_the_manifests():
    commands = section("A first topology").partition("```sh\n")[2].partition("```")[0]
    space = kustomized()["namespace"]
    assert f"kubectl create namespace {space}\n" in commands
    assert set(re.findall(r"-n (\S+)", commands)) == {space}
    assert "kubectl apply -k examples/bands\n" in commands
    sink = spec()["sinks"][0]["redis"]
    secret, key = re.findall(r"secret generic (\S+) --from-literal=(\w+)=", commands)[0]
    assert sink["password"]["secretRef"] == {"name": secret, "key": key}
    deployment, service = documents("store.yaml")
    assert f"deployment/{deployment['metadata']['name']} --" in commands
    assert (
        sink["url"]
        == f"redis://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    )
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    for variable in container["env"]:
        assert variable["valueFrom"]["secretKeyRef"] == {"name": secret, "key": key}
    assert f"$({container['env'][0]['name']})" in container["command"]
    (asked,) = re.findall(r"valkey-cli hgetall (\S+)", commands)
    assert re.fullmatch(sink["key"].replace("{band}", "(low|middle|high)"), asked)
    assert "password" not in str(documents("store.yaml")).replace("'key': 'password'", "")


def test_the_store_runs_in_a_restricted_namespace_and_is_found():
    deployment, service = documents("store.yaml")
    pod = deployment["spec"]["template"]
    assert violations({"metadata": {"name": "store"}, **pod}) == []
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()


def test_the_memory_and_cpu_that_are_told_are_what_pods_ask_for():
    topology = StreamTopology.model_validate(documents("topology.yaml")[0])
    servers, ackers = topology.spec.state_servers.replicas, topology.spec.ackers.replicas
    assert (servers, ackers) == (2, 1)
    pods = [
        driver_pod(OWNER, SETTINGS, topology, 1, "f"),
        *(state_server_pod(OWNER, SETTINGS, topology, n) for n in range(servers)),
        *(acker_pod(OWNER, SETTINGS, topology, n) for n in range(ackers)),
        documents("store.yaml")[0]["spec"]["template"],
    ]
    requests = [pod["spec"]["containers"][0]["resources"]["requests"] for pod in pods]
    cpus = sum(quantity(one["cpu"]) for one in requests)
    asked = sum(quantity(one["memory"]) for one in requests)
    told = f"ask for {cpus:.2f} CPUs and {asked / 2**30:.1f} GiB"
    assert told in " ".join(section("A first topology").split())
    values = yaml.safe_load((ROOT / "charts" / "millrace" / "values.yaml").read_text())
    operator = values["resources"]["requests"]
    (free,) = re.findall(r"with (\d) CPUs and (\d) GiB", (ROOT / "README.md").read_text())
    assert f"with {free[0]} CPUs and {free[1]} GiB of memory free" in TEXT
    assert cpus + quantity(operator["cpu"]) <= int(free[0])
    assert asked + quantity(operator["memory"]) <= int(free[1]) * 2**30


def test_the_image_of_the_store_is_told_with_the_others():
    store = documents("store.yaml")[0]["spec"]["template"]["spec"]["containers"][0]
    part = section("A first topology")
    assert f"`{store['image']}`" in part
    assert f"`docker.io/{store['image']}`" in part
    readme = (ROOT / "README.md").read_text().partition("## On a cluster")[2].partition("\n## ")[0]
    assert f"`{store['image']}`" in readme
    assert any("valkey-cli" in command for command in re.findall(r"exec .*", part + readme))


def test_a_pod_in_trouble_holds_up_ready_and_does_not_stall():
    cluster = Cluster()
    cluster.settle()
    text = "the image is not there"
    cluster.change("words-acker-0", ready=False, reason="ImagePullBackOff", message=text)
    cluster.reconcile()
    told = {c.type: c for c in cluster.status.conditions}
    assert (told["Stalled"].status, told["Reconciling"].status) == ("False", "True")
    assert (told["Ready"].status, told["Ready"].reason) == ("False", "ImagePullFailed")
    assert text in told["Ready"].message
    conditions = (ROOT / "docs" / "conditions.md").read_text()
    assert 'type=="Ready")].message' in conditions
    assert "(millrace_operator_topology_ready) == 0" in (ROOT / "docs" / "metrics.md").read_text()


def test_what_another_release_accepted_is_told_as_the_document_says():
    cluster = Cluster()
    cluster.settle()
    assert cluster.accepted is not None
    topology = cluster.accepted.topology
    newer = {**topology, "spec": {**topology["spec"], "futures": 1}}
    cluster.accepted = replace(cluster.accepted, topology=newer)
    cluster.reconcile()
    (stalled,) = (c for c in cluster.status.conditions if c.type == "Stalled")
    text = " ".join(section("Upgrading").split())
    assert f"`Stalled` of the reason `{stalled.reason}`" in text


def test_a_driver_that_is_too_old_is_told_as_the_document_says():
    cluster = Cluster()
    cluster.settle()
    ended = {"phase": PodPhase.FAILED, "ready": False, "exit_code": int(ExitCode.NEWER_FORMAT)}
    cluster.change("words-driver-1", message="View has the field 'restoring'", **ended)
    cluster.settle()
    assert sum("driver" in name for name in cluster.pods) == 1
    (stalled,) = (c for c in cluster.status.conditions if c.type == "Stalled")
    assert "the field 'restoring'" in stalled.message
    text = " ".join(section("Upgrading").split())
    assert f"exit code {ExitCode.NEWER_FORMAT.value} and begins nothing" in text
    assert f"`Stalled` has the reason `{stalled.reason}`" in text
    cluster.edit(restartNonce=1)
    cluster.settle()
    assert "words-driver-2" in cluster.pods


def test_topologies_are_not_removed_before_their_drivers_had_the_time_to_delete_snapshots():
    """No resource of a snapshot has a finalizer that would wait for it."""
    removing = section("Removing")
    first, then, last = re.findall(r"^```sh\n(.*?)^```", removing, re.M | re.S)
    *_, deleted, watched = first.splitlines()
    assert deleted == "kubectl delete toposnap --all --all-namespaces"
    assert "get events" in watched
    assert re.findall(r"delete (\w+)", then) == ["topo"]
    assert "uninstall" in last
    told = (ROOT / "docs" / "operations.md").read_text() + (
        ROOT / "docs" / "conditions.md"
    ).read_text()
    for end in re.findall(r"Snapshot\((.*)\)", watched)[0].split("|"):
        assert f"`Snapshot{end}`" in removing
        assert f"\n| `Snapshot{end}` |" in told


# -- what a cluster cannot do yet


def rows(title: str) -> list[str]:
    return [" ".join(one.split()) for one in section(title, GAPS_TEXT).split("\n- ")[1:]]


TWO_COPIES = {"replicas": 2, "copies": 2}
GAPS = rows("What a cluster cannot do yet")


def gap(*fields: str) -> str:
    (found,) = (one for one in GAPS if all(f"`{field}" in one for field in fields))
    return found


def test_each_gap_is_one_of_those_below():
    named = [re.findall(r"`([^`]+)`", one)[0] for one in GAPS]
    assert named == [
        "spec.stateServers.copies: 1",
        "CopiesMissing",
        "millrace run",
        "runAsUser",
    ]


@pytest.mark.parametrize(("copies", "may_go"), [(1, False), (2, True)])
def test_a_node_with_the_only_copy_is_not_drained(copies: int, may_go: bool):
    document = {**documents("topology.yaml")[0]}
    document["spec"] = {**spec(), "stateServers": {"replicas": 2, "copies": copies}}
    topology = StreamTopology.model_validate(document)
    (budget,) = (b for b in budgets(OWNER, topology, 1) if "state" in b["metadata"]["name"])
    assert (budget["spec"]["minAvailable"] < 2) is may_go
    work = state_server_pod(OWNER, SETTINGS, topology, 0)["spec"]["volumes"]
    assert {"name": "work", "emptyDir": {}} in work
    assert "`kubectl drain`" in gap("spec.stateServers.copies: 1")


def test_a_second_node_is_not_drained_while_nobody_makes_copies():
    """As ``test_without_a_driver_no_second_state_server_is_said_to_be_free_to_go`` has it."""
    topology = StreamTopology.model_validate(
        {**documents("topology.yaml")[0], "spec": {**spec(), "stateServers": TWO_COPIES}}
    )
    made = budgets(OWNER, topology, 1, copied=False, servers=2)
    (budget,) = (b for b in made if "state" in b["metadata"]["name"])
    assert budget["spec"]["minAvailable"] == 2
    assert "`kubectl drain` of a second node" in gap("CopiesMissing")


def test_all_pods_have_one_user_that_a_policy_of_the_namespace_may_refuse():
    topology = StreamTopology.model_validate(documents("topology.yaml")[0])
    made = [
        driver_pod(OWNER, SETTINGS, topology, 1, "f"),
        state_server_pod(OWNER, SETTINGS, topology, 0),
        acker_pod(OWNER, SETTINGS, topology, 0),
    ]
    named = ("runAsUser", "runAsGroup", "fsGroup")
    users = {pod["spec"]["securityContext"][name] for pod in made for name in named}
    assert users == {USER_ID}
    text = gap("runAsUser", "runAsGroup", "fsGroup")
    assert f"are {USER_ID}" in text
    assert "`PodRefused`" in text


def test_what_there_is_none_of():
    text = " ".join(rows("What there is none of"))
    assert "no variables, service account, affinity, zone spread or sidecar" in text
    assert set(PodSettings.model_fields) == {
        *("resources", "node_selector", "tolerations", "priority_class_name"),
        *("labels", "annotations"),
    }
    assert "not where pods may connect to" in text
    assert {tuple(p["spec"]["policyTypes"]) for p in policies(OWNER, "system")} == {("Ingress",)}
    assert "no admission webhook" in text
    templates = (ROOT / "charts" / "millrace").rglob("*.yaml")
    assert not any("admissionregistration" in path.read_text() for path in templates)


def test_what_was_asked_for_is_said_to_be_no_warning():
    """As test_plan_warnings.py has it of the operator's own events."""
    text = rows("What is told otherwise")[0]
    asked_for, _, by_itself = text.partition("Warnings are")
    events = (ROOT / "docs" / "conditions.md").read_text() + (
        ROOT / "docs" / "operations.md"
    ).read_text()
    for part in (asked_for, by_itself):
        named = set(re.findall(r"`([A-Z]\w+)`", part))
        assert len(named) > 3
        assert all(f"\n| `{name}` |" in events for name in named)


def test_the_gaps_are_found_from_where_one_begins():
    assert "[gaps.md](gaps.md)" in section("A first topology")
    assert "[what a cluster cannot do](docs/gaps.md)" in (ROOT / "README.md").read_text()


def fields(node: dict[str, Any], name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """All fields of a schema, by their names."""
    yield name, node
    for inner, one in node.get("properties", {}).items():
        yield from fields(one, inner)
    for inner in ("items", "additionalProperties"):
        if isinstance(node.get(inner), dict):
            yield from fields(node[inner], name)


def test_the_fields_are_as_the_conventions_of_kubernetes_have_them_but_for_those_that_are_told():
    gaps = rows("What there is none of")
    small, counters = set(), set()
    for definition in definitions().values():
        (version,) = definition["spec"]["versions"]
        schema = version["schema"]["openAPIV3Schema"]
        for name, node in fields(schema):
            assert node.get("type") != "number", f"{name} is no whole number"
            if any(not word[0].isupper() for word in node.get("enum", [])):
                small.add(name)
        for name, node in fields(schema["properties"]["status"]):
            if "in a row" in node.get("description", "") and node.get("type") == "integer":
                counters.add(name)
    (words,) = (one for one in gaps if "CamelCase" in one)
    assert set(re.findall(r"`(\w+)`", words.partition(")")[0])) == small
    (counts,) = (one for one in gaps if "`status.driver`" in one)
    assert set(re.findall(r"`(\w+)`", counts)) == counters


def test_the_readme_has_the_commands_of_this_document():
    readme = (ROOT / "README.md").read_text()
    found = re.search(r"^## On a cluster\n.*?^```sh\n(.*?)^```", readme, re.M | re.S)
    assert found is not None
    commands = [line.partition("   #")[0] for line in found[1].splitlines() if line]
    look = {"kubectl -n bands get topo,pods", "kubectl delete namespace bands"}
    kill = {"kubectl -n bands delete pod -l app.kubernetes.io/component=driver"}
    assert look | kill <= set(commands)
    assert {one for one in commands if one not in TEXT} - look <= kill


# -- the word count of the examples

WORDS = ROOT / "examples" / "wordcount"


def word_count() -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load((WORDS / "topology.yaml").read_text())
    return made


def test_the_word_count_runs_on_a_cluster():
    cluster = Cluster()
    cluster.spec = word_count()["spec"]
    cluster.settle()
    conditions = {c.type: (c.status.value, c.reason) for c in cluster.status.conditions}
    assert conditions["Stalled"] == ("False", "NothingStalls")
    assert conditions["Ready"] == ("True", "AllReady")


def test_all_that_the_word_count_mounts_is_applied():
    made = yaml.safe_load((WORDS / "kustomization.yaml").read_text())
    claim = yaml.safe_load((WORDS / "claim.yaml").read_text())["metadata"]["name"]
    spec = word_count()["spec"]
    maps = {one["name"]: one["files"] for one in made["configMapGenerator"]}
    texts, counts = spec["volumes"]
    assert maps.keys() == {spec["code"]["configMap"], texts["configMap"]["name"]}
    assert counts["persistentVolumeClaim"] == {"claimName": claim}
    there = {str(path.relative_to(WORDS)) for path in (WORDS / "texts").iterdir()}
    assert set(maps[texts["configMap"]["name"]]) == there
    assert all((WORDS / file).is_file() for files in maps.values() for file in files)
    assert made["resources"] == ["claim.yaml"]
    text = section("Words of texts")
    first, second = re.findall(r"^kubectl .*?apply -\w (\S+)", text, re.M)
    assert (ROOT / first, ROOT / second) == (WORDS, WORDS / "topology.yaml")
    assert f"`{claim}`" in text
    assert set(re.findall(r"-n (\S+)", text)) == {made["namespace"]}
