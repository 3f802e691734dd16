"""Small JSON documents that are replaced as a whole: a reader sees the old or the new one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import IO, Any

from millrace.modes import private_opener


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Replace ``path`` atomically; ``durable`` means that it is on disk on return."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    with private_file(draft) as file:
        json.dump(value, file, indent=1)
        file.write("\n")
        if durable:
            file.flush()
            os.fsync(file.fileno())
    draft.replace(path)
    if durable:
        sync_folder(path.parent)


def private_file(path: Path) -> IO[str]:
    """A new file for writing that its user alone may read, whatever the umask is."""
    path.unlink(missing_ok=True)
    file = open(path, "x", opener=private_opener)  # noqa: SIM115 the caller's
    os.fchmod(file.fileno(), 0o600)
    return file


def read_json(path: Path) -> Any:
    """The document, or None if there is none or it cannot be read as JSON."""
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError, RecursionError):
        return None


def sync_folder(path: Path) -> None:
    """Bring a folder's entries (renames in it) to disk."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
