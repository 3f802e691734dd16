"""The message that a container leaves when it ends, where the kubelet looks for it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

FILE = Path("/dev/termination-log")
LONGEST = 4000
"""The kubelet shows 4096 bytes."""


def tell_end(text: str, file: Path = FILE) -> None:
    """Leave the cause of an end; outside of a container nothing is left."""
    # A name of a file that is not UTF-8 stands in a text as what no encoding takes.
    data = text.encode(errors="backslashreplace")[:LONGEST].decode(errors="ignore")
    # Only the kubelet makes the file.
    if file.exists():
        with suppress(OSError):
            file.write_text(data, encoding="utf-8")
