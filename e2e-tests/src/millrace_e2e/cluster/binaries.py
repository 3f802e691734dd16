"""The programs of a cluster, built from Go modules into a cache that is filled once.

The cache lies outside the checkout (``~/.cache/millrace/cluster``, or below ``XDG_CACHE_HOME``).
A set of programs lies under the digest of what it was built from, its ``go.mod``, ``go.sum``,
sources and flags, and appears there by one rename: a build that was interrupted leaves nothing that
a later one would take. Modules and objects, several GB, are kept until all sets are built, so that
an interrupted build goes on where it was, and then deleted.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from millrace_e2e.cluster.errors import ClusterError
from millrace_e2e.cluster.layout import cache_folder
from millrace_e2e.cluster.locks import locked

KUBERNETES = "v1.34.4"
MODULES = Path(__file__).resolve().parents[3] / "cluster"
"""Folders with a ``go.mod`` each."""

_GOFLAGS = "-mod=readonly -buildvcs=false -modcacherw"
"""Modules may be deleted afterwards, which Go would make read-only."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Build:
    """One set of programs: ``packages`` of the module in ``MODULES / name`` or that it requires.

    ``.`` is that module's own program, which has the module's name.
    """

    name: str
    packages: tuple[str, ...]
    ldflags: str

    @property
    def programs(self) -> tuple[str, ...]:
        names = (self.name if package == "." else package for package in self.packages)
        return tuple(name.rpartition("/")[2] for name in names)

    def key(self) -> str:
        """Digest of all that decides what comes out, the compiler's release left out."""
        folder = MODULES / self.name
        inputs = [folder / "go.mod", folder / "go.sum", *sorted(folder.glob("*.go"))]
        parts = [path.read_bytes() for path in inputs]
        parts.append("\0".join((*self.packages, self.ldflags)).encode())
        return hashlib.sha256(b"\0\0".join(parts)).hexdigest()[:16]


def _kubernetes() -> Build:
    names = ["apiserver", "controller-manager", "scheduler", "proxy"]
    programs = (*(f"kube-{name}" for name in names), "kubelet", "kubectl")
    version = "k8s.io/component-base/version"
    major, minor = KUBERNETES.removeprefix("v").split(".")[:2]
    stamps = {
        "gitVersion": KUBERNETES,
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
    }
    ldflags = " ".join(("-s -w", *(f"-X {version}.{key}={value}" for key, value in stamps.items())))
    packages = tuple(f"k8s.io/kubernetes/cmd/{program}" for program in programs)
    return Build("kubernetes", packages, ldflags)


BUILDS = (
    Build("pause", (".",), "-s -w"),
    Build("dns", (".",), "-s -w"),
    _kubernetes(),
)
"""What a cluster takes."""

CHART_TOOLS = (
    Build("helm", ("helm.sh/helm/v3/cmd/helm",), "-s -w"),
    Build("kubeconform", ("github.com/yannh/kubeconform/cmd/kubeconform",), "-s -w"),
)
"""What tests of charts take."""

SIMULATED = (Build("kwok", ("sigs.k8s.io/kwok/cmd/kwok",), "-s -w"),)
"""What benchmarks take whose nodes are simulated."""

SETS = {build.name: build for build in (*BUILDS, *CHART_TOOLS, *SIMULATED)}


def ready(build: Build) -> Path | None:
    """Folder with the programs, if they are there."""
    folder = _folder(build)
    return folder if folder.is_dir() else None


def programs(say: Say, builds: Sequence[Build] = BUILDS) -> Mapping[str, Path]:
    """Every program by name, built where the cache lacks it.

    Raises ``ClusterError`` when Go is missing or a build fails.
    """
    if any(ready(build) is None for build in builds):
        with locked(cache_folder() / "build.lock"):
            for build in builds:
                if ready(build) is None:
                    _make(build, say)
            shutil.rmtree(_sources(), ignore_errors=True)
    return {program: _folder(build) / program for build in builds for program in build.programs}


def _folder(build: Build) -> Path:
    return cache_folder() / "bin" / f"{build.name}-{build.key()}"


def _make(build: Build, say: Say) -> None:
    say(f"building {', '.join(build.programs)} (once; all that a cluster takes: about 15 min)")
    began = time.monotonic()
    target = _folder(build)
    target.parent.mkdir(parents=True, exist_ok=True)
    for stale in target.parent.glob(".build-*"):
        shutil.rmtree(stale)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as scratch:
        made, source = Path(scratch) / "bin", Path(scratch) / "source"
        made.mkdir()
        # A build takes long, and the checkout may be taken to another state meanwhile.
        shutil.copytree(MODULES / build.name, source)
        _compile(build, source, made)
        os.rename(made, target)
    say(f"built {build.name} in {time.monotonic() - began:.0f} s")


def _compile(build: Build, source: Path, to: Path) -> None:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        raise ClusterError(
            "the cluster's programs are built with Go, which is not on the PATH; "
            "install Go 1.24 or newer, which fetches a newer release of itself where it needs one"
        )
    settings = {
        "GOMODCACHE": str(_sources() / "modules"),
        "GOCACHE": str(_sources() / "objects"),
        "GOFLAGS": f"{os.environ.get('GOFLAGS', '')} {_GOFLAGS}".strip(),
        "CGO_ENABLED": "0",
    }
    command = [go, "build", "-trimpath", "-ldflags", build.ldflags, "-o", f"{to}/", *build.packages]
    done = subprocess.run(
        command,
        cwd=source,
        env={**os.environ, **settings},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    missing = [name for name in build.programs if not (to / name).exists()]
    if done.returncode or missing:
        last = "\n".join(done.stderr.splitlines()[-15:])
        raise ClusterError(f"building {build.name} failed (exit {done.returncode}):\n{last}")


def _sources() -> Path:
    return cache_folder() / "build"
