"""Every rule that is needed has a deliberate bug, and every bug breaks something that is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millrace.simulate.bugs import BUGS
from millrace.simulate.bugs.table import breakers, document

DOCS = Path(__file__).parents[3] / "docs"


def rules() -> dict[int, str]:
    """The rules of the document, as they stand there."""
    text = (DOCS / "protocol.md").read_text()
    found = re.findall(r"^(\d+)\. (.*?)(?=^\d+\. |^## |\n\n|\Z)", text, re.M | re.S)
    return {int(number): rule.strip() for number, rule in found}


STARRED = [number for number, rule in rules().items() if re.search(r"\. \*(\s|$)", rule)]


def test_the_document_is_that_of_the_bugs() -> None:
    assert (DOCS / "bugs.md").read_text() == document() + "\n"


def test_most_rules_bear_a_star() -> None:
    assert set(rules()) == set(range(1, 26))
    assert set(rules()) - set(STARRED) == {2, 11, 12}


@pytest.mark.parametrize("number", STARRED)
def test_a_starred_rule_is_broken_by_a_bug(number: int) -> None:
    """That each of them is caught is tried beside this, bug by bug."""
    assert breakers(number)


def test_a_bug_that_breaks_a_rule_breaks_one_that_there_is() -> None:
    named = {bug.breaks for bug in BUGS.values() if bug.breaks.startswith("rule ")}
    assert named <= {f"rule {number}" for number in rules()}
