"""The client against real servers: durability, refused settings, full memory, dead servers."""

from __future__ import annotations

import gc
import pickle
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from millrace.errors import ProtocolError, StateServerError
from millrace.protocol.server import MISSING, OK, Found, Listed, NotOwner, Reason, TagTooLow
from millrace.protocol.types import Member, Stamp, Tag
from millrace.state.client import StateAddress, StateClient, connect, discover
from millrace.state.embedded import EmbeddedServer
from millrace.state.errors import OutOfMemoryError, UnreachableError
from millrace.state.messages import MAX_OBJECT_BYTES
from millrace_e2e.embedded import connected, started
from millrace_e2e.valkey import free_port

STAMP = Stamp(1, 1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with started(tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[StateClient]:
    one = StateClient(server.address, "t")
    one.wipe()
    one.stamp(STAMP)
    yield one
    one.redis.config_set("appendfsync", "always")
    one.redis.config_set("maxmemory-policy", "noeviction")
    one.redis.config_set("no-appendfsync-on-rewrite", "no")
    one.close()


def test_many_objects_in_one_put(client: StateClient) -> None:
    objects = [(f"o{n}", bytes([n % 256]) * n) for n in range(600)]
    assert client.put(STAMP, objects) == OK
    assert client.get(STAMP, [name for name, _ in objects]) == tuple(Found(d) for _, d in objects)
    assert client.get(STAMP, ["o1", "gone", "o2"]) == (Found(b"\1"), MISSING, Found(b"\2\2"))
    assert client.delete(STAMP, [name for name, _ in objects[:-1]]) == OK
    assert client.list_objects(STAMP) == Listed(("o599",))


def test_large_objects_are_cut_into_messages(client: StateClient) -> None:
    objects = [(f"o{n}", bytes([n]) * (12 << 20)) for n in range(4)]
    assert client.put(STAMP, objects) == OK
    assert client.get(STAMP, ["o3", "o0"]) == (Found(objects[3][1]), Found(objects[0][1]))


def test_large_objects_are_read_in_messages_between_which_others_are_answered(
    client: StateClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = [(f"o{n}", random.Random(n).randbytes(10 << 20)) for n in range(8)]
    objects += [("small", b"s"), ("large", random.Random(9).randbytes(70 << 20))]
    assert client.put(STAMP, objects) == OK
    answers: list[int] = []
    call = client._call

    def noted(name: str, keys: list[bytes], arguments: list[bytes], **options: bool) -> list[Any]:
        raw = call(name, keys, arguments, **options)
        answers.append(sum(len(data) for data in raw if data is not None))
        return raw

    monkeypatch.setattr(client, "_call", noted)
    parts = [(name, 0, len(data)) for name, data in objects]
    parts[3:3] = [("gone", 0, 90 << 20), ("large", 5, 40 << 20), ("o0", 9 << 20, 2 << 20)]
    found = client.get_parts(STAMP, parts)
    held = dict(objects)
    assert [f.data if isinstance(f, Found) else None for f in found] == [
        held[name][start : start + size] if name in held else None for name, start, size in parts
    ]
    assert max(answers) <= 33 << 20
    assert sum(answers) > 190 << 20


def test_an_object_beyond_the_servers_limit_is_refused(client: StateClient) -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return MAX_OBJECT_BYTES + 1

    with pytest.raises(StateServerError, match=r"object big has \d+ bytes.*spec\.parallelism"):
        client.put(STAMP, [("big", Huge())])


def test_no_operation_without_the_run_id(server: EmbeddedServer, client: StateClient) -> None:
    client.put(STAMP, [("a", b"1")])
    foreign = StateClient(replace(server.address, run_id="0" * 40), "t")
    refused = NotOwner(Reason.RUN_ID)
    assert foreign.get(None, ["a"]) == refused
    assert foreign.get(STAMP, ["a"]) == refused
    assert foreign.stamp(Stamp(9, 9)) == refused
    assert foreign.write_record(STAMP, Tag(1, 1, 1, 1), b"") == refused
    assert foreign.put(STAMP, [("a", b"2")]) == refused
    assert foreign.delete(STAMP, ["a"]) == refused
    assert client.get(STAMP, ["a"]) == (Found(b"1"),)
    foreign.close()


def test_a_repeated_record_write_is_told_apart_from_a_lower_one(client: StateClient) -> None:
    assert client.write_record(STAMP, Tag(1, 1, 1, 10), b"ten") == OK
    assert client.write_record(STAMP, Tag(1, 1, 1, 10), b"ten") == TagTooLow(Tag(1, 1, 1, 10))
    assert client.write_record(STAMP, Tag(1, 1, 1, 9), b"nine") == TagTooLow(Tag(1, 1, 1, 10))
    peeked = client.peek()
    assert not isinstance(peeked, NotOwner)
    assert peeked.record == b"ten"


def test_scripts_come_back_after_they_are_flushed(client: StateClient) -> None:
    client.redis.script_flush()
    assert client.put(STAMP, [("a", b"1")]) == OK
    client.redis.script_flush()
    assert client.write_record(STAMP, Tag(1, 1, 1, 1), b"r") == OK


@contextmanager
def dying_once(server: EmbeddedServer) -> Iterator[int]:
    """A port that closes its first connection unheard, as a server that dies, and passes the
    others on."""
    front = socket.create_server(("127.0.0.1", 0))

    def passing(source: socket.socket, target: socket.socket) -> None:
        with source, target:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def serve() -> None:
        front.accept()[0].close()
        while True:
            try:
                near, _ = front.accept()
            except OSError:
                return
            far = connected(server)
            for pair in ((near, far.dup()), (far, near.dup())):
                threading.Thread(target=passing, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    with front:
        yield front.getsockname()[1]


def test_a_server_that_comes_back_between_two_tries_gets_its_scripts(
    server: EmbeddedServer, client: StateClient
) -> None:
    client.redis.script_flush()
    with dying_once(server) as port:
        fronted = replace(server.address, url=f"redis://127.0.0.1:{port}")
        again = StateClient(fronted, "t")
        assert again.put(STAMP, [("a", b"1")]) == OK
        again.close()
    assert client.write_record(STAMP, Tag(1, 1, 1, 1), b"r") == OK


def test_connections_that_the_server_closed_are_opened_again(
    client: StateClient, server: EmbeddedServer
) -> None:
    client.put(STAMP, [("a", b"1")])
    admin = StateClient(server.address, "admin")
    admin.redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert client.get(STAMP, ["a"]) == (Found(b"1"),)
    admin.close()


# --- durability


@pytest.mark.parametrize("appendfsync", ["always", "everysec"])
def test_a_record_is_on_disk_when_it_is_acknowledged(
    appendfsync: str, client: StateClient, server: EmbeddedServer
) -> None:
    client.redis.config_set("appendfsync", appendfsync)
    waiting = StateClient(server.address, "t")
    # A script that the server does not know yet is sent twice, with all that comes behind it.
    assert waiting.write_record(STAMP, Tag(1, 1, 1, 1), b"r") == OK
    waits = int(client.redis.info("commandstats")["cmdstat_waitaof"]["calls"])
    assert waiting.write_record(STAMP, Tag(1, 1, 1, 2), b"r") == OK
    assert waiting.write_record(STAMP, Tag(1, 1, 1, 2), b"r") == TagTooLow(Tag(1, 1, 1, 2))
    calls = int(client.redis.info("commandstats")["cmdstat_waitaof"]["calls"])
    assert calls - waits == 2
    waiting.close()


def test_no_record_is_acknowledged_before_the_first_file_of_a_server_is_written(
    tmp_path: Path,
) -> None:
    """``appendonly`` was switched on a moment ago: killed now, it would come back empty."""
    with started(tmp_path) as server:
        client = StateClient(server.address, "t", timeout_s=1.0)
        client.redis.config_set("appendonly", "no")
        client.redis.set("large", "x")
        client.redis.config_set("rdb-key-save-delay", 60_000_000)
        client.redis.config_set("appendonly", "yes")
        client.stamp(STAMP)
        with pytest.raises(UnreachableError, match="did not write its append-only file to disk"):
            client.write_record(STAMP, Tag(1, 1, 1, 1), b"r")
        client.close()
        server.kill()


def test_a_server_that_cannot_tell_what_is_on_disk_is_refused(
    client: StateClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.redis, "info", lambda: {"redis_version": "7.0.15"})
    with pytest.raises(StateServerError, match=r"is version 7\.0; use Valkey, or Redis 7\.2 or"):
        client.check_settings()


@pytest.mark.parametrize(
    ("setting", "value", "remedy"),
    [
        ("appendfsync", "no", "set it to always"),
        ("maxmemory-policy", "allkeys-lru", "CONFIG SET maxmemory-policy noeviction"),
        ("no-appendfsync-on-rewrite", "yes", "CONFIG SET no-appendfsync-on-rewrite no"),
        ("appendonly", "no", "CONFIG SET appendonly yes"),
    ],
)
@pytest.mark.parametrize("appendfsync", ["always", "everysec"])
def test_settings_that_lose_windows_are_refused(
    appendfsync: str,
    setting: str,
    value: str,
    remedy: str,
    server: EmbeddedServer,
    client: StateClient,
) -> None:
    client.redis.config_set("appendfsync", appendfsync)
    client.redis.config_set(setting, value)
    fresh = StateClient(server.address, "t")
    place = re.escape(server.address.url.removeprefix("unix://"))
    message = rf"state-0 at {place} has {setting} {value}.*{remedy}"
    with pytest.raises(StateServerError, match=message):
        fresh.check_settings()
    fresh.close()
    if setting == "appendonly":
        client.redis.config_set("appendonly", "yes")


# --- errors


def test_a_wrong_password_is_named_and_not_shown(server: EmbeddedServer) -> None:
    wrong = StateClient(replace(server.address, password="secret-guess"), "t")
    with pytest.raises(StateServerError, match="does not accept the password") as caught:
        wrong.stamp(STAMP)
    assert "secret-guess" not in str(caught.value)
    assert not isinstance(caught.value, UnreachableError)
    assert str(server.address.password) not in repr(server.address)


def test_a_password_in_the_url_is_not_shown() -> None:
    address = StateAddress("s", f"redis://user:hidden@127.0.0.1:{free_port()}", "r")
    with pytest.raises(UnreachableError) as caught:
        StateClient(address, "t").stamp(STAMP)
    assert "hidden" not in str(caught.value)


def test_a_server_that_is_away_is_unreachable() -> None:
    with pytest.raises(UnreachableError, match=r"state-7 at 127.0.0.1:.*cannot be reached") as told:
        discover("state-7", f"redis://127.0.0.1:{free_port()}", timeout_s=1.0)
    assert told.value.server == "state-7"


def test_a_url_that_is_none_is_refused() -> None:
    with pytest.raises(StateServerError, match="redis://host:port"):
        StateClient(StateAddress("s", "localhost:6379", "r"), "t")


def test_a_damaged_tag_is_an_error(client: StateClient) -> None:
    client.write_record(STAMP, Tag(1, 1, 1, 1), b"r")
    client.redis.set("mr:{t}:tag", "rubbish")
    with pytest.raises(ProtocolError, match="rubbish"):
        client.stamp(STAMP)


def _fill(client: StateClient) -> Iterator[str]:
    for n in range(100):
        try:
            client.put(STAMP, [(f"o{n}", bytes(1 << 20))])
        except OutOfMemoryError:
            return
        yield f"o{n}"


def test_full_memory_refuses_objects_and_still_takes_records(tmp_path: Path) -> None:
    with started(tmp_path, max_memory_bytes=6 << 20) as full:
        client = StateClient(full.address, "t")
        client.stamp(STAMP)
        names = list(_fill(client))
        with pytest.raises(OutOfMemoryError, match="its memory is full; raise its maxmemory") as no:
            client.put(STAMP, [("more", bytes(1 << 20))])
        used = client.memory()
        assert used.limit_bytes == 6 << 20
        assert 0.8 < used.share < 1.5
        assert re.search(r"; [0-9.]+ of 6\.0 MiB are used$", str(no.value))
        assert no.value.server == "state-0"
        assert client.put(STAMP, [("a letter", b"1")], when_full=True) == OK
        names.append("a letter")
        assert client.list_objects(STAMP) == Listed(tuple(sorted(names)))
        assert client.write_record(STAMP, Tag(1, 1, 1, 1), b"sealed") == OK
        assert client.stamp(Stamp(1, 2)) != OK
        assert client.delete(Stamp(1, 2), names) == OK
        assert client.put(Stamp(1, 2), [("again", b"1")]) == OK
        client.close()


def test_full_memory_is_told_though_the_server_does_not_say_how_full(
    client: StateClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise redis.OutOfMemoryError("command not allowed when used memory > 'maxmemory'.")

    def unheard(*_: object) -> None:
        raise redis.ConnectionError("Connection closed by server.")

    monkeypatch.setattr(client, "_send", refused)
    monkeypatch.setattr(client.redis, "info", unheard)
    with pytest.raises(OutOfMemoryError, match=r"smaller windows\)$") as told:
        client.put(STAMP, [("a", b"1")])
    assert told.value.server == "state-0"


# --- addresses


def test_addresses_travel_to_tasks(server: EmbeddedServer) -> None:
    data = pickle.dumps(server.address)
    assert server.address.password.encode() not in data
    address: StateAddress = replace(pickle.loads(data), password=server.address.password)
    assert address == server.address
    assert StateAddress.of(address.member(), address.password) == address
    assert connect(address, "t") is connect(replace(address), "t")
    assert discover("state-0", address.url, address.password) == address


def test_a_new_incarnation_gets_a_new_connection(server: EmbeddedServer) -> None:
    first = connect(server.address, "t")
    other = replace(server.address, run_id="1" * 40)
    assert connect(other, "t").address.run_id == "1" * 40
    assert connect(server.address, "t") is not first


def test_a_new_incarnation_takes_no_connection_from_a_thread_that_uses_it(
    server: EmbeddedServer, client: StateClient
) -> None:
    """It ends with the last who uses it, and no sooner."""
    client.redis.delete("waited-for")
    clients = int(client.redis.info("clients")["connected_clients"])
    found = []

    def wait_for_an_item(using: redis.Redis) -> None:
        found.append(using.blpop(["waited-for"], 10))

    used = connect(server.address, "used").redis
    waiting = threading.Thread(target=wait_for_an_item, args=[used])
    waiting.start()
    until(lambda: client.redis.info("clients")["blocked_clients"] == 1)
    connect(replace(server.address, run_id="1" * 40), "used")
    client.redis.rpush("waited-for", b"item")
    waiting.join(10)
    assert found == [(b"waited-for", b"item")]
    del used
    gc.collect()
    until(lambda: client.redis.info("clients")["connected_clients"] == clients)


def until(holds: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < ends_s
        time.sleep(0.01)


def test_members_are_compared_without_their_url() -> None:
    assert Member("a", "1", "redis://x:1") == Member("a", "1", "redis://y:2")


def test_raw_commands_of_other_parts_reach_the_same_server(client: StateClient) -> None:
    assert isinstance(client.redis, redis.Redis)
    client.redis.xadd("mr:{t}:ack:ctl", {"m": b"x"})
    assert client.redis.xlen("mr:{t}:ack:ctl") == 1
    assert client.list_objects(STAMP) == Listed(())
