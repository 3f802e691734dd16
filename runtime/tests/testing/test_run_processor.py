"""``run_processor``: functions and classes as a run has them, without one."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from millrace import Processor, grouped, makes, restores, row, stateful, vectorized, where
from millrace.engine.program.schema import OutputError
from millrace.errors import TopologyError
from millrace.testing import run_processor


@row(output="word string")
def split(line):
    for word in line["value"].split():
        yield {"word": word}


@row(output="n int, at timestamp")
def typed(line):
    return {"n": line["n"], "at": line["at"]}


@where
def is_long(line):
    return len(line["value"]) > 3


@vectorized(output="n long")
def lengths(batch):
    if pc.any(pc.equal(batch["value"], "bad")).as_py():
        raise ValueError("cannot take bad")
    return {"n": pc.utf8_length(batch["value"])}, range(batch.num_rows)


@stateful(output="word string, n long", state="n long")
def count(line, state):
    state["n"] = (state["n"] or 0) + line["by"]
    if line["by"] < 0:
        state.clear()
    if line["by"] == 7:
        raise ValueError("no sevens")
    return {"word": line["word"], "n": state["n"]} if state else None


@grouped(output="word string, n long", state="n long")
def count_many(batch, state):
    n = pc.add(pc.fill_null(state["n"], 0), pa.array(batch.counts))
    return {"n": n}, {"word": batch.keys["word"], "n": n}, batch.last


class Pairs(Processor):
    output = "first string, second string"

    def open(self, context):
        self.before = None

    def process(self, row, out):
        if row["value"] == "refused":
            out.fail("refused by name")
        if self.before is not None and row["value"] != "returned":
            pair = {"first": self.before["value"], "second": row["value"]}
            out.emit(pair, anchors=[self.before, row])
        before, self.before = self.before, row
        return before if row["value"] == "returned" else None

    def finish(self, out):
        out.emit({"first": "end", "second": None})


class Runs(Processor):
    output = "word string, run long"
    state = "run long"

    def process(self, row, out):
        out.state["run"] = (out.state["run"] or 0) + 1
        out.emit({"word": row["word"], "run": out.state["run"]})


def values(*texts):
    return [{"value": text} for text in texts]


def test_a_row_function_gives_rows_in_its_columns():
    found = run_processor(split, values("a b", "c"), schema="value string")
    assert found.rows == [{"word": "a"}, {"word": "b"}, {"word": "c"}]
    assert (found.failures, found.state) == ({}, {})


def test_what_does_not_fit_fails_its_tuple_and_the_others_stay():
    moment = dt.datetime(2026, 1, 1, 12)
    rows = [{"n": 1, "at": moment}, {"n": 1 << 40, "at": None}, {"n": 3}]
    found = run_processor(typed, rows, schema="n long, at timestamp")
    utc = moment.replace(tzinfo=dt.UTC)
    assert found.rows == [{"n": 1, "at": utc}, {"n": 3, "at": None}]
    assert list(found.failures) == [1]
    assert "processor 'typed', column 'n': expected int" in found.failures[1]


def test_a_filter_lets_rows_through_as_they_are():
    found = run_processor(is_long, values("word", "a", None), schema="value string")
    assert found.rows == values("word")
    assert found.failures == {2: "TypeError: object of type 'NoneType' has no len()"}


def test_a_vectorised_function_fails_the_rows_that_it_cannot_bear():
    found = run_processor(lengths, values("one", "bad", "three"), schema="value string")
    assert found.rows == [{"n": 3}, {"n": 5}]
    assert found.failures == {1: "ValueError: cannot take bad"}


def test_state_goes_in_and_out():
    rows = [{"word": w, "by": n} for w, n in [("a", 1), ("b", 2), ("a", 7), ("a", 3), ("c", -1)]]
    before = {"b": {"n": 10}, "c": {"n": 5}, "d": {"n": 6}}
    found = run_processor(count, rows, schema="word string, by long", key=["word"], state=before)
    assert [(r["word"], r["n"]) for r in found.rows] == [("a", 1), ("b", 12), ("a", 4)]
    assert found.failures == {2: "ValueError: no sevens"}
    assert found.state == {"a": {"n": 4}, "b": {"n": 12}, "d": {"n": 6}}


def test_a_key_of_several_columns_is_a_tuple():
    rows = [{"word": "a", "by": 1}, {"word": "a", "by": 1}, {"word": "a", "by": None}]
    schema, key = "word string, by long", ["word", "by"]
    before = {("a", 1): {"n": 3}}
    found = run_processor(count_many, rows, schema=schema, key=key, state=before)
    assert found.rows == [{"word": "a", "n": 5}, {"word": "a", "n": 1}]
    assert found.state == {("a", 1): {"n": 5}, ("a", None): {"n": 1}}


def test_a_class_runs_from_open_to_close():
    rows = values("a", "refused", "b", "returned", "c")
    found = run_processor(Pairs, rows, schema="value string")
    pairs = [(r["first"], r["second"]) for r in found.rows]
    assert pairs == [("a", "b"), ("b", "c"), ("end", None)]
    assert found.failures[1] == "refused by name"
    assert "process returned Row, which goes nowhere" in found.failures[3]


def test_a_class_has_the_state_of_its_key():
    rows = [{"word": "a"}, {"word": "a"}, {"word": "b"}]
    found = run_processor(Runs, rows, schema="word string", key=["word"], state={"b": {"run": 4}})
    assert [r["run"] for r in found.rows] == [1, 2, 5]
    assert found.state == {"a": {"run": 2}, "b": {"run": 5}}


def test_state_may_have_a_form_of_its_own():
    @stateful(output="n long", state="n long")
    def listed(line, state):
        state.append(line["by"])
        return {"n": len(state)}

    restores(listed)(lambda columns: [0] * (columns["n"] or 0))
    makes(listed)(lambda state: {"n": len(state)})
    rows = [{"word": "a", "by": 1}] * 2
    found = run_processor(listed, rows, schema="word string, by long", key=["word"])
    assert found.state == {"a": {"n": 2}}


def test_state_that_does_not_fit_fails_its_tuple():
    @stateful(output="n long", state="n long")
    def wrong(line, state):
        state["n"] = line["word"]

    found = run_processor(wrong, [{"word": "a"}], schema="word string", key=["word"])
    assert "column n of type int64 cannot hold 'a'" in found.failures[0]
    assert found.state == {}


def test_no_rows_are_a_window_too():
    assert run_processor(split, [], schema="value string").rows == []
    assert run_processor(Pairs, [], schema="value string").rows == [
        {"first": "end", "second": None}
    ]
    found = run_processor(count, [], schema="word string", key=["word"], state={"a": {"n": 1}})
    assert found.state == {"a": {"n": 1}}


def test_what_stops_a_run_is_raised():
    @grouped(output="n long", state="n long")
    def undeclared(batch, state):
        return {"m": batch.counts}

    with pytest.raises(OutputError, match="put out the column 'm', which it does not declare"):
        run_processor(undeclared, values("a"), schema="value string", key=["value"])


@pytest.mark.parametrize(
    ("how", "error", "told"),
    [
        ({"schema": "word strnig"}, TopologyError, "'strnig' is not known"),
        ({"schema": "word string"}, TopologyError, "keeps state and needs a key"),
        ({"schema": "word string", "key": ["w"]}, TopologyError, "there is no column 'w'"),
        ({"schema": "word long", "key": ["word"]}, OutputError, "expected long, got str 'a'"),
        (
            {"schema": "word string", "key": ["word"], "state": {"a": {"m": 1}}},
            OutputError,
            "the column 'm'",
        ),
        (
            {"schema": "word string", "key": ["word"], "state": {("a", 1): {"n": 1}}},
            OutputError,
            "the key ('a', 1)",
        ),
    ],
)
def test_what_cannot_be_given_is_named(how, error, told):
    with pytest.raises(error) as caught:
        run_processor(Counts, [{"word": "a"}], **how)
    assert told in str(caught.value)


class Counts(Runs):
    state = "n long"

    def process(self, row, out):
        out.state["n"] = 1
