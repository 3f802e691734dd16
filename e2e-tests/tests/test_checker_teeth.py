"""The checker must see what it is there to see: each kind of damage, made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace_e2e import checker, feed, ledger
from millrace_e2e.checker import Faults, Promise

LINES = 120
WINDOW = 20
SPECIAL = {7: feed.RAISE, 50: feed.FLAKY}
GOOD = (feed.OK, feed.FLAKY)

Sinks = dict[str, list[tuple[int, dict[str, Any]]]]


@pytest.fixture
def fed(tmp_path: Path) -> ledger.Fed:
    texts = tmp_path / "texts"
    texts.mkdir()
    feed.add_file(texts / "a.txt", feed.text(range(40), 1, SPECIAL))
    feed.append(texts / "b.txt", feed.text(range(40, LINES), 1, SPECIAL), cut=333)
    return ledger.read_fed(texts)


def right_sinks() -> Sinks:
    """What a run that keeps every promise shows, counted in the plainest way."""
    sinks: Sinks = {"rows": [], "totals": [], "numbers": []}
    words: dict[str, int] = {}
    buckets: dict[str, int] = {}
    for number in range(LINES):
        window = 1 + number // WINDOW
        name, kind, *line = feed.line(number, 1, SPECIAL.get(number, feed.OK)).split()
        if kind == feed.RAISE:
            continue
        sinks["rows"].append((window, {"id": name, "length": len(line)}))
        bucket = f"b{name[-2:]}"
        buckets[bucket] = buckets.get(bucket, 0) + 1
        sinks["numbers"].append((window, {"bucket": bucket, "n": buckets[bucket]}))
        for word in line:
            words[word] = words.get(word, 0) + 1
            sinks["totals"] = [t for t in sinks["totals"] if t[0] != window or t[1]["word"] != word]
            sinks["totals"].append((window, {"word": word, "n": words[word]}))
    return sinks


def write(folder: Path, rows: list[tuple[int, dict[str, Any]]]) -> list[ledger.Shown]:
    """Write rows as a files sink does, and read them again."""
    folder.mkdir()
    for window, row in rows:
        with (folder / f"{window:08d}-0.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
    (folder / "_manifest").write_text("not data")
    (folder / ".hidden").write_text("not data")
    return ledger.read_rows(folder)


def judge(fed: ledger.Fed, sinks: Sinks, promise: Promise, folder: Path) -> list[str]:
    shown = {name: write(folder / name, rows) for name, rows in sinks.items()}
    return [
        *checker.check_rows(fed, shown["rows"], promise, GOOD, tolerated=[feed.RAISE]),
        *checker.check_totals(fed.word_counts(GOOD), shown["totals"], promise),
        *checker.check_numbers(fed.bucket_counts(GOOD), shown["numbers"], promise),
    ]


@pytest.mark.parametrize("promise", Promise)
def test_what_is_right_has_no_problem(fed: ledger.Fed, promise: Promise, tmp_path: Path) -> None:
    assert judge(fed, right_sinks(), promise, tmp_path) == []


def lose_a_row(sinks: Sinks) -> None:
    del sinks["rows"][30]


def show_a_row_twice(sinks: Sinks) -> None:
    sinks["rows"].append((9, sinks["rows"][30][1]))


def make_up_a_row(sinks: Sinks) -> None:
    sinks["rows"].append((9, {"id": "r9999999"}))


def show_a_total_again(sinks: Sinks) -> None:
    sinks["totals"].append((9, sinks["totals"][-1][1]))


def lose_a_total(sinks: Sinks) -> None:
    sinks["totals"].pop()


def count_a_word_more(sinks: Sinks) -> None:
    window, row = sinks["totals"].pop()
    sinks["totals"].append((window, {**row, "n": row["n"] + 1}))


def lose_an_update(sinks: Sinks) -> None:
    number = next(i for i, (_, row) in enumerate(sinks["numbers"]) if row["n"] == 2)
    window, row = sinks["numbers"][number]
    sinks["numbers"][number] = (window, {**row, "n": 1})


def keep_a_lost_windows_state(sinks: Sinks) -> None:
    number = next(i for i, (_, row) in enumerate(sinks["numbers"]) if row["n"] == 1)
    del sinks["numbers"][number]


EXACT, AT_LEAST, AT_MOST = Promise.EXACTLY_ONCE, Promise.AT_LEAST_ONCE, Promise.AT_MOST_ONCE


@pytest.mark.parametrize(
    ("damage", "broken"),
    [
        (lose_a_row, {EXACT, AT_LEAST}),
        (show_a_row_twice, {EXACT, AT_MOST}),
        (make_up_a_row, {EXACT, AT_LEAST, AT_MOST}),
        (show_a_total_again, {EXACT, AT_LEAST, AT_MOST}),
        (lose_a_total, {EXACT, AT_LEAST}),
        (count_a_word_more, {EXACT, AT_MOST}),
        (lose_an_update, {EXACT, AT_LEAST, AT_MOST}),
        (keep_a_lost_windows_state, {EXACT, AT_LEAST, AT_MOST}),
    ],
)
@pytest.mark.parametrize("promise", Promise)
def test_each_damage_breaks_the_promises_it_should(
    fed: ledger.Fed,
    promise: Promise,
    damage: Callable[[Sinks], None],
    broken: set[Promise],
    tmp_path: Path,
) -> None:
    sinks = right_sinks()
    damage(sinks)
    assert bool(judge(fed, sinks, promise, tmp_path)) == (promise in broken)


def lose_windows(sinks: Sinks, lost: set[int]) -> None:
    sinks["rows"] = [(window, row) for window, row in sinks["rows"] if window not in lost]


def test_drops_are_counted_neither_too_few_nor_too_many(fed: ledger.Fed, tmp_path: Path) -> None:
    sinks = right_sinks()
    sinks["rows"] = [(window, row) for window, row in sinks["rows"] if row["id"] != "r0000050"]
    shown = write(tmp_path / "rows", sinks["rows"])
    # One line always raises, one did so once.
    assert checker.check_drops(fed, shown, 2) == []
    assert checker.check_drops(fed, shown, 1)
    assert checker.check_drops(fed, shown, 3)


def test_drops_that_nothing_explains_are_seen_though_they_are_counted(
    fed: ledger.Fed, tmp_path: Path
) -> None:
    """A run that drops what it likes, and counts that."""
    sinks = right_sinks()
    lose_windows(sinks, {5})
    shown = write(tmp_path / "one", sinks["rows"])
    # The line that raises is lost, too.
    assert checker.check_drops(fed, shown, WINDOW + 1, Faults(1, WINDOW)) == []
    assert checker.check_drops(fed, shown, WINDOW + 1)
    lose_windows(sinks, {2})
    shown = write(tmp_path / "two", sinks["rows"])
    assert checker.check_drops(fed, shown, 2 * WINDOW + 1, Faults(2, WINDOW)) == []
    [told] = checker.check_drops(fed, shown, 2 * WINDOW + 1, Faults(1, WINDOW))
    # One that fails once may be lost as well.
    assert told == "drops: 41 lines do not show, where faults explain 22"
    [told] = checker.check_drops(fed, [], LINES, Faults(4, WINDOW))
    assert told == "drops: 120 lines do not show, where faults explain 82"


def test_a_line_that_ends_its_worker_takes_its_window_with_it(tmp_path: Path) -> None:
    feed.add_file(tmp_path / "a.txt", feed.text(range(LINES), 1, {70: feed.DIE}))
    fed = ledger.read_fed(tmp_path)
    sinks = right_sinks()
    sinks["rows"].append((1, {"id": "r0000007"}))
    lose_windows(sinks, {4})
    shown = write(tmp_path / "rows", sinks["rows"])
    assert checker.check_drops(fed, shown, WINDOW, Faults(0, WINDOW)) == []


def test_a_line_that_a_window_lost_which_shows_is_seen_whatever_was_killed(
    fed: ledger.Fed, tmp_path: Path
) -> None:
    sinks = right_sinks()
    lose_a_row(sinks)
    shown = write(tmp_path / "rows", sinks["rows"])
    [told] = checker.check_drops(fed, shown, 2, Faults(9, WINDOW))
    assert told == "drops: 1 lines are lost from windows that show: r0000031"


def test_what_is_lost_at_the_ends_of_windows_and_files_may_be_windows_of_their_own(
    fed: ledger.Fed, tmp_path: Path
) -> None:
    """Windows need not be full, and one may read the end of one file and the beginning of another:
    what a reader of a later time finds between these may be of a third window."""
    sinks = right_sinks()
    lost = {f"r{number:07d}" for number in (19, 20, 38, 39, 40, 41)}
    sinks["rows"] = [
        (2 if row["id"] in ("r0000037", "r0000042") else window, row)
        for window, row in sinks["rows"]
        if row["id"] not in lost
    ]
    shown = write(tmp_path / "rows", sinks["rows"])
    assert checker.check_drops(fed, shown, len(lost) + 1, Faults(2, WINDOW)) == []


def show_again(sinks: Sinks, again: set[int]) -> None:
    """Have the lines of some windows processed a second time, in windows behind all others."""
    rows = [row for window, row in sinks["rows"] if window in again]
    counts: dict[str, int] = {}
    for _, row in sinks["numbers"]:
        counts[row["bucket"]] = max(counts.get(row["bucket"], 0), row["n"])
    totals: dict[str, int] = {}
    for _, row in sinks["totals"]:
        totals[row["word"]] = row["n"]
    touched: dict[str, int] = {}
    for row in rows:
        sinks["rows"].append((90, row))
        bucket = f"b{row['id'][-2:]}"
        counts[bucket] += 1
        sinks["numbers"].append((90, {"bucket": bucket, "n": counts[bucket]}))
        for word in feed.line(int(row["id"][1:]), 1).split()[2:]:
            touched[word] = touched.get(word, totals[word]) + 1
    sinks["totals"] += [(90, {"word": word, "n": n}) for word, n in touched.items()]


@pytest.mark.parametrize(
    ("again", "kills", "seen", "of_words"),
    [
        ({3}, 1, False, False),
        ({3, 4}, 2, False, False),
        # Of words there is no bound as near as that: their lines may have been long ones.
        ({3, 4}, 1, True, False),
        # The whole of what was fed, at a kill.
        ({1, 2, 3, 4, 5, 6}, 1, True, True),
        ({3}, 0, True, True),
    ],
)
def test_at_least_once_doubles_no_more_than_what_was_killed(
    fed: ledger.Fed, again: set[int], kills: int, seen: bool, of_words: bool, tmp_path: Path
) -> None:
    sinks = right_sinks()
    show_again(sinks, again)
    shown = {name: write(tmp_path / name, rows) for name, rows in sinks.items()}
    most = Faults(kills, WINDOW, replays=1).most_doubled(fed)
    words = fed.word_counts(GOOD)
    totals = {row.row["word"]: {"n": str(row.row["n"])} for row in shown["totals"]}
    words_most = most * fed.longest
    problems = [
        checker.check_rows(fed, shown["rows"], AT_LEAST, GOOD, most=most),
        checker.check_numbers(fed.bucket_counts(GOOD), shown["numbers"], AT_LEAST, most=most),
        checker.check_totals(words, shown["totals"], AT_LEAST, most=words_most),
        checker.check_hashes(words, totals, AT_LEAST, most=words_most),
    ]
    assert [bool(one) for one in problems] == [seen, seen, of_words, of_words]


def test_a_line_that_fails_explains_its_replays(fed: ledger.Fed) -> None:
    # One always raises, one does so once.
    assert Faults(replays=3).most_doubled(fed) == 8
    assert Faults(2, WINDOW, 3).most_doubled(fed) == 2 * WINDOW + 8


def test_a_line_that_is_fed_twice_is_a_mistake_of_the_test(tmp_path: Path) -> None:
    feed.add_file(tmp_path / "a.txt", feed.text([1, 2], 1))
    feed.add_file(tmp_path / "b.txt", feed.text([2, 3], 1))
    with pytest.raises(ValueError, match="r0000002 was fed twice"):
        ledger.read_fed(tmp_path)


def test_every_format_of_a_files_sink_can_be_read(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.csv as pc
    import pyarrow.parquet as pq

    table = pa.table({"id": ["r1", "r2"], "n": [1, 2]})
    pq.write_table(table, tmp_path / "00000001-0.parquet")
    pc.write_csv(table, tmp_path / "00000002-0.csv")
    (tmp_path / "00000003-0.jsonl").write_text('{"id": "r1", "n": 1}\n{"id": "r2", "n": 2}\n')
    rows = ledger.read_rows(tmp_path)
    assert [one.window for one in rows] == [1, 1, 2, 2, 3, 3]
    assert {(one.row["id"], int(one.row["n"])) for one in rows} == {("r1", 1), ("r2", 2)}
