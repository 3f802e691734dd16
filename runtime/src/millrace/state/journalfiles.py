"""The journal of a topology on one machine: a file of figures, and one of events, line by line."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from millrace import checked, durable
from millrace.errors import NewerFormatError
from millrace.homes import codec
from millrace.homes.documents import RunEvent, Status

log = logging.getLogger(__name__)

EVENT_FILE_BYTES = 2_000_000
"""A file of events that is larger is put aside as ``.1``; what was there before goes."""


class JournalFiles:
    """See ``homes.stores.Journal``.

    A line is appended in one write to a file opened for it, under a lock, so that writers of
    several processes neither tear each other's lines nor put a new file aside.
    """

    def __init__(self, status: Path, events: Path) -> None:
        self._status = status
        self._events = events

    def add(self, event: RunEvent) -> None:
        try:
            self._append(codec.encode_line(event).encode())
        except OSError as error:
            log.warning("%s cannot be written: %s", self._events, error)

    def _append(self, line: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        while True:
            handle = os.open(self._events, flags, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                mine = os.fstat(handle)
                if not _is(self._events, mine):
                    continue  # put aside while this writer waited for it
                if mine.st_size > EVENT_FILE_BYTES:
                    self._events.replace(self._events.with_name(self._events.name + ".1"))
                    continue
                os.write(handle, line)
                return
            finally:
                os.close(handle)

    def follow(self) -> EventFollower:
        return EventFollower(self._events)

    def tell(self, status: Status) -> None:
        data = json.dumps(codec.encode(status)).encode()
        try:
            self._replace(data)
        except OSError as error:
            # Windows may go on without it; where they cannot, they say so.
            log.warning("%s cannot be written: %s", self._status, error)

    def _replace(self, data: bytes) -> None:
        try:
            durable.replace(self._status, data, durable=False)
        except OSError:
            # A full disk has no room for another file, and mostly enough for this one once more.
            # Whoever reads it meanwhile finds a checksum that does not fit.
            with self._status.open("r+b") as file:
                file.write(data)
                file.truncate()

    def status(self) -> Status:
        return read_status(self._status)

    def flush(self) -> None:
        """Everything is in the files already."""


def read_status(file: Path) -> Status:
    """What the driver last told; all None where nothing can be believed: a checksum that does not
    fit or a value of another kind leaves all of it out. Raises ``NewerFormatError``."""
    try:
        found = codec.decode(Status, file.read_bytes())
    except NewerFormatError as error:
        raise NewerFormatError(f"{file}: {error}") from error
    except (OSError, checked.DamagedError):
        return Status()
    return found if found.whole else Status()


def _is(path: Path, known: os.stat_result) -> bool:
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (known.st_dev, known.st_ino)


class EventFollower:
    """Reads events that were appended since the last look; starts at the file's end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._inode = 0
        with suppress(OSError):
            stat = path.stat()
            self._at, self._inode = stat.st_size, stat.st_ino

    def new(self) -> Sequence[RunEvent]:
        """Events since the last call; half-written last lines wait for the next one."""
        try:
            with self._path.open("rb") as file:
                stat = os.fstat(file.fileno())
                if stat.st_ino != self._inode or stat.st_size < self._at:
                    self._inode, self._at = stat.st_ino, 0
                file.seek(self._at)
                data = file.read()
        except OSError:
            return []  # there is none yet, or it cannot be read now
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        found = []
        for line in whole.splitlines():
            # What cannot be read, or only by a newer release, is not told: nothing follows from it.
            with suppress(checked.DamagedError, NewerFormatError):
                found.append(codec.decode_line(RunEvent, line))
        return found
