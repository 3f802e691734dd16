"""User code of the engine's tests."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace import Processor, grouped, migrates, row, stateful, vectorized, where


@row(output="word string")
def split(line):
    for word in line["value"].split():
        yield {"word": word}


@vectorized(output="word string")
def split_batch(batch):
    words = pc.split_pattern(batch.column("value"), " ")
    return {"word": words.flatten()}, pc.list_parent_indices(words)


@row(output="word string")
def pause(line):
    """Takes as many seconds as the line says."""
    time.sleep(float(line["value"]))
    return {"word": line["value"]}


@row(output="word string, n long")
def sized(word):
    return {"word": word["word"], "n": len(word["word"])}


@where
def no_a(word):
    return "a" not in word["word"]


@row(output="word string, n long")
def tag(totals):
    return {"word": totals["word"] + "!", "n": totals["n"]}


@stateful(output="word string, n long", state="n long")
def running_count(word, state):
    state["n"] = (state["n"] or 0) + 1
    return {"word": word["word"], "n": state["n"]}


def running(batch, state):
    """Of each row how often its key came up to here, and of each key how often it came."""
    before = pc.fill_null(state.column("n"), 0).to_numpy()
    key = batch.key_of_row
    here = np.arange(len(key)) - batch.offsets[key] + 1
    return before[key] + here, before + batch.counts


@grouped(output="word string, n long", state="n long")
def grouped_count(batch, state):
    """``running_count`` of many words at once."""
    each, total = running(batch, state)
    word = batch.rows.column("word")
    return {"n": total}, {"word": word, "n": each}, np.arange(len(each))


class Pairs(Processor):
    """A line together with the one before it: tuples with two anchors."""

    output = "pair string"

    def open(self, context):
        self.before = None

    def process(self, row, out):
        if self.before is not None:
            out.emit({"pair": f"{self.before['value']}+{row['value']}"}, [self.before, row])
        self.before = row


class Dedup(Processor):
    """The first tuple of each word."""

    output = "word string"
    state = "seen boolean"

    def process(self, row, out):
        if not out.state["seen"]:
            out.state["seen"] = True
            out.emit({"word": row["word"]})


class Counter(Processor):
    """Counts what it saw, and says so once, anchored to nothing."""

    output = "lines long"

    def __init__(self):
        self.lines = 0

    def process(self, row, out):
        self.lines += 1

    def finish(self, out):
        out.emit({"lines": self.lines})


@vectorized(output="word string")
def reversed_batch(batch):
    """Children in an order of their own: the last row first."""
    count = batch.num_rows
    last_first = pa.array(range(count - 1, -1, -1))
    return {"word": batch.column("word").take(last_first)}, last_first


class Expiring(Processor):
    """Counts the tuples of each key in class form; reads its state without changing it, too."""

    output = "word string, n long"
    state = "n long"

    def process(self, row, out):
        out.state["n"] = (out.state["n"] or 0) + 1
        out.emit({"word": row["word"], "n": out.state["n"]})


@stateful(output="word string, n long", state="n long")
def fails_on_demand(word, state):
    """Counts a word up to one, and fails on the second."""
    state["n"] = (state["n"] or 0) + 1
    if state["n"] > 1:
        raise ValueError("enough")
    return {"word": word["word"], "n": state["n"]}


@grouped(output="word string, n long", state="n long")
def grouped_fails_on_demand(batch, state):
    each, total = running(batch, state)
    if total.max() > 1:
        raise ValueError("enough")
    return {"n": total}, {"word": batch.rows.column("word"), "n": each}, np.arange(len(each))


@stateful(output="word string, n long", state="n long, last string")
def count_with_last(word, state):
    """``running_count`` of a later day, with one more column."""
    state["n"] = (state["n"] or 0) + 1
    state["last"] = word["word"]
    return {"word": word["word"], "n": state["n"]}


@migrates(count_with_last, state="n long")
def without_last(state):
    if state["n"] == 13:
        raise ValueError("an unlucky number")
    return {"n": 100 * state["n"]}


class CountWithLast(Processor):
    """The same in class form."""

    output = "word string, n long"
    state = "n long, last string"

    def process(self, row, out):
        out.emit(count_with_last(row, out.state))


migrates(CountWithLast, state="n long")(without_last)


@grouped(output="word string, n long", state="n long, last string")
def grouped_count_with_last(batch, state):
    """The same of many words at once."""
    each, total = running(batch, state)
    word = batch.rows.column("word")
    kept = {"n": total, "last": batch.keys.column("word")}
    return kept, {"word": word, "n": each}, np.arange(len(each))


migrates(grouped_count_with_last, state="n long")(without_last)


@stateful(output="word string, n long", state="n long, last string")
def count_with_nothing_said(word, state):
    """As ``count_with_last``, of one who forgot the state of before."""
    return count_with_last(word, state)
