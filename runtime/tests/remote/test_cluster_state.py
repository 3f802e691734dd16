"""``state`` and ``dead-letters`` of a topology on a cluster: a real state server behind a pod."""

from __future__ import annotations

import base64
import json
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fake_cluster import CORE, NAMESPACE, SPEC, TOPOLOGIES, UID, FakeCluster
from kubernetes.client import Configuration

from millrace.chaos import sealing as sealing_module
from millrace.chaos.sealing import AGAIN_S, Sealing
from millrace.clock import SystemClock
from millrace.errors import ExitCode, StateServerError
from millrace.homes import codec, pods
from millrace.homes.documents import Ask, Request
from millrace.homes.passwords import of_root_key
from millrace.kube import streams
from millrace.kube.configmaps import Api
from millrace.kube.streams import StreamRefusedError
from millrace.local.inspect.reading import committed_record, fetch, fetch_parts
from millrace.pods.reading import OwnServerReading, serve_readers
from millrace.protocol.codec import encode_record
from millrace.protocol.server import Found, Stamped
from millrace.protocol.types import DeadSegment, Member, Record, Segment, Stamp, Tag
from millrace.remote import servers
from millrace.remote.cluster import ClusterError, connect
from millrace.remote.servers import reachable
from millrace.remote.topology import find
from millrace.state.client import StateClient
from millrace.state.embedded import EmbeddedServer
from millrace.state.keyed.dictstate import DictState
from millrace_e2e.embedded import connected, started

PLACE = ("-n", NAMESPACE)
CACHE = {"name": "cache", "key": "password"}
LARGE = bytes(range(256)) * (3 * pods.PART_BYTES // 512)
LETTER = {
    "source": "lines",
    "partition": 7,
    "offset": 5,
    "number": 3,
    "processor": "parse",
    "error": "Traceback\nValueError: line 5",
    "alone": False,
    "locator": None,
    "payload": "bad",
    "payloadEncoding": "utf-8",
}
VISITS = {
    "name": "visits",
    "inputs": [{"from": "lines", "key": ["value"]}],
    "function": "visits:visits",
}


def visits() -> bytes:
    state = DictState(pa.schema([("value", pa.string())]), pa.schema([("n", pa.int64())]), 128)
    state.begin()
    state.values[int(state.find([pa.array(["ann"])])[0])]["n"] = 7
    return bytes(state.base().data)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with started(tmp_path_factory.mktemp("server"), "words-state-0") as running:
        client, stamp, tag = StateClient(running.address, UID), Stamp(1, 1), Tag(1, 1, 1, 9)
        chains = {"visits": (Segment("1/visits", 3, (1 << 128) - 1, base=True, rows=1),)}
        dead = (DeadSegment("1.2.0/dead", 2, 1),)
        record = Record(UID, tag, 9, {}, (), chains, (), dead, (), 9)
        letters = json.dumps({"format": 1, "letters": [LETTER]}).encode()
        client.stamp(stamp)
        client.put(stamp, [("1/visits", visits()), ("1.2.0/dead", letters), ("large", LARGE)])
        client.write_record(stamp, tag, encode_record(record))
        client.close()
        yield running


@pytest.fixture
def words(cluster: FakeCluster, server: EmbeddedServer) -> FakeCluster:
    cluster.running()
    sinks: list[dict[str, Any]] = [{**SPEC["sinks"][0], "inputs": [{"from": "visits"}]}]
    spec = {**SPEC, "processors": [VISITS], "sinks": sinks}
    cluster.topology(spec=spec, metadata={"uid": UID})
    member = server.address.member()
    cluster.view(member)
    cluster.propose(member)
    # What comes second is accepted by the servers, and not used.
    password = f"{server.address.password}\nanother".encode()
    cluster.put(
        f"{CORE}/secrets/words-secret", data={"password": base64.b64encode(password).decode()}
    )
    cluster.ports["words-state-0"] = lambda: connected(server)
    return cluster


def test_a_client_reads_through_the_api_server(words: FakeCluster, tmp_path: Path) -> None:
    """Also what takes many frames, and from two threads' connections one after the other."""
    with reachable(find(connect(None, None), "words")) as (client,):
        assert isinstance(client.peek(), Stamped)
        assert client.get(None, ["large"]) == (Found(LARGE),)
        client.redis.connection_pool.disconnect()
        assert isinstance(client.peek(), Stamped)
    forwards = [path for _, path, _ in words.asked if path.endswith("portforward")]
    assert forwards == [f"{CORE}/pods/words-state-0/portforward"] * 2


def test_servers_with_passwords_of_their_own_are_read_by_the_root(
    words: FakeCluster, server: EmbeddedServer
) -> None:
    """A reader that knows the root needs nothing else of the Secret."""
    root, name = "o" * 48, server.address.name
    client: Any = StateClient(server.address, UID).redis
    client.execute_command("ACL", "SETUSER", "default", f">{of_root_key(root, UID)(name)}")
    text = base64.b64encode(f"{root}\nanother\n".encode()).decode()
    words.put(f"{CORE}/secrets/words-secret", data={"root": text})
    try:
        with reachable(find(connect(None, None), "words")) as (reader,):
            assert isinstance(reader.peek(), Stamped)
            assert reader.address.password == of_root_key(root, UID)(name)
    finally:
        client.execute_command("ACL", "SETUSER", "default", f"<{of_root_key(root, UID)(name)}")
        client.close()


def test_state_is_shown_as_on_one_machine(words: FakeCluster) -> None:
    done = words.millrace("state", "get", "visits", "ann", "-t", "words", *PLACE, "--json")
    assert json.loads(done.stdout) == {"window": 9, "key": {"value": "ann"}, "state": {"n": 7}}
    done = words.called("state", "scan", "visits", "-t", "words", *PLACE, "--limit", "1")
    assert done.stdout.split() == ["value", "n", "ann", "7"]
    done = words.called("state", "get", "visits", "bob", "-t", "words", *PLACE)
    assert done.returncode == ExitCode.FAILED
    assert "visits has no state of key bob behind window 9" in done.stderr


def test_dead_letters_are_shown_and_asked_for(words: FakeCluster) -> None:
    done = words.called("dead-letters", "list", "words", *PLACE, "--json")
    [letter] = map(json.loads, done.stdout.splitlines())
    assert (letter["id"], letter["payload"], letter["asked"]) == ("1.2.0:0", "bad", None)
    done = words.called("dead-letters", "show", "-t", "words", *PLACE, "2:0")
    assert "ValueError: line 5" in done.stdout
    done = words.called("dead-letters", "replay", "-t", "words", *PLACE, "2:0")
    assert done.stdout == "1 dead letter will be replayed with the next seal\n", done.stderr
    inbox = words.data("words-inbox")
    [key] = [key for key in inbox if key.startswith(pods.REQUEST_PREFIX)]
    assert codec.decode(Request, inbox[key]) == Request(Ask.REPLAY, "1.2.0/dead", (0,))
    done = words.called("dead-letters", "drop", "-t", "words", *PLACE, "--all")
    assert "left alone, since asked for before: 1" in done.stdout
    assert words.data("words-inbox") == inbox


def test_without_a_driver_the_next_one_does_it(words: FakeCluster) -> None:
    del words.objects[f"{CORE}/pods/words-driver-7"]
    done = words.called("dead-letters", "drop", "-t", "words", *PLACE, "--all")
    expected = "1 dead letter will be dropped by the next driver, no driver is alive now\n"
    assert done.stdout == expected, done.stderr


def test_a_server_that_leaves_is_read_until_the_view_is_without_it(
    words: FakeCluster, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "PATIENCE_S", 0.1)
    another = Member("words-state-1", "run-2", "redis://10.0.0.2:6379")
    words.propose(another, leaving=(server.address.member(),))
    with reachable(find(connect(None, None), "words")) as (client,):
        assert client.get(None, ["large"]) == (Found(LARGE),)


def test_what_is_in_the_way_is_said(words: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "PATIENCE_S", 0.1)
    topology = find(connect(None, None), "words")
    words.refused = {"words-secret": 403}
    with pytest.raises(ClusterError, match="words-secret is refused to you"), reachable(topology):
        pass
    words.refused = {}
    there = words.ports.pop("words-state-0")
    with pytest.raises(ClusterError, match=r"403 Forbidden.*pods/portforward"), reachable(topology):
        pass

    def refused() -> socket.socket:
        raise ConnectionRefusedError("connection refused")

    words.ports["words-state-0"] = refused
    with (
        pytest.raises(StateServerError, match="words-state-0: error forwarding port 6379"),
        reachable(topology) as (client,),
    ):
        client.peek()
    words.ports["words-state-0"] = there
    words.propose()
    with (
        pytest.raises(StateServerError, match="state server words-state-0 is not alive"),
        reachable(topology),
    ):
        pass
    del words.objects[f"{CORE}/configmaps/words-view"]
    with pytest.raises(ClusterError, match="no driver has made a view yet"), reachable(topology):
        pass


OWN_ROOT = "o" * 48


@pytest.fixture
def own(words: FakeCluster, server: EmbeddedServer) -> Iterator[FakeCluster]:
    """The same with that server as the user's own: pods of driver and acker know its password."""
    named = {"url": "redis://millrace@cache:6379", "password": {"secretRef": CACHE}}
    spec = words.objects[f"{TOPOLOGIES}/words"]["spec"]
    words.topology(spec={**spec, "stateServers": named}, metadata={"uid": UID})
    for path in (f"{CORE}/pods/words-state-0", f"{CORE}/configmaps/words-view"):
        del words.objects[path]
    del words.ports["words-state-0"]
    words.propose()
    root = base64.b64encode(OWN_ROOT.encode()).decode()
    words.put(f"{CORE}/secrets/words-secret", data={"root": root})
    served = []
    for pod in ("words-driver-7", "words-acker-0"):
        password = of_root_key(OWN_ROOT, UID)(pod)
        reading = OwnServerReading(UID, lambda: server.address, lambda known=password: (known,))
        answering = serve_readers(reading, 0)
        assert answering is not None
        served.append(answering)
        port = answering.server_address[1]
        words.ports[pod] = lambda port=port: socket.create_connection(("127.0.0.1", port))
    yield words
    for answering in served:
        answering.shutdown()
        answering.server_close()


def asked_pods(cluster: FakeCluster) -> list[str]:
    paths = [path for _, path, _ in cluster.asked if path.endswith("/portforward")]
    return [path.split("/")[-2] for path in paths]


def test_a_server_of_ones_own_is_read_through_the_driver(own: FakeCluster) -> None:
    done = own.called("state", "get", "visits", "ann", "-t", "words", *PLACE, "--json")
    assert json.loads(done.stdout) == {"window": 9, "key": {"value": "ann"}, "state": {"n": 7}}
    done = own.called("state", "scan", "visits", "-t", "words", *PLACE, "--limit", "1")
    assert done.stdout.split() == ["value", "n", "ann", "7"], done.stderr
    done = own.called("dead-letters", "list", "words", *PLACE, "--json")
    [letter] = map(json.loads, done.stdout.splitlines())
    assert (letter["id"], letter["payload"], letter["asked"]) == ("1.2.0:0", "bad", None)
    done = own.called("dead-letters", "replay", "-t", "words", *PLACE, "2:0")
    assert done.stdout == "1 dead letter will be replayed with the next seal\n", done.stderr
    assert set(asked_pods(own)) == {"words-driver-7"}
    secrets = {path for _, path, _ in own.asked if "/secrets/" in path}
    assert secrets == {f"{CORE}/secrets/words-secret"}, "that of the server is asked of nobody"


def test_objects_come_in_parts_through_a_connection_that_may_break(own: FakeCluster) -> None:
    with reachable(find(connect(None, None), "words")) as (reader,):
        assert fetch([reader], "large") == LARGE
        assert fetch_parts([reader], [("large", 5, 7)]) == [LARGE[5:12]]
        assert fetch([reader], "nothing") is None
        assert asked_pods(own) == ["words-driver-7"]
        reader._connection.close()  # type: ignore[attr-defined]
        record = committed_record([reader])
        assert record is not None
        assert record.sealed == 9
    assert asked_pods(own) == ["words-driver-7"] * 2


def test_an_acker_tells_where_no_driver_is_left(own: FakeCluster) -> None:
    """As behind the end of all input."""
    own.pod("words-driver-7", "driver", status={"phase": "Succeeded"})
    with reachable(find(connect(None, None), "words")) as (reader,):
        assert isinstance(reader.peek(), Stamped)
    assert asked_pods(own) == ["words-acker-0"]


def test_a_driver_that_does_not_tell_is_passed_over(own: FakeCluster) -> None:
    def refused() -> socket.socket:
        raise ConnectionRefusedError("connection refused")

    own.ports["words-driver-7"] = refused
    topology = find(connect(None, None), "words")
    with reachable(topology) as (reader,):
        assert isinstance(reader.peek(), Stamped)
    assert asked_pods(own)[-1] == "words-acker-0"
    own.ports["words-acker-0"] = refused
    with (
        pytest.raises(StateServerError, match=r"words-driver-7.*error forwarding port 8082"),
        reachable(topology),
    ):
        pass
    own.ports.clear()
    with pytest.raises(ClusterError, match=r"403 Forbidden.*pods/portforward"), reachable(topology):
        pass


def test_a_pod_that_knows_another_root_key_is_said(own: FakeCluster) -> None:
    root = base64.b64encode(b"n" * 48).decode()
    own.put(f"{CORE}/secrets/words-secret", data={"root": root})
    topology = find(connect(None, None), "words")
    with (
        pytest.raises(StateServerError, match="words-driver-7: it does not know the passwords"),
        reachable(topology),
    ):
        pass


def test_without_a_pod_nobody_reads_a_server_of_ones_own(own: FakeCluster) -> None:
    for pod in ("words-driver-7", "words-acker-0"):
        del own.objects[f"{CORE}/pods/{pod}"]
    done = own.called("dead-letters", "list", "words", *PLACE)
    assert done.returncode == ExitCode.FAILED
    assert "through the pods of the driver or of an acker, and none of them runs" in done.stderr


def test_a_campaign_knows_what_is_sealed_from_the_record(
    words: FakeCluster,
    server: EmbeddedServer,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places = tmp_path_factory.mktemp("s")
    monkeypatch.setattr(tempfile, "tempdir", str(places))
    sealing = Sealing(find(connect(None, None), "words"), SystemClock())
    assert sealing.seen.window == 0
    sealing.start()
    client, stamp = StateClient(server.address, UID), Stamp(1, 1)
    try:
        until(lambda: sealing.seen.window == 9)
        assert len(list(places.iterdir())) == 1
        assert sealing.trouble == ""
        for window in (10, 11):
            tag = Tag(1, 1, 1, window)
            record = Record(UID, tag, window, {}, (), {}, (), (), (), window)
            client.write_record(stamp, tag, encode_record(record))
            until(lambda window=window: sealing.seen.window == window)
    finally:
        sealing.close()
        client.close()
    assert sealing.seen.window == 11
    assert list(places.iterdir()) == []


def test_a_record_that_cannot_be_read_is_said(words: FakeCluster) -> None:
    words.refused = {"words-secret": 403}
    sealing = Sealing(find(connect(None, None), "words"), SystemClock())
    sealing.start()
    try:
        until(lambda: "words-secret is refused to you" in sealing.trouble)
        words.refused = {}
        until(lambda: sealing.seen.window > 0)
    finally:
        sealing.close()
    assert "words-secret is refused to you" in sealing.trouble, "it was so for a while"
    assert sealing.silent_s >= AGAIN_S


def test_a_campaign_waits_for_no_pod_whose_node_is_lost(
    words: FakeCluster, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server waits for the node, longer than a recovery takes."""
    monkeypatch.setattr(sealing_module, "ANSWER_S", 0.2)
    back, asked = threading.Event(), []

    def silent() -> None:
        asked.append(time.monotonic())
        back.wait(60)

    words.lost["words-state-0"] = silent
    sealing = Sealing(find(connect(None, None), "words"), SystemClock())
    sealing.start()
    try:
        until(lambda: len(asked) >= 3)
        assert asked[2] - asked[0] < 2 * (AGAIN_S + 5)
        assert "port 6379 of pod jobs/words-state-0" in sealing.trouble
        del words.lost["words-state-0"]
        until(lambda: sealing.seen.window >= 9)
        assert not back.is_set()
    finally:
        back.set()
        sealing.close()


def test_a_mistake_of_the_reader_is_said(
    words: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr(sealing_module, "committed_record", broken)
    sealing = Sealing(find(connect(None, None), "words"), SystemClock())
    sealing.start()
    try:
        until(lambda: sealing.trouble == "ValueError: no such thing")
    finally:
        sealing.close()


def until(true: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_an_api_server_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes the connection and says nothing, as one behind a balancer does."""
    monkeypatch.setattr(streams, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        configuration = Configuration(host=f"http://127.0.0.1:{silent.getsockname()[1]}")
        api = Api(configuration)
        with pytest.raises(StreamRefusedError, match="port 6379 of pod jobs/words-state-0"):
            streams.forwarded(api, NAMESPACE, "words-state-0", 6379, 0.2)
        with pytest.raises(StreamRefusedError, match="exec in pod jobs/words-acker-0"):
            streams.executed(api, NAMESPACE, "words-acker-0", "acker", ["true"], 5.0)
