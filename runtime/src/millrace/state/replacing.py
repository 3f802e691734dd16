"""Files that are replaced as a whole: a reader sees the old or the new content."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from millrace.modes import private_opener


def replace_file(path: Path, text: str, *, durable: bool = True) -> None:
    """Replace ``path`` atomically, for its user alone; ``durable``: it is on disk on return.

    Raises ``OSError``.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.new")
    draft.unlink(missing_ok=True)
    with open(draft, "x", opener=private_opener) as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    draft.replace(path)
    if durable:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
