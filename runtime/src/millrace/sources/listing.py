"""Which files a files source reads: one file, those of a folder, or those that a pattern names."""

from __future__ import annotations

import glob
import os
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_WILD = "*?["


@dataclass(frozen=True, slots=True)
class FileStat:
    """What the file system says of a file, quickly."""

    size: int
    inode: int
    modified_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> FileStat:
        return cls(found.st_size, found.st_ino, found.st_mtime_ns)

    @property
    def signature(self) -> int:
        """32 bits that differ, but for chance, when anything here does."""
        return zlib.crc32(f"{self.size}/{self.inode}/{self.modified_ns}".encode())


@dataclass(frozen=True, slots=True)
class Place:
    """``root`` is the folder that file names are relative to; with neither ``file`` nor
    ``pattern`` it is the folder that is read.
    """

    root: Path
    file: str = ""
    pattern: str = ""

    @classmethod
    def of(cls, path: str, folder: Path) -> Place:
        """Where ``path``, relative to ``folder``, leads: a folder, a file or a pattern."""
        whole = folder / path
        if whole.is_dir():
            return cls(whole)
        if whole.exists() or not any(c in path for c in _WILD):
            return cls(whole.parent, file=whole.name)
        parts = whole.parts
        wild = next(i for i, part in enumerate(parts) if any(c in part for c in _WILD))
        return cls(Path(*parts[:wild]), pattern=str(Path(*parts[wild:])))

    def list(self) -> dict[str, FileStat]:
        """The files by name, in order of name.

        Names that begin with ``_`` or ``.`` are skipped unless the file is named outright; of a
        folder only its own files count. Raises ``OSError``.
        """
        if self.file:
            return {self.file: FileStat.of((self.root / self.file).stat())}
        found = self._matching() if self.pattern else self._own_files()
        return dict(sorted(found.items()))

    def _own_files(self) -> dict[str, FileStat]:
        found: dict[str, FileStat] = {}
        with os.scandir(self.root) as entries:
            for entry in entries:
                # Files that were read may be removed, also while they are listed.
                with suppress(FileNotFoundError):
                    if entry.name[0] not in "_." and entry.is_file():
                        found[entry.name] = FileStat.of(entry.stat())
        return found

    def _matching(self) -> dict[str, FileStat]:
        found: dict[str, FileStat] = {}
        for name in glob.iglob(self.pattern, root_dir=self.root, recursive=True):
            path = self.root / name
            with suppress(FileNotFoundError):
                if path.name[0] not in "_." and path.is_file():
                    found[name] = FileStat.of(path.stat())
        return found
