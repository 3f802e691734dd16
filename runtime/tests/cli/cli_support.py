"""The command as a user starts it, and what it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HEAD = """
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {name: first}
spec:
"""


def command(
    *arguments: str, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """``millrace ARGUMENTS`` in a process of its own and not in a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "millrace.cli.app", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, "NO_COLOR": "1", "TERMINAL_WIDTH": "120", **environment},
    )


def topology(folder: Path, spec: str) -> Path:
    """A topology file with a spec."""
    file = folder / "topology.yaml"
    file.write_text(HEAD + spec)
    return file


def java(folder: Path, says: str, code: int = 0) -> Path:
    """A stand-in for a Java home whose ``java -version`` says something."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    program.chmod(0o755)
    return folder
