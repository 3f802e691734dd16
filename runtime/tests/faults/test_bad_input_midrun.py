"""What goes wrong around a driver while windows run: it waits where waiting helps, says what to do
where it does not, and loses nothing either way.
"""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.errors import ExitCode
from millrace.state.client import StateClient
from millrace_e2e import feed, ledger, valkey
from millrace_e2e.checker import Promise
from millrace_e2e.embedded import started
from millrace_e2e.judge import judge
from millrace_e2e.topologies import Shape, history

WINDOW = 100
LINES = 20 * WINDOW


def write(place, watch=False, sink=None):
    document = history(Shape(max_records=WINDOW, watch=watch))
    if sink is not None:
        for one in document["spec"]["sinks"]:
            one["custom"] = {"class": sink, "options": one.pop("files")}
    place.write(document)


def one_more_life(live, place, uid):
    """The next driver of a history, which now ends when all that was fed is processed."""
    write(place)
    assert live(uid=uid).wait() == 0


@pytest.fixture
def own_server(tmp_path):
    """A state server that a test may ill-treat."""
    server = started(tmp_path / "own-server")
    yield server
    server.stop()


# -- sources


@pytest.mark.parametrize("damage", ["shrinks", "is replaced", "is removed"])
def test_a_file_that_changes_in_mid_run_stops_the_driver(live, place, damage):
    write(place, watch=True)
    file, text = place.texts / "a.txt", feed.text(range(LINES), 1)
    feed.add_file(file, text[: len(text) // 2 + 7])  # in the middle of a line
    life = live()
    life.until(lambda: life.sealed() >= 6, "windows")
    if damage == "shrinks":
        file.write_bytes(text[: len(text) // 4])
    elif damage == "is replaced":
        feed.add_file(file, text.replace(b"w1", b"w2"))
    else:
        file.rename(place.base / "elsewhere")
    assert life.wait() == ExitCode.SOURCE
    (stopped,) = life.events("DriverStopped")
    assert f"file {file}" in stopped["text"]
    told = {"shrinks": "has shrunk", "is replaced": "was changed"}
    if damage in told:
        assert live(uid=life.uid).wait() == ExitCode.SOURCE, "it finds the same"
        (_, stopped) = life.events("DriverStopped")
        assert f"file {file}" in stopped["text"]
        assert told[damage] in stopped["text"]
    feed.add_file(file, text)
    one_more_life(live, place, life.uid)
    assert judge(place, Promise.EXACTLY_ONCE) == []


def test_a_truncated_parquet_file_is_named(live, place):
    place.write(parquet_topology())
    for number in range(2):
        table = pa.table({"n": range(number * 1000, (number + 1) * 1000)})
        pq.write_table(table, place.texts / f"{number}.parquet", row_group_size=100)
    file = place.texts / "1.parquet"
    whole = file.read_bytes()
    feed.add_file(file, whole[:-100])
    life = live()
    assert life.wait() == ExitCode.SOURCE
    (stopped,) = life.events("DriverStopped")
    assert f"file {file}" in stopped["text"]
    feed.add_file(file, whole)
    assert live(uid=life.uid).wait() == 0
    shown = [one.row["n"] for one in ledger.read_rows(place.sink("rows"))]
    assert sorted(shown) == list(range(2000))


def parquet_topology():
    document = history(Shape(max_records=WINDOW))
    spec = document["spec"]
    spec["sources"] = [
        {"name": "numbers", "files": {"path": "texts", "format": "parquet", "watch": False}}
    ]
    spec["processors"] = []
    sink = {"path": "rows", "format": "jsonLines"}
    spec["sinks"] = [{"name": "rows", "inputs": [{"from": "numbers"}], "files": sink}]
    return document


# -- the state server


def test_windows_wait_for_a_state_server_that_is_away(live, place, tmp_path):
    write(place)
    feed.add_file(place.texts / "a.txt", feed.text(range(LINES), 1))
    server = started(tmp_path / "own-server")
    try:
        life = live(server.address)
        life.until(lambda: life.sealed() >= 5, "windows")
        server.kill()
        life.until(lambda: life.events("StateServerAway"), "a warning")
        before = life.sealed()
        assert before * WINDOW < LINES
    finally:
        server.stop()
    server = started(tmp_path / "own-server")
    try:
        life.move(server.address)
        assert life.wait() == 0
    finally:
        server.stop()
    assert judge(place, Promise.EXACTLY_ONCE) == []
    assert [len(life.events(kind)) for kind in ("StateServerAway", "StateServerBack")] == [1, 1]


@pytest.mark.parametrize("waits_for", ["its state server", "its sink"])
def test_a_test_that_fails_leaves_no_driver(live, place, tmp_path, waits_for):
    """Whatever a driver waits for, it is ended with its test."""
    sink = valkey.Server(tmp_path / "sink-server")
    if waits_for == "its sink":
        place.write(history(Shape(max_records=WINDOW, redis=sink.url, watch=False)))
    else:
        write(place)
    feed.add_file(place.texts / "a.txt", feed.text(range(LINES), 1))
    server = started(tmp_path / "own-server")
    try:
        life = live(server.address)
        if waits_for == "its sink":
            life.until(lambda: life.said("start it or correct redis.url"), "a warning")
        else:
            life.until(lambda: life.sealed() >= 5, "windows")
    finally:
        server.stop()
    life.stop()
    assert not life.alive()


def test_windows_wait_while_the_state_server_has_no_memory_left(live, place, own_server):
    write(place)
    feed.add_file(place.texts / "a.txt", feed.text(range(LINES), 1))
    life = live(own_server.address)
    life.until(lambda: life.sealed() >= 5, "windows")
    redis = StateClient(own_server.address, life.uid).redis
    redis.config_set("maxmemory", 1)
    life.until(lambda: life.events("StateServerFull"), "a warning")
    held = life.sealed()
    assert held * WINDOW < LINES
    redis.config_set("maxmemory", 0)
    assert life.wait() == 0
    assert judge(place, Promise.EXACTLY_ONCE) == []
    (full,), (back,) = life.events("StateServerFull"), life.events("StateServerBack")
    assert "of 0.0 MiB are used" in full["text"]
    assert full["warning"]
    assert "has room again" in back["text"]
    assert not life.events("WindowHeldUp")


# -- sinks


def fill(path: Path) -> None:
    """Write until the disk is full. Raises ``OSError``."""
    with path.open("wb") as file:
        while True:
            file.write(bytes(4096))
            file.flush()


@contextmanager
def small_disk(folder, size):
    """A file system of that size in a folder; skips where this user may not mount one."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_windows_wait_while_a_sinks_disk_is_full(live, place):
    write(place)
    feed.add_file(place.texts / "a.txt", feed.text(range(LINES), 1))
    with small_disk(place.sink("rows"), "4m"):
        filler = place.sink("rows") / ".filler"
        life = live()
        life.until(lambda: life.sealed() >= 5, "windows")
        with pytest.raises(OSError, match="No space"):
            fill(filler)
        life.until(lambda: life.said("no space is left"), "a warning")
        assert life.sealed() * WINDOW < LINES
        filler.unlink()
        assert life.wait() == 0
        assert judge(place, Promise.EXACTLY_ONCE) == []


def test_windows_wait_while_a_sink_may_write_no_files_of_their_size(lab, live, place):
    """What any user can have in place of a full disk: a limit for the size of files."""
    lab.order({"mostBytes": 512})
    write(place, sink="fault_ends:CrampedFiles")
    feed.add_file(place.texts / "a.txt", feed.text(range(LINES), 1))
    life = live()
    life.until(lambda: life.said("no space is left"), "a warning")
    assert life.sealed() == 0
    lab.order({})
    assert life.wait() == 0
    assert judge(place, Promise.EXACTLY_ONCE) == []


def test_a_driver_waits_for_a_sink_that_is_away_at_its_start(live, place, tmp_path):
    sink_server = valkey.Server(tmp_path / "sink-server")
    shape = Shape(max_records=WINDOW, redis=sink_server.url, watch=False)
    place.write(history(shape))
    feed.add_file(place.texts / "a.txt", feed.text(range(LINES), 1))
    life = live()
    life.until(lambda: life.said("start it or correct redis.url"), "a warning")
    sink_server.start()
    try:
        assert life.wait() == 0
        with sink_server.client() as client:
            assert judge(place, Promise.EXACTLY_ONCE, client) == []
    finally:
        sink_server.kill()
