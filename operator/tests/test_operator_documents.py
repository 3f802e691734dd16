"""What docs/operator.md shows is a topology that a cluster takes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from millrace.homes.pods import DATA_FOLDER
from millrace.topology.checks.pods import on_cluster
from millrace.topology.load import parse
from millrace_operator.api.resources import SnapshotPhase, TopologySnapshot
from millrace_operator.reconcile import edits

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


def test_snapshots_are_asked_for_and_restored_as_shown():
    _, topology, snapshot, restore = shown()
    asked = TopologySnapshot.model_validate({"spec": snapshot["spec"]})
    assert snapshot["kind"] == TopologySnapshot.__name__
    assert asked.spec.topology == topology["metadata"]["name"]
    topology["spec"] |= restore["spec"]
    parsed = parse(json.dumps(topology), import_code=False)
    assert parsed.spec.restore_from is not None
    assert parsed.spec.restore_from.snapshot == snapshot["metadata"]["name"]


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


def test_the_table_of_edits_names_what_a_cluster_goes_by():
    rows = re.findall(r"^\| (`spec.*?) \|", TEXT, re.M)
    named = [re.findall(r"`(spec\.[A-Za-z.]+)`", row) for row in rows]
    restarting, in_place, _, standby = named
    assert set(standby) == {path for path in edits.IN_PLACE if "standby" in path}
    assert set(restarting) == edits.RESTARTING - {"spec.restartNonce"}
    assert set(in_place) == {path for path in edits.IN_PLACE if path.startswith("spec.pods")}
