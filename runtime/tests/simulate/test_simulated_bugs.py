"""The simulator has teeth: every deliberate protocol bug is caught."""

from __future__ import annotations

import pytest

from millrace.simulate.bugs import BUGS
from millrace.simulate.runner import run_one

WITHIN_RUNS = 2000


@pytest.mark.parametrize("name", BUGS)
def test_a_deliberate_bug_is_caught(name: str) -> None:
    caught = next(
        (seed for seed in range(WITHIN_RUNS) if run_one(seed, name).violation is not None), None
    )
    assert caught is not None, f"{WITHIN_RUNS} runs with {name} looked fine"
