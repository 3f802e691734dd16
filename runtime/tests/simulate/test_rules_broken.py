"""Every rule that is needed has a deliberate bug, and every bug breaks something that is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.simulate.bugs import BUGS
from millrace.simulate.rules import RULES, document

ROOT = Path(__file__).parents[3]


def test_the_document_is_that_of_the_rules() -> None:
    assert (ROOT / "docs" / "rules.md").read_text() == document() + "\n"


def test_the_rules_are_numbered() -> None:
    assert list(RULES) == list(range(1, 26))


@pytest.mark.parametrize("number", [n for n, rule in RULES.items() if rule.needed])
def test_a_needed_rule_is_broken_by_a_bug(number: int) -> None:
    """That each of them is caught is tried beside this, bug by bug."""
    assert RULES[number].bugs


def test_a_bug_that_breaks_a_rule_breaks_one_that_there_is() -> None:
    named = {bug.breaks for bug in BUGS.values() if bug.breaks.startswith("rule ")}
    assert named <= {f"rule {number}" for number, rule in RULES.items() if rule.needed}
