"""The simulator has teeth: every deliberate protocol bug is caught."""

from __future__ import annotations

import pytest

from millrace.simulate.bugs import BUGS
from millrace.simulate.runner import run_one

WITHIN_RUNS = 2000

SHOWED_AT = {
    "prunes_marks": 1767,
    "enclosed_once": 38,
    "teaches_for_ever": 10865,
    "parts_with_all": 117,
    "counts_copies_to_come": 6212,
    "keeps_its_copies": 340,
    "waits_for_what_tasks_miss": 680,
    "overlooks_older_view": 36,
    "creates_over_state": 49,
    "takes_refusals_for_answers": 28,
    "losses_blame_roots": 302,
    "letters_taken_twice": 146,
    "id_without_edge": 121,
    "suspects_nobody": 100,
    "leaver_ends_early": 93,
    "compares_windows": 88,
    "unreadable_runs_again": 57,
    "suspend_keeps_split": 46,
    "no_stamp_check": 5,
    "no_write_back": 7,
    "claim_without_cas": 27,
    "stale_member_is_source": 7,
    "forgets_last_open": 21,
    "stamp_goes_back": 2,
    "goes_on_with_some": 29,
    "leaves_out_too_many": 16,
    "learner_is_source": 8,
    "learner_is_complete": 44,
    "learner_takes_records": 11,
    "never_lets_in": 23,
    "releases_too_many": 22,
    "target_may_be_silent": 16,
    "copies_nothing": 7,
    "opens_anyhow": 7,
    "act_before_commit": 4,
    "ack_of_other_round_counts": 20,
    "goes_on_with_anything": 22,
    "forgets_nothing": 21,
    "engine_failure_blames_roots": 8,
    "engine_failure_is_forgotten": 8,
    "forgets_who_died": 17,
    "allows_all_to_die": 26,
    "unreadable_replayed": 5,
    "edit_forgets_replays": 376,
    "edit_applied_again": 2,
    "edit_before_shown": 3,
    "plans_before_edit": 5,
    "ignores_further_sinks": 3,
    "stale_file_is_source": 25,
    "any_letters_believed": 1,
    "carries_nothing": 1,
    "uncovered_roots": 10,
    "reads_unchecked": 28,
    "judged_count_unchecked": 16,
    "refused_message_counts": 58,
    "time_goes_back": 2,
    "never_looks_up": 5,
    "claims_while_waiting": 10,
    "never_takes_over": 10,
    "restore_forgets_replays": 16,
    "restore_forgets_window": 12,
    "restores_what_was_left": 15,
    "snapshot_tears": 15,
    "snapshot_before_shown": 15,
    "scale_loses_last": 7,
    "seal_before_objects": 5,
    "unseeded_roots": 5,
    "losers_applied": 2,
    "timers_by_wall_clock": 2,
    "split_drops_boundary": 10,
    "reads_before_stamping": 9,
    "no_tag_check": 3,
}
"""Which run is looked at first, the first one where none is named. Where that one shows nothing any
more all others are."""


@pytest.mark.parametrize("name", BUGS)
def test_a_deliberate_bug_is_caught(name: str) -> None:
    seeds = [SHOWED_AT.get(name, 0), *range(WITHIN_RUNS)]
    caught = next((seed for seed in seeds if run_one(seed, name).violation is not None), None)
    assert caught is not None, f"{WITHIN_RUNS} runs with {name} looked fine"
    assert run_one(caught).violation is None, f"seed {caught} shows something without {name} too"
