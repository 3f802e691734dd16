"""A state server whose file takes long to load is waited for as long as it says so."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from millrace.errors import StateServerError
from millrace.state import embedded
from millrace.state.embedded import EmbeddedServer, StartingServer
from millrace_e2e.embedded import options

TIMEOUT_S = 60.0

SERVER = """
import os, socketserver, sys
from pathlib import Path

conf = dict(line.split(" ", 1) for line in Path(sys.argv[1]).read_text().splitlines())
folder = Path(sys.argv[1]).parent
info = f"process_id:{os.getpid()}\\r\\nrun_id:abc\\r\\n"


class Answers(socketserver.StreamRequestHandler):
    def handle(self):
        while line := self.rfile.readline():
            words = []
            for _ in range(int(line[1:])):
                size = int(self.rfile.readline()[1:])
                words.append(self.rfile.read(size + 2)[:size])
            self.wfile.write(self.answer(words[0].upper()))

    def answer(self, word):
        if word in (b"PING", b"INFO") and not (folder / "loaded").exists():
            with (folder / "asked").open("a") as file:
                file.write("asked\\n")
            return b"-LOADING Redis is loading the dataset in memory\\r\\n"
        if word == b"PING":
            return b"+PONG\\r\\n"
        if word == b"INFO":
            return f"${len(info)}\\r\\n{info}\\r\\n".encode()
        return b"+OK\\r\\n"


socketserver.ThreadingUnixStreamServer.daemon_threads = True
place = conf["unixsocket"].strip('"')
socketserver.ThreadingUnixStreamServer(place, Answers).serve_forever()
"""


class Still:
    """A clock that stands until it is set."""

    at_s = 100.0

    def monotonic(self) -> float:
        return self.at_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Still:
    still = Still()
    monkeypatch.setattr(embedded, "time", still)
    return still


def starting(folder: Path, monkeypatch: pytest.MonkeyPatch, server: str) -> StartingServer:
    binary = folder / "server"
    binary.write_text(f"#!{sys.executable} -IS\n{server}")
    binary.chmod(0o700)
    monkeypatch.setenv(embedded.BINARY_VARIABLE, str(binary))
    return StartingServer(folder / "state", "state-0", options(start_timeout_s=TIMEOUT_S))


def asked(folder: Path) -> int:
    try:
        return len((folder / "state" / "asked").read_text().splitlines())
    except FileNotFoundError:
        return 0


def test_one_that_says_that_it_loads_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Still
) -> None:
    server: EmbeddedServer | None = None
    coming = starting(tmp_path, monkeypatch, SERVER)
    try:
        for heard in range(5):
            while asked(tmp_path) <= heard:
                assert coming.look() is None
                time.sleep(0.01)
            clock.at_s += TIMEOUT_S - 1.0
        (tmp_path / "state" / "loaded").touch()
        while server is None:
            server = coming.look()
        assert server.address.run_id == "abc"
    finally:
        coming.kill()


def test_one_that_says_nothing_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Still
) -> None:
    coming = starting(tmp_path, monkeypatch, "import signal; signal.pause()")
    try:
        while coming.pid is None:
            assert coming.look() is None
        clock.at_s += TIMEOUT_S - 1.0
        assert coming.look() is None
        clock.at_s += 2.0
        with pytest.raises(StateServerError, match="not ready within 60 s"):
            coming.look()
    finally:
        coming.kill()
