"""Ways into pods: what is said to a Unix socket here arrives at a port there.

Each connection is forwarded through the API server; nothing listens on a port for it.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from millrace.homes import pods as names
from millrace.kube.configmaps import Api
from millrace.kube.streams import ANSWER_S, StreamRefusedError, forwarded

_CHUNK = 1 << 18


class Way:
    """A Unix socket whose connections lead to the port of a pod, each by one of its own.

    The first is opened at once, so that a refusal is known: raises ``StreamRefusedError``, as where
    a connection takes longer than ``answer_s``. ``fault`` is what stood in the way of a later one.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        pod: str,
        path: Path,
        port: int = names.STATE_PORT,
        answer_s: float = ANSWER_S,
    ) -> None:
        self.path = path
        self.fault: str | None = None
        self._api = api
        self._pod = (namespace, pod)
        self._port = port
        self._answer_s = answer_s
        self._lock = threading.Lock()
        self._closed = False
        self._ends: list[Any] = []
        self._first: tuple[socket.socket, Any] | None = self._open()
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(path))
        self._listening.listen()
        threading.Thread(target=self._serve, name=f"way to {pod}", daemon=True).start()

    def close(self) -> None:
        """End all connections."""
        with self._lock:
            self._closed = True
            ends, self._ends = self._ends, []
        with suppress(OSError):
            # What waits for a connection does not notice that its socket is closed.
            self._listening.shutdown(socket.SHUT_RDWR)
        for end in (self._listening, *ends):
            with suppress(OSError):
                end.close()

    def _open(self) -> tuple[socket.socket, Any]:
        there, held = forwarded(self._api, *self._pod, self._port, self._answer_s)
        self._keep(held)
        return there, held

    def _keep(self, *ends: Any) -> None:
        with self._lock:
            if not self._closed:
                self._ends += ends
                return
        for end in ends:
            end.close()

    def _serve(self) -> None:
        while True:
            try:
                here, _ = self._listening.accept()
            except OSError:
                return
            self._keep(here)
            try:
                there, held = self._first or self._open()
            except StreamRefusedError as error:
                self.fault = str(error)
                _hang_up(here)
                continue
            self._first = None
            for source, target in ((here, there), (there, here)):
                arguments = (source, target, held)
                threading.Thread(target=self._carry, args=arguments, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, held: Any) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                target.sendall(data)
        if (said := held.error(self._port)) is not None:
            self.fault = f"port {self._port} of pod {self._pod[1]}: {said.strip()}"
        for end in (source, target):
            _hang_up(end)


def _hang_up(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
