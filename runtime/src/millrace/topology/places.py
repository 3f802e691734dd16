"""Which folders a topology reads and writes, links and patterns followed as far as they go."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

_WILD = "*?["
_LOOKED_AT = 1_000
"""Folders of a pattern that are looked at for links; a check has to end soon."""


def real(path: str, folder: Path | None) -> str:
    """Where a path leads; links count where the file's folder is known."""
    return os.path.normpath(path) if folder is None else os.path.realpath(folder / path)


def reads_from(source: str, sink: str, names: Sequence[str], folder: Path | None) -> bool:
    """Whether a files source would read what a sink writes as ``names`` into its folder."""
    written = real(sink, folder)
    whole = Path(source) if folder is None else folder / source
    if not any(c in source for c in _WILD) or (folder is not None and os.path.lexists(whole)):
        return real(source, folder) == written
    parts = whole.parts
    wild = next(i for i, part in enumerate(parts) if any(c in part for c in _WILD))
    root, pattern = os.path.join(*parts[:wild], ""), parts[wild:]
    base = os.path.normpath(root) if folder is None else os.path.realpath(root)
    for name in names:
        relative = os.path.relpath(os.path.join(written, name), base)
        if not relative.startswith("..") and _matches(relative.split(os.sep), pattern):
            return True
    if folder is None or len(pattern) < 2:
        return False
    # A link below the root may lead there as well.
    places = glob.iglob(os.path.join(*pattern[:-1]), root_dir=base)
    return fnmatch.fnmatchcase(names[0], pattern[-1]) and any(
        os.path.realpath(os.path.join(base, place)) == written
        for place in islice(places, _LOOKED_AT)
    )


def _matches(steps: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a path matches a pattern; ``**`` stands for any number of folders."""
    # Rows: how many steps the patterns so far may have used up.
    used = {0}
    for part in pattern:
        if part == "**":
            used = {n for start in used for n in range(start, len(steps) + 1)}
        else:
            used = {n + 1 for n in used if n < len(steps) and fnmatch.fnmatchcase(steps[n], part)}
    return len(steps) in used
