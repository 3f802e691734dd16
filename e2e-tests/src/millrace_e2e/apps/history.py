"""Processors of the fault histories: a user's code, as the topologies of this package name it.

While a history is under attack its processors take their time, so that windows are in flight when
something is killed; as soon as the file that ``MILLRACE_E2E_GATE`` names exists, they hurry.
``MILLRACE_E2E_MARKS`` names a folder in which flaky lines note that they have failed.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millrace import Processor, makes, migrates, restores, row, stateful

_SLOW_EVERY = int(os.environ.get("MILLRACE_E2E_CALL_EVERY", "100"))
"""A call of the outside is made for one line in so many."""

_GATE = os.environ.get("MILLRACE_E2E_GATE")
_CALL_S = float(os.environ.get("MILLRACE_E2E_CALL_S", "0.01"))
_MARKS = os.environ.get("MILLRACE_E2E_MARKS")

_CALLS_OF_A_TASK = 2
"""A raising function is called a second time in the same task."""

_seen: dict[str, int] = {}


@row(output="id string, bucket string, words array<string>")
def parse(line: dict[str, Any]) -> dict[str, Any]:
    """A line becomes its parts; what its kind asks for happens here."""
    name, kind, *words = line["value"].split()
    if kind == "raise":
        raise ValueError(f"line {name} always raises")
    if kind == "die":
        os._exit(42)
    if kind == "flaky" and _first_time(name):
        raise ValueError(f"line {name} raises the first time")
    if int(name[1:]) % _SLOW_EVERY == 0:
        _call()
    return {"id": name, "bucket": f"b{name[-2:]}", "words": words}


@row(output="word string")
def split(parsed: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The words of a line."""
    for word in parsed["words"]:
        yield {"word": word}


@row(output="id string, length long")
def measure(parsed: dict[str, Any]) -> dict[str, Any]:
    """One row for each line."""
    return {"id": parsed["id"], "length": len(parsed["words"])}


@stateful(output="bucket string, n long, id string", state="n long")
def number(parsed: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """Number the lines of a bucket: 1, 2, 3, …"""
    state["n"] = (state["n"] or 0) + 1
    return {"bucket": parsed["bucket"], "n": state["n"], "id": parsed["id"]}


@stateful(output="bucket string, n long, id string", state="n long, hoard binary")
def hoard(parsed: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """``number``, with a kilobyte for each line that no compression makes smaller."""
    more = hashlib.shake_256(parsed["id"].encode()).digest(1024)
    state["n"] = (state["n"] or 0) + 1
    state["hoard"] = (state["hoard"] or b"") + more
    return {"bucket": parsed["bucket"], "n": state["n"], "id": parsed["id"]}


@stateful(output="bucket string, n long, id string", state="last string, n long")
def number_and_last(parsed: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """``number`` of a later release, which knows the last line of a bucket, too."""
    numbered = number(parsed, state)
    if (state["last"] or "") >= parsed["id"]:
        raise ValueError(f"line {parsed['id']} comes after {state['last']}")
    state["last"] = parsed["id"]
    return numbered


@migrates(number_and_last, state="n long")
def without_last(state: dict[str, Any]) -> dict[str, Any]:
    """From the state that ``number`` keeps."""
    return {"n": state["n"], "last": ""}


class Tally:
    """How many lines a bucket had, and which was the last: a state that is no dict."""

    def __init__(self, n: int, last: str) -> None:
        self.n, self.last = n, last


@stateful(output="bucket string, n long, id string", state="last string, n long")
def number_by_tally(parsed: dict[str, Any], tally: Tally) -> Iterator[dict[str, Any]]:
    """``number_and_last`` of a still later release, which counts with an object of its own."""
    tally.n += 1
    if tally.last >= parsed["id"]:
        raise ValueError(f"line {parsed['id']} comes after {tally.last}")
    tally.last = parsed["id"]
    yield {"bucket": parsed["bucket"], "n": tally.n, "id": parsed["id"]}


@restores(number_by_tally)
def tally_of(columns: dict[str, Any]) -> Tally:
    """The object of what is kept."""
    return Tally(columns["n"] or 0, columns["last"] or "")


@makes(number_by_tally)
def columns_of(tally: Tally) -> dict[str, Any]:
    """What is kept of the object."""
    return {"n": tally.n, "last": tally.last}


migrates(number_by_tally, state="n long")(without_last)


class NumberByTally(Processor):
    """``number_by_tally`` in class form."""

    output = "bucket string, n long, id string"
    state = "last string, n long"

    def process(self, row: dict[str, Any], out: Any) -> None:
        for numbered in number_by_tally(row, out.state):
            out.emit(numbered)


restores(NumberByTally)(tally_of)
makes(NumberByTally)(columns_of)
migrates(NumberByTally, state="n long")(without_last)


def _call() -> None:
    """Take the time of a call, or until there is reason to hurry."""
    end_s = time.monotonic() + _CALL_S
    while _GATE is not None and not os.path.exists(_GATE):
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            return
        time.sleep(min(left_s, 0.1))


def _first_time(name: str) -> bool:
    """Whether a line is in its first task, in this process or, by its mark, in any."""
    if _MARKS is None:
        return False
    _seen[name] = _seen.get(name, 0) + 1
    mark = Path(_MARKS) / name
    if _seen[name] == 1 and mark.exists():
        return False
    mark.touch()
    return _seen[name] <= _CALLS_OF_A_TASK
