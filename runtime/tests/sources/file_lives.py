"""What tests of files that live share: a driver with its workers, rows, and restless names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from millrace.protocol.types import Json, RootRange
from millrace.sources.files import FileSource


class Reader:
    """Plans and reads like a driver and its workers; ``restart`` forgets all but the offsets."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.options: dict[str, Any] = {"path": "in", **options}
        self.offsets: Json = None
        self.drained = False
        self.restart()

    def restart(self) -> None:
        self.source = FileSource("lines", self.options, self.folder)
        self.offsets = json.loads(json.dumps(self.offsets))

    def plan(self, limit: int = 1_000_000) -> tuple[RootRange, ...]:
        plan = self.source.plan(self.offsets, limit)
        self.offsets, self.drained = plan.offsets, plan.drained
        return plan.ranges

    def rows(self, piece: RootRange) -> list[str]:
        return [v for part in self.source.read(piece) for v in part.data.column(0).to_pylist()]

    def take(self, limit: int = 1_000_000) -> list[str]:
        return [row for piece in self.plan(limit) for row in self.rows(piece)]


def lines(name: str, count: int, width: int = 0) -> list[str]:
    return [f"{name} {i:06d}{' ' + 'x' * width if width else ''}" for i in range(count)]


def write(path: Path, rows: list[str]) -> None:
    path.write_text("".join(f"{row}\n" for row in rows))


def append(path: Path, rows: list[str]) -> None:
    with path.open("a") as file:
        file.write("".join(f"{row}\n" for row in rows))


class Restless:
    """Names change between any two listings, none of which shows a file; a clock goes on."""

    def __init__(self, inbox: Path, step_s: float) -> None:
        self.inbox, self.step_s, self.passed_s, self.looks = inbox, step_s, 0.0, 0

    def now_s(self) -> float:
        return self.passed_s

    def monotonic_s(self) -> float:
        return self.passed_s

    def look(self, *_: Any) -> dict[str, Any]:
        self.looks += 1
        self.passed_s += self.step_s
        (self.inbox / f"_{self.looks}").touch()
        return {}
