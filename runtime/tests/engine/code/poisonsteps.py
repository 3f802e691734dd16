"""User code that fails: on words that begin with ``bad``, or the first time only (``once``)."""

from __future__ import annotations

import asyncio
import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace import Processor, grouped, row, stateful, vectorized, where

CALLS: dict[str, int] = {}
"""How often a word was seen, in this process; tests clear it."""


class Panic(BaseException):
    """As code in Rust raises it."""


class MuteError(Exception):
    """Has no text: its argument is none."""

    def __str__(self):
        return self.args[0]


def raise_if_bad(word):
    CALLS[word] = CALLS.get(word, 0) + 1
    if word.startswith("bad"):
        raise ValueError(f"cannot take {word}")
    if word.startswith("once") and CALLS[word] == 1:
        raise RuntimeError("not yet")
    if word.startswith("exit"):
        sys.exit(3)
    if word.startswith("huge"):
        raise MemoryError
    if word.startswith("panic"):
        raise Panic("not understood")
    if word.startswith("cancel"):
        raise asyncio.CancelledError
    if word.startswith("mute"):
        raise MuteError({"code": 3})


@row(output="word string")
def in_row(line):
    yield {"word": f"first of {line['value']}"}
    raise_if_bad(line["value"])
    yield {"word": line["value"]}


@where
def in_where(line):
    raise_if_bad(line["value"])
    return True


@vectorized(output="word string")
def in_batch(batch):
    for word in batch.column("value").to_pylist():
        raise_if_bad(word)
    return {"word": batch.column("value")}, list(range(batch.num_rows))


@stateful(output="word string, n long", state="n long")
def in_state(line, state):
    state["n"] = (state["n"] or 0) + 1
    raise_if_bad(line["value"])
    if line["value"].startswith("mistyped"):
        state["n"] = "many"
    return {"word": line["value"], "n": state["n"]}


@grouped(output="word string, n long", state="n long")
def in_groups(batch, state):
    before = pc.fill_null(state.column("n"), 0).to_numpy()
    words = batch.rows.column("value")
    for word in words.to_pylist():
        raise_if_bad(word)
    key = batch.key_of_row
    each = before[key] + np.arange(len(key)) - batch.offsets[key] + 1
    total = (before + batch.counts).tolist()
    if any(word.startswith("mistyped") for word in words.to_pylist()):
        total = [1 << 40] * len(total)
    return {"n": total}, {"word": words, "n": each}, np.arange(len(key))


@grouped(output="word string, n long", state="n int")
def in_small_groups(batch, state):
    return in_groups(batch, state)


class InClass(Processor):
    output = "word string"

    def process(self, row, out):
        out.emit({"word": f"first of {row['value']}"})
        if row["value"].startswith("refused"):
            out.fail("refused by name")
        raise_if_bad(row["value"])
        out.emit({"word": row["value"]})


class InKeyedClass(Processor):
    output = "word string, n long"
    state = "n long"

    def process(self, row, out):
        out.state["n"] = (out.state["n"] or 0) + 1
        out.emit({"word": row["value"], "n": out.state["n"]})
        if row["value"].startswith("refused"):
            out.fail("refused by name")
        raise_if_bad(row["value"])


@row(output="n long")
def wrong_type(line):
    return {"n": line["value"] if line["value"].startswith("bad") else 1}


@row(output="n long")
def wrong_columns(line):
    return {"m": 1} if line["value"].startswith("bad") else {"n": 1}


@row(output="n long")
def too_many_columns(line):
    return {"n": 1, "m": 2} if line["value"].startswith("bad") else {"n": 1}


@vectorized(output="n long")
def bad_parents(batch):
    bad = [w.startswith("bad") for w in batch.column("value").to_pylist()]
    parents = [batch.num_rows if is_bad else i for i, is_bad in enumerate(bad)]
    return {"n": pa.array([1] * batch.num_rows)}, parents


@vectorized(output="n long")
def too_few_parents(batch):
    bad = any(w.startswith("bad") for w in batch.column("value").to_pylist())
    return {"n": pa.array([1] * batch.num_rows)}, list(range(batch.num_rows - bad))


@vectorized(output="n long")
def wrong_array(batch):
    bad = any(w.startswith("bad") for w in batch.column("value").to_pylist())
    return {"n": batch.column("value") if bad else pc.utf8_length(batch.column("value"))}, range(
        batch.num_rows
    )


@row(output="word string, n long")
def after_combine(totals):
    if totals["word"].startswith("bad"):
        raise ValueError(f"cannot take the total of {totals['word']}")
    return totals


class CannotOpen(Processor):
    output = "word string"

    def open(self, context):
        raise OSError("no such service")

    def process(self, row, out):
        pass


class CannotBeMade(Processor):
    output = "word string"

    def __init__(self):
        raise OSError("no such service")

    def process(self, row, out):
        pass


class CannotClose(Processor):
    output = "word string"

    def process(self, row, out):
        out.emit({"word": row["value"]})

    def close(self):
        raise OSError("already gone")


class Returns(Processor):
    output = "word string"

    def process(self, row, out):
        out.emit({"word": row["value"]})
        return dict(row) if row["value"] == "returned" else None


class KeyedReturns(Returns):
    state = "n long"


@where
def late_where(line):
    wanted = line["value"] != "returned"
    return wanted or (wanted for _ in range(1))
