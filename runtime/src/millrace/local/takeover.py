"""Who runs a topology on this machine: the newest ``millrace run``, and nobody beside it.

Generations are handed out in ``run.json`` (under ``claim.lock``); whoever runs holds
``run.lock`` for as long as it lives and has its own identity inside. A newer run takes the next
generation and waits for the lock; the older one sees the generation, stops its processes and lets
go. One that does not let go in time is killed, and the kernel lets go for it.

===================================  ========================================================
dies right after                     what follows
===================================  ========================================================
the newer run took its generation    the older one has stopped or stops; the next run starts
the older run let go                 nothing runs, the state is whole; the next run starts
===================================  ========================================================
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

from millrace.errors import FencedError, WorkFolderError
from millrace.local.files import read_json, write_json
from millrace.local.processes import ProcessId, kill_all, kill_marked
from millrace.modes import private_opener

ANSWER_S = 15.0
"""How long an older run may take to stop before it is killed."""

_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Holder:
    """A run of the topology; ``generation`` counts the runs of a work folder."""

    generation: int
    pid: int
    ticks: int

    @property
    def process(self) -> ProcessId:
        return ProcessId(self.pid, self.ticks)


class Lease:
    """The right to run in a work folder, until a newer run takes it or this process ends."""

    def __init__(self, path: Path, holder: Holder, lock: int) -> None:
        self._path = path
        self._holder = holder
        self._lock = lock

    @property
    def generation(self) -> int:
        return self._holder.generation

    def newer(self) -> Holder | None:
        """The run that takes over from this one, if there is one and that can be read now."""
        try:
            return _newer(self._path, self._holder)
        except OSError:
            return None

    def release(self) -> None:
        """Let the next run start; all processes of this one must have ended."""
        os.close(self._lock)


def current_holder(path: Path) -> Holder | None:
    """The run that holds the work folder ``path`` now."""
    holder = _holder(read_json(path / "run.lock"))
    return holder if holder is not None and holder.process.alive else None


def take_over(
    path: Path,
    waiting: Callable[[Holder], None],
    answer_s: float = ANSWER_S,
    begins: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Lease:
    """Become the one run of the work folder ``path``; kills what older runs left behind.

    ``waiting`` is called once if an older run has to end first; others get to know that this one
    is the run within ``begins``. Raises ``FencedError`` if yet
    another run was started meanwhile, and ``WorkFolderError`` if the lock cannot be had.
    """
    with _claiming(path):
        previous = _holder(read_json(path / "run.json"))
        generation = previous.generation + 1 if previous else 1
        me = ProcessId.me()
        mine = Holder(generation, me.pid, me.ticks)
        write_json(path / "run.json", asdict(mine))
    lock = os.open(path / "run.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _try_lock(lock):
            older = current_holder(path)
            if older is not None:
                waiting(older)
            if not _wait_for_lock(path, mine, lock, answer_s):
                _evict(path)
                if not _wait_for_lock(path, mine, lock, answer_s):
                    raise WorkFolderError(
                        f"work folder {path}: run.lock is held by a process that cannot be ended "
                        "from here; end it, or choose another folder with --workdir"
                    )
        _refuse_if_older(path, mine)
        with begins():
            os.ftruncate(lock, 0)
            os.pwrite(lock, json.dumps(asdict(mine)).encode(), 0)
    except BaseException:
        os.close(lock)
        raise
    kill_marked(path)
    return Lease(path, mine, lock)


@contextmanager
def held_briefly(path: Path) -> Iterator[bool]:
    """Hold the work folder for a short job if no run has it; yields whether that is so.

    A run that starts meanwhile waits for the end of the job.
    """
    lock = os.open(path / "run.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        free = _try_lock(lock)
        if free:
            # Nobody to be killed by an impatient successor: the job is short.
            os.ftruncate(lock, 0)
        yield free
    finally:
        os.close(lock)


def _wait_for_lock(path: Path, mine: Holder, lock: int, timeout_s: float) -> bool:
    end_s = time.monotonic() + timeout_s
    while not _try_lock(lock):
        _refuse_if_older(path, mine)
        if time.monotonic() > end_s:
            return False
        time.sleep(_LOOK_S)
    return True


def _refuse_if_older(path: Path, mine: Holder) -> None:
    newer = _newer(path, mine)
    if newer is not None:
        raise fenced_by(newer)


def fenced_by(newer: Holder) -> FencedError:
    """The error of a run that was taken over from."""
    return FencedError(
        f"this run is fenced: a newer one of the topology (process {newer.pid}) has taken over; "
        "nothing is lost, it goes on behind the last sealed window"
    )


def _evict(path: Path) -> None:
    """Kill a run that does not answer: the process in the lock file, then its children."""
    holder = current_holder(path)
    if holder is not None:
        kill_all([holder.process])
    kill_marked(path)


def _newer(path: Path, mine: Holder) -> Holder | None:
    holder = _holder(read_json(path / "run.json"))
    return holder if holder is not None and holder.generation > mine.generation else None


def _holder(document: object) -> Holder | None:
    if not isinstance(document, dict):
        return None
    try:
        return Holder(int(document["generation"]), int(document["pid"]), int(document["ticks"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _claiming(path: Path) -> Iterator[None]:
    with open(path / "claim.lock", "a", opener=private_opener) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
