"""A cluster for the tests, brought up and taken down as a person does it: by the command."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from chart_command import Shell
from cluster_command import FAILED, Tool
from words_on_nodes import installed

from millrace_e2e.cluster.binaries import programs
from millrace_e2e.cluster.own import OwnCluster


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


@pytest.fixture(scope="session")
def tool() -> Iterator[Tool]:
    """The tool on a machine on which no cluster of it runs yet."""
    if os.geteuid() != 0:
        pytest.fail("a cluster of the machine's own is started as root")
    if not OwnCluster(print).remove_dead():
        pytest.fail("a cluster is up; take it down first: make cluster-down")
    tool = Tool(programs(print)["kubectl"])
    yield tool
    tool.run("down")


@pytest.fixture(scope="module")
def shell(tool: Tool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A user's, with the operator installed."""
    with installed(tool, tmp_path_factory.mktemp("helm")) as shell:
        yield shell
