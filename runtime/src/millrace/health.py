"""What a kubelet, the operator and Prometheus ask a pod: answers by HTTP, each made when asked."""

from __future__ import annotations

import io
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import itemgetter
from typing import Any, ClassVar

from millrace.clock import Clock, SystemClock
from millrace.homes import pods

log = logging.getLogger(__name__)

ASKING_S = 5.0
"""How long a request may take to arrive. An answer is sent in as long, or given up."""

MOST_AT_ONCE = 32
"""Threads that requests have. Who asks is not known: where there are as many, one that comes cuts
off the oldest that is still being read or sent, so that slow ones keep nobody from an answer, and
cost no more than that. One that is being answered ends by itself."""

MOST_BYTES = 8192
"""Of a request, with all its headers."""

_CUT_S = 0.1
"""Nobody is cut off before that, nor another one before the last had as long to end."""

_WAITING = 128

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


class LongRequestError(Exception):
    """A request has more than ``MOST_BYTES``."""


class _Request(io.RawIOBase):
    """What comes over a connection: of each request ``MOST_BYTES`` at most, until its time is over,
    however it comes. Raises ``LongRequestError`` and ``OSError``."""

    def __init__(self, connection: socket.socket, within_s: float) -> None:
        self._connection = connection
        self._within_s = within_s
        self.begin()

    def begin(self) -> None:
        """What follows is another request."""
        self._left = MOST_BYTES
        self._end_s = time.monotonic() + self._within_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the request takes too long")
        if self._left == 0:
            raise LongRequestError(f"a request of more than {MOST_BYTES} bytes")
        self._connection.settimeout(left_s)
        try:
            size = self._connection.recv_into(memoryview(buffer)[: self._left])
        finally:
            self._connection.settimeout(self._within_s)
        if size == 0 and self._left < MOST_BYTES:
            raise ConnectionError("the request ends in the middle")
        self._left -= size
        return size


class BoundedHandler(BaseHTTPRequestHandler):
    """One connection. A request that is too long is told so, one that is too slow is cut off."""

    timeout: ClassVar[float] = ASKING_S
    server: BoundedServer

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._request = _Request(self.connection, self.timeout)
        self.rfile = io.BufferedReader(self._request)

    def handle_one_request(self) -> None:
        self._request.begin()
        try:
            super().handle_one_request()
        except LongRequestError:
            # It may have come to an end before there was a word of it.
            self.requestline = self.request_version = self.command = ""
            self.close_connection = True
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the base's name
        log.debug(format, *args)


class BoundedServer(ThreadingHTTPServer):
    """Answers ``MOST_AT_ONCE``. On a cluster of IPv6 alone a pod has no other address."""

    daemon_threads = True
    request_queue_size = _WAITING
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def __init__(self, address: tuple[str, int], handler: type[BoundedHandler]) -> None:
        self._change = threading.Condition()
        # Since when each is being read or sent; None while its answer is made.
        self._open: dict[socket.socket, float | None] = {}
        super().__init__(address, handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._has_room():
            # The threads that there are hang: one more would, too.
            super().shutdown_request(request)
            return
        with self._change:
            self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    @contextmanager
    def answering(self, request: Any) -> Iterator[None]:
        """An answer is being made, for which nobody is waited: to cut it off frees nothing."""
        with self._change:
            self._open[request] = None
        try:
            yield
        finally:
            with self._change:
                self._open[request] = time.monotonic()
                self._change.notify()

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._change:
            self._open.pop(request, None)
            self._change.notify()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("%s went away", client_address, exc_info=True)

    def _has_room(self) -> bool:
        """Whether another thread may be begun, when one has ended; only one thread asks."""
        end_s = time.monotonic() + ASKING_S
        with self._change:
            while len(self._open) >= MOST_AT_ONCE:
                now_s = time.monotonic()
                if now_s >= end_s:
                    return False
                self._cut_oldest(now_s)
                self._change.wait(min(end_s - now_s, _CUT_S))
        return True

    def _cut_oldest(self, now_s: float) -> None:
        waited = [(since_s, one) for one, since_s in self._open.items() if since_s is not None]
        since_s, oldest = min(waited, key=itemgetter(0), default=(now_s, None))
        if oldest is not None and now_s - since_s >= _CUT_S:
            self._open[oldest] = now_s  # it is about to end: the next one is another
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)


def serve(questions: Questions, port: int = pods.HEALTH_PORT) -> ThreadingHTTPServer:
    """Answer on all addresses of the pod until the process ends; the server, for its port."""

    class Handler(BoundedHandler):
        def do_GET(self) -> None:
            ask = questions.get(self.path)
            if ask is None:
                self._send(HTTPStatus.NOT_FOUND, "ask for " + ", ".join(questions))
                return
            try:
                with self.server.answering(self.request):
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

    server = BoundedServer(("", port), Handler)
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    return server
