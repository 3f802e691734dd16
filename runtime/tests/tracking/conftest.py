"""Fixtures of the tests of tracking: a real state server, real acker processes."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from trackingparts import Ackers, Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server shared by the session; tests use a uid of their own."""
    with tempfile.TemporaryDirectory() as folder:
        found = Server(Path(folder))
        found.start()
        yield found
        found.kill()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A server that a test may kill."""
    found = Server(tmp_path)
    found.start()
    yield found
    found.kill()


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    with server.client() as found:
        yield found


@pytest.fixture
def uid() -> str:
    return secrets.token_hex(6)


@pytest.fixture
def ackers() -> Iterator[Ackers]:
    found = Ackers()
    yield found
    found.stop()
