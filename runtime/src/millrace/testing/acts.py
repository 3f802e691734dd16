"""What a copy of a source or sink can be asked to do, and how its answers are told.

Answers that break a rule by their very form are told as ``{"rule", "seen"}`` under ``broken``.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.errors import SinkError
from millrace.protocol.types import Replay, RootRange, Sealed, Staged
from millrace.sinks.base import Sink
from millrace.sources.base import Acked, ReadBatch, Source, SourcePlan, range_of
from millrace.testing import wire

Arguments = Mapping[str, Any]


class FolderArea:
    """A staging area that outlives its processes, as the engine's on its state servers does."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, name: str) -> Path:
        """Where an object lies."""
        return self._folder / hashlib.sha256(name.encode()).hexdigest()

    def put(self, name: str, data: bytes) -> None:
        path = self.path(name)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_bytes(data)
        draft.replace(path)

    def get(self, name: str, digest: str) -> bytes:
        try:
            return self.path(name).read_bytes()
        except FileNotFoundError:
            raise SinkError(f"{name}: these staged rows are gone") from None


def _broken(rule: str, seen: str) -> dict[str, Any]:
    return {"broken": {"rule": rule, "seen": seen}}


# -- sinks


def _prepare(sink: Sink, args: Arguments) -> None:
    sink.prepare(args["uid"], args["fresh"], args["overwrite"])


def _check_fresh(sink: Sink, args: Arguments) -> None:
    sink.check_fresh(args["overwrite"])


def _fence(sink: Sink, args: Arguments) -> None:
    sink.fence(args["execution"])


def _stage(sink: Sink, args: Arguments) -> Any:
    staged = sink.stage(args["name"], wire.unpack_batches(args["batches"]))
    if staged is None:
        return {"staged": None}
    if not isinstance(staged, Staged):
        return _broken("staged", f"stage() gave {staged!r}, which is no Staged")
    problem = wire.json_problem(staged.locator, "its locator")
    if problem is not None:
        return _broken("staged", f"stage() gave {staged!r}: {problem}")
    return {"staged": wire.pack(staged)}


def _publish(sink: Sink, args: Arguments) -> None:
    sealed: Sealed = wire.unpack(Sealed, args["sealed"])
    mine = [staged for staged in sealed.staged if staged.sink == sink.name]
    sink.publish(sealed, mine, args["execution"])


def _verify(sink: Sink, args: Arguments) -> None:
    sink.verify([wire.unpack(Staged, text) for text in args["staged"]])


def _discard(sink: Sink, args: Arguments) -> None:
    names = set(args["names"])
    sink.discard(lambda name: name in names)


def _last_shown(sink: Sink, _: Arguments) -> Any:
    try:
        shown = sink.last_shown()
    except NotImplementedError:
        return {"kept": False}
    return {"kept": True, "shown": None if shown is None else list(shown)}


SINK_ACTS: Mapping[str, Callable[[Any, Arguments], Any]] = {
    "prepare": _prepare,
    "check_fresh": _check_fresh,
    "fence": _fence,
    "stage": _stage,
    "publish": _publish,
    "verify": _verify,
    "discard": _discard,
    "last_shown": _last_shown,
    "check": lambda sink, _: sink.check(),
    "close": lambda sink, _: sink.close(),
}

# -- sources

Part = dict[str, Any]


def _schema(source: Source, _: Arguments) -> Any:
    found = source.schema()
    if not isinstance(found, pa.Schema):
        return _broken("schema", f"schema() gave {found!r}, which is no pyarrow.Schema")
    return {"schema": wire.pack_batches([], found)}


def _plan(source: Source, args: Arguments) -> Any:
    plan = source.plan(args["offsets"], args["max_records"])
    if not isinstance(plan, SourcePlan):
        return _broken("plan", f"plan() gave {plan!r}, which is no SourcePlan")
    ranges = list(plan.ranges)
    strange = [piece for piece in ranges if not isinstance(piece, RootRange)]
    if strange:
        return _broken("plan", f"plan() gave the range {strange[0]!r}, which is no RootRange")
    values = [(plan.offsets, "offsets"), *((r.locator, "a range's locator") for r in ranges)]
    for value, name in values:
        problem = wire.json_problem(value, name)
        if problem is not None:
            return _broken("json", f"plan() gave what is no JSON: {problem}")
    return {
        "ranges": [wire.pack(piece) for piece in ranges],
        "offsets": plan.offsets,
        "drained": bool(plan.drained),
        "lag": plan.lag_records,
    }


def _told(batch: Any) -> Part:
    if not isinstance(batch, ReadBatch):
        return _broken("read", f"read() yields {batch!r}, which is no ReadBatch")
    data = wire.pack_batches([batch.data], batch.data.schema)
    try:
        places = batch.places()
    except ValueError as problem:
        return _broken("read", f"read() gave {problem}")
    return {
        "data": data,
        "errors": [list(error) for error in batch.errors],
        "places": None if places is None else places.tolist(),
        "offsets": batch.offsets,
    }


def _read(source: Source, args: Arguments) -> list[Part]:
    return [_told(batch) for batch in source.read(wire.unpack(RootRange, args["piece"]))]


def _read_two(source: Source, args: Arguments) -> list[list[Part]]:
    """Two ranges, a batch of each in turn, behind a third reader that is left half-way."""
    pieces = [wire.unpack(RootRange, text) for text in args["pieces"]]
    left = source.read(pieces[0])
    next(iter(left), None)
    readers: list[Iterator[Any] | None] = [iter(source.read(piece)) for piece in pieces]
    parts: list[list[Part]] = [[] for _ in pieces]
    while any(readers):
        for number, reader in enumerate(readers):
            if reader is None:
                continue
            batch = next(reader, None)
            if batch is None:
                readers[number] = None
            else:
                parts[number].append(_told(batch))
    return parts


def _split(source: Source, args: Arguments) -> Any:
    piece = wire.unpack(RootRange, args["piece"])
    before = wire.pack(piece)
    both = source.split(piece, args["at"])
    if wire.pack(piece) != before:
        return _broken("split", f"split() changed the range it was given: {before}")
    for half in both:
        problem = wire.json_problem(half.locator, "a half's locator")
        if problem is not None:
            return _broken("json", f"split() gave what is no JSON: {problem}")
    return {"halves": [wire.pack(half) for half in both]}


def _locate(source: Source, args: Arguments) -> Any:
    locator = source.locate(wire.unpack(RootRange, args["piece"]), args["index"])
    problem = wire.json_problem(locator, "its locator")
    if problem is not None:
        return _broken("json", f"locate() gave what is no JSON: {problem}")
    return {"locator": locator}


def _read_replay(source: Source, args: Arguments) -> list[Part]:
    replay = wire.unpack(Replay, args["replay"])
    return [_told(batch) for batch in source.read(range_of(replay))]


def _payload(source: Source, args: Arguments) -> Any:
    payload = source.payload(wire.unpack(Replay, args["replay"]))
    if not isinstance(payload, bytes):
        return _broken("payload", f"payload() gave {payload!r}, which is no bytes")
    return {"payload": base64.b64encode(payload).decode()}


def _on_ack(source: Source, args: Arguments) -> None:
    ranges = tuple(wire.unpack(RootRange, text) for text in args["ranges"])
    failed = frozenset((partition, offset) for partition, offset in args["failed"])
    source.on_ack(Acked(args["window"], ranges, failed=failed))


def _on_fail(source: Source, args: Arguments) -> None:
    source.on_fail([wire.unpack(Replay, text) for text in args["letters"]])


def _lag(source: Source, args: Arguments) -> Any:
    lag = source.lag(args["offsets"])
    if lag is not None and (type(lag) is not int or lag < 0):
        return _broken("words", f"lag() gave {lag!r}, which is neither None nor a count")
    return None


def _place(source: Source, args: Arguments) -> Any:
    try:
        place = source.place(wire.unpack(Replay, args["replay"]))
    except Exception:  # noqa: BLE001 whatever it raises is allowed
        return None
    if not isinstance(place, str):
        return _broken("words", f"place() gave {place!r}, which is no text")
    return None


SOURCE_ACTS: Mapping[str, Callable[[Any, Arguments], Any]] = {
    "schema": _schema,
    "plan": _plan,
    "read": _read,
    "read_two": _read_two,
    "split": _split,
    "locate": _locate,
    "read_replay": _read_replay,
    "payload": _payload,
    "lag": _lag,
    "place": _place,
    "check": lambda source, _: source.check(),
    "on_ack": _on_ack,
    "on_fail": _on_fail,
    "close": lambda source, _: source.close(),
}
