"""The kit finds what is wrong with a source, each bug under the rule that it breaks."""

from __future__ import annotations

from pathlib import Path

import pytest
from conformance_support import kitsources

from millrace.testing import SOURCE_RULES, ConformanceError, check_source, processes

BUGS = {
    "Once": "replayable",
    "OtherColumns": "schema",
    "ColumnsByChance": "schema",
    "OddColumns": "columns",
    "ReservedColumn": "columns",
    "TooFine": "fits",
    "TooMany": "plan",
    "EmptyRange": "plan",
    "TupleOffsets": "json",
    "PathLocator": "json",
    "Overlapping": "once",
    "OwnPosition": "plan-again",
    "LosesTheRest": "short",
    "NeverDrained": "drained",
    "DrainedTooEarly": "drained",
    "ShortRead": "read",
    "HolesOutside": "read",
    "HolesByChance": "read-again",
    "LoudErrors": "read",
    "CountsReads": "read-again",
    "OneReader": "read-again",
    "HashedRows": "elsewhere",
    "PlansInMemory": "elsewhere",
    "UncutLocator": "split",
    "UnequalHalves": "split",
    "LocatesTheFirst": "locate",
    "PayloadOfTheMoment": "payload",
    "NoPayload": "payload",
    "LagsBehindZero": "words",
    "ChecksAloud": "words",
    "AcksToTheEnd": "acks",
    "AcksOnce": "acks",
    "LeavesATrace": "crash",
    "Hangs": "returns",
}


def test_a_good_source_passes(tmp_path: Path) -> None:
    check_source(lambda: kitsources.Counted("numbers", {"count": 14}, tmp_path))


def test_a_good_source_with_holes_passes(tmp_path: Path) -> None:
    check_source(lambda: kitsources.Holey("numbers", {"count": 14}, tmp_path))


@pytest.mark.usefixtures("quick_workers")
@pytest.mark.parametrize(("bug", "rule"), BUGS.items())
def test_a_bug_is_found_by_its_rule(
    bug: str, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rule == "returns":
        monkeypatch.setattr(processes, "DEADLINE_S", 3.0)
    kind = getattr(kitsources, bug)
    with pytest.raises(ConformanceError) as found:
        check_source(lambda: kind("numbers", {"count": 14}, tmp_path), only=[rule])
    assert rule in found.value.rules
    text = str(found.value)
    assert f"source kitsources:{bug} breaks" in text
    assert SOURCE_RULES[rule] in text


def test_every_rule_has_a_bug_that_breaks_it() -> None:
    assert set(BUGS.values()) == set(SOURCE_RULES)


def test_too_few_records_try_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConformanceError, match="2 records came"):
        check_source(lambda: kitsources.Counted("numbers", {"count": 2}, tmp_path))
