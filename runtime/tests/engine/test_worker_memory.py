"""A worker that has no memory left can still say so."""

from __future__ import annotations

import multiprocessing
import resource
import traceback
from pathlib import Path

from millrace.engine.task.memory import WorkerMemory
from millrace.errors import UserCodeError


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
