"""Waiting for the state servers that hold the truth, for those who read beside the driver.

While one of them is gone nobody can say which record counts: until the view is another one, or the
server is back, it is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from millrace.errors import StateServerError
from millrace.protocol.types import Member

Look = Callable[[], tuple[Sequence[str], Mapping[str, Member]]]
"""Names of the members of the last open view, and by name those that are alive."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait, and between two looks."""

    whole_s: float
    look_s: float


def await_members(look: Look, patience: Patience, shown: Callable[[str], str]) -> list[Member]:
    """All of them, each in the life that it has now; ``shown`` names one for people. Raises
    ``StateServerError`` where one stays away, and what ``look`` raises."""
    end_s = time.monotonic() + patience.whole_s
    while True:
        names, alive = look()
        missing = [name for name in names if name not in alive]
        if not missing:
            return [alive[name] for name in names]
        if time.monotonic() >= end_s:
            raise StateServerError(
                f"{shown(missing[0])} is not alive, and in {patience.whole_s:g} s it neither came "
                "back nor did the driver go on without it; millrace status says what the driver "
                "waits for"
            )
        time.sleep(patience.look_s)
