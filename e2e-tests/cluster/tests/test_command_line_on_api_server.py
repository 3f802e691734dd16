"""The command line about a topology of a cluster, on a real API server: what it takes, refuses and
is allowed to. No nodes, so that nothing answers behind a pod."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from millrace.chaos.cluster import WAYS, ClusterTarget
from millrace.chaos.plan import ChaosError, VictimKind
from millrace.clock import SystemClock
from millrace.errors import SnapshotError
from millrace.homes import pods
from millrace.homes.stores import HomeAwayError
from millrace.kube.configmaps import Api, ConfigMap, by_kubeconfig
from millrace.remote import scaling, snapshots
from millrace.remote.cluster import ClusterError, NotThereError, connect
from millrace.remote.topology import RemoteTopology, find
from millrace_e2e import kubeapi
from millrace_e2e.waiting import until

ROOT = Path(__file__).parents[3]
NAMESPACE = "jobs"
SPEC: dict[str, Any] = {
    "stateServers": {"replicas": 2, "copies": 2},
    "sources": [{"name": "lines", "files": {"path": "texts"}}],
    "sinks": [{"name": "out", "inputs": [{"from": "lines"}], "files": {"path": "out"}}],
}
ALL = f"/apis/millrace.dev/v1alpha1/namespaces/{NAMESPACE}/streamtopologies"
CORE = f"/api/v1/namespaces/{NAMESPACE}"
RBAC = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"


def _served(api: Api) -> bool:
    """Whether topologies can be listed; what is not served yet is answered in plain text."""
    try:
        return api.answer("GET", ALL)[0] == 200
    except HomeAwayError:
        return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubeapi.ApiServer]:
    with kubeapi.serving(tmp_path_factory.mktemp("api") / "server") as server:
        api = by_kubeconfig(file=str(server.kubeconfig))
        for file in sorted((ROOT / "crds").glob("*.yaml")):
            path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            assert api.answer("POST", path, yaml.safe_load(file.read_text()))[0] == 201
        until(lambda: _served(api), "the definitions", 60.0)
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        assert api.answer("POST", "/api/v1/namespaces", space)[0] == 201
        yield server


@pytest.fixture
def api(server: kubeapi.ApiServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """The topology ``words`` is there, and all pods and roles go with it."""
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    api = by_kubeconfig(file=str(server.kubeconfig))
    made = {"apiVersion": "millrace.dev/v1alpha1", "kind": "StreamTopology", "spec": SPEC}
    status, said = api.answer("POST", ALL, {**made, "metadata": {"name": "words"}})
    assert status == 201, said
    yield api
    for path in (ALL, f"{CORE}/pods", f"{RBAC}/roles", f"{RBAC}/rolebindings"):
        body = {"gracePeriodSeconds": 0}
        assert api.answer("DELETE", path, body)[0] == 200
    for name in (pods.inbox_map("words"), pods.journal_map("words"), pods.view_map("words")):
        api.answer("DELETE", f"{CORE}/configmaps/{name}")


@pytest.fixture
def words(api: Api) -> RemoteTopology:
    return find(connect(None, NAMESPACE), "words")


def millrace(*arguments: str, code: int = 0, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "millrace.cli.app", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_COLOR": "1", **environment},
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def pod(api: Api, name: str, role: str) -> None:
    labels = {pods.TOPOLOGY_LABEL: "words", pods.ROLE_LABEL: role}
    container = {"name": role, "image": "example.local/none:1"}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [container]},
    }
    assert api.answer("POST", f"{CORE}/pods", body)[0] == 201
    life = {"name": role, "ready": True, "restartCount": 0, "image": "", "imageID": ""}
    running = {**life, "state": {"running": {}}}
    told = {"status": {"phase": "Running", "containerStatuses": [running]}}
    merge = "application/merge-patch+json"
    assert api.answer("PATCH", f"{CORE}/pods/{name}/status", told, kind=merge)[0] == 200


def allowed(
    server: kubeapi.ApiServer, api: Api, folder: Path, rules: Sequence[tuple[str, str, str]]
) -> dict[str, str]:
    """The environment of a user who may do (verb, group, resource) and nothing else."""
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "user"},
        "rules": [
            {"verbs": verb.split("+"), "apiGroups": [group], "resources": [resource]}
            for verb, group, resource in rules
        ],
    }
    account = {"kind": "ServiceAccount", "name": "user", "namespace": NAMESPACE}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "user"}
    binding = {**role, "kind": "RoleBinding", "subjects": [account], "roleRef": reference}
    del binding["rules"]
    made = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "user"}}
    api.answer("POST", f"{CORE}/serviceaccounts", made)
    assert api.answer("POST", f"{RBAC}/roles", role)[0] == 201
    assert api.answer("POST", f"{RBAC}/rolebindings", binding)[0] == 201
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    _, said = api.answer("POST", f"{CORE}/serviceaccounts/user/token", asked)
    document = json.loads(server.kubeconfig.read_text())
    document["users"][0]["user"] = {"token": said["status"]["token"]}
    file = folder / "user.kubeconfig"
    file.write_text(json.dumps(document))
    return {"KUBECONFIG": str(file)}


# -- status, describe


def test_a_topology_that_no_operator_has_seen_is_shown(api: Api) -> None:
    shown = json.loads(millrace("status", "words", "-n", NAMESPACE, "--json"))
    assert (shown["state"], shown["alive"], shown["guarantee"]) == (
        "starting",
        False,
        "ExactlyOnce",
    )
    assert "not seen by the operator yet" in millrace("status", "words", "-n", NAMESPACE)
    assert "words: ExactlyOnce, tracked" in millrace("describe", "words", "-n", NAMESPACE)
    said = millrace("status", "wrods", "-n", NAMESPACE, code=1)
    assert "there is no topology 'wrods'; there are words" in said


def test_the_rights_that_the_page_names_are_enough(
    server: kubeapi.ApiServer, api: Api, tmp_path: Path
) -> None:
    group = "millrace.dev"
    looking = [("get", group, "streamtopologies"), ("get", "", "configmaps"), ("list", "", "pods")]
    user = allowed(server, api, tmp_path, looking)
    assert "is starting" in millrace("status", "words", "-n", NAMESPACE, **user)
    said = millrace("scale", "words", "-n", NAMESPACE, "--ackers", "2", code=1, **user)
    assert 'cannot patch resource "streamtopologies/scale"' in said
    assert "ask whoever gives rights there" in said
    said = millrace("status", "-n", NAMESPACE, code=1, **user)
    assert 'cannot list resource "streamtopologies"' in said


def test_the_right_to_scale_is_enough_to_scale_ackers(
    server: kubeapi.ApiServer, api: Api, tmp_path: Path
) -> None:
    group = "millrace.dev"
    rules = [("get", group, "streamtopologies"), ("patch", group, "streamtopologies/scale")]
    user = allowed(server, api, tmp_path, rules)
    asked = ("scale", "words", "-n", NAMESPACE, "--ackers", "5", "--timeout", "0")
    assert "is asked to have 5 ackers" in millrace(*asked, **user)
    assert api.call("GET", f"{ALL}/words")["spec"]["ackers"]["replicas"] == 5
    said = millrace("status", "words", "-n", NAMESPACE, code=1, **user)
    assert "forbids that: ask whoever gives rights" in said or "cannot list" in said


# -- scale


def test_what_the_definition_forbids_is_said_with_its_field(words: RemoteTopology) -> None:
    scaling.ask(words, 3, 2)
    found = words.again()
    assert found.spec["stateServers"] == {**SPEC["stateServers"], "replicas": 3}
    assert found.spec["ackers"]["replicas"] == 2
    with pytest.raises(ClusterError, match=r"spec\.stateServers"):
        scaling.ask(words, 1, None)
    with pytest.raises(ClusterError, match=r"spec\.ackers\.replicas"):
        scaling.ask(words, None, 1000)
    assert words.again().spec == found.spec


# -- requests


def test_a_request_that_nobody_takes_is_taken_back(api: Api, words: RemoteTopology) -> None:
    with pytest.raises(ClusterError, match="the operator has not set it up yet"):
        snapshots.take(words, "s", None, 1.0, SystemClock(), time.sleep)
    inbox = ConfigMap(api, NAMESPACE, pods.inbox_map("words"))
    assert inbox.create({pods.PROPOSAL: "{}"})
    with pytest.raises(SnapshotError, match="was not taken within 1 s"):
        snapshots.take(words, "s", None, 1.0, SystemClock(), time.sleep)
    held = inbox.read()
    assert held is not None
    assert set(held.data) == {pods.PROPOSAL}


# -- chaos


def test_pods_are_deleted_with_and_without_grace_and_no_other_life_of_them(
    api: Api, words: RemoteTopology
) -> None:
    pod(api, "words-acker-0", "acker")
    target = ClusterTarget(words, SystemClock(), time.sleep)
    chance = random.Random(1)
    [row] = words.pods()
    assert row.phase == "Running"
    for way in WAYS[:2]:
        victim = target.kill(VictimKind.ACKER, chance)
        assert victim is not None
        assert (victim.name, victim.way) == ("words-acker-0", way)
        until(lambda: not words.pods(), "it is gone", 60.0)
        pod(api, "words-acker-0", "acker")
    with pytest.raises(NotThereError):
        words.cluster.delete(row.path, {"preconditions": {"uid": row.uid}})
    with pytest.raises(ChaosError, match=r"SIGKILL for words-acker-0: exec in pod"):
        target.kill(VictimKind.ACKER, chance)


def test_the_operator_is_looked_for_everywhere(api: Api, words: RemoteTopology) -> None:
    target = ClusterTarget(words, SystemClock(), time.sleep)
    assert target.kill(VictimKind.OPERATOR, random.Random(1)) is None
