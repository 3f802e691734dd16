"""Which topology of which cluster a command means, and what it says where there is none."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from fake_cluster import NAMESPACE, TOPOLOGIES, UID, FakeCluster

from millrace.cli.app import build_app
from millrace.errors import ExitCode, MillraceError
from millrace.kube.configmaps import ApiRefusedError, by_kubeconfig
from millrace.remote.cluster import Cluster, ClusterError, NotThereError, connect
from millrace.remote.topology import find


@pytest.fixture
def here(cluster: FakeCluster) -> Cluster:
    return connect(None, None)


def test_the_namespace_is_the_contexts_unless_one_is_named(cluster: FakeCluster) -> None:
    assert connect(None, None).namespace == NAMESPACE
    assert connect("here", None).namespace == NAMESPACE
    assert connect(None, "other").namespace == "other"
    assert connect("away", None).namespace == "default"


def test_a_topology_is_called_by_its_name(cluster: FakeCluster, here: Cluster) -> None:
    cluster.topology("words", metadata={"uid": UID})
    cluster.topology("other")
    assert find(here, "words").uid == UID
    with pytest.raises(NotThereError, match="no topology 'wrods'; there are other, words"):
        find(here, "wrods")
    with pytest.raises(NotThereError, match="name the topology that is meant; there are other, w"):
        find(here, None)


def test_the_only_one_of_a_namespace_needs_no_name(cluster: FakeCluster, here: Cluster) -> None:
    with pytest.raises(NotThereError, match="there is none at all"):
        find(here, None)
    cluster.topology("words")
    assert find(here, None).name == "words"


@pytest.mark.parametrize("name", ["topology.yaml", "jobs/words", "Words", ""])
def test_a_file_is_no_name_of_a_topology(here: Cluster, name: str) -> None:
    with pytest.raises(ClusterError, match=r"is no name of a topology.*leave both out"):
        find(here, name)


def test_refusals_say_what_to_do(cluster: FakeCluster, here: Cluster) -> None:
    cluster.topology("words")
    cluster.refused = {"/words": 403}
    with pytest.raises(ClusterError, match=r"words is refused to you; ask whoever gives rights"):
        find(here, "words")
    cluster.refused = {"/words": 401}
    with pytest.raises(ClusterError, match=r"\(401 .*\); it does not know you: log in again"):
        find(here, "words")
    cluster.refused = {"streamtopologies": 404, "/words": 404}
    for name in (None, "words"):
        with pytest.raises(NotThereError, match="knows no StreamTopology: apply the definitions"):
            find(here, name)
    with pytest.raises(ClusterError, match=r"context away: .*is it there, and does kubectl reach"):
        find(connect("away", None), "words")


def test_a_kubeconfig_without_that_context_or_none_at_all(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ClusterError, match=r"--context far: .* it has away, here"):
        connect("far", None)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    with pytest.raises(ClusterError, match=r"no kubeconfig that can be used.*set KUBECONFIG"):
        connect(None, "jobs")
    (tmp_path / "nothing").write_text(yaml.safe_dump({"clusters": []}))
    with pytest.raises(ClusterError, match=r"no current context: .* --context; it has none"):
        connect(None, "jobs")


@pytest.mark.parametrize("text", ["a: [b", "- a", "contexts: here", "contexts: [{}]", "\x00", ""])
def test_a_kubeconfig_of_another_form_is_refused_in_one_line(
    cluster: FakeCluster, text: str
) -> None:
    cluster.kubeconfig.write_text(text)
    for context in (None, "here"):
        with pytest.raises(ClusterError, match="no kubeconfig that can be used") as refused:
            connect(context, "jobs")
        assert len(str(refused.value).splitlines()) == 1
        with pytest.raises(ApiRefusedError, match="kubeconfig: cannot be used") as also:
            by_kubeconfig(context, str(cluster.kubeconfig))
        assert len(str(also.value).splitlines()) == 1


@pytest.mark.parametrize("current", [None, "", "gone"])
def test_a_context_that_is_named_needs_no_current_one(
    cluster: FakeCluster, current: str | None
) -> None:
    told = {**yaml.safe_load(cluster.kubeconfig.read_text()), "current-context": current}
    if current is None:
        del told["current-context"]
    cluster.kubeconfig.write_text(yaml.safe_dump(told))
    cluster.topology("words")
    assert find(connect("here", None), "words").name == "words"
    asks = "--context gone: .* it has" if current else "no current context: name one with --context"
    with pytest.raises(ClusterError, match=f"{asks}.* away, here"):
        connect(None, "jobs")


def test_in_a_pod_a_kubeconfig_comes_before_the_pods_own_cluster(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = cluster.folder / "home"
    (home / ".kube").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.delenv("KUBECONFIG")
    with pytest.raises(ApiRefusedError, match="this process is in no pod"):
        connect(None, None)  # the pod's own, but for the token that a pod would have
    cluster.kubeconfig.rename(home / ".kube" / "config")
    assert connect(None, None).shown == f"namespace {NAMESPACE} of context here"
    assert connect("away", None).shown == "namespace default of context away"


def test_without_both_options_it_is_a_work_folder(cluster: FakeCluster) -> None:
    """Even where a topology of that very name is on the cluster."""
    cluster.running()
    done = cluster.millrace("status", "words")
    assert done.returncode != 0
    assert cluster.asked == []
    done = cluster.millrace("status", "words", "-n", NAMESPACE, "--workdir", "here")
    assert done.returncode == ExitCode.USAGE
    assert "--workdir names a folder of this machine" in done.stderr
    assert cluster.asked == []
    for given in (["-n", NAMESPACE], ["--context", "here"], ["-n", NAMESPACE, "-t", "words"]):
        name = [] if "-t" in given else ["words"]
        done = cluster.millrace("status", *name, *given, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["uid"] == UID


def test_errors_are_one_line_and_an_exit_code(cluster: FakeCluster) -> None:
    done = cluster.millrace("status", "words", "--context", "here")
    assert (done.returncode, done.stdout) == (ExitCode.FAILED, "")
    assert done.stderr.startswith("error: namespace jobs of context here: there is no topology")
    assert len(done.stderr.splitlines()) == 1


def test_a_resource_that_was_made_anew_is_another(cluster: FakeCluster, here: Cluster) -> None:
    cluster.topology("words")
    found = find(here, "words")
    assert found.again().uid == found.uid
    cluster.topology("words", metadata={"uid": "another"})
    with pytest.raises(MillraceError, match="it was deleted, and made anew"):
        found.again()
    del cluster.objects[f"{TOPOLOGIES}/words"]
    with pytest.raises(NotThereError):
        found.again()


def test_the_commands_that_the_page_names_take_both_options() -> None:
    page = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
    rows = page.split("## A topology on a cluster", 1)[1].split("\n## ", 1)[0].splitlines()
    told = set()
    for row in rows:
        cell = row.split("|")[1] if row.startswith("| `") else ""
        names = re.findall(r"`([^`]+)`", cell)
        group = names[0].split()[0] if names and " " in names[0] else ""
        told |= {name if " " in name or not group else f"{group} {name}" for name in names}
    taking = set()
    for path, command in _commands("", typer.main.get_command(build_app())):
        options = {name for parameter in command.params for name in parameter.opts}
        if {"--namespace", "-n", "--context"} <= options:
            taking.add(path)
        assert ("--namespace" in options) == ("--context" in options)
    assert taking == told


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
    for name, one in (below or {}).items():
        yield from _commands(f"{path} {name}".strip(), one)
