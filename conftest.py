"""What all tests need of the process that they run in."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest
from hypothesis import HealthCheck, settings

# How fast an example is says something about the machine alone.
settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("here")

# A shell has background jobs ignore this, and the processes that tests interrupt would inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)

TESTED_BY = "MILLRACE_TESTED_BY"
ENDING_S = 10.0
"""What ends by itself when its parent is gone has so long for it."""


@pytest.fixture(scope="session", autouse=True)
def nothing_outlives_the_tests() -> Iterator[None]:
    """No process that a test began is left without a parent here; what is, fails and is killed.

    Every one is known by the environment that it inherits.
    """
    mark = f"{os.getpid()}-{uuid.uuid4()}"
    os.environ[TESTED_BY] = mark
    yield
    give_up = time.monotonic() + ENDING_S
    while (left := _orphans(mark)) and time.monotonic() < give_up:
        time.sleep(0.1)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    told = "\n".join(f"{process.pid}: {command}" for process, command in left.items())
    assert not left, f"processes outlive the tests that began them:\n{told}"


def _orphans(mark: str) -> dict[psutil.Process, str]:
    """Their command lines."""
    children = {process.pid for process in psutil.Process().children(recursive=True)}
    found = {}
    for process in psutil.process_iter():
        if process.pid in children or process.pid == os.getpid():
            continue
        with suppress(psutil.Error):
            if process.environ().get(TESTED_BY) == mark:
                found[process] = " ".join(process.cmdline())
    return found
