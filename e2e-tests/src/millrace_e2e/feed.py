"""Input of a fault history: lines whose every effect can be counted again.

A line is ``<id> <kind> <word> …``. The id is unique in a history (``r0000042``); the kind says what
the processors of ``apps/history.py`` do with it:

``ok``     it is processed
``flaky``  processing raises the first time (both calls of it), then succeeds
``raise``  processing always raises
``die``    processing always ends its worker with ``os._exit``
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Mapping
from pathlib import Path

OK, FLAKY, RAISE, DIE = "ok", "flaky", "raise", "die"

VOCABULARY = 500
MOST_WORDS = 12


def line(number: int, seed: int, kind: str = OK) -> str:
    """Line ``number`` of a history, without its end; the same for the same arguments."""
    # Random's own hash of a string is stable, unlike that of a tuple.
    chance = random.Random(f"{seed}/{number}")
    # A square makes small numbers frequent, as words are in a text.
    words = [
        f"w{int(VOCABULARY * chance.random() ** 2)}" for _ in range(chance.randint(1, MOST_WORDS))
    ]
    return " ".join((f"r{number:07d}", kind, *words))


def text(numbers: Iterable[int], seed: int, special: Mapping[int, str] | None = None) -> bytes:
    """Whole lines, as bytes; ``special`` gives a kind to some of the numbers."""
    kinds = special or {}
    return "".join(f"{line(n, seed, kinds.get(n, OK))}\n" for n in numbers).encode()


def add_file(path: Path, data: bytes) -> None:
    """A new file that appears with all its bytes."""
    draft = path.with_name(f".{path.name}.new")
    draft.write_bytes(data)
    draft.replace(path)


def append(path: Path, data: bytes, cut: int | None = None) -> None:
    """Let a file grow; with ``cut`` in two writes, the first of which may end within a line."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        for piece in (data[:cut], data[cut:]) if cut else (data,):
            os.write(handle, piece)
    finally:
        os.close(handle)
