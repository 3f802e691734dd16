"""What a kubelet, the operator and Prometheus ask a pod: answers by HTTP, each made when asked."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from millrace.clock import Clock, SystemClock
from millrace.homes import pods

log = logging.getLogger(__name__)

_ASKING_S = 5.0

MOST_AT_ONCE = 32
"""Requests that are answered at the same time. Who asks is not known: one that is behind these cuts
off the oldest, so that slow ones keep nobody from an answer, and cost no more than that."""

_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Answer:
    """``text`` is one line that says why, or all that was asked for, of the type ``content_type``;
    ``document`` is sent in its place as JSON."""

    good: bool
    text: str = ""
    document: Mapping[str, str] | None = None
    content_type: str = _TEXT


Questions = Mapping[str, Callable[[], Answer]]


class Beat:
    """Whether something that should go on and on does; safe for several threads. What it begins
    with may take ``first_s`` instead of ``within_s``."""

    def __init__(
        self, within_s: float, clock: Clock | None = None, first_s: float | None = None
    ) -> None:
        self._within_s = within_s
        self._first_s = within_s if first_s is None else first_s
        self._clock = clock or SystemClock()
        self.begin()

    def begin(self) -> None:
        """What follows is a beginning."""
        self._last = self._clock.monotonic_s(), self._first_s

    def __call__(self) -> None:
        """It goes on."""
        self._last = self._clock.monotonic_s(), self._within_s

    def answer(self) -> Answer:
        """Good if it went on lately."""
        last_s, within_s = self._last
        ago_s = self._clock.monotonic_s() - last_s
        return Answer(ago_s <= within_s, f"went on {ago_s:.1f} s ago")


class BoundedServer(ThreadingHTTPServer):
    """Answers ``MOST_AT_ONCE``. On a cluster of IPv6 alone a pod has no other address."""

    daemon_threads = True
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._asking: deque[socket.socket] = deque()
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._asking.append(request)
            cut = self._asking.popleft() if len(self._asking) > MOST_AT_ONCE else None
            if cut is not None:
                with suppress(OSError):
                    cut.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock, suppress(ValueError):
            self._asking.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("%s went away", client_address, exc_info=True)


def serve(questions: Questions, port: int = pods.HEALTH_PORT) -> ThreadingHTTPServer:
    """Answer on all addresses of the pod until the process ends; the server, for its port."""

    class Handler(BaseHTTPRequestHandler):
        timeout = _ASKING_S

        def do_GET(self) -> None:
            ask = questions.get(self.path)
            if ask is None:
                self._send(HTTPStatus.NOT_FOUND, "ask for " + ", ".join(questions))
                return
            try:
                answer = ask()
            except Exception:
                # The boundary of a request: who cannot say that it is well is not.
                log.exception("%s", self.path)
                answer = Answer(False, "cannot be said; see the log")
            status = HTTPStatus.OK if answer.good else HTTPStatus.SERVICE_UNAVAILABLE
            document = answer.document
            text = answer.text if document is None else json.dumps(dict(document))
            self._send(status, text, answer.content_type)

        def _send(self, status: HTTPStatus, text: str, content_type: str = _TEXT) -> None:
            body = (text.removesuffix("\n") + "\n").encode()
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the base's name
            log.debug(format, *args)

    server = BoundedServer(("", port), Handler)
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    return server
