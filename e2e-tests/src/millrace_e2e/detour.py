"""A proxy between a run's drivers, or its Python workers, and its state servers.

All others go to the servers directly, so that what the proxy does to a server parts it from those
alone. Their side of it is ``startup/sitecustomize.py``.
"""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

STARTUP = Path(__file__).with_name("startup")

_CHUNK = 1 << 16


class Way(Enum):
    """What becomes of the connections to a server."""

    FREE = "free"
    CUT = "cut"
    """They end, and new ones do at once."""
    SWALLOWED = "swallowed"
    """They stay, as those of a host that is gone do; nothing arrives on either side."""


@dataclass(slots=True)
class _Rule:
    way: Way = Way.FREE
    delay_s: float = 0.0
    loses: bytes = b""
    pairs: list[_Pair] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Pair:
    """One connection; bytes that it lost make it useless for good."""

    near: socket.socket
    far: socket.socket
    useless: bool = False

    def close(self) -> None:
        for end in (self.near, self.far):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Detour:
    """The proxy; servers are known by the paths of their sockets."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._rules: dict[str, _Rule] = {}
        self._lock = threading.Lock()
        self.carried: dict[str, int] = {}
        """Bytes that went through, by path."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(place)
        self._listener.listen()
        threading.Thread(target=self._accept, name="detour", daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        """What a run is started with, so that its drivers come this way."""
        return {"MILLRACE_E2E_PROXY": self._place, "PYTHONPATH": str(STARTUP)}

    @property
    def for_tasks(self) -> dict[str, str]:
        """What a run is started with, so that its Python workers come this way."""
        return {"MILLRACE_E2E_TASKS_PROXY": self._place, "PYTHONPATH": str(STARTUP)}

    def lead(self, path: str, way: Way, delay_s: float = 0.0, loses: bytes = b"") -> None:
        """From now on this is what becomes of the connections to a server; ``delay_s`` is what
        each piece takes in either direction. A piece that has ``loses`` in it is swallowed, and
        what comes behind it."""
        with self._lock:
            rule = self._rules.setdefault(path, _Rule())
            rule.way, rule.delay_s, rule.loses = way, delay_s, loses
            cut = rule.pairs if way is Way.CUT else []
            if cut:
                rule.pairs = []
        for pair in cut:
            pair.close()

    def close(self) -> None:
        """End all connections."""
        self._listener.close()
        with self._lock:
            pairs = [pair for rule in self._rules.values() for pair in rule.pairs]
        for pair in pairs:
            pair.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        path = _asked_for(near)
        with self._lock:
            rule = self._rules.setdefault(path, _Rule())
            refused = rule.way is Way.CUT
        try:
            if refused:
                raise ConnectionRefusedError
            far = socket.socket(socket.AF_UNIX)
            far.connect(path)
        except OSError:
            near.close()
            return
        pair = _Pair(near, far)
        with self._lock:
            rule.pairs.append(pair)
        back = threading.Thread(target=self._carry, args=(far, near, pair, rule, path), daemon=True)
        back.start()
        self._carry(near, far, pair, rule, path)

    def _carry(
        self, one: socket.socket, other: socket.socket, pair: _Pair, rule: _Rule, path: str
    ) -> None:
        with suppress(OSError):
            while data := one.recv(_CHUNK):
                if rule.delay_s:
                    time.sleep(rule.delay_s)
                lost = bool(rule.loses) and rule.loses in data
                pair.useless |= lost or rule.way is Way.SWALLOWED
                if not pair.useless:
                    other.sendall(data)
                    with self._lock:
                        self.carried[path] = self.carried.get(path, 0) + len(data)
        if rule.way is not Way.SWALLOWED:
            pair.close()


def _asked_for(near: socket.socket) -> str:
    """The path in the first line, and not a byte behind it."""
    line = b""
    while not line.endswith(b"\n"):
        found = near.recv(1)
        if not found:
            return ""
        line += found
    return line.decode().rstrip("\n")


@contextmanager
def detour() -> Iterator[Detour]:
    """A proxy that is closed at the end."""
    with tempfile.TemporaryDirectory(prefix="detour-") as folder:
        proxy = Detour(f"{folder}/s")
        try:
            yield proxy
        finally:
            proxy.close()
