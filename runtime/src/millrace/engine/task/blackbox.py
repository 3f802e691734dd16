"""What a worker works on, where the process that forked it can read it after its end.

Each worker shares one page of memory with Spark's daemon (a note costs no system call, needs no
disk and survives SIGKILL); the daemon, which sees how it ended, tells both (``deaths``).

A note of one batch is also the worker's proof of progress: ``Box.begin`` arms an interval timer
whose signal keeps its default action, so that a batch that never ends, even inside a C loop that
never returns to the interpreter, ends the process.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from millrace.ids import NO_WINDOW, Epoch, Execution, WindowAttempt, WindowNumber
from millrace.protocol.names import DEATH, TaskObject
from millrace.protocol.types import AttemptId, Stamp, TaskId
from millrace.state.client import StateAddress
from millrace.state.servers import StateAccess, owners_of

PAGE_NAME = "millrace-note"
"""What the memory of a worker's notes is called in ``/proc``."""

NOTE_BYTES = 1024
_PAGE_BYTES = 8192

_PROOFS = 10
"""Of progress within ``tupleTimeout``; each is a system call, too slow for every tuple."""


@dataclass(frozen=True, slots=True)
class Note:
    """What a worker works on; ``roots`` is the span (first, last) of its batch if known.

    ``batch``: user code has roots of the window in hand, by themselves or in combined tuples.
    """

    pid: int
    execution: Execution
    window: WindowNumber
    attempt: WindowAttempt
    pass_no: int
    partition: int
    processor: str = ""
    roots: tuple[int, int] | None = None
    busy: bool = True
    batch: bool = False


@dataclass(frozen=True, slots=True)
class Recipient:
    """Where the end of a worker is told, should it come within this task: one object under the
    stamp of its window attempt. ``run`` counts Spark's runs of the task from 0."""

    name: str
    run: int
    uid: str
    stamp: Stamp
    servers: tuple[StateAddress, ...]

    @classmethod
    def of(
        cls, access: StateAccess, stamp: Stamp, attempt: AttemptId, task: TaskId, run: int
    ) -> Recipient:
        """For this process as the worker of a task of an attempt."""
        name = str(TaskObject(attempt, task, DEATH, str(os.getpid())))
        owners = owners_of(access.owners, name, 0)
        servers = tuple(address for address in access.addresses if address.name in owners)
        return cls(name, run, access.uid, stamp, servers)

    def access(self) -> StateAccess:
        """The servers, as the only owners of everything."""
        owners = tuple(address.name for address in self.servers)
        return StateAccess(self.uid, self.stamp, self.servers, (owners,))

    def encode(self) -> bytes:
        document = {
            "name": self.name,
            "run": self.run,
            "uid": self.uid,
            "stamp": [self.stamp.epoch, self.stamp.execution],
            "servers": [[a.name, a.url, a.run_id, a.password] for a in self.servers],
        }
        return json.dumps(document).encode()


class Page:
    """Memory that two processes share: the last note of a worker, and where its end is told.

    What is read from it is data of a process that may have died at any point of a write.
    """

    def __init__(self) -> None:
        file = os.memfd_create(PAGE_NAME)
        try:
            # A write into memory that cannot be had would end the process.
            os.posix_fallocate(file, 0, _PAGE_BYTES)
            self._memory = mmap.mmap(file, _PAGE_BYTES)
        finally:
            os.close(file)

    def close(self) -> None:
        self._memory.close()

    def write_note(self, data: bytes) -> None:
        """What is too long is no note."""
        self._write(0, NOTE_BYTES, data)

    def write_recipient(self, data: bytes) -> None:
        self._write(NOTE_BYTES, _PAGE_BYTES, data)

    def note(self) -> Note | None:
        """The last note, or ``None`` where none can be read."""
        return read_note(self._read(0, NOTE_BYTES))

    def recipient(self) -> Recipient | None:
        return _read_recipient(self._read(NOTE_BYTES, _PAGE_BYTES))

    def _write(self, at: int, end: int, data: bytes) -> None:
        """The length goes last, so that what a kill cuts off reads as nothing."""
        memory = self._memory
        memory[at : at + 4] = b"\0\0\0\0"
        if len(data) <= end - at - 4:
            memory[at + 4 : at + 4 + len(data)] = data
            memory[at : at + 4] = len(data).to_bytes(4, "little")

    def _read(self, at: int, end: int) -> bytes:
        size = int.from_bytes(self._memory[at : at + 4], "little")
        return self._memory[at + 4 : at + 4 + size] if size <= end - at - 4 else b""


mine: Page | None = None
"""The page of this process, if it is a worker."""


class Box:
    """The notes of one worker process.

    Without a page only the timer works, without a time-out only the notes. Not thread-safe; one
    task at a time uses it.
    """

    def __init__(
        self,
        page: Page | None,
        timeout_s: float | None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout_s = timeout_s
        self._monotonic_s = monotonic_s
        self.due_s = math.inf
        """From when on, by ``time.monotonic``, whoever sees progress is to tell of it."""
        self.worked_s = 0.0
        """For how many seconds user code has had tuples in this task."""
        self._page = page
        self._task = Note(os.getpid(), Execution(0), NO_WINDOW, WindowAttempt(0), 0, 0)
        self._working_since_s: float | None = None

    def task(self, note: Note, recipient: Recipient | None = None) -> None:
        """A task begins."""
        self._task = note
        self.worked_s, self._working_since_s = 0.0, None
        if self._page is not None:
            self._page.write_recipient(recipient.encode() if recipient is not None else b"")
        self._write(note)

    def begin(
        self, processor: str, roots: tuple[int, int] | None = None, batch: bool = False
    ) -> None:
        """``processor`` begins with something and has ``tupleTimeout`` from now.

        ``batch``: it is user code that gets tuples.
        """
        self._write(replace(self._task, processor=processor, roots=roots, batch=batch))
        self._working_since_s = self._monotonic_s() if batch else None
        self.progress()

    def progress(self) -> None:
        """The batch goes on: the time starts again."""
        if self._timeout_s is not None:
            signal.setitimer(signal.ITIMER_REAL, self._timeout_s)
            self.due_s = self._monotonic_s() + self._timeout_s / _PROOFS

    def end(self) -> None:
        """User code has returned."""
        self._disarm()
        if self._working_since_s is not None:
            self.worked_s += self._monotonic_s() - self._working_since_s
            self._working_since_s = None
        self._write(self._task)

    @property
    def in_hand(self) -> bool:
        """Whether user code has tuples, or had some when the task ended: it did not return."""
        return self._working_since_s is not None

    def idle(self) -> None:
        """The task has ended; a death from here on has nothing to do with it."""
        self._disarm()
        if self._page is not None:
            self._page.write_recipient(b"")
        self._write(replace(self._task, busy=False))

    def _disarm(self) -> None:
        if self._timeout_s is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _write(self, note: Note) -> None:
        if self._page is not None:
            self._page.write_note(json.dumps(asdict(note)).encode())


def read_note(data: bytes) -> Note | None:
    """The note that is written so; ``None`` for what no worker wrote."""
    try:
        fields = json.loads(data)
        if fields.get("roots"):
            first, last = fields["roots"]
            fields["roots"] = int(first), int(last)
        note = Note(**fields)
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    numbers = (note.pid, note.execution, note.window, note.attempt, note.pass_no, note.partition)
    return note if all(type(number) is int for number in numbers) else None


def _read_recipient(data: bytes) -> Recipient | None:
    try:
        fields = json.loads(data)
        epoch, execution = fields["stamp"]
        stamp = Stamp(Epoch(int(epoch)), Execution(int(execution)))
        servers = tuple(StateAddress(*server) for server in fields["servers"])
        return Recipient(fields["name"], int(fields["run"]), fields["uid"], stamp, servers)
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None
