"""The rule of restarts."""

from __future__ import annotations

from millrace.errors import ExitCode
from millrace.homes.restarts import DELAYS_S, FINAL_CODES, Again, GiveUp, Restarts


def test_waits_grow_without_progress_and_are_forgotten_with_it() -> None:
    history = Restarts(FINAL_CODES)
    waits = [history.ended(-9, 1.0, progressed=False) for _ in range(len(DELAYS_S) + 3)]
    expected = [*DELAYS_S, *[DELAYS_S[-1]] * 3]
    assert waits == [Again(delay_s) for delay_s in expected]
    assert history.ended(-9, 1.0, progressed=True) == Again(DELAYS_S[0])
    assert history.ended(-9, 1.0, progressed=False) == Again(DELAYS_S[1])
    assert history.ended(-9, 3600.0, progressed=False) == Again(DELAYS_S[0])
    assert history.count == len(expected) + 3


def test_a_final_code_ends_the_run_after_as_many_lives_in_a_row() -> None:
    history = Restarts(FINAL_CODES)
    assert history.ended(ExitCode.SOURCE, 1.0, progressed=False) == Again(0.0)
    assert history.ended(ExitCode.SOURCE, 1.0, progressed=False) == GiveUp(ExitCode.SOURCE, 2)


def test_another_end_or_progress_in_between_starts_the_count_again() -> None:
    history = Restarts(FINAL_CODES)
    history.ended(ExitCode.SOURCE, 1.0, progressed=False)
    history.ended(-9, 1.0, progressed=False)
    assert isinstance(history.ended(ExitCode.SOURCE, 1.0, progressed=False), Again)
    assert isinstance(history.ended(ExitCode.SOURCE, 1.0, progressed=True), Again)
    assert isinstance(history.ended(ExitCode.SOURCE, 1.0, progressed=False), GiveUp)


def test_failing_at_the_same_window_for_long_is_no_progress() -> None:
    history = Restarts(FINAL_CODES)
    assert isinstance(history.ended(ExitCode.ENGINE, 3600.0, progressed=False), Again)
    given_up = GiveUp(ExitCode.ENGINE, 2)
    assert history.ended(ExitCode.ENGINE, 3600.0, progressed=False) == given_up


def test_signals_and_lost_state_servers_never_end_a_run() -> None:
    history = Restarts(FINAL_CODES)
    for code in [-9, ExitCode.STATE_SERVER] * 50:
        assert isinstance(history.ended(code, 0.1, progressed=False), Again)
