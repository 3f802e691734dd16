"""What programs are built from, and what a build that fails leaves."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from millrace_e2e.cluster import binaries
from millrace_e2e.cluster.binaries import BUILDS, CHART_TOOLS, KUBERNETES, MODULES, Build
from millrace_e2e.cluster.errors import ClusterError

GO_MOD = (MODULES / "kubernetes" / "go.mod").read_text()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "millrace" / "cluster"


def fake_go(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    go = folder / "go"
    go.write_text(f"#!/bin/bash\n{script}\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_programs_of_a_cluster() -> None:
    names = {program for build in BUILDS for program in build.programs}
    assert names == {
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kube-proxy",
        "kubelet",
        "kubectl",
        "dns",
        "pause",
    }
    assert [one for build in CHART_TOOLS for one in build.programs] == ["helm", "kubeconform"]


def test_the_release_that_is_stamped_is_the_one_that_is_built() -> None:
    assert f"k8s.io/kubernetes {KUBERNETES}" in GO_MOD
    staging = set(re.findall(r"^\tk8s\.io/\S+ => k8s\.io/\S+ (\S+)$", GO_MOD, re.M))
    assert staging == {KUBERNETES.replace("v1.", "v0.")}


@pytest.mark.parametrize("build", [*BUILDS, *CHART_TOOLS], ids=lambda build: build.name)
def test_modules_of_every_build_have_sums(build: Build) -> None:
    folder = MODULES / build.name
    assert (folder / "go.mod").is_file()
    required = re.findall(r"^\t(\S+ v\S+)(?: // indirect)?$", (folder / "go.mod").read_text(), re.M)
    sums = (folder / "go.sum").read_text()
    replaced = set(re.findall(r"^\t(\S+) =>", (folder / "go.mod").read_text(), re.M))
    lacking = [one for one in required if one not in sums and one.split()[0] not in replaced]
    assert not lacking


@pytest.mark.parametrize("changed", ["go.mod", "go.sum", "main.go", "flags"])
def test_programs_are_built_anew_when_what_they_are_built_from_changes(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(MODULES / "pause", tmp_path / "pause")
    monkeypatch.setattr(binaries, "MODULES", tmp_path)
    build = Build("pause", (".",), "-s")
    before = build.key()
    assert build.key() == before
    if changed == "flags":
        build = Build("pause", (".",), "-s -w")
    else:
        with (tmp_path / "pause" / changed).open("a") as file:
            file.write("\n")
    assert build.key() != before


def test_without_go_it_says_what_to_install(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries.shutil, "which", lambda *_, **__: None)
    with pytest.raises(ClusterError, match=r"install Go 1\.\d+ or newer"):
        binaries.programs(lambda _: None)


def test_a_build_that_fails_leaves_nothing_that_is_taken_for_programs(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_go(tmp_path / "bin", "echo 'no space left' >&2; exit 2", monkeypatch)
    with pytest.raises(ClusterError, match=r"building pause failed \(exit 2\):\nno space left"):
        binaries.programs(lambda _: None)
    assert list((cache / "bin").iterdir()) == []
    assert binaries.ready(BUILDS[0]) is None


def test_a_build_that_lacks_a_program_is_none(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_go(tmp_path / "bin", "exit 0", monkeypatch)
    with pytest.raises(ClusterError, match="building pause failed"):
        binaries.programs(lambda _: None)
    assert binaries.ready(BUILDS[0]) is None


def test_programs_are_built_once_and_the_sources_go(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for the compiler: it writes what it is asked for."""
    calls = tmp_path / "calls"
    script = f"""
head -n 1 go.mod >> {calls}
[[ $GOFLAGS == *-modcacherw* ]] || exit 1
mkdir -p "$GOMODCACHE/example" "$GOCACHE"
while [ "$1" != -o ]; do shift; done
to=$2
shift 2
for package; do
    if [ "$package" = . ]; then package=$(head -n 1 go.mod); fi
    touch "$to/$(basename "$package")"
done
"""
    fake_go(tmp_path / "bin", script, monkeypatch)
    said: list[str] = []
    first = binaries.programs(said.append)
    assert all(path.is_file() for path in first.values())
    assert not (cache / "build").exists()
    assert binaries.programs(said.append) == first
    built = [line.rpartition("/")[2] for line in calls.read_text().splitlines()]
    assert built == [build.name for build in BUILDS]
    assert [line for line in said if line.startswith("building ")] == [
        line for line in said if "(once;" in line
    ]
    assert json.dumps(sorted(first)) == json.dumps(
        sorted(program for build in BUILDS for program in build.programs)
    )
