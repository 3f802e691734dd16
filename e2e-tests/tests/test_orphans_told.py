"""A test that leaves a process behind fails the tests, and the process ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]

_TEST = """
import subprocess, sys

def test_that_passes():
    # Output is waited for to its end: what is left has none of it.
    sleep = "from subprocess import *; print(Popen(['sleep', 'SECONDS'], stdout=DEVNULL).pid)"
    print("left", subprocess.check_output([sys.executable, "-c", sleep], text=True))
"""


@pytest.mark.parametrize(("seconds", "code"), [("100", 1), ("0.2", 0)])
def test_an_orphan_that_does_not_end_fails_the_tests(
    seconds: str, code: int, tmp_path: Path
) -> None:
    place = tmp_path / "test_one.py"
    place.write_text(_TEST.replace("SECONDS", seconds))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-s", "-p", "conftest", f"--rootdir={ROOT}", place],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == code, done.stdout
    pid = int(done.stdout.split("left ")[1].split()[0])
    assert ("outlive the tests" in done.stdout) == bool(code)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
