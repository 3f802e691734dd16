"""Connections through the API server into a pod: a command's output, and a port's bytes.

Both are WebSocket connections of the ``kubernetes`` package; nothing listens anywhere for them.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, cast

from kubernetes.client.exceptions import ApiException
from kubernetes.stream import ws_client
from websocket import WebSocket, WebSocketException

from millrace.errors import MillraceError
from millrace.kube.configmaps import Api

ANSWER_S = 20.0
"""How long the API server may be silent; the package itself would wait without an end."""

_ERROR_CHANNEL = 3

_answer_s: ContextVar[float] = ContextVar("answer_s")


class _Bounded(WebSocket):
    def connect(self, url: str, **options: Any) -> None:
        cast("Any", super()).connect(url, **{"timeout": _answer_s.get(ANSWER_S), **options})


# The package makes its connections by this name, and passes no time of its own on.
cast("Any", ws_client).WebSocket = _Bounded


class StreamRefusedError(MillraceError):
    """A connection into a pod that is not to be had; it says why, as the API server does."""


class StreamForbiddenError(StreamRefusedError):
    """One that this user may not have."""


def executed(
    api: Api, namespace: str, pod: str, container: str, command: Sequence[str], timeout_s: float
) -> tuple[int, str]:
    """Exit code and output of a command in a pod's container; -1 where the connection ended
    without a word of it, as it does when the container ends. Raises ``StreamRefusedError``."""
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/exec"
    query = [("container", container), ("stdout", "true"), ("stderr", "true")]
    query += [("command", word) for word in command]
    configuration, url, headers = api.stream(path, query)
    try:
        client = cast("Any", ws_client.websocket_call)(
            configuration, "GET", url, headers=headers, _preload_content=False
        )
    except ApiException as error:
        raise _refused(f"exec in pod {namespace}/{pod}", error) from error
    try:
        client.run_forever(timeout=timeout_s)
        if client.is_open():
            raise StreamRefusedError(
                f"exec in pod {namespace}/{pod}: the command did not end within {timeout_s:g} s"
            )
        said = client.read_channel(_ERROR_CHANNEL)
        return _code(said), client.read_all()
    except ApiException as error:
        raise _refused(f"exec in pod {namespace}/{pod}", error) from error
    except (OSError, WebSocketException) as error:
        raise StreamRefusedError(f"exec in pod {namespace}/{pod}: broken off ({error})") from error
    finally:
        client.close()


def forwarded(
    api: Api, namespace: str, pod: str, port: int, answer_s: float = ANSWER_S
) -> tuple[socket.socket, Any]:
    """A socket whose other end is a port of a pod, and what holds the connection: its ``close``
    ends it, its ``error(port)`` is what the node said against it. Raises ``StreamRefusedError``,
    also where there is no answer in ``answer_s``, as of a pod whose node is lost.
    """
    before = _answer_s.set(answer_s)
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/portforward"
    configuration, url, headers = api.stream(path, [("ports", str(port))])
    try:
        held = cast("Any", ws_client.portforward_call)(configuration, "GET", url, headers=headers)
    except ApiException as error:
        raise _refused(f"port {port} of pod {namespace}/{pod}", error) from error
    finally:
        _answer_s.reset(before)
    return held.socket(port), held


def _code(said: str) -> int:
    """The exit code in what the API server says at the end of a command."""
    try:
        found = json.loads(said)
        if found["status"] == "Success":
            return 0
        causes = found.get("details", {}).get("causes", [])
        return next(int(c["message"]) for c in causes if c.get("reason") == "ExitCode")
    except (ValueError, LookupError, TypeError, StopIteration):
        return -1


def _refused(what: str, error: ApiException) -> StreamRefusedError:
    # The package puts the whole answer of the handshake into one text.
    text = " ".join(str(error.reason).partition(" -+-+- ")[0].split())
    said = f"{what}: the API server does not give it ({text})"
    if "403" not in text:
        return StreamRefusedError(said)
    remedy = "you need the right to create pods/portforward or pods/exec"
    return StreamForbiddenError(f"{said}; {remedy}")
