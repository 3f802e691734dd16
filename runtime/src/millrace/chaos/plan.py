"""Which kind of process dies when: decided in front, from a seed alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from millrace.errors import MillraceError

_UNSTEADY = 0.25
"""Strikes come up to this share of the pause early or late, so that they do not fall into step with
the windows."""

_MOST_STRIKES = 100_000


class ChaosError(MillraceError):
    """A campaign that cannot be carried out, or whose outcome cannot be judged."""


class VictimKind(StrEnum):
    """What can be killed."""

    ACKER = "acker"
    DRIVER = "driver"
    STANDBY = "standby"
    EXECUTOR = "executor"
    WORKER = "worker"
    STATE_SERVER = "state-server"
    OPERATOR = "operator"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Strike:
    """One kill that is due ``at_s`` seconds after the campaign's beginning."""

    number: int
    at_s: float
    kind: VictimKind


def plan(
    kinds: Sequence[VictimKind], every_s: float, for_s: float, seed: int
) -> tuple[Strike, ...]:
    """Strikes in the order of their times, each kind as often as any other, but for one.

    The same arguments give the same plan. Raises ``ChaosError`` for a plan without a strike, or
    one of more than ``100,000``.
    """
    count = int(for_s / every_s + 1e-9)
    if not kinds or count < 1:
        raise ChaosError(
            f"--for {for_s:g}s with --every {every_s:g}s kills nothing; give a longer time"
        )
    if count > _MOST_STRIKES:
        raise ChaosError(f"--for and --every make {count:,} kills; {_MOST_STRIKES:,} are possible")
    chance = random.Random(seed)
    strikes: list[Strike] = []
    while len(strikes) < count:
        turn = list(dict.fromkeys(kinds))
        chance.shuffle(turn)
        for kind in turn[: count - len(strikes)]:
            number = len(strikes)
            late = chance.uniform(-_UNSTEADY, _UNSTEADY)
            strikes.append(Strike(number, (number + 0.5 + late) * every_s, kind))
    return tuple(strikes)


def kinds_in(text: str) -> tuple[VictimKind, ...]:
    """The kinds in ``acker,driver``. Raises ``ChaosError`` for one that is not known."""
    found = []
    for name in (part.strip() for part in text.split(",")):
        try:
            found.append(VictimKind(name))
        except ValueError:
            known = ", ".join(VictimKind)
            raise ChaosError(f"--kill {name!r} is not known; use {known}") from None
    return tuple(dict.fromkeys(found))
