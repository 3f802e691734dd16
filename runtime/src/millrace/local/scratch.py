"""What a run needs while it lives and nobody after it.

Temporary files of all its processes lie in ``tmp`` of the work folder, which is deleted at the
end; the rest is left for people to look at until the next start. Unix sockets go there too,
whose paths are limited: where ``tmp`` is too deep for that, a folder with a random name in the
machine's own temporary folder takes its place, and ``tmp.json`` says which one, so that the next
run deletes it after a crash.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from millrace.local.files import read_json, write_json

_FOLDERS = ("spark", "warehouse", "artifacts", "blackbox")
"""The last one is what an older release left."""

_LONGEST_BYTES = 60
"""Spark takes no longer folder for its sockets; the system limits their whole path to 107 bytes."""

_OUTSIDE = re.compile(r"millrace-[0-9a-f]{16}")


def make(folder: Path) -> Path:
    """A new folder for the temporary files of a run in the work folder ``folder``."""
    clear(folder)
    return _made(folder)


@contextmanager
def temporary(folder: Path) -> Iterator[Path]:
    """The same for a while, for who looks at what a run has left; no process of it may live."""
    remove_temporary(folder)
    try:
        yield _made(folder)
    finally:
        remove_temporary(folder)


def _made(folder: Path) -> Path:
    path = folder / "tmp"
    if len(os.fsencode(path)) > _LONGEST_BYTES:
        path = Path(tempfile.gettempdir()).absolute() / f"millrace-{secrets.token_hex(8)}"
        write_json(folder / "tmp.json", {"path": str(path)})
    path.mkdir(mode=0o700)
    path.chmod(0o700)
    return path


def clear(folder: Path) -> None:
    """Delete all scratch of a work folder; no process of a run may live."""
    remove_temporary(folder)
    # A driver that stands by has a folder of its own.
    for path in (*(folder / name for name in _FOLDERS), *folder.glob("spark-*")):
        shutil.rmtree(path, ignore_errors=True)


def remove_temporary(folder: Path) -> None:
    """Delete the temporary files of a run; what cannot be deleted waits for the next start."""
    note = read_json(folder / "tmp.json")
    if isinstance(note, dict) and isinstance(note.get("path"), str):
        _delete_outside(Path(note["path"]))
    with suppress(OSError):
        (folder / "tmp.json").unlink(missing_ok=True)
    shutil.rmtree(folder / "tmp", ignore_errors=True)


def _delete_outside(path: Path) -> None:
    """Delete only what ``make`` may have made: the note may be damaged."""
    try:
        found = path.lstat()
    except (OSError, ValueError):
        return
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if ours and path.is_absolute() and _OUTSIDE.fullmatch(path.name):
        shutil.rmtree(path, ignore_errors=True)
