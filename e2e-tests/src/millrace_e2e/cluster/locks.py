"""A lock between processes, which goes with its holder and the commands that it has begun.

A command that outlives the process that began it still changes things: it is given ``HELD``, so
that the lock is free when it has ended, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

HELD: set[int] = set()
"""File descriptors of the locks that this process holds."""


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One at a time. The holder may delete the file: whoever waits on it then opens a new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if not _is_at(handle, path):
                continue
            HELD.add(handle)
            yield
            return
        finally:
            HELD.discard(handle)
            os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False
