"""What all tests need of the process that they run in."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# How fast an example is says something about the machine alone.
settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("here")

# A shell has background jobs ignore this, and the processes that tests interrupt would inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """The thousands of tests stay until the end: the collector looks at them no more."""
    gc.collect()
    gc.freeze()


ALONE = "e2e-tests/tests/test_"
TOGETHER = ("e2e-tests/tests/test_crds_api_server.py", "e2e-tests/tests/test_edits.py")
"""Whose tests share a server, or a topology whose driver has died."""

TESTED_BY = "MILLRACE_TESTED_BY"
ENDING_S = 10.0
"""What ends by itself when its parent is gone has so long for it."""


class Shares(LoadScopeScheduling):
    """What a worker takes next, in the order of the tests: a file, whose tests may share what they
    begin; of the end-to-end tests, which are long and mostly share nothing, one. The long ones come
    first, or some workers would have nothing to do at the end."""

    def _split_scope(self, nodeid: str) -> str:
        alone = nodeid.startswith(ALONE) and not nodeid.startswith(TOGETHER)
        return nodeid if alone else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Shares | None:
    """Where files are asked for."""
    return Shares(config, log) if config.getoption("dist") == "loadfile" else None


def _before_handlers() -> Generator[None, Any, Any]:
    """Pytest gives its handlers to loggers that do not propagate, before each part of a test. Those
    of PySpark make JSON of all that a handler is ever given from then on, and of an exception whose
    text cannot be had another exception."""
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        if name in logging.root.manager.loggerDict:
            logging.getLogger(name).propagate = True
    return (yield)


pytest_runtest_call = pytest.hookimpl(wrapper=True, tryfirst=True)(_before_handlers)
pytest_runtest_teardown = pytest_runtest_setup = pytest_runtest_call


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
    if embedded := sys.modules.get("millrace_e2e.embedded"):
        embedded.remove()
    told = "\n".join(left.values())
    assert not left, f"processes outlive the tests that began them:\n{told}"


def _orphans(mark: str) -> dict[psutil.Process, str]:
    """What tells each of them."""
    children = {process.pid for process in psutil.Process().children(recursive=True)}
    found = {}
    for process in psutil.process_iter():
        if process.pid in children or process.pid == os.getpid():
            continue
        with suppress(psutil.Error):
            if process.environ().get(TESTED_BY) == mark:
                found[process] = _told(process)
    return found


def _told(process: psutil.Process) -> str:
    """The folder is mostly that of the test. Raises ``psutil.Error``."""
    age = time.time() - process.create_time()
    spent = sum(process.cpu_times()[:2])
    return (
        f"{process.pid}, {process.status()}, a child of {process.ppid()}, {age:.0f} s old with "
        f"{spent:.1f} s of CPU, in {process.cwd()}: {' '.join(process.cmdline())}"
    )
