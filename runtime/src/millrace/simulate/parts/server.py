"""Pure model of one state server: what the Lua scripts of ``state.scripts`` do, without I/O.

The simulator runs the protocol against it, and a conformance test holds it to a real server. What
a crash keeps: everything up to the last fsync, and any prefix of the writes after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from millrace.protocol.server import (
    MISSING,
    OK,
    Found,
    GetReply,
    Listed,
    ListReply,
    NotOwner,
    PutReply,
    Reason,
    Stamped,
    StampReply,
    TagTooLow,
    WriteReply,
)
from millrace.protocol.types import Stamp, Tag


@dataclass(slots=True)
class _Data:
    """What the append-only file of a server can bring back."""

    record: bytes | None
    tag: Tag | None
    objects: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class ServerFile:
    """A copy of a server's append-only file."""

    record: bytes | None
    tag: Tag | None
    objects: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class _Write:
    """One atomic entry of the append-only file."""

    record: tuple[bytes, Tag] | None = None
    put: tuple[tuple[str, bytes], ...] = ()
    deleted: tuple[str, ...] = ()

    def apply(self, data: _Data) -> None:
        if self.record is not None:
            data.record, data.tag = self.record
        data.objects.update(self.put)
        for name in self.deleted:
            data.objects.pop(name, None)


class ServerModel:
    """One state server of one topology; not safe for use by several threads.

    ``fsync_always`` makes every write durable before it is answered (``appendfsync always``);
    otherwise writes are durable from the next ``fsync`` on.
    """

    def __init__(self, name: str, run_id: str, *, fsync_always: bool = True) -> None:
        self.name = name
        self.run_id = run_id
        self.stamp_in_effect: Stamp | None = None
        self._life = ""
        self._fsync_always = fsync_always
        self._data = _Data(None, None, {})
        self._durable = _Data(None, None, {})
        self._unsynced: list[_Write] = []

    # -- operations, as the scripts have them

    def stamp(self, run_id: str, stamp: Stamp, life: str = "") -> StampReply:
        """Rule 6: accepted when at least the current one, and where it is equal to that of the
        same life; answers with the record atomically."""
        if run_id != self.run_id:
            return NotOwner(Reason.RUN_ID)
        held = self.stamp_in_effect
        if held is not None and (stamp < held or (stamp == held and life != self._life)):
            return NotOwner.under(held, stamp)
        self.stamp_in_effect, self._life = stamp, life
        return Stamped(self._data.record, self._data.tag)

    def write_record(self, run_id: str, stamp: Stamp, tag: Tag, record: bytes) -> WriteReply:
        """Rule 7: under the equal stamp, and only with a tag above the stored one."""
        if (refusal := self._refuse(run_id, stamp)) is not None:
            return refusal
        if self._data.tag is not None and tag <= self._data.tag:
            return TagTooLow(self._data.tag)
        self._write(_Write(record=(record, tag)))
        return OK

    def put(self, run_id: str, stamp: Stamp, objects: Iterable[tuple[str, bytes]]) -> PutReply:
        """Store objects, all or none; the same name again replaces it."""
        if (refusal := self._refuse(run_id, stamp)) is not None:
            return refusal
        self._write(_Write(put=tuple(objects)))
        return OK

    def get(self, run_id: str, stamp: Stamp | None, names: Sequence[str]) -> GetReply:
        """Objects in the order of ``names``; without a stamp only the run id is compared."""
        refusal = self._refuse_reader(run_id) if stamp is None else self._refuse(run_id, stamp)
        if refusal is not None:
            return refusal
        held = self._data.objects
        return tuple(Found(held[n]) if n in held else MISSING for n in names)

    def get_parts(
        self, run_id: str, stamp: Stamp | None, parts: Sequence[tuple[str, int, int]]
    ) -> GetReply:
        """Of each object (name, start, size) so many bytes; otherwise as ``get``."""
        reply = self.get(run_id, stamp, [name for name, _, _ in parts])
        if isinstance(reply, NotOwner):
            return reply
        pairs = zip(reply, parts, strict=True)
        return tuple(
            Found(f.data[at : at + n]) if isinstance(f, Found) else f for f, (_, at, n) in pairs
        )

    def peek(self, run_id: str) -> StampReply:
        """The record, for whoever only wants to look: stamps nothing, needs no stamp."""
        refusal = self._refuse_reader(run_id)
        return refusal or Stamped(self._data.record, self._data.tag)

    def list_objects(self, run_id: str, stamp: Stamp) -> ListReply:
        """Names of all objects."""
        return self._refuse(run_id, stamp) or Listed(tuple(sorted(self._data.objects)))

    def delete(self, run_id: str, stamp: Stamp, names: Iterable[str]) -> PutReply:
        """Delete objects; one that is not there is no error."""
        if (refusal := self._refuse(run_id, stamp)) is not None:
            return refusal
        self._write(_Write(deleted=tuple(names)))
        return OK

    # -- the machine below

    def fsync(self) -> None:
        """Make all writes so far durable."""
        for write in self._unsynced:
            write.apply(self._durable)
        self._unsynced.clear()

    @property
    def unsynced(self) -> int:
        """Number of writes that a crash may lose."""
        return len(self._unsynced)

    def restart(self, run_id: str, kept: int | None = None) -> None:
        """Crash and start on the same file as a new incarnation.

        ``kept`` is how many of the writes since the last fsync the file has (None: all).
        """
        for write in self._unsynced[:kept]:
            write.apply(self._durable)
        self._unsynced.clear()
        durable = self._durable
        self._data = _Data(durable.record, durable.tag, dict(durable.objects))
        self.run_id = run_id
        self.stamp_in_effect = None

    def file(self) -> ServerFile:
        """The append-only file as it is on disk, whatever happens to the server afterwards."""
        durable = self._durable
        return ServerFile(durable.record, durable.tag, tuple(durable.objects.items()))

    def restart_on(self, run_id: str, file: ServerFile) -> None:
        """Start as a new incarnation on a file that was put back from a copy."""
        self._durable = _Data(file.record, file.tag, dict(file.objects))
        self._unsynced.clear()
        self.restart(run_id)

    def restart_empty(self, run_id: str) -> None:
        """Start as a new incarnation on a new file."""
        self._durable = _Data(None, None, {})
        self._unsynced.clear()
        self.restart(run_id)

    def _write(self, write: _Write) -> None:
        write.apply(self._data)
        if self._fsync_always:
            write.apply(self._durable)
        else:
            self._unsynced.append(write)

    def _refuse(self, run_id: str, stamp: Stamp) -> NotOwner | None:
        if run_id != self.run_id:
            return NotOwner(Reason.RUN_ID)
        if self.stamp_in_effect is None:
            return NotOwner(Reason.UNSTAMPED)
        if stamp != self.stamp_in_effect:
            return NotOwner.under(self.stamp_in_effect, stamp)
        return None

    def _refuse_reader(self, run_id: str) -> NotOwner | None:
        return None if run_id == self.run_id else NotOwner(Reason.RUN_ID)
