"""Folders and servers of the fault histories."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace_e2e import quickjvm, valkey
from millrace_e2e.harness import Place


@pytest.fixture(scope="session")
def quick_jvm() -> None:
    """The archive with which each of the many drivers here starts sooner."""
    quickjvm.build()


@pytest.fixture
def place(tmp_path: Path, quick_jvm: None) -> Place:
    """The folders of one history."""
    return Place(tmp_path / "history").make()


@pytest.fixture
def sink_server(tmp_path: Path) -> Iterator[valkey.Server]:
    """A server of the test's own, for the redis sinks of a history."""
    with valkey.serving(tmp_path / "sink-server") as server:
        yield server
