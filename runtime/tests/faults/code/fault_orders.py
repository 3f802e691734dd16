"""Orders from a test to its saboteurs in worker processes: a file, and one mark for each hit."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from pyspark import TaskContext

FOLDER = "MILLRACE_FAULTS"
"""Environment variable that names the folder with ``orders.json`` and the marks."""

_ATTEMPT = re.compile(r"-(\d+)\.(\d+)\.(\d+)$")


def orders() -> dict[str, Any]:
    """What is to be done now; empty for nothing."""
    try:
        found: dict[str, Any] = json.loads((_folder() / "orders.json").read_text())
    except FileNotFoundError:
        return {}
    return found


def attempt() -> tuple[int, int, int]:
    """(execution, window, attempt) that this task runs for, as Spark was told."""
    context = TaskContext.get()
    assert context is not None
    found = _ATTEMPT.search(context.getLocalProperty("spark.job.description") or "")
    assert found is not None
    execution, window, number = map(int, found.groups())
    return execution, window, number


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
