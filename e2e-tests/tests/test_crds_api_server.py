"""The CRDs and the children of a topology against a real API server: what it takes and refuses."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import yaml

from millrace_e2e.cluster.layout import cache_folder

ROOT = Path(__file__).parents[2]
FOUND = sorted((cache_folder() / "bin").glob("kubernetes-*/kube-apiserver"))
sys.path[:0] = [str(ROOT / "operator" / "tests" / name) for name in ("api", "builders")]

import manifests  # noqa: E402
import test_manifests as children  # noqa: E402

pytestmark = pytest.mark.skipif(
    not FOUND or which("etcd") is None, reason="make cluster-up builds the API server"
)
READY_S = 120


def _port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    def __init__(self, folder: Path, port: int) -> None:
        self._call = [
            *(str(FOUND[-1].parent / "kubectl"), "--server", f"https://127.0.0.1:{port}"),
            *("--insecure-skip-tls-verify", "--token", "t0k", "--request-timeout", "20s"),
            *("--cache-dir", str(folder / "cache")),
        ]

    def __call__(self, *words: str, given: Any = None) -> subprocess.CompletedProcess[str]:
        text = None if given is None else json.dumps(given)
        return subprocess.run(
            [*self._call, *words],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("api")
    client, peer, secure = _port(), _port(), _port()
    (folder / "token.csv").write_text('t0k,admin,1,"system:masters"\n')
    subprocess.run(
        ["openssl", "genrsa", "-out", str(folder / "sa.key"), "2048"],
        check=True,
        capture_output=True,
    )
    urls = [f"http://127.0.0.1:{port}" for port in (client, peer)]
    key = str(folder / "sa.key")
    commands = [
        [
            *("etcd", "--data-dir", str(folder / "etcd"), "--listen-client-urls", urls[0]),
            *("--advertise-client-urls", urls[0], "--listen-peer-urls", urls[1]),
            "--unsafe-no-fsync",
        ],
        [
            *(str(FOUND[-1]), f"--etcd-servers={urls[0]}", f"--cert-dir={folder}"),
            *(f"--secure-port={secure}", "--bind-address=127.0.0.1"),
            *("--service-account-issuer=https://millrace", f"--service-account-key-file={key}"),
            *(f"--service-account-signing-key-file={key}", "--authorization-mode=AlwaysAllow"),
            *(
                f"--token-auth-file={folder / 'token.csv'}",
                "--service-cluster-ip-range=10.99.0.0/24",
            ),
            "--disable-admission-plugins=ServiceAccount",
        ],
    ]
    with ExitStack() as running:
        for command in commands:
            log = running.enter_context((folder / f"{Path(command[0]).name}.log").open("wb"))
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
            running.callback(process.wait)
            running.callback(process.kill)
        made = Server(folder, secure)
        end_s = time.monotonic() + READY_S
        while made("get", "--raw", "/readyz").returncode:
            assert time.monotonic() < end_s, (folder / "kube-apiserver.log").read_text()[-2000:]
        assert made("apply", "-f", str(ROOT / "crds")).returncode == 0
        waited = made("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        assert waited.returncode == 0, waited.stderr
        yield made


def spec_of(plural: str) -> dict[str, Any]:
    """The schema that the definition gives."""
    definition = yaml.safe_load((ROOT / "crds" / f"{plural}.yaml").read_text())
    (version,) = definition["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return found


def tried(server: Server, manifest: dict[str, Any]) -> str:
    """What the server says against a manifest, or nothing."""
    done = server("apply", "--dry-run=server", "-f", "-", given=manifest)
    return done.stderr if done.returncode else ""


REFUSED = [
    *manifests.BY_SCHEMA,
    *manifests.BY_KEYS,
    *manifests.BY_FIELDS,
    *manifests.BY_RULES,
]


@pytest.mark.parametrize("broken", REFUSED, ids=lambda broken: broken.name)
def test_a_wrong_manifest_is_refused_with_its_path(server: Server, broken: manifests.Broken):
    assert broken.path in tried(server, broken.manifest)


@pytest.mark.parametrize("broken", manifests.OPERATOR_ALONE, ids=lambda broken: broken.name)
def test_what_is_left_to_the_operator_is_taken(server: Server, broken: manifests.Broken):
    assert tried(server, broken.manifest) == ""


@pytest.mark.parametrize(
    "file", sorted(ROOT.glob("examples/*/topology.yaml")), ids=lambda f: f.parent.name
)
def test_examples_are_taken(server: Server, file: Path):
    assert server("apply", "--dry-run=server", "-f", str(file)).returncode == 0


def test_scale_and_fixed_fields(server: Server):
    assert server("apply", "-f", "-", given=manifests.WORDS).returncode == 0
    assert server("scale", "topo/words", "--replicas=5").returncode == 0
    scaled = server("get", "topo", "words", "-o", "jsonpath={.spec.ackers.replicas}")
    assert scaled.stdout == "5"
    patch = ["patch", "topo", "words", "--type", "merge", "-p", '{"spec":{"keyGroups":64}}']
    assert "spec.keyGroups: Forbidden" in server(*patch).stderr


def test_the_fields_are_explained(server: Server):
    """What a user reads instead of the documents, with the range and the default."""
    told = server("explain", "topo.spec.ackers")
    assert told.returncode == 0, told.stderr
    assert re.search(r"^KIND: +StreamTopology$", told.stdout, re.M)
    described = spec_of("streamtopologies")["properties"]["spec"]["properties"]["ackers"]
    words = " ".join(told.stdout.split())
    assert described["description"] in words
    for name, field in described["properties"].items():
        assert re.search(rf"^  {name}\t<", told.stdout, re.M), name
        assert field["description"] in words
    deeper = server("explain", "topo.spec.ackers.replicas")
    assert described["properties"]["replicas"]["description"] in " ".join(deeper.stdout.split())
    assert server("explain", "toposnap.spec.deletionPolicy").returncode == 0


COLUMNS = ("NAME", "READY", "PHASE", "ACKERS", "EXECUTORS", "WINDOW", "AGE")
WIDE = ("STATE", "EPOCH", "SNAPSHOT", "MESSAGE")


@pytest.mark.parametrize(
    ("words", "headers"),
    [((), COLUMNS), (("-o", "wide"), (*COLUMNS, *WIDE))],
    ids=["get", "wide"],
)
def test_the_columns_are_those_that_a_user_asks_for(
    server: Server, words: tuple[str, ...], headers: tuple[str, ...]
):
    """Of a topology with a status: as the operator writes one."""
    named = {**manifests.WORDS, "metadata": {**manifests.WORDS["metadata"], "name": "shown"}}
    assert server("apply", "-f", "-", given=named).returncode == 0
    moment = "2026-01-01T00:00:00Z"
    ready = {"type": "Ready", "status": "True", "reason": "AllReady", "message": "well"}
    status = {
        "phase": "Running",
        "message": "well",
        "conditions": [{**ready, "observedGeneration": 1, "lastTransitionTime": moment}],
        "ackers": {"desired": 2, "ready": 1, "summary": "1/2"},
        "executors": {"desired": 3, "ready": 3, "summary": "3/3"},
        "stateServers": {"desired": 2, "ready": 2, "summary": "2/2"},
        "window": 7,
        "epoch": 4,
        "lastSnapshot": "before-upgrade",
    }
    patch = ["patch", "topo", "shown", "--subresource=status", "--type", "merge", "-p"]
    assert (done := server(*patch, json.dumps({"status": status}))).returncode == 0, done.stderr
    head, row = server("get", "topo", "shown", *words).stdout.splitlines()
    assert tuple(head.split()) == headers
    shown = dict(zip(headers, row.split(), strict=True))
    del shown["AGE"]
    told = {"NAME": "shown", "READY": "True", "PHASE": "Running", "ACKERS": "1/2"}
    told |= {"EXECUTORS": "3/3", "WINDOW": "7", "STATE": "2/2", "EPOCH": "4"}
    told |= {"SNAPSHOT": "before-upgrade", "MESSAGE": "well"}
    assert shown == {name: told[name] for name in shown}


def test_children_are_taken_where_the_restricted_standard_is_enforced(server: Server):
    assert server("create", "ns", "jobs").returncode == 0
    label = "pod-security.kubernetes.io/enforce=restricted"
    assert server("label", "ns", "jobs", label).returncode == 0
    assert server("create", "priorityclass", "low", "--value=1").returncode == 0
    asked = children.all_pods(**children.EVERYTHING)
    for executor in (made := children.executor(), asked[-1]):
        executor["metadata"].update(name="words-driver-2-exec-1", namespace="jobs")
        executor["spec"]["containers"][0]["image"] = "runtime:1"
    for child in [*children.children(), made, *asked]:
        assert tried(server, child) == ""
