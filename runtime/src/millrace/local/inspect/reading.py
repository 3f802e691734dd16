"""What the state servers of a topology hold, for those who read beside the driver.

Reading goes to the state servers of the living run; where none lives, the embedded servers are
started for a moment, and a run that starts meanwhile waits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pydantic import ValidationError

from millrace import checked
from millrace.errors import StateServerError, WorkFolderError
from millrace.homes.members import Patience, await_members
from millrace.homes.settings import PASSWORD_VARIABLE, decode_settings
from millrace.local import scratch
from millrace.local.launch import members_of, state_servers
from millrace.local.takeover import held_briefly
from millrace.local.workdir import WorkFolder
from millrace.protocol.codec import decode_record
from millrace.protocol.server import Found, Stamped
from millrace.protocol.types import Member, Record, Tag
from millrace.state.client import StateAddress, StateClient
from millrace.state.embedded import password_in
from millrace.state.errors import UnreachableError
from millrace.state.own import own_server
from millrace.state.readable import Readable
from millrace.state.servers import WHOLE
from millrace.topology.model import StreamTopology

PATIENCE_S = 10.0
"""A driver goes on without a server that is gone in less."""

LOOK_S = 0.2


@contextmanager
def reachable(folder: WorkFolder) -> Iterator[list[StateClient]]:
    """Clients of all state servers. Raises ``StateServerError``, ``WorkFolderError``."""
    with ExitStack() as stack:
        free = stack.enter_context(held_briefly(folder.path))
        addresses = start_servers(folder, stack) if free else _of_the_run(folder)
        clients = [StateClient(address, folder.uid, timeout_s=5.0) for address in addresses]
        for client in clients:
            stack.callback(client.close)
        yield clients


def _of_the_run(folder: WorkFolder) -> list[StateAddress]:
    """The members of the view, each in the life that it has now."""

    def look() -> tuple[list[str], dict[str, Member]]:
        proposal = folder.inbox.proposal()
        alive = {m.name: m for m in proposal.members} if proposal is not None else {}
        names = members_of(folder, open_ones=True) or list(alive)
        if not names:
            raise StateServerError(
                f"{folder.identity.name}: no state server of the run is alive at the moment; try "
                "again in a few seconds"
            )
        return names, alive

    found = await_members(
        look,
        Patience(PATIENCE_S, LOOK_S),
        lambda name: f"{folder.identity.name}: state server {name} of the run",
    )
    return [StateAddress.of(member, _password(folder, member.name)) for member in found]


def _password(folder: WorkFolder, name: str) -> str | None:
    """Of the user's own server what the topology says of it, else what the server was started with,
    by whatever release. A folder of its name may be left of a server that was there before."""
    kept = password_in(folder.path / name)
    try:
        wanted = topology_of(folder).spec.state_servers
    except WorkFolderError:
        if kept is None:
            raise
        return kept
    if wanted.url is not None:
        return own_server(wanted)[1]
    return kept if kept is not None else os.environ.get(PASSWORD_VARIABLE)


def start_servers(folder: WorkFolder, stack: ExitStack) -> list[StateAddress]:
    """Start the topology's state servers until ``stack`` is closed; the folder must be held."""
    addresses = []
    known = members_of(folder, open_ones=True)
    sockets = stack.enter_context(scratch.temporary(folder.path))
    for server in state_servers(folder, topology_of(folder), sockets):
        if known and server.name not in known:
            continue
        stack.callback(server.stop)
        addresses.append(server.start())
    return addresses


def topology_of(folder: WorkFolder) -> StreamTopology:
    """The topology as it ran last. Raises ``WorkFolderError`` where that cannot be read."""
    try:
        return StreamTopology.model_validate(checked.decode(folder.topology.read_bytes()))
    except (OSError, checked.DamagedError, ValidationError) as error:
        count = getattr(error, "error_count", None)
        why = f"{count()} problems" if count is not None else error
        raise WorkFolderError(
            f"{folder.topology}: cannot be read ({why}), so its state servers are not known; run "
            "the topology once with millrace run"
        ) from error


def base_of(folder: WorkFolder) -> Path:
    """What relative paths of the topology as it ran last begin at: the folder of its file, or where
    it was run from, where it came by a pipe. Raises ``WorkFolderError`` where that cannot be read.
    """
    try:
        return Path(decode_settings(folder.driver.read_bytes(), folder.path).folder)
    except FileNotFoundError:
        return Path(folder.identity.topology).parent  # restored, and not run yet
    except (OSError, checked.DamagedError) as error:
        raise WorkFolderError(
            f"{folder.driver}: cannot be read ({error}); run the topology once with millrace run"
        ) from error


def committed_record(clients: Sequence[Readable]) -> Record | None:
    """The record that counts; None before the first window.

    It is the one that is least far among those of all members: one that is further is on its way to
    the others, and may never count. How far it is the windows say before the tag: what a driver
    that died told one member alone has a lower tag than what the next one writes to the others,
    without it. A server that has lost its file says nothing.
    """
    records = []
    for client in clients:
        reply = client.peek()
        if not isinstance(reply, Stamped):
            raise _started_again(client)
        if reply.record is not None:
            records.append(decode_record(reply.record))
    return min(records, key=_progress, default=None)


def _progress(record: Record) -> tuple[int, int, int, Tag]:
    return record.tag.timeline, record.sealed, record.published, record.tag


def fetch(
    clients: Sequence[Readable], name: str, is_intact: Callable[[bytes], bool] = lambda _: True
) -> bytes | None:
    """A whole object, as ``fetch_parts`` finds it."""
    return fetch_parts(clients, [(name, 0, WHOLE)], lambda _, data: is_intact(data))[0]


def fetch_parts(
    clients: Sequence[Readable],
    parts: Sequence[tuple[str, int, int]],
    is_intact: Callable[[int, bytes], bool] = lambda _, __: True,
) -> list[bytes | None]:
    """Of each object (name, start, size) so many bytes, from the first server that has it as it
    was, of which ``is_intact`` judges by its place in ``parts``; where none has, as it is there.
    None where every server is without it.

    Raises ``StateServerError`` where one that does not answer may have what is missing.
    """
    found: list[bytes | None] = [None] * len(parts)
    damaged: dict[int, bytes] = {}
    missing = list(range(len(parts)))
    silent: StateServerError | None = None
    for client in clients:
        if not missing:
            break
        try:
            reply = client.get_parts(None, [parts[at] for at in missing])
        except UnreachableError as error:
            silent = error
            continue
        if not isinstance(reply, tuple):
            silent = _started_again(client)
            continue
        for at, one in zip(missing, reply, strict=True):
            if isinstance(one, Found) and is_intact(at, one.data):
                found[at] = one.data
            elif isinstance(one, Found):
                damaged.setdefault(at, one.data)
        missing = [at for at in missing if found[at] is None]
    if missing and silent is not None:
        raise silent
    for at in missing:
        found[at] = damaged.get(at)
    return found


def _started_again(client: Readable) -> StateServerError:
    return StateServerError(
        f"state server {client.address.shown} was started again just now; try again"
    )
