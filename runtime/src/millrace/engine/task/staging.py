"""Where sinks without files of their own keep staged rows: objects on the state servers."""

from __future__ import annotations

from collections.abc import Callable

from millrace.state.servers import StateObject, StateServers


class TaskStaging:
    """A task's staging area; ``servers`` gives the state servers under the task's stamp."""

    def __init__(self, servers: Callable[[], StateServers]) -> None:
        self._servers = servers

    def put(self, name: str, data: bytes) -> None:
        self._servers().put([StateObject(name, data)])

    def get(self, name: str) -> bytes:
        return self._servers().get([(name, 0)])[0]


class DriverStaging:
    """The driver's: it publishes what tasks have staged and stages nothing itself."""

    def __init__(self, fetch: Callable[[str], bytes]) -> None:
        self._fetch = fetch

    def put(self, name: str, data: bytes) -> None:
        raise AssertionError(f"{name}: only tasks stage rows ({len(data)} bytes)")

    def get(self, name: str) -> bytes:
        return self._fetch(name)
