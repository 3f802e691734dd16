"""A connection between the driver and a task that stays: signed messages, in turns.

::

    driver   listens, on a socket in the run's own folder or on a port of its pod
    task     connects
    driver   sends bytes that nobody can foretell
    task     says who it is, with these bytes, signed by the run
    driver   sends work, the task what came of it, and so on
    driver   sends an empty message: no more comes

Nothing is kept between messages: with the death of either end the connection ends, and what was
under way counts as not done.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from millrace.engine.program import signing
from millrace.errors import EngineError

LISTENS = "spark.millrace.listens"
"""Setting of Spark's that says where a driver listens, ``host port``; where it is not there that is
a Unix socket."""

GREETING_S = 5.0
"""How long either end waits for the other until it is known to be one of this run."""

_LENGTH = struct.Struct("!I")
_MOST_BYTES = (1 << 32) - 1
_PART_BYTES = 1 << 20
_GREETING_BYTES = 4096
_FRESH_BYTES = 32
_WAITING = 8


class LinkError(EngineError):
    """A connection has ended, or what came over it is no message of this run."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a driver listens: ``host`` and ``port``, or with port 0 the path of a Unix socket."""

    host: str
    port: int = 0

    def listen(self) -> socket.socket:
        """Raises ``OSError``."""
        if self.port:
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            return socket.create_server((self.host, self.port), family=family, backlog=_WAITING)
        Path(self.host).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(self.host)
            listener.listen(_WAITING)
        except BaseException:
            listener.close()
            raise
        return listener

    def connect(self) -> socket.socket:
        """Raises ``OSError``."""
        if self.port:
            return socket.create_connection((self.host, self.port), GREETING_S)
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
    """A window attempt for a task: the encoded job, and the encoded share of its roots."""

    job: bytes
    share: bytes


class TaskLink:
    """One end of a connection. ``close`` may come from any thread, and wakes who waits."""

    def __init__(self, connection: socket.socket) -> None:
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        _open.add(connection)

    def send(self, purpose: str, value: object) -> None:
        """Raises ``LinkError``."""
        data = signing.signed(purpose, value)
        self._write(_LENGTH.pack(len(data)) + data)

    def send_end(self) -> None:
        """Say that no more comes. Raises ``LinkError``."""
        self._write(_LENGTH.pack(0))

    def receive(self, purpose: str, most_bytes: int = _MOST_BYTES) -> Any:
        """The next message, None where no more comes. Raises ``LinkError`` and
        ``UnsignedError``."""
        (size,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if size > most_bytes:
            raise LinkError(f"a message of {size} bytes, where at most {most_bytes} are expected")
        return signing.verified(purpose, self._read(size)) if size else None

    def close(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _write(self, data: bytes) -> None:
        try:
            self._connection.sendall(data)
        except OSError as error:
            raise LinkError(f"the other end is gone: {error}") from error

    def _read(self, size: int) -> bytes:
        data = bytearray()
        try:
            while len(data) < size:
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
    """The driver's end of a connection that was just made. Raises ``EngineError`` where the other
    end does not prove to be of this run."""
    connection.settimeout(GREETING_S)
    fresh = secrets.token_bytes(_FRESH_BYTES)
    link = TaskLink(connection)
    link._write(fresh)
    told = link.receive("caller", _GREETING_BYTES)
    if told is None or told[0] != fresh:
        raise LinkError("a caller that repeats what another has said")
    connection.settimeout(None)
    return link, told[1]


def call(place: Place, caller: Caller) -> TaskLink:
    """The task's end of a new connection. Raises ``LinkError`` where there is none."""
    try:
        connection = place.connect()
        fresh = connection.recv(_FRESH_BYTES, socket.MSG_WAITALL)
    except OSError as error:
        raise LinkError(f"the driver is not reached: {error}") from error
    link = TaskLink(connection)
    link.send("caller", (fresh, caller))
    connection.settimeout(None)
    return link


_open: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _let_go() -> None:
    """What user code forks must not keep a connection open that its worker has."""
    for connection in list(_open):
        connection.close()


os.register_at_fork(after_in_child=_let_go)
