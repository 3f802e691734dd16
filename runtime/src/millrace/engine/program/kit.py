"""What workers need and Spark must not carry: the program, with its connectors, and passwords.

The driver writes it into a file of the work folder that its user alone can read, with the tables
of the program beside it; tasks carry the file's path. Spark keeps copies of what it ships, in
memory and on disk, and hands them out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from millrace import durable
from millrace.engine.program import signing
from millrace.engine.program.program import Program

_PURPOSE = "kit"


@dataclass(frozen=True, slots=True)
class Kit:
    """``passwords`` are those of the state servers, by name."""

    program: Program
    passwords: Mapping[str, str] = field(default_factory=dict, repr=False)

    def digest(self) -> str:
        """Of the program alone: kits for other servers have the same."""
        data = signing.signed(_PURPOSE, _alone(self.program))
        return hashlib.blake2b(data, digest_size=16).hexdigest()


def store(kit: Kit, folder: Path) -> Path:
    """Write a kit into a folder, and the tables of its program beside it; the names of all of them
    tell their content."""
    data = signing.signed(_PURPOSE, replace(kit, program=_alone(kit.program)))
    path = folder / f"kit-{hashlib.blake2b(data, digest_size=16).hexdigest()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, content in kit.program.tables.items():
        _put(folder / name, content)
    _put(path, data)
    return path


def _alone(program: Program) -> Program:
    """A program that has the names of its tables alone."""
    return replace(program, tables=dict.fromkeys(program.tables, b""))


def _put(path: Path, data: bytes) -> None:
    if not path.exists():
        durable.replace(path, data, durable=False)


def load(path: Path) -> Kit:
    """Read a kit. Raises ``UnsignedError``, and ``OSError`` where the file is gone."""
    kit: Kit = signing.verified(_PURPOSE, path.read_bytes())
    return kit
