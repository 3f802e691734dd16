"""Client of one state server: each operation is one script, with the answers of ``ServerModel``.

The answers of the protocol (``NotOwner``, ``TagTooLow``, ``Missing``) are values; what is wrong
with the server itself is raised: ``UnreachableError``, ``OutOfMemoryError`` or, for anything that
somebody has to mend there, ``StateServerError``.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import redis

from millrace.addresses import place_of, redis_fault, redis_remedy
from millrace.errors import ProtocolError, StateServerError
from millrace.ids import Epoch, Execution
from millrace.protocol.server import (
    MISSING,
    OK,
    Found,
    GetReply,
    Listed,
    ListReply,
    Missing,
    NotOwner,
    PutReply,
    Reason,
    Stamped,
    StampReply,
    TagTooLow,
    WriteReply,
)
from millrace.protocol.types import Member, Stamp, Tag
from millrace.redisserver import MemoryUse, memory_of, open_client
from millrace.state import messages, scripts
from millrace.state.errors import OutOfMemoryError, UnreachableError
from millrace.state.refusals import translated
from millrace.state.settings import check_settings

ANSWER_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class StateAddress:
    """Where one incarnation of a state server is; travels to tasks by pickle, without the password.

    ``password`` is never shown; ``url`` may carry one of its own.
    """

    name: str
    url: str
    run_id: str
    password: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, member: Member, password: str | None = None) -> StateAddress:
        return cls(member.name, member.url, member.run_id, password)

    def __reduce__(self) -> tuple[type[StateAddress], tuple[str, str, str]]:
        return StateAddress, (self.name, self.url, self.run_id)

    def member(self) -> Member:
        return Member(self.name, self.run_id, self.url)

    @property
    def shown(self) -> str:
        """Name and place, without a password, for messages."""
        where = place_of(self.url)
        return f"{self.name} at {where.removeprefix('redis://').removeprefix('unix://')}"


class StateClient:
    """Connections to one incarnation of a state server, for one topology.

    Safe for use by several threads, and after a fork. ``timeout_s`` bounds each answer.
    """

    def __init__(
        self, address: StateAddress, uid: str, *, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> None:
        self.address = address
        self.uid = uid
        self._timeout_s = timeout_s
        self._redis = _open(address, timeout_s)
        self._settings_checked = False
        prefix = f"mr:{{{uid}}}:".encode()
        self._stamp, self._record = prefix + b"stamp", prefix + b"record"
        self._tag = prefix + b"tag"
        self._objects, self._prefix = prefix + b"objects", prefix + b"o:"

    @property
    def redis(self) -> redis.Redis:
        """The underlying client, for the parts that keep keys of their own (the ack log)."""
        return self._redis

    # -- operations

    def stamp(self, stamp: Stamp, life: str = "") -> StampReply:
        """Put a stamp into effect; answers with the record of that moment (rule 6).

        ``life`` is of whoever sends it: the equal stamp of another life is not taken.
        """
        keys = [self._stamp, self._record, self._tag]
        arguments = [*self._under(stamp), life.encode()]
        return _stamped(self._call("stamp", keys, arguments), stamp)

    def peek(self) -> StampReply:
        """The record, without a stamp of one's own: for a reader such as ``status``."""
        keys = [self._stamp, self._record, self._tag]
        return _stamped(self._call("peek", keys, self._under(None)), None)

    def write_record(self, stamp: Stamp, tag: Tag, record: bytes) -> WriteReply:
        """Write a record; answered after its fsync (rule 23).

        ``TagTooLow`` with the very tag sent means that an earlier sending of it is stored and
        durable.
        """
        keys = [self._stamp, self._record, self._tag]
        arguments = [*self._under(stamp), _tag_text(tag), record]
        self.check_settings()
        # With ``appendfsync always`` too: while a server whose file was just switched on writes
        # its first one, what it answers is in no file that it would read.
        raw = self._call("write_record", keys, arguments, wait_fsync=True)
        if raw[0] == b"TAGTOOLOW":
            return TagTooLow(_tag_of(raw[1]))
        return _not_owner(raw, stamp) or OK

    def put(
        self, stamp: Stamp, objects: Sequence[tuple[str, bytes]], *, when_full: bool = False
    ) -> PutReply:
        """Store objects in one round trip; ``Ok`` when all of them are stored.

        ``when_full`` is for small ones that something waits for which gives memory back.
        """
        calls = []
        for batch in messages.of_objects(objects, self.address.shown):
            keys = [self._stamp, self._objects, *(self._key(name) for name, _ in batch)]
            arguments = self._under(stamp)
            for name, data in batch:
                arguments += (name.encode(), data)
            calls.append((keys, arguments))
        for raw in self._calls("put", calls, when_full=when_full):
            if (refusal := _not_owner(raw, stamp)) is not None:
                return refusal
        return OK

    def get(self, stamp: Stamp | None, names: Sequence[str]) -> GetReply:
        """Objects in the order of ``names``; without a stamp only the run id is compared."""
        found: list[Found | Missing] = []
        for at in range(0, max(len(names), 1), messages.NAMES):
            keys = [self._stamp, *(self._key(n) for n in names[at : at + messages.NAMES])]
            raw = self._call("get", keys, self._under(stamp))
            if (refusal := _not_owner(raw, stamp)) is not None:
                return refusal
            found += (MISSING if data is None else Found(data) for data in raw[1:])
        return tuple(found)

    def get_parts(self, stamp: Stamp | None, parts: Sequence[tuple[str, int, int]]) -> GetReply:
        """Of each object, by name, that many bytes (at least one) from a start on, or fewer where
        it ends; otherwise as ``get``.

        What is larger than a message is read in several, between which the server answers others.
        """
        found: list[list[bytes] | None] = [[] for _ in parts]
        for batch in messages.of_parts(parts):
            keys = [self._stamp, *(self._key(parts[at][0]) for at, _, _ in batch)]
            arguments = self._under(stamp)
            for _, start, size in batch:
                arguments += (b"%d" % start, b"%d" % (start + size - 1))
            raw = self._call("get_parts", keys, arguments)
            if (refusal := _not_owner(raw, stamp)) is not None:
                return refusal
            for (at, _, _), data in zip(batch, raw[1:], strict=True):
                held = found[at]
                if data is None:
                    found[at] = None
                elif held is not None:
                    held.append(data)
        return tuple(MISSING if held is None else Found(b"".join(held)) for held in found)

    def list_objects(self, stamp: Stamp) -> ListReply:
        """Names of all objects, sorted."""
        raw = self._call("list", [self._stamp, self._objects], self._under(stamp))
        return _not_owner(raw, stamp) or Listed(tuple(sorted(name.decode() for name in raw[1])))

    def delete(self, stamp: Stamp, names: Sequence[str]) -> PutReply:
        """Delete objects; one that is not there is no error."""
        calls = []
        for at in range(0, max(len(names), 1), messages.NAMES):
            part = names[at : at + messages.NAMES]
            keys = [self._stamp, self._objects, *(self._key(n) for n in part)]
            calls.append((keys, [*self._under(stamp), *(n.encode() for n in part)]))
        for raw in self._calls("delete", calls):
            if (refusal := _not_owner(raw, stamp)) is not None:
                return refusal
        return OK

    def wipe(self) -> int:
        """Delete every key of this topology, for a fresh start; the number of keys.

        Only without a living driver: no stamp is compared.
        """
        with translated(self.address.shown, self.address.name):
            keys = list(self._redis.scan_iter(match=f"mr:{{{self.uid}}}:*", count=1000))
            for at in range(0, len(keys), 1000):
                self._redis.unlink(*keys[at : at + 1000])
            return len(keys)

    def check_settings(self) -> None:
        """Raises ``StateServerError`` with the remedy for settings that could lose a window; asks
        the server once."""
        if not self._settings_checked:
            with translated(self.address.shown, self.address.name):
                check_settings(self._redis, self.address.shown)
            self._settings_checked = True

    def memory(self) -> MemoryUse:
        """How full the server is."""
        with translated(self.address.shown, self.address.name):
            return memory_of(self._redis)

    def close(self) -> None:
        """Close all connections of this process."""
        self._redis.close()

    # -- calls

    def _key(self, name: str) -> bytes:
        return self._prefix + name.encode()

    def _under(self, stamp: Stamp | None) -> list[bytes]:
        run_id = self.address.run_id.encode()
        if stamp is None:
            return [run_id, b"", b""]
        return [run_id, b"%d" % stamp.epoch, b"%d" % stamp.execution]

    def _call(
        self, name: str, keys: list[bytes], arguments: list[bytes], *, wait_fsync: bool = False
    ) -> list[Any]:
        return self._calls(name, [(keys, arguments)], wait_fsync=wait_fsync)[0]

    def _calls(
        self,
        name: str,
        calls: Sequence[tuple[list[bytes], list[bytes]]],
        *,
        wait_fsync: bool = False,
        when_full: bool = False,
    ) -> list[list[Any]]:
        """Run one script several times in one round trip.

        Every script may be sent twice, so a broken connection (an idle one that the server has
        closed, say) is tried a second time; a time-out is not.
        """
        script = scripts.load(name, when_full)
        try:
            with translated(self.address.shown, self.address.name):
                try:
                    replies = self._send(script, calls, wait_fsync)
                except redis.AuthenticationError:
                    raise
                except redis.ConnectionError:
                    # What answers now may be the next incarnation, which knows no script yet.
                    replies = self._send(script, calls, wait_fsync)
        except OutOfMemoryError as full:
            raise self._full(full) from full
        if wait_fsync and replies.pop()[0] < 1:
            raise UnreachableError(
                f"state server {self.address.shown} did not write its append-only file to disk "
                f"within {self._timeout_s:g} s; look at the disk it writes to"
            )
        return replies

    def _full(self, error: OutOfMemoryError) -> OutOfMemoryError:
        """The same, with the server's name and how full it is, where it answers that."""
        try:
            told = OutOfMemoryError(f"{error}; {self.memory()} are used")
        except StateServerError:
            told = OutOfMemoryError(str(error))
        told.server = self.address.name
        return told

    def _send(
        self,
        script: scripts.Script,
        calls: Sequence[tuple[list[bytes], list[bytes]]],
        wait_fsync: bool,
    ) -> list[Any]:
        """Send the calls, with the script itself where the server does not have it yet."""
        try:
            return self._send_known(script.sha, calls, wait_fsync)
        except redis.exceptions.NoScriptError:
            self._redis.script_load(script.text)
            return self._send_known(script.sha, calls, wait_fsync)

    def _send_known(
        self, sha: str, calls: Sequence[tuple[list[bytes], list[bytes]]], wait_fsync: bool
    ) -> list[Any]:
        if len(calls) == 1 and not wait_fsync:
            keys, arguments = calls[0]
            client: Any = self._redis
            return [client.execute_command("EVALSHA", sha, len(keys), *keys, *arguments)]
        pipeline: Any = self._redis.pipeline(transaction=False)
        for keys, arguments in calls:
            pipeline.execute_command("EVALSHA", sha, len(keys), *keys, *arguments)
        if wait_fsync:
            pipeline.execute_command("WAITAOF", 1, 0, int(self._timeout_s * 900))
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        for reply in replies:
            if isinstance(reply, redis.RedisError):
                raise reply
        return replies


def discover(
    name: str, url: str, password: str | None = None, *, timeout_s: float = ANSWER_TIMEOUT_S
) -> StateAddress:
    """Ask a server which incarnation it is.

    Raises ``UnreachableError``, also while it is loading its file.
    """
    address = StateAddress(name, url, "", password)
    client = _open(address, timeout_s)
    try:
        with translated(address.shown, name):
            info = cast("Mapping[str, Any]", client.info("server"))
            client.ping()
    finally:
        client.close()
    return replace(address, run_id=str(info["run_id"]))


# --- connections of this process

_CLIENTS: dict[tuple[StateAddress, str], StateClient] = {}
_CLIENTS_LOCK = threading.Lock()


def connect(address: StateAddress, uid: str) -> StateClient:
    """This process's client of a server, made on first use and kept until another incarnation or
    address of that server is asked for."""
    with _CLIENTS_LOCK:
        client = _CLIENTS.get((address, uid))
        if client is None:
            # Another thread may be using a stale one, so its connections go with its last user.
            for stale in [k for k in _CLIENTS if (k[0].name, k[1]) == (address.name, uid)]:
                del _CLIENTS[stale]
            client = _CLIENTS[address, uid] = StateClient(address, uid)
        return client


def _open(address: StateAddress, timeout_s: float) -> redis.Redis:
    try:
        return open_client(address.url, address.password, answer_s=timeout_s)
    except (ValueError, TypeError):
        fault = redis_fault(address.url) or "is an address with a value that cannot be used"
        text = f"state server {address.name}: its url {fault}; {redis_remedy()}"
    # Not as a consequence of the library's error, which repeats parts of the address.
    raise StateServerError(text)


# --- replies


def _not_owner(raw: list[Any], stamp: Stamp | None) -> NotOwner | None:
    """The refusal of a message under ``stamp``; a server under another one says only which."""
    if raw[0] != b"NOTOWNER":
        return None
    if stamp is not None and len(raw) > 2:
        return NotOwner.under(Stamp(Epoch(int(raw[2])), Execution(int(raw[3]))), stamp)
    return NotOwner(Reason(raw[1].decode()))


def _stamped(raw: list[Any], stamp: Stamp | None) -> StampReply:
    if (refusal := _not_owner(raw, stamp)) is not None:
        return refusal
    return Stamped(raw[1], None if raw[2] is None else _tag_of(raw[2]))


def _tag_text(tag: Tag) -> bytes:
    return str(tag).encode()


def _tag_of(text: bytes) -> Tag:
    try:
        return Tag.read(text.decode())
    except ValueError as error:
        raise ProtocolError(
            f"the stored record's tag is {text!r}, not four numbers; something else wrote to "
            "this topology's keys"
        ) from error
