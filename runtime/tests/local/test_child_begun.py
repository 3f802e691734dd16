"""A child that was begun and cannot be watched is ended, with what is below it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest
from standins import until

from millrace.local.children import Child, ProcessSpec


@pytest.mark.parametrize("tree", [False, True])
def test_nothing_is_left_of_one_that_cannot_be_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tree: bool
) -> None:
    def refused(_: int) -> int:
        raise OSError(24, "Too many open files")

    command = (sys.executable, "-c", "import signal; signal.pause()", str(tmp_path))
    monkeypatch.setattr(os, "pidfd_open", refused)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Too many open files"):
        Child(ProcessSpec("x", "x", command, tree=tree), 2, 2)
    assert len(os.listdir("/proc/self/fd")) == before
    until(lambda: not with_word(str(tmp_path)), "its end")


def with_word(word: str) -> list[int]:
    found = psutil.process_iter(["cmdline"])
    return [one.pid for one in found if word in (one.info["cmdline"] or [])]
