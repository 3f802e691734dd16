"""A topology that has lived."""

from __future__ import annotations

from pathlib import Path

import pytest
from lived_topology import Lived, live


@pytest.fixture
def lived(tmp_path: Path) -> Lived:
    """See ``lived_topology``."""
    return live(tmp_path)
