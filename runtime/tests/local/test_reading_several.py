"""What is read beside the driver where there are several state servers: the record that counts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.clock import SystemClock
from millrace.errors import StateServerError
from millrace.homes.documents import Proposal
from millrace.local.inspect import reading
from millrace.local.inspect.reading import committed_record, fetch, fetch_parts, reachable
from millrace.local.launch import state_servers
from millrace.local.servers import StateServer
from millrace.local.takeover import take_over
from millrace.local.workdir import WorkFolder, open_folder
from millrace.protocol.codec import encode_record
from millrace.protocol.record import first_record
from millrace.protocol.types import Member, Phase, Stamp, Tag, View
from millrace.state.client import StateClient
from millrace.state.viewfile import ViewFile
from millrace.topology.load import parse
from millrace_e2e.embedded import sockets

TOPOLOGY = """
apiVersion: millrace.dev/v1alpha1
kind: StreamTopology
metadata: {name: several}
spec:
  stateServers: {replicas: 3, copies: 2}
  sources: [{name: made, generator: {count: 1}}]
  sinks: [{name: shown, inputs: [{from: made}], custom: {class: "nowhere:Sink"}}]
"""
STAMP = Stamp(1, 1)


class World:
    """A run with three servers, two of which are members of its view."""

    def __init__(self, folder: WorkFolder) -> None:
        self.folder = folder
        self.servers: list[StateServer] = state_servers(folder, parse(TOPOLOGY), sockets())
        self.clients = [StateClient(server.start(), folder.uid) for server in self.servers]
        for client in self.clients:
            client.stamp(STAMP)
        self.install(*self.members()[:2])
        folder.inbox.propose(Proposal(tuple(self.members()), ()))

    def members(self) -> list[Member]:
        return [client.address.member() for client in self.clients]

    def install(self, *members: Member) -> None:
        store = ViewFile(self.folder.view)
        version, _ = store.read()
        owners = (tuple(m.name for m in members),)
        view = View(self.folder.uid, 1, 1, Phase.OPEN, 1, members, members, 1, owners)
        assert store.cas(version, view) is not None

    def write(self, server: int, sealed: int, by: Tag | None = None) -> None:
        tag = by or Tag(1, 1, 1, sealed + 1)
        record = replace(first_record(self.folder.uid, tag), sealed=sealed)
        self.clients[server].write_record(STAMP, tag, encode_record(record))

    def sealed(self) -> int | None:
        with reachable(self.folder) as clients:
            record = committed_record(clients)
            return record.sealed if record is not None else None


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    folder = open_folder(tmp_path, "several", Path("t.yaml"), SystemClock())
    lease = take_over(folder.path, lambda _: None)
    made = World(folder)
    yield made
    for client, server in zip(made.clients, made.servers, strict=True):
        client.close()
        server.stop()
    lease.release()


def test_the_record_that_every_member_has_counts(world: World) -> None:
    assert world.sealed() is None
    world.write(0, 4)
    world.write(1, 4)
    # One that left the view long ago says nothing, nor does a seal that only one member has.
    world.write(2, 1)
    world.write(0, 5)
    assert world.sealed() == 4
    world.write(1, 5)
    assert world.sealed() == 5


def test_a_seal_that_died_with_its_driver_does_not_count_while_the_view_moves(
    world: World,
) -> None:
    """The next driver goes on without the one that has it, from what the others had before."""
    world.write(0, 20)
    world.write(1, 19, by=Tag(1, 2, 2, 1))
    assert world.sealed() == 19


def test_without_one_of_the_members_nothing_is_said(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the others have may be a seal that never counts."""
    monkeypatch.setattr(reading, "PATIENCE_S", 0.1)
    world.write(0, 5)
    world.write(1, 4)
    world.folder.inbox.propose(Proposal((world.members()[0], world.members()[2]), ()))
    with pytest.raises(StateServerError, match="state server state-1 of the run is not alive"):
        world.sealed()


@pytest.mark.parametrize("how", ["left out", "back"])
def test_a_server_that_is_gone_is_waited_for_until_the_others_count(world: World, how: str) -> None:
    world.write(0, 5)
    world.write(1, 4)
    first, _, last = world.members()
    world.folder.inbox.propose(Proposal((first, last), ()))

    def goes_on() -> None:
        if how == "back":
            world.folder.inbox.propose(Proposal(tuple(world.members()), ()))
        else:
            world.install(first)

    driver = threading.Timer(2 * reading.LOOK_S, goes_on)
    driver.start()
    try:
        assert world.sealed() == (4 if how == "back" else 5)
    finally:
        driver.join()


def test_of_several_copies_one_that_is_intact_is_read(world: World) -> None:
    world.clients[0].put(STAMP, [("here", b"damaged")])
    with reachable(world.folder) as clients:
        assert fetch(clients, "here", lambda data: data == b"bytes") == b"damaged"
        world.clients[1].put(STAMP, [("here", b"bytes")])
        assert fetch(clients, "here", lambda data: data == b"bytes") == b"bytes"
        world.servers[1].stop()
        with pytest.raises(StateServerError):
            fetch(clients, "here", lambda data: data == b"bytes")


def test_an_object_is_read_from_whoever_has_it_and_answers(world: World) -> None:
    world.clients[1].put(STAMP, [("here", b"bytes")])
    with reachable(world.folder) as clients:
        assert fetch(clients, "here") == b"bytes"
        assert fetch(clients, "nowhere") is None
        world.servers[0].stop()
        assert fetch(clients, "here") == b"bytes"
        with pytest.raises(StateServerError, match="state-0"):
            fetch(clients, "nowhere")


def test_a_damaged_part_is_passed_over_where_another_server_has_it_intact(world: World) -> None:
    world.clients[0].put(STAMP, [("here", b"b?tes")])
    world.clients[1].put(STAMP, [("here", b"bytes"), ("rotten", b"?")])
    parts = [("here", 0, 2), ("rotten", 0, 9)]
    with reachable(world.folder) as clients:
        found = fetch_parts(clients, parts, lambda at, data: data == (b"by", b"whole")[at])
        assert found == [b"by", b"?"]
        assert fetch_parts(clients, parts) == [b"b?", b"?"]
        world.servers[1].stop()
        with pytest.raises(StateServerError, match="state-1"):
            fetch_parts(clients, parts[:1], lambda _, data: data == b"by")
