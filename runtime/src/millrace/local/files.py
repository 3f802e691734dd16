"""Small JSON documents that are replaced as a whole: a reader sees the old or the new one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from millrace import durable as disk


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Replace ``path`` atomically; ``durable`` means that it is on disk on return."""
    disk.replace(path, (json.dumps(value, indent=1) + "\n").encode(), durable=durable)


def read_json(path: Path) -> Any:
    """The document, or None if there is none or it cannot be read as JSON."""
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError, RecursionError):
        return None
