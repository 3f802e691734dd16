"""Who may read what a run writes: its own files are its user's alone, outputs follow the umask.

The processes of a run have the umask 077, for logs, state and scratch. What the user asked for,
the rows in a folder, gets the mode that the user's own programs would give it. And where processes
find secrets that only their user can read.
"""

from __future__ import annotations

import os
from pathlib import Path

UMASK_VARIABLE = "MILLRACE_UMASK"
"""Environment variable that carries the umask of ``millrace run`` to its processes, in octal."""

SECRETS_VARIABLE = "MILLRACE_SECRETS"
"""Environment variable with the folder where Secrets of sources and sinks are mounted,
``<name>/<key>``. Without it values are those of other environment variables."""

NODE_VARIABLE = "MILLRACE_NODE"
"""Environment variable with the name of the node that a process is on, where there are nodes."""


def open_up(descriptor: int) -> None:
    """Give an open file of the user's the mode that the user's umask leaves of 666."""
    umask = _umask()
    if umask is not None:
        os.fchmod(descriptor, 0o666 & ~umask)


def make_folder(path: Path) -> None:
    """Make a folder of the user's and those above it, with what the user's umask leaves of 777."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(parents=True, exist_ok=True)
    umask = _umask()
    if umask is not None:
        for made in missing:
            made.chmod(0o777 & ~umask)


def _umask() -> int | None:
    text = os.environ.get(UMASK_VARIABLE)
    return int(text, 8) if text else None


def private_opener(path: str, flags: int) -> int:
    """An opener for ``open``: what it creates is its user's alone, whatever the umask is."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
