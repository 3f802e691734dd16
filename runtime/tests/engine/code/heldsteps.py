"""User code that is called with rows, looks at one of their columns alone, and at first fails."""

from __future__ import annotations

from millrace import Processor, row, stateful, where

CALLS: list[int] = []
"""The calls that failed, in this process; tests clear it."""


def number_of(values):
    n = values["n"]
    if n == 20 and not CALLS:
        CALLS.append(n)
        raise RuntimeError("not yet")
    return n


@row(output="n long")
def in_row(values):
    return {"n": number_of(values)}


@where
def in_where(values):
    return number_of(values) >= 0


@stateful(output="n long", state="seen long")
def in_state(values, state):
    state["seen"] = (state["seen"] or 0) + 1
    return {"n": number_of(values)}


class InClass(Processor):
    output = "n long"

    def process(self, row, out):
        out.emit({"n": number_of(row)})


class InKeyedClass(InClass):
    state = "seen long"
