"""Prints docs/bugs.md: the deliberate bugs, by what they break."""

from __future__ import annotations

import re
from collections.abc import Iterator

from millrace.simulate.bugs import BUGS

_HEAD = """\
# Deliberate bugs

Made by `make states` from `millrace.simulate.bugs`; `make verify` compares them. Each leaves one
rule or promise out and everything else as it is. A test runs each until the simulator notices
([development.md](development.md#the-protocol-and-its-simulator)), and another one sees to it that
every rule of [protocol.md](protocol.md) that bears a * has one.

| what is broken | bugs |
| --- | --- |"""


def document() -> str:
    """The document, as one text."""
    return "\n".join((_HEAD, *_rows()))


def breakers(rule: int) -> tuple[str, ...]:
    """The bugs that break a rule."""
    return tuple(bug.name for bug in BUGS.values() if bug.breaks == f"rule {rule}")


def _rows() -> Iterator[str]:
    for what in sorted({bug.breaks for bug in BUGS.values()}, key=_order):
        names = (f"`{bug.name}`" for bug in BUGS.values() if bug.breaks == what)
        yield f"| {what} | {', '.join(names)} |"


def _order(what: str) -> tuple[bool, int, str]:
    number = re.fullmatch(r"rule (\d+)", what)
    return (number is None, int(number[1]) if number else 0, what)


if __name__ == "__main__":
    print(document())
