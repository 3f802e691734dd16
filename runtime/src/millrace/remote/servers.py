"""The state servers of a topology on a cluster, reached through the API server.

Each one's port is forwarded to a Unix socket in a folder of one's own: nothing listens on a port,
and the clients are those of a run on this machine.
"""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from millrace.errors import StateServerError
from millrace.homes import pods as names
from millrace.homes.passwords import PasswordOf, lines, of_root_key, shared
from millrace.homes.pods import Role
from millrace.kube.configmaps import Api
from millrace.kube.streams import StreamRefusedError, forwarded
from millrace.protocol.types import Member
from millrace.remote.cluster import ClusterError
from millrace.remote.topology import RemoteTopology, number_of
from millrace.state.client import StateAddress, StateClient
from millrace.state.errors import UnreachableError
from millrace.topology.secretrefs import SecretRef

ANSWER_S = 20.0

_CHUNK = 1 << 18


@contextmanager
def reachable(topology: RemoteTopology, answer_s: float = ANSWER_S) -> Iterator[list[StateClient]]:
    """Clients of all state servers that hold the truth, each in the life that it has now.

    Raises ``StateServerError`` where one is not alive, and ``ClusterError`` where the API server
    does not give what that takes: the secret's password, and ports of pods.
    """
    members = members_of(topology)
    password_of = _passwords(topology)
    cluster = topology.cluster
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-")))
        clients, ways = [], []
        for member in members:
            number = number_of(member.name)
            pod = names.pod_name(topology.name, Role.STATE_SERVER, number)
            try:
                way = Way(cluster.api, cluster.namespace, pod, folder / str(number))
            except StreamRefusedError as error:
                raise ClusterError(f"{cluster.context}: {error}") from error
            stack.callback(way.close)
            ways.append(way)
            url, password = f"unix://{way.path}", password_of(member.name)
            address = StateAddress(member.name, url, member.run_id, password)
            client = StateClient(address, topology.uid, timeout_s=answer_s)
            stack.callback(client.close)
            clients.append(client)
        try:
            yield clients
        except UnreachableError as error:
            why = next((way.fault for way in ways if way.fault), None)
            raise error if why is None else StateServerError(f"{error}: {why}") from error


def members_of(topology: RemoteTopology) -> list[Member]:
    """The members of the last open view, as the operator saw them last.

    Raises ``StateServerError`` where one is not alive, ``ClusterError`` before the first view.
    """
    if topology.model.spec.state_servers.url is not None:
        raise ClusterError(
            f"{topology.name}: spec.stateServers.url names a server of its own, which the API "
            "server does not lead to"
        )
    inbox = topology.inbox
    with topology.speaking():
        proposal = inbox.proposal()
    alive = {m.name: m for m in proposal.members} if proposal is not None else {}
    view = topology.view()
    if view is None:
        raise ClusterError(
            f"{topology.name} in {topology.cluster.shown}: no driver has made a view yet, so there "
            "is no state; look at millrace status"
        )
    missing = [member.name for member in view.last_open if member.name not in alive]
    if missing:
        raise StateServerError(
            f"{topology.name}: state server {missing[0]} is not alive at the moment; try again in "
            "a few seconds"
        )
    return [alive[member.name] for member in view.last_open]


def _passwords(topology: RemoteTopology) -> PasswordOf:
    """Each server's own; one that they share where there is no root key. Of both the first line is
    used. Raises ``ClusterError``."""
    name = names.secret(topology.name)
    keys = topology.cluster.secret_keys(name)
    if names.ROOT_KEY in keys:
        text = topology.cluster.secret(SecretRef(name=name, key=names.ROOT_KEY))
        return of_root_key(_first(text), topology.uid)
    return shared(_first(topology.cluster.secret(SecretRef(name=name, key=names.PASSWORD_KEY))))


def _first(text: str) -> str:
    return next(iter(lines(text)), "")


class Way:
    """A Unix socket whose connections lead to the port of a pod, each by one of its own.

    The first is opened at once, so that a refusal is known: raises ``StreamRefusedError``.
    ``fault`` is what stood in the way of a later one.
    """

    def __init__(
        self, api: Api, namespace: str, pod: str, path: Path, port: int = names.STATE_PORT
    ) -> None:
        self.path = path
        self.fault: str | None = None
        self._api = api
        self._pod = (namespace, pod)
        self._port = port
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
        there, held = forwarded(self._api, *self._pod, self._port)
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
