"""The redis sink: each window in one script, together with its marker.

The marker of a target (a key template or a stream) is the hash ``millrace:sink:<target>`` with the
fields ``uid``, ``sink``, ``execution`` (lower ones are refused), ``window`` (the last that is
shown) and ``d:<w>`` (the digests of the last windows). The publishing script checks it, writes
the rows and moves it on. Redis runs a script whole and writes its effects to the append-only file
whole, so if either process dies the window is shown or it is not. What a crash of the server
itself keeps is up to its own settings; with an append-only file a window counts as shown when it
is in that file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.resources import files
from itertools import chain, islice
from pathlib import Path
from typing import Any, assert_never

import pyarrow as pa
import pyarrow.compute as pc
import redis

from millrace.addresses import OWN_KEYS, place_of, redis_fault, redis_remedy
from millrace.errors import FencedError, SinkError
from millrace.protocol.types import Sealed, Staged
from millrace.redisserver import Trouble, open_client, trouble_of
from millrace.sinks.base import (
    RowsRefusedError,
    Sink,
    SinkFullError,
    SinkUnavailableError,
    StepHook,
    passed,
)
from millrace.sinks.encode import misfits
from millrace.sinks.values import as_text, is_number, plain

KEPT_WINDOWS = 16
"""Digests that are kept of windows below the last one, so that another one is noticed."""

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 120.0
SYNC_TIMEOUT_MS = 30_000

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


class RedisSink(Sink):
    """Options: ``url``, ``mode`` (hash or stream), ``key`` (template) or ``stream`` (name), and
    ``password``, where it is not in the url.

    In mode hash each row is an upsert of the hash that its key columns name: the other columns
    become fields, null deletes one. In mode stream each row is an entry with the id
    ``<window>-<n>`` and a field for each column that is not null. Without a staging area rows are
    staged in the server itself.
    """

    def __init__(self, name: str, options: Mapping[str, Any], folder: Path) -> None:
        super().__init__(name, options, folder)
        self.url = str(self.options["url"])
        self._password: str | None = self.options.get("password")
        fault = redis_fault(self.url, apart=self._password is not None)
        if fault is not None:
            raise SinkError(f"sink {name!r}: redis.url {fault}; {redis_remedy()}")
        self.mode = str(self.options.get("mode", "hash"))
        wanted = {"hash": "key", "stream": "stream"}.get(self.mode)
        if wanted is None:
            raise SinkError(
                f"sink {name!r}: redis.mode {self.mode!r} is not known; use hash or stream"
            )
        if not self.options.get(wanted):
            raise SinkError(f"sink {name!r}: redis.{wanted} is missing in mode {self.mode}; add it")
        self.target = str(self.options[wanted])
        self.marker = f"{OWN_KEYS}sink:{self.target}"
        self._uid = ""
        self._fenced = 0

    @property
    def shown_url(self) -> str:
        """The server's address without the password."""
        return place_of(self.url)

    # -- whose target it is

    def prepare(self, uid: str, fresh: bool = False, overwrite: bool = False) -> None:
        with self._server():
            owner, name = map(_text, self._client.hmget(self.marker, "uid", "sink"))
            # Without a name: a driver died between the two lines that write them.
            if owner == uid and name not in (None, self.name):
                raise SinkError(
                    f"sink {self.name!r}: {self.target!r} at {self.shown_url} belongs to the sink "
                    f"{name!r}; give each sink keys of its own"
                )
            if owner != uid:
                self._make_room(owner, fresh, overwrite)
            self._client.hsetnx(self.marker, "uid", uid)
            self._client.hsetnx(self.marker, "sink", self.name)
            if _text(self._client.hget(self.marker, "uid")) != uid:
                raise self._taken()
            self._sync()
        self._uid = uid

    def check(self) -> None:
        with self._server():
            self._client.ping()

    def check_fresh(self, overwrite: bool) -> None:
        with self._server():
            owner = _text(self._client.hget(self.marker, "uid"))
            self._check_room(owner, fresh=True, overwrite=overwrite)

    def _make_room(self, owner: str | None, fresh: bool, overwrite: bool) -> None:
        """Empty the target of what another life of a topology left, if that is asked for."""
        self._check_room(owner, fresh, overwrite)
        if owner is None:
            return
        # The marker goes last, so that a crash leaves the rest to be done again.
        for keys in _batches(self._keys()):
            mine = self._written(keys)
            if mine:
                self._client.unlink(*mine)
        self._client.unlink(self.marker)

    def _written(self, keys: Sequence[bytes]) -> list[bytes]:
        """Those of ``keys`` that hold nothing but fields that this sink has written."""
        if self.mode == "stream":
            return list(keys)
        marked: list[Any] = self._client.hkeys(self.marker)
        fields = {name.removeprefix(b"f:") for name in marked if name.startswith(b"f:")}
        pipe = self._client.pipeline(transaction=False)
        for key in keys:
            pipe.hkeys(key)
        held = zip(keys, pipe.execute(), strict=True)
        return [key for key, names in held if fields.issuperset(names)]

    def _check_room(self, owner: str | None, fresh: bool, overwrite: bool) -> None:
        """Raises ``SinkError`` where something is held that may not be deleted."""
        held = next(self._keys(), None)
        if owner is None and held is None:
            return
        if owner is None or not fresh or (held is not None and not overwrite):
            whose = (
                "that no topology marked"
                if owner is None
                else ("of another topology or of an earlier life of this one")
            )
            what = f"the key {held.decode(errors='replace')!r}" if held is not None else "a marker"
            remedy = (
                ""
                if owner is None
                else (", or delete what Millrace wrote with --fresh --overwrite")
            )
            raise SinkError(
                f"sink {self.name!r}: {self.target!r} at {self.shown_url} holds {what} {whose}; "
                f"use other keys{remedy}"
            )

    def _keys(self) -> Iterator[bytes]:
        """Keys that rows of this sink have or could have."""
        if self.mode == "stream":
            yield from [self.target.encode()] if self._client.exists(self.target) else []
            return
        escaped = [re.sub(r"([\\*?\[\]])", r"\\\1", part) for part in self._template[::2]]
        for key in self._client.scan_iter("*".join(escaped), count=1000, _type="hash"):
            if not key.startswith(OWN_KEYS.encode()):
                yield key

    def fence(self, execution: int) -> None:
        with self._server():
            self._answer(self._fence(keys=[self.marker], args=[self._uid, execution]))
            self._fenced = execution

    def last_shown(self) -> tuple[int, str] | None:
        with self._server():
            owner, window = map(_text, self._client.hmget(self.marker, "uid", "window"))
            if owner != self._uid:
                raise self._taken()
            if window is None:
                return None
            return int(window), _text(self._client.hget(self.marker, f"d:{window}")) or ""

    # -- in workers

    def stage(self, name: str, batches: Sequence[pa.RecordBatch]) -> Staged | None:
        rows = self._checked_rows(batches)
        with self._server():
            return self.stage_rows(name, rows)

    def _checked_rows(self, batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        """The rows with texts where making them can fail, so that they are made once.

        Raises ``RowsRefusedError`` for rows that could not be published: by then it is too late,
        since they are sealed.
        """
        made: list[pa.RecordBatch] = []

        def encode(batch: pa.RecordBatch) -> None:
            made.append(_with_texts(batch))

        bad = misfits(encode, batches)
        bad = {
            place: f"sink {self.name!r}: the row cannot be written: {text}; mend the value before "
            "it reaches the sink"
            for place, text in bad.items()
        }
        first = 0
        for batch in batches:
            for column in self._template[1::2] if self.mode == "hash" else ():
                told = f"sink {self.name!r}: the column {column!r} of redis.key {self.target!r}"
                remedy = "a row needs a value for its key: filter such rows out"
                if column not in batch.schema.names:
                    raise SinkError(f"{told} does not exist; {remedy}")
                if batch.column(column).null_count:
                    nulls = pc.indices_nonzero(batch.column(column).is_null()).to_pylist()
                    bad |= {first + n: f"{told} is null in a row; {remedy}" for n in nulls}
            first += batch.num_rows
        # Of a batch that failed as a whole rows are missing.
        whole = sum(part.num_rows for part in made) == first
        bad |= self._of_others(made) if whole and not bad else {}
        if bad:
            raise RowsRefusedError(dict(sorted(bad.items())))
        return made if whole else batches

    def _of_others(self, batches: Sequence[pa.RecordBatch]) -> dict[int, str]:
        """The places of rows whose keys are those of Millrace, as only values can make them."""
        if self.mode != "hash" or not OWN_KEYS.startswith(self._template[0]):
            return {}
        keys = [key for batch in batches for key in self._keys_of(batch)]
        told = f"sink {self.name!r}: the row cannot be written: its key begins with {OWN_KEYS}, as"
        why = "Millrace's own do; filter such rows out, or put a text in front in redis.key"
        return {n: f"{told} {why}" for n, key in enumerate(keys) if key.startswith(OWN_KEYS)}

    # -- on the driver

    def verify(self, mine: Sequence[Staged]) -> None:
        with self._server():
            for staged in mine:
                self.staged_bytes(staged)

    def publish(
        self,
        sealed: Sealed,
        mine: Sequence[Staged],
        execution: int,
        step: StepHook | None = None,
    ) -> None:
        with self._server():
            marker = [self._uid, execution, sealed.window, sealed.digest, KEPT_WINDOWS]
            asked = self._answer(self._check(keys=[self.marker], args=marker))
            if asked == b"DONE":
                self._sync()
                return
            tables = [self.staged_rows(staged) for staged in mine]
            if len({tuple(table.schema.names) for table in tables}) > 1:
                raise SinkError(
                    f"sink {self.name!r}: parts of window {sealed.window} have other columns than "
                    "others; nothing of the window is shown. Start over with --fresh"
                )
            rows = self._hash_rows(tables) if self.mode == "hash" else self._stream_rows(tables)
            passed(step, "loaded")
            self._answer(self._publish(keys=[self.marker], args=[*marker, self.mode, *rows]))
            self._sync()
            passed(step, "transaction")
            if self.staging is None and mine:
                self._client.unlink(*(self._own.key(staged.name) for staged in mine))

    @property
    def retracts(self) -> bool:
        """A stream takes no id again, also where its entry was deleted."""
        return self.mode == "hash"

    def retract(self, window: int) -> None:
        """Hashes stay as they are, to be written over as the windows come again."""
        if not self.retracts:
            raise NotImplementedError
        with self._server():
            mine = [self._uid, window, self._fenced]
            self._answer(self._retract(keys=[self.marker], args=mine))
            self._sync()

    def discard(self, covers: Callable[[str], bool]) -> None:
        if self.staging is not None:
            return
        with self._server():
            prefix = self._own.key("")
            pattern = re.sub(r"([\\*?\[\]])", r"\\\1", prefix) + "*"
            for key in self._client.scan_iter(pattern, count=1000):
                if covers(key.decode().removeprefix(prefix)):
                    self._client.unlink(key)

    def close(self) -> None:
        if "_client" in self.__dict__:
            self._client.close()

    def _area(self) -> Any:
        return self.staging or self._own

    def _hash_rows(self, tables: Sequence[pa.Table]) -> list[Any]:
        """Arguments: number of fields, their names, then for each row its key and its values."""
        args: list[Any] = []
        for table in tables:
            names = self._field_names(table.schema.names)
            if not args:
                args = [len(names), *names]
            for batch in table.to_batches():
                columns = [self._keys_of(batch), *(_marked(batch.column(n)) for n in names)]
                args += chain.from_iterable(zip(*columns, strict=True))
        return args or [0]

    def _stream_rows(self, tables: Sequence[pa.Table]) -> list[Any]:
        """Arguments: the stream, number of fields, their names, then the values of each row."""
        args: list[Any] = []
        for table in tables:
            names = table.schema.names
            if not args:
                args = [self.target, len(names), *names]
            for batch in table.to_batches():
                columns = [_marked(column) for column in batch.columns]
                args += chain.from_iterable(zip(*columns, strict=True))
        return args or [self.target, 0]

    def _field_names(self, columns: Sequence[str]) -> list[str]:
        """The columns that are not part of the key, or all where there is no other."""
        others = [c for c in columns if c not in self._template[1::2]]
        return others or list(columns)

    def _keys_of(self, batch: pa.RecordBatch) -> list[Any]:
        parts = [
            as_text(plain(batch.column(part))) if number % 2 else part
            for number, part in enumerate(self._template)
        ]
        keys: list[Any] = pc.binary_join_element_wise(*parts, "").to_pylist()
        return keys

    @cached_property
    def _template(self) -> list[str]:
        """The key template: texts at even places, columns at odd ones."""
        return _PLACEHOLDER.split(self.target)

    # -- the server

    @cached_property
    def _client(self) -> redis.Redis:
        return open_client(
            self.url, self._password, connect_s=CONNECT_TIMEOUT_S, answer_s=ANSWER_TIMEOUT_S
        )

    @cached_property
    def _fence(self) -> Any:
        return self._client.register_script(_script("fence"))

    @cached_property
    def _retract(self) -> Any:
        return self._client.register_script(_script("retract"))

    @cached_property
    def _check(self) -> Any:
        return self._client.register_script(_script("check"))

    @cached_property
    def _publish(self) -> Any:
        return self._client.register_script(_script("check") + _script("publish"))

    @cached_property
    def _own(self) -> _OwnArea:
        return _OwnArea(self)

    @cached_property
    def _appends(self) -> bool:
        """Whether the server has an append-only file."""
        return bool(self._client.info("persistence").get("aof_enabled"))

    def _sync(self) -> None:
        """Wait until what was written is in the append-only file, where there is one."""
        if self._appends:
            answer = self._client.waitaof(1, 0, SYNC_TIMEOUT_MS)
            if answer[0] < 1:
                raise SinkUnavailableError(
                    f"sink {self.name!r}: {self.shown_url} did not write its append-only file "
                    f"within {SYNC_TIMEOUT_MS / 1000:.0f} s; it is tried again"
                )

    def _answer(self, answer: Any) -> Any:
        """A script's answer; what it refused is raised."""
        kind, detail = answer[0], answer[1].decode(errors="replace") if len(answer) > 1 else ""
        if kind == b"FENCED":
            raise FencedError(
                f"sink {self.name!r}: {self.target!r} at {self.shown_url} serves execution "
                f"{detail}; a newer run of the topology has taken over"
            )
        if kind == b"FOREIGN":
            raise self._taken()
        if kind == b"CONFLICT":
            raise SinkError(
                f"sink {self.name!r}: {self.target!r} at {self.shown_url} already shows this "
                f"window with the digest {detail}; nothing was changed. Two topologies may share "
                "it: give each keys of its own"
            )
        if kind == b"SKIPPED":
            raise SinkError(
                f"sink {self.name!r}: {self.target!r} at {self.shown_url} shows windows up to "
                f"{detail}, but never showed this one; two topologies may share it: give each "
                "keys of its own"
            )
        if kind == b"OWN":
            raise SinkError(
                f"sink {self.name!r}: a row has the key {detail!r}, which is Millrace's own; "
                "nothing of the window is shown. Use another redis.key, and start over with --fresh"
            )
        if kind == b"TYPE":
            raise SinkError(
                f"sink {self.name!r}: the key {detail!r} at {self.shown_url} is no "
                f"{self.mode}; nothing of the window is shown. Delete the key or use others"
            )
        if kind == b"AHEAD":
            raise SinkError(
                f"sink {self.name!r}: the stream {self.target!r} at {self.shown_url} has the entry "
                f"{detail}, which Millrace did not write; nothing of the window is shown. Use a "
                "stream of its own"
            )
        return kind

    def _taken(self) -> SinkError:
        return SinkError(
            f"sink {self.name!r}: {self.target!r} at {self.shown_url} belongs to another topology "
            "now; give each topology keys of its own"
        )

    @contextmanager
    def _server(self) -> Iterator[None]:
        """What goes wrong with the server becomes a ``SinkError`` that says what to do."""
        try:
            yield
        except (redis.RedisError, OSError) as error:
            raise self._said(error) from error

    def _said(self, error: redis.RedisError | OSError) -> SinkError:
        where = f"sink {self.name!r}: {self.shown_url}"
        match trouble_of(error):
            case Trouble.PASSWORD:
                given = "redis.url" if self._password is None else "what redis.password refers to"
                return SinkError(f"{where} refuses the password ({error}); correct {given}")
            case Trouble.FULL:
                return SinkFullError(
                    f"sink {self.name!r}: the memory of {self.shown_url} is full; raise its "
                    "maxmemory, then Millrace goes on. Nothing is lost"
                )
            case Trouble.AWAY | Trouble.LOADING:
                return SinkUnavailableError(
                    f"{where} does not answer ({error}); start it or correct redis.url. Nothing is "
                    "lost, it is tried again"
                )
            case Trouble.PASSING:
                return SinkUnavailableError(
                    f"{where} cannot write now ({error}). Nothing is lost, it is tried again"
                )
            case Trouble.OTHER:
                return SinkError(f"{where} answers: {error}")
            case other:
                assert_never(other)


class _OwnArea:
    """Staged rows in the target's own server."""

    def __init__(self, sink: RedisSink) -> None:
        self._sink = sink

    def key(self, name: str) -> str:
        return f"{OWN_KEYS}staged:{self._sink.target}:{name}"

    def put(self, name: str, data: bytes) -> None:
        self._sink._client.set(self.key(name), data)
        self._sink._sync()

    def get(self, name: str, digest: str) -> bytes:
        found = self._sink._client.get(self.key(name))
        if found is None:
            raise SinkError(
                f"sink {self._sink.name!r}: the staged rows {name} are gone from "
                f"{self._sink.shown_url}; give the server an append-only file. Start over with "
                "--fresh"
            )
        assert isinstance(found, bytes)
        return found


def _batches(keys: Iterator[bytes]) -> Iterator[list[bytes]]:
    while batch := list(islice(keys, 1000)):
        yield batch


def _marked(column: pa.Array) -> list[Any]:
    """Values as text behind ``=``; null is ``-``. Binary values go as they are."""
    column = plain(column)
    if pa.types.is_binary(column.type):
        return [b"-" if v is None else b"=" + v for v in column.to_pylist()]
    text = pc.binary_join_element_wise("=", as_text(column), "")
    marked: list[Any] = pc.fill_null(text, "-").to_pylist()
    return marked


def _with_texts(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch with texts in place of values that may have none; ``publish`` makes the others.

    Binary values stay, since they are shown as they are.
    """
    columns = []
    for column in map(plain, batch.columns):
        kind = column.type
        sure = is_number(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind)
        columns.append(column if sure else as_text(column))
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _text(value: Any) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _script(name: str) -> str:
    return files("millrace.sinks.scripts").joinpath(f"{name}.lua").read_text()
