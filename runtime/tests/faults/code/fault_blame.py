"""What fails without being any root's fault, where orders say so.

``Breaking`` is a transport whose plumbing fails in the attempts up to ``breaks.attempts`` of the
window ``breaks.window``. ``forget`` ends its worker, and what would have told what the worker did
is gone. ``keyed`` has no key for lines that begin with "bad". ``deadly`` ends
its worker in the way that the line names.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from fault_orders import attempt, orders

from millrace import row
from millrace.engine.task import blackbox
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
        assert blackbox.mine is not None
        blackbox.mine.write_note(b"")
        os._exit(7)
    return {"word": line["value"]}


@row(output="word string, n long")
def keyed(line: dict[str, Any]) -> dict[str, Any]:
    word = line["value"]
    return {"word": None if word.startswith("bad") else word, "n": len(word)}


def _overflow() -> None:
    """More of the stack than there is, in C."""
    one: list[Any] = []
    other: list[Any] = []
    for _ in range(200_000):
        one, other = [one], [other]
    sys.setrecursionlimit(1 << 30)
    assert one == other


DEADLY: dict[str, Callable[[], object]] = {
    "exit": lambda: os._exit(3),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segv": lambda: ctypes.string_at(0),
    "overflow": _overflow,
}


@row(output="word string")
def deadly(line: dict[str, Any]) -> dict[str, Any]:
    DEADLY.get(line["value"], int)()
    return {"word": line["value"]}


class Refusing(FileSink):
    """Cannot stage anything until the file ``mended`` lies beside its folder."""

    def stage(self, name: str, batches: Sequence[pa.RecordBatch]) -> Staged | None:
        if not (self.folder / "mended").exists():
            raise RuntimeError("the table is locked")
        return super().stage(name, batches)
