"""Small JSON documents that are replaced as a whole: a reader sees the old or the new one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Generic, TypeVar

from millrace import checked
from millrace import durable as disk
from millrace.errors import NewerFormatError
from millrace.homes import codec

T = TypeVar("T")


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Replace ``path`` atomically; ``durable`` means that it is on disk on return."""
    disk.replace(path, _encoded(value), durable=durable)


def create_json(path: Path, value: Any) -> bool:
    """Create ``path`` durably; ``False`` where it exists already."""
    return disk.create(path, _encoded(value))


def _encoded(value: Any) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def read_json(path: Path) -> Any:
    """The document, or None if there is none or it cannot be read as JSON."""
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError, RecursionError):
        return None


class Watched(Generic[T]):
    """A document that is looked at often and read only where it was replaced.

    What stands there and cannot be read was not asked: the one before still counts.
    """

    def __init__(self, path: Path, kind: type[T]) -> None:
        self._path = path
        self._kind = kind
        self._seen: tuple[int, int] | None = None
        self._found: T | None = None

    def look(self) -> T | None:
        """The newest one that could be read; None where there was none yet."""
        try:
            stat = self._path.stat()
            seen = (stat.st_ino, stat.st_mtime_ns)
            if seen != self._seen:
                data = self._path.read_bytes()
                self._seen = seen
                self._found = codec.decode(self._kind, data)
        except (OSError, checked.DamagedError, NewerFormatError):
            pass  # of an OSError it is tried again
        return self._found
