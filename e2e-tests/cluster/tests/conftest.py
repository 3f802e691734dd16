"""A cluster for the tests, brought up and taken down as a person does it: by the command."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from cluster_command import Tool

from millrace_e2e.cluster.binaries import programs
from millrace_e2e.cluster.layout import RUN


@pytest.fixture(scope="session")
def tool() -> Iterator[Tool]:
    """The tool on a machine that has no cluster of it yet."""
    if os.geteuid() != 0:
        pytest.fail("a cluster of the machine's own is started as root")
    if RUN.exists():
        pytest.fail("a cluster is up; take it down first: make cluster-down")
    tool = Tool(programs(print)["kubectl"])
    yield tool
    tool.run("down")
