"""The kit finds what is wrong with a sink, each bug under the rule that it breaks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kitsinks_table as table
import psutil
import pytest
from conformance_support import kitsinks, ledger, ledger_rows, occupy

from millrace.testing import SINK_RULES, ConformanceError, check_sink, processes
from millrace.testing.findings import UnusableError


def test_a_good_sink_passes() -> None:
    check_sink(ledger(kitsinks.Ledger), ledger_rows, occupy=occupy)


@pytest.mark.usefixtures("quick_workers")
@pytest.mark.parametrize(("bug", "rule"), table.BUGS.items())
def test_a_bug_is_found_by_its_rule(bug: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if rule == "returns":
        monkeypatch.setattr(processes, "DEADLINE_S", 3.0)
    make = ledger(getattr(kitsinks, bug))
    # A lock that is left shows in the first crash.
    only = ["crash-prepare"] if rule == "returns" else [rule]
    with pytest.raises(ConformanceError) as found:
        check_sink(make, ledger_rows, occupy=occupy, only=only)
    assert rule in found.value.rules
    text = str(found.value)
    assert f"sink kitsinks:{bug} breaks" in text
    assert SINK_RULES[rule] in text


def test_rows_have_the_types_that_are_asked_for() -> None:
    """As in a run: 32 bits, a column without a value, a list without an item."""

    def row(number: int, window: int) -> dict[str, Any]:
        return {"word": f"w{number}", "n": window, "note": None, "tags": []}

    def check(schema: str | None) -> None:
        make = ledger(kitsinks.TypedLedger)
        check_sink(make, ledger_rows, row=row, schema=schema, only=["staged", "shown"])

    check("word string, n int, note string, tags array<string>")
    with pytest.raises(ConformanceError, match="n is int64"):
        check(None)


def test_every_rule_has_a_bug_that_breaks_it() -> None:
    assert set(table.BUGS.values()) == set(SINK_RULES)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ConformanceError) as found:
        check_sink(
            ledger(kitsinks.Unfenced),
            ledger_rows,
            only=["fenced", "fresh", "again"],
        )
    assert found.value.rules == ["fenced"]
    (finding,) = found.value.findings
    assert "must raise FencedError" in finding.seen
    assert "keep the highest execution in the target" in finding.remedy


def test_where_a_process_died_is_said() -> None:
    with pytest.raises(ConformanceError, match=r"died in publish\(\) at kitsinks\.py:\d+ `.+`"):
        check_sink(ledger(kitsinks.WritesRowsFirst), ledger_rows, only=["crash-publish"])


def test_a_class_that_no_topology_can_name_is_refused() -> None:
    class Inside(kitsinks.Ledger):
        pass

    with pytest.raises(UnusableError, match="defined inside a function"):
        check_sink(ledger(Inside), ledger_rows)


def test_options_that_no_file_can_say_and_unknown_rules_are_refused() -> None:
    def make(place: Path) -> kitsinks.Ledger:
        return kitsinks.Ledger("out", {"at": object()}, place)

    with pytest.raises(UnusableError, match="are no JSON"):
        check_sink(make, ledger_rows)
    with pytest.raises(UnusableError, match="'nothing' is no rule; the rules are"):
        check_sink(ledger(kitsinks.Ledger), ledger_rows, only=["nothing"])


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_MEMORY", tmp_path)
    # Other tests of this process may have a JVM.
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(ConformanceError):
        check_sink(ledger(kitsinks.LosesATask), ledger_rows)
    assert list(tmp_path.iterdir()) == []
    assert set(psutil.Process().children(recursive=True)) <= before
