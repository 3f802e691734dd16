"""Orders from a test to its saboteurs in worker processes: a file, and one mark for each hit."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from millrace.engine.task import blackbox

FOLDER = "MILLRACE_FAULTS"
"""Environment variable that names the folder with ``orders.json`` and the marks."""


def orders() -> dict[str, Any]:
    """What is to be done now; empty for nothing."""
    try:
        found: dict[str, Any] = json.loads((_folder() / "orders.json").read_text())
    except FileNotFoundError:
        return {}
    return found


def attempt() -> tuple[int, int, int]:
    """(execution, window, attempt) that this worker works for, by its own page."""
    assert blackbox.mine is not None
    note = blackbox.mine.note()
    assert note is not None
    return note.execution, note.window, note.attempt


def strike(name: str, **evidence: Any) -> bool:
    """Take an order, which is carried out once; False where somebody was quicker."""
    draft = _folder() / f".{name}.{os.getpid()}"
    draft.write_text(json.dumps({"attempt": attempt(), "pid": os.getpid(), **evidence}))
    try:
        os.link(draft, _folder() / f"{name}.mark")
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def strikes() -> dict[str, dict[str, Any]]:
    """What has been done so far, by name."""
    return {file.stem: json.loads(file.read_text()) for file in _folder().glob("*.mark")}


def _folder() -> Path:
    return Path(os.environ[FOLDER])
