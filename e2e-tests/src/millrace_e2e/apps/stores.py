"""Sinks of a user's own for histories: one that tells what it shows, and one that cannot."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.errors import FencedError, SinkError
from millrace.protocol.types import Sealed, Staged
from millrace.sinks.base import Sink, StepHook


class Mute(Sink):
    """One JSON file, replaced whole: whose it is, whom it serves, digests and rows by window."""

    @property
    def path(self) -> Path:
        return self.folder / str(self.options["file"])

    def prepare(self, uid: str, fresh: bool = False, overwrite: bool = False) -> None:
        held = self.read()
        if held and held["uid"] != uid:
            raise SinkError(f"sink {self.name!r}: {self.path} belongs to another topology")
        if not held:
            self.write({"uid": uid, "execution": 0, "shown": {}, "rows": []})

    def fence(self, execution: int) -> None:
        held = self.checked(execution)
        self.write({**held, "execution": execution})

    def stage(self, name: str, batches: Sequence[pa.RecordBatch]) -> Staged | None:
        return self.stage_rows(name, batches)

    def publish(
        self,
        sealed: Sealed,
        mine: Sequence[Staged],
        execution: int,
        step: StepHook | None = None,
    ) -> None:
        held = self.checked(execution)
        digest = held["shown"].get(str(sealed.window))
        if digest not in (None, sealed.digest):
            raise SinkError(f"sink {self.name!r}: window {sealed.window} is another")
        if digest is None:
            held["shown"][str(sealed.window)] = sealed.digest
            held["rows"] += [row for one in mine for row in self.staged_rows(one).to_pylist()]
            self.write(held)

    def checked(self, execution: int) -> dict[str, Any]:
        held = self.read()
        if held["execution"] > execution:
            raise FencedError(f"sink {self.name!r} serves a newer execution")
        return held

    def read(self) -> dict[str, Any]:
        """Empty before the first start."""
        try:
            found: dict[str, Any] = json.loads(self.path.read_text())
        except FileNotFoundError:
            return {}
        return found

    def write(self, document: dict[str, Any]) -> None:
        draft = self.path.with_suffix(".draft")
        with draft.open("w") as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path)


class Telling(Mute):
    def last_shown(self) -> tuple[int, str] | None:
        shown = self.read()["shown"]
        last = max(map(int, shown), default=None)
        return None if last is None else (last, shown[str(last)])
