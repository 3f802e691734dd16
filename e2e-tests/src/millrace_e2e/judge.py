"""Judges everything that a run of ``topologies.history`` shows, under a promise."""

from __future__ import annotations

from collections.abc import Sequence

import redis

from millrace_e2e import checker, feed, ledger
from millrace_e2e.checker import NO_FAULTS, Faults, Promise
from millrace_e2e.harness import Place
from millrace_e2e.topologies import ENTRIES, HASHES

GOOD = (feed.OK, feed.FLAKY)
BAD = (feed.RAISE, feed.DIE)


def judge(
    place: Place,
    promise: Promise,
    server: redis.Redis | None = None,
    dropped: int = 0,
    faults: Faults = NO_FAULTS,
) -> list[str]:
    """What is wrong with a history; ``server`` is the one behind its redis sinks, if it has any.

    ``dropped`` is how many roots the run says it dropped, asked for ``AtMostOnce`` alone.
    ``faults`` explain what is lost there, and what is doubled under ``AtLeastOnce``.
    """
    fed = ledger.read_fed(place.texts)
    rows, totals, numbers = (
        ledger.read_rows(place.sink(name)) for name in ("rows", "totals", "numbers")
    )
    # A failing line is dropped under AtMostOnce and may show in parts under AtLeastOnce.
    tolerated = BAD if promise is Promise.AT_LEAST_ONCE else ()
    words, buckets = fed.word_counts(GOOD), fed.bucket_counts(GOOD)
    lines = faults.most_doubled(fed)
    most_words = lines * fed.longest
    problems = [
        *checker.check_rows(fed, rows, promise, GOOD, tolerated, most=lines),
        *checker.check_totals(words, totals, promise, most=most_words),
        *checker.check_numbers(buckets, numbers, promise, most=lines),
    ]
    if promise is Promise.AT_MOST_ONCE:
        problems += checker.check_drops(fed, rows, dropped, faults)
    if server is not None:
        hashes = ledger.read_hashes(server, HASHES)
        entries = ledger.read_stream(server, ENTRIES)
        problems += checker.check_hashes(words, hashes, promise, most=most_words)
        problems += checker.check_same(rows, entries, "id")
    return problems


def bad_lines(place: Place) -> list[str]:
    """The lines that must end as dead letters, sorted."""
    lines: Sequence[str] = [
        line for path in ledger.visible_files(place.texts) for line in path.read_text().splitlines()
    ]
    return sorted(line for line in lines if line.split()[1] in BAD)
