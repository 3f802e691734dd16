"""The end of a state server's append-only file behind a power cut.

A file system may know of the new length of a file and not have its bytes yet: what was not brought
to disk is NULs then. The server takes a file that ends too early and refuses one that ends so,
although both lack the same, namely what nobody was told is written (``appendfsync always``). No
other file ends in a NUL, since each command ends with a line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from millrace import durable

_READ_BYTES = 1 << 20


def cut_unwritten(folder: Path) -> Iterator[str]:
    """Cut NULs off the ends of the files that are appended to, in a server's folder whose lock is
    held; a sentence about each that had some. Raises ``OSError``."""
    for path in sorted((folder / "appendonlydir").glob("*.incr.aof")):
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            kept = _without_nuls(file.fileno(), size)
        if kept == size:
            continue
        durable.shorten(path, kept)
        yield (
            f"{path.name} ended in {size - kept:,} NUL bytes, as a power cut leaves them where "
            "nothing had been written; they are cut off"
        )


def _without_nuls(file: int, size: int) -> int:
    """The size of a file without the NULs at its end."""
    while size:
        begin = max(0, size - _READ_BYTES)
        left = len(os.pread(file, size - begin, begin).rstrip(b"\0"))
        if left:
            return begin + left
        size = begin
    return 0
