"""``events.jsonl``: what happened to a topology, one JSON line for each event.

The driver writes the same file. A line is appended in one write to a file opened for it, so two
writers do not tear each other's lines and a rotation by either is followed by both.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from millrace.clock import Clock

MAX_BYTES = 2_000_000


@dataclass(frozen=True, slots=True)
class RunEvent:
    """``time`` is wall-clock time in seconds, ``kind`` a stable CamelCase reason."""

    time: float
    kind: str
    text: str
    window: int = 0
    warning: bool = False


class RunLog:
    """Appends events; ``trim`` once in a while keeps the file small."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock

    def add(self, kind: str, text: str, *, warning: bool = False) -> RunEvent:
        """Append an event; a full disk loses the line, not the run."""
        event = RunEvent(self._clock.now_s(), kind, text, warning=warning)
        line = json.dumps(asdict(event)) + "\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        with suppress(OSError):
            handle = os.open(self._path, flags, 0o600)
            try:
                os.write(handle, line.encode())
            finally:
                os.close(handle)
        return event

    def trim(self) -> None:
        """Put a large file aside; only while no driver runs, which has it open."""
        if self._path.exists() and self._path.stat().st_size > MAX_BYTES:
            self._path.replace(self._path.with_name(self._path.name + ".1"))


class EventFollower:
    """Reads events that were appended since the last look; starts at the file's end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = path.stat().st_size if path.exists() else 0
        self._inode = path.stat().st_ino if path.exists() else 0

    def new(self) -> Iterator[RunEvent]:
        """Events since the last call; half-written last lines wait for the next one."""
        try:
            file = self._path.open("rb")
        except (FileNotFoundError, NotADirectoryError):
            return
        with file:
            stat = os.fstat(file.fileno())
            if stat.st_ino != self._inode or stat.st_size < self._at:
                self._inode, self._at = stat.st_ino, 0
            file.seek(self._at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.splitlines():
            event = _parsed(line)
            if event is not None:
                yield event


def _parsed(line: bytes) -> RunEvent | None:
    try:
        fields: dict[str, Any] = json.loads(line)
        return RunEvent(
            float(fields["time"]),
            str(fields["kind"]),
            str(fields["text"]),
            int(fields.get("window", 0)),
            bool(fields.get("warning", False)),
        )
    except (ValueError, KeyError, TypeError):
        return None
