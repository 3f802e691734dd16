"""Topology files for the tests: one that is valid, and ways to change it."""

from __future__ import annotations

import copy
import json
from typing import Any

from millrace.topology.load import parse
from millrace.topology.model import StreamTopology
from millrace.topology.problems import InvalidTopologyError, Problem

WORDCOUNT: dict[str, Any] = {
    "apiVersion": "millrace.dev/v1alpha1",
    "kind": "StreamTopology",
    "metadata": {"name": "wordcount"},
    "spec": {
        "sources": [{"name": "lines", "files": {"path": "texts", "watch": False}}],
        "processors": [
            {"name": "split", "function": "words:split", "inputs": [{"from": "lines"}]},
            {
                "name": "counts",
                "inputs": [{"from": "split", "key": ["word"]}],
                "aggregate": {"columns": [{"name": "n", "function": "count"}]},
            },
        ],
        "sinks": [{"name": "out", "inputs": [{"from": "counts"}], "files": {"path": "out"}}],
    },
}

WORDS_MODULE = """
from millrace import row, stateful, where

@row(output="word string")
def split(line):
    return [{"word": w} for w in line["value"].split()]

@where
def long_only(line):
    return len(line["value"]) > 3

@stateful(output="word string, n long", state="n long")
def count(line, state):
    state["n"] = (state["n"] or 0) + 1
    return {"word": line["word"], "n": state["n"]}

@row(output="word string")
def two_arguments(line, other):
    return None

def undecorated(line):
    return None

number = 3
"""


def changed(**spec: Any) -> dict[str, Any]:
    """Word count with fields of the spec replaced; a value of ``...`` removes the field."""
    data = copy.deepcopy(WORDCOUNT)
    for name, value in spec.items():
        if value is ...:
            del data["spec"][name]
        else:
            data["spec"][name] = value
    return data


def model(data: dict[str, Any]) -> StreamTopology:
    """The model without the checks between fields."""
    return StreamTopology.model_validate(data)


def problems_in(data: dict[str, Any] | str, *overrides: str, folder: Any = None) -> list[Problem]:
    """What is wrong with a topology; JSON is YAML too."""
    text = data if isinstance(data, str) else json.dumps(data)
    try:
        parse(text, overrides, folder)
    except InvalidTopologyError as error:
        return list(error.problems)
    return []


def at(problems: list[Problem], path: str) -> Problem:
    """The one problem at a path."""
    found = [problem for problem in problems if problem.path == path]
    assert len(found) == 1, [str(problem) for problem in problems]
    return found[0]
