"""Text that is cut without user code, held to what Python's own ``split`` does."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pytest
from engine_support import write_lines
from hypothesis import given
from hypothesis import strategies as st

from millrace.engine.task.steps import splitting
from millrace.engine.task.steps.whitespace import Finder
from millrace.errors import TopologyError
from millrace.state.keyed.keytable import KeyTable

SPACES = "".join(chr(c) for c in range(0x110000) if chr(c).isspace())
NEARLY = "\x00\x08\x0e\x1b\x7f\u200b\u180e\u2060\ufeff\u2007x\u00e9\u20ac\U0001f600"
TEXTS = st.lists(
    st.none() | st.text() | st.text(st.sampled_from(SPACES + NEARLY + "abcdefgh"), max_size=60),
    max_size=12,
)


def plain(texts):
    """Words and the rows that they stand in, by Python alone."""
    found = [(w, row) for row, text in enumerate(texts) for w in (text or "").split()]
    return [w for w, _ in found], [row for _, row in found]


def cut(column):
    words, rows = Finder().views(column)
    words.validate(full=True)
    return words.to_pylist(), rows.tolist()


@given(TEXTS, st.data())
def test_words_are_those_of_str_split(texts, data):
    column = pa.array(texts, pa.string())
    assert cut(column) == plain(texts)
    first = data.draw(st.integers(0, len(texts)))
    last = data.draw(st.integers(first, len(texts)))
    assert cut(column.slice(first, last - first)) == plain(texts[first:last])


@given(TEXTS)
def test_nothing_behind_the_last_text_is_read(texts):
    """The bytes of a column may end with its last character."""
    column = pa.array(texts, pa.string())
    valid, offsets, text = column.buffers()
    if text is None:
        return
    whole = bytes(text)[: np.frombuffer(offsets, np.int32)[len(texts)]]
    exact = pa.py_buffer(whole)
    column = pa.Array.from_buffers(pa.string(), len(texts), [valid, offsets, exact])
    assert cut(column) == plain(texts)


def test_every_character_is_white_space_or_not_as_for_str_split():
    texts = [f"a{chr(c)}b" for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    words, rows = Finder().views(pa.array(texts))
    expected, lines = plain(texts)
    assert rows.tolist() == lines
    assert words.to_pylist() == expected


@pytest.mark.parametrize("seed", range(4))
def test_words_lie_anywhere_in_the_bytes_that_are_looked_at_at_once(seed):
    """64 of them; white space of several bytes, words and texts reach from some into the next."""
    rng = random.Random(seed)
    wide = ["\u00a0", "\u2003", "\u3000", "\u00e9", "\u20ac"]
    parts = [*"ab   ", "\t", *wide, "w" * 13, "v" * 90]
    texts = [
        None if rng.random() < 0.1 else "".join(rng.choices(parts, k=rng.choice((0, 1, 5, 200))))
        for _ in range(500)
    ]
    column = pa.array(texts)
    assert cut(column) == plain(texts)
    for first in range(0, 500, 71):
        assert cut(column.slice(first, 90)) == plain(texts[first : first + 90])


def test_a_finder_is_asked_again_and_again():
    """Its memory grows and is used anew; words of one letter take more than it begins with."""
    finder = Finder()
    for texts in (["a b"], ["a " * 5000, None, "c"], ["a longer text, with a word_of_some_length"]):
        words, rows = finder.views(pa.array(texts))
        assert (words.to_pylist(), rows.tolist()) == plain(texts)


@pytest.mark.parametrize("vocabulary", [7, 5_000, 200_000])
def test_views_get_the_rows_of_their_texts(vocabulary):
    """Short and long words, few and many, in several rounds: as texts of their own would."""
    rng = random.Random(vocabulary)
    names = [f"{n:x}" * rng.choice((1, 1, 2, 6)) for n in range(vocabulary)]
    by_text, by_view = KeyTable([pa.string()]), KeyTable([pa.string()])
    for _ in range(3):
        by_text.begin()
        by_view.begin()
        for _ in range(3):
            words = rng.choices(names, k=40_000)
            found, _ = Finder().views(pa.array([" ".join(words)]))
            assert found.type == pa.string_view()
            rows = by_view.find_or_insert([found])
            assert np.array_equal(rows, by_text.find_or_insert([pa.array(words)]))
        assert np.array_equal(by_view.touched(), by_text.touched())
        kept = by_text.rows // 2
        by_text.truncate(kept)
        by_view.truncate(kept)
    assert (
        by_view.keys(np.arange(kept))[0].to_pylist() == by_text.keys(np.arange(kept))[0].to_pylist()
    )


# -- in windows

SPEC = """
parallelism: 2
sources:
  - {name: lines, files: {path: texts, format: %s}}
processors:
  - {name: cut, inputs: [{from: lines}], split: %s}
  - {name: n, inputs: [{from: cut, key: [w]}], aggregate: {columns: %s}}
sinks:
  - {name: totals, inputs: [{from: n}], files: {path: totals, format: jsonLines}}
"""
COUNT = "[{name: n, function: count}]"
ODD = [
    "",
    "   ",
    "one two  two",
    " a,b,,c;d a-long-word-of-more-than-twelve-letters",
    "x\u00a0y\u2003z\u3000\u00e9t\u00e9",
    ",",
]
LINES = ODD * 9 + [f"w{i % 7} w{i % 3},w{i}" for i in range(70)]


def text_spec(split: str, columns: str = COUNT) -> str:
    return SPEC % ("text", split, columns)


def totals(outcome, value: str = "n"):
    return {row["w"]: row[value] for row in outcome.rows["totals"]}


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("settings", "pieces"),
    [
        ("{column: value, into: w}", str.split),
        ('{column: value, into: w, delimiter: ","}', lambda text: text.split(",")),
        ('{column: value, into: w, delimiter: " ", dropEmpty: true}', lambda t: t.strip().split()),
        ('{column: value, into: w, pattern: "[ ,;]+"}', lambda t: re.split("[ ,;]+", t)),
        (
            '{column: value, into: w, pattern: "[ ,;]", dropEmpty: true}',
            lambda text: [p for p in re.split("[ ,;]", text) if p],
        ),
    ],
)
def test_pieces_are_counted_as_python_cuts_them(windows, tmp_path, whole, settings, pieces):
    lines = [line for line in LINES if "\u2003" not in line or "delimiter" not in settings]
    write_lines(tmp_path, lines)
    outcome = windows(text_spec(settings), whole).go()
    assert totals(outcome) == Counter(piece for line in lines for piece in pieces(line))
    assert outcome.verdict.complete


def test_totals_go_on_from_window_to_window(windows, tmp_path):
    write_lines(tmp_path, LINES)
    run = windows(text_spec("{column: value, into: w}"))
    found: dict[str, int] = {}
    for _ in range(3):
        outcome = run.attempt(run.plan(50))
        run.seal(outcome)
        found |= totals(outcome)
        assert outcome.verdict.complete
    assert found == Counter(word for line in LINES for word in line.split())


def test_columns_are_kept_beside_each_piece(windows, tmp_path):
    (tmp_path / "texts").mkdir()
    rows = [{"t": text, "v": v} for v, text in enumerate([*ODD, None])] * 5
    (tmp_path / "texts" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = SPEC % (
        'jsonLines, schema: "t string, v long"',
        "{column: t, into: w, keep: [v]}",
        "[{name: s, function: sum, of: v}, {name: first, function: min, of: w}]",
    )
    outcome = windows(spec).go()
    expected: dict[str, int] = defaultdict(int)
    for row in rows:
        for word in (row["t"] or "").split():
            expected[word] += row["v"]
    assert totals(outcome, "s") == expected
    assert all(row["first"] == row["w"] for row in outcome.rows["totals"])
    assert outcome.verdict.complete


def test_what_pieces_keep_may_be_more_than_one_column_holds(windows, tmp_path):
    """2.4 GB of a column, of one record of 140 kB."""
    (tmp_path / "texts").mkdir()
    row = {"t": "a b " * 15_000, "v": "x" * 80_000}
    (tmp_path / "texts" / "a.jsonl").write_text(json.dumps(row) + "\n")
    spec = SPEC % (
        'jsonLines, schema: "t string, v string"',
        "{column: t, into: w, keep: [v]}",
        "[{name: n, function: count}, {name: v, function: max, of: v}]",
    )
    outcome = windows(spec, True).go()
    assert totals(outcome) == {"a": 15_000, "b": 15_000}
    assert set(totals(outcome, "v").values()) == {row["v"]}
    assert outcome.verdict.complete


@pytest.mark.parametrize("most", [1 << 28, 600, 1])
@pytest.mark.parametrize("delimiter", ["", ', delimiter: " "'])
@pytest.mark.parametrize("key", ["", ", key: [n]"])
def test_pieces_and_their_order_are_the_same_however_many_go_on_at_once(
    windows, tmp_path, monkeypatch, key, delimiter, most
):
    monkeypatch.setattr(splitting, "MOST_TAKEN", most)
    (tmp_path / "texts").mkdir()
    rows = [
        {"t": " ".join(f"w{n * k % 5}" for k in range(n % 9)), "v": "v" * n or None, "n": n}
        for n in range(120)
    ]
    (tmp_path / "texts" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = SPEC % (
        'jsonLines, schema: "t string, v string, n long"',
        f"{{column: t, into: w, keep: [v, n]{delimiter}}}",
        "[{name: c, function: count}, {name: s, function: sum, of: n}]",
    )
    to_file = "files: {path: all, format: jsonLines}"
    spec += f"  - {{name: all, inputs: [{{from: cut{key}}}], {to_file}}}\n"
    outcome = windows(spec).go()
    assert outcome.verdict.complete
    found: dict[int, list[tuple[str, str | None]]] = defaultdict(list)
    counted: Counter[str] = Counter()
    for row in outcome.rows["all"]:
        found[row["n"]].append((row["w"], row["v"]))
        counted[row["w"]] += row["n"]
    for row in rows:
        words = row["t"].split(" ") if delimiter else row["t"].split()
        assert found.pop(row["n"], []) == [(word, row["v"]) for word in words]
    assert not found
    assert totals(outcome, "s") == counted


@pytest.mark.parametrize("key", ["", ", key: [w]"])
def test_pieces_that_are_not_combined_are_texts(windows, tmp_path, key):
    write_lines(tmp_path, LINES)
    spec = text_spec("{column: value, into: w}") + (
        f"  - {{name: all, inputs: [{{from: cut{key}}}], "
        "files: {path: all, format: jsonLines}}\n"
    )
    outcome = windows(spec).go()
    words = Counter(word for line in LINES for word in line.split())
    assert Counter(row["w"] for row in outcome.rows["all"]) == words
    assert totals(outcome) == words
    assert outcome.verdict.complete


def test_pieces_travel_alone_where_a_key_group_is_not_combined(windows, tmp_path):
    write_lines(tmp_path, LINES)
    run = windows(text_spec("{column: value, into: w}"))
    outcome = run.attempt(run.plan(), uncombined={"n": (1 << 60) - 1})
    assert totals(outcome) == Counter(word for line in LINES for word in line.split())
    assert outcome.verdict.complete


def test_a_pattern_that_re2_does_not_know_is_refused(windows):
    with pytest.raises(TopologyError, match=r"split 'cut': '\(\?=x\)' is no pattern of RE2"):
        windows(text_spec('{column: value, into: w, pattern: "(?=x)"}'))


@pytest.mark.parametrize("pattern", ["[^a-z]*", r"\s*", "x?", "$", ",|$", "(?m)$", r"\z", "a|b*"])
def test_a_pattern_that_matches_nothing_is_refused(windows, pattern):
    with pytest.raises(TopologyError, match="matches where there is nothing"):
        windows(text_spec(f"{{column: value, into: w, pattern: '{pattern}'}}"))


@pytest.mark.parametrize("pattern", ["^a", "^", r"\Aa", r"\ba", r"a\B", "(?m)^a", r"\C"])
def test_a_pattern_that_asks_what_is_in_front_of_a_match_is_refused(windows, pattern):
    """Arrow looks for it in what is left of the text, as if that were all."""
    with pytest.raises(TopologyError, match=r"split\.pattern.*cut (there|in two); "):
        windows(text_spec(f"{{column: value, into: w, pattern: '{pattern}'}}"))


PATTERNS = {
    pattern: pattern
    for pattern in (
        *("[^a-z]+", r"\s", "(?i)A+b*", "a|ab", "ab|a", "a+?b", "(?:,|\n)+", r"\s+\n"),
        *("a.", "(?s)a.", "[]^,]", r"[\^]b?", r"\\|b", "(?m)a$", "(?m)[ab,]+$"),
    )
} | {
    "a$": r"a\Z",
    r"\^|a$": r"\^|a\Z",
    "[[^]a": r"[\[^]a",
    r"a\z|b": r"a\Z|b",
    "[ab]+$|,": r"[ab]+\Z|,",
    r"\Q^\E|\Q\b\E": r"\^|\\b",
    "[[:^alpha:]]": "[^a-zA-Z]",
    r"\x{61}b": "ab",
    r"\pN|\p{^Latin}b": "[^a-zA-Z]b",
}
"""Patterns of RE2, and what Python's ``re`` has for each."""

CUT_TEXTS = [
    *("".join(some) for count in range(5) for some in itertools.product("ab,\n", repeat=count)),
    *("a^b^", "^^a", r"a\b\\ab", "ab\n\nab,a b", "AaBb\n"),
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_cuts_as_that_of_python(windows, tmp_path, pattern):
    (tmp_path / "texts").mkdir()
    rows = [{"t": text, "n": n} for n, text in enumerate(CUT_TEXTS)]
    (tmp_path / "texts" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = json.dumps({"column": "t", "into": "w", "keep": ["n"], "pattern": pattern})
    spec = SPEC % ('jsonLines, schema: "t string, n long"', settings, COUNT)
    spec += "  - {name: all, inputs: [{from: cut}], files: {path: all, format: jsonLines}}\n"
    outcome = windows(spec, True).go()
    found: dict[int, list[str]] = defaultdict(list)
    for row in outcome.rows["all"]:
        found[row["n"]].append(row["w"])
    assert found == {n: re.split(PATTERNS[pattern], t) for n, t in enumerate(CUT_TEXTS)}
    assert outcome.verdict.complete


def test_pieces_are_compared_where_a_kept_column_is_the_key(windows, tmp_path):
    (tmp_path / "texts").mkdir()
    rows = [{"t": text, "v": v % 3} for v, text in enumerate(ODD)] * 5
    (tmp_path / "texts" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = SPEC.replace("key: [w]", "key: [v]") % (
        'jsonLines, schema: "t string, v long"',
        "{column: t, into: w, keep: [v]}",
        "[{name: first, function: min, of: w}, {name: n, function: count}]",
    )
    outcome = windows(spec).go()
    words = defaultdict(list)
    for row in rows:
        words[row["v"]] += row["t"].split()
    found = {row["v"]: (row["first"], row["n"]) for row in outcome.rows["totals"]}
    assert found == {v: (min(some), len(some)) for v, some in words.items() if some}
    assert outcome.verdict.complete
