"""The rules of the protocol by their numbers; prints docs/rules.md with the bugs that break them.

Code, tests and checkers speak of them as "rule 9".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from millrace.simulate.bugs import BUGS


@dataclass(frozen=True, slots=True)
class Rule:
    """``needed``: without it something goes wrong, so a deliberate bug breaks it."""

    number: int
    text: str
    needed: bool = True

    @property
    def bugs(self) -> tuple[str, ...]:
        """The deliberate bugs that break it."""
        return tuple(bug.name for bug in BUGS.values() if bug.breaks == f"rule {self.number}")


GROUPS: dict[str, tuple[Rule, ...]] = {
    "Terms": (
        Rule(
            1,
            "A view names the members of the last *open* view and those it moves to. The former "
            "stay as they are through any number of moving views in a row.",
        ),
        Rule(
            2,
            "Every member keeps the record, the owners of a key group its objects. Records are "
            "compared by timeline, execution, epoch and a number that rises with every write.",
            needed=False,
        ),
        Rule(
            3,
            "A record is committed when every member of the open view it is written under has "
            "acknowledged that very write; in a moving view when the view becomes open. Other "
            "acknowledgements count for nothing.",
        ),
        Rule(4, "Only a committed record is acted on: published, gone on from, deleted by, told."),
    ),
    "On a state server": (
        Rule(
            5,
            "A message names the life of the server it is meant for and a stamp; where either "
            "differs it is refused. A server that was started anew has no stamp in effect.",
        ),
        Rule(
            6,
            "A stamp is taken if it is at least the one in effect, and answered with the record in "
            "the same atomic step.",
        ),
        Rule(
            7,
            "Everything else needs the stamp to be equal, and a record a tag above the stored one. "
            "Window numbers are not compared.",
        ),
    ),
    "A driver starts": (
        Rule(8, "It claims the next execution by compare-and-swap before it stamps anyone."),
        Rule(
            9,
            "In an open view it stamps all members, takes the record with the highest tag, brings "
            "missing objects to their owners and writes the record back to all, before it acts.",
        ),
        Rule(
            10,
            "Where a member does not answer it never goes on with the others alone: the view "
            "changes, or it waits. One that runs and does not answer is left out of the next view "
            "as long as fewer are lost than there are copies.",
        ),
        Rule(
            11,
            "In a moving view it goes on with rules 13 to 16, or begins with another target at 12.",
            needed=False,
        ),
    ),
    "The view changes": (
        Rule(
            12,
            "By compare-and-swap to a moving view of the next epoch, if the execution is its own.",
            needed=False,
        ),
        Rule(
            13,
            "The last open members and those to come are stamped. Any part of the former that "
            "answers will do, if it is not empty; of the latter all must answer.",
        ),
        Rule(14, "Members that only join are never read from, whatever they hold."),
        Rule(
            15,
            "The record is read after stamping, the highest tag counts, its objects are copied to "
            "their owners, and it is written back to every member to come.",
        ),
        Rule(
            16,
            "Then the view is opened by compare-and-swap, if execution and epoch are still its "
            "own; what was recovered is acted on only behind that.",
        ),
        Rule(17, "A member without a record is an error, never a new beginning."),
    ),
    "Windows": (
        Rule(18, "All objects are on all their owners before the seal."),
        Rule(19, "A split is a write of the record; its halves run once that is committed."),
        Rule(20, "What is published is marked in the record only after the sink has confirmed."),
        Rule(21, "A sink remembers that it has shown a window as long as an old driver may live."),
    ),
    "Deletion": (
        Rule(
            22,
            "Only under the stamp, by a committed record, of what it does not need: the state of "
            "the last sealed window, windows not yet marked as published, the running attempt.",
        ),
    ),
    "One copy with a file": (
        Rule(23, "A record is on the disk before its write is acknowledged."),
        Rule(
            24,
            "A server that was started anew is read from only if it bears the name of a last open "
            "member and its record is of the epoch in which the view was opened, or later.",
        ),
    ),
    "Sinks": (Rule(25, "A sink refuses older executions before a driver shows anything on it."),),
}
"""All rules, under the headings of the document."""

RULES = {rule.number: rule for rules in GROUPS.values() for rule in rules}

_HEAD = """\
# Rules of the protocol

Made by `make states` from `millrace.simulate.rules`; `make verify` compares them. Code and tests
name the rules by their numbers.

Beside each rule stand the deliberate bugs that break it ([development.md](development.md)): parts
of the simulation in which that rule alone is left out. A test runs each until that is seen.
Where none stands nothing could go wrong by itself: the rule says what words mean, or another one
catches what it would let through.
"""

_OTHERS = """\
## Other promises

| what | deliberate bugs |
| --- | --- |"""


def document() -> str:
    """The document, as one text."""
    return "\n".join((_HEAD, *_rules(), _OTHERS, *_others()))


def _rules() -> Iterator[str]:
    for heading, rules in GROUPS.items():
        yield f"## {heading}\n\n| rule | says | deliberate bugs |\n| --- | --- | --- |"
        for rule in rules:
            yield f"| {rule.number} | {rule.text} | {_names(rule.bugs)} |"
        yield ""


def _others() -> Iterator[str]:
    others: dict[str, list[str]] = {}
    for bug in BUGS.values():
        if not bug.breaks.startswith("rule "):
            others.setdefault(bug.breaks, []).append(bug.name)
    for what, names in sorted(others.items()):
        yield f"| {what} | {_names(names)} |"


def _names(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    print(document())
