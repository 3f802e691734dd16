from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from millrace.errors import StateServerError, WorkFolderError
from millrace.protocol.server import OK, Found, NotOwner, Stamped
from millrace.protocol.types import Stamp, Tag
from millrace.state import embedded
from millrace.state.client import StateClient
from millrace.state.embedded import EmbeddedServer
from millrace_e2e.embedded import connected, started
from millrace_e2e.valkey import free_port

STAMP = Stamp(1, 1)


def test_what_was_acknowledged_survives_sigkill(tmp_path: Path) -> None:
    first = started(tmp_path, "state-0")
    client = StateClient(first.address, "t")
    client.stamp(STAMP)
    assert client.put(STAMP, [("a", b"1" * 100_000)]) == OK
    assert client.write_record(STAMP, Tag(1, 1, 1, 1), b"sealed") == OK
    os.kill(first.pid, signal.SIGKILL)
    first.kill()
    client.close()
    with started(tmp_path, "state-0") as second:
        assert second.address.run_id != first.address.run_id
        assert second.address.password == first.address.password
        again = StateClient(second.address, "t")
        assert isinstance(again.get(STAMP, ["a"]), NotOwner)
        assert again.stamp(STAMP) == Stamped(b"sealed", Tag(1, 1, 1, 1))
        assert again.get(STAMP, ["a"]) == (Found(b"1" * 100_000),)
        again.close()


def test_a_truncated_file_loses_only_its_last_write(tmp_path: Path) -> None:
    with started(tmp_path) as first:
        client = StateClient(first.address, "t")
        client.stamp(STAMP)
        client.write_record(STAMP, Tag(1, 1, 1, 1), b"one")
        client.write_record(STAMP, Tag(1, 1, 1, 2), b"two")
        client.close()
    [tail] = (tmp_path / "appendonlydir").glob("*.incr.aof")
    with tail.open("rb+") as file:
        file.truncate(tail.stat().st_size - 5)
    with started(tmp_path) as second:
        client = StateClient(second.address, "t")
        assert client.peek() == Stamped(b"one", Tag(1, 1, 1, 1))
        client.close()


@pytest.mark.parametrize(
    ("unwritten", "nuls", "record"), [(0, 4096, b"two"), (5, 3 << 20, b"one"), (5, 5, b"one")]
)
def test_what_a_power_cut_left_as_nuls_is_cut_off(
    tmp_path: Path, unwritten: int, nuls: int, record: bytes
) -> None:
    """They stand for what was not brought to disk, at the end or in the middle of a write."""
    with started(tmp_path) as first:
        client = StateClient(first.address, "t")
        client.stamp(STAMP)
        client.write_record(STAMP, Tag(1, 1, 1, 1), b"one")
        client.write_record(STAMP, Tag(1, 1, 1, 2), b"two")
        client.close()
    [tail] = (tmp_path / "appendonlydir").glob("*.incr.aof")
    with tail.open("rb+") as file:
        written = tail.stat().st_size - unwritten
        file.truncate(written)
        file.truncate(written + nuls)
    with started(tmp_path) as second:
        client = StateClient(second.address, "t")
        reply = client.peek()
        assert isinstance(reply, Stamped)
        assert reply.record == record
        client.close()
        assert f"incr.aof ended in {nuls:,} NUL bytes" in second.log_tail()
    assert tail.read_bytes().endswith(b"\r\n")


def test_only_its_owner_can_read_the_password(tmp_path: Path) -> None:
    with started(tmp_path / "deep" / "folder") as server:
        for name in ("password", "valkey.conf"):
            mode = stat.S_IMODE((server.folder / name).stat().st_mode)
            assert mode == 0o600, name
        command = Path(f"/proc/{server.pid}/cmdline").read_bytes()
        assert str(server.address.password).encode() not in command
        assert client_refused(server)
        assert listens_on(server.pid) == set()
    with started(tmp_path / "port", place=free_port()) as server:
        assert listens_on(server.pid) == {"127.0.0.1"}


def client_refused(server: EmbeddedServer) -> bool:
    with connected(server) as connection:
        connection.sendall(b"GET a\r\n")
        return connection.recv(100).startswith(b"-NOAUTH")


def listens_on(pid: int) -> set[str]:
    psutil = pytest.importorskip("psutil")
    found = psutil.Process(pid).net_connections("inet")
    return {one.laddr.ip for one in found if one.status == "LISTEN"}


def test_a_folder_serves_one_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "LOCK_TIMEOUT_S", 0.05)
    with started(tmp_path), pytest.raises(WorkFolderError, match="in use"):
        started(tmp_path)
    started(tmp_path).stop()


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StateServerError, match=f"port {port} on 127.0.0.1 is in use"):
            started(tmp_path, place=port)


def test_another_user_who_took_the_port_is_not_told_the_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(StateServerError, match="is in use"):
            started(tmp_path, place=taken.getsockname()[1])
        taken.setblocking(False)
        with pytest.raises(BlockingIOError):
            taken.accept()


def test_a_socket_is_reached_whatever_its_folder_is_called(tmp_path: Path) -> None:
    with (
        tempfile.TemporaryDirectory(prefix='a "b" %41?#') as folder,
        started(tmp_path, place=Path(folder) / "s.sock") as server,
    ):
        client = StateClient(server.address, "t")
        assert client.stamp(STAMP) == Stamped(None, None)
        assert "s.sock" in server.address.shown
        client.close()


def test_a_socket_whose_path_is_too_long_is_named(tmp_path: Path) -> None:
    with pytest.raises(StateServerError, match=r"(?s)ended with code 1.*its log.*socket"):
        started(tmp_path, place=tmp_path / ("s" * 120))


def test_a_server_that_cannot_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "appendonlydir").write_text("not a folder")
    with pytest.raises(StateServerError, match=r"(?s)ended with code 1.*its log.*appendonly"):
        started(tmp_path)


def test_a_damaged_file_is_refused_with_the_log(tmp_path: Path) -> None:
    with started(tmp_path) as first:
        client = StateClient(first.address, "t")
        client.stamp(STAMP)
        client.put(STAMP, [("a", b"x" * 1000), ("b", b"y" * 1000)])
        client.close()
    [file] = (tmp_path / "appendonlydir").glob("*.incr.aof")
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 0xFF
    data[10:20] = b"rubbish..."
    file.write_bytes(bytes(data))
    with pytest.raises(StateServerError, match="Bad file format"):
        started(tmp_path)


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkFolderError, match=r"file.*--workdir"):
        started(tmp_path / "file")


def test_a_password_is_on_disk_before_anything_is_protected_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = set()
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", noted)
    with started(tmp_path) as server:
        named = [server.folder / "password", server.folder]
        assert {path.stat().st_ino for path in named} <= synced


def test_an_empty_password_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("")
    with pytest.raises(WorkFolderError, match="password is empty or damaged"):
        started(tmp_path)


def test_a_missing_binary_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(embedded.BINARY_VARIABLE, str(tmp_path / "nothing"))
    with pytest.raises(StateServerError, match=r"tried .*nothing.*spec\.stateServers\.url"):
        started(tmp_path)


def test_leftovers_of_a_killed_rewrite_are_removed(tmp_path: Path) -> None:
    (tmp_path / "temp-rewriteaof-123.aof").write_text("x")
    with started(tmp_path):
        assert not list(tmp_path.glob("temp-*"))


def test_a_large_log_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "LOG_LIMIT_BYTES", 10)
    (tmp_path / "server.log").write_text("old " * 10)
    with started(tmp_path) as server:
        assert (tmp_path / "server.log.1").read_text().startswith("old")
        assert "old" not in server.log_tail()


def test_it_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import sys, os, signal\n"
        "from pathlib import Path\n"
        "from millrace_e2e.embedded import started\n"
        "server = started(Path(sys.argv[1]))\n"
        "print(server.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, check=False
    )
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    # The lock is inherited by the server alone, so it is free only once that has ended.
    with started(tmp_path) as next_one:
        assert next_one.pid != pid
        assert not Path(f"/proc/{pid}/exe").exists()
