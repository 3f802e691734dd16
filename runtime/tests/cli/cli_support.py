"""What commands are told of."""

from __future__ import annotations

from pathlib import Path

HEAD = """
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {name: first}
spec:
"""


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
