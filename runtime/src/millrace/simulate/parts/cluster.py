"""State servers and the view store, behind an unreliable network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any

from millrace.ids import Epoch, Execution, name_id
from millrace.protocol import server as s
from millrace.protocol.codec import decode_record, decode_view, encode_record, encode_view
from millrace.protocol.types import Member, Record, Stamp, View
from millrace.ring import owners
from millrace.simulate import history as h
from millrace.simulate.parts.server import ServerFile, ServerModel
from millrace.simulate.world import World

CONNECT_TIMEOUT_S = 0.3

FOR_GOOD_S = float("inf")

TOKEN_END = b" sealed "
"""Between what stands for a record and its last sealed window."""


class Side(Enum):
    """Who talks to a state server: a network may part it from the one and not from the other."""

    DRIVER = "driver"
    TASKS = "tasks"


BOTH = (Side.DRIVER, Side.TASKS)


@dataclass(slots=True)
class _Slot:
    model: ServerModel
    old: ServerFile
    alive: bool = True
    cut_until_s: dict[Side, float] = field(default_factory=lambda: dict.fromkeys(Side, 0.0))
    stopped_until_s: float = 0.0
    deaf_until_s: float = 0.0
    slow_until_s: float = 0.0
    slow_s: float = 0.0


class Vault:
    """Stands for encoding: bytes that go to a server, and the value they mean.

    With ``codec`` the production encoding is used, otherwise a token, which is faster.
    """

    def __init__(self, codec: bool) -> None:
        self._codec = codec
        self._values: list[Record] = []
        self._known: dict[int, bytes] = {}

    def encode(self, record: Record) -> bytes:
        data = self._known.get(id(record))
        if data is None:
            data = encode_record(record) if self._codec else self._token(record)
            self._values.append(record)
            self._known[id(record)] = data
        return data

    def _token(self, record: Record) -> bytes:
        return b"%d%b%d" % (len(self._values), TOKEN_END, record.sealed)

    def decode(self, data: bytes) -> Record:
        return decode_record(data) if self._codec else self._values[int(data.split()[0])]


class Cluster:
    """All state servers. With one copy a server comes back with its file, else mostly empty."""

    def __init__(
        self,
        world: World,
        history: h.History,
        make: Callable[[str, str], ServerModel],
        names: Iterable[str],
        codec: bool = False,
    ) -> None:
        self._world = world
        self._history = history
        self._lives = 0
        self.vault = Vault(codec)
        self._slots = {name: self._slot(make, name) for name in names}
        self.wanted = set(self._slots)
        self.losses = 0

    def _slot(self, make: Callable[[str, str], ServerModel], name: str) -> _Slot:
        model = make(name, self._run_id())
        return _Slot(model, model.file())

    def _run_id(self) -> str:
        self._lives += 1
        return f"r{self._lives}"

    # -- for the supervisor and the nemesis

    @property
    def names(self) -> list[str]:
        return list(self._slots)

    def alive(self) -> tuple[Member, ...]:
        """Incarnations that are up and wanted."""
        return tuple(
            Member(name, slot.model.run_id)
            for name, slot in self._slots.items()
            if slot.alive and name in self.wanted
        )

    def leaving(self) -> tuple[Member, ...]:
        """Incarnations that are up and not wanted any more."""
        return tuple(
            Member(name, slot.model.run_id)
            for name, slot in self._slots.items()
            if slot.alive and name not in self.wanted
        )

    def part_with(self, name: str) -> None:
        """A server that was to leave ends, and what it held is deleted. It may be wanted again."""
        self._history.add(h.ServerLeft(name))
        self.kill(name)
        self.start(name, keeps_file=False, kept=None)

    def is_alive(self, member: Member) -> bool:
        slot = self._slots[member.name]
        return slot.alive and slot.model.run_id == member.run_id

    def cut(self, name: str, seconds: float, sides: Iterable[Side] = BOTH) -> None:
        """Nobody on these sides reaches this server for a while, although it lives."""
        until_s = self._slots[name].cut_until_s
        for side in sides:
            until_s[side] = max(until_s[side], self._world.now_s + seconds)

    def stop(self, name: str, seconds: float) -> None:
        """The process hangs for a while; what reaches it meanwhile is done when it goes on."""
        slot = self._slots[name]
        slot.stopped_until_s = max(slot.stopped_until_s, self._world.now_s + seconds)

    def deafen(self, name: str, seconds: float) -> None:
        """For a while this server answers everything but those who bring objects."""
        self._slots[name].deaf_until_s = self._world.now_s + seconds

    def slow_down(self, name: str, seconds: float, slow_s: float) -> None:
        """For a while this server takes ``slow_s`` on the mean for everything."""
        slot = self._slots[name]
        slot.slow_until_s, slot.slow_s = self._world.now_s + seconds, slow_s

    def lost(self, member: Member) -> bool:
        """Whether this life of a server is over, or is of no use any more."""
        return not self.is_alive(member) or self.away_for_good(member.name)

    def away_for_good(self, name: str) -> bool:
        """Whether no life of this server is ever reached by a driver again, or by tasks."""
        slot = self._slots[name]
        return max(*slot.cut_until_s.values(), slot.stopped_until_s) == FOR_GOOD_S

    def well(self, member: Member, since_s: float, sides: Iterable[Side] = BOTH) -> bool:
        """Whether this life of a server is up, and whoever is on these sides has reached it, and
        had answers without delay, for so long."""
        slot, then_s = self._slots[member.name], self._world.now_s - since_s
        troubled_s = (slot.stopped_until_s, slot.deaf_until_s, slot.slow_until_s)
        until_s = max(*troubled_s, *(slot.cut_until_s[side] for side in sides))
        return self.is_alive(member) and until_s <= then_s

    def kill(self, name: str) -> None:
        slot = self._slots[name]
        slot.alive = False
        slot.stopped_until_s = slot.deaf_until_s = 0.0
        self._history.add(h.ServerGone(Member(name, slot.model.run_id)))

    def lose(self, names: Iterable[str]) -> None:
        """These servers die, if they were up, and their files are gone. Whoever was parted from
        others, or hung, is so no more."""
        for slot in self._slots.values():
            slot.cut_until_s = dict.fromkeys(Side, 0.0)
            slot.stopped_until_s = 0.0
        for name in names:
            if self._slots[name].alive:
                self.kill(name)
            self._slots[name].model.restart_empty(self._run_id())
            self._slots[name].old = self._slots[name].model.file()
        self.losses += 1

    def reachable(self) -> tuple[Member, ...]:
        """Incarnations that are up, wanted and answer at once."""
        return tuple(member for member in self.alive() if self._up(member) is not None)

    def start(self, name: str, keeps_file: bool, kept: int | None) -> None:
        """``kept`` writes since the last fsync are in the file (None: all of them)."""
        slot = self._slots[name]
        if keeps_file:
            slot.model.restart(self._run_id(), kept)
        else:
            slot.model.restart_empty(self._run_id())
        slot.old = slot.model.file()
        slot.alive = True

    def file(self, name: str) -> ServerFile:
        """The file of a server as it is now."""
        return self._slots[name].model.file()

    def old_file(self, name: str) -> ServerFile:
        """The file of a server as it was when this life of it began."""
        return self._slots[name].old

    def start_on(self, name: str, file: ServerFile) -> None:
        """Somebody has put this file in the place of the server's own."""
        slot = self._slots[name]
        slot.model.restart_on(self._run_id(), file)
        slot.old = file
        slot.alive = True

    def down(self) -> list[str]:
        return [name for name, slot in self._slots.items() if not slot.alive]

    def unsynced(self, name: str) -> int:
        return self._slots[name].model.unsynced

    def held(self, name: str) -> Record | None:
        """The record on a server, for checkers and the end of a run."""
        slot = self._slots[name]
        reply = slot.model.peek(slot.model.run_id)
        if isinstance(reply, s.NotOwner) or reply.record is None:
            return None
        return self.vault.decode(reply.record)

    def copy_of(self, name: str) -> ServerModel:
        """A copy of a server, with its file."""
        return deepcopy(self._slots[name].model)

    def put_back(self, name: str, model: ServerModel) -> None:
        """A server that starts with the file of a copy."""
        self._slots[name].model = deepcopy(model)
        self.start(name, keeps_file=True, kept=None)

    def sealed_in(self, model: ServerModel) -> int:
        """The last sealed window of the record in a copy."""
        reply = deepcopy(model).stamp(model.run_id, Stamp(Epoch(1 << 30), Execution(1 << 30)))
        assert isinstance(reply, s.Stamped)
        return 0 if reply.record is None else self.vault.decode(reply.record).sealed

    def has(self, member: Member, name: str) -> bool:
        """Whether an incarnation that is up holds an object, for checkers."""
        slot = self._slots[member.name]
        reply = slot.model.get(member.run_id, None, [name])
        return slot.alive and not isinstance(reply, s.NotOwner) and isinstance(reply[0], s.Found)

    def objects(self, member: Member) -> tuple[str, ...]:
        """The names of what an incarnation holds, for checkers; nothing if it is not up."""
        model = self._slots[member.name].model
        return tuple(name for name, _ in model.file().objects) if self.is_alive(member) else ()

    # -- messages

    def ask(
        self,
        member: Member,
        operation: Callable[[], object | None],
        answer: Callable[[Any], None],
        unreachable: Callable[[], None],
    ) -> None:
        """Send an operation to a server and its answer back; ``operation`` runs over there and
        gives None if nobody is."""
        self._world.send(self._arrived, member, operation, answer, unreachable)

    def _arrived(
        self,
        member: Member,
        operation: Callable[[], object | None],
        answer: Callable[[Any], None],
        unreachable: Callable[[], None],
    ) -> None:
        slot, now_s = self._slots[member.name], self._world.now_s
        if slot.alive and now_s < slot.stopped_until_s:
            if slot.stopped_until_s < FOR_GOOD_S:
                left_s = slot.stopped_until_s - now_s
                self._world.after(left_s, self._serve, member, operation, answer, lambda: None)
            self._world.after(CONNECT_TIMEOUT_S, unreachable)
        elif slot.alive and now_s < slot.slow_until_s:
            delay_s = self._world.rng.expovariate(1 / slot.slow_s)
            self._world.after(delay_s, self._serve, member, operation, answer, unreachable)
        else:
            self._serve(member, operation, answer, unreachable)

    def _serve(
        self,
        member: Member,
        operation: Callable[[], object | None],
        answer: Callable[[Any], None],
        unreachable: Callable[[], None],
    ) -> None:
        reply = operation()
        if reply is None:
            self._world.after(CONNECT_TIMEOUT_S, unreachable)
        else:
            self._world.send(answer, reply)

    def _up(self, member: Member, side: Side = Side.DRIVER) -> ServerModel | None:
        slot = self._slots[member.name]
        away_s = max(slot.cut_until_s[side], slot.stopped_until_s)
        return slot.model if slot.alive and self._world.now_s >= away_s else None

    # -- operations, at the moment they happen on the server

    def stamp(self, member: Member, stamp: Stamp, life: str = "") -> s.StampReply | None:
        model = self._up(member)
        if model is None:
            return None
        reply = model.stamp(member.run_id, stamp, life)
        if isinstance(reply, s.Stamped):
            self._history.add(h.ServerStamped(member, stamp))
        return reply

    def write(self, member: Member, stamp: Stamp, record: Record) -> s.WriteReply | None:
        model = self._up(member)
        if model is None:
            return None
        reply = model.write_record(member.run_id, stamp, record.tag, self.vault.encode(record))
        if isinstance(reply, s.Ok):
            self._history.add(h.RecordWritten(member, stamp, record))
        return reply

    def put(
        self,
        member: Member,
        stamp: Stamp,
        names: tuple[str, ...],
        side: Side = Side.DRIVER,
    ) -> s.PutReply | None:
        """Objects are known by their names; contents are in the history."""
        model = self._up(member, side)
        if model is None or self._world.now_s < self._slots[member.name].deaf_until_s:
            return None
        reply = model.put(member.run_id, stamp, [(name, b"") for name in names])
        if isinstance(reply, s.Ok):
            self._history.add(h.ObjectsPut(member, stamp, names))
        return reply

    def get(
        self,
        member: Member,
        stamp: Stamp | None,
        names: tuple[str, ...],
        side: Side = Side.DRIVER,
    ) -> s.GetReply | None:
        model = self._up(member, side)
        return model.get(member.run_id, stamp, names) if model is not None else None

    def listed(self, member: Member, stamp: Stamp) -> s.ListReply | None:
        model = self._up(member)
        return model.list_objects(member.run_id, stamp) if model is not None else None

    def delete(self, member: Member, stamp: Stamp, names: tuple[str, ...]) -> s.PutReply | None:
        model = self._up(member)
        if model is None or not names:
            return None
        reply = model.delete(member.run_id, stamp, names)
        if isinstance(reply, s.Ok):
            self._history.add(h.ObjectsDeleted(member, stamp, names))
        return reply


class ViewStore:
    """The linearizable store of the view document."""

    def __init__(self, history: h.History, codec: bool = False) -> None:
        self._history = history
        self._codec = codec
        self.version = 0
        self.view: View | None = None
        self.life = 0

    def put_back(self, version: int, view: View | None) -> None:
        """A copy takes the place of everything; who was about to change the view has ended."""
        self.version, self.view = version, view
        self.life += 1

    def read(self) -> tuple[int, View | None]:
        if self.view is not None and self._codec:
            return self.version, decode_view(encode_view(self.view))
        return self.version, self.view

    def cas(self, expected: int, view: View, life: int) -> int | None:
        """``life`` is the one that the change was sent to, ``expected`` the version."""
        if (life, expected) != (self.life, self.version):
            return None
        self.version += 1
        self.view = view
        self._history.add(h.ViewChanged(self.version, view))
        return self.version


def owners_of(placed: tuple[tuple[str, ...], ...], name: str, groups: int) -> tuple[str, ...]:
    """Owners of an object: those of its key groups, or of the one that its name decides on."""
    if groups == 0:
        return placed[name_id(name) % len(placed)]
    chosen: dict[str, None] = {}
    for group, names in enumerate(placed):
        if groups >> group & 1:
            chosen.update(dict.fromkeys(names))
    return tuple(chosen)


@lru_cache(maxsize=65536)
def place(
    key_groups: int,
    copies: int,
    names: tuple[str, ...],
    previous: tuple[tuple[str, ...], ...],
) -> tuple[tuple[str, ...], ...]:
    """The production placement of key groups, remembered."""
    return owners(key_groups, names, copies, previous=previous)
