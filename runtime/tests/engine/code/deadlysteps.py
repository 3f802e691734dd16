"""User code that ends or stops its worker on words that begin with ``bad``."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import sys
import time
from pathlib import Path

from millrace import Processor, grouped, row
from millrace.engine.task import blackbox
from millrace.engine.task.exchange import Transport


@row(output="word string")
def leave(line):
    if line["value"].startswith("bad"):
        os._exit(7)
    return {"word": line["value"]}


@grouped(output="word string", state="n long")
def leave_many(batch, state):
    if any(word.startswith("bad") for word in batch.keys["value"].to_pylist()):
        os._exit(7)
    return {"n": batch.counts}


@grouped(output="word string", state="n long")
def answer_wrongly(batch, state):
    return {"n": batch.counts}, {"word": batch.keys["value"]}, batch.last + batch.rows.num_rows


@row(output="word string")
def crash(line):
    if line["value"].startswith("bad"):
        ctypes.string_at(0)
    return {"word": line["value"]}


@row(output="word string")
def kill(line):
    if line["value"].startswith("bad"):
        os.kill(os.getpid(), signal.SIGKILL)
    return {"word": line["value"]}


@row(output="word string")
def overflow(line):
    """Takes more of C's stack than there is."""
    if line["value"].startswith("bad"):
        one, other = [], []
        for _ in range(200_000):
            one, other = [one], [other]
        sys.setrecursionlimit(1 << 30)
        assert one == other
    return {"word": line["value"]}


@row(output="word string")
def spin(line):
    while line["value"].startswith("bad"):
        pass
    return {"word": line["value"]}


@row(output="word string")
def spin_in_c(line):
    if line["value"].startswith("bad"):
        re.match(r"(a+)+$", "a" * 64 + "b")
    return {"word": line["value"]}


@row(output="word string")
def hoard(line):
    if line["value"].startswith("bad"):
        return {"word": str(len(bytearray(1 << 40)))}
    return {"word": line["value"]}


KEPT = []


@row(output="word string")
def leak(line):
    """Takes what there is and keeps it, down to the last kilobyte."""
    if line["value"].startswith("bad"):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + (256 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        size = 1 << 26
        while True:
            try:
                KEPT.append(bytes(size))
            except MemoryError:
                if size < 1 << 10:
                    raise
                size >>= 4
    return {"word": line["value"]}


@row(output="word string")
def killed_once(line):
    """SIGKILL the first time a worker comes here; the path of a mark follows the word."""
    if line["value"].startswith("kill "):
        mark = Path(line["value"].split()[1])
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return {"word": line["value"].split()[0]}


@row(output="word string")
def slow(line):
    """Waits as long as the file named by the line is there."""
    Path(line["value"] + ".started").touch()
    while Path(line["value"]).exists():
        time.sleep(0.01)
    return {"word": "done"}


@row(output="word string")
def leave_without_a_note(line):
    if line["value"].startswith("bad"):
        blackbox.mine.write_note(b"")
        os._exit(7)
    return {"word": line["value"]}


class DiesAtTheDoor(Processor):
    output = "word string"

    def open(self, context):
        os._exit(9)

    def process(self, row, out):
        pass


class Asserting(Transport):
    def send(self, parcels):
        raise AssertionError("no such type")
