"""Which kind of process dies when: decided in front, from a seed alone."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
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


Together = tuple[VictimKind, ...]
"""Kinds of which one each is killed in the same moment."""


@dataclass(frozen=True, slots=True)
class Strike:
    """One kill that is due ``at_s`` seconds after the campaign's beginning. ``together`` are all
    kinds that are due then, where this is not the only one."""

    number: int
    at_s: float
    kind: VictimKind
    together: Together = ()

    @property
    def label(self) -> str:
        """As it was asked for: ``acker``, or ``acker+driver``."""
        return label_of(self.together or self.kind)


def label_of(entry: VictimKind | Together) -> str:
    """What one entry of ``--kill`` is called."""
    return "+".join(entry if isinstance(entry, tuple) else (entry,))


def plan(
    kinds: Sequence[VictimKind | Together], every_s: float, for_s: float, seed: int
) -> tuple[Strike, ...]:
    """Strikes in the order of their times, each kind as often as any other, but for one; those of
    kinds that die together have the same time.

    The same arguments give the same plan. Raises ``ChaosError`` for a plan that leaves out a kind,
    or one of more than ``100,000`` times.
    """
    count = int(for_s / every_s + 1e-9)
    if not kinds or count < 1:
        raise ChaosError(
            f"--for {for_s:g}s with --every {every_s:g}s kills nothing; give a longer time"
        )
    if count > _MOST_STRIKES:
        raise ChaosError(f"--for and --every make {count:,} kills; {_MOST_STRIKES:,} are possible")
    entries = list(dict.fromkeys(kinds))
    if count < len(entries):
        raise ChaosError(
            f"--for {for_s:g}s with --every {every_s:g}s makes fewer kills ({count}) than --kill "
            f"names kinds ({', '.join(map(label_of, entries))}), so that some would not be killed: "
            f"give --for {len(entries) * every_s:g}s or more, a shorter --every, or fewer kinds"
        )
    chance = random.Random(seed)
    strikes: list[Strike] = []
    moments = 0
    while moments < count:
        turn = list(entries)
        chance.shuffle(turn)
        for entry in turn[: count - moments]:
            at_s = (moments + 0.5 + chance.uniform(-_UNSTEADY, _UNSTEADY)) * every_s
            together = entry if isinstance(entry, tuple) else ()
            for kind in together or single_kinds([entry]):
                strikes.append(Strike(len(strikes), at_s, kind, together))
            moments += 1
    return tuple(strikes)


def kinds_in(text: str) -> tuple[VictimKind | Together, ...]:
    """What ``acker,driver+state-server`` asks for: the second two die together. Raises
    ``ChaosError`` for a kind that is not known, and for one that is to die twice at once."""
    found: list[VictimKind | Together] = []
    for part in text.split(","):
        kinds = tuple(_kind(name.strip()) for name in part.split("+"))
        twice = next((kind for kind in kinds if kinds.count(kind) > 1), None)
        if twice is not None:
            raise ChaosError(
                f"--kill {part.strip()}: names {twice} twice, and one of a kind is killed in a "
                "moment; name it once"
            )
        found.append(kinds if len(kinds) > 1 else kinds[0])
    return tuple(dict.fromkeys(found))


def single_kinds(kinds: Iterable[VictimKind | Together]) -> tuple[VictimKind, ...]:
    """Each kind of them, whether it dies alone or together with others."""
    found = (one if isinstance(one, tuple) else (one,) for one in kinds)
    return tuple(dict.fromkeys(kind for entry in found for kind in entry))


def _kind(name: str) -> VictimKind:
    try:
        return VictimKind(name)
    except ValueError:
        known = ", ".join(VictimKind)
        raise ChaosError(f"--kill {name!r} is not known; use {known}") from None
