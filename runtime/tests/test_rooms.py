"""How the code is laid out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import millrace

MOST = 20
"""Modules of one package: more than that and nobody sees what belongs together."""


def test_no_package_has_more_modules_than_one_takes_in() -> None:
    root = Path(millrace.__file__).parent
    modules = (p for p in root.rglob("*.py") if p.stem != "__init__")
    rooms = Counter(str(p.parent.relative_to(root)) for p in modules)
    assert len(rooms) > 10
    assert {room: count for room, count in rooms.items() if count > MOST} == {}
