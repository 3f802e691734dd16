"""The chart on two nodes, by the commands of docs/install.md as they stand: the operator's image
runs in a restricted namespace, passes the chart's own test, is upgraded and followed, and goes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import yaml
from chart_command import NAMED, SYSTEM, Shell, block
from cluster_command import Tool

from millrace.kube.configmaps import by_kubeconfig
from millrace_e2e.apiobjects import all_objects
from millrace_e2e.cluster import project
from millrace_e2e.cluster.layout import Layout
from millrace_e2e.waiting import TooLateError, until
from millrace_operator import trial

WAIT_S = 300.0

pytestmark = pytest.mark.timeout(2_400)
UPGRADE = ("helm", "-n", SYSTEM, "upgrade", "millrace", "charts/millrace", "--wait")


@pytest.fixture(scope="module")
def shell(tool: Tool, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A cluster whose nodes have the operator's image, under the name that the document has."""
    built = project.images(print, "operator")
    tool.run("up", "--nodes", "2")
    for archive in built:
        tool.run("load", str(archive))
    return Shell(tmp_path_factory.mktemp("helm"), Layout.standard().kubeconfig)


@pytest.fixture
def before(shell: Shell) -> Iterator[dict[str, str]]:
    yield all_objects(by_kubeconfig(file=str(shell.kubeconfig)))
    for command in (
        ("helm", "-n", SYSTEM, "uninstall", "millrace", "--ignore-not-found"),
        ("kubectl", "delete", "namespace", SYSTEM, "--ignore-not-found", "--timeout=120s"),
    ):
        print(shell.run(*command))


def left(shell: Shell, before: dict[str, str]) -> set[str]:
    """What was not there before, but for what every namespace has of itself."""
    api = by_kubeconfig(file=str(shell.kubeconfig))
    own = {
        f"namespaces /{SYSTEM}",
        f"serviceaccounts {SYSTEM}/default",
        f"configmaps {SYSTEM}/kube-root-ca.crt",
    }
    return {name for name, uid in all_objects(api).items() if before.get(name) != uid} - own


def assert_left(shell: Shell, before: dict[str, str], wanted: set[str]) -> None:
    with suppress(TooLateError):
        until(lambda: left(shell, before) == wanted, "no more than that is left", 120.0, 1.0)
    assert left(shell, before) == wanted


def get(shell: Shell, *what: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        shell.must("kubectl", "-n", SYSTEM, "get", *what, "-o", "json")
    )
    return found


def operators(shell: Shell) -> dict[str, dict[str, Any]]:
    found = get(shell, "pods", "-l", "app.kubernetes.io/component=operator")["items"]
    return {one["metadata"]["name"]: one for one in found}


def holder(shell: Shell) -> str:
    """The operator that leads, by its Lease."""
    told = str(get(shell, "lease", "millrace-operator")["spec"]["holderIdentity"])
    return told.rpartition("-")[0]


def test_installed_tried_upgraded_removed(shell: Shell, before: dict[str, str]) -> None:
    shell.script(block("Installing the operator", "helm -n"))
    (pod,) = operators(shell).values()
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
    labels = get(shell, "namespace", SYSTEM)["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    # What belonged to the topology of the test that has passed is collected behind its deletion.
    trial_left = "nothing is left of the test"
    until(lambda: not any("trial" in one for one in left(shell, before)), trial_left, WAIT_S, 1.0)

    (owner,) = get(shell, "lease", "millrace-operator")["metadata"]["ownerReferences"]
    account = get(shell, "serviceaccount", "millrace")["metadata"]
    assert (owner["kind"], owner["uid"]) == ("ServiceAccount", account["uid"])

    # A topology that is there when the operator changes, and when it goes.
    kept = {**trial.manifest(SYSTEM, "kept"), "metadata": {"name": "kept", "namespace": SYSTEM}}
    shell.must("kubectl", "apply", "-f", "-", stdin=yaml.safe_dump(kept))
    until(lambda: "kept-state-0" in str(left(shell, before)), "its pod", WAIT_S, 0.5)

    shell.script(block("Upgrading", "show crds"))
    shell.must(*UPGRADE, "--reuse-values", "--set", "replicas=2")
    assert len(operators(shell)) == 2
    first = holder(shell)
    assert first in operators(shell)
    shell.must("kubectl", "-n", SYSTEM, "delete", "pod", first)
    until(lambda: holder(shell) not in ("", first), "another operator leads", WAIT_S, 0.5)
    assert holder(shell) in operators(shell)
    shell.must("helm", "-n", SYSTEM, "test", "millrace")

    # Whoever may edit a namespace may have topologies in it, and nobody else.
    bind = ("create", "rolebinding", "ann", "--clusterrole=edit", "--user=ann")
    shell.must("kubectl", "-n", SYSTEM, *bind)
    ask = ("kubectl", "-n", SYSTEM, "auth", "can-i", "create", "streamtopologies")
    until(lambda: shell.run(*ask, "--as=ann").stdout.strip() == "yes", "she may", WAIT_S, 0.5)
    assert shell.run(*ask, "--as=bob").stdout.strip() == "no"
    shell.must("kubectl", "-n", SYSTEM, "delete", "rolebinding", "ann")

    uninstall, definitions = block("Removing", "uninstall").strip().splitlines()
    shell.script(uninstall)
    until(lambda: not operators(shell), "the operator's pods are gone", WAIT_S, 0.5)
    there = left(shell, before)
    assert {"streamtopologies millrace-system/kept", "pods millrace-system/kept-state-0"} <= there
    lease = "leases millrace-system/millrace-operator"
    until(lambda: lease not in left(shell, before), "the Lease is gone", WAIT_S, 0.5)
    shell.script(definitions)
    assert_left(shell, before, set())


def test_without_its_rights_it_is_not_ready_and_says_why(
    shell: Shell, before: dict[str, str]
) -> None:
    shell.must("kubectl", "create", "namespace", SYSTEM)
    shell.must(
        *("helm", "-n", SYSTEM, "install", "millrace", "charts/millrace"),
        *(*NAMED, "--set", "rbac.create=false"),
    )

    def says() -> bool:
        label = "app.kubernetes.io/component=operator"
        return "403" in shell.run("kubectl", "-n", SYSTEM, "logs", "-l", label).stdout

    until(says, "the log says that it may not", WAIT_S, 0.5)
    (pod,) = operators(shell).values()
    ready = [one for one in pod["status"]["conditions"] if one["type"] == "Ready"]
    assert [one["status"] for one in ready] == ["False"]
    shell.script(block("Removing", "uninstall"))
    assert_left(shell, before, set())
