"""What the command line reads of a state server of the user's own, by way of a pod of the topology.

Only pods of the topology are let in at such a server, and only they know its password. So the
driver and the ackers answer readers on their pod's loopback, which the API server leads a forwarded
port to. Whoever asks gives the password that is made of the topology's root key for this pod's name
(``homes.passwords``), and is told the record and objects of this topology. Nothing else is read,
nothing is written, and the password of the server stays in the pod.
"""

from __future__ import annotations

import hmac
import logging
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

from millrace.errors import MillraceError, StateServerError
from millrace.health import BoundedHandler, BoundedServer
from millrace.homes import pods
from millrace.protocol.server import Found, NotOwner
from millrace.state.client import StateAddress, StateClient

log = logging.getLogger(__name__)

ASKING_S = 30.0
"""How long a connection on which nobody asks anything is kept."""

Where = Callable[[], StateAddress | None]
"""The server in the life that it has now, with its password; None before that is known."""

Passwords = Callable[[], Sequence[str]]
"""What this pod lets readers in with, as it stands now."""


@dataclass(frozen=True, slots=True)
class Told:
    """An answer by HTTP. ``NO_CONTENT``: the server has nothing of the kind."""

    status: HTTPStatus
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def why(cls, status: HTTPStatus, text: str) -> Told:
        """One that is not what was asked for."""
        return cls(status, text.encode())


class OwnServerReading:
    """Answers of the topology with this uid; safe for several threads."""

    def __init__(self, uid: str, where: Where, passwords: Passwords) -> None:
        self._uid = uid
        self._where = where
        self._passwords = passwords
        self._lock = threading.Lock()
        self._client: StateClient | None = None

    def told(self, path: str, authorization: str) -> Told:
        """The answer to a request; ``authorization`` as the header has it."""
        try:
            if not self._lets_in(authorization):
                return Told.why(HTTPStatus.UNAUTHORIZED, "that is not the password of this pod")
            parts = urlsplit(path)
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            if parts.path == pods.RECORD_PATH:
                return self._record()
            if parts.path == pods.OBJECT_PATH:
                return self._part(query["name"], int(query["start"]), int(query["size"]))
        except (ValueError, KeyError):
            return Told.why(HTTPStatus.BAD_REQUEST, "an object is asked for by name, start, size")
        except MillraceError as error:
            return Told.why(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        return Told.why(HTTPStatus.NOT_FOUND, f"ask for {pods.RECORD_PATH} or {pods.OBJECT_PATH}")

    def _lets_in(self, authorization: str) -> bool:
        given = authorization.encode()
        wanted = [f"{pods.READER} {password}".encode() for password in self._passwords()]
        return any(hmac.compare_digest(given, one) for one in wanted)

    def _record(self) -> Told:
        reply = self._server().peek()
        if isinstance(reply, NotOwner):
            return Told.why(HTTPStatus.CONFLICT, reply.reason.value)
        if reply.record is None:
            return Told(HTTPStatus.NO_CONTENT)
        tag = {} if reply.tag is None else {pods.TAG_HEADER: str(reply.tag)}
        return Told(HTTPStatus.OK, reply.record, tag)

    def _part(self, name: str, start: int, size: int) -> Told:
        if start < 0 or not 0 < size <= pods.PART_BYTES:
            raise ValueError(size)
        reply = self._server().get_parts(None, [(name, start, size)])
        if isinstance(reply, NotOwner):
            return Told.why(HTTPStatus.CONFLICT, reply.reason.value)
        (found,) = reply
        if isinstance(found, Found):
            return Told(HTTPStatus.OK, found.data)
        return Told(HTTPStatus.NO_CONTENT)

    def _server(self) -> StateClient:
        address = self._where()
        if address is None:
            raise StateServerError(
                "this pod has not come to the state server yet; the condition StateAvailable says "
                "why where that takes long"
            )
        with self._lock:
            if self._client is None or self._client.address != address:
                # Another thread may still read by the old one: its connections go with it.
                self._client = StateClient(address, self._uid)
            return self._client


def serve_readers(reading: OwnServerReading, port: int = pods.READING_PORT) -> BoundedServer | None:
    """Answer on the pod's loopback until the process ends; the server, for its port. None where the
    port is taken, by user code for example: nothing but readers needs it."""

    class Handler(BoundedHandler):
        protocol_version = "HTTP/1.1"
        timeout = ASKING_S

        def do_GET(self) -> None:  # noqa: N802 the base's name
            try:
                with self.server.answering(self.request):
                    told = reading.told(self.path, self.headers.get("Authorization", ""))
            except Exception:
                # The boundary of a request.
                log.exception("reading the state server")
                text = "cannot be read; see the pod's log"
                told = Told.why(HTTPStatus.INTERNAL_SERVER_ERROR, text)
            self.send_response(told.status)
            for name, value in told.headers.items():
                self.send_header(name, value)
            if told.status != HTTPStatus.NO_CONTENT:
                self.send_header("Content-Length", str(len(told.body)))
            self.end_headers()
            self.wfile.write(told.body)

    class Server(BoundedServer):
        address_family = socket.AF_INET

    try:
        server = Server(("127.0.0.1", port), Handler)
    except OSError as error:
        log.warning(
            "port %d of this pod is taken (%s): millrace state and millrace dead-letters cannot "
            "read the state server through it",
            port,
            error,
        )
        return None
    threading.Thread(target=server.serve_forever, name="readers", daemon=True).start()
    return server
