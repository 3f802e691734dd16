"""What child processes write goes into files of limited size, what happens into the journal, and
what a run shows to whoever listens.

A child's output is a pipe, so that the file can be cut while the child runs. One thread reads
all pipes; it never waits for anything but them, so children do not block on a busy supervisor.

A disk that is full or a terminal that is gone loses lines, not the run, and each further line is
tried again. Of lines that the driver printed it is remembered that some are lost: rows of a console
sink are published with them, and are not printed again. A reader that has gone by itself, as
``head`` does, is none of that: what is raised then goes on to who called.
"""

from __future__ import annotations

import errno
import os
import selectors
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from millrace.clock import Clock
from millrace.errors import error_text
from millrace.homes.documents import RunEvent
from millrace.homes.stores import Journal
from millrace.modes import private_opener

MAX_BYTES = 2_000_000
"""Size at which a log file is put aside; the one put aside before is dropped."""

_READ_BYTES = 1 << 16

_LONGEST_BYTES = 1 << 24
"""A line that is shown is handed on in one piece up to this size: it may be a row of a sink."""

_REMEDY = (
    "rows of a console sink that were among them are published and not printed again; make room "
    "there, or have them in a sink that keeps them"
)

Sink = Callable[[bytes], None]


def _drop(_: bytes) -> None:
    """The sink of a pipe whose own sink failed."""


class LogFile:
    """A file that is renamed to ``<name>.1`` when it is full; not thread-safe."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._file = open(path, "ab", buffering=0, opener=private_opener)  # noqa: SIM115
        self._size = self._file.tell()

    def write(self, data: bytes) -> None:
        """Append; a full disk loses the log, never the process that writes it."""
        with suppress(OSError):
            if self._size + len(data) > self._max_bytes and self._size:
                self._turn()
            self._file.write(data)
            self._size += len(data)

    def _turn(self) -> None:
        self._path.replace(self._path.with_name(self._path.name + ".1"))
        fresh = open(self._path, "ab", buffering=0, opener=private_opener)  # noqa: SIM115
        self._file.close()
        self._file, self._size = fresh, 0

    def close(self) -> None:
        self._file.close()


class Lines:
    """Cuts a byte stream into lines for ``take``; what has no end yet is kept for the next call.

    A line that is longer than ``longest_bytes``, as a progress bar may be, comes in pieces.
    """

    def __init__(self, take: Callable[[str], None], longest_bytes: int = _LONGEST_BYTES) -> None:
        self._take = take
        self._longest_bytes = longest_bytes
        self._rest = bytearray()

    def write(self, data: bytes) -> None:
        """Take what arrived."""
        first, *others = data.split(b"\n")
        self._rest += first
        for begun in others:
            self._hand_on()
            self._rest += begun
        if len(self._rest) >= self._longest_bytes:
            self._hand_on()

    def _hand_on(self) -> None:
        line, self._rest = self._rest, bytearray()
        self._take(line.decode(errors="replace"))


class LogPump:
    """Reads the pipes of all children in one thread; methods are called by one other thread."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._new: list[tuple[int, Sink]] = []
        self._settled = threading.Event()
        self._lock = threading.Lock()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)
        self._thread.start()

    def pipe(self, sink: Sink) -> int:
        """A new pipe whose data goes to ``sink``; the caller closes the end it is given."""
        read, write = os.pipe()
        with self._lock:
            self._new.append((read, sink))
        os.write(self._wake_write, b"+")
        return write

    def settle(self, timeout_s: float = 1.0) -> None:
        """Wait until everything that is in the pipes now has reached its sink."""
        self._settled.clear()
        os.write(self._wake_write, b"s")
        self._settled.wait(timeout_s)

    def close(self) -> None:
        """End once every pipe has been read to its end; children must have ended."""
        self._closing = True
        os.write(self._wake_write, b"-")
        self._thread.join(timeout=5)

    def _run(self) -> None:
        open_pipes = 0
        while not (self._closing and open_pipes == 0 and not self._new):
            ready = self._selector.select()
            orders = self._orders(ready)
            if b"+" in orders:
                open_pipes += self._admit()
            # A pipe holds no more than one read takes, so one look at each settles them.
            for key, _ in self._selector.select(0) if orders else ready:
                if key.fd != self._wake_read:
                    open_pipes -= self._drain(key.fd, key.data)
            if b"s" in orders:
                self._settled.set()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _orders(self, ready: list[tuple[selectors.SelectorKey, int]]) -> bytes:
        woken = any(key.fd == self._wake_read for key, _ in ready)
        return os.read(self._wake_read, 1024) if woken else b""

    def _admit(self) -> int:
        with self._lock:
            new, self._new = self._new, []
        for pipe, sink in new:
            self._selector.register(pipe, selectors.EVENT_READ, sink)
        return len(new)

    def _drain(self, pipe: int, sink: Sink) -> int:
        data = os.read(pipe, _READ_BYTES)
        if data:
            try:
                sink(data)
            except (Exception, SystemExit):  # noqa: BLE001 the boundary of the thread
                # A display that is gone, say. Nobody may be held up who writes into the pipe.
                self._selector.modify(pipe, selectors.EVENT_READ, _drop)
            return 0
        self._selector.unregister(pipe)
        os.close(pipe)
        return 1


class RunLog:
    """Makes events of what the supervisor sees."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock

    def add(self, kind: str, text: str, *, warning: bool = False) -> RunEvent:
        """Add an event; a full disk loses the line, not the run."""
        event = RunEvent(self._clock.now_s(), kind, text, warning=warning)
        self._journal.add(event)
        return event


class Listener(Protocol):
    """Told what happens; ``output`` is called from another thread."""

    def event(self, event: RunEvent) -> None:
        """Something happened to a process."""
        ...

    def progress(self) -> None:
        """A moment has passed; called about four times a second."""
        ...

    def output(self, line: str) -> None:
        """The driver wrote a line to its standard output (a console sink, a print)."""
        ...


@contextmanager
def lines_may_be_lost(lost: Callable[[Exception], None] = lambda _: None) -> Iterator[None]:
    """What cannot be written inside is lost, and ``lost`` is told why."""
    try:
        yield
    except (OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            raise
        lost(error)


class Display:
    """A listener that never ends a run, and what it has lost of the driver's own lines.

    As a ``Listener`` it is used by two threads; what is lost is counted by one of them.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.lost = 0
        self._why = ""

    def event(self, event: RunEvent) -> None:
        with lines_may_be_lost():
            self._listener.event(event)

    def progress(self) -> None:
        with lines_may_be_lost():
            self._listener.progress()

    def output(self, line: str) -> None:
        with lines_may_be_lost(self._note):
            self._listener.output(line)

    def _note(self, error: Exception) -> None:
        self._why = getattr(error, "strerror", None) or error_text(error)
        self.lost += 1

    @property
    def trouble(self) -> str:
        """What is wrong with standard output, while the run goes on."""
        return (
            f"standard output cannot be written ({self._why}): what the driver prints is lost, "
            "until it can"
        )

    @property
    def shortfall(self) -> str:
        """What is to be said at the end; empty where all was shown."""
        if not self.lost:
            return ""
        lines = "1 line" if self.lost == 1 else f"{self.lost:,} lines"
        return f"standard output did not take {lines} of the driver's ({self._why}): {_REMEDY}"
