"""A worker that has no memory left can still say so, and one that grows looks for garbage."""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import traceback
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from millrace.engine.task import worker
from millrace.engine.task.blackbox import Box, Note
from millrace.engine.task.faults import TaskError, find_error
from millrace.engine.task.memory import TASKS_PER_LOOK, Garbage, WorkerMemory
from millrace.errors import EngineError, UserCodeError
from millrace.ids import Execution, WindowAttempt, WindowNumber
from millrace.protocol.types import AttemptId


def exhausted(to_parent):
    """Take all memory and keep it, and then tell of it as PySpark does."""
    kept = []
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (256 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    size = 1 << 26
    try:
        while True:
            try:
                kept.append(bytes(size))
            except MemoryError as error:
                if size < 1 << 5:
                    WorkerMemory().failed("parse", error)
                size >>= 1
    except UserCodeError:
        to_parent.send(traceback.format_exc() + "." * (1 << 20))


def test_what_is_kept_back_is_enough_to_say_what_happened():
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=exhausted, args=(there,))
    process.start()
    there.close()
    try:
        text = here.recv()
    finally:
        process.join(60)
    assert process.exitcode == 0
    assert "has no memory left since processor 'parse' ran out of it" in text


class Held:
    """Garbage that only a collection finds: it holds itself, and memory that was written to."""

    def __init__(self) -> None:
        self.itself, self.content = self, b"x" * (1 << 20)


@pytest.fixture
def collected() -> Iterator[list[int]]:
    """Generations that were asked to be collected."""
    seen: list[int] = []

    def note(phase: str, told: dict[str, int]) -> None:
        if phase == "stop":
            seen.append(told["generation"])

    gc.disable()
    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)
    gc.enable()
    gc.unfreeze()


def test_garbage_that_takes_memory_is_found_though_all_else_is_frozen() -> None:
    alive = weakref.WeakSet[Held]()
    garbage = Garbage()
    try:
        for _ in range(2 * TASKS_PER_LOOK):
            alive.add(Held())
            garbage.after_task()
        assert len(alive) <= TASKS_PER_LOOK
    finally:
        gc.unfreeze()


def test_a_process_that_does_not_grow_looks_for_nothing(collected: list[int]) -> None:
    garbage = Garbage()
    for _ in range(3 * TASKS_PER_LOOK):
        garbage.after_task()
    assert 2 not in collected


def test_growth_is_measured_from_the_least_that_was_seen(collected: list[int]) -> None:
    sizes = iter([100 << 20, 116 << 20, 80 << 20, 97 << 20, 90 << 20, 100 << 20])
    garbage = Garbage(lambda: next(sizes))
    told = []
    for look in range(4):
        for _ in range(TASKS_PER_LOOK):
            garbage.after_task()
        told.append((look, 2 in collected))
        collected.clear()
    assert told == [(0, False), (1, False), (2, True), (3, False)]
    assert next(sizes, None) is None, "a collection is followed by a look at what is left"


def hand_out(box: Box, memory: WorkerMemory) -> None:
    box.begin("parse", (3, 9), batch=True)


def take_back(box: Box, memory: WorkerMemory) -> None:
    hand_out(box, memory)
    box.end()


def read(box: Box, memory: WorkerMemory) -> None:
    box.begin("lines", (3, 9))


def fall_short(box: Box, memory: WorkerMemory) -> None:
    take_back(box, memory)
    with suppress(UserCodeError):
        memory.failed("parse", MemoryError())


@pytest.mark.parametrize(
    ("happened", "blames"),
    [(None, False), (hand_out, True), (take_back, False), (read, False), (fall_short, True)],
)
def test_memory_that_the_engine_lacks_is_evidence_of_nothing(monkeypatch, happened, blames):
    """The state that a process keeps may be what is too large: then every root would die of it."""
    box, memory = Box(None, None), WorkerMemory()
    toolbox = SimpleNamespace(bench=SimpleNamespace(box=box), memory=memory)
    monkeypatch.setattr(worker, "_PROCESS", {"kit": toolbox})
    monkeypatch.setattr("millrace.engine.task.memory._reserve", [])
    attempt = AttemptId(Execution(1), WindowNumber(7), WindowAttempt(1))
    box.task(Note(os.getpid(), Execution(1), WindowNumber(7), WindowAttempt(1), 0, 0))
    if happened is not None:
        happened(box, memory)
    box.idle()
    with pytest.raises(TaskError) as caught, worker.marked_errors(attempt):
        raise MemoryError
    error = find_error(str(caught.value), attempt)
    assert type(error) is (UserCodeError if blames else EngineError)
    assert "has no memory left" in str(error)
    # What a task before had in hand says nothing about this one.
    box.task(Note(os.getpid(), Execution(1), WindowNumber(8), WindowAttempt(1), 0, 0))
    assert not box.in_hand
