"""Small files that are replaced or created as a whole, and stay.

The content goes into a draft beside the file; the draft gets the file's name once all of it is on
disk, and then the folder is brought to disk, without which a rename may be undone by a crash. So
whoever dies anywhere in between leaves the old file or the new one, and perhaps a draft, whose name
begins with a dot; whoever cannot write it takes it away again. What is written is its user's
alone, whatever the umask is.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from millrace.modes import private_opener


def replace(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace a file; on disk on return if ``durable``, else a crash may leave either or none."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.new")
    draft.unlink(missing_ok=True)
    try:
        _write(draft, data, durable)
        os.replace(draft, path)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def create(
    path: Path, data: bytes, tag: str = "", ready: Callable[[], None] = lambda: None
) -> bool:
    """Create a file durably; ``False`` where it exists already.

    The draft is linked, not renamed, so that of several creators exactly one succeeds. Its name
    has ``tag``, and ``ready`` is called once it is there: who wants no such file any more makes
    that raise first and takes the drafts with this tag away then, and none of them gets its name
    (``FileNotFoundError``).
    """
    draft = path.with_name(f".{path.name}.{tag or '-'}.{secrets.token_hex(8)}")
    try:
        _write(draft, data, True)
        ready()
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


def shorten(path: Path, size_bytes: int) -> None:
    """Cut off the end of a file that nobody else writes; on disk on return."""
    with open(path, "rb+") as file:
        file.truncate(size_bytes)
        os.fsync(file.fileno())


def make_folders(path: Path, mode: int = 0o700) -> None:
    """Make a folder, with ``mode``, and those above it that are missing; all their names are on
    disk on return.

    Also that of the one they are made in, which somebody else may be making now. Where nothing is
    missing nothing is done: this is asked before each write.
    """
    missing = []
    there = path
    while not there.is_dir():
        missing.append(there)
        there = there.parent
    for one in reversed(missing):
        one.mkdir(mode if one == path else 0o777, exist_ok=True)
    for one in (*missing, there) if missing else ():
        # Who may write in a folder, yet not read it, cannot bring it to disk.
        with suppress(PermissionError):
            sync_folder(one.parent)


def sync_folder(path: Path) -> None:
    """Bring a folder's entries (names that were created, renamed or removed) to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(draft: Path, data: bytes, durable: bool) -> None:
    with open(draft, "xb", opener=private_opener) as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())
