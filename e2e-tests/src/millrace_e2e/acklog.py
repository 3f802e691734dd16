"""Reads the ack log's control stream as it is written, from outside and without the runtime's code.

What it says: which acker owns which slice of the windows that are open, and how many slices a
window that opens has. ``moves`` compares each change of owners with what it had to move at least.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from millrace_e2e import processes

SLICES_UNSAID = 16

Attempt = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Move:
    """A change of owners of a window that was open: of so many slices, what moved and had to."""

    slices: int
    moved: int
    least: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Opened:
    """A window that opened, and how many of its slices each acker then had."""

    attempt: Attempt
    slices: int
    shares: tuple[int, ...]


class Watcher:
    """Follows the control stream on a thread of its own; a context."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._entries: list[tuple[str, dict[str, Any]]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def opened(self) -> list[Opened]:
        """All windows that opened so far."""
        return [event for event in self._told() if isinstance(event, Opened)]

    def moves(self) -> list[Move]:
        """All changes of owners of windows that were open."""
        return [event for event in self._told() if isinstance(event, Move)]

    def _told(self) -> Iterator[Move | Opened]:
        slices: dict[Attempt, int] = {}
        tables: list[list[str]] = []
        execution = 0
        for kind, value in list(self._entries):
            if kind == "open":
                attempt = _attempt(value["id"])
                slices[attempt] = value.get("slices", SLICES_UNSAID)
                table = _of(tables, slices[attempt])
                if table:
                    yield Opened(attempt, slices[attempt], tuple(Counter(table).values()))
            if kind == "members":
                now = [value["owners"], *value.get("others", [])]
                if value["execution"] == execution:
                    live = {slices.get(_attempt(one), 0) for one in value["live"]}
                    for count in sorted(live):
                        before, after = _of(tables, count), _of(now, count)
                        if before and after:
                            yield _move(before, after)
                tables, execution = now, value["execution"]

    def _follow(self) -> None:
        last = "0-0"
        while not self._stopped.is_set():
            try:
                with self._client() as client:
                    while not self._stopped.is_set():
                        last = self._read(client, last)
            except (OSError, LookupError, ValueError, redis.RedisError):
                self._stopped.wait(0.1)  # not there yet, or gone for the moment

    def _view(self) -> dict[str, Any]:
        document = processes.read_json(self._work / "view.json") or {}
        found: dict[str, Any] = json.loads(document["view"])["value"]
        return found

    def _client(self) -> redis.Redis:
        first = self._view()["target"][0]
        password = (self._work / first["name"] / "password").read_text()
        return redis.Redis.from_url(first["url"], password=password, socket_timeout=5.0)

    def _read(self, client: redis.Redis, last: str) -> str:
        found: Any = client.xread({f"mr:{{{self._view()['uid']}}}:ack:ctl": last}, block=200)
        streams = found.values() if isinstance(found, dict) else [es for _, es in found or ()]
        for entries in streams:
            for entry, fields in entries:
                last = entry.decode()
                for kind, value in fields.items():
                    self._entries.append((kind.decode(), json.loads(value)["value"]))
        return last


def _attempt(value: dict[str, int]) -> Attempt:
    return value["execution"], value["window"], value["attempt"]


def _of(tables: Sequence[list[str]], slices: int) -> list[str]:
    """Owners of so many slices; none where what said so was trimmed before it was read."""
    return next((table for table in tables if len(table) == slices), [])


def _move(before: list[str], after: list[str]) -> Move:
    alive = sorted(set(after))
    held = sorted((before.count(name) for name in alive), reverse=True)
    small, larger = divmod(len(after), len(alive))
    kept = sum(min(n, small + (place < larger)) for place, n in enumerate(held))
    moved = sum(old != new for old, new in zip(before, after, strict=True))
    return Move(len(after), moved, len(after) - kept, len(set(before)), len(alive))
