"""The view document on one machine: a file replaced atomically under a lock.

Compare-and-swap holds the lock from the read to the rename, and the new content is on disk
before the rename, so a crash leaves the old document or the new one. Reading takes no lock.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace import checked, durable
from millrace.errors import ProtocolError
from millrace.modes import private_opener
from millrace.protocol.codec import decode_view, encode_view
from millrace.protocol.types import View


class ViewFile:
    """A linearizable store for one view; safe between processes of one machine.

    ``path`` is the document, ``path`` with the suffix ``.lock`` its lock.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = path.with_suffix(".lock")

    def read(self) -> tuple[int, View | None]:
        """Version and view; (0, None) before the topology exists. Raises ``ProtocolError``.

        It takes no lock, so that a reader that is stopped holds up nobody: a rename is atomic.
        """
        return self._load()

    def cas(self, expected: int, view: View) -> int | None:
        """Replace the view if its version is ``expected``; the new version, or None."""
        with self._locked():
            version, _ = self._load()
            if version != expected:
                return None
            self._store(version + 1, view)
            return version + 1

    def _load(self) -> tuple[int, View | None]:
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return 0, None
        try:
            document = checked.decode(text)
            if document.keys() != {"version", "view"}:
                raise ValueError("it has other fields")
            return int(document["version"]), decode_view(document["view"].encode())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ProtocolError(
                f"{self._path}: not a view document ({error}); restore it from a copy, "
                "or start over with --fresh"
            ) from error

    def _store(self, version: int, view: View) -> None:
        encoded = encode_view(view).decode()
        document = checked.with_checksum({"version": version, "view": encoded})
        durable.replace(self._path, json.dumps(document).encode())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self._lock, "a", opener=private_opener) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class WatchedView:
    """A view file that is looked at often, and read only where it was replaced; for one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = ViewFile(path)
        self._seen: tuple[int, int, int] | None = None
        self._view: View | None = None

    def look(self) -> View | None:
        """The view as it is now; the one before where it cannot be read for now."""
        try:
            found = self._path.stat()
            seen = (found.st_ino, found.st_mtime_ns, found.st_size)
            if seen != self._seen:
                _, self._view = self._file.read()
                self._seen = seen
        except (OSError, ProtocolError):
            # Not there yet, or damaged, which the driver says.
            return self._view
        return self._view
