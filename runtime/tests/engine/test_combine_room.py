"""What combined rows are given room for: the keys of the window before, if that was no larger."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from engine_support import compiled

from millrace.engine.task.combine import Combiner
from millrace.state.keyed.aggregatestate import AggregateState
from millrace.state.keyed.keytable import Room

COUNT = """
sources: [{name: lines, files: {path: texts}}]
processors:
  - {name: split, function: "wordsteps:split_batch", inputs: [{from: lines}]}
  - name: last
    inputs: [{from: split, key: [word]}]
    aggregate: {columns: [{name: n, function: count}]}
sinks: [{name: rows, inputs: [{from: last}], files: {path: rows, format: jsonLines}}]
"""
ROOM = Room(100_000, 800_000)


@pytest.fixture
def begun(tmp_path, uid):
    """Bytes of the table that a window of so many roots begins with, behind one of 1,000."""
    program = compiled(COUNT, tmp_path, uid)
    component = program.components["last"]
    (edge,) = component.inputs
    rooms = {edge.name: (1_000, ROOM)}

    def begin(roots: int) -> int:
        plan = SimpleNamespace(uncombined={}, intent=SimpleNamespace(roots=roots))
        task = SimpleNamespace(program=program, plan=plan, rooms=rooms)
        return Combiner(task, edge, component)._state.size_bytes

    return begin


def test_a_window_of_as_many_roots_begins_as_large(begun):
    assert begun(900) > ROOM.key_bytes
    assert begun(900) < ROOM.key_bytes, "once: what follows an attempt that died needs none"


def test_a_window_of_few_roots_begins_small(begun):
    assert begun(50) < ROOM.key_bytes


def test_without_memory_for_as_many_it_begins_small(begun, monkeypatch):
    def full(*_):
        raise MemoryError

    monkeypatch.setattr(AggregateState, "make_room", full)
    assert begun(900) < ROOM.key_bytes
