"""The project's own images for the nodes of a cluster, and all else that tests on nodes take."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from millrace_e2e.cluster import binaries, packages
from millrace_e2e.cluster.errors import ClusterError

PREFIX = "registry.example.org/millrace/"
"""As in docs/install.md, so that one build serves its commands and all tests."""

TAG = "0.1.0"
"""What its commands call ``$tag``: the chart's ``appVersion``, which needs no value. Nodes are
given archives, which replace what they have of a tag."""

_BUILD = Path(__file__).resolve().parents[4] / "images" / "build.py"


def images(say: Callable[[str], None], *names: str) -> list[Path]:
    """Archives of these images, of all without names, built where the cache lacks them.

    Raises ``ClusterError`` when a package is missing or a build fails.
    """
    packages.install(say)
    command = [sys.executable, str(_BUILD), *names, "--prefix", PREFIX, "--tag", TAG]
    command += ["--engine", "buildah", "--base", "mmdebstrap"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as build:
        try:
            told, _ = build.communicate()
        except BaseException:
            # Killed it would leave its folder and what it has begun behind.
            build.terminate()
            build.wait()
            raise
    if build.returncode:
        raise ClusterError(f"building images failed (exit {build.returncode})")
    return [Path(line) for line in told.split()]


def prepare(say: Callable[[str], None]) -> list[Path]:
    """Packages, programs and images: whatever takes long where the cache is empty."""
    packages.install(say)
    found = binaries.programs(say, (*binaries.BUILDS, *binaries.CHART_TOOLS))
    return [*found.values(), *images(say)]
