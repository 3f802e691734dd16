"""State servers of a run: the user's own one, reached with patience, and several embedded ones."""

from __future__ import annotations

import itertools
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis
from standins import running, until

from millrace.addresses import without_password
from millrace.clock import SystemClock
from millrace.errors import StateServerError
from millrace.local import scratch
from millrace.local.launch import state_servers
from millrace.local.servers import Embedded, External, RunPasswords, reach
from millrace.local.workdir import open_folder
from millrace.redisserver import open_client
from millrace.state.client import StateClient
from millrace.state.embedded import EmbeddedServer
from millrace.state.errors import UnreachableError
from millrace.topology.load import parse
from millrace_e2e.embedded import sockets, started
from millrace_e2e.valkey import free_port

TOPOLOGY = """
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {name: several}
spec:
  stateServers: {replicas: 3}
  sources: [{name: made, generator: {count: 1}}]
  sinks: [{name: shown, inputs: [{from: made}], custom: {class: "nowhere:Sink"}}]
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with started(tmp_path / "own", place=free_port()) as one:
        yield one


def test_a_server_that_is_not_there_is_asked_again_and_then_named() -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    with pytest.raises(UnreachableError, match=r"cannot be reached.*tried 2 times"):
        reach("state-0", url, None, patience_s=1.0)


def test_a_wrong_password_is_reported_at_once(server: EmbeddedServer) -> None:
    with pytest.raises(StateServerError, match="password"):
        reach("state-0", server.address.url, "wrong", patience_s=3600.0)


def test_a_server_with_settings_that_lose_data_is_refused(server: EmbeddedServer) -> None:
    client = StateClient(server.address, "u")
    client.redis.config_set("maxmemory-policy", "allkeys-lru")
    client.close()
    own = External(server.address.url, server.address.password, "u")
    with pytest.raises(StateServerError, match=r"maxmemory-policy.*noeviction"):
        own.start()
    own.stop()


def test_another_incarnation_behind_the_same_url_is_noticed(server: EmbeddedServer) -> None:
    own = External(server.address.url, server.address.password, "u")
    first = own.start()
    server.kill()
    port = int(server.address.url.rpartition(":")[2])
    with started(server.folder, place=port) as second:
        until(lambda: own.address != first, "the new incarnation")
        assert own.address is not None
        assert own.address.run_id == second.address.run_id
        own.stop()


def test_a_server_that_died_comes_back_at_its_socket_which_others_cannot_have(
    tmp_path: Path,
) -> None:
    with scratch.temporary(tmp_path) as folder:
        ours = Embedded("state-0", tmp_path, folder, RunPasswords(tmp_path, "u"))
        first = ours.start()
        assert ours.pid is not None
        assert psutil.Process(ours.pid).net_connections("inet") == []
        # Who is told the password of a client has bound the socket, which its user alone can.
        socket = Path(first.url.removeprefix("unix://"))
        assert stat.S_IMODE(socket.stat().st_mode) == 0o700
        assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
        os.kill(ours.pid, signal.SIGKILL)
        until(lambda: ours.ended() is not None, "its end")
        second = ours.start()
        assert second.url == first.url
        assert second.run_id != first.run_id
        ours.stop()
    assert not folder.exists()


def test_each_embedded_server_has_a_password_of_its_own(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, "several", Path("t.yaml"), SystemClock())
    servers = state_servers(folder, parse(TOPOLOGY), sockets())
    addresses = [server.start() for server in servers]
    try:
        assert len({address.password for address in addresses}) == 3
        assert len({address.url for address in addresses}) == 3
        private = [tmp_path / "root", *(tmp_path / s.name / "password" for s in servers)]
        private += [tmp_path / s.name / "valkey.conf" for s in servers]
        assert {oct(file.stat().st_mode)[-3:] for file in private} == {"600"}
        for one, other in itertools.product(addresses, repeat=2):
            client = open_client(one.url, other.password, answer_s=5.0)
            if one is other:
                assert client.ping()
            else:
                with pytest.raises(redis.AuthenticationError):
                    client.ping()
            client.close()
    finally:
        for server in servers:
            server.stop()


def test_a_run_proposes_all_its_servers(tmp_path: Path) -> None:
    with running(tmp_path, servers=2) as run:
        run.up()
        assert {"state-0", "state-1", "acker-0", "driver", "supervisor"} == set(run.processes())


@pytest.mark.parametrize(
    ("url", "bare", "password"),
    [
        ("redis://:s%40crt@host:1/0", "redis://host:1/0", "s@crt"),
        ("rediss://user:pw@host:1", "rediss://user@host:1", "pw"),
        ("redis://host:1", "redis://host:1", None),
        ("unix:///run/valkey.sock", "unix:///run/valkey.sock", None),
    ],
)
def test_a_password_is_taken_out_of_a_url(url: str, bare: str, password: str | None) -> None:
    assert without_password(url) == (bare, password)
