"""What a pod tells readers of a state server of the user's own: a real server, asked by HTTP."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from millrace.homes import pods
from millrace.homes.passwords import of_root_key
from millrace.ids import Epoch, Execution, Seq, Timeline
from millrace.pods.identity import own_passwords
from millrace.pods.reading import OwnServerReading, serve_readers
from millrace.protocol.types import Stamp, Tag
from millrace.state.client import StateAddress, StateClient, discover
from millrace_e2e import valkey
from millrace_e2e.podprocess import ROOT, make_secret, mounted, secret_of

PASSWORD = "p" * 64
LARGE = bytes(range(256)) * (3 * pods.PART_BYTES // 512)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[valkey.Server]:
    with valkey.serving(tmp_path_factory.mktemp("server")) as running:
        with running.client() as client:
            client.config_set("requirepass", "sesame")
        stamp = Stamp(Epoch(1), Execution(1))
        for uid in ("u", "other"):
            one = StateClient(discover("state-0", running.url, "sesame"), uid)
            one.stamp(stamp)
            one.put(stamp, [("1/visits", b"of " + uid.encode()), ("large", LARGE)])
            one.close()
        yield running


class Reader:
    """Somebody at the pod's loopback."""

    def __init__(self, reading: OwnServerReading) -> None:
        serving = serve_readers(reading, 0)
        assert serving is not None
        self.serving = serving
        self.host, self.port = serving.server_address[:2]
        self.connection = http.client.HTTPConnection(str(self.host), self.port, timeout=20)

    def ask(self, path: str, password: str | None = PASSWORD) -> tuple[int, bytes]:
        given = {} if password is None else {"Authorization": f"{pods.READER} {password}"}
        self.connection.request("GET", path, headers=given)
        answer = self.connection.getresponse()
        self.tag = answer.headers.get(pods.TAG_HEADER)
        return answer.status, answer.read()

    def part(self, name: str, start: int = 0, size: int = 100) -> tuple[int, bytes]:
        query = urlencode({"name": name, "start": start, "size": size})
        return self.ask(f"{pods.OBJECT_PATH}?{query}")

    def close(self) -> None:
        self.connection.close()
        self.serving.shutdown()
        self.serving.server_close()


@pytest.fixture
def where(server: valkey.Server) -> dict[str, StateAddress | None]:
    return {"is": discover("state-0", server.url, "sesame")}


@pytest.fixture
def reader(where: dict[str, StateAddress | None]) -> Iterator[Reader]:
    made = Reader(OwnServerReading("u", lambda: where["is"], lambda: (PASSWORD, "q" * 64)))
    yield made
    made.close()


def test_it_listens_on_the_pods_loopback_alone(reader: Reader) -> None:
    assert reader.host == "127.0.0.1"


@pytest.mark.parametrize("given", [None, "", "sesame", "p" * 63, "é"])
def test_nobody_is_told_anything_without_the_pods_password(
    reader: Reader, given: str | None
) -> None:
    for path in (pods.RECORD_PATH, f"{pods.OBJECT_PATH}?name=1/visits&start=0&size=9", "/"):
        status, text = reader.ask(path, given and given.encode().decode("latin-1"))
        assert (status, text) == (401, b"that is not the password of this pod")


def test_all_passwords_of_the_pod_are_taken(reader: Reader) -> None:
    assert reader.ask(pods.RECORD_PATH, "q" * 64)[0] == 204


def test_the_record_is_told_with_its_tag(
    reader: Reader, where: dict[str, StateAddress | None]
) -> None:
    assert reader.ask(pods.RECORD_PATH) == (204, b"")
    address = where["is"]
    assert address is not None
    client, tag = StateClient(address, "u"), Tag(Timeline(1), Execution(1), Epoch(1), Seq(9))
    client.write_record(Stamp(Epoch(1), Execution(1)), tag, b"record")
    try:
        assert reader.ask(pods.RECORD_PATH) == (200, b"record")
        assert reader.tag == str(tag)
    finally:
        client.redis.delete("mr:{u}:record", "mr:{u}:tag")
        client.close()


def test_objects_are_told_in_parts_of_a_bounded_size(reader: Reader) -> None:
    assert reader.part("1/visits") == (200, b"of u")
    assert reader.part("1/visits", 3, 1) == (200, b"u")
    assert reader.part("1/visits", 4) == (200, b"")
    assert reader.part("nothing") == (204, b"")
    assert reader.part("large", 7, pods.PART_BYTES) == (200, LARGE[7 : 7 + pods.PART_BYTES])
    for start, size in ((0, pods.PART_BYTES + 1), (0, 0), (-1, 5)):
        assert reader.part("large", start, size)[0] == 400
    assert reader.ask(f"{pods.OBJECT_PATH}?name=large&start=0")[0] == 400
    assert reader.ask("/metrics")[0] == 404


def test_other_topologies_of_the_server_are_not_told_of(reader: Reader) -> None:
    """Nor what a name could lead to that is no object."""
    for name in ("mr:{other}:o:1/visits", "../other", "}:o:1/visits", "*"):
        assert reader.part(name) == (204, b"")


def test_a_server_that_is_away_or_in_another_life_is_said(
    tmp_path: Path, where: dict[str, StateAddress | None], reader: Reader
) -> None:
    where["is"] = None
    status, text = reader.ask(pods.RECORD_PATH)
    assert status == 503
    assert b"StateAvailable" in text
    with valkey.serving(tmp_path / "own") as own:
        where["is"] = discover("state-0", own.url)
        assert reader.ask(pods.RECORD_PATH)[0] == 204
        own.kill()
        status, text = reader.ask(pods.RECORD_PATH)
        assert status == 503
        assert b"cannot be reached" in text
        own.start()
        assert reader.ask(pods.RECORD_PATH) == (409, b"runId")
        where["is"] = discover("state-0", own.url)
        assert reader.ask(pods.RECORD_PATH)[0] == 204


def test_the_password_of_the_server_is_in_no_answer(
    reader: Reader, where: dict[str, StateAddress | None]
) -> None:
    address = where["is"]
    assert address is not None
    where["is"] = StateAddress(address.name, address.url, address.run_id, "tomato")
    status, text = reader.ask(pods.RECORD_PATH)
    assert status == 503
    assert b"does not accept the password" in text
    assert b"tomato" not in text


def test_a_port_that_is_taken_is_no_end_of_the_pod(
    reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    reading = OwnServerReading("u", lambda: None, lambda: (PASSWORD,))
    assert serve_readers(reading, reader.port) is None
    assert f"port {reader.port} of this pod is taken" in caplog.text


def test_a_driver_and_an_acker_know_their_own_passwords(tmp_path: Path) -> None:
    """Of each root key one; whoever has the first can ask every pod."""
    held = secret_of(root=f"{'n' * 48}\n{ROOT}")
    driver = mounted(tmp_path / "driver", held, "driver")
    known = [of_root_key(key, "uid-1") for key in ("n" * 48, ROOT)]
    name = "words-driver-7"
    assert own_passwords(driver, "uid-1", name) == tuple(of(name) for of in known)
    acker = mounted(tmp_path / "acker", held, "acker", "words-acker-0")
    assert own_passwords(acker, "uid-1", "-") == tuple(of("words-acker-0") for of in known)
    older = make_secret(tmp_path / "older")
    assert own_passwords(older, "uid-1", name) == ("a" * 40,)
