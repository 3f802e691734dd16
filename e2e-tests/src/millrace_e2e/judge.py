"""Judges everything that a run of ``topologies.history`` shows, under a promise."""

from __future__ import annotations

from collections.abc import Sequence

import redis

from millrace_e2e import checker, feed, ledger
from millrace_e2e.checker import Promise
from millrace_e2e.harness import Place
from millrace_e2e.topologies import ENTRIES, HASHES

GOOD = (feed.OK, feed.FLAKY)
BAD = (feed.RAISE, feed.DIE)


def judge(
    place: Place, promise: Promise, server: redis.Redis | None = None, dropped: int = 0
) -> list[str]:
    """What is wrong with a history; ``server`` is the one behind its redis sinks, if it has any.

    ``dropped`` is how many roots the run says it dropped, asked for ``AtMostOnce`` alone.
    """
    fed = ledger.read_fed(place.texts)
    rows, totals, numbers = (
        ledger.read_rows(place.sink(name)) for name in ("rows", "totals", "numbers")
    )
    # A failing line is dropped under AtMostOnce and may show in parts under AtLeastOnce.
    tolerated = BAD if promise is Promise.AT_LEAST_ONCE else ()
    words, buckets = fed.word_counts(GOOD), fed.bucket_counts(GOOD)
    problems = [
        *checker.check_rows(fed, rows, promise, GOOD, tolerated),
        *checker.check_totals(words, totals, promise),
        *checker.check_numbers(buckets, numbers, promise),
    ]
    if promise is Promise.AT_MOST_ONCE:
        problems += checker.check_drops(fed, rows, dropped)
    if server is not None:
        hashes = ledger.read_hashes(server, HASHES)
        entries = ledger.read_stream(server, ENTRIES)
        problems += checker.check_hashes(words, hashes, promise)
        problems += checker.check_same(rows, entries, "id")
    return problems


def bad_lines(place: Place) -> list[str]:
    """The lines that must end as dead letters, sorted."""
    lines: Sequence[str] = [
        line for path in ledger.visible_files(place.texts) for line in path.read_text().splitlines()
    ]
    return sorted(line for line in lines if line.split()[1] in BAD)
