"""A process that is prepared before it is asked for takes the place of the one that asks.

Who needs a process that loads for seconds starts one *ahead*, with a socket at which it will answer
when it has loaded. Somebody else, who knows nothing of that, starts a process of the same program
later: it gives its standard streams, arguments and environment to the one ahead, and only stays
until that one ends::

    starter ------ starts ------> ahead: loads, answers, goes on as the other
                                    ^  streams, arguments, environment
    somebody else -- starts --> the other: waits for the answer, then for the end

Where none is at the socket, or one that began in another environment, the other goes on by itself.
Nothing but the standard library is imported here: who hands over has nothing to load.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import sys
from collections.abc import Mapping
from contextlib import suppress

_STREAMS = (0, 1, 2)
_TAKEN = b"k"
_LENGTH = struct.Struct("!I")
_MOST_BYTES = 4 << 20
_ANSWER_S = 10.0
_LOADED_S = 120.0
"""What the one ahead takes to load, on a machine with much to do."""

_READ_AT_START = (
    "ARROW_",
    "LANG",
    "LC_",
    "LD_",
    "MALLOC_",
    "MKL_",
    "NUMBA_",
    "OMP_",
    "OPENBLAS_",
    "PYTHONHASHSEED",
    "TZ",
)
"""What Python and libraries read as they are loaded: the process ahead has to begin with it."""


def listening(path: str) -> socket.socket:
    """The socket that a process ahead inherits, and the only one that may have it open: with its
    end nobody waits any more. Raises ``OSError``."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        listener.listen(1)
    except BaseException:
        listener.close()
        raise
    return listener


def hand_over(path: str) -> bool:
    """Have the process ahead at ``path`` take this one's place; returns when that has ended. False
    where none takes it: this process is as it was."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_LOADED_S)
            connection.connect(path)
            if not _ours(connection):
                return False
            told = {"environment": dict(os.environ), "arguments": sys.argv[1:]}
            data = json.dumps(told).encode()
            socket.send_fds(connection, [_LENGTH.pack(len(data))], list(_STREAMS))
            connection.sendall(data)
            if connection.recv(1) != _TAKEN:
                return False
            connection.settimeout(None)
            with suppress(OSError):
                connection.recv(1)
            return True
    except OSError:
        return False


def take_over(listener: socket.socket) -> bool:
    """Wait for a process that hands over, and take its place. False where standard input, a pipe
    from who started this one, is closed before that, or where the other began in an environment
    that this one does not have. Raises ``OSError``."""
    with listener:
        asks = listener.fileno()
        ready, _, _ = select.select([asks, 0], [], [])
        os.unlink(listener.getsockname())
        if asks not in ready:
            return False
        connection, _ = listener.accept()
    connection.settimeout(_ANSWER_S)
    if not _ours(connection) or not _received(connection):
        connection.close()
        return False
    # Closed by the end of this process, and of its forks, alone: that is what the other waits for.
    connection.detach()
    return True


def _received(connection: socket.socket) -> bool:
    head, streams, _, _ = socket.recv_fds(connection, _LENGTH.size, len(_STREAMS))
    try:
        if len(head) != _LENGTH.size or len(streams) != len(_STREAMS):
            return False
        (size,) = _LENGTH.unpack(head)
        if size > _MOST_BYTES:
            return False
        data = b""
        while len(data) < size:
            data += (part := connection.recv(size - len(data)))
            if not part:
                return False
        told = json.loads(data)
        environment = told["environment"]
        if _loaded_with(environment) != _loaded_with(os.environ):
            return False
        for stream, number in zip(streams, _STREAMS, strict=True):
            os.dup2(stream, number)
    finally:
        for stream in streams:
            os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = told["arguments"]
    for place in reversed(environment.get("PYTHONPATH", "").split(os.pathsep)):
        if place and place not in sys.path:
            sys.path.insert(1, place)
    connection.sendall(_TAKEN)
    return True


def _loaded_with(environment: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in environment.items() if k.startswith(_READ_AT_START)}


def _ours(connection: socket.socket) -> bool:
    """Whether the process at the other end is this user's."""
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", told)
    return bool(user == os.geteuid())
