"""Puts what a snapshot holds on state servers: objects on their owners, then the record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from millrace import crash
from millrace.errors import StateServerError
from millrace.homes.accepted import accept
from millrace.protocol.codec import encode_record
from millrace.protocol.record import object_groups
from millrace.protocol.server import NotOwner, Ok, Stamped
from millrace.protocol.types import Components, Record, Stamp, View
from millrace.snapshots.manifest import Manifest
from millrace.snapshots.places import Place
from millrace.snapshots.reading import read_part
from millrace.state.client import StateClient
from millrace.state.servers import owners_of


def put(
    clients: Mapping[str, StateClient],
    view: View,
    record: Record,
    place: Place,
    manifest: Manifest,
    pause: Callable[[], None],
) -> None:
    """Everything on its owners, then ``record``, of the snapshot, on every member (rule 18).

    ``pause`` is called between steps. Raises ``StateServerError``, ``SnapshotError``.
    """
    stamp = view.stamp()
    for client in clients.values():
        _accepted_by(client, client.stamp(stamp))
    groups = object_groups(record)
    placed = {
        part.name: owners_of(view.owners, part.name, groups.get(part.name, 0))
        for part in manifest.parts
    }
    for name, client in clients.items():
        _clear(client, stamp, {part for part, at in placed.items() if name in at})
    crash.reached("restore.cleared")
    for part in manifest.parts:
        pause()
        data = read_part(place, manifest, part)
        for owner in placed[part.name]:
            reply = clients[owner].put(stamp, [(part.name, data)])
            _accepted_by(clients[owner], reply)
    crash.reached("restore.put")
    for client in clients.values():
        _accepted_by(client, client.write_record(stamp, record.tag, encode_record(record)))
    crash.reached("restore.recorded")


def in_new_life(manifest: Manifest, components: Components | None) -> Record:
    """The snapshot's record for a topology with other numbers of its components: those of one name
    are the same, the others are as if an edit had removed or added them."""
    record = manifest.decoded
    if components is None:
        return replace(record, components=None)
    before = record.components or accept(None, dict(manifest.document)).components

    def named(section: str) -> dict[str, int]:
        known: Mapping[str, int] = getattr(before, section)
        now: Mapping[str, int] = getattr(components, section)
        return {name: now.get(name, number) for name, number in known.items()}

    same = Components(components.edit, named("sources"), named("processors"), named("sinks"))
    return replace(record, components=same)


def _clear(client: StateClient, stamp: Stamp, keep: set[str]) -> None:
    """Make room: what was sealed behind the snapshot may fill the memory that a server may take."""
    listed = client.list_objects(stamp)
    if isinstance(listed, NotOwner):
        _accepted_by(client, listed)
        return
    if gone := [name for name in listed.names if name not in keep]:
        _accepted_by(client, client.delete(stamp, gone))


def _accepted_by(client: StateClient, reply: Any) -> None:
    if isinstance(reply, Ok | Stamped):
        return
    why = f" ({reply.why})" if isinstance(reply, NotOwner) else ""
    raise StateServerError(
        f"state server {client.address.shown} did not take what is restored{why}: somebody else "
        "uses it; end that, and restore again"
    )
