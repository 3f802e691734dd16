"""How commands speak: results on standard output, errors and notes on standard error."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from millrace.errors import ExitCode, MillraceError
from millrace.topology.problems import InvalidTopologyError

_PIPED_WIDTH = 120


def visible(text: str) -> str:
    """A text that a terminal only shows: what would steer it is written out, as ``\\x1b``.

    Everything that commands print goes through this, whoever it comes from: records, names of
    files, errors of user code.
    """
    return _STEERING.sub(_written_out, text)


_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 and C1 controls but tab and newline, other ends of lines, directions, lone surrogates."""


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def literal(text: str, style: str = "") -> Text:
    """A text as it is, whatever brackets and colons stand in it; what steers is written out."""
    return Text(visible(text), style)


class SafeConsole(Console):
    """A console whose texts cannot steer the terminal; its own styles and controls do.

    What cannot be written it forgets: rich keeps it, and writes it again with each further line.
    """

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except (OSError, UnicodeError):
            del self._buffer[:]
            raise

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            if segment.control is None and _STEERING.search(segment.text):
                yield Segment(visible(segment.text), segment.style)
            else:
                yield segment


def console(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal, or wide enough for most lines where there is none.

    It takes no text for markup or emoji: styles come with ``Text``.
    """
    made = SafeConsole(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = _PIPED_WIDTH
    return made


def give_up_output(_: Exception) -> None:
    """Forget what waits for standard output and cannot be written: at its end the interpreter would
    try once more, and end with a code of its own."""
    gone = os.open(os.devnull, os.O_WRONLY)
    os.dup2(gone, sys.stdout.fileno())
    os.close(gone)


def print_plain(text: str) -> None:
    """Text without wrapping or colours; for what other programs read."""
    text = visible(text)
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")


def print_json(text: str) -> None:
    """A line of JSON, in which what steers is written out as JSON does it, as ``\\u001b``."""
    print_plain(_STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def print_error(error: MillraceError) -> None:
    """One line ``error: …`` for each problem, on standard error."""
    messages: tuple[Any, ...] = (error,)
    if isinstance(error, InvalidTopologyError):
        messages = error.problems
    for message in messages:
        _print_line("error:", "bold red", str(message))


def print_note(text: str) -> None:
    """A line beside the results, on standard error."""
    console(stderr=True).print(literal(text), soft_wrap=True)


def counted(count: int, word: str) -> str:
    """``1 root``, ``2 roots``, ``1,000 passes``."""
    plural = f"{word}es" if word.endswith("s") else f"{word}s"
    return f"{count:,} {word if count == 1 else plural}"


def moment(seconds: float) -> str:
    """Local date and time of a wall-clock time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def print_warning(text: str) -> None:
    """One line on standard error, shown with ``--quiet`` too."""
    _print_line("warning:", "bold yellow", text)


def exit_codes() -> str:
    """The exit codes of every command, for the help."""
    meanings = {
        ExitCode.OK: "done",
        ExitCode.FAILED: "failed",
        ExitCode.USAGE: "wrong usage",
        ExitCode.INVALID_TOPOLOGY: "invalid topology",
        ExitCode.WORK_FOLDER: (
            "work folder of another topology or user, in its former place, or not writable"
        ),
        ExitCode.STATE_SERVER: "state server unreachable, unsuitable or full",
        ExitCode.SINK: (
            "sink refused, or sinks or servers are further: an older copy was put back; or "
            "standard output did not take all of the console sink's rows"
        ),
        ExitCode.FENCED: "a newer run of the topology took over",
        ExitCode.SOURCE: "source data missing, shrunk or replaced",
        ExitCode.NEWER_FORMAT: "data of a newer release",
        ExitCode.JAVA: "Java missing or too old",
        ExitCode.ENGINE: "the engine, a connector or Spark failed again and again",
        ExitCode.TOO_MANY_DEAD: "too many roots failed for good",
        ExitCode.DEAD_LETTERS: "there are dead letters (--fail-on-dead-letters)",
        ExitCode.SNAPSHOT: "a snapshot is damaged, unfinished, does not fit or cannot be written",
        ExitCode.STATE_LOST: "all copies of some state are gone",
        ExitCode.INTERRUPTED: "interrupted",
    }
    return ", ".join(f"{code.value} {meanings[code]}" for code in ExitCode)


def _print_line(label: str, style: str, text: str) -> None:
    line = Text.assemble((label, style), " ", literal(text))
    console(stderr=True).print(line, soft_wrap=True)
