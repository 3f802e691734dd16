"""The cluster tool as a person uses it: by its command."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from millrace_e2e.cluster.layout import Layout

FAILED = pytest.StashKey[bool]()
"""Of a test that did not pass: what was seen is kept before its world is taken away."""


@dataclass(frozen=True)
class Tool:
    """The cluster tool as a command, and kubectl for what it brings up."""

    kubectl_path: Path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "millrace_e2e.cluster", "--cluster=own", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> str:
        with self.start(*arguments) as started:
            said, complaint = started.communicate()
        assert started.returncode == 0, complaint
        return said

    def command(self, *arguments: str) -> list[str]:
        kubeconfig = Layout.standard().kubeconfig
        return [str(self.kubectl_path), f"--kubeconfig={kubeconfig}", *arguments]

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        done = subprocess.run(
            self.command(*arguments), input=stdin, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout
