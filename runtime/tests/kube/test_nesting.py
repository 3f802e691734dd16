"""JSON that is nested without an end, as anybody may write it into a resource."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millrace.kube.nesting import LEVELS, loads


def chain(depth: int, value: str = "1", more: str = "") -> str:
    return ('{"a":' * depth) + value + (more + "}") * depth


def levels(value: object) -> int:
    """How deeply a document is nested; 0 of a plain value."""
    found, inner = 0, [value]
    while inner := [one for one in inner if isinstance(one, dict | list)]:
        found += 1
        parts = (one.values() if isinstance(one, dict) else one for one in inner)
        inner = [each for part in parts for each in part]
    return found


@pytest.mark.parametrize(
    "text",
    [
        *("1", "null", "[]", '{"a": [1, {"b": "}]"}]}', "[" + "[]," * 500 + "1]"),
        *(chain(LEVELS), chain(LEVELS - 1, '["\\\\\\"[[[[{{{{"]'), chain(3, '"[{' * 200 + '"')),
    ],
)
def test_what_is_not_too_deep_is_read_as_ever(text: str):
    try:
        wanted: Any = json.loads(text)
    except ValueError:
        with pytest.raises(ValueError):
            loads(text)
        return
    assert loads(text) == wanted
    assert loads(text.encode()) == wanted


@pytest.mark.parametrize("depth", [LEVELS + 1, 1200, 100_000])
@pytest.mark.parametrize("more", ["", ',"b":"}}]]"', ',"b":[[{}]],"c":2'])
def test_what_is_too_deep_is_null_and_the_rest_is_read(depth: int, more: str):
    found = loads(f'{{"deep": {chain(depth, "1", more)}, "name": "n"}}')
    assert found["name"] == "n"
    assert levels(found) == LEVELS
    inner = found["deep"]
    for _ in range(LEVELS - 2):
        inner = inner["a"]
    assert inner["a"] is None


def test_brackets_in_strings_hide_nothing():
    text = '{"x": "}", "a":' * 2000 + "1" + ', "y": "{"}' * 2000
    assert levels(loads(text)) == LEVELS


@pytest.mark.parametrize("text", ["", "[" * 5000, "]" * 500 + "[" * 5000, chain(2000)[:-1], '{"a'])
def test_what_does_not_end_is_no_document(text: str):
    with pytest.raises(ValueError):
        loads(text)


def test_levels_are_counted():
    assert [levels(one) for one in (1, [], {"a": 1}, [[1], {"a": [2]}])] == [0, 1, 1, 3]
