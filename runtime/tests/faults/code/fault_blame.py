"""What fails without being any root's fault, where orders say so.

``Breaking`` is a transport whose plumbing fails in the attempts up to ``breaks.attempts`` of the
window ``breaks.window``. ``forget`` ends its worker, and what would have told what the worker did
is gone, as on a full disk. ``keyed`` has no key for lines that begin with "bad".
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from fault_orders import attempt, orders

from millrace import row
from millrace.engine.task.blackbox import FOLDER_VARIABLE
from millrace.engine.task.exchange import Parcel, Transport
from millrace.protocol.types import Staged
from millrace.sinks.files import FileSink


class Breaking(Transport):
    def send(self, parcels: Sequence[Parcel]) -> Iterator[tuple[int, bytes]]:
        _, window, number = attempt()
        order = orders().get("breaks")
        if order and window == order["window"] and number <= order["attempts"]:
            raise AssertionError("the plumbing does not know this type")
        yield from super().send(parcels)


@row(output="word string")
def forget(line: dict[str, Any]) -> dict[str, Any]:
    if orders().get("forget"):
        note = Path(os.environ[FOLDER_VARIABLE]) / f"{os.getpid()}.note"
        note.write_bytes(b"")
        os._exit(7)
    return {"word": line["value"]}


@row(output="word string, n long")
def keyed(line: dict[str, Any]) -> dict[str, Any]:
    word = line["value"]
    return {"word": None if word.startswith("bad") else word, "n": len(word)}


class Refusing(FileSink):
    """Cannot stage anything until the file ``mended`` lies beside its folder."""

    def stage(self, name: str, batches: Sequence[pa.RecordBatch]) -> Staged | None:
        if not (self.folder / "mended").exists():
            raise RuntimeError("the table is locked")
        return super().stage(name, batches)
