"""The ack log on a state server: streams that tasks, the driver and the ackers share.

Keys, all under ``mr:{uid}:ack:`` so that they lie in one hash slot:

    ctl                                  control entries, kind -> JSON
    execution                            highest execution that wrote to ``ctl``; older are refused
    <execution>.<window>.<attempt>:<p>   messages of one slice, m -> bytes
    <execution>.<window>.<attempt>:v     verdicts
    load                                 what ackers use, name -> seconds of CPU, name:at -> when

The streams of an attempt are made when it is opened, for the slices that have roots, which may be
before the control stream says so, and deleted when it is over or, where little is in them, as those
of the next one are made; tasks and ackers add only to streams that exist, so who comes later leaves
nothing behind. The log has one copy and is never repaired: an attempt whose log is lost is run
again. So no stream goes into the server's file or to a replica, and nobody waits for a disk: a
server that restarts has none of them, or what they were when its file was last rewritten, and no
attempt that is open now has all of its messages there.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import redis

from millrace.errors import FencedError, NewerFormatError, ProtocolError, StateServerError
from millrace.ids import Execution
from millrace.protocol import codec
from millrace.protocol.acker import merge_verdicts
from millrace.protocol.acklog import (
    ControlEntry,
    ForgetAttempt,
    Open,
    SliceOwners,
)
from millrace.protocol.names import read_attempt
from millrace.protocol.types import AttemptId, CloseMarker, Verdict
from millrace.redisserver import Trouble, memory_of, trouble_of

_KINDS: dict[str, type[ControlEntry]] = {
    "open": Open,
    "close": CloseMarker,
    "members": SliceOwners,
    "forget": ForgetAttempt,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}

_LONGEST_BLOCK_S = 1.0
_FETCH_ENTRIES = 8
_APPEND_BYTES = 1 << 20
"""More of a task's messages go in several calls: a script holds what it is given several times."""

OPENED = "0-1"
"""Id of the entry that each stream of an attempt is made with, so that it is there."""

# In the memory of the server alone.
_UNWRITTEN = "redis.set_repl(redis.REPL_NONE)\n"

# KEYS: slices; ARGV: a message for each.
_APPEND = f"""#!lua
{_UNWRITTEN}for _, key in ipairs(KEYS) do
  if redis.call('EXISTS', key) == 0 then return 0 end
end
for i, key in ipairs(KEYS) do redis.call('XADD', key, '*', 'm', ARGV[i]) end
return 1
"""

# The others are taken when memory is full, too: they are small, and what gives memory back waits
# for them. A newer execution fences older ones off. KEYS: execution, control; ARGV: execution.
_FENCED = """
local highest = tonumber(redis.call('GET', KEYS[1]) or '0')
if highest > tonumber(ARGV[1]) then return redis.error_reply('FENCED ' .. highest) end
"""

# KEYS: execution, control, streams that are made, unless they are there, then streams that go;
# ARGV: execution, the last key of those that are made, ids of control entries that go.
_OPEN = f"""#!lua flags=allow-oom
{_UNWRITTEN}{_FENCED}
if redis.call('EXISTS', KEYS[2]) == 0 then return redis.error_reply('NOLOG') end
local last = tonumber(ARGV[2])
if #KEYS > last then redis.call('UNLINK', unpack(KEYS, last + 1)) end
if #ARGV > 2 then redis.call('XDEL', KEYS[2], unpack(ARGV, 3)) end
for i = 3, last do
  if redis.call('EXISTS', KEYS[i]) == 0 then redis.call('XADD', KEYS[i], '{OPENED}', 'open', '') end
end
return 1
"""

# KEYS: execution, control; ARGV: execution, id of the oldest entry to keep ("" all, "=" the last of
# these), then kinds and values.
_CONTROL = f"""#!lua flags=allow-oom
{_UNWRITTEN}{_FENCED}
if ARGV[3] ~= 'members' and redis.call('EXISTS', KEYS[2]) == 0 then
  return redis.error_reply('NOLOG')
end
if highest < tonumber(ARGV[1]) then redis.call('SET', KEYS[1], ARGV[1]) end
local ids = {{}}
for i = 3, #ARGV, 2 do ids[#ids + 1] = redis.call('XADD', KEYS[2], '*', ARGV[i], ARGV[i + 1]) end
local keep = ARGV[2]
if keep == '=' then keep = ids[#ids] end
if keep ~= '' then redis.call('XTRIM', KEYS[2], 'MINID', keep) end
return ids
"""

# KEYS: execution, control, streams that go; ARGV: execution, ids of control entries that go.
_DELETE = f"""#!lua flags=allow-oom
{_UNWRITTEN}{_FENCED}
redis.call('UNLINK', unpack(KEYS, 3))
if #ARGV > 1 then redis.call('XDEL', KEYS[2], unpack(ARGV, 2)) end
return 1
"""

# KEYS: verdicts; ARGV: fields and values.
_ANSWER = f"""#!lua flags=allow-oom
{_UNWRITTEN}return redis.call('XADD', KEYS[1], 'NOMKSTREAM', '*', unpack(ARGV))
"""

Entry = tuple[str, Mapping[bytes, bytes]]


LOAD_KEPT_S = 60
"""Ackers that were told of longer ago, all of them, are forgotten."""

ATTENDING_S = 10
"""An acker asks the log again after a second at most, so that one which has not asked for so many
seconds does not read it; what it judges meanwhile takes far less."""


_AT = ":at"
"""In no name of an acker; drivers of a release that knows no times read numbers there."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """What an ended attempt leaves in the log: its streams, and control ``entries`` by id."""

    attempt: AttemptId
    slices: int
    entries: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class AckerLoad:
    """Seconds of CPU that an acker has used in its life, and when: by its own clock, which never
    goes back while it lives."""

    cpu_s: float
    at_s: float


def reader_name(uid: str, acker: str) -> str:
    """What an acker's connections to the log's server are called."""
    return f"millrace-acker:{uid}:{acker}"


def log_prefix(uid: str) -> str:
    """What the names of all keys of a topology's ack log begin with."""
    return f"mr:{{{uid}}}:ack:"


def matching(text: str) -> str:
    """A pattern of a server's that matches this text alone."""
    return "".join(f"\\{c}" if c in "*?[]\\" else c for c in text)


class AckLogLostError(StateServerError):
    """The log of a window attempt is gone, or the attempt is over: it needs a new attempt."""


class AckLogFullError(StateServerError):
    """The memory of the server that holds the ack log is full: tasks add nothing to it."""


class AckLogAwayError(StateServerError):
    """The server that holds the ack log does not answer."""


class AckLog:
    """Access to the ack log of one topology; as thread-safe as the client it is given.

    ``client`` must answer in bytes (``decode_responses`` off). Every method raises
    ``StateServerError`` when the server is away, refuses or is out of memory.
    """

    def __init__(self, client: redis.Redis, uid: str) -> None:
        self._client: Any = client
        self._uid = uid
        self._prefix = log_prefix(uid)
        self._append_script: Any = client.register_script(_APPEND)
        self._open_script: Any = client.register_script(_OPEN)
        self._control_script: Any = client.register_script(_CONTROL)
        self._delete_script: Any = client.register_script(_DELETE)
        self._answer_script: Any = client.register_script(_ANSWER)
        timeout_s = client.connection_pool.connection_kwargs.get("socket_timeout")
        self._block_s = min(_LONGEST_BLOCK_S, timeout_s / 2 if timeout_s else _LONGEST_BLOCK_S)

    # -- keys

    @property
    def control_key(self) -> str:
        return self._prefix + "ctl"

    def slice_key(self, attempt: AttemptId, partition: int) -> str:
        return f"{self._attempt_prefix(attempt)}{partition}"

    def verdict_key(self, attempt: AttemptId) -> str:
        return f"{self._attempt_prefix(attempt)}v"

    def _attempt_prefix(self, attempt: AttemptId) -> str:
        return f"{self._prefix}{attempt}:"

    def close(self) -> None:
        """Close the client's connections."""
        self._client.close()

    # -- tasks

    def append(self, attempt: AttemptId, messages: Sequence[tuple[int, bytes]]) -> None:
        """Add messages of an attempt's tasks, (tracking partition, bytes) each.

        Doing it twice does no harm, nor does a part of them: who could not add all has not won.
        Raises ``AckLogLostError`` when the attempt is over.
        """
        for some in _in_calls(messages):
            keys = [self.slice_key(attempt, partition) for partition, _ in some]
            with self._server("append to"):
                taken = self._append_script(keys=keys, args=[data for _, data in some])
            if not taken:
                raise self._lost(attempt)

    # -- the driver

    def open(self, execution: Execution, opened: Open, left: Sequence[Leftover] = ()) -> None:
        """Delete what is left, and make the streams of an attempt, without telling the ackers.

        Raises ``FencedError`` when a newer execution has written, and ``AckLogLostError`` when the
        control stream is gone.
        """
        keys = [*self._control_keys(), self.verdict_key(opened.id)]
        keys += [self.slice_key(opened.id, partition) for partition in opened.partitions()]
        gone = [key for one in left for key in self._attempt_keys(one.attempt, one.slices)]
        args = [execution, len(keys), *(entry for one in left for entry in one.entries)]
        with self._fencing(execution, "open an attempt in"):
            self._open_script(keys=[*keys, *gone], args=args)

    def append_control(
        self, execution: Execution, *entries: ControlEntry, keep_from: str | None = None
    ) -> list[str]:
        """Add control entries, all at once, and return their ids.

        ``keep_from`` trims entries before that id, ``"="`` all before the last of these. Raises as
        ``open``, but that a ``SliceOwners`` entry in front begins a control stream.
        """
        told = [part for one in entries for part in (_NAMES[type(one)], codec.encode(one))]
        args = [execution, keep_from or "", *told]
        with self._fencing(execution, "write the control stream of"):
            found: list[bytes] = self._control_script(keys=self._control_keys(), args=args)
        return [entry.decode() for entry in found]

    def delete(self, execution: Execution, left: Leftover) -> None:
        """Delete what an attempt left, without telling the ackers. Raises ``FencedError`` as
        ``append_control``."""
        keys = [*self._control_keys(), *self._attempt_keys(left.attempt, left.slices)]
        with self._fencing(execution, "delete from"):
            self._delete_script(keys=keys, args=[execution, *left.entries])

    def _control_keys(self) -> list[str]:
        return [self._prefix + "execution", self.control_key]

    @contextmanager
    def _fencing(self, execution: Execution, doing: str) -> Iterator[None]:
        with self._server(doing):
            try:
                yield
            except redis.ResponseError as error:
                raise self._refused(execution, error) from error

    def wait_verdict(self, attempt: AttemptId, slices: int, timeout_s: float) -> Verdict | None:
        """The merged verdict on an attempt, or ``None`` if an acker has not answered by then.

        Raises ``AckLogLostError`` when the log of the attempt is gone.
        """
        deadline_s = time.monotonic() + timeout_s
        key, last = self.verdict_key(attempt), OPENED
        parts: list[Verdict] = []
        while True:
            left_s = max(deadline_s - time.monotonic(), 0.0)
            found = self.read({key: last}, block_s=left_s)
            for entry, fields in found.get(key, ()):
                last = entry
                parts += _verdicts(fields)
            merged = merge_verdicts(parts, slices)
            if merged is not None:
                return merged
            if not found:
                with self._server("look into"):
                    alive = self._client.exists(key)
                if not alive:
                    raise self._lost(attempt)
                if time.monotonic() >= deadline_s:
                    return None

    def answered(self, attempt: AttemptId) -> frozenset[int]:
        """The slices of an attempt that a verdict was given on so far."""
        key = self.verdict_key(attempt)
        entries = self.read({key: OPENED}).get(key, ())
        parts = (part for _, fields in entries for part in _verdicts(fields))
        return frozenset(partition for part in parts for partition in part.partitions)

    def sweep(self, up_to: Execution) -> int:
        """Delete what attempts of this execution and older ones left; returns how many keys."""
        pattern = matching(self._prefix)
        swept = 0
        with self._server("sweep"):
            for key in self._client.scan_iter(match=pattern + "*.*.*:*", count=1000):
                attempt = read_attempt(key.decode()[len(self._prefix) :].partition(":")[0])
                if attempt is not None and attempt.execution <= up_to:
                    swept += int(self._client.unlink(key))
        return swept

    def _attempt_keys(self, attempt: AttemptId, slices: int) -> list[str]:
        streams = [self.slice_key(attempt, p) for p in range(slices)]
        return [self.verdict_key(attempt), *streams]

    # -- ackers

    def attending(self) -> frozenset[str] | None:
        """Names of the ackers that read from the server; None where it does not say that.

        The connection of one whose process has ended is gone; that of one whose host went as well,
        or that hangs, asks for nothing any more.
        """
        with self._server("look into"):
            try:
                listed = self._client.client_list()
            except redis.exceptions.NoPermissionError:
                return None
        ours = reader_name(self._uid, "")
        names = (
            str(one.get("name", "")) for one in listed if int(one.get("idle", 0)) < ATTENDING_S
        )
        return frozenset(name.removeprefix(ours) for name in names if name.startswith(ours))

    def tell_load(self, name: str, load: AckerLoad) -> None:
        """Say what the acker ``name`` has used in its life."""
        key = self._prefix + "load"
        said = {name: repr(load.cpu_s), name + _AT: repr(load.at_s)}
        with self._server("write to"), self._client.pipeline(transaction=False) as pipe:
            pipe.hset(key, mapping=said)
            pipe.expire(key, LOAD_KEPT_S)
            pipe.execute()

    def loads(self) -> dict[str, AckerLoad]:
        """What ackers said of themselves, but for those of a release that did not say when."""
        with self._server("look into"):
            found = self._client.hgetall(self._prefix + "load")
        said = {name.decode(): float(number) for name, number in found.items()}
        return {
            name: AckerLoad(cpu_s, said[name + _AT])
            for name, cpu_s in said.items()
            if name + _AT in said
        }

    def read(
        self, after: Mapping[str, str], count: int | None = None, block_s: float = 0.0
    ) -> dict[str, list[Entry]]:
        """Entries behind the given id of each stream (key -> id), at most ``count`` of each.

        Waits up to ``block_s`` seconds, less if the client's timeout is short; empty then.
        """
        block_ms = int(min(block_s, self._block_s) * 1000) or None
        with self._server("read"):
            reply = self._client.xread(dict(after), count=count, block=block_ms)
        if isinstance(reply, dict):  # RESP3
            return {key.decode(): _entries(groups[0]) for key, groups in reply.items()}
        return {key.decode(): _entries(entries) for key, entries in reply or ()}

    def fetch(
        self, key: str, entries: Iterable[str], most: int = _FETCH_ENTRIES
    ) -> Iterator[Mapping[bytes, bytes] | None]:
        """Single entries by id, ``None`` for one that is gone; a few at a time in memory, and no
        more than ``most``."""
        wanted, count = list(entries), min(most, _FETCH_ENTRIES)
        for start in range(0, len(wanted), count):
            with self._server("read again"):
                pipe = self._client.pipeline(transaction=False)
                for entry in wanted[start : start + count]:
                    pipe.xrange(key, entry, entry)
                replies = pipe.execute()
            for reply in replies:
                yield reply[0][1] if reply else None

    def answer(self, attempt: AttemptId, verdicts: Sequence[Verdict]) -> None:
        """Add verdicts on single slices, unless the attempt is over."""
        trivial = [v for v in verdicts if _is_trivial(v)]
        fields = {f"{v.partitions[0]}": codec.encode(v) for v in verdicts if not _is_trivial(v)}
        if trivial:
            # Many slices have no root: one value for all of them.
            partitions = tuple(p for v in trivial for p in v.partitions)
            fields["empty"] = codec.encode(Verdict(attempt, partitions, 0, (), True))
        with self._server("answer to"):
            told = [part for field in fields.items() for part in field]
            self._answer_script(keys=[self.verdict_key(attempt)], args=told)

    # -- errors

    def _lost(self, attempt: AttemptId) -> AckLogLostError:
        return AckLogLostError(
            f"ack log of topology {self._uid}: window {attempt.window}, attempt "
            f"{attempt.attempt} of execution {attempt.execution} is over or its log is lost; "
            "a new attempt is needed"
        )

    def _refused(self, execution: Execution, error: redis.ResponseError) -> Exception:
        """What a refusal of the control script means; other errors are passed through."""
        if "NOLOG" in str(error):
            return AckLogLostError(
                f"ack log of topology {self._uid}: its control stream is gone; begin it again"
            )
        if "FENCED" not in str(error):
            return error
        newer = str(error).rpartition(" ")[2]
        return FencedError(
            f"ack log of topology {self._uid}: execution {newer} has taken over from "
            f"execution {execution}; this driver must stop"
        )

    def _full(self) -> AckLogFullError:
        used = ""
        with suppress(redis.RedisError):  # it may have gone since
            used = f"; {memory_of(self._client)} are used"
        return AckLogFullError(
            f"the memory of the state server that holds the ack log of topology {self._uid} is "
            "full; raise its maxmemory (spec.stateServers.memory where Millrace starts it), or "
            f"have less state (fewer keys, smaller windows){used}"
        )

    @contextmanager
    def _server(self, doing: str) -> Iterator[None]:
        try:
            yield
        except redis.RedisError as error:
            trouble = trouble_of(error)
            if trouble is Trouble.FULL:
                raise self._full() from error
            kind = AckLogAwayError if trouble is Trouble.AWAY else StateServerError
            raise kind(
                f"cannot {doing} the ack log of topology {self._uid}: {error}; is the state "
                "server up, with the right password and memory left?"
            ) from error


def _in_calls(messages: Sequence[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """Messages as they are added together."""
    some: list[tuple[int, bytes]] = []
    size = 0
    for message in messages:
        if some and size + len(message[1]) > _APPEND_BYTES:
            yield some
            some, size = [], 0
        some.append(message)
        size += len(message[1])
    if some:
        yield some


def moment_of(entry: str) -> tuple[int, int]:
    """What orders the ids of a stream's entries."""
    millis, _, place = entry.partition("-")
    return int(millis), int(place)


def decode_control(fields: Mapping[bytes, bytes]) -> ControlEntry:
    """The control entry in a log entry's fields.

    Raises ``NewerFormatError`` for one of a newer release and ``ProtocolError`` for a damaged one.
    """
    for name, data in fields.items():
        kind = _KINDS.get(name.decode(errors="replace"))
        if kind is None:
            raise NewerFormatError(
                f"control entry of kind {name!r} is not known to this release; upgrade the acker"
            )
        return codec.decode(kind, data)
    raise ProtocolError("control entry without a field: something else wrote to the ack log")


def _entries(found: Iterable[tuple[bytes, Mapping[bytes, bytes]]]) -> list[Entry]:
    return [(entry.decode(), fields) for entry, fields in found]


def _is_trivial(verdict: Verdict) -> bool:
    return not verdict.complete and not verdict.incomplete and verdict.window_complete


def _verdicts(fields: Mapping[bytes, bytes]) -> Iterator[Verdict]:
    for name, data in fields.items():
        if name == b"open":
            continue  # a driver of an older release made the stream
        verdict = codec.decode(Verdict, data)
        if name == b"empty":
            for partition in verdict.partitions:
                yield Verdict(verdict.id, (partition,), 0, (), True)
        else:
            yield verdict
