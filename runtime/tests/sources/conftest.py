"""A folder to read from, a driver that may die, and what must not be opened."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from file_lives import Reader


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


@pytest.fixture(params=[False, True], ids=["alive", "restarted"])
def moment(request: pytest.FixtureRequest) -> Callable[[Reader], None]:
    """Nothing, or a driver that dies and comes back."""

    def happen(reader: Reader) -> None:
        if request.param:
            reader.restart()

    return happen


@pytest.fixture
def barred(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """Files that cannot be opened and folders that cannot be listed, for root neither."""
    found: set[Path] = set()

    def refusing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any = ".", *others: Any, **more: Any) -> Any:
            if Path(os.fsdecode(path)) in found:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            return real(path, *others, **more)

        return call

    monkeypatch.setattr(os, "open", refusing(os.open))
    monkeypatch.setattr(os, "scandir", refusing(os.scandir))
    return found
