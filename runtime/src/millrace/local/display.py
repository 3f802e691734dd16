"""What a run shows, and that it goes on where that cannot be shown.

A disk that is full or a terminal that is gone loses lines, not the run. Each further line is tried
again. Of lines that the driver printed it is remembered that some are lost: rows of a console sink
are published with them, and are not printed again.

A reader that has gone by itself, as ``head`` does, is none of that: what is raised then goes on to
who called.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from millrace.errors import error_text
from millrace.homes.documents import RunEvent

_REMEDY = (
    "rows of a console sink that were among them are published and not printed again; make room "
    "there, or have them in a sink that keeps them"
)


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
