"""The driver's side of the state servers: answers as events, objects of the driver itself."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from millrace import crash
from millrace.clock import Clock, SystemClock
from millrace.engine.driver.letters import are_intact
from millrace.engine.driver.uses import MemoryUses
from millrace.errors import MillraceError, StateServerError
from millrace.homes.passwords import PasswordOf
from millrace.ids import Execution
from millrace.protocol import events as e
from millrace.protocol.codec import decode_record, encode_record
from millrace.protocol.names import LettersObject, read_name
from millrace.protocol.record import needed_objects, object_groups
from millrace.protocol.server import Found, NotOwner, Ok, Stamped, TagTooLow
from millrace.protocol.types import Member, Record, Stamp, View
from millrace.redisserver import MemoryUse
from millrace.state.client import StateAddress, StateClient, connect
from millrace.state.errors import NotOwnerError, OutOfMemoryError, UnreachableError
from millrace.state.keyed.chunks import digest_of
from millrace.state.servers import StateAccess, owners_of

log = logging.getLogger(__name__)


class SilentMemberError(StateServerError):
    """A member did not answer while objects were copied."""

    def __init__(self, member: Member, text: str) -> None:
        super().__init__(text)
        self.member = member


class LostObjectError(StateServerError):
    """An object that every server which may have held it was asked for, and none has."""


class GivenUpError(StateServerError):
    """Nobody waits for a copy any more: another view has taken the place of its own."""


Step = Callable[[int, int, int], None]
"""Told after each object of a copy: how many are done, of how many, and the bytes so far."""


class CopyProgress:
    """Tells how a copy goes, where that takes long, and leaves the windows their share of the time.

    One that windows go on beside rests after each object as long as that took.
    """

    FIRST_S = 2.0
    """Shorter copies are not worth a word, in seconds."""
    EVERY_S = 10.0

    def __init__(
        self,
        action: e.CopyObjects,
        tell: Callable[[e.Notify], object],
        clock: Clock | None = None,
        rest: Callable[[float], None] = time.sleep,
    ) -> None:
        self._action = action
        self._tell = tell
        self._clock = clock or SystemClock()
        self._rest = rest
        self._begun_s = self._last_s = self._clock.monotonic_s()
        self._told_s: float | None = None

    def __call__(self, done: int, of: int, size: int) -> None:
        now_s = self._clock.monotonic_s()
        if self._worth_telling(now_s, done == of):
            self._told_s = now_s
            beside = "windows go on" if self._action.learning else "windows wait"
            names = ", ".join(sorted({m.name for m in self._action.view.target}))
            text = f"{done:,} of {of:,} objects, {size / 1e6:,.1f} MB, are copied to {names}"
            self._tell(e.Notify("StateCopying", f"{text}; {beside}"))
        if self._action.learning and done < of:
            self._rest(now_s - self._last_s)
        self._last_s = self._clock.monotonic_s()

    def _worth_telling(self, now_s: float, last: bool) -> bool:
        if self._told_s is None:
            return not last and now_s - self._begun_s >= self.FIRST_S
        return last or now_s - self._told_s >= self.EVERY_S


class Stores:
    """All state servers as the driver sees them; safe for use by several threads. Each is of one
    driver's life."""

    def __init__(self, uid: str, password_of: PasswordOf) -> None:
        self.uid = uid
        self._life = secrets.token_hex(8)
        self._password_of = password_of
        self._view: View | None = None
        self._uses = MemoryUses(uid)

    def use(self, view: View) -> None:
        """From now on this is the view whose members hold the driver's own objects."""
        self._view = view

    def client(self, member: Member) -> StateClient:
        return connect(self._address(member), self.uid)

    def access(self, view: View) -> StateAccess:
        """What tasks need to read and write under a view."""
        return StateAccess.of(view, {m.name: self._password_of(m.name) for m in view.target})

    def log_member(self) -> tuple[Member, Execution]:
        """The server that holds the ack log, and this driver's execution."""
        view = self._required()
        return view.log_member, view.execution

    def log_address(self) -> StateAddress:
        """The same, for tasks."""
        return self._address(self.log_member()[0])

    def _address(self, member: Member) -> StateAddress:
        return StateAddress.of(member, self._password_of(member.name))

    # -- the protocol's messages

    def stamp(self, member: Member, stamp: Stamp, held: bool = False) -> e.Event:
        """What ``SendStamp`` asks for.

        Raises ``ProtocolError`` for a damaged record, ``NewerFormatError`` for a newer one.
        """
        try:
            reply = self.client(member).stamp(stamp, self._life)
        except StateServerError as error:
            return _unanswered(member, stamp, error)
        if isinstance(reply, NotOwner):
            return e.Refused(member, stamp, reply.reason.value)
        assert isinstance(reply, Stamped)
        record = None if reply.record is None else decode_record(reply.record)
        return e.Stamped(member, stamp, record, held)

    def write_record(self, member: Member, stamp: Stamp, record: Record) -> e.Event:
        try:
            reply = self.client(member).write_record(stamp, record.tag, encode_record(record))
        except StateServerError as error:
            return _unanswered(member, stamp, error)
        if isinstance(reply, NotOwner):
            return e.Refused(member, stamp, reply.reason.value)
        if isinstance(reply, TagTooLow) and reply.current != record.tag:
            return e.Refused(member, stamp, e.TAG)
        return e.RecordAck(member, stamp, record.tag.seq)

    def copy(
        self,
        action: e.CopyObjects,
        wanted: Callable[[], bool] = lambda: True,
        step: Step = lambda *_: None,
    ) -> e.Event:
        """Bring every object that the record names to its owners, from any source that has it,
        intact if one has.

        Names are listed once for each member, those of a source that is no owner only where no
        owner gives something; only that is read and written. A source that does not answer is
        passed over as long as another has the object; what windows have superseded meanwhile is
        passed over where those to come learn beside them. Raises ``GivenUpError`` once ``wanted``
        says no, and what waiting does not mend.
        """
        silent: dict[Member, str] = {}
        try:
            held = {m: self._names(m, action.stamp) for m in action.view.target}
            others = [m for m in action.sources if m not in held]
            elsewhere = _elsewhere(action.record)
            digests = _digests(action.record)
            todo = list(missing(_named(action.record), action.view, held))
            size = 0
            for done, (name, lacking) in enumerate(todo, 1):
                if not wanted():
                    raise GivenUpError(f"the copy for {action.stamp} is not wanted any more")
                having = self._having(name, held, others, action.stamp, silent)
                data = self._find(having, action.stamp, name, silent, digests.get(name, ""))
                if data is not None:
                    for member in lacking:
                        self._store(member, action.stamp, name, data)
                        if not action.learning:
                            crash.reached("driver.copying")
                    size += len(data) * len(lacking)
                elif name not in elsewhere and not action.learning:
                    _nowhere(name, silent, _unheard(action))
                step(done, len(todo), size)
            crash.reached("driver.taught" if action.learning else "driver.copied")
        except SilentMemberError as error:
            log.warning("%s", error)
            return e.Unreachable(error.member, action.stamp, str(error))
        except GivenUpError:
            raise
        except MillraceError as error:
            if not error.retryable:
                raise
            lost = isinstance(error, LostObjectError)
            full = error.server if isinstance(error, OutOfMemoryError) else ""
            return e.CopyFailed(
                action.stamp, str(error), lost=lost, planned=action.planned, full=full
            )
        return e.Copied(action.stamp, action.planned)

    def _names(self, member: Member, stamp: Stamp) -> frozenset[str]:
        with _naming(member):
            reply = self.client(member).list_objects(stamp)
        if isinstance(reply, NotOwner):
            raise StateServerError(f"{member.name} refused to list objects: {reply.why}")
        return frozenset(reply.names)

    def _names_of_source(
        self, member: Member, stamp: Stamp, silent: dict[Member, str]
    ) -> frozenset[str]:
        try:
            return self._names(member, stamp)
        except SilentMemberError as error:
            silent[member] = str(error)
            return frozenset()

    def _having(
        self,
        name: str,
        held: dict[Member, frozenset[str]],
        others: list[Member],
        stamp: Stamp,
        silent: dict[Member, str],
    ) -> Iterator[Member]:
        """Members that have an object; ``others`` are asked what they hold one after the other, as
        far as that is needed, and belong to those whose names are ``held`` from then on."""
        yield from [member for member in held if name in held[member]]
        while others:
            source = others.pop(0)
            held[source] = self._names_of_source(source, stamp, silent)
            if name in held[source]:
                yield source

    def _find(
        self,
        places: Iterable[Member],
        stamp: Stamp,
        name: str,
        silent: dict[Member, str],
        digest: str,
    ) -> bytes | None:
        """An object from the first of some members that has it intact; a damaged one only where
        all answer. Who does not is noted, and not asked again."""
        damaged = None
        for member in places:
            if member in silent:
                continue
            try:
                data = self._read(member, stamp, name)
            except SilentMemberError as error:
                silent[member] = str(error)
                continue
            if data is None:
                continue
            if is_intact(name, data, digest):
                return data
            log.warning("the copy of object %s on %s is damaged", name, member.name)
            damaged = data
        return None if silent else damaged

    def _read(self, member: Member, stamp: Stamp, name: str) -> bytes | None:
        with _naming(member):
            reply = self.client(member).get(stamp, [name])
        if isinstance(reply, NotOwner):
            raise StateServerError(f"{member.name} refused to read {name}: {reply.why}")
        held = reply[0]
        return held.data if isinstance(held, Found) else None

    # -- objects of the driver

    def put_everywhere(self, stamp: Stamp, name: str, data: bytes) -> None:
        """Store one of the driver's own objects on its owners, full ones too: it is small, and the
        seal that waits for it gives memory back."""
        view = self._required()
        members = {m.name: m for m in view.target}
        for owner in owners_of(view.owners, name, 0):
            self._store(members[owner], stamp, name, data, when_full=True)

    def memory(self) -> dict[str, MemoryUse]:
        """How full the state servers are, by name; without those that do not answer soon. For one
        thread at a time."""
        members = self._view.target if self._view is not None else ()
        return self._uses.of(self._address(member) for member in members)

    def fetch(
        self, name: str, groups: int = 0, digest: str = "", most_bytes: int | None = None
    ) -> bytes:
        """Read an object from the first owner that gives it intact, without a stamp; a damaged one
        where no owner has another.

        Raises ``StateServerError`` where none has it, or none intact and one does not answer, and
        where it has more than ``most_bytes``, of which no more are read.
        """
        view = self._required()
        members = {m.name: m for m in view.target}
        silent: StateServerError | None = None
        damaged: bytes | None = None
        for owner in owners_of(view.owners, name, groups):
            client = self.client(members[owner])
            try:
                if most_bytes is None:
                    reply = client.get(None, [name])
                else:
                    reply = client.get_parts(None, [(name, 0, most_bytes + 1)])
            except UnreachableError as error:
                silent = error
                continue
            if isinstance(reply, NotOwner):
                silent = NotOwnerError(owner, reply)
                continue
            if not isinstance(reply[0], Found):
                continue
            if most_bytes is not None and len(reply[0].data) > most_bytes:
                raise StateServerError(f"object {name} has more than {most_bytes} bytes")
            if is_intact(name, reply[0].data, digest):
                return reply[0].data
            log.warning("the copy of object %s on %s is damaged", name, owner)
            damaged = reply[0].data
        if silent is not None:
            raise silent
        if damaged is not None:
            return damaged
        raise StateServerError(f"object {name} is on none of its owners")

    def delete(self, forget: e.Forget) -> None:
        """Delete what ``forget`` covers on every member; a fenced driver deletes nothing."""
        for member in self._required().target:
            client = self.client(member)
            names: Iterable[str] = forget.names
            if forget.keep is not None:
                listed = client.list_objects(forget.stamp)
                if isinstance(listed, NotOwner):
                    return
                names = [name for name in listed.names if forget.covers(name)]
            if names:
                client.delete(forget.stamp, list(names))

    def _store(
        self, member: Member, stamp: Stamp, name: str, data: bytes, *, when_full: bool = False
    ) -> None:
        with _naming(member):
            reply = self.client(member).put(stamp, [(name, data)], when_full=when_full)
        if not isinstance(reply, Ok):
            raise StateServerError(f"{member.name} refused object {name}: {reply.why}")

    def _required(self) -> View:
        assert self._view is not None
        return self._view


def _unanswered(member: Member, stamp: Stamp, error: StateServerError) -> e.Unreachable:
    """A server that does not do what it was asked is waited for or left out, whatever is wrong
    with it, unless waiting does not mend that."""
    if not error.retryable:
        raise error
    log.warning("%s", error)
    return e.Unreachable(member, stamp, str(error), isinstance(error, OutOfMemoryError))


def missing(
    named: Iterable[tuple[str, int]], view: View, held: Mapping[Member, Collection[str]]
) -> Iterator[tuple[str, list[Member]]]:
    """Objects, of (name, groups), that not all of their owners hold, with those that lack each."""
    members = {m.name: m for m in view.target}
    for name, groups in named:
        owners = [members[owner] for owner in owners_of(view.owners, name, groups)]
        lacking = [owner for owner in owners if name not in held[owner]]
        if lacking:
            yield name, lacking


@contextmanager
def _naming(member: Member) -> Iterator[None]:
    """Say of a failure to answer whose it is."""
    try:
        yield
    except UnreachableError as error:
        raise SilentMemberError(member, str(error)) from error


def _unheard(action: e.CopyObjects) -> list[str]:
    """Names of those that held objects before and are asked no more, since they did not answer."""
    heard = {m.name for m in (*action.sources, *action.view.target)}
    return sorted({m.name for m in action.view.last_open} - heard)


def _nowhere(name: str, silent: Mapping[Member, str], unheard: Collection[str]) -> None:
    """Raise what is to be said of an object that nobody gave."""
    for member, text in silent.items():
        raise SilentMemberError(member, text)
    if unheard:
        raise StateServerError(
            f"object {name} is on none of the state servers that answered; "
            f"{', '.join(unheard)} may hold it: start it again on its append-only file, or wait "
            "until it answers"
        )
    raise LostObjectError(
        f"object {name} is on no state server any more; bring back the append-only file that "
        "holds it, or start over with --fresh"
    )


def _named(record: Record) -> list[tuple[str, int]]:
    """Objects that a record needs, with the key groups that decide on their owners."""
    groups = object_groups(record)
    return [(name, groups.get(name, 0)) for name in sorted(needed_objects(record))]


def _digests(record: Record) -> dict[str, str]:
    """By the names of objects of state and of staged rows; letters have their own checksum."""
    chains = record.chains.values()
    digests = {segment.name: segment.digest for chain in chains for segment in chain}
    staged = (one for sealed in record.unpublished for one in sealed.staged if one.stored)
    return digests | {one.name: one.digest for one in staged}


def is_intact(name: str, data: bytes, digest: str) -> bool:
    """Whether an object is as it was written; ``digest`` is "" where none is known."""
    if isinstance(read_name(name), LettersObject):
        return are_intact(data)
    return not digest or digest_of(data) == digest


def _elsewhere(record: Record) -> set[str]:
    """Staged outputs that are no objects: those of sinks with files of their own."""
    staged = (one for sealed in record.unpublished for one in sealed.staged)
    return {one.name for one in staged if not one.stored}
