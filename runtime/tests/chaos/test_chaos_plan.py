from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.chaos.plan import ChaosError, VictimKind, kinds_in, plan, single_kinds


@given(
    st.lists(st.sampled_from(list(VictimKind)), min_size=1, unique=True),
    st.floats(0.1, 60),
    st.integers(1, 60),
    st.integers(),
)
def test_a_plan_is_of_its_seed_in_order_and_kills_each_kind_as_often(
    kinds: list[VictimKind], every_s: float, count: int, seed: int
) -> None:
    count += len(kinds) - 1
    strikes = plan(kinds, every_s, every_s * count, seed)
    assert strikes == plan(kinds, every_s, every_s * count, seed)
    assert [strike.number for strike in strikes] == list(range(count))
    times = [strike.at_s for strike in strikes]
    assert times == sorted(times)
    assert times[0] > 0
    assert times[-1] < every_s * count
    often = Counter(dict.fromkeys(kinds, 0)) | Counter(strike.kind for strike in strikes)
    assert max(often.values()) - min(often.get(kind, 0) for kind in kinds) <= 1


def test_another_seed_is_another_plan() -> None:
    assert len({plan(list(VictimKind), 1.0, 20.0, seed) for seed in range(5)}) == 5


def test_kinds_that_die_together_have_one_time() -> None:
    both = (VictimKind.ACKER, VictimKind.DRIVER)
    strikes = plan([both, VictimKind.NODE], 10.0, 40.0, 3)
    assert [strike.number for strike in strikes] == list(range(6))
    times = Counter(strike.at_s for strike in strikes)
    assert sorted(times.values()) == [1, 1, 2, 2]
    for at_s, count in times.items():
        labels = [strike.label for strike in strikes if strike.at_s == at_s]
        assert labels == (["acker+driver"] * 2 if count == 2 else ["node"])


def test_what_kills_nothing_or_without_end_is_refused() -> None:
    with pytest.raises(ChaosError, match="--for 5s with --every 10s kills nothing"):
        plan([VictimKind.ACKER], 10.0, 5.0, 1)
    with pytest.raises(ChaosError, match="1,000,000 kills; 100,000 are possible"):
        plan([VictimKind.ACKER], 0.001, 1000.0, 1)


def test_a_plan_that_would_leave_a_kind_out_is_refused() -> None:
    both = (VictimKind.ACKER, VictimKind.DRIVER)
    kinds = [both, VictimKind.OPERATOR, VictimKind.ACKER]
    said = (
        r"--for 20s with --every 10s makes fewer kills \(2\) than --kill names kinds "
        r"\(acker\+driver, operator, acker\), .*: give --for 30s or more, a shorter --every"
    )
    with pytest.raises(ChaosError, match=said):
        plan(kinds, 10.0, 20.0, 1)
    labels = {strike.label for strike in plan(kinds, 10.0, 30.0, 1)}
    assert labels == {"acker+driver", "operator", "acker"}


def test_kinds_are_named_with_commas() -> None:
    assert kinds_in("driver, acker,driver") == (VictimKind.DRIVER, VictimKind.ACKER)
    both = (VictimKind.DRIVER, VictimKind.ACKER)
    assert kinds_in("driver + acker,acker") == (both, VictimKind.ACKER)
    with pytest.raises(ChaosError, match=r"--kill acker\+driver\+acker: names acker twice"):
        kinds_in("driver,acker+driver+acker")
    assert single_kinds([both, VictimKind.NODE, VictimKind.ACKER]) == (*both, VictimKind.NODE)
    with pytest.raises(ChaosError, match=r"--kill '' is not known"):
        kinds_in("acker+")
    with pytest.raises(ChaosError, match=r"--kill 'drivre' is not known; use acker, driver"):
        kinds_in("acker,drivre")
