"""The ends of log files, and what is appended to them."""

from __future__ import annotations

import os
from pathlib import Path

from millrace.errors import WorkFolderError
from millrace.local.workdir import WorkFolder

_BLOCK_BYTES = 1 << 16


def log_files(folder: WorkFolder, roles: list[str]) -> list[tuple[str, Path]]:
    """(process, log file) of the processes that are named or have one of the roles.

    Raises ``WorkFolderError`` for a name that no process has had.
    """
    known = {path.stem: path for path in sorted(folder.logs.glob("*.log"))}
    known |= {path.parent.name: path for path in sorted(folder.path.glob("state-*/server.log"))}
    found: dict[str, Path] = {}
    for role in roles:
        mine = {n: p for n, p in known.items() if role in (n, n.rpartition("-")[0])}
        if not mine:
            there = f"there are {', '.join(sorted(known))}" if known else "nothing has run yet"
            raise WorkFolderError(f"work folder {folder.path}: no log of {role!r}; {there}")
        found |= mine
    return list(found.items())


class Tail:
    """One log file, also over its being put aside and begun anew."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self._path = path
        self._inode = 0
        self._at = 0
        self._rest = b""

    def last(self, count: int) -> list[str]:
        """The last lines; ``new`` goes on behind them."""
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                self._inode, self._at = found.st_ino, found.st_size
                data, at = b"", found.st_size
                while at > 0 and data.count(b"\n") <= count:
                    size = min(_BLOCK_BYTES, at)
                    at -= size
                    file.seek(at)
                    data = file.read(size) + data
        except FileNotFoundError:
            return []
        lines = data.split(b"\n")
        self._rest = lines.pop()
        shown = [*lines, *([self._rest] if self._rest else [])]
        self._rest = b""
        return [_text(line) for line in shown[-count:]] if count else []

    def new(self) -> list[str]:
        """Whole lines that were written since the last call."""
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self._inode or found.st_size < self._at:
                    self._inode, self._at = found.st_ino, 0
                file.seek(self._at)
                data = self._rest + file.read()
                self._at = file.tell()
        except FileNotFoundError:
            return []
        *lines, self._rest = data.split(b"\n")
        return [_text(line) for line in lines]


def _text(line: bytes) -> str:
    return line.decode(errors="replace")
