"""The chart on a real API server: what it renders is taken, what is wrong is refused, its rights
are enough, and nothing of it stays. There are no nodes, so that no pod of it runs here."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import served_schemas
import yaml
from chart_command import CHART, IMAGES, NAMED, SYSTEM, Shell, block, commands

from millrace.homes import pods
from millrace.kube.configmaps import by_kubeconfig
from millrace_e2e import kubeapi
from millrace_e2e.apiobjects import all_objects
from millrace_e2e.scrape import EVERY, unset
from millrace_e2e.valkey import free_port
from millrace_e2e.waiting import TooLateError, until
from millrace_operator.kube import kinds

WAIT_S = 120.0
RELEASE = ("millrace", str(CHART), "--namespace", SYSTEM, *NAMED)
EVERYTHING: dict[str, Any] = {
    "nameOverride": "mill",
    "replicas": 3,
    "image": {"digest": f"sha256:{'0' * 64}", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "registry"}],
    "topologyPods": {
        "runtimeImage": {"repository": "r", "tag": "1"},
        "pullPolicy": "Never",
        "imagePullSecrets": [{"name": "a"}, {"name": "b"}],
    },
    "watchNamespaces": ["jobs", "more-jobs", "2024"],
    "log": {"level": "DEBUG", "format": "text"},
    "rbac": {"ownerReferences": False},
    "serviceAccount": {"name": "someone", "annotations": {"a": "b"}},
    "resources": {"requests": {"cpu": 1}},
    "readinessProbe": {"initialDelaySeconds": 3},
    "podLabels": {"team": "x"},
    "podAnnotations": {"note": "y"},
    "nodeSelector": {"disk": "fast"},
    "affinity": {"nodeAffinity": {}},
    "tolerations": [{"operator": "Exists"}],
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "priorityClassName": "system-cluster-critical",
    "podDisruptionBudget": {"maxUnavailable": "50%"},
    "metrics": {"enabled": True, "namespaces": ["monitoring", "1234"]},
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:1"}],
    "extraVolumes": [{"name": "more", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
    "global": {"any": "thing"},
    "enabled": True,
}
LEAST: dict[str, Any] = {
    "rbac": {"create": False},
    "serviceAccount": {"create": False},
    "networkPolicy": {"enabled": False},
    "leaderElection": {"enabled": False},
    "resources": {},
}
VALUES = {"as it is": {}, "everything": EVERYTHING, "the least": LEAST}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubeapi.ApiServer]:
    with kubeapi.serving(tmp_path_factory.mktemp("api") / "server") as server:
        api = by_kubeconfig(file=str(server.kubeconfig))
        for name in (SYSTEM, "jobs", "more-jobs", "2024"):
            space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            assert api.answer("POST", "/api/v1/namespaces", space)[0] == 201
        # The last thing that an API server makes for itself, some time after it is ready.
        own = "/api/v1/namespaces/default/endpoints/kubernetes"
        until(lambda: api.answer("GET", own)[0] == 200, "the API server's own endpoints", WAIT_S)
        yield server


@pytest.fixture(scope="module")
def shell(server: kubeapi.ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(tmp_path_factory.mktemp("helm"), server.kubeconfig)


@pytest.fixture(scope="module")
def version(server: kubeapi.ApiServer) -> str:
    told: str = json.loads(server.get("/version"))["gitVersion"]
    return told


@pytest.fixture(params=VALUES)
def rendered(request: pytest.FixtureRequest, shell: Shell, version: str, tmp_path: Path) -> str:
    file = tmp_path / "values.json"
    file.write_text(json.dumps(VALUES[request.param]))
    told = ("--kube-version", version, "--values", str(file))
    return shell.must("helm", "template", *RELEASE, *told)


def manifests(text: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(text) if one]


def of_kind(found: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [one for one in found if one["kind"] == kind]


# -- what it renders


def test_helm_finds_nothing_to_complain_of(shell: Shell):
    said = shell.must("helm", "lint", "--strict", str(CHART))
    assert "0 chart(s) failed" in said
    assert "[WARNING]" not in said


def test_the_api_server_takes_what_it_renders(shell: Shell, rendered: str):
    """Every object by the server that is to hold it, and no unknown field."""
    command = ("kubectl", "apply", "--dry-run=server", "--validate=strict", "-f", "-")
    said = shell.must(*command, stdin=rendered)
    assert len(said.splitlines()) == len(manifests(rendered))


@pytest.fixture(scope="module")
def schemas(server: kubeapi.ApiServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    openapi = json.loads(server.get("/openapi/v2"))
    return served_schemas.write(openapi, tmp_path_factory.mktemp("schemas") / "made")


def conform(shell: Shell, schemas: str, text: str) -> subprocess.CompletedProcess[str]:
    command = ("kubeconform", "-strict", "-summary", "-schema-location", schemas, "-")
    return shell.run(*command, stdin=text)


def test_what_it_renders_conforms_to_the_schemas_of_the_server(
    shell: Shell, schemas: str, rendered: str
):
    done = conform(shell, schemas, rendered)
    assert done.returncode == 0, done.stdout + done.stderr
    count = len(manifests(rendered))
    assert f"Valid: {count}, Invalid: 0, Errors: 0, Skipped: 0" in done.stdout


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("replicas:", "replica:"), ("replicas: 1", 'replicas: "x"'), ("apps/v1", "apps/v0")],
)
def test_the_schemas_refuse_what_is_wrong(
    shell: Shell, schemas: str, version: str, right: str, wrong: str
):
    text = shell.must("helm", "template", *RELEASE, "--kube-version", version)
    assert right in text
    assert conform(shell, schemas, text.replace(right, wrong)).returncode == 1


def test_without_roles_none_is_made(shell: Shell, version: str):
    text = shell.must(
        *("helm", "template", *RELEASE, "--kube-version", version, "--set", "rbac.create=false")
    )
    kept = [one for one in manifests(text) if "helm.sh/hook" not in str(one["metadata"])]
    assert {one["kind"] for one in kept} == {"NetworkPolicy", "ServiceAccount", "Deployment"}
    # Nor for the test: whoever may make no role would see it fail.
    hooks = [one for one in manifests(text) if one not in kept]
    assert [one["kind"] for one in hooks] == ["ServiceAccount", "Pod"]


def test_rights_are_given_to_no_account_that_every_pod_has(shell: Shell, version: str):
    command = ("helm", "template", *RELEASE, "--kube-version", version)
    done = shell.run(*command, "--set", "serviceAccount.create=false")
    assert done.returncode == 1
    assert "set serviceAccount.name: " in done.stderr
    for told in ("serviceAccount.name=mine", "rbac.create=false"):
        found = templates(shell, version, f"serviceAccount.create=false,{told}")
        (deployment,) = of_kind(found, "Deployment")
        account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
        assert account == {"serviceAccount.name=mine": "mine"}.get(told, "default")
        bound = {
            subject["name"]
            for one in (*of_kind(found, "RoleBinding"), *of_kind(found, "ClusterRoleBinding"))
            if "helm.sh/hook" not in str(one["metadata"])
            for subject in one["subjects"]
        }
        assert bound == ({"mine"} if account == "mine" else set())


def test_a_release_with_a_dot_in_its_name_has_none_in_theirs(
    shell: Shell, server: kubeapi.ApiServer, version: str
):
    """The API server takes no Service with one, and the operator no topology."""
    for release, told in [
        ("v1.2", "replicas=2"),
        ("millrace.test", "replicas=2"),
        ("a" * 49 + ".b", "replicas=2"),
        ("plain", "fullnameOverride=m.r"),
    ]:
        text = shell.must(
            *("helm", "template", release, str(CHART), "--namespace", SYSTEM, *NAMED),
            *("--kube-version", version, "--set", told, "--set", "metrics.enabled=true"),
        )
        assert not [one for one in manifests(text) if "." in one["metadata"]["name"]]
        command = ("kubectl", "apply", "--dry-run=server", "--validate=strict", "-f", "-")
        shell.must(*command, stdin=text)


def test_in_named_namespaces_it_has_rights_to_nodes_alone_elsewhere(shell: Shell, version: str):
    text = shell.must(
        *("helm", "template", *RELEASE, "--kube-version", version),
        *("--set", "watchNamespaces={jobs,more-jobs},rbac.aggregate=false"),
    )
    (whole,) = of_kind(manifests(text), "ClusterRole")
    assert [rule["resources"] for rule in whole["rules"]] == [["nodes"]]
    roles = of_kind(manifests(text), "Role")
    places = sorted(r["metadata"]["namespace"] for r in roles if len(r["rules"]) > 5)
    assert places == ["jobs", "more-jobs"]


def templates(shell: Shell, version: str, told: str) -> list[dict[str, Any]]:
    command = ("helm", "template", *RELEASE, "--kube-version", version, "--set", told)
    return manifests(shell.must(*command))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a-millrace", "team"), ("millrace", "team-a")),
        (("millrace-view", "team"), ("millrace", "team")),
    ],
)
def test_what_is_in_no_namespace_is_of_one_release(
    shell: Shell, version: str, one: tuple[str, str], other: tuple[str, str]
):
    names = []
    for release, space in (one, other):
        command = ("helm", "template", release, str(CHART), "--namespace", space, *NAMED)
        found = manifests(shell.must(*command, "--kube-version", version))
        whole = [each for each in found if each["kind"].startswith("Cluster")]
        names.append({each["metadata"]["name"] for each in whole})
    assert names[0].isdisjoint(names[1])


def test_names_of_digits_stay_texts_and_no_probe_need_be_timed(
    shell: Shell, version: str, tmp_path: Path
):
    file = tmp_path / "values.json"
    file.write_text(json.dumps({"nameOverride": "7", "fullnameOverride": "9"}))
    text = shell.must(
        *("helm", "template", "2024", str(CHART), "--namespace", "8", "--kube-version", version),
        *("--values", str(file), "--set", "livenessProbe=null,readinessProbe=null"),
        *("--set", "metrics.enabled=true", *NAMED),
    )
    found = manifests(text)
    for one in found:
        metadata = one["metadata"]
        told = [metadata["name"], metadata.get("namespace", ""), *metadata["labels"].values()]
        assert all(isinstance(each, str) for each in told), one
    (deployment,) = of_kind(found, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["livenessProbe"] == {"httpGet": {"path": "/live", "port": "health"}}
    (service,) = of_kind(found, "Service")
    assert service["metadata"]["name"] == "millrace-9-metrics"


def peers(found: list[dict[str, Any]]) -> list[list[Any]]:
    """Whom the operator's policy lets through to which ports, by rule."""
    (policy,) = of_kind(found, "NetworkPolicy")
    return [
        [[p["namespaceSelector"] for p in rule["from"]], [p["port"] for p in rule["ports"]]]
        for rule in policy["spec"]["ingress"]
    ]


def test_nobody_asks_for_metrics_unless_that_is_asked_for(shell: Shell, version: str):
    found = templates(shell, version, "replicas=1")
    assert peers(found) == []
    assert not of_kind(found, "Service")
    assert not of_kind(found, "PodMonitor")
    (deployment,) = of_kind(found, "Deployment")
    assert not any("metrics" in one for one in arguments(deployment))

    found = templates(shell, version, "metrics.enabled=true")
    assert peers(found) == [[[{}], [pods.HEALTH_PORT]]]
    (deployment,) = of_kind(found, "Deployment")
    assert [one for one in arguments(deployment) if "metrics" in one] == ["--metrics"]

    found = templates(shell, version, "metrics.enabled=true,metrics.namespaces={a,b}")
    names = [{"matchLabels": {"kubernetes.io/metadata.name": name}} for name in "ab"]
    assert peers(found) == [[names, [pods.HEALTH_PORT]]]
    (deployment,) = of_kind(found, "Deployment")
    told = [one for one in arguments(deployment) if "metrics" in one]
    assert told == ["--metrics", "--metrics-from=a", "--metrics-from=b"]


def arguments(deployment: dict[str, Any]) -> list[str]:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    found: list[str] = container["args"]
    return found


def test_the_service_and_the_monitors_of_metrics_find_their_pods(shell: Shell, version: str):
    told = "metrics.enabled=true,podMonitor.enabled=true,podMonitor.labels.release=prom"
    found = templates(shell, version, told)
    (deployment,) = of_kind(found, "Deployment")
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    (service,) = of_kind(found, "Service")
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert [one["targetPort"] for one in service["spec"]["ports"]] == ["health"]

    own, topologies = of_kind(found, "PodMonitor")
    assert own["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    for monitor in (own, topologies):
        assert monitor["metadata"]["labels"]["release"] == "prom"
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert (endpoint["port"], endpoint["path"]) == ("health", pods.METRICS_PATH)
        assert ports[endpoint["port"]] == pods.HEALTH_PORT
    assert topologies["spec"]["namespaceSelector"] == {"any": True}
    found = templates(shell, version, f"{told},watchNamespaces={{jobs}}")
    assert of_kind(found, "PodMonitor")[1]["spec"]["namespaceSelector"] == {"matchNames": ["jobs"]}


@pytest.mark.parametrize(
    ("told", "path"),
    [
        ("replicas=many", "/replicas"),
        ("replicas=-1", "/replicas"),
        ("replica=1", "'replica'"),
        ("image.tagg=x", "/image"),
        ("image.digest=sha256:1", "/image/digest"),
        ("image.pullPolicy=Sometimes", "/image/pullPolicy"),
        ("topologyPods.runtimeImage.repository=1", "/topologyPods/runtimeImage/repository"),
        ("topologyPods.imagePullSecrets[0]=x", "/topologyPods/imagePullSecrets/0"),
        ("watchNamespaces={Jobs}", "/watchNamespaces/0"),
        ("watchNamespaces={a,a}", "/watchNamespaces"),
        ("log.level=info", "/log/level"),
        ("log.format=xml", "/log/format"),
        ("rbac.create=maybe", "/rbac/create"),
        ("podDisruptionBudget.maxUnavailable=half", "/podDisruptionBudget/maxUnavailable"),
        ("livenessProbe.periodSeconds=0", "/livenessProbe/periodSeconds"),
        ("leaderElection.enabled=false,replicas=2", "/replicas"),
        ("extraEnv[0]=x", "/extraEnv/0"),
        ("metrics.namespaces={Monitoring}", "/metrics/namespaces/0"),
        ("podMonitor.interval=soon", "/podMonitor/interval"),
        ("podMonitor.enabled=true", "podMonitor.enabled needs metrics.enabled"),
    ],
)
def test_wrong_values_are_refused_with_their_path(shell: Shell, version: str, told: str, path: str):
    command = ("helm", "template", *RELEASE, "--kube-version", version, "--set", told)
    done = shell.run(*command)
    assert done.returncode == 1
    assert path in done.stderr


@pytest.mark.parametrize("missing", [*([one] for one in IMAGES), [*IMAGES]], ids=len)
def test_without_a_name_of_an_image_nothing_is_rendered(
    shell: Shell, version: str, missing: list[str]
):
    told = [f"{name}=" for name in missing]
    command = ("helm", "template", *RELEASE, "--kube-version", version, "--set", ",".join(told))
    done = shell.run(*command)
    assert done.returncode == 1
    assert f"set {', '.join(sorted(missing))}: no image is published" in done.stderr
    assert "docs/install.md" in done.stderr


def test_an_older_cluster_is_refused(shell: Shell):
    done = shell.run("helm", "template", *RELEASE, "--kube-version", "1.27.9")
    assert done.returncode == 1
    assert "incompatible" in done.stderr


# -- in a cluster


@pytest.fixture
def unchanged(server: kubeapi.ApiServer) -> Iterator[None]:
    """Nothing stays of what a test installs."""
    api = by_kubeconfig(file=str(server.kubeconfig))
    before = all_objects(api)
    yield
    assert_left(server, before, set())


def left(server: kubeapi.ApiServer, before: dict[str, str]) -> set[str]:
    now = all_objects(by_kubeconfig(file=str(server.kubeconfig)))
    return {name for name, uid in now.items() if before.get(name) != uid}


def assert_left(server: kubeapi.ApiServer, before: dict[str, str], wanted: set[str]) -> None:
    with suppress(TooLateError):
        until(lambda: left(server, before) == wanted, "no more than that is left", 30.0, 0.5)
    assert left(server, before) == wanted


DEFINITIONS = {
    "customresourcedefinitions /streamtopologies.millrace.dev",
    "customresourcedefinitions /topologysnapshots.millrace.dev",
}


def test_installed_upgraded_removed(server: kubeapi.ApiServer, shell: Shell, unchanged: None):
    before = all_objects(by_kubeconfig(file=str(server.kubeconfig)))
    said = shell.must("helm", "install", *RELEASE)
    assert "STATUS: deployed" in said
    assert "topologies in all namespaces" in said
    made = left(server, before)
    name = "millrace-system:millrace"
    assert (
        DEFINITIONS
        | {
            "deployments millrace-system/millrace",
            "serviceaccounts millrace-system/millrace",
            "networkpolicies millrace-system/millrace",
            "roles millrace-system/millrace-lease",
            "rolebindings millrace-system/millrace-lease",
            f"clusterroles /{name}",
            f"clusterroles /{name}:view",
            f"clusterroles /{name}:edit",
            f"clusterrolebindings /{name}",
            "secrets millrace-system/sh.helm.release.v1.millrace.v1",
        }
        == made
    )
    deployment = json.loads(
        shell.must("kubectl", "-n", SYSTEM, "get", "deployment", "millrace", "-o", "json")
    )
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"{IMAGES['image.repository']}:0.1.0"

    shell.must("helm", "upgrade", *RELEASE, "--set", "replicas=2")
    budget = "poddisruptionbudgets millrace-system/millrace"
    assert budget in left(server, before)
    shell.must("helm", "upgrade", *RELEASE, "--set", "replicas=1")
    assert budget not in left(server, before)

    uninstall, definitions = block("Removing", "uninstall").strip().splitlines()
    shell.script(uninstall)
    assert_left(server, before, DEFINITIONS)
    shell.script(definitions)


def test_releases_in_two_namespaces_do_not_meet(shell: Shell, unchanged: None):
    for space in ("jobs", "more-jobs"):
        told = ("--namespace", space, *NAMED, "--set", f"watchNamespaces={{{space}}}")
        shell.must("helm", "install", "millrace", str(CHART), *told)
    for space in ("jobs", "more-jobs"):
        shell.must("helm", "uninstall", "millrace", "--namespace", space)
    shell.script(block("Removing", "delete crd").splitlines()[1])


def test_definitions_are_brought_up_to_date_as_the_document_says(
    shell: Shell, unchanged: None, tmp_path: Path
):
    older = tmp_path / "millrace"
    shutil.copytree(CHART, older)
    file = older / "crds" / "streamtopologies.yaml"
    text = file.read_text()
    assert "maximum: 64" in text
    file.write_text(text.replace("maximum: 64", "maximum: 63"))
    shell.must("helm", "install", "millrace", str(older), "--namespace", SYSTEM, *NAMED)
    get = ("kubectl", "get", "crd", "streamtopologies.millrace.dev", "-o", "yaml")
    assert "maximum: 63" in shell.must(*get)
    # Not by Helm.
    shell.must("helm", "upgrade", *RELEASE)
    assert "maximum: 63" in shell.must(*get)
    first, _ = commands(block("Upgrading", "show crds"))
    for _ in range(2):
        shell.script(first)
        assert "maximum: 63" not in shell.must(*get)
    shell.script(block("Removing", "uninstall"))


def test_a_release_of_a_chart_that_had_fewer_values_is_upgraded_as_the_document_says(
    shell: Shell, unchanged: None, tmp_path: Path
):
    older = tmp_path / "millrace"
    shutil.copytree(CHART, older, ignore=shutil.ignore_patterns("templates", "*.schema.json"))
    (older / "values.yaml").write_text("log: {level: INFO}\n")
    told = ("--namespace", SYSTEM, *NAMED, "--set", "log.level=DEBUG")
    shell.must("helm", "install", "millrace", str(older), *told)
    _, upgrade = commands(block("Upgrading", "show crds"))
    # No pod of it runs here.
    shell.script(upgrade.replace(" --wait", ""))
    deployment = json.loads(
        shell.must("kubectl", "-n", SYSTEM, "get", "deployment", "millrace", "-o", "json")
    )
    assert "--log-level=DEBUG" in arguments(deployment)
    shell.script(block("Removing", "uninstall"))


# -- its rights


class Account:
    """A kubeconfig of a service account."""

    def __init__(self, shell: Shell, server: kubeapi.ApiServer, folder: Path, name: str) -> None:
        token = shell.must("kubectl", "-n", SYSTEM, "create", "token", name).strip()
        told = json.loads(server.kubeconfig.read_text())
        told["users"][0]["user"] = {"token": token}
        self.kubeconfig = folder / f"{name}.kubeconfig"
        self.kubeconfig.write_text(json.dumps(told))


class Running:
    """The operator as the pod of the chart starts it, with the account's rights and no others."""

    def __init__(self, account: Account, arguments: list[str], log: Path) -> None:
        self.port, self.log = free_port(), log
        given = {pods.POD_NAMESPACE: SYSTEM, "KUBECONFIG": str(account.kubeconfig)}
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "millrace_operator", *arguments),
                    f"--health-port={self.port}",
                ],
                env={**os.environ, **given},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def leaves_unset(self) -> Sequence[str]:
        """Metrics of the document that it does not tell, and others that it tells."""
        url = f"http://127.0.0.1:{self.port}{pods.METRICS_PATH}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return unset(answer.read().decode(), "Operator", EVERY)

    def end(self) -> int:
        self.process.terminate()
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()


SPEC = {
    "volumes": [
        {"name": "data", "mountPath": "/data", "persistentVolumeClaim": {"claimName": "words"}}
    ],
    "sources": [{"name": "numbers", "generator": {"count": 10}}],
    "sinks": [{"name": "out", "inputs": [{"from": "numbers"}], "files": {"path": "out"}}],
}


@pytest.mark.parametrize("spaces", ["{}", "{jobs}"])
def test_its_rights_are_enough_and_no_more(
    shell: Shell, server: kubeapi.ApiServer, tmp_path: Path, unchanged: None, spaces: str
):
    """The operator with the chart's arguments and account, and then the chart's own test."""
    told = ("--set-json", f"watchNamespaces={json.dumps(spaces.strip('{}').split())}")
    shell.must("helm", "install", *RELEASE, *told)
    deployment = json.loads(
        shell.must("kubectl", "-n", SYSTEM, "get", "deployment", "millrace", "-o", "json")
    )
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    log = tmp_path / "log"
    running = Running(Account(shell, server, tmp_path, "millrace"), container["args"], log)
    api = by_kubeconfig(file=str(server.kubeconfig))
    try:
        metadata = {"name": "numbers", "namespace": "jobs"}
        topology = {"apiVersion": "millrace.dev/v1alpha1", "kind": "StreamTopology"}
        made = {**topology, "metadata": metadata, "spec": SPEC}
        place = kinds.collection("StreamTopology", "jobs")
        assert api.answer("POST", place, made)[0] == 201
        state = kinds.one("Pod", "jobs", "numbers-state-0")
        until(lambda: api.answer("GET", state)[0] == 200, "a pod", WAIT_S)
        # Of a pod that vanishes, too.
        api.answer("DELETE", state)
        until(lambda: api.answer("GET", state)[0] == 200, "another pod", WAIT_S)
        until(lambda: running.leaves_unset() == [], "the operator tells all metrics", WAIT_S)
        trial = shell.must("helm", "template", *RELEASE, *told, "--kube-version", "1.34.4")
        hooks = [one for one in manifests(trial) if "helm.sh/hook" in str(one["metadata"])]
        (pod,) = of_kind(hooks, "Pod")
        rights = [one for one in hooks if one["kind"] != "Pod"]
        shell.must("kubectl", "apply", "-f", "-", stdin=yaml.safe_dump_all(rights))
        account = Account(shell, server, tmp_path, pod["spec"]["serviceAccountName"])
        (container,) = pod["spec"]["containers"]
        done = subprocess.run(
            [sys.executable, *container["command"][3:], *container["args"]],
            env={**os.environ, "KUBECONFIG": str(account.kubeconfig)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr + log.read_text()
    finally:
        code = running.end()
        print(log.read_text()[-8000:])
    assert code == 0
    assert re.findall(r".*(?:40[13]|orbidden).*", log.read_text()) == []
    shell.must("kubectl", "delete", "-f", "-", stdin=yaml.safe_dump_all(rights))
    shell.script(block("Removing", "uninstall"))
    # Whose owners are gone is deleted by a controller that is not there; the Lease goes with an
    # account that a process outside of pods does not have.
    for kind, space in product(("Pod", *kinds.LISTED, "Secret"), ("jobs", SYSTEM)):
        query = {"labelSelector": pods.TOPOLOGY_LABEL}
        api.call("DELETE", kinds.collection(kind, space), query=query)
    api.answer("DELETE", kinds.one("Lease", SYSTEM, "millrace-operator"))


def test_the_account_may_not_do_more(shell: Shell, unchanged: None):
    shell.must("helm", "install", *RELEASE, "--set", "watchNamespaces={jobs}")
    me = f"--as=system:serviceaccount:{SYSTEM}:millrace"
    for words, wanted in [
        (("create", "pods", "-n", "jobs"), "yes"),
        (("get", "nodes"), "yes"),
        (("update", "leases/millrace-operator", "-n", SYSTEM), "yes"),
        (("create", "leases", "-n", SYSTEM), "yes"),
        (("update", "leases", "-n", SYSTEM), "no"),
        (("create", "pods", "-n", "more-jobs"), "no"),
        (("create", "pods", "-n", SYSTEM), "no"),
        (("list", "secrets", "-n", "jobs"), "no"),
        (("update", "streamtopologies", "--subresource=finalizers", "-n", "jobs"), "yes"),
        (("update", "streamtopologies", "-n", "jobs"), "no"),
        (("create", "pods", "--subresource=exec", "-n", "jobs"), "no"),
        (("delete", "streamtopologies", "-n", "jobs"), "no"),
        (("patch", "nodes"), "no"),
        (("create", "clusterroles"), "no"),
    ]:
        said = shell.run("kubectl", "auth", "can-i", *words, me).stdout.strip()
        assert said == wanted, words
    shell.script(block("Removing", "uninstall"))
