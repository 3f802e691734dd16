"""The simulator has teeth: every deliberate protocol bug is caught."""

from __future__ import annotations

import pytest

from millrace.simulate.bugs import BUGS
from millrace.simulate.runner import run_one

WITHIN_RUNS = 2000

SHOWED_AT = {
    "prunes_marks": 1767,
    "teaches_for_ever": 10865,
    "parts_with_all": 117,
    "counts_copies_to_come": 6212,
    "keeps_its_copies": 416,
    "waits_for_what_tasks_miss": 680,
    "overlooks_older_view": 36,
    "creates_over_state": 49,
    "takes_refusals_for_answers": 28,
    "losses_blame_roots": 302,
    "letters_taken_twice": 146,
    "id_without_edge": 121,
    "suspects_nobody": 100,
    "leaver_ends_early": 89,
    "compares_windows": 88,
    "unreadable_runs_again": 57,
    "suspend_keeps_split": 46,
}
"""Seeds of bugs that seldom show: which runs are looked at first. Where that one shows nothing any
more all others are."""


@pytest.mark.parametrize("name", BUGS)
def test_a_deliberate_bug_is_caught(name: str) -> None:
    seeds = [SHOWED_AT.get(name, 0), *range(WITHIN_RUNS)]
    caught = next((seed for seed in seeds if run_one(seed, name).violation is not None), None)
    assert caught is not None, f"{WITHIN_RUNS} runs with {name} looked fine"
    assert run_one(caught).violation is None, f"seed {caught} shows something without {name} too"
