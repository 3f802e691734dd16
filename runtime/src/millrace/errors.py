"""Error root of the runtime and the exit codes that the command line documents.

A message names the object, the field, the value and the remedy.
"""

from __future__ import annotations

from enum import IntEnum


def message_of(error: BaseException) -> str:
    """What any exception says; "" where its own code cannot tell. Never raises."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 the boundary to anyone's code
        return ""


def error_text(error: BaseException) -> str:
    """``Type: message`` of any exception, on one line; never raises."""
    message = " ".join(message_of(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def is_order(error: BaseException) -> bool:
    """Whether it tells a process or a generator to end, whatever code it passes through; user code
    may raise anything else, also what is no ``Exception``."""
    return isinstance(error, KeyboardInterrupt | GeneratorExit)


class ExitCode(IntEnum):
    """Exit codes of the ``millrace`` command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    INVALID_TOPOLOGY = 3
    WORK_FOLDER = 4
    STATE_SERVER = 5
    SINK = 6
    FENCED = 7
    SOURCE = 8
    NEWER_FORMAT = 9
    JAVA = 10
    ENGINE = 11
    TOO_MANY_DEAD = 12
    DEAD_LETTERS = 13
    SNAPSHOT = 14
    STATE_LOST = 15
    INTERRUPTED = 130


class MillraceError(Exception):
    """Root of all errors raised on purpose; ``exit_code`` is what the command exits with.

    ``retryable``: what failed may succeed later as it is, so that it is tried again.
    """

    exit_code: ExitCode = ExitCode.FAILED
    retryable: bool = False


class TopologyError(MillraceError):
    """A topology file that cannot be used."""

    exit_code = ExitCode.INVALID_TOPOLOGY


class WorkFolderError(MillraceError):
    """A work folder of another topology, or one that cannot be written."""

    exit_code = ExitCode.WORK_FOLDER


class StateServerError(MillraceError):
    """A state server that cannot be reached, refuses a setting or is out of memory.

    Whatever is wrong there may be mended there, so windows wait for it.
    """

    exit_code = ExitCode.STATE_SERVER
    retryable = True


class SinkError(MillraceError):
    """A sink that refuses what is to be shown on it."""

    exit_code = ExitCode.SINK


class EngineError(MillraceError):
    """The engine, a connector or Spark failed on an attempt, which no root is to blame for.

    The window is run again a few times; then the run stops with nothing sealed.
    """

    exit_code = ExitCode.ENGINE


class UserCodeError(MillraceError):
    """User code failed on a batch as a whole: some root of the window is to blame."""


class SourceError(MillraceError):
    """A source whose data is missing, has shrunk or was replaced.

    ``gone``: what cannot be read will not come back by itself, so a user may give it up.
    """

    exit_code = ExitCode.SOURCE

    @property
    def gone(self) -> bool:
        return not self.retryable


class SourceAwayError(SourceError):
    """A source that cannot be read now, whatever its records are; none of them is to blame.

    It is tried again a few times: unlike of what is ``retryable`` nobody knows that it comes back.
    """

    gone = False


class FencedError(MillraceError):
    """A newer execution of the same topology has taken over."""

    exit_code = ExitCode.FENCED


class NewerFormatError(MillraceError):
    """A record, message or envelope written by a newer release."""

    exit_code = ExitCode.NEWER_FORMAT


class JavaError(MillraceError):
    """No Java that Spark can run on."""

    exit_code = ExitCode.JAVA


class SnapshotError(MillraceError):
    """A snapshot that is damaged, unfinished or another topology's, or cannot be written."""

    exit_code = ExitCode.SNAPSHOT


class SnapshotsAwayError(SnapshotError):
    """A place that cannot be read or written now, whatever the snapshots in it are."""

    retryable = True


class StateLostError(MillraceError):
    """No state server has what the topology knew any more, and no snapshot can take its place."""

    exit_code = ExitCode.STATE_LOST


class ProtocolError(MillraceError):
    """The stored truth contradicts a rule of the protocol; nothing was changed."""
