"""Tracebacks of user code as people want them: the user's own lines, and no more of them than a
letter can carry.
"""

from __future__ import annotations

import linecache
import sysconfig
from pathlib import Path
from types import TracebackType

FRAMES = 8
"""Innermost frames that are shown."""

LENGTH = 2_000
KEPT = 256

_OWN = str(Path(__file__).resolve().parents[1])
_LIBRARIES = tuple(
    sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)

Place = tuple[str, int, str]
"""File, line and function of a frame."""


class Traces:
    """Texts of tracebacks. What fails in one place has one text, whatever the number of tuples."""

    def __init__(self) -> None:
        self._texts: dict[tuple[Place, ...], str] = {}

    def of(self, error: BaseException) -> str:
        """The user's frames, outermost first, each with its line of code; empty without any.

        Frames of libraries stand there only where the error has no other.
        """
        places = _places(error.__traceback__)
        found = self._texts.get(places)
        if found is None:
            if len(self._texts) >= KEPT:
                self._texts.clear()
            found = self._texts[places] = _text(places)
        return found


def _places(trace: TracebackType | None) -> tuple[Place, ...]:
    frames: list[Place] = []
    while trace is not None:
        code = trace.tb_frame.f_code
        if not _inside(code.co_filename, (_OWN,)):
            frames.append((code.co_filename, trace.tb_lineno, code.co_qualname))
        trace = trace.tb_next
    users = [frame for frame in frames if not _inside(frame[0], _LIBRARIES)]
    return tuple((users or frames)[-FRAMES:])


def _inside(file: str, folders: tuple[str, ...]) -> bool:
    return file.startswith("<frozen") or any(file.startswith(f"{folder}/") for folder in folders)


def _text(places: tuple[Place, ...]) -> str:
    lines = []
    for file, number, name in places:
        lines.append(f'File "{file}", line {number}, in {name}')
        code = linecache.getline(file, number).strip()
        if code:
            lines.append(f"    {code}")
    text = "\n".join(lines)
    return text if len(text) <= LENGTH else f"…{text[-LENGTH:]}"
