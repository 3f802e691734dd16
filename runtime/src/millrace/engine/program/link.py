"""A connection between the driver and a task that stays: signed messages, in turns.

::

    driver   listens, on a socket in the run's own folder or on a port of its pod
    task     connects
    driver   sends bytes that nobody can foretell
    task     answers with them and with such bytes of its own, and says who it is
    driver   sends work, the task that it has begun and what came of it, and so on
    driver   says that no more comes

But for the first bytes of the driver's every message is signed by the run, together with the bytes
of both ends and its place among those that went the same way: none can be repeated, here or on
another connection. Nothing is kept between messages: with the death of either end the connection
ends, and what was under way counts as not done.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Self

from millrace.engine.program import signing
from millrace.errors import EngineError

LISTENS = "spark.millrace.listens"
"""Setting of Spark's that says where a driver listens (``Place.told``); where it is not there that
is a Unix socket."""

CONNECT_S = 2.0
GREETING_S = 5.0
"""How long either end waits for the other until it is known to be one of this run."""

_LENGTH = struct.Struct("!I")
_MOST_BYTES = (1 << 32) - 1
_FIRST_BYTES = 256 << 20
_PART_BYTES = 1 << 20
_GREETING_BYTES = 4096
_FRESH_BYTES = 32
_WAITING = 64

_ALIVE = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 15),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 30_000),
)
"""A connection that something between the machines has forgotten ends within half a minute."""


class LinkError(EngineError):
    """A connection has ended, or what came over it is no message of this run."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a driver listens: ``host`` and ``port``, or with port 0 the path of a Unix socket."""

    host: str
    port: int = 0

    @classmethod
    def of(cls, told: str) -> Place:
        """What ``told`` has made."""
        host, _, port = told.rpartition(" ")
        return cls(host, int(port))

    @property
    def told(self) -> str:
        """A host and port as ``LISTENS`` has them."""
        return f"{self.host} {self.port}"

    def listen(self) -> socket.socket:
        """Raises ``OSError``."""
        if self.port:
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            listener = socket.create_server((self.host, self.port), family=family, backlog=_WAITING)
        else:
            Path(self.host).unlink(missing_ok=True)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                listener.bind(self.host)
                listener.listen(_WAITING)
            except BaseException:
                listener.close()
                raise
        listener.settimeout(None)  # whatever a connector has made the default
        return listener

    def connect(self) -> socket.socket:
        """Raises ``OSError``."""
        if self.port:
            return socket.create_connection((self.host, self.port), CONNECT_S)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(GREETING_S)
            connection.connect(self.host)
        except BaseException:
            connection.close()
            raise
        return connection


@dataclass(frozen=True, slots=True)
class Caller:
    """Who connects: the task ``number`` of the driver's, in Spark's ``run`` of it from 0."""

    number: int
    run: int


@dataclass(frozen=True, slots=True)
class Work:
    """A window attempt for a task: the encoded job, and the encoded share of its roots.

    ``ahead``: its first pass alone, for its turn has not come. That has at most so many ``lanes``.
    """

    job: bytes
    share: bytes
    ahead: bool = False
    lanes: int = 1


class TaskLink:
    """One end of a connection. ``receive`` is for one thread at a time; ``send`` and ``close`` may
    come from any, and the latter wakes who waits.

    Until ``trusted`` all that comes has to come within ``GREETING_S``.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._end_s: float | None = time.monotonic() + GREETING_S
        self._session = b""
        self._sent = self._received = 0
        self._writing = Lock()
        if connection.family != socket.AF_UNIX:
            for level, name, value in _ALIVE:
                if hasattr(socket, name):  # macOS has some of them
                    connection.setsockopt(level, getattr(socket, name), value)
        _open.add(connection)

    def trusted(self, session: bytes) -> None:
        """The other end has proved to be of this run; ``session`` belongs to this connection."""
        self._session, self._end_s = session, None
        self._connection.settimeout(None)

    def send(self, purpose: str, value: object) -> None:
        """Send a message; ``None`` says that no more comes. Raises ``LinkError``."""
        with self._writing:
            data = signing.signed(purpose, (self._session, self._sent, value))
            self._sent += 1
            self.write(_LENGTH.pack(len(data)) + data)

    def receive(self, purpose: str, most_bytes: int = _MOST_BYTES) -> Any:
        """The next message. Raises ``LinkError`` and ``UnsignedError``.

        A task knows its driver by the first one: until then somebody else may be at its address.
        """
        if not self._received:
            most_bytes = min(most_bytes, _FIRST_BYTES)
        (size,) = _LENGTH.unpack(self.read(_LENGTH.size))
        if size > most_bytes:
            raise LinkError(f"a message of {size} bytes, where at most {most_bytes} are expected")
        session, place, value = signing.verified(purpose, self.read(size))
        if (session, place) != (self._session, self._received):
            raise LinkError("a message that was sent before, or on another connection")
        self._received += 1
        return value

    def close(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def write(self, data: bytes) -> None:
        """Send bytes. Raises ``LinkError``."""
        try:
            self._connection.sendall(data)
        except OSError as error:
            raise LinkError(f"the other end is gone: {error}") from error

    def read(self, size: int) -> bytes:
        """So many bytes. Raises ``LinkError``."""
        data = bytearray()
        try:
            while len(data) < size:
                if self._end_s is not None:
                    self._connection.settimeout(max(0.001, self._end_s - time.monotonic()))
                part = self._connection.recv(min(size - len(data), _PART_BYTES))
                if not part:
                    raise LinkError("the other end is gone")
                data += part
        except OSError as error:
            raise LinkError(f"the other end is gone: {error}") from error
        return bytes(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def answer(connection: socket.socket) -> tuple[TaskLink, Caller]:
    """The driver's end of a connection that was just made. Raises ``EngineError`` or ``OSError``
    where the other end does not prove to be of this run."""
    connection.settimeout(GREETING_S)
    link = TaskLink(connection)
    fresh = secrets.token_bytes(_FRESH_BYTES)
    link.write(fresh)
    said, other, caller = link.receive("caller", _GREETING_BYTES)
    if said != fresh:
        raise LinkError("a caller that repeats what another has said")
    link.trusted(fresh + other)
    return link, caller


def call(place: Place, caller: Caller) -> TaskLink:
    """The task's end of a new connection. Raises ``LinkError`` where there is none."""
    try:
        link = TaskLink(place.connect())
    except OSError as error:
        raise LinkError(f"the driver is not reached: {error}") from error
    try:
        fresh, own = link.read(_FRESH_BYTES), secrets.token_bytes(_FRESH_BYTES)
        link.send("caller", (fresh, own, caller))
        link.trusted(fresh + own)
    except BaseException:
        link.close()
        raise
    return link


_open: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _let_go() -> None:
    """What user code forks must not keep a connection open that its worker has. It gets none of its
    own, so that a closed descriptor is as good as one that leads nowhere (``task.daemon``)."""
    for connection in list(_open):
        connection.close()


os.register_at_fork(after_in_child=_let_go)
