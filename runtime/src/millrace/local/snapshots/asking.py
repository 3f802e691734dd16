"""Has a snapshot taken: by the driver of the living run, else here, of what the last one left."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime

from millrace.clock import Clock
from millrace.engine.driver.stores import is_intact
from millrace.errors import SnapshotError, StateServerError
from millrace.homes.documents import Ask, Request
from millrace.homes.stores import Follower
from millrace.local.accepted import read_accepted
from millrace.local.inspect.reading import fetch, start_servers, topology_of
from millrace.local.snapshots.places import absolute, place_of_folder
from millrace.local.snapshots.unfinished import refuse_unfinished
from millrace.local.takeover import held_briefly
from millrace.local.workdir import WorkFolder
from millrace.protocol.codec import decode_record
from millrace.protocol.server import Stamped
from millrace.protocol.types import Phase, Record
from millrace.snapshots.manifest import Manifest, check_name
from millrace.snapshots.places import Place
from millrace.snapshots.reading import find
from millrace.snapshots.writing import Subject, write_snapshot
from millrace.state.client import StateClient
from millrace.state.viewfile import ViewFile

_LOOK_S = 0.1

_ONCE = "run the topology once with millrace run, and ask again"


def new_name(clock: Clock) -> str:
    """A name that sorts by the time of asking, and that nobody else gives."""
    now = datetime.fromtimestamp(clock.now_s(), UTC)
    return f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def take(folder: WorkFolder, name: str, to: str | None, timeout_s: float, clock: Clock) -> Manifest:
    """Take a snapshot and wait for it.

    Raises ``SnapshotError`` where it failed, with the reason, or took longer; it may be taken later
    then, where the driver has it in hand or behind another.
    """
    check_name(name)
    place = place_of_folder(folder, to)
    known = find(place, name)
    if known is not None:
        raise SnapshotError(
            f"snapshot {name}: there is one of that name in {place.shown}, behind window "
            f"{known.window}; choose another name, or delete that one"
        )
    follower = folder.journal.follow()
    told: list[str] = []
    token = folder.inbox.ask(Request(Ask.SNAPSHOT, name=name, to=absolute(to)))
    try:
        end_s = clock.monotonic_s() + timeout_s
        while clock.monotonic_s() < end_s:
            open_ = any(one.token == token for one in folder.inbox.requests())
            found = find(place, name)
            if found is not None and found.asked == token:
                return found
            told += _failures(follower, name)
            if not open_:
                raise SnapshotError(_failed(folder, name, told))
            with held_briefly(folder.path) as free:
                if free:
                    return _take_here(folder, place, name, token, clock)
            time.sleep(_LOOK_S)
    finally:
        with suppress(OSError):
            folder.inbox.done(token)
    raise SnapshotError(
        f"snapshot {name}: was not taken within {timeout_s:g} s; a snapshot waits until the sinks "
        "show what is sealed, and may still be taken then: look at millrace status and millrace "
        "snapshot list, or ask again with a longer --timeout"
    )


def _failures(follower: Follower, name: str) -> Iterator[str]:
    """What the driver told of a snapshot that it could not take."""
    for event in follower.new():
        if event.kind == "SnapshotFailed" and event.text.startswith(f"snapshot {name} "):
            yield event.text


def _failed(folder: WorkFolder, name: str, told: Sequence[str]) -> str:
    if told:
        return told[-1]
    return f"snapshot {name} was not taken; {folder.logs / 'driver.log'} says why"


def _take_here(folder: WorkFolder, place: Place, name: str, token: str, clock: Clock) -> Manifest:
    """No run is alive, and none starts until the work folder is let go."""
    refuse_unfinished(folder.path)
    accepted = read_accepted(folder.accepted, folder.topology)
    if accepted is None:
        raise SnapshotError(f"{folder.identity.name}: nothing has run here; {_ONCE}")
    with servers_started(folder) as clients:
        record = _settled(folder, clients)
        if record.components != accepted.components:
            raise SnapshotError(
                f"{folder.identity.name}: the last edit of the topology is not applied; {_ONCE}"
            )

        def read(object_: str, _: int, digest: str) -> bytes:
            data = fetch(clients, object_, lambda held: is_intact(object_, held, digest))
            if data is None:
                raise StateServerError(f"object {object_} is on no state server")
            return data

        key_groups = topology_of(folder).spec.key_groups
        subject = Subject(
            folder.identity.name, accepted.topology, key_groups, record, clock.now_s(), token
        )
        return write_snapshot(place, name, subject, read, lambda: None)


@contextmanager
def servers_started(folder: WorkFolder) -> Iterator[list[StateClient]]:
    """Clients of the topology's state servers, started for a while; the folder must be held."""
    with ExitStack() as stack:
        clients = [StateClient(one, folder.uid) for one in start_servers(folder, stack)]
        for client in clients:
            stack.callback(client.close)
        yield clients


def _settled(folder: WorkFolder, clients: Sequence[StateClient]) -> Record:
    """The committed record, where nobody has to settle anything first."""
    name = folder.identity.name
    _, view = ViewFile(folder.view).read()
    if view is None or view.phase is not Phase.OPEN:
        raise SnapshotError(f"{name}: its state servers are not settled; {_ONCE}")
    held = {}
    for client in clients:
        reply = client.peek()
        if isinstance(reply, Stamped) and reply.record is not None:
            record = decode_record(reply.record)
            held[client.address.name] = record
    if set(held) != {member.name for member in view.target}:
        raise SnapshotError(f"{name}: other state servers hold its record; {_ONCE}")
    if len({record.tag for record in held.values()}) > 1:
        raise SnapshotError(f"{name}: its state servers hold different records; {_ONCE}")
    record = next(iter(held.values()))
    if record.tag.epoch < view.open_epoch:
        raise SnapshotError(f"{name}: its state server holds an older record; {_ONCE}")
    if record.unpublished:
        raise SnapshotError(
            f"{name}: windows up to {record.sealed} are sealed, and not all of them are shown by "
            f"the sinks; {_ONCE}"
        )
    return record
