"""Prints docs/windows.md: what the machine of windows does, from its own tables."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import get_args

from millrace.protocol.windows.doing import SURPRISES, TRANSITIONS, Answer, Doing, Idle

_HEAD = """\
# States of the driver's windows

Made by `make states` from the tables of `millrace.protocol.windows.doing`, which the machine
follows ([development.md](development.md)); `make verify` compares them.

What the driver plans ahead (`millrace.protocol.windows.planning`), what it prepares of that
(`millrace.protocol.windows.preparing`) and what it shows on the sinks
(`millrace.protocol.windows.publishing`) goes on beside this. A driver that dies begins as `Idle`
again, with the committed record.
"""

_SURPRISES = """\
## Answers that are not waited for

They change nothing. *Late*: the answer belongs to something that is over. *Doubled*: it was heard
before. *Bug*: nobody has asked for it; a driver logs it once, the simulator ends the run. What
speaks of another attempt than the one that runs is late in every state, and a bug if that attempt
was never begun.
"""


def document() -> str:
    """The document, as one text."""
    return "\n".join((_HEAD, *_diagram(), *_states(), _SURPRISES, *_surprises()))


def _diagram() -> Iterator[str]:
    yield "```mermaid\nstateDiagram-v2"
    yield f"    [*] --> {Idle.__name__}"
    for before, after in TRANSITIONS:
        yield f"    {before.__name__} --> {after.__name__}"
    yield "```\n"


def _states() -> Iterator[str]:
    yield "| state | |\n| --- | --- |"
    for state in get_args(Doing):
        yield f"| `{state.__name__}` | {_told(state)} |"
    yield "\n## Steps\n\n| from | to | when |\n| --- | --- | --- |"
    for (before, after), when in TRANSITIONS.items():
        yield f"| `{before.__name__}` | `{after.__name__}` | {when} |"
    yield ""


def _surprises() -> Iterator[str]:
    answers = get_args(Answer)
    yield f"| state | {' | '.join(f'`{answer.__name__}`' for answer in answers)} |"
    yield f"| --- |{' --- |' * len(answers)}"
    for state in get_args(Doing):
        found = (SURPRISES[answer].get(state) for answer in answers)
        cells = (why.value if why is not None else "" for why in found)
        yield f"| `{state.__name__}` | {' | '.join(cells)} |"


def _told(state: type) -> str:
    return " ".join((inspect.getdoc(state) or "").split()).replace("``", "`")


if __name__ == "__main__":
    print(document())
