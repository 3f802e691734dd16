"""The driver's figures, as everything beside it reads them: whole, or not there at all.

``status.json`` only tells something, so a damaged one is no error. But it is never half believed: a
checksum that does not fit or a value of another kind than the driver writes leaves all of it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from millrace import checked

_ALWAYS: Mapping[str, type | tuple[type, ...]] = {
    "pid": int,
    "state": str,
    "spark": str,
    "uid": str,
    "reason": str,
    "members": list,
    "timings": list,
    "updated": (int, float),
    "rootsPerS": (int, float),
    "lagRecords": int,
    "window": dict,
    "totals": dict,
}
_COMMITTED: Mapping[str, type | tuple[type, ...]] = {
    "execution": int,
    "epoch": int,
    "phase": str,
    "sealed": int,
    "published": int,
    "pendingReplays": int,
    "deadLetters": int,
}
"""There from the first record on, as the totals are."""

_TOTALS = ("roots", "windows", "replays", "dead", "dropped")
_WINDOW = ("number", "attempt", "roots")


def read_figures(file: Path) -> dict[str, Any]:
    """What the driver last wrote into ``status.json``; empty where nothing can be believed."""
    try:
        figures = checked.decode(file.read_bytes())
    except (OSError, checked.DamagedError):
        return {}
    return figures if _known(figures) else {}


def _known(figures: Mapping[str, Any]) -> bool:
    kinds = {**_ALWAYS, **_COMMITTED}
    if not figures.keys() & kinds.keys() or not all(
        _is(value, kinds[name]) for name, value in figures.items() if name in kinds
    ):
        return False
    window, totals = figures.get("window"), figures.get("totals")
    if window is not None and not all(type(window.get(name)) is int for name in _WINDOW):
        return False
    if window is not None and not _is(window.get("since"), (int, float)):
        return False
    if totals is None:
        return True
    return all(type(totals.get(name)) is int for name in _TOTALS) and all(
        figures.get(name) is not None for name in _COMMITTED
    )


def _is(value: Any, kind: type | tuple[type, ...]) -> bool:
    """True and False are no numbers here; null is what is not known."""
    return value is None or (isinstance(value, kind) and not isinstance(value, bool))
