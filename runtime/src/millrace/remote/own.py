"""A state server of the user's own, read through a pod of the topology that knows its password.

``pods.reading`` is the other end. The driver is asked first, and an acker where there is none, as
behind the end of all input.
"""

from __future__ import annotations

import http.client
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlencode

from millrace.errors import MillraceError, StateServerError
from millrace.homes import pods
from millrace.homes.passwords import PasswordOf
from millrace.homes.pods import Role
from millrace.kube.streams import StreamRefusedError
from millrace.protocol.server import (
    MISSING,
    Found,
    GetReply,
    Missing,
    NotOwner,
    Reason,
    Stamped,
    StampReply,
)
from millrace.protocol.types import Tag
from millrace.remote.cluster import ClusterError
from millrace.remote.overview import driver_of
from millrace.remote.topology import PodRow, RemoteTopology
from millrace.remote.ways import Way
from millrace.state.client import StateAddress
from millrace.state.errors import UnreachableError
from millrace.state.own import NAME


class OwnServerReader:
    """What ``pod`` tells of the server at ``address``; not for several threads at once."""

    def __init__(
        self, pod: str, way: Way, password: str | None, address: StateAddress, answer_s: float
    ) -> None:
        self.address = address
        self._pod = pod
        self._way = way
        self._password = password
        self._connection = _Connection(way.path, answer_s)

    def peek(self) -> StampReply:
        """As ``StateClient.peek``. Raises ``StateServerError``."""
        status, body, headers = self._ask(pods.RECORD_PATH)
        if status == HTTPStatus.CONFLICT:
            return NotOwner(Reason(body.decode()))
        if status == HTTPStatus.NO_CONTENT:
            return Stamped(None, None)
        return Stamped(body, Tag.read(headers[pods.TAG_HEADER]))

    def get_parts(self, stamp: None, parts: Sequence[tuple[str, int, int]]) -> GetReply:
        """As ``StateClient.get_parts``. Raises ``StateServerError``."""
        found: list[Found | Missing] = []
        for name, start, size in parts:
            reply = self._part(name, start, size)
            if isinstance(reply, NotOwner):
                return reply
            found.append(reply)
        return tuple(found)

    def close(self) -> None:
        """End all connections."""
        self._connection.close()
        self._way.close()

    def _part(self, name: str, start: int, size: int) -> Found | Missing | NotOwner:
        held: list[bytes] = []
        for begin in range(start, start + size, pods.PART_BYTES):
            step = min(pods.PART_BYTES, start + size - begin)
            query = urlencode({"name": name, "start": begin, "size": step})
            status, body, _ = self._ask(f"{pods.OBJECT_PATH}?{query}")
            if status == HTTPStatus.CONFLICT:
                return NotOwner(Reason(body.decode()))
            if status == HTTPStatus.NO_CONTENT:
                return MISSING
            held.append(body)
            if len(body) < step:
                break
        return Found(b"".join(held))

    def _ask(self, path: str) -> tuple[int, bytes, http.client.HTTPMessage]:
        try:
            status, body, headers = self._answer(path)
        except (OSError, http.client.HTTPException) as error:
            why = self._way.fault or error
            raise UnreachableError(
                f"state server {self.address.shown}: pod {self._pod}, which leads there, does not "
                f"answer readers: {why}; a pod of an older release never does until it is made anew"
            ) from error
        if status in (HTTPStatus.OK, HTTPStatus.NO_CONTENT, HTTPStatus.CONFLICT):
            return status, body, headers
        text = body.decode(errors="replace").strip()
        if status == HTTPStatus.UNAUTHORIZED:
            text = (
                "it does not know the passwords of the topology's Secret, which come to pods up to "
                "two minutes after a change; try again"
            )
        raise StateServerError(f"pod {self._pod}: {text or status}")

    def _answer(self, path: str) -> tuple[int, bytes, http.client.HTTPMessage]:
        given = {"Authorization": f"{pods.READER} {self._password}"}
        for again in (True, False):
            try:
                self._connection.request("GET", path, headers=given)
                answer = self._connection.getresponse()
                return answer.status, answer.read(), answer.headers
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                # One on which nothing was asked for a while is closed by the other end.
                if isinstance(error, TimeoutError) or not again:
                    raise
        raise AssertionError(path)


class _Connection(http.client.HTTPConnection):
    """To a Unix socket."""

    def __init__(self, path: Path, answer_s: float) -> None:
        super().__init__("pod", timeout=answer_s)
        self._path = path
        self._answer_s = answer_s

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self._answer_s)
        self.sock.connect(str(self._path))


@contextmanager
def through_pod(
    topology: RemoteTopology, password_of: PasswordOf, answer_s: float
) -> Iterator[OwnServerReader]:
    """A reader of the server that ``spec.stateServers.url`` names, through the first pod that
    reaches it.

    Raises ``ClusterError`` where no pod runs that could, or the API server leads to none, and
    ``StateServerError`` where none of them reaches it.
    """
    rows = _leading(topology)
    troubles: list[MillraceError] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-")))
        for number, row in enumerate(rows):
            try:
                reader = _reader(topology, row, folder / str(number), password_of, answer_s)
                stack.callback(reader.close)
                reader.peek()
            except MillraceError as error:
                troubles.append(error)
                continue
            yield reader
            return
        raise troubles[0]


def _leading(topology: RemoteTopology) -> list[PodRow]:
    """Pods that know the server, the likeliest first."""
    rows = topology.pods()
    driver = driver_of(topology, rows)
    ackers = [row for row in rows if row.role == Role.ACKER and row.alive and not row.ending]
    found = [*([] if driver is None else [driver]), *ackers]
    if not found:
        raise ClusterError(
            f"{topology.name} in {topology.cluster.shown}: the server of spec.stateServers.url is "
            "read through the pods of the driver or of an acker, and none of them runs; look at "
            "millrace status"
        )
    return found


def _reader(
    topology: RemoteTopology, row: PodRow, path: Path, password_of: PasswordOf, answer_s: float
) -> OwnServerReader:
    cluster, url = topology.cluster, topology.model.spec.state_servers.url
    assert url is not None
    try:
        way = Way(cluster.api, cluster.namespace, row.name, path, pods.READING_PORT, answer_s)
    except StreamRefusedError as error:
        raise ClusterError(f"{cluster.context}: {error}") from error
    return OwnServerReader(
        row.name, way, password_of(row.name), StateAddress(NAME, url, ""), answer_s
    )
