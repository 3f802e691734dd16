"""How evenly roots are shared out among ackers: ``make bench NAME=balance``.

The largest share of an acker in parts of the mean, over six ackers and windows of 100,000, 200,000
and 300,000 roots, each the worst of eighteen windows. For slices it is what production does: tasks'
messages about every root are folded by six acker machines, and an acker's share is the number of
roots in its answers. Beside it ``ring`` (a root's id on the paper's ring, paper's hash, 64 virtual
nodes), ``modulo`` (the id modulo the number of ackers) and ``sixteen`` (a fixed number of slices,
placed by the ring with a bound on loads).

Then ackers change, 2 to 6 to 3 and 5 to 6, with a window of 300,000 roots open: the share of roots
that go to another acker, beside the least that even shares need. Last, what 1,000,000 look-ups on
the ring take in CPU time, the least of many tries.

Writes ``out/balance.png``. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from measure import last_line, machine
from wordcount import OUT

from millrace import ids
from millrace.protocol.acker import AckerAction, AckerMachine, Answer, Drain, Follow
from millrace.protocol.acklog import Open, SliceOwners, source_edge
from millrace.protocol.types import AttemptId, CloseMarker, Intent, RootRange, TaskId
from millrace.ring import Ring, Strategy, assign, diff, largest_share
from millrace.ringarrays import RingLookup
from millrace.tracking import kernels
from millrace.tracking.collector import AckCollector, slots
from millrace.tracking.fold import ArrayFold
from millrace.tracking.ids import root_ids
from millrace.tracking.message import AckMessage, decode, read_enclosed

SOURCE, PARTITION = "lines", 1
EDGE = source_edge(SOURCE)
TASK = TaskId(0, 0, 1)
ACKERS = 6
SIZES = (100_000, 200_000, 300_000)
WINDOWS = range(1, 19)
STEPS = ((2, 6), (6, 3), (5, 6))
LOOKUPS = 1_000_000
LABELS = {
    "ring": "paper's ring, by root",
    "modulo": "modulo, by root",
    "sixteen": "16 slices, bounded ring",
    "slices": "Millrace: striped slices",
}


def main() -> None:
    """Measure, plot and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path, default=OUT / "balance.png")
    options = parser.parse_args()
    print(machine())
    shares = {size: shares_of(size) for size in SIZES}
    print(f"largest share of {ACKERS} ackers, in parts of the mean:")
    for size, found in shares.items():
        row = ", ".join(f"{name} {found[name]:.4f}" for name in LABELS)
        print(f"  {size:7,d} roots: {row}")
    moves = {(old, new): moved(old, new) for old, new in STEPS}
    print(f"roots of an open window that go to another acker, of {SIZES[-1]:,}:")
    for (old, new), found in moves.items():
        row = ", ".join(f"{name} {share:.4f}" for name, share in found.items())
        print(f"  {old} to {new} ackers: {row}")
    millions = {strategy.value: lookups_ms(strategy) for strategy in (Strategy.PAPER, Strategy.MIX)}
    for name, found_ms in millions.items():
        print(f"{LOOKUPS:,} look-ups, {name}: {found_ms:.1f} ms")
    options.plot.parent.mkdir(parents=True, exist_ok=True)
    plot(shares, moves, options.plot)
    largest = {
        f"{name}_{size // 1000}k": round(found[name], 4)
        for size, found in shares.items()
        for name in LABELS
    }
    gone = {
        f"moved_{name}_{old}_to_{new}": round(share, 4)
        for (old, new), found in moves.items()
        for name, share in found.items()
    }
    lookups = {f"lookups_{name}_ms": round(found_ms, 1) for name, found_ms in millions.items()}
    last_line(largest | gone | lookups)


# --- shares


def names(count: int) -> list[str]:
    """Ackers as the supervisor calls them."""
    return [f"acker-{number}" for number in range(count)]


def shares_of(roots: int) -> dict[str, float]:
    """The largest share by each method, the worst window of each."""
    ackers = names(ACKERS)
    striped = SliceOwners.of(ids.Execution(1), ackers)
    sixteen = SliceOwners(ids.Execution(1), assign(16, ackers), ())
    return {
        "ring": max(largest_share(on_ring(ackers, window, roots)) for window in WINDOWS),
        "modulo": max(largest_share(by_modulo(window, roots)) for window in WINDOWS),
        "sixteen": max(largest_share(judged(sixteen, window, roots)) for window in WINDOWS),
        "slices": max(largest_share(judged(striped, window, roots)) for window in WINDOWS),
    }


def root_ids_of(window: int, roots: int) -> np.ndarray:
    """Ids of a window's roots, which are consecutive records."""
    offsets = np.arange(window * roots, (window + 1) * roots, dtype=np.uint64)
    return root_ids(ids.name_id(SOURCE), PARTITION, offsets)


def on_ring(ackers: Sequence[str], window: int, roots: int) -> list[int]:
    """Roots of each acker by their places on the paper's ring."""
    owners = RingLookup(Ring(ackers, 64, Strategy.PAPER)).owners(root_ids_of(window, roots))
    return [int(n) for n in np.bincount(owners, minlength=len(ackers))]


def by_modulo(window: int, roots: int) -> list[int]:
    """Roots of each acker by their ids modulo the number of ackers."""
    owners = root_ids_of(window, roots) % np.uint64(ACKERS)
    return [int(n) for n in np.bincount(owners.astype(np.int64), minlength=ACKERS)]


def judged(owners: SliceOwners, window: int, roots: int) -> list[int]:
    """Roots that each acker finds complete in a window whose tasks did all they should."""
    attempt = AttemptId(ids.Execution(1), ids.WindowNumber(window), ids.WindowAttempt(1))
    opened = Open(attempt, roots, (EDGE,), owners.slices)
    messages, marker = said(opened)
    found = [
        answered(name, owners, opened, messages, marker) for name in sorted(set(owners.owners))
    ]
    if sum(found) != roots:
        raise SystemExit(f"the ackers found {sum(found)} of {roots} roots complete")
    return found


def said(opened: Open) -> tuple[list[AckMessage], CloseMarker]:
    """What a task that reads every root of a window tells the ackers, and the close marker."""
    window, roots = opened.id.window, opened.roots
    piece = RootRange(SOURCE, PARTITION, window * roots, roots)
    net = np.zeros(slots(roots, opened.slices), np.uint64)
    net[:roots] = kernels.range_seeds(SOURCE, PARTITION, piece.start, roots)
    collector = AckCollector(opened.id, TASK, roots, (piece,), ((0, roots),), slices=opened.slices)
    collector.add_net(EDGE, net, 0, roots - 1)
    messages = collector.messages()
    wrote = ((TASK, tuple(partition for partition, _ in messages)),)
    marker = CloseMarker(opened.id, Intent(window, (piece,)), frozenset(), wrote, ((0, roots),))
    return [decode(data) for _, data in messages], marker


def answered(
    name: str,
    owners: SliceOwners,
    opened: Open,
    messages: Iterable[AckMessage],
    marker: CloseMarker,
) -> int:
    """Complete roots in the answers of one acker that reads all that it owns."""
    acker = AckerMachine[AckMessage](name, ArrayFold, read_enclosed)
    actions: list[AckerAction] = [*acker.control(owners), *acker.control(opened)]
    mine = {action.partition for action in actions if isinstance(action, Follow)}
    for number, message in enumerate(messages):
        if message.partition in mine:
            acker.message(message.partition, str(number), message)
    complete = 0
    actions = acker.control(marker)
    while actions:
        action = actions.pop()
        if isinstance(action, Drain):
            actions += acker.drained(action.id, action.partition)
        elif isinstance(action, Answer):
            complete += action.verdict.complete
    return complete


# --- moves


def moved(old: int, new: int) -> dict[str, float]:
    """Share of the roots of an open window whose acker changes, by each method."""
    roots, window = SIZES[-1], 1
    numbers = root_ids_of(window, roots)
    before, after = names(old), names(new)
    attempt = AttemptId(ids.Execution(1), ids.WindowNumber(window), ids.WindowAttempt(1))
    opened = SliceOwners.of(attempt.execution, before)
    held = {attempt: opened.slices}
    placed = SliceOwners.of(attempt.execution, after, held, opened).table(opened.slices)
    assert placed is not None
    found = diff(opened.owners, placed, after)
    sizes = Counter(
        ids.tracking_partition(window, ids.block_of(s), opened.slices) for s in range(roots)
    )
    return {
        "ring": share_moved(before, after, numbers),
        "modulo": float((numbers % np.uint64(old) != numbers % np.uint64(new)).mean()),
        "slices": sum(sizes[slice_] for slice_ in found.units) / roots,
        "least": found.least / opened.slices,
    }


def share_moved(before: Sequence[str], after: Sequence[str], numbers: np.ndarray) -> float:
    """Share of numbers that lie on another member of the paper's ring."""
    rings = [RingLookup(Ring(members, 64, Strategy.PAPER)) for members in (before, after)]
    owners = [np.array(one.ring.members)[one.owners(numbers)] for one in rings]
    return float((owners[0] != owners[1]).mean())


# --- speed


def lookups_ms(strategy: Strategy) -> float:
    """The shortest of some tries to look a million numbers up, in milliseconds of CPU time."""
    lookup = RingLookup(Ring(names(ACKERS), 64, strategy))
    numbers = np.random.default_rng(1).integers(0, 2**64, LOOKUPS, dtype=np.uint64)
    times = []
    for _ in range(20):
        began_s = time.process_time()
        lookup.owners(numbers)
        times.append(time.process_time() - began_s)
    return 1000 * min(times)


# --- the picture


def plot(
    shares: dict[int, dict[str, float]], moves: dict[tuple[int, int], dict[str, float]], path: Path
) -> None:
    """Largest shares on the left, moved shares on the right."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.5))
    width = 0.2
    colours = dict(zip([*LABELS, "least"], ("C0", "C1", "C2", "C3", "lightgrey"), strict=True))
    for place, (name, label) in enumerate(LABELS.items()):
        at = [group + (place - 1.5) * width for group in range(len(SIZES))]
        left.bar(
            at, [shares[size][name] for size in SIZES], width, label=label, color=colours[name]
        )
    left.axhline(1.02, color="black", linestyle=":", linewidth=1)
    left.set_xticks(range(len(SIZES)), [f"{size:,}" for size in SIZES])
    left.set_xlabel("roots of a window")
    left.set_ylim(0.95, 1.35)
    left.set_title(f"Largest share of {ACKERS} ackers, in parts of the mean")
    left.legend(fontsize="small")
    steps = list(moves)
    kinds = {"ring": LABELS["ring"], "modulo": LABELS["modulo"], "slices": LABELS["slices"]}
    for place, (name, label) in enumerate([*kinds.items(), ("least", "least possible")]):
        at = [group + (place - 1.5) * width for group in range(len(steps))]
        right.bar(
            at, [moves[step][name] for step in steps], width, label=label, color=colours[name]
        )
    right.set_xticks(range(len(steps)), [f"{old} to {new}" for old, new in steps])
    right.set_xlabel("ackers")
    right.set_ylim(0, 1.2)
    right.set_title("Share of an open window that changes its acker")
    right.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
