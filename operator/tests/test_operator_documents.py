"""What docs/operator.md shows is a topology that a cluster takes."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from millrace.homes.pods import DATA_FOLDER
from millrace.homes.tuning import FIELDS
from millrace.state.client import StateAddress, StateClient
from millrace.topology.checks.pods import on_cluster
from millrace.topology.edits import classify, meaning
from millrace.topology.load import parse
from millrace.topology.pods import STATE_DATA_SHARE
from millrace.topology.schema import reference
from millrace_operator.api.resources import SnapshotPhase, TopologySnapshot
from millrace_operator.api.settings import OperatorSettings
from millrace_operator.builders.naming import Owner
from millrace_operator.builders.pods import (
    acker_pod,
    data_bytes,
    driver_pod,
    executor_pod,
    state_server_pod,
)
from millrace_operator.reconcile import edits
from millrace_operator.reconcile.edits import EditKind

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "operator.md").read_text()


def shown() -> list[dict[str, Any]]:
    return [yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```", TEXT, re.M | re.S)]


def test_the_topology_of_the_document_is_taken_and_names_its_claim():
    claim, topology, *_ = shown()
    parsed = parse(json.dumps(topology), import_code=False)
    assert on_cluster(parsed, DATA_FOLDER) == []
    (volume,) = parsed.spec.volumes
    assert volume.persistent_volume_claim is not None
    assert volume.persistent_volume_claim.claim_name == claim["metadata"]["name"]
    code = parsed.spec.code.path
    assert code is not None
    assert (ROOT / Path(code).relative_to("/opt/millrace") / "wordcount.py").is_file()


def test_a_state_server_of_ones_own_is_named_as_shown():
    _, topology, own, *_ = shown()
    topology["spec"]["volumes"] += own["spec"].pop("volumes")
    topology["spec"] |= own["spec"]
    parsed = parse(json.dumps(topology), import_code=False)
    assert on_cluster(parsed, DATA_FOLDER) == []
    owner, settings = Owner("words", "jobs", "u", "0.1.0"), OperatorSettings("r:1", "s:1", "system")
    pod = acker_pod(owner, settings, parsed, 0)["spec"]
    assert pod["containers"][0]["args"] == ["acker", "--own-server", "cache/password"]
    places = {one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
    assert {"/certs", "/etc/millrace/secrets/cache"} <= places
    assert "/data" not in places, "a claim may be on another node"
    part = TEXT.partition("\n## A state server of your own\n")[2].partition("\n## ")[0]
    client = StateClient(StateAddress("state-0", "redis://h", ""), "UID")
    assert client._stamp.startswith(b"mr:{UID}:")
    assert '--pattern "mr:{$uid}:*"' in part


def test_snapshots_are_asked_for_and_restored_as_shown():
    _, topology, _, snapshot, _, restore, _ = shown()
    first = copy.deepcopy(topology)
    asked = TopologySnapshot.model_validate({"spec": snapshot["spec"]})
    assert snapshot["kind"] == TopologySnapshot.__name__
    assert asked.spec.topology == topology["metadata"]["name"]
    topology["spec"] |= restore["spec"]
    parsed = parse(json.dumps(topology), import_code=False)
    assert parsed.spec.restore_from is not None
    assert parsed.spec.restore_from.snapshot == snapshot["metadata"]["name"]
    assert parsed.spec.restore_from.topology == first["metadata"]["name"]
    assert restore["metadata"]["name"] != first["metadata"]["name"]
    assert parsed.spec.sinks != parse(json.dumps(first), import_code=False).spec.sinks
    steps = TEXT.partition("### Beginning with a snapshot\n")[2].partition("\n#")[0]
    for name in (f"toposnap/{snapshot['metadata']['name']}", f"topo/{restore['metadata']['name']}"):
        assert f"kubectl wait {name} " in steps
    assert f"patch topo {first['metadata']['name']} " in steps


def test_the_edits_that_are_shown_are_those_that_they_are_said_to_be():
    part = TEXT.partition("\n## Edits\n")[2].partition("\n## ")[0]
    topology = shown()[1]
    was, kinds = parse(json.dumps(topology), import_code=False), {}
    for name, patch in re.findall(r"^kubectl patch topo (\S+) --type merge -p '(.*?)'", part, re.M):
        assert name == topology["metadata"]["name"]
        ((field, value),) = json.loads(patch)["spec"].items()
        document = {**topology, "spec": {**topology["spec"], field: value}}
        now = parse(json.dumps(document), import_code=False)
        (edit,) = classify(was, now)
        kinds[field] = edits.kind_of(edit.path, edit.effect, edits.in_place(was))
    assert kinds == {
        "window": EditKind.IN_PLACE,
        "parallelism": EditKind.IN_PLACE,
        "restartNonce": EditKind.RESTART,
    }


def test_snapshots_go_to_an_object_store_as_shown():
    _, topology, _, _, store, *_ = shown()
    topology["spec"]["volumes"] += store["spec"].pop("volumes")
    topology["spec"] |= store["spec"]
    parsed = parse(json.dumps(topology), import_code=False)
    assert on_cluster(parsed, DATA_FOLDER) == []
    (file,) = re.findall(r"^```dockerfile\n(.*?)^```", TEXT, re.M | re.S)
    image = (ROOT / "images" / "runtime.Containerfile").read_text()
    (path,) = re.findall(r"PYTHONPATH=(\S+)", image)
    assert f"PYTHONPATH={path}:/opt/millrace/store \\\n" in file
    mounted = parsed.spec.volumes[-1]
    assert f"FSSPEC_CONFIG_DIR={mounted.mount_path}\n" in file
    # The packages that a store adds ask for fsspec in their own version.
    (version,) = re.findall(r"^fsspec==(\S+)", (ROOT / "constraints.txt").read_text(), re.M)
    assert f"s3fs=={version}\n" in file
    (secret,) = re.findall(
        r"kubectl -n NAMESPACE create secret generic (\S+) --from-file=conf.json", TEXT
    )
    example = (ROOT / "examples" / "bands" / "topology.yaml").read_text()
    assert f"name: {secret}," not in example, "its Secret is another one"
    assert "`COPY wordcount.py /opt/millrace/packages/`" in TEXT
    assert "/opt/millrace/packages" in path.split(":")
    assert parsed.spec.code.path is None
    assert mounted.secret is not None
    assert mounted.secret.secret_name == secret
    (settings,) = re.findall(r"<<'EOS'\n(.*?)\nEOS\n", TEXT, re.S)
    assert list(json.loads(settings)) == [urlsplit(parsed.spec.snapshots.to or "").scheme]


def test_an_autoscaler_is_told_of_pods_as_shown():
    _, topology, *_, told = shown()
    topology["spec"] |= told["spec"]
    parsed = parse(json.dumps(topology), import_code=False)
    owner, settings = Owner("words", "jobs", "u", "0.1.0"), OperatorSettings("r:1", "s:1", "system")
    notes = acker_pod(owner, settings, parsed, 0)["metadata"]["annotations"]
    assert notes["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "true"
    topology["spec"]["pods"] = {"driver": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}}
    parse(json.dumps(topology), import_code=False)


def test_the_memory_and_cpu_of_the_document_are_what_pods_ask_for():
    owner, settings = Owner("words", "jobs", "u", "0.1.0"), OperatorSettings("r:1", "s:1", "system")
    parsed = parse(json.dumps({**shown()[1], "spec": bare(shown()[1]["spec"])}), import_code=False)
    made = {
        "driver": driver_pod(owner, settings, parsed, 1, "f"),
        "executor": executor_pod(owner, settings, parsed),
        "acker": acker_pod(owner, settings, parsed, 0),
        "state server": state_server_pod(owner, settings, parsed, 0),
    }
    asked = {}
    for name, pod in made.items():
        resources = pod["spec"]["containers"][0]["resources"]
        assert resources["limits"] == {"memory": resources["requests"]["memory"]}
        asked[name] = (resources["requests"]["cpu"], resources["requests"]["memory"])
    rows = re.findall(r"^\| ([a-z ]+) \| `([0-9m]+)` \| `([0-9]+Mi)`", TEXT, re.M)
    assert {name: (cpu, memory) for name, cpu, memory in rows} == asked
    assert f"data takes `{data_bytes(settings, parsed) >> 20}Mi`" in TEXT


def bare(spec: dict[str, Any]) -> dict[str, Any]:
    """Without what it says of pods' sizes."""
    return {name: part for name, part in spec.items() if name not in ("pods", "spark")}


def test_descriptions_of_fields_are_true_of_a_cluster():
    """Where relative paths lead there, and what there is without a word."""
    told = {path: text for path, _, _, text in re.findall(ROW, reference(), re.M)}
    relative = ("spec.snapshots.to", "spec.code.path")
    files = ("spec.sources[].files", "spec.processors[].lookup.table", "spec.sinks[].files")
    for path in (*relative, *(f"{one}.path" for one in files)):
        assert f"on a cluster at {DATA_FOLDER}" in told[path], path
    assert STATE_DATA_SHARE == 0.75
    memory = told["spec.stateServers.memory"]
    assert "on a cluster three quarters of the memory of its pod" in memory
    assert "On a cluster use 2 or more" in told["spec.stateServers.copies"]
    topology = shown()[1]
    parsed = parse(json.dumps(topology), import_code=False)
    assert parsed.spec.standby_pods == 0
    assert "on a cluster: 0." in told["spec.spark.driver.standby"]
    # Nor has a cluster a place of its own for snapshots.
    topology["spec"]["snapshots"] = {"every": "10m"}
    (astray,) = on_cluster(parse(json.dumps(topology), import_code=False), DATA_FOLDER)
    assert "spec.snapshots" in str(astray)
    assert "on a cluster there is none" in told["spec.snapshots.to"]


ROW = r"^\| `([^`]+)` \| (.*?) \| (.*?) \| (.*) \|$"


def test_reasons_of_the_document_are_those_that_there_are():
    code = (ROOT / "operator/src/millrace_operator/reconcile/snapshots.py").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ((?:`\w+`(?:, )?)+) \|", TEXT, re.M)
    told = {phase for phase, _ in rows}
    assert told == {phase.value for phase in SnapshotPhase}
    reasons = {reason for _, named in rows for reason in re.findall(r"`(\w+)`", named)}
    stalled = {"SnapshotMissing", "SnapshotNotReady", "SnapshotForeign"}
    assert stalled <= set(re.findall(r"`(\w+)`", TEXT))
    known = set(re.findall(r'"([A-Z][a-z]+[A-Z]\w+|Taken|Taking)"', code))
    assert reasons | stalled == known - {"ConfigMap", "SnapshotTaken", "SnapshotLeft"}


def table_of_edits() -> dict[str, str]:
    """What follows of each field of the table, in its word."""
    rows = re.findall(r"^\| (`spec\..*?) \| ([a-z ]+) \|", TEXT, re.M)
    return {field: word for row, word in rows for field in re.findall(r"`(spec\.[A-Za-z.]+)`", row)}


WORDS = {
    EditKind.IN_PLACE: "in place",
    EditKind.RESTART: "restart",
    EditKind.REFUSED: "refused",
}
GRAPH = ("spec.sources", "spec.processors", "spec.sinks")


def fields() -> list[str]:
    """Every field that a topology's file may have, and none that stands for others."""
    listed = re.findall(r"^\| `(spec\.[^`]+)` \|", reference(), re.M)
    return [f for f in listed if not any(g.startswith((f"{f}.", f"{f}[")) for g in listed)]


def test_the_table_of_edits_says_of_every_field_what_a_cluster_does():
    table = table_of_edits()
    topology = parse(json.dumps(shown()[1]), import_code=False)
    assert topology.spec.spark.executors.instances > 0
    followed, used = edits.in_place(topology), set()
    for field in fields():
        (row,) = (
            name for name in table if field == name or field.startswith((f"{name}.", f"{name}["))
        )
        used.add(row)
        if row in GRAPH:
            continue
        kind = edits.kind_of(field, meaning(field)[0], followed)
        assert (field, table[row]) == (field, WORDS[kind])
    assert used == table.keys(), "each row is about a field that there is"
    assert {table[name] for name in GRAPH} == {"restart"}


def test_fields_that_are_followed_are_fields():
    known = re.findall(r"^\| `(spec\.[^`]+)` \|", reference(), re.M)
    tuned = frozenset(FIELDS)
    assert set(known) >= edits.IN_PLACE | tuned | edits.RESTARTING
    assert not edits.IN_PLACE & tuned
