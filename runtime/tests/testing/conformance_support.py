"""What the tests of the kit share: the code under test, made and read back."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

CODE = Path(__file__).with_name("code")
if str(CODE) not in sys.path:
    sys.path.insert(0, str(CODE))

import kitsinks  # noqa: E402
import kitsources  # noqa: E402
import kitsteps  # noqa: E402

__all__ = ["kitsinks", "kitsources", "kitsteps", "ledger", "ledger_rows", "occupy"]


def ledger(kind: type[Any]) -> Callable[[Path], Any]:
    return lambda place: kind("out", {}, place)


def ledger_rows(place: Path) -> Iterable[dict[str, Any]]:
    file = place / "ledger.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"] if file.exists() else []
    return rows


def occupy(place: Path) -> None:
    """Rows that nobody marked, in a ledger."""
    sink = kitsinks.Ledger("out", {}, place)
    with sink.locked() as state:
        state["rows"] = [{"word": "theirs", "n": 1}]
