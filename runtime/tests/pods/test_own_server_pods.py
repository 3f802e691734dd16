"""A state server of the user's own, as the pods of a topology come to it: a real server."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from millrace import checked
from millrace.clock import SystemClock
from millrace.engine.driver.process import DriverProcess
from millrace.errors import StateServerError
from millrace.homes.documents import Proposal, Status
from millrace.homes.memory import MemoryInbox, MemoryJournal, memory_home
from millrace.homes.passwords import ACKER_USER, shared
from millrace.homes.settings import DriverSettings, MemoryPlace
from millrace.ids import Epoch, Execution
from millrace.modes import SECRETS_VARIABLE
from millrace.pods.acker import Introduction, password_of
from millrace.pods.ownserver import OwnServer, OwnServerInbox
from millrace.protocol.server import OK, Found, Stamped
from millrace.protocol.types import Member, Phase, Stamp, Tag
from millrace.redisserver import open_client
from millrace.state.client import StateAddress, StateClient
from millrace.state.own import own_server
from millrace.topology.model import StateServers
from millrace.tracking.log import AckerLoad, AckLog
from millrace_e2e import valkey
from millrace_e2e.podprocess import PASSWORD, make_secret
from millrace_e2e.waiting import until

REF = {"secretRef": {"name": "cache", "key": "password"}}


class StopAskedError(Exception):
    """What a pause raises when the pod is to end."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[valkey.Server]:
    with valkey.serving(tmp_path / "server") as running:
        yield running


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(SECRETS_VARIABLE, str(tmp_path / "secrets"))
    folder = tmp_path / "secrets" / "cache"
    folder.mkdir(parents=True)
    return folder


def wanted(**settings: Any) -> StateServers:
    return StateServers.model_validate(settings)


class World:
    """A driver's pod before its driver; ``steps`` are what happens at each of its pauses."""

    def __init__(self, settings: StateServers) -> None:
        self.journal = MemoryJournal()
        self.journal.tell(Status(uid="u", sealed=7, published=6))
        self.follower = self.journal.follow()
        self.own = OwnServer(settings, "u", self.journal, SystemClock())
        self.said: list[str] = []

    def reach(self, *steps: Any) -> None:
        left = list(steps)

        def pause(_: float) -> None:
            (trouble,) = self.journal.status().troubles or ()
            self.said.append(trouble.text)
            if not left:
                raise StopAskedError
            left.pop(0)()

        self.own.reach(pause)

    def events(self) -> list[tuple[str, bool]]:
        return [(event.kind, event.warning) for event in self.follower.new()]


def require(server: valkey.Server, password: str) -> None:
    with server.client() as client:
        client.config_set("requirepass", password)


def test_a_server_that_answers_is_a_member_in_the_life_that_it_has(server: valkey.Server):
    world = World(wanted(url=server.url))
    world.reach()
    with server.client() as client:
        run_id = client.info("server")["run_id"]
    assert world.own.member() == Member("state-0", run_id, server.url)
    assert world.own.password is None
    assert world.events() == [], "nothing is told where nothing is wrong"


def test_a_wrong_password_is_said_until_the_secret_is_mended(server: valkey.Server, secrets: Path):
    require(server, "sesame")
    world = World(wanted(url=server.url, password=REF))
    file = secrets / "password"
    world.reach(lambda: file.write_text("tomato\n"), lambda: file.write_text("sesame\n"))
    missing, wrong = world.said
    assert "key 'password' of Secret 'cache' does not exist" in missing
    assert "does not accept the password" in wrong
    assert "the Secret that spec.stateServers.password names" in wrong
    assert "tomato" not in wrong
    assert world.own.password == "sesame"
    told = [("StateServerAway", True), ("StateServerAway", True), ("StateServerBack", False)]
    assert world.events() == told
    status = world.journal.status()
    assert (status.troubles, status.sealed, status.published) == (None, 7, 6)


def test_a_server_that_is_away_is_waited_for(tmp_path: Path):
    late = valkey.Server(tmp_path / "late")
    world = World(wanted(url=late.url))
    try:
        world.reach(lambda: None, late.start)
    finally:
        late.kill()
    assert len(world.said) == 2
    assert f"127.0.0.1:{late.port}" in world.said[0]
    assert "cannot be reached" in world.said[0]
    assert [kind for kind, _ in world.events()] == ["StateServerAway", "StateServerBack"]


def test_a_setting_that_state_needs_is_named(server: valkey.Server):
    with server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    world = World(wanted(url=server.url))

    def mend() -> None:
        with server.client() as client:
            client.config_set("maxmemory-policy", "noeviction")

    world.reach(mend)
    assert "maxmemory-policy" in world.said[0]


def test_a_pod_that_is_to_end_waits_no_longer(tmp_path: Path):
    nobody = valkey.Server(tmp_path / "nobody")
    with pytest.raises(StopAskedError):
        World(wanted(url=nobody.url)).reach()


def test_a_new_life_of_the_server_is_proposed_in_place_of_the_last(server: valkey.Server):
    world = World(wanted(url=server.url))
    world.reach()
    inbox = MemoryInbox()
    seen = OwnServerInbox(inbox, world.own)
    assert seen.proposal() is None, "who the ackers are the operator says"
    inbox.propose(Proposal((), ("words-acker-0",), 4))
    first = seen.proposal()
    assert first == Proposal((world.own.member(),), ("words-acker-0",), 4)
    server.kill()
    world.own.look()
    assert seen.proposal() == first, "one that is away is where it was"
    server.start()
    world.own.look()
    again = seen.proposal()
    assert again is not None
    assert again.members[0].run_id != first.members[0].run_id
    assert (again.members[0].url, again.number) == (server.url, 4)


DOCUMENT: dict[str, Any] = {
    "apiVersion": "millrace.dev/v1alpha1",
    "kind": "StreamTopology",
    "metadata": {"name": "words"},
    "spec": {
        "sources": [{"name": "lines", "files": {"path": "texts", "watch": True}}],
        "sinks": [{"name": "out", "inputs": [{"from": "lines"}], "files": {"path": "out"}}],
    },
}


def test_a_driver_has_its_record_on_it_and_follows_its_next_life(
    server: valkey.Server, tmp_path: Path
):
    """Of the driver all but Spark, which nothing asks for: there is nothing to read."""
    world = World(wanted(url=server.url))
    world.reach()
    (tmp_path / "texts").mkdir()
    file = tmp_path / "topology.json"
    file.write_text(json.dumps(checked.with_checksum(DOCUMENT)))
    home, places = memory_home("own server"), [MemoryPlace("own server")] * 3
    told = DriverSettings("u", str(tmp_path), str(file), str(tmp_path), *places, fresh=True)
    home.inbox.propose(Proposal((), (), 1))
    never = threading.Event()
    process = DriverProcess(
        told,
        shared(world.own.password),
        start=lambda *_: never.wait(),  # type: ignore[arg-type, return-value]
        inbox=OwnServerInbox(home.inbox, world.own),
    )
    driver = threading.Thread(target=process.run, daemon=True)
    driver.start()

    def opened(member: Member) -> bool:
        _, view = home.view.read()
        return view is not None and (view.phase, view.target) == (Phase.OPEN, (member,))

    try:
        first = world.own.member()
        until(lambda: opened(first), "a view with the server", 30.0)
        with server.client() as client:
            assert [key for key in client.scan_iter("mr:{u}:*") if key.endswith(b"record")]
        server.kill()
        server.start()
        until(
            lambda: opened(world.own.member()) and world.own.member() != first,
            "its next life",
            30.0,
        )
        assert world.own.member().url == server.url
    finally:
        process.ask_to_stop()
        driver.join(20.0)
        never.set()
    assert not driver.is_alive()
    assert process.status.state == "asked"


def test_the_address_is_told_without_its_password():
    url, password = own_server(wanted(url="redis://:sesame@cache:6379/2"))
    assert (url, password) == ("redis://cache:6379/2", "sesame")


def test_an_acker_has_the_password_of_the_server_that_its_topology_names(
    tmp_path: Path, secrets: Path
):
    secret = make_secret(tmp_path / "secret")
    assert password_of(None, secret) == PASSWORD
    assert password_of("", secret) is None
    with pytest.raises(StateServerError, match="does not exist"):
        password_of("cache/password", secret)
    (secrets / "password").write_text("short and sweet\n")
    assert password_of("cache/password", secret) == "short and sweet"


def test_a_user_with_the_rights_of_the_document_is_enough(server: valkey.Server, secrets: Path):
    text = (Path(__file__).parents[3] / "docs" / "operator.md").read_text()
    (command,) = re.findall(r"`ACL (SETUSER millrace [^`]+)`", text)
    (secrets / "password").write_text("PASSWORD")
    with server.client() as client:
        client.execute_command("ACL", *command.split())
    url = server.url.replace("://", "://millrace@")
    world = World(wanted(url=url, password=REF))
    world.reach()
    address = StateAddress.of(world.own.member(), world.own.password)
    client = StateClient(address, "u")
    stamp = Stamp(Epoch(1), Execution(1))
    assert isinstance(client.stamp(stamp), Stamped)
    assert client.write_record(stamp, Tag(1, 1, 1, 1), b"record") == OK  # type: ignore[arg-type]
    assert client.put(stamp, [("one", b"x")]) == OK
    assert client.get(stamp, ["one"]) == (Found(b"x"),)
    client.memory()
    client.wipe()
    log = AckLog(open_client(address.url, "PASSWORD", answer_s=5.0, name="reader"), "u")
    log.tell_load("acker-0", AckerLoad(1.0, 2.0))
    assert log.loads().keys() == {"acker-0"}


def test_a_client_of_the_right_password_is_let_in(server: valkey.Server):
    """So that the test above proves something."""
    require(server, "sesame")
    with pytest.raises(redis.AuthenticationError), server.client() as client:
        client.ping()


def test_an_acker_is_nobody_special_to_a_server_of_the_users_own():
    introduction = Introduction(None)
    introduction.refused()
    assert introduction.user is None
    other = Introduction()
    assert other.user == ACKER_USER
    other.refused()
    assert other.user is None
    other.refused()
    assert other.user == ACKER_USER
