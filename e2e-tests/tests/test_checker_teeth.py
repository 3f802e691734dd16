"""The checker must see what it is there to see: each kind of damage, made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace_e2e import checker, feed, ledger
from millrace_e2e.checker import Promise

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


def test_drops_are_counted_neither_too_few_nor_too_many(fed: ledger.Fed, tmp_path: Path) -> None:
    sinks = right_sinks()
    lose_a_row(sinks)
    shown = write(tmp_path / "rows", sinks["rows"])
    # One line always raises, one was lost.
    assert checker.check_drops(fed, shown, 2) == []
    assert checker.check_drops(fed, shown, 1)
    assert checker.check_drops(fed, shown, 3)


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
