"""Each call of user code has ``tupleTimeout``, however many there are."""

from __future__ import annotations

from types import SimpleNamespace

import engine_support
import pytest
from engine_support import compiled, write_lines

from millrace.engine.task import blackbox
from millrace.engine.task.blackbox import Box
from millrace.engine.task.steps import classes, functions, keyed

TIMEOUT_S = 30.0
ROWS = 300


def spec(function, key):
    return f"""
parallelism: 1
sources: [{{name: lines, files: {{path: texts}}}}]
processors:
  - {{name: step, function: "poisonsteps:{function}", inputs: [{{from: lines{key}}}]}}
sinks:
  - {{name: rows, inputs: [{{from: step}}], files: {{path: rows, format: jsonLines}}}}
"""


class Timer:
    """The clock that user code moves, and the timer that ends a worker by it."""

    def __init__(self):
        self.now_s = 0.0
        self.ends_s = 0.0
        self.armed = 0
        self.ended = False

    def set(self, _, left_s):
        self.ends_s = self.now_s + left_s if left_s else float("inf")
        self.armed += 1

    def work(self, took_s):
        self.now_s += took_s
        self.ended = self.ended or self.now_s >= self.ends_s


@pytest.fixture
def timer(monkeypatch):
    timer = Timer()
    for module in (functions, classes, keyed):
        monkeypatch.setattr(module, "monotonic", lambda: timer.now_s)
    signals = SimpleNamespace(setitimer=timer.set, ITIMER_REAL=0)
    monkeypatch.setattr(blackbox, "signal", signals)
    monkeypatch.setattr(engine_support, "Box", lambda *_: Box(None, TIMEOUT_S, lambda: timer.now_s))
    return timer


STEPS = [
    ("in_row", ""),
    ("in_where", ""),
    ("in_state", ", key: [value]"),
    ("InClass", ""),
    ("InKeyedClass", ", key: [value]"),
]


@pytest.fixture
def begin(windows, tmp_path, uid, monkeypatch, timer):
    """A run over lines of a step whose code calls ``called`` for each of them."""

    def begin(step, lines, called):
        write_lines(tmp_path, lines)
        run = windows(spec(*step))
        compiled(spec("in_row", ""), tmp_path, uid)
        import poisonsteps

        monkeypatch.setattr(poisonsteps, "raise_if_bad", called)
        return run

    return begin


@pytest.mark.parametrize("step", STEPS)
def test_many_calls_may_take_longer_than_one(begin, timer, step):
    run = begin(step, [f"w{n}" for n in range(ROWS)], lambda _: timer.work(2.5))
    assert run.go().verdict.complete
    assert timer.now_s == ROWS * 2.5
    assert not timer.ended


@pytest.mark.parametrize("step", STEPS)
def test_a_call_that_is_made_again_has_its_time(begin, timer, step):
    def fails(_):
        timer.work(25.0)
        raise ValueError

    run = begin(step, ["a", "b"], fails)
    assert len(run.attempt(run.plan()).failed) == 2
    assert timer.now_s == 100.0
    assert not timer.ended


@pytest.mark.parametrize("step", STEPS)
def test_calls_that_return_at_once_cost_no_system_call(begin, timer, step):
    run = begin(step, [f"w{n}" for n in range(ROWS)], lambda _: timer.work(0.001))
    assert run.go().verdict.complete
    assert timer.armed < 50
