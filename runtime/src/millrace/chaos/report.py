"""What a campaign found, as a document and as lines for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Any

from millrace.chaos.campaign import Course, Kill
from millrace.chaos.ledger import SinkVerdict
from millrace.chaos.letters import LettersVerdict
from millrace.topology.parts import Guarantee

_FAILURES = {
    Guarantee.EXACTLY_ONCE: "rows are lost, doubled or wrong",
    Guarantee.AT_LEAST_ONCE: "rows are lost",
    Guarantee.AT_MOST_ONCE: "rows are doubled",
}


@dataclass(frozen=True, slots=True)
class Report:
    """A campaign and its verdict by sink; ``kinds`` are what it was asked to kill, those that die
    together as one, and ``unread`` are sinks that nobody could judge, and why. ``letters`` are the
    dead letters beside a twin's, None where there was no twin.

    Which of what is not right is a failure follows from ``guarantee``: under AtLeastOnce no row
    may be lost, under AtMostOnce none may be doubled, under ExactlyOnce all has to be right. A row
    that nobody expects is a failure under each: among totals it may stand for a loss as well as for
    a double, and in a bag for a total that counts something twice or not at all. Where nobody
    expects a row and none is there nothing was compared. Dead letters have to be the twin's; under
    AtMostOnce some may be lost.
    """

    topology: str
    guarantee: Guarantee
    seed: int
    kinds: tuple[str, ...]
    course: Course
    sinks: Mapping[str, SinkVerdict]
    unread: tuple[str, ...]
    unread_why: str = "writes no files"
    letters: LettersVerdict | None = None

    @property
    def failure(self) -> str | None:
        """Why the campaign is no success; None where every judged row is right."""
        broken = [name for name, verdict in self.sinks.items() if self._breaks(verdict)]
        strange = [n for n, verdict in self.sinks.items() if verdict.wrong and n not in broken]
        told = [f"{_FAILURES[self.guarantee]} in {', '.join(broken)}"] if broken else []
        if strange:
            bags = [name for name in strange if not self.sinks[name].totals]
            hint = f" (if they are totals, say so with --last {bags[0]}=COLUMN)" if bags else ""
            told.append(f"rows that nobody expects are in {', '.join(strange)}{hint}")
        if self.letters is not None and self._other_letters(self.letters):
            told.append(
                f"dead letters are not those of the twin: {self.letters.expected:,} expected, "
                f"{self.letters.found:,} found (one that was replayed is missing, too: judge such "
                "a run with --expect)"
            )
        if told:
            return "; ".join(told)
        if self.unproven:
            some = self.unproven != self.kinds
            of = f" of {', '.join(self.unproven)}" if some else ""
            return (
                f"nothing is proven{of}: no kill {'of such a kind ' if some else ''}hit work in "
                "flight; feed the topology more, or kill more often (--every) or for longer (--for)"
            )
        if not any(verdict.expected or verdict.seen for verdict in self.sinks.values()):
            return (
                "nothing is proven: no row is expected in any sink, and none is there; see whether "
                "what says so (--expect), and where the sinks are read (--sinks-at), is right"
            )
        return None

    @property
    def unproven(self) -> tuple[str, ...]:
        """The kinds no kill of which hit work in flight; of kinds that die together, all have to
        have died in one such moment."""
        kills = [kill for kill in self.course.kills if kill.in_flight]
        moments = Counter((kill.strike.label, kill.strike.at_s) for kill in kills)
        proven = {label for (label, _), died in moments.items() if died == label.count("+") + 1}
        return tuple(kind for kind in self.kinds if kind not in proven)

    def _breaks(self, verdict: SinkVerdict) -> bool:
        if self.guarantee is Guarantee.EXACTLY_ONCE:
            return not verdict.exact
        least = self.guarantee is Guarantee.AT_LEAST_ONCE
        return bool(verdict.lost if least else verdict.duplicated)

    def _other_letters(self, letters: LettersVerdict) -> bool:
        if self.guarantee is Guarantee.AT_MOST_ONCE:
            return bool(letters.wrong)
        return not letters.exact

    def total(self, name: str) -> int:
        """``lost``, ``duplicated`` or ``wrong`` over all sinks."""
        return sum(getattr(verdict, name) for verdict in self.sinks.values())

    def document(self) -> dict[str, Any]:
        """As ``--json`` prints it: ``recovery_s`` in seconds, null where no window followed, and
        the ``time`` of each kill in UTC, by which it is found in logs and events."""
        kills = self.course.kills
        return {
            "topology": self.topology,
            "guarantee": self.guarantee.value,
            "seed": self.seed,
            "failure": self.failure,
            **{name: self.total(name) for name in ("lost", "duplicated", "wrong")},
            "kills": len(kills),
            "in_flight": sum(bool(kill.in_flight) for kill in kills),
            "unproven": list(self.unproven),
            "missed": [strike.kind.value for strike in self.course.missed],
            "dead_letters": self.course.last.dead_letters,
            "letters": None if self.letters is None else asdict(self.letters),
            "ended": self.course.last.ended,
            "recovery_s": {kind: recoveries(kills, kind) for kind in kinds_of(kills)},
            "timeline": [_plain(kill) for kill in kills],
            "sinks": {name: asdict(verdict) for name, verdict in self.sinks.items()},
            "unread": list(self.unread),
        }

    def lines(self) -> list[str]:
        """For people: kills and recoveries by kind, then the sinks."""
        kills = self.course.kills
        told = [_of_kind(kills, kind) for kind in kinds_of(kills)]
        if not all(kill.victim.seen_to_end for kill in kills):
            told.append(
                "those of delete and force are times from when the API server accepted the "
                "deletion: the pod may have served on, and helped to seal that window"
            )
        if self.course.missed:
            told.append(
                f"{len(self.course.missed)} strikes found nothing of their kind to kill, or ended "
                "nothing that was seen"
            )
        if self.course.last.ended is not None:
            told.append(f"the run ended by itself ({self.course.last.ended})")
        if self.course.last.dead_letters:
            told.append(
                f"{self.course.last.dead_letters:,} roots are dead letters: their rows are lost "
                "where they are expected"
            )
        if self.letters is not None and not self.letters.exact:
            told.append(
                f"dead letters: {self.letters.expected:,} expected, {self.letters.lost:,} lost, "
                f"{self.letters.wrong:,} that the twin does not have"
            )
            told += [f"  {example}" for example in self.letters.examples]
        for name, v in self.sinks.items():
            told.append(
                f"sink {name}: {v.expected:,} rows expected, {v.lost:,} lost, "
                f"{v.duplicated:,} duplicated, {v.wrong:,} wrong"
            )
            told += [f"  {example}" for example in v.examples]
        told += [f"sink {name}: {self.unread_why}, so nobody judged it" for name in self.unread]
        return told


def kinds_of(kills: tuple[Kill, ...]) -> list[str]:
    """The kinds that were killed, those that died together as one, by name."""
    return sorted({kill.strike.label for kill in kills})


def recoveries(kills: tuple[Kill, ...], kind: str) -> list[float | None]:
    """The recovery times of a kind, in the order of the kills; one of each moment."""
    return list({k.at_s: k.recovery_s for k in kills if k.strike.label == kind}.values())


def _of_kind(kills: tuple[Kill, ...], kind: str) -> str:
    all_times = recoveries(kills, kind)
    count, times = len(all_times), [time for time in all_times if time is not None]
    if not times:
        return f"{kind}: killed {count} times, no window was sealed behind it"
    return (
        f"{kind}: killed {count} times; to the next sealed window "
        f"{median(times):.1f} s (median), {max(times):.1f} s (longest)"
    )


def _plain(kill: Kill) -> dict[str, Any]:
    return {
        "at_s": round(kill.at_s, 3),
        "time": datetime.fromtimestamp(kill.told_s, UTC).isoformat(timespec="milliseconds"),
        "kind": kill.strike.kind.value,
        "together": [kind.value for kind in kill.strike.together],
        "name": kill.victim.name,
        "way": kill.victim.way,
        "seen_to_end": kill.victim.seen_to_end,
        "sealed": kill.sealed,
        "in_flight": bool(kill.in_flight),
        "recovery_s": kill.recovery_s,
    }
