"""Which share of the roots that were read together fails for good, against a plain count."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.protocol.cohorts import COHORT_ROOTS, KEPT, DeadLimit, judge, worst
from millrace.protocol.record import (
    Backoff,
    NextWindow,
    Outcome,
    first_record,
    open_next,
    seal,
    set_aside,
)
from millrace.protocol.types import (
    Cohort,
    DeadSegment,
    FailedRoot,
    Intent,
    Record,
    Replay,
    RootRange,
    Tag,
)
from millrace.protocol.windows.causes import causes, told
from millrace.protocol.windows.waiting import Waiting

HALF = DeadLimit(50)
BACKOFF = Backoff(2, 1.0)


def fresh(window: int, start: int, count: int) -> Intent:
    return Intent(window, (RootRange("s", 0, start, count),))


def letters(window: int, count: int) -> tuple[Replay, ...]:
    return tuple(Replay("s", 0, n, 2, 0.0, window=window) for n in range(count))


def test_a_limit_says_nothing_of_fewer_than_a_hundred_judged_roots() -> None:
    assert not HALF.exceeded(Cohort(1, 99, 0, 99))
    assert HALF.exceeded(Cohort(1, 100, 49, 51))
    assert not HALF.exceeded(Cohort(1, 100, 50, 50))
    assert not DeadLimit(100).exceeded(Cohort(1, 500, 0, 500))
    assert DeadLimit(0).exceeded(Cohort(1, 500, 499, 1))


def test_roots_that_died_after_their_replays_count_with_those_read_beside_them() -> None:
    """A tenth of a large window fails and comes back in a window of its own, where all fail."""
    window = fresh(1, 0, 2_000)
    waiting = tuple(Replay("s", 0, n, 1, 0.0, window=1) for n in range(200))
    cohorts = judge((), window, waiting, ())
    again = Intent(2, (), tuple(letters(1, 200)))
    after = judge(cohorts, again, (), again.replays)
    assert after == (Cohort(1, 2_000, 1_800, 200),)
    assert worst(after, again, again.replays, HALF) is None


def test_all_that_is_read_after_many_good_roots_failing_is_seen_at_once() -> None:
    cohorts: tuple[Cohort, ...] = ()
    for window in range(1, 2_001):
        cohorts = judge(cohorts, fresh(window, 0, 1_000), (), ())
    assert len(cohorts) <= KEPT
    assert sum(one.done for one in cohorts) == 2_000_000
    bad = fresh(2_001, 0, 150)
    dead = letters(2_001, 150)
    found = worst(judge(cohorts, bad, (), dead), bad, dead, HALF)
    assert found is not None
    assert (found.done, found.dead) == (0, 150)


def test_letters_that_are_replayed_for_their_user_count_with_what_is_read_now() -> None:
    asked = tuple(Replay("s", 0, n, 1, 0.0) for n in range(120))
    again = Intent(9, (), asked)
    dead = tuple(Replay("s", 0, n, 4, 0.0, window=9) for n in range(120))
    after = judge((Cohort(1, COHORT_ROOTS, COHORT_ROOTS, 0),), again, (), dead)
    found = worst(after, again, dead, HALF)
    assert found == Cohort(9, 120, 0, 120)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 700)), max_size=40), st.booleans())
def test_every_judged_root_is_counted_once(windows: list[tuple[int, int]], split: bool) -> None:
    """Random windows whose failing roots are replayed until they are dead, sealed one by one."""
    record, now, start, bad = first_record("u", Tag(1, 1, 1, 1)), 0.0, 0, set()
    waiting = Waiting()
    for count, failing in windows:
        if count:
            opening = NextWindow((RootRange("s", 0, start, count),), (), {"s": start + count})
            bad |= set(range(start, start + min(count, failing)))
            start += count
            record = sealed(open_next(record, opening), bad)
        now += 0.6
        record = replayed(record, bad, waiting, now, 50 if split else 10_000)
    while record.replays:
        now += 10.0
        record = replayed(record, bad, waiting, now, 10_000)
    assert sum(one.roots for one in record.cohorts) == start
    assert sum(one.dead for one in record.cohorts) == record.totals.dead == len(bad)
    assert sum(one.done for one in record.cohorts) == record.totals.roots == start - len(bad)
    assert [one.window for one in record.cohorts] == sorted(one.window for one in record.cohorts)


def replayed(record: Record, bad: set[int], waiting: Waiting, now: float, limit: int) -> Record:
    waiting.update(record.replays, now)
    while replays := waiting.due(record.replays, now, limit):
        record = sealed(open_next(record, NextWindow((), replays, record.offsets)), bad)
        waiting.update(record.replays, now)
    return record


def sealed(record: Record, bad: set[int]) -> Record:
    (intent,) = record.intents
    offsets = [p.start + n for p in intent.ranges for n in range(p.count)]
    offsets += [r.offset for r in intent.replays]
    failed = [FailedRoot(s, "p", "no") for s, offset in enumerate(offsets) if offset in bad]
    replays, dead = set_aside(intent, failed, BACKOFF, lambda *_: None)
    segment = DeadSegment(f"{intent.window}/dead", intent.window, len(dead)) if dead else None
    return seal(record, Outcome(replays=replays, dead=segment, letters=dead))


def test_causes_are_grouped_by_processor_and_class_and_counted() -> None:
    failed = [FailedRoot(n, "split", f"ValueError: bad number {n}") for n in range(5)]
    failed += [FailedRoot(n, "load", "KeyError: 'x'") for n in range(3)]
    failed += [FailedRoot(n, "lines", f"column 'n': 'x{n}' is no long") for n in range(7)]
    failed += [FailedRoot(9, "other", "TypeError: no")]
    found = causes(failed)
    assert [(one.processor, one.count) for one in found] == [
        ("lines", 7),
        ("split", 5),
        ("load", 3),
    ]
    text = told(found)
    assert text.startswith("7 in 'lines' (column 'n': 'x0' is no long); 5 in 'split' (ValueError")


def test_what_a_record_holds_makes_no_cause_of_its_own() -> None:
    said = 'couldn\'t parse:{}.5; the line is \'{{"id": {}.5, "user": "it\'s u{}"}}\''
    failed = [FailedRoot(n, "lines", said.format(n, n, n)) for n in range(4)]
    failed += [FailedRoot(n, "lines", f"column 'n': 'a; {n}' is no long") for n in range(3)]
    assert [one.count for one in causes(failed)] == [4, 3]


def test_merging_loses_no_count_and_keeps_the_newest_apart() -> None:
    """What is old becomes coarse, so that what is read now is still told from it."""
    cohorts: tuple[Cohort, ...] = ()
    for window in range(1, 200):
        intent = fresh(window, 0, COHORT_ROOTS)
        cohorts = judge(cohorts, intent, (), letters(window, window % 7))
        assert len(cohorts) <= KEPT
        assert sum(one.roots for one in cohorts) == window * COHORT_ROOTS
        assert sum(one.dead for one in cohorts) == sum(w % 7 for w in range(1, window + 1))
        assert cohorts[-1].window == window
        assert cohorts[-1].roots == COHORT_ROOTS
    sizes = [one.roots for one in cohorts]
    assert sizes[0] > 4 * sizes[-1]
    assert sizes == sorted(sizes, reverse=True)


def test_a_hundred_judged_roots_are_enough_for_a_limit() -> None:
    assert HALF.exceeded(Cohort(1, 100, 0, 100))
    assert not HALF.exceeded(Cohort(1, 99, 0, 99))


def test_the_worst_of_several_is_the_one_with_the_largest_share() -> None:
    some = (Cohort(1, 300, 100, 150), Cohort(5, 300, 20, 200), Cohort(9, 300, 100, 140))
    read_in = {window: Replay("s", 0, window, 2, 0.0, window=window) for window in (1, 5, 9)}
    again = Intent(20, ())
    for windows, found in (((1, 5, 9), 5), ((1, 9), 1), ((9,), 9)):
        worst_one = worst(some, again, [read_in[w] for w in windows], HALF)
        assert worst_one is not None
        assert worst_one.window == found
    assert worst((), again, (), HALF) is None
    assert worst(some, again, (), HALF) is None


def test_a_root_counts_with_the_windows_that_were_open_when_it_was_read() -> None:
    some = (Cohort(4, COHORT_ROOTS, 0, 0), Cohort(8, COHORT_ROOTS, 0, 0))
    for window, held in ((2, 4), (4, 4), (7, 4), (8, 8), (11, 8)):
        again = Intent(12, (), (Replay("s", 0, 1, 1, 0.0, window=window),))
        after = judge(some, again, (), ())
        assert [one.window for one in after if one.done] == [held]


def test_nothing_is_judged_where_nothing_was_read() -> None:
    assert judge((), Intent(3, ()), (), ()) == ()
    unknown = Intent(3, (), (Replay("s", 0, 1, 1, 0.0),))
    assert judge((), unknown, (), ()) == (Cohort(3, 1, 1, 0),)


def test_cohorts_are_merged_only_when_there_are_too_many() -> None:
    cohorts: tuple[Cohort, ...] = ()
    for window in range(1, KEPT + 1):
        cohorts = judge(cohorts, fresh(window, 0, COHORT_ROOTS), (), ())
    assert [one.window for one in cohorts] == list(range(1, KEPT + 1))
    more = judge(cohorts, fresh(KEPT + 1, 0, COHORT_ROOTS), (), ())
    assert len(more) == KEPT


def test_a_sentence_names_three_causes_and_long_texts_are_cut() -> None:
    def failing(count: int, processor: str, error: str) -> list[FailedRoot]:
        return [FailedRoot(n, processor, error) for n in range(count)]

    failed = failing(2, "p", "KeyError: 1") + failing(1, "p", "ValueError") + failing(3, "q", "x 1")
    failed += failing(1, "a", "OSError: full") + failing(1, "q", "x 22")
    found = causes(failed)
    assert [(one.processor, one.error, one.count) for one in found] == [
        ("q", "x 1", 4),
        ("p", "KeyError: 1", 2),
        ("a", "OSError: full", 1),
    ]
    for length, shown in ((200, "e" * 200), (201, "e" * 200 + "…")):
        assert told(causes(failing(1, "p", "e" * length))) == f"1 in 'p' ({shown})"


def test_the_worst_has_the_largest_share_of_what_was_judged() -> None:
    some = (Cohort(1, 300, 60, 59), Cohort(5, 300, 10, 90))
    dead = [Replay("s", 0, window, 2, 0.0, window=window) for window in (1, 5)]
    found = worst(some, Intent(20, ()), dead, DeadLimit(10))
    assert found is not None
    assert found.window == 5


def test_of_equal_shares_the_oldest_is_told_and_of_none_nothing() -> None:
    alike = tuple(Cohort(n, 200, 100, 100) for n in range(1, 10))
    dead = [Replay("s", 0, window, 2, 0.0, window=window) for window in (9, 2)]
    found = worst(alike, Intent(20, ()), dead, DeadLimit(10))
    assert found == alike[1]
    assert worst((), Intent(20, ()), dead, DeadLimit(0)) is None


def test_a_cause_is_a_class_of_error_or_else_a_first_clause() -> None:
    named = [FailedRoot(0, "p", "ValueError: too long; x"), FailedRoot(1, "p", "ValueError: empty")]
    assert [one.count for one in causes(named)] == [2]
    texts = ("no number; in 'x'", "no name; in 'x'", "no number; in 'y'")
    found = causes(FailedRoot(n, "p", text) for n, text in enumerate(texts))
    assert [(one.error, one.count) for one in found] == [(texts[0], 2), (texts[1], 1)]
