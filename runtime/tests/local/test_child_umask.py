"""Processes of a run write for their user alone, and know the umask of who started it."""

from __future__ import annotations

import os
import sys

from millrace.local.children import Child, ProcessSpec, own_umask
from millrace.modes import UMASK_VARIABLE

CODE = f"import os; print(os.environ['{UMASK_VARIABLE}'], oct(os.umask(0)))"


def test_a_child_has_a_strict_umask_and_is_told_the_users() -> None:
    read, write = os.pipe()
    before = os.umask(0o027)
    try:
        assert own_umask() == 0o027
        child = Child(ProcessSpec("x", "x", (sys.executable, "-c", CODE)), write, write)
    finally:
        os.umask(before)
    os.close(write)
    try:
        assert child.wait(60) == 0
        assert os.read(read, 100).decode().split() == ["27", "0o77"]
    finally:
        os.close(read)
        child.close()
