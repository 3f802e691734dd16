"""The redis sink on a real server: one window is one transaction, whatever dies in between."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis

from millrace.errors import FencedError, SinkError
from millrace.protocol.types import Sealed
from millrace.sinks import redis as redis_sink
from millrace.sinks.base import RowsRefusedError, SinkFullError, SinkUnavailableError
from millrace.sinks.redis import RedisSink
from millrace.state.embedded import find_binary

HASH = {"mode": "hash", "key": "wc:{word}"}
STREAM = {"mode": "stream", "stream": "words"}


class Server:
    """A server of its own on a free loopback port, with an fsynced append-only file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"redis://:secret@127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        command = [str(find_binary()), "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--requirepass", "secret", "--dir", str(self.folder), "--save", ""]
        command += ["--appendonly", "yes", "--appendfsync", "always"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.client = redis.Redis.from_url(self.url, decode_responses=True)
        deadline_s = time.monotonic() + 30
        while True:
            try:
                self.client.ping()
                return
            except redis.exceptions.ConnectionError:
                assert self.process.poll() is None
                assert time.monotonic() < deadline_s
                threading.Event().wait(0.01)

    def kill(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture
def server(shared: Server) -> Server:
    shared.client.flushall()
    return shared


def test_a_password_may_stand_apart_from_the_address(server: Server, tmp_path: Path):
    address = f"redis://127.0.0.1:{server.port}"
    for user in ("", "default@"):
        url = address.replace("//", f"//{user}")
        RedisSink("out", {**HASH, "url": url, "password": "secret"}, tmp_path).check()
    for given, remedy in (
        ({}, "redis.url"),
        ({"password": "another"}, "what redis.password refers to"),
    ):
        with pytest.raises(SinkError, match=rf"refuses the password .*; correct {remedy}$"):
            RedisSink("out", {**HASH, "url": address, **given}, tmp_path).check()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.kill()


class Area:
    """A staging area in memory, as the engine's on its state servers."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def put(self, name: str, data: bytes) -> None:
        self.objects[name] = data

    def get(self, name: str, digest: str) -> bytes:
        return self.objects[name]


class Killed(BaseException):
    """Stands for the end of the process."""


def make(
    server: Server, options: dict[str, str], execution: int = 1, area: Area | None = None
) -> RedisSink:
    sink = RedisSink("out", {"url": server.url, **options}, Path())
    sink.staging = area
    sink.prepare("life")
    sink.fence(execution)
    return sink


def stage(sink: RedisSink, window: int, *parts: dict[str, Any], attempt: int = 0) -> Sealed:
    staged = [
        sink.stage(f"1.{window}.{attempt}.0.{number}.0/out/out", [pa.record_batch(rows)])
        for number, rows in enumerate(parts)
    ]
    mine = tuple(s for s in staged if s is not None)
    return Sealed(window, "+".join(s.digest for s in mine), mine)


def counts(server: Server) -> dict[str, dict[str, str]]:
    return {key: server.client.hgetall(key) for key in sorted(server.client.keys("wc:*"))}


def entries(server: Server) -> list[tuple[str, dict[str, str]]]:
    return list(server.client.xrange("words"))


@pytest.mark.parametrize("area", [None, Area()])
def test_hashes_are_upserted(server: Server, area: Area | None) -> None:
    sink = make(server, HASH, area=area)
    first = stage(
        sink,
        1,
        {"word": ["a", "b"], "n": [1, 2], "x": [0.5, None]},
        {"word": ["ä:", "a"], "n": [3, 4], "x": [1.0, 2.0]},
    )
    sink.publish(first, first.staged, 1)
    expected = {
        "wc:a": {"n": "4", "x": "2"},
        "wc:b": {"n": "2"},
        "wc:ä:": {"n": "3", "x": "1"},
    }
    assert counts(server) == expected
    second = stage(sink, 2, {"word": ["a", "b"], "n": [5, None], "x": [None, 7.0]})
    sink.publish(second, second.staged, 1)
    assert counts(server) == {**expected, "wc:a": {"n": "5"}, "wc:b": {"x": "7"}}


@pytest.mark.parametrize("options", [STREAM, {"mode": "hash", "key": "wc:{at}"}])
def test_texts_are_made_once_by_the_worker(server: Server, options: dict[str, str]) -> None:
    """What was staged by an earlier release, without texts, is shown all the same."""
    rows = {
        "at": pa.array([1_700_000_000_000_001, 5], pa.timestamp("us", "UTC")),
        "day": pa.array([19_000, None], pa.date32()),
        "tags": pa.array([["a", None], []], pa.list_(pa.string())),
        "raw": pa.array([b"\xc3\xa4", None]),
        "n": pa.array([1, 2]),
    }
    found = []
    for window, older in ((1, False), (2, True)):
        sink = make(server, options)
        batch = pa.record_batch(rows)
        keep = sink.stage_rows if older else sink.stage
        staged = keep(f"1.{window}.0.0.0.0/out/out", [batch])
        assert staged is not None
        assert sink.staged_rows(staged).schema.field("at").type == (
            batch.schema.field("at").type if older else pa.string()
        )
        assert sink.staged_rows(staged).schema.field("raw").type == pa.binary()
        sink.publish(Sealed(window, staged.digest, (staged,)), [staged], 1)
        shown = counts(server) if options["mode"] == "hash" else entries(server)
        found.append(shown if isinstance(shown, dict) else [values for _, values in shown[-2:]])
    assert found[0] == found[1]
    first = found[0]["wc:2023-11-14T22:13:20.000001Z"] if options["mode"] == "hash" else found[0][0]
    assert first["day"] == "2022-01-08"
    assert first["tags"] == '["a",null]'
    assert first["raw"] == "ä"


def test_streams_get_ids_of_window_and_row(server: Server) -> None:
    sink = make(server, STREAM)
    sealed = stage(
        sink, 3, {"word": ["a", None], "raw": [b"\xff", b"-"]}, {"word": [None], "raw": [None]}
    )
    sink.publish(sealed, sealed.staged, 1)
    raw = redis.Redis.from_url(server.url)
    assert raw.xrange("words") == [
        (b"3-1", {b"word": b"a", b"raw": b"\xff"}),
        (b"3-2", {b"raw": b"-"}),
        (b"3-3", {b"word": b""}),
    ]
    raw.close()


@pytest.mark.parametrize("options", [HASH, STREAM])
@pytest.mark.parametrize("point", ["loaded", "transaction"])
def test_publishing_again_after_a_death_shows_each_row_once(
    server: Server, options: dict[str, str], point: str
) -> None:
    sink = make(server, options)
    sealed = stage(sink, 7, {"word": ["a", "b"], "n": [1, 2]}, {"word": ["c"], "n": [3]})

    def step(name: str) -> None:
        if name == point:
            raise Killed

    with pytest.raises(Killed):
        sink.publish(sealed, sealed.staged, 1, step)
    for execution in (2, 3):
        make(server, options, execution).publish(sealed, sealed.staged, execution)
        if options is HASH:
            assert counts(server) == {
                f"wc:{w}": {"n": n} for w, n in zip("abc", "123", strict=True)
            }
        else:
            assert [entry for entry, _ in entries(server)] == ["7-1", "7-2", "7-3"]


def test_only_one_of_two_different_contents_of_a_window_is_ever_shown(server: Server) -> None:
    both = threading.Barrier(2)
    sinks = [make(server, STREAM), make(server, STREAM)]
    refusals: list[str] = []

    def publish(sink: RedisSink, sealed: Sealed) -> bool:
        both.wait()
        try:
            sink.publish(sealed, sealed.staged, 1)
        except SinkError as error:
            refusals.append(str(error))
            return False
        return True

    with ThreadPoolExecutor(2) as threads:
        for window in range(30):
            rows = [{"word": [f"{window}/{i}"] * 5} for i in (0, 1)]
            sealed = [stage(sinks[i], window, rows[i], attempt=i) for i in (0, 1)]
            won = list(threads.map(publish, sinks, sealed))
            assert sorted(won) == [False, True]
            shown = [fields["word"] for _, fields in entries(server)][-5:]
            assert shown == [f"{window}/{won.index(True)}"] * 5
    assert len(entries(server)) == 150
    assert all("already shows this window with the digest" in text for text in refusals)


def test_old_drivers_and_old_windows_change_nothing(server: Server) -> None:
    old = make(server, STREAM)
    sealed = [stage(old, window, {"word": [str(window)]}) for window in range(1, 40)]
    skipped = stage(old, 39, {"word": ["x"]}, attempt=1)
    for one in sealed[:2]:
        old.publish(one, one.staged, 1)
    new = make(server, STREAM, execution=2)
    with pytest.raises(FencedError, match="serves execution 2; a newer run"):
        old.publish(sealed[2], sealed[2].staged, 1)
    with pytest.raises(FencedError):
        old.fence(1)
    for one in [*sealed[2:30], *sealed[31:]]:
        new.publish(one, one.staged, 2)
    before = entries(server)
    for one in sealed[:30]:
        new.publish(one, one.staged, 2)
    with pytest.raises(SinkError, match="with the digest"):
        new.publish(skipped, skipped.staged, 2)
    with pytest.raises(SinkError, match="shows windows up to 39, but never showed this one"):
        new.publish(sealed[30], sealed[30].staged, 2)
    assert entries(server) == before
    assert server.client.hlen("millrace:sink:words") <= 4 + 16


@pytest.mark.parametrize("options", [HASH, STREAM])
def test_parts_of_other_columns_stop_the_window(server: Server, options: dict[str, str]) -> None:
    sink = make(server, options)
    sealed = stage(sink, 1, {"word": ["a"], "n": [1]}, {"word": ["b"], "m": [1]})
    with pytest.raises(SinkError, match="have other columns"):
        sink.publish(sealed, sealed.staged, 1)
    assert not counts(server)
    assert not entries(server)


@pytest.mark.parametrize("area", [None, Area()])
def test_damaged_staged_rows_stop_the_window(server: Server, area: Area | None) -> None:
    sink = make(server, HASH, area=area)
    sealed = stage(sink, 1, {"word": ["a"], "n": [1]})
    sink.verify(sealed.staged)
    name = sealed.staged[0].name
    if area is not None:
        area.objects[name] = area.objects[name][:-10]
    else:
        server.client.append(f"millrace:staged:wc:{{word}}:{name}", "x")
    for work in (sink.verify, lambda mine: sink.publish(sealed, mine, 1)):
        with pytest.raises(SinkError, match="nothing of the window is shown"):
            work(sealed.staged)
    assert not counts(server)


def test_keys_of_another_type_stop_the_window_before_the_first_write(server: Server) -> None:
    server.client.set("wc:z", "a string")
    sink = make(server, HASH)
    sealed = stage(sink, 1, {"word": ["a", "z"], "n": [1, 2]})
    with pytest.raises(SinkError, match=r"the key 'wc:z' at .* is no hash; nothing of the window"):
        sink.publish(sealed, sealed.staged, 1)
    assert server.client.keys("wc:*") == ["wc:z"]
    server.client.delete("wc:z")
    sink.publish(sealed, sealed.staged, 1)
    assert sorted(counts(server)) == ["wc:a", "wc:z"]


def test_a_stream_that_others_write_to_stops_the_window(server: Server) -> None:
    sink = make(server, STREAM)
    sealed = stage(sink, 1, {"word": ["a", "b"]})
    server.client.xadd("words", {"theirs": "1"}, "5-0")
    with pytest.raises(SinkError, match="has the entry 5-0, which Millrace did not write"):
        sink.publish(sealed, sealed.staged, 1)
    assert len(entries(server)) == 1


def test_rows_without_a_key_are_refused_by_the_worker(server: Server) -> None:
    sink = make(server, HASH)
    with pytest.raises(
        RowsRefusedError, match=r"column 'word' of redis\.key 'wc:\{word\}' is null in a row"
    ) as caught:
        stage(sink, 1, {"word": ["a", None], "n": [1, 2]})
    assert caught.value.rows.keys() == {1}
    with pytest.raises(
        SinkError, match=r"column 'word' of redis\.key 'wc:\{word\}' does not exist"
    ):
        stage(sink, 1, {"n": [1, 2]})
    assert sink.stage("1.1.0.0.0.0/out/out", []) is None


@pytest.mark.parametrize("template", ["{word}", "{a}{word}", "mill{word}"])
def test_no_row_is_written_where_millrace_has_its_own_keys(server: Server, template: str) -> None:
    """A value would fence the run, or move another sink's mark."""
    other = make(server, {"mode": "hash", "key": "x:{word}"})
    sink = make(server, {"mode": "hash", "key": template})
    first = "race:" if template.startswith("mill") else "millrace:"
    rows = {"word": ["plain", f"{first}sink:x:{{word}}"], "window": [1, 99], "a": ["", ""]}
    with pytest.raises(RowsRefusedError, match="its key begins with millrace:, as") as caught:
        stage(sink, 1, rows)
    assert caught.value.rows.keys() == {1}
    # What a release before this one has sealed is not written either.
    sink._of_others = lambda _: {}  # type: ignore[method-assign]
    sealed = stage(sink, 1, rows)
    before = server.client.hgetall(other.marker)
    with pytest.raises(SinkError, match="which is Millrace's own; nothing of the window is shown"):
        sink.publish(sealed, sealed.staged, 1)
    assert server.client.hgetall(other.marker) == before
    assert not server.client.exists("plain")


@pytest.mark.parametrize("options", [HASH, STREAM])
def test_a_window_counts_as_shown_when_it_is_in_the_file_whoever_asks(
    own_server: Server, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who wrote it may have died, or given up, before the disk had it."""
    sink = make(own_server, options)
    sealed = stage(sink, 1, {"word": ["a"], "n": [1]})
    own_server.client.config_set("appendfsync", "no")
    monkeypatch.setattr(redis_sink, "SYNC_TIMEOUT_MS", 50)
    for execution in (1, 1, 2):
        sink = sink if execution == 1 else taken_over(own_server, options)
        with pytest.raises(SinkUnavailableError, match="did not write its append-only file"):
            sink.publish(sealed, sealed.staged, execution)
    own_server.client.config_set("appendfsync", "always")
    sink.publish(sealed, sealed.staged, 2)


def taken_over(server: Server, options: dict[str, str]) -> RedisSink:
    """The sink of the next driver, which waits for no disk before it publishes."""
    sink = RedisSink("out", {"url": server.url, **options}, Path())
    sink.staging = None
    sink._uid = "life"
    sink.fence(2)
    return sink


def test_key_columns_alone_become_fields(server: Server) -> None:
    sink = make(server, {"mode": "hash", "key": "wc:{word}/{n}"})
    sealed = stage(sink, 1, {"word": ["a"], "n": [1]})
    sink.publish(sealed, sealed.staged, 1)
    assert counts(server) == {"wc:a/1": {"word": "a", "n": "1"}}


def test_a_large_window_is_shown_whole(server: Server) -> None:
    sink = make(server, HASH)
    total = 60_000
    words = [f"w{i}" for i in range(total)]
    rows = {"word": words, **{f"c{n}": list(range(total)) for n in range(3)}}
    sealed = stage(sink, 1, rows)
    sink.publish(sealed, sealed.staged, 1)
    assert len(server.client.keys("wc:*")) == total
    assert server.client.hgetall("wc:w59999") == {f"c{n}": "59999" for n in range(3)}


def test_discard_and_publish_leave_no_staged_rows(server: Server) -> None:
    sink = make(server, HASH)
    sealed = [stage(sink, window, {"word": [str(window)], "n": [1]}) for window in (1, 2, 3)]
    sink.publish(sealed[0], sealed[0].staged, 1)
    assert len(server.client.keys("millrace:staged:*")) == 2
    sink.discard(lambda name: name == "1.2.0.0.0.0/out/out")
    sink.verify(sealed[2].staged)
    assert len(server.client.keys("millrace:staged:*")) == 1


def test_the_last_window_that_is_shown_is_told(server: Server) -> None:
    sink = make(server, HASH)
    assert sink.last_shown() is None
    for window in (1, 2):
        sealed = stage(sink, window, {"word": ["a"], "n": [window]})
        sink.publish(sealed, sealed.staged, 1)
        assert sink.last_shown() == (window, sealed.digest)


class TestPrepare:
    def fill(self, server: Server, options: dict[str, str]) -> None:
        sink = make(server, options)
        sealed = stage(sink, 9, {"word": ["a"], "n": [1]})
        sink.publish(sealed, sealed.staged, 1)

    def other(self, server: Server, options: dict[str, str]) -> RedisSink:
        return RedisSink("out", {"url": server.url, **options}, Path())

    @pytest.mark.parametrize("options", [HASH, STREAM])
    def test_another_life(self, server: Server, options: dict[str, str]) -> None:
        self.fill(server, options)
        server.client.hset("other:a", "n", 1)
        for fresh, overwrite in ((False, False), (True, False), (False, True)):
            with pytest.raises(SinkError, match="of another topology or of an earlier life"):
                self.other(server, options).prepare("two", fresh, overwrite)
        old = make(server, options, execution=8)
        sink = self.other(server, options)
        sink.prepare("two", fresh=True, overwrite=True)
        assert not counts(server)
        assert not entries(server)
        assert server.client.exists("other:a")
        sink.fence(1)
        sealed = stage(sink, 1, {"word": ["b"], "n": [1]})
        sink.publish(sealed, sealed.staged, 1)
        assert list(counts(server)) == (["wc:b"] if options is HASH else [])
        with pytest.raises(SinkError, match="belongs to another topology now"):
            old.publish(Sealed(10, "", ()), (), 8)

    def test_the_same_life_goes_on_whatever_is_asked(self, server: Server) -> None:
        self.fill(server, HASH)
        self.other(server, HASH).prepare("life", fresh=True, overwrite=True)
        assert list(counts(server)) == ["wc:a"]

    def test_only_what_the_sink_wrote_is_deleted(self, server: Server) -> None:
        self.fill(server, HASH)
        server.client.hset("wc:settings", "colour", "blue")
        server.client.hset("wc:a:b", mapping={"n": 1, "other": 2})
        self.other(server, HASH).prepare("two", fresh=True, overwrite=True)
        assert sorted(counts(server)) == ["wc:a:b", "wc:settings"]

    def test_a_claim_that_was_cut_short_is_finished(self, server: Server) -> None:
        sink = self.other(server, HASH)
        server.client.hset(sink.marker, "uid", "one")
        sink.prepare("one")
        assert server.client.hget(sink.marker, "sink") == "out"

    @pytest.mark.parametrize("options", [HASH, STREAM])
    def test_unmarked_keys_are_refused_and_kept(
        self, server: Server, options: dict[str, str]
    ) -> None:
        server.client.hset("wc:a", "n", 1)
        server.client.xadd("words", {"n": "1"})
        with pytest.raises(SinkError, match=r"that no topology marked; use other keys$"):
            self.other(server, options).prepare("one", fresh=True, overwrite=True)
        assert server.client.exists("wc:a", "words") == 2

    def test_an_empty_target_of_another_life_is_taken_over_by_fresh(self, server: Server) -> None:
        make(server, HASH)
        with pytest.raises(SinkError, match="holds a marker"):
            self.other(server, HASH).prepare("two")
        self.other(server, HASH).prepare("two", fresh=True)

    @pytest.mark.parametrize("options", [HASH, STREAM])
    def test_a_fresh_start_is_refused_beforehand_and_nothing_changes(
        self, server: Server, options: dict[str, str]
    ) -> None:
        self.other(server, options).check_fresh(overwrite=False)
        assert server.client.dbsize() == 0
        self.fill(server, options)
        before = sorted(server.client.keys())
        self.other(server, options).check_fresh(overwrite=True)
        with pytest.raises(SinkError, match="of another topology or of an earlier life"):
            self.other(server, options).check_fresh(overwrite=False)
        assert sorted(server.client.keys()) == before

    def test_two_sinks_with_the_same_keys(self, server: Server) -> None:
        make(server, HASH)
        with pytest.raises(SinkError, match="belongs to the sink 'out'"):
            RedisSink("two", {"url": server.url, **HASH}, Path()).prepare("life")

    def test_characters_that_mean_something_in_patterns(self, server: Server) -> None:
        server.client.hset("w*c1:a", "n", 1)
        sink = RedisSink("s", {"url": server.url, "mode": "hash", "key": "w[*]c?:{word}"}, Path())
        sink.prepare("one")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"mode": "list"}, "redis.mode 'list' is not known"),
            ({"mode": "hash"}, "redis.key is missing in mode hash"),
            ({"mode": "stream", "key": "a"}, "redis.stream is missing in mode stream"),
        ],
    )
    def test_wrong_options(self, options: dict[str, str], message: str) -> None:
        with pytest.raises(SinkError, match=message):
            RedisSink("s", {"url": "redis://127.0.0.1", **options}, Path())


class TestServer:
    def test_memory_that_is_full_loses_nothing(self, server: Server) -> None:
        sink = make(server, HASH)
        sealed = stage(sink, 1, {"word": ["a"], "n": [1]})
        server.client.config_set("maxmemory", 1)
        try:
            with pytest.raises(
                SinkFullError, match=r"memory of redis://127.0.0.1:.* is full; raise"
            ):
                sink.publish(sealed, sealed.staged, 1)
            with pytest.raises(SinkFullError):
                stage(sink, 2, {"word": ["b"], "n": [1]})
        finally:
            server.client.config_set("maxmemory", 0)
        assert not counts(server)
        sink.publish(sealed, sealed.staged, 1)
        assert counts(server) == {"wc:a": {"n": "1"}}

    def test_a_killed_server_comes_back_with_the_window_and_its_mark(
        self, own_server: Server
    ) -> None:
        sink = make(own_server, STREAM)
        first = stage(sink, 1, {"word": ["a", "b"]})
        second = stage(sink, 2, {"word": ["c"]})
        sink.publish(first, first.staged, 1)
        own_server.kill()
        with pytest.raises(
            SinkUnavailableError, match=r"does not answer .* it is tried again"
        ) as no:
            sink.publish(second, second.staged, 1)
        assert no.value.retryable
        assert "secret" not in str(no.value)
        own_server.start()
        for sealed in (first, second):
            sink.publish(sealed, sealed.staged, 1)
        assert [entry for entry, _ in entries(own_server)] == ["1-1", "1-2", "2-1"]

    def test_a_server_that_is_busy_is_tried_again(self, own_server: Server) -> None:
        sink = make(own_server, HASH)
        sealed = stage(sink, 1, {"word": ["a"], "n": [1]})
        own_server.client.config_set("busy-reply-threshold", 1)
        looping = redis.Redis.from_url(own_server.url)
        with ThreadPoolExecutor(1) as thread:
            endless = thread.submit(looping.eval, "while true do end", 0)
            deadline_s = time.monotonic() + 30
            refused = ""
            while "BUSY" not in refused:
                assert time.monotonic() < deadline_s
                try:
                    own_server.client.ping()
                except redis.exceptions.ResponseError as error:
                    refused = str(error)
            with pytest.raises(SinkUnavailableError, match=r"cannot write now .BUSY"):
                sink.publish(sealed, sealed.staged, 1)
            own_server.client.script_kill()
            assert isinstance(endless.exception(), redis.exceptions.ResponseError)
        looping.close()
        sink.publish(sealed, sealed.staged, 1)
        assert list(counts(own_server)) == ["wc:a"]

    def test_a_wrong_password(self, server: Server) -> None:
        url = server.url.replace("secret", "wrong")
        with pytest.raises(SinkError, match="refuses the password") as no:
            RedisSink("s", {"url": url, **HASH}, Path()).prepare("one")
        assert not getattr(no.value, "retryable", False)

    def test_lost_staged_rows(self, server: Server) -> None:
        sink = make(server, HASH)
        sealed = stage(sink, 1, {"word": ["a"], "n": [1]})
        keys: Sequence[str] = server.client.keys("millrace:staged:*")
        server.client.delete(*keys)
        with pytest.raises(SinkError, match=r"the staged rows 1.1.0.0.0.0/out/out are gone from"):
            sink.publish(sealed, sealed.staged, 1)


def test_hashes_of_windows_that_are_taken_back_are_written_over(server: Server) -> None:
    sink = make(server, HASH)
    for window in range(1, 31):
        sealed = stage(sink, window, {"word": ["a"], "n": [window]})
        sink.publish(sealed, sealed.staged, 1)
    sink = make(server, HASH, 2)
    sink.retract(5)
    assert sink.last_shown() is not None
    assert sink.last_shown()[0] == 5  # type: ignore[index]
    assert counts(server) == {"wc:a": {"n": "30"}}
    again = stage(sink, 6, {"word": ["a"], "n": [6]}, attempt=9)
    sink.publish(again, again.staged, 2)
    assert counts(server) == {"wc:a": {"n": "6"}}
    with pytest.raises(FencedError):
        make(server, HASH, 1)
    # Nor does an older one take back what this one shows.
    make(server, HASH, 3)
    with pytest.raises(FencedError):
        sink.retract(2)
    assert sink.last_shown()[0] == 6  # type: ignore[index]


def test_what_was_never_shown_needs_nothing_taken_back(server: Server) -> None:
    sink = make(server, HASH)
    sink.retract(3)
    assert sink.last_shown() is None
    other = RedisSink("out", {"url": server.url, "mode": "hash", "key": "x:{word}"}, Path())
    with pytest.raises(SinkError, match="belongs to another topology"):
        other.retract(3)


def test_a_stream_says_that_it_takes_nothing_back(server: Server) -> None:
    sink = make(server, STREAM)
    assert not sink.retracts
    with pytest.raises(NotImplementedError):
        sink.retract(3)
    assert make(server, HASH).retracts
