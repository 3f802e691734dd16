"""Judges a history: what was fed against what the sinks hold, under one of three promises.

Every function answers with sentences about what is wrong; an empty list means that the promise was
kept. Nothing of the runtime is imported, and none of its own figures is believed: the only number
that is taken from it, how many roots it says it dropped, is what ``AtMostOnce`` promises to count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from millrace_e2e.ledger import Fed, Shown

SHOWN = 10
"""So many differences are named one by one."""


class Promise(Enum):
    """How often each effect may show."""

    EXACTLY_ONCE = "ExactlyOnce"
    AT_LEAST_ONCE = "AtLeastOnce"
    AT_MOST_ONCE = "AtMostOnce"

    def kept(self, expected: int, found: int) -> bool:
        """Whether ``found`` effects where ``expected`` were due keep the promise."""
        if self is Promise.EXACTLY_ONCE:
            return found == expected
        # What was never fed may not show, whatever may be doubled.
        if self is Promise.AT_LEAST_ONCE:
            return found >= expected and (expected > 0 or found == 0)
        return found <= expected


FAILING = ("flaky", "raise", "die")
"""Kinds of lines that do not come through at the first try."""


@dataclass(frozen=True, slots=True)
class Faults:
    """What was done to a history: ``kills`` of processes of whatever role, while no window had more
    than ``window`` lines and a line that fails was replayed ``replays`` times at most.

    A kill hits one window: at any time one is open, or is about to be; those that are sealed show,
    and show once, whoever dies. So a bound has no part for windows that wait to be shown.
    """

    kills: int = 0
    window: int = 0
    replays: int = 0

    def most_doubled(self, fed: Fed) -> int:
        """``AtLeastOnce``: how many lines may be processed once more than they should. A kill may
        make a window be sealed of whose lines the ackers know nothing, and all of it be replayed; a
        line that fails may leave effects of each of its tries."""
        return self.kills * self.window + fed.count(FAILING) * (1 + self.replays)

    def most_lost(self, fed: Fed) -> int:
        """``AtMostOnce``: how many lines may be missing. What fails is lost alone; a kill, and a
        line that ends its worker, take their window with them."""
        lost_windows = self.kills + fed.count(["die"])
        return lost_windows * self.window + fed.count(FAILING)


NO_FAULTS = Faults()


def compare(
    what: str,
    expected: Mapping[str, int],
    found: Mapping[str, int],
    promise: Promise,
    most: int | None = None,
) -> list[str]:
    """Compare how often each key was due with how often it showed; ``most`` may show that were not
    due, all keys together, where the promise allows any."""
    more = sum(max(0, count - expected.get(key, 0)) for key, count in found.items())
    if promise is Promise.AT_LEAST_ONCE and most is not None and more > most:
        return [f"{what}: {more} too many, where what was killed and failed explains {most}"]
    wrong = sorted(
        key
        for key in expected.keys() | found.keys()
        if not promise.kept(expected.get(key, 0), found.get(key, 0))
    )
    if not wrong:
        return []
    named = ", ".join(
        f"{key}: {expected.get(key, 0)} due, {found.get(key, 0)} found" for key in wrong[:SHOWN]
    )
    return [f"{what}: {len(wrong)} of {len(expected)} differ under {promise.value}: {named}"]


def check_rows(
    fed: Fed,
    shown: Iterable[Shown],
    promise: Promise,
    good: Sequence[str],
    tolerated: Sequence[str] = (),
    column: str = "id",
    most: int | None = None,
) -> list[str]:
    """One row for each line of the ``good`` kinds, and ``most`` more under ``AtLeastOnce``.

    Lines of the ``tolerated`` kinds may show or not, as partial effects of a failing root do under
    ``AtLeastOnce``.
    """
    found = Counter(str(one.row[column]) for one in shown)
    for name, kind in fed.kinds.items():
        if kind in tolerated:
            found.pop(name, None)
    return compare("rows", fed.ids(good), found, promise, most)


def check_drops(
    fed: Fed,
    shown: Iterable[Shown],
    dropped: int,
    faults: Faults = NO_FAULTS,
    column: str = "id",
) -> list[str]:
    """``AtMostOnce``: what does not show is counted, no more and no less; it is no more than
    ``faults`` explain, and nothing that a window lost which shows."""
    windows = {str(one.row[column]): one.window for one in shown}
    missing, most = len(fed.kinds) - len(windows), faults.most_lost(fed)
    problems = []
    if missing != dropped:
        problems.append(f"drops: {missing} lines do not show, {dropped} are counted as dropped")
    if missing > most:
        problems.append(f"drops: {missing} lines do not show, where faults explain {most}")
    if holes := _holes(fed, windows):
        named = ", ".join(holes[:SHOWN])
        problems.append(f"drops: {len(holes)} lines are lost from windows that show: {named}")
    return problems


def _holes(fed: Fed, windows: Mapping[str, int]) -> list[str]:
    """Lines that should not fail and do not show, between two of their file that one window shows:
    what a window reads of a file is without gaps, so it read them too."""
    holes: list[str] = []
    before: int | None = None
    between: list[str] = []
    for name, kind in fed.kinds.items():
        if name in fed.firsts:
            before, between = None, []
        window = windows.get(name)
        if window is not None:
            holes += between if window == before else []
            before, between = window, []
        elif kind not in FAILING:
            between.append(name)
    return holes


def check_totals(
    due: Mapping[str, int],
    shown: Iterable[Shown],
    promise: Promise,
    key: str = "word",
    column: str = "n",
    most: int | None = None,
) -> list[str]:
    """Changed totals: the last one of each key is the plain count, and each window raises it.

    A total that a later window shows again, or two of one key in one window, was shown twice.
    """
    last: dict[str, tuple[int, int]] = {}
    repeated: list[str] = []
    for one in shown:
        name, total = str(one.row[key]), int(one.row[column])
        before = last.get(name)
        if before is not None and (one.window <= before[0] or total <= before[1]):
            repeated.append(
                f"{name}: {total} in window {one.window} after {before[1]} in window {before[0]}"
            )
        last[name] = (one.window, total)
    counted = {name: total for name, (_, total) in last.items()}
    problems = compare("totals", due, counted, promise, most)
    if repeated:
        problems.append(f"totals: {len(repeated)} do not rise: {', '.join(repeated[:SHOWN])}")
    return problems


def check_numbers(
    due: Mapping[str, int],
    shown: Iterable[Shown],
    promise: Promise,
    key: str = "bucket",
    column: str = "n",
    most: int | None = None,
) -> list[str]:
    """Numbers that a stateful function gave to the tuples of each key: 1, 2, 3, …, in this order.

    Kept state that lost an update shows as a number given twice, one that took an update twice as a
    gap. That holds for every guarantee in itself; how many numbers there are is what a promise
    says.
    """
    numbers: dict[str, list[tuple[int, int]]] = {}
    for one in shown:
        numbers.setdefault(str(one.row[key]), []).append((one.window, int(one.row[column])))
    problems = compare("numbers", due, {k: len(v) for k, v in numbers.items()}, promise, most)
    broken = []
    for name, pairs in sorted(numbers.items()):
        given = [n for _, n in sorted(pairs)]
        if given != list(range(1, len(given) + 1)):
            broken.append(f"{name}: {given[:SHOWN]}…")
    if broken:
        problems.append(f"numbers: {len(broken)} keys have gaps: {', '.join(broken[:SHOWN])}")
    return problems


def check_hashes(
    due: Mapping[str, int],
    hashes: Mapping[str, Mapping[str, str]],
    promise: Promise,
    column: str = "n",
    most: int | None = None,
) -> list[str]:
    """Upserted totals: the hash of each key holds the plain count."""
    found = {name: int(fields[column]) for name, fields in hashes.items()}
    return compare("hashes", due, found, promise, most)


def check_same(left: Iterable[Shown], right: Iterable[Mapping[str, str]], column: str) -> list[str]:
    """Two sinks behind one producer show the same rows, equally often."""
    one = Counter(str(shown.row[column]) for shown in left)
    other = Counter(str(row[column]) for row in right)
    return compare("the second sink", one, other, Promise.EXACTLY_ONCE)
