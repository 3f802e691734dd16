"""One state server for all tests of the engine; each test has a topology of its own in it."""

from __future__ import annotations

import itertools
import time

import pytest
import type_values as tv
from engine_support import Windows, compiled

from millrace_e2e.embedded import started

_uids = itertools.count(1)


@pytest.fixture(scope="session")
def state_server(tmp_path_factory):
    server = started(tmp_path_factory.mktemp("state"))
    yield server
    server.stop()


@pytest.fixture
def uid():
    return f"engine-{next(_uids)}"


@pytest.fixture(params=tv.ZONES)
def zone(request, monkeypatch):
    """This process is in each of some time zones, one test after the other."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def windows(tmp_path, state_server, uid):
    """Makes ``Windows`` of a topology's spec, whose paths start at ``tmp_path``."""

    def make(spec: str, whole: bool = False, **changes) -> Windows:
        return Windows(compiled(spec, tmp_path, uid, **changes), state_server.address, whole)

    return make
