"""What a round's figure is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    sys.modules.pop("measure", None)
    return __import__("measure")


def overlapping(windows: int, first_s: float, rest_s: float) -> list[float]:
    """When windows end whose first pass runs beside the end of the one before, on one core."""
    ends, now_s = [], first_s
    for window in range(windows):
        now_s += rest_s + (first_s if window < windows - 1 else 0.0)
        ends.append(now_s)
    return ends


@pytest.mark.parametrize("windows", [3, 4, 8])
@pytest.mark.parametrize("first_s", [0.0, 0.75])
def test_what_a_window_does_before_its_turn_counts(
    measure: Any, windows: int, first_s: float
) -> None:
    ends = overlapping(windows, first_s, 0.25)
    assert measure.Round(0.0, ends, 1.0).window_s == pytest.approx(first_s + 0.25)
