"""One Spark session, one state server and a folder for each history."""

from __future__ import annotations

import sys

import pytest
from faults_driver import CODE, Life, laboratory

from millrace_e2e.embedded import started
from millrace_e2e.harness import Place

if str(CODE) not in sys.path:
    sys.path.insert(0, str(CODE))


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with laboratory(tmp_path_factory.mktemp("lab")) as made:
        yield made


@pytest.fixture(scope="module")
def state_server(tmp_path_factory):
    server = started(tmp_path_factory.mktemp("state"))
    yield server
    server.stop()


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "history").make()


@pytest.fixture
def live(lab, place, state_server, monkeypatch):
    """Starts lives of drivers over the history; those that are left are ended with the test. All of
    their larger windows are several tasks, however soon one would be done on this machine."""
    monkeypatch.setattr("millrace.engine.jobs.sizes.SEVERAL_S", 0.0)
    lives = []

    def make(address=state_server.address, **options) -> Life:
        lives.append(Life(lab, place, address, **options).start())
        return lives[-1]

    lab.order({})
    yield make
    for life in lives:
        life.stop()
