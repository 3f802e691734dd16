"""The rules that the code speaks of, the lists of documents, and lines that fit a screen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
WIDTH = 105
"""Characters of a line of prose; tables, code, pictures and names of mutants may be longer."""

OWN_RULES = {"runtime/src/millrace/sources/identity.py"}
"""Modules whose rules are numbered in their own docstring."""


def rules_in(text: str) -> list[int]:
    """The numbers that begin a rule."""
    return [int(n) for n in re.findall(r"^(\d+)\. ", text, re.M)]


def spoken_of(text: str) -> set[int]:
    """Numbers of rules that a text speaks of: ``rule 3``, ``rules 11 to 13``, ``rules 3 and 4``."""
    found: set[int] = set()
    flat = re.sub(r"\s+(?:# ?)?", " ", text)
    for phrase in re.findall(r"\b[Rr]ules? (\d+(?:(?:, | and | or | to )\d+)*)", flat):
        for first, _, last in re.findall(r"(\d+)( to (\d+))?", phrase):
            found |= set(range(int(first), int(last or first) + 1))
    return found


def test_the_rules_are_numbered_in_order() -> None:
    assert rules_in((DOCS / "protocol.md").read_text()) == list(range(1, 26))


def test_every_rule_that_is_spoken_of_is_there() -> None:
    known = set(rules_in((DOCS / "protocol.md").read_text()))
    code = [f for d in ("runtime", "e2e-tests", "operator") for f in (ROOT / d).rglob("*.py")]
    told: dict[str, set[int]] = {}
    for file in [*code, ROOT / "README.md", *DOCS.glob("*.md")]:
        place = str(file.relative_to(ROOT))
        if ".venv" not in file.parts and place not in OWN_RULES:
            told[place] = spoken_of(file.read_text())
    missing = {place: sorted(numbers - known) for place, numbers in told.items() if numbers - known}
    assert missing == {}
    assert len({number for numbers in told.values() for number in numbers}) > 20
    assert told["runtime/src/millrace/protocol/membership.py"] >= {9, 11, 12, 13, 14, 24}


@pytest.mark.parametrize("place", sorted(OWN_RULES))
def test_a_module_with_rules_of_its_own_has_them_all(place: str) -> None:
    text = (ROOT / place).read_text()
    assert spoken_of(text) <= set(rules_in(text))


def test_rules_are_found_in_what_a_text_says() -> None:
    assert spoken_of("by rule 3, and (rules 11 to 13); Rules 3 and 4 of\n    # rules 20, 21") == {
        *(3, 4, 11, 12, 13, 20, 21)
    }
    assert spoken_of("a rule\n    # 25 of them, rule  9") == {25, 9}
    assert spoken_of("3 rules, and no rule") == set()


@pytest.mark.parametrize("index", ["docs/README.md", "README.md"])
def test_every_document_is_in_the_lists(index: str) -> None:
    text = (ROOT / index).read_text()
    there = {file.name for file in DOCS.glob("*.md")} - {"README.md"}
    listed = re.findall(r"^- \[[^\]]*?([\w.]+)\]\(", text, re.M)
    assert there - set(listed) == set()
    assert len(listed) == len(set(listed))


def test_both_lists_have_the_same_groups_and_order() -> None:
    def groups(index: str) -> list[tuple[str, list[str]]]:
        text = (ROOT / index).read_text()
        heads = re.split(r"^##+ (Run it|Operate it|Write code|Internals)\n", text, flags=re.M)[1:]
        parts = (part.partition("\n\n## ")[0] for part in heads[1::2])
        names = [re.findall(r"\]\((?:\.\./|docs/)?([\w.#-]+)\)", part) for part in parts]
        return list(zip(heads[::2], names, strict=True))

    first, second = groups("README.md"), groups("docs/README.md")
    assert [name for name, _ in first] == ["Run it", "Operate it", "Write code", "Internals"]
    (*former, (_, last)), (*same, (_, ends)) = first, second
    assert former == same
    assert last[:5] == ends[:5]
    operate = dict(first)["Operate it"]
    assert {"conditions.md", "metrics.md", "operations.md#more-throughput"} <= set(operate)


DOCUMENTS = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted(DOCS.glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_lines_of_prose_fit_a_screen(document: Path) -> None:
    prose = re.sub(r"^ *```.*?^ *```", "", document.read_text(), flags=re.M | re.S)
    # A row of a table, a picture and a heading cannot be broken; a mutant's name is the code's own.
    whole = re.compile(r"^(\||!\[|#|- \w+ `)")
    long = [line for line in prose.splitlines() if len(line) > WIDTH and not whole.match(line)]
    assert long == []
