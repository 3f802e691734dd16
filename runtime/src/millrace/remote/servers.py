"""The state servers of a topology on a cluster, reached through the API server.

Each one's port is forwarded to a Unix socket in a folder of one's own: nothing listens on a port,
and the clients are those of a run on this machine. One of the user's own lets nobody but pods in:
it is read through them (``remote.own``).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from millrace.errors import StateServerError
from millrace.homes import pods as names
from millrace.homes.members import Patience, await_members
from millrace.homes.passwords import PasswordOf, lines, of_root_key, shared
from millrace.homes.pods import Role
from millrace.kube.streams import StreamRefusedError
from millrace.protocol.types import Member
from millrace.remote.cluster import ClusterError
from millrace.remote.own import through_pod
from millrace.remote.topology import RemoteTopology, number_of
from millrace.remote.ways import Way
from millrace.state.client import StateAddress, StateClient
from millrace.state.errors import UnreachableError
from millrace.state.readable import Readable
from millrace.topology.secretrefs import SecretRef

ANSWER_S = 20.0

PATIENCE_S = 15.0
"""A driver goes on without a server that is gone, once the operator has seen that, in less."""

LOOK_S = 0.5


@contextmanager
def reachable(topology: RemoteTopology, answer_s: float = ANSWER_S) -> Iterator[Sequence[Readable]]:
    """Who reads all state servers that hold the truth, each in the life that it has now: clients of
    them, or one who asks a pod for what lies on the server of ``spec.stateServers.url``.

    Raises ``StateServerError`` where one is not alive, and ``ClusterError`` where the API server
    does not give what that takes: the secret's password, and ports of pods.
    """
    if topology.model.spec.state_servers.url is not None:
        with through_pod(topology, _passwords(topology), answer_s) as reader:
            yield [reader]
        return
    with _clients(topology, answer_s) as clients:
        yield clients


@contextmanager
def _clients(topology: RemoteTopology, answer_s: float) -> Iterator[list[StateClient]]:
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
                path = folder / str(number)
                way = Way(cluster.api, cluster.namespace, pod, path, answer_s=answer_s)
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
    """The members of the last open view, as the operator saw them last. One that is not alive is
    waited for until the view is another one, or it is back.

    Raises ``StateServerError`` where neither comes, ``ClusterError`` before the first view.
    """

    def look() -> tuple[list[str], dict[str, Member]]:
        with topology.speaking():
            proposal = topology.inbox.proposal()
        alive: dict[str, Member] = {}
        if proposal is not None:
            # Those that leave serve until the view is open without them.
            alive = {m.name: m for m in (*(proposal.leaving or ()), *proposal.members)}
        view = topology.view()
        if view is None:
            raise ClusterError(
                f"{topology.name} in {topology.cluster.shown}: no driver has made a view yet, so "
                "there is no state; look at millrace status"
            )
        return [member.name for member in view.last_open], alive

    return await_members(
        look,
        Patience(PATIENCE_S, LOOK_S),
        lambda name: f"{topology.name}: state server {name}",
    )


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
