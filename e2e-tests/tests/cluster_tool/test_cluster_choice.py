"""Which cluster is taken, and what is said where it cannot be."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import yaml

from millrace_e2e.cluster import kind, nodes, own, packages
from millrace_e2e.cluster.__main__ import main
from millrace_e2e.cluster.choice import Choice, find, fitting
from millrace_e2e.cluster.errors import ClusterError
from millrace_e2e.cluster.given import GivenCluster
from millrace_e2e.cluster.kind import KindCluster
from millrace_e2e.cluster.own import OwnCluster


def quiet(text: str) -> None:
    pass


class Stands:
    """Programs that stand in for those that this machine may lack, alone on the PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = folder / "calls"
        folder.mkdir()

    def add(self, name: str, script: str = "") -> None:
        path = self.folder / name
        path.write_text(f'#!/bin/bash\necho "{name} $*" >> {self.calls}\n{script}\n')
        path.chmod(0o755)

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stands:
    stands = Stands(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(stands.folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(own, "RUN", tmp_path / "run")
    return stands


def test_kind_is_taken_where_it_and_a_docker_that_answers_are_there(stands: Stands) -> None:
    assert fitting() is Choice.OWN
    stands.add("kind")
    assert fitting() is Choice.OWN
    stands.add("docker", "exit 1")
    assert fitting() is Choice.OWN
    stands.add("docker")
    assert fitting() is Choice.KIND


def test_docker_without_kind_is_not_enough(stands: Stands) -> None:
    stands.add("docker")
    assert fitting() is Choice.OWN
    with pytest.raises(ClusterError, match="needs the program kind"):
        KindCluster(quiet).up(2)


def test_a_cluster_that_is_up_is_the_one_that_is_meant(stands: Stands) -> None:
    stands.add("kind")
    stands.add("docker")
    own.RUN.mkdir()
    assert fitting() is Choice.OWN


def test_what_is_told_is_taken(stands: Stands) -> None:
    assert isinstance(find(Choice.CURRENT, quiet), GivenCluster)
    assert isinstance(find(Choice.KIND, quiet), KindCluster)
    assert isinstance(find(Choice.OWN, quiet), OwnCluster)
    assert isinstance(find(Choice.AUTO, quiet), OwnCluster)


def test_kind_makes_the_nodes_that_are_asked_for(stands: Stands) -> None:
    stands.add("docker")
    stands.add("kind")
    cluster = KindCluster(quiet)
    cluster.up(2)
    created = [line for line in stands.called() if line.startswith("kind create cluster")]
    assert len(created) == 1
    assert f"--kubeconfig={cluster.kubeconfig}" in created[0]
    (settings,) = [word for word in created[0].split() if word.startswith("--config=")]
    document = yaml.safe_load(Path(settings.removeprefix("--config=")).read_text())
    assert [node["role"] for node in document["nodes"]] == ["control-plane", "worker", "worker"]


THERE = f'[ "$*" != "get clusters" ] || echo {kind.NAME}'
NAMES = [f"{kind.NAME}-{role}" for role in ("control-plane", "worker", "worker2")]
WITH_NODES = f'{THERE}\n[ "$*" != "get nodes --name={kind.NAME}" ] || echo {" ".join(NAMES)}'


def docker(runs: str = "true", joined: int = 3, ready: str = "true") -> str:
    """A Docker that has these containers, and a kubectl in one of them."""
    return f"""case "$*" in
        inspect*) echo {runs};;
        *" get nodes "*) for one in {" ".join(NAMES[:joined])}; do echo node/$one; done;;
        *" wait "*) {ready};;
    esac"""


def test_a_cluster_of_kind_that_is_there_stays_and_goes_when_it_is_told(stands: Stands) -> None:
    stands.add("docker", docker())
    stands.add("kind")
    cluster = KindCluster(quiet)
    cluster.up(2)
    stands.add("kind", WITH_NODES)
    made = len(stands.called())
    cluster.up(2)
    assert not re.findall("kind (?:create|delete)", "\n".join(stands.called()[made:]))
    assert any(line.startswith("kind export kubeconfig") for line in stands.called()[made:])
    cluster.down()
    assert any(line.startswith("kind delete cluster --name=millrace") for line in stands.called())
    ended = len(stands.called())
    cluster.down()
    assert stands.called()[ended:] == []


@pytest.mark.parametrize(
    ("count", "script"),
    [
        (1, docker()),
        (3, docker()),
        (2, docker(runs="false")),
        (2, docker(joined=2)),
        (2, docker(ready="exit 1")),
    ],
)
def test_a_cluster_of_kind_that_is_half_made_or_of_another_size_is_made_anew(
    stands: Stands, count: int, script: str
) -> None:
    stands.add("docker", docker())
    stands.add("kind")
    cluster = KindCluster(quiet)
    cluster.up(2)
    stands.add("kind", WITH_NODES)
    stands.add("docker", script)
    made = len(stands.called())
    cluster.up(count)
    changes = [one for one in stands.called()[made:] if re.match("kind (create|delete)", one)]
    assert [one.split()[1] for one in changes] == ["delete", "create"]
    (settings,) = re.findall(r"--config=(\S+)", changes[1])
    assert len(yaml.safe_load(Path(settings).read_text())["nodes"]) == 1 + count


def test_a_cluster_of_that_name_that_somebody_else_made_is_left_alone(stands: Stands) -> None:
    stands.add("docker")
    stands.add("kind", THERE)
    cluster = KindCluster(quiet)
    with pytest.raises(ClusterError, match=r"not made here.*CLUSTER=current"):
        cluster.up(2)
    cluster.down()
    assert {line for line in stands.called() if line.startswith("kind")} == {"kind get clusters"}


def test_a_cluster_of_kind_is_not_forgotten_while_docker_is_away(stands: Stands) -> None:
    stands.add("docker")
    stands.add("kind")
    KindCluster(quiet).up(2)
    stands.add("docker", "exit 1")
    assert fitting() is Choice.KIND
    with pytest.raises(ClusterError, match="a Docker that answers"):
        find(Choice.AUTO, quiet).down()
    stands.add("docker")
    stands.add("kind", THERE)
    find(Choice.AUTO, quiet).down()
    assert any(line.startswith("kind delete cluster") for line in stands.called())


def test_nothing_is_installed_on_a_machine_that_cannot_have_a_cluster(
    stands: Stands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cgroup.controllers").touch()
    monkeypatch.setattr(nodes, "_HIERARCHIES", tmp_path)
    monkeypatch.setattr(own, "_check_root", lambda: None)
    stands.add("apt-get")
    with pytest.raises(ClusterError, match="control groups of version 2 alone"):
        OwnCluster(quiet).up(2)
    assert stands.called() == []


def listing(**ready: str) -> str:
    items = [
        {
            "metadata": {"name": name},
            "status": {"conditions": [{"type": "Ready", "status": status}]},
        }
        for name, status in ready.items()
    ]
    return json.dumps({"items": items})


def test_a_given_cluster_is_asked_and_never_changed(stands: Stands) -> None:
    stands.add("kubectl", f"echo '{listing(a='True', b='Unknown', c='True')}'")
    cluster = GivenCluster(quiet)
    cluster.up(2)
    assert cluster.nodes() == {"a": True, "b": False, "c": True}
    with pytest.raises(ClusterError, match="has 2 nodes that are ready, fewer than 3"):
        cluster.up(3)
    cluster.down()
    assert {line.split()[1] for line in stands.called()} == {"get"}
    with pytest.raises(ClusterError, match="not ours to cut"):
        cluster.kill_node("a")


def test_a_given_cluster_needs_kubectl(stands: Stands) -> None:
    with pytest.raises(ClusterError, match="asked by kubectl; install it"):
        GivenCluster(quiet).nodes()


def test_missing_packages_are_named(stands: Stands) -> None:
    lacking = packages.missing(path=str(stands.folder))
    assert {"etcd-server", "containerd", "runc", "mmdebstrap"} <= set(lacking)
    assert len(lacking) == len(set(lacking))
    stands.add("runc")
    assert "runc" not in packages.missing(path=str(stands.folder))


def test_a_machine_without_apt_is_told_what_to_install(
    stands: Stands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "missing", lambda: ["etcd-server", "runc"])
    with pytest.raises(ClusterError, match="these packages: etcd-server, runc"):
        packages.install(quiet)


def test_packages_that_are_missing_are_installed(
    stands: Stands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "missing", lambda: ["etcd-server", "runc"])
    stands.add("apt-get")
    packages.install(quiet)
    assert stands.called()[-1].split()[-2:] == ["etcd-server", "runc"]
    stands.add("apt-get", "echo 'no such mirror' >&2; exit 100")
    with pytest.raises(ClusterError, match="apt-get update failed:\nno such mirror"):
        packages.install(quiet)


def test_whoever_is_not_root_is_told_so(
    stands: Stands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(packages, "missing", lambda: ["runc"])
    assert main(["--cluster", "own", "up"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert "as root; it also needs these packages: runc" in said


@pytest.mark.parametrize("count", [0, 10])
def test_a_number_of_nodes_that_cannot_be_is_refused(
    count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--cluster", "own", "up", "--nodes", str(count)]) == 1
    assert f"nodes: {count} is not between 1 and 9" in capsys.readouterr().err


def test_nodes_of_a_listing_are_ready_by_their_condition() -> None:
    assert own.ready_nodes(json.loads(listing(a="True", b="False"))) == {"a"}
    assert own.ready_nodes({"items": [{"metadata": {"name": "new"}, "status": {}}]}) == set()
