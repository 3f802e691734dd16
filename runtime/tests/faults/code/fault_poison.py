"""Processors that some lines are poison for. A line is ``<id> <kind> <key>``.

=============  ====================================================================
kind           what happens
=============  ====================================================================
good           nothing
raise          ``parse`` always raises
once           ``parse`` raises when it is called first
flaky          ``parse`` raises in the first task that comes to it, twice
exit, segv     ``parse`` ends its worker
behind         ``number``, behind an exchange, ends its worker
hog            ``parse`` takes memory until there is none, and lets go of it
leak           ``parse`` takes memory until there is none, and keeps it
spin, cspin    ``parse`` never ends, in Python or in C
cast           its key is no number, which an SQL step before ``parse`` wants to have
=============  ====================================================================

``number`` raises at random for one call in a thousand, ``weigh`` for the totals of the key "bad".
All of that stops as soon as the file ``mended-<kind>`` is there: then the user has mended the code.

``FAULTS_TRACE`` names a folder: every task writes down what it came to first, and which lines
raised at random.
"""

from __future__ import annotations

import ctypes
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fault_orders import attempt
from pyspark import TaskContext

from millrace import row, stateful

TRACE = Path(os.environ.get("FAULTS_TRACE", "."))

KEPT: list[Any] = []

_task: tuple[int, ...] = (0, -1)
_tasks_of: dict[str, tuple[int, ...]] = {}


@row(output="id string, kind string, key string, bucket string")
def parse(line: dict[str, Any]) -> dict[str, Any]:
    name, kind, key = line["value"].split()
    if _new_task():
        note("attempts", "{} {} {} {}".format(*attempt(), name))
    if kind in POISON and not mended(kind):
        POISON[kind](name)
    return {"id": name, "kind": kind, "key": key, "bucket": f"b{name[-2:]}"}


@stateful(output="bucket string, n long, id string", state="n long")
def number(parsed: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """Numbers the lines of a bucket: 1, 2, 3, …"""
    if parsed["kind"] == "behind" and not mended("behind"):
        os._exit(9)
    if random.random() < 0.001:
        context = TaskContext.get()
        note("random", f"{parsed['id']} {context.taskAttemptId() if context else 0}")
        raise ValueError("one in a thousand")
    state["n"] = (state["n"] or 0) + 1
    return {"bucket": parsed["bucket"], "n": state["n"], "id": parsed["id"]}


@row(output="key string, n long")
def weigh(total: dict[str, Any]) -> dict[str, Any]:
    if total["key"] == "bad" and not mended("combine"):
        raise ValueError(f"a total of {total['n']} is too much")
    return total


def mended(kind: str) -> bool:
    return (TRACE / f"mended-{kind}").exists()


def note(kind: str, text: str) -> None:
    """One line that outlives this process."""
    handle = os.open(TRACE / kind, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(handle, f"{text}\n".encode())
    os.close(handle)


def _new_task() -> bool:
    global _task
    context = TaskContext.get()
    now = (os.getpid(), context.taskAttemptId() if context is not None else 0, *attempt())
    changed, _task = now != _task, now
    return changed


def _raise(name: str) -> None:
    raise ValueError(f"line {name} is poison")


def _raise_once(name: str) -> None:
    mark = TRACE / f"once-{name}"
    if not mark.exists():
        mark.touch()
        raise ValueError(f"line {name} raises the first time")


def _raise_in_first_task(name: str) -> None:
    mark = TRACE / f"flaky-{name}"
    if not mark.exists() or _tasks_of.get(name) == _task:
        mark.touch()
        _tasks_of[name] = _task
        raise ValueError(f"line {name} raises in its first task")


def _exit(_: str) -> None:
    os._exit(3)


def _crash(_: str) -> None:
    ctypes.string_at(0)


def _take_memory(kept: list[Any]) -> None:
    size = 1 << 26
    while True:
        try:
            kept.append(bytes(size))  # not touched, so it costs address space alone
        except MemoryError:
            if size < 1 << 10:
                raise
            size >>= 4


def _spin(_: str) -> None:
    while True:
        pass


def _spin_in_c(_: str) -> None:
    sum(range(10**15))


POISON: dict[str, Callable[[str], None]] = {
    "raise": _raise,
    "once": _raise_once,
    "flaky": _raise_in_first_task,
    "exit": _exit,
    "segv": _crash,
    "hog": lambda _: _take_memory([]),
    "leak": lambda _: _take_memory(KEPT),
    "spin": _spin,
    "cspin": _spin_in_c,
}
