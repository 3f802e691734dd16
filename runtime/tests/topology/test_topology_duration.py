from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.topology.duration import Duration


@pytest.mark.parametrize(
    ("text", "milliseconds", "canonical"),
    [
        ("100ms", 100, "100ms"),
        ("30s", 30_000, "30s"),
        ("60s", 60_000, "1m"),
        ("1m30s", 90_000, "90s"),
        ("1.5s", 1_500, "1500ms"),
        ("0.5h", 1_800_000, "30m"),
        ("2h", 7_200_000, "2h"),
    ],
)
def test_a_duration_is_read_and_written_in_its_largest_whole_unit(text, milliseconds, canonical):
    duration = Duration.parse(text)
    assert duration.milliseconds == milliseconds
    assert duration.seconds == milliseconds / 1000
    assert str(duration) == canonical


@pytest.mark.parametrize("text", ["", "30", "s", "30 s", "-1s", "1d", "0s", "0.1ms", "1..5s", "١s"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match=r"duration|longer|finer"):
        Duration.parse(text)


@settings(deadline=None)
@given(st.integers(min_value=1, max_value=10**12))
def test_the_canonical_form_reads_back_to_the_same_length(milliseconds):
    assert Duration.parse(str(Duration(milliseconds))) == Duration(milliseconds)
