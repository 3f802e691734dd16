from __future__ import annotations

from collections.abc import Iterator

import pytest
from kit_forks import Forks

from millrace.testing import processes


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    made = Forks()
    yield made
    made.close()


@pytest.fixture
def quick_workers(forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kit's processes have imported all but the code under test before they are started."""
    monkeypatch.setattr(processes, "subprocess", forks)
