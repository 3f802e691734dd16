"""Texts of JSON read into columns without user code, held to what Python's own ``json`` reads."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from millrace.engine.task.blackbox import Box
from millrace.engine.task.steps.decoding import lines_of
from millrace.errors import TopologyError
from millrace.sources.arrow_types import arrow_type
from millrace.sources.json_lines import JsonDecoder

SPEC = """
parallelism: 2
sources:
  - {name: lines, files: {path: texts, format: %s}}
processors:
  - {name: read, inputs: [{from: lines}], json: %s}
%s
sinks:
  - {name: rows, inputs: [{from: read}], files: {path: rows, format: jsonLines}}
"""
AN_INT = "{column: value, columns: [{name: a, type: long}]}"


def spec(settings: str, form: str = "text", more: str = "") -> str:
    return SPEC % (form, settings, more)


def feed(tmp_path, lines: list[bytes]) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a").write_bytes(b"".join(line + b"\n" for line in lines))


def failures(outcome):
    return {f.sequence: f for report in outcome.reports.values() for f in report.failed}


def decoded(texts, columns, paths=None):
    """Rows read from texts, and the messages of those that are not."""
    schema = pa.schema(columns)
    read = JsonDecoder(schema, paths=paths, record="text").decode(lines_of(texts), None)
    return read.data.to_pylist(), dict(read.errors)


LONG = st.integers(-(2**63), 2**63 - 1)
LEAF = st.none() | LONG | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
ANY = st.recursive(
    LEAF | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.fixed_dictionaries(
    {"x": ANY},
    optional={
        "t": st.none() | st.text(),
        "n": st.none() | LONG,
        "d": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "b": st.none() | st.booleans(),
        "o": st.none()
        | st.fixed_dictionaries({}, optional={"t": st.text(), "p": st.just({"n": 7})}),
    },
)
BLANK = st.text(st.sampled_from(" \t\r\n"), max_size=2)
COLUMNS = [
    pa.field("t", pa.string()),
    pa.field("n", pa.int64()),
    pa.field("d", pa.float64()),
    pa.field("b", pa.bool_()),
    pa.field("inner", pa.string()),
    pa.field("deep", pa.int64()),
]
PATHS = {"inner": ("o", "t"), "deep": ("o", "p", "n")}


def expected(found):
    inner = found.get("o") or {}
    read = {name: found.get(name) for name in "tndb"}
    return {**read, "inner": inner.get("t"), "deep": inner.get("p", {}).get("n")}


@given(
    st.lists(st.tuples(st.none() | OBJECTS, st.booleans(), st.sampled_from([None, 1]), BLANK)),
    st.data(),
    st.sampled_from([pa.string(), pa.binary()]),
)
def test_fields_are_those_that_python_reads(rows, data, kind):
    """Whatever stands beside them, on one line or several, in any slice of a column."""
    texts, want = [], []
    for found, escaped, indent, blank in rows:
        text = json.dumps(found, ensure_ascii=escaped, indent=indent)
        # Halves of surrogate pairs are texts in Python alone.
        text = text.encode(errors="ignore").decode()
        found = None if found is None else json.loads(text)
        if "\\ud" in text:
            found, text = {"t": "x"}, '{"t": "x"}'
        texts.append(None if found is None else (blank + text + blank).encode())
        want.append(expected(found or {}))
    column = pa.array(texts, pa.binary()).view(kind)
    low = data.draw(st.integers(0, len(texts)))
    high = data.draw(st.integers(low, len(texts)))
    read, errors = decoded(column.slice(low, high - low), COLUMNS, PATHS)
    assert errors == {}
    assert read == want[low:high]


NO_OBJECT = "the text is no JSON object {...}"


@pytest.mark.parametrize(
    ("kind", "written", "read"),
    [
        ("int", "2147483647", "2147483647"),
        ("int", "2147483648", None),
        ("float", "0.1", "0.10000000149011612"),
        ("float", '"0.1"', None),
        ("date", '"2026-01-31"', "2026-01-31"),
        ("date", '"2026-01-31T00:00:00"', None),
        ("date", '"2026-02-30"', None),
        ("binary", '"AP8="', "b'\\x00\\xff'"),
        ("binary", '"AP8"', None),
        ("array<long>", "[1, null]", "[1, None]"),
        ("array<long>", "[]", "[]"),
        ("array<long>", '["1"]', None),
        ("array<long>", "1", None),
        ("array<array<string>>", '[["a"], null]', "[['a'], None]"),
        ("long", "-9223372036854775808", "-9223372036854775808"),
        ("long", "9223372036854775808", None),
        ("long", "1.0", None),
        ("long", "1e3", None),
        ("long", '"1"', None),
        ("long", "true", None),
        ("double", "1", "1.0"),
        ("double", "12345678901234567890", "1.2345678901234567e+19"),
        ("double", "1e-400", "0.0"),
        ("double", "1e400", None),
        ("double", "NaN", "nan"),
        ("double", "Infinity", None),
        ("double", "-Infinity", None),
        ("double", "Inf", None),
        ("double", "1" + 309 * "0", None),
        ("double", "-1" + 309 * "0", None),
        ("double", "1.7976931348623157e308", "1.7976931348623157e+308"),
        ("double", "1.7976931348623159e308", None),
        ("float", "3.4028234e38", "3.4028234663852886e+38"),
        ("float", "1e39", None),
        ("float", "1e400", None),
        ("array<double>", "[1, null, 2]", "[1.0, None, 2.0]"),
        ("array<double>", f"[1, 1{309 * '0'}]", None),
        ("array<array<float>>", "[null, [1], [2, -1e39]]", None),
        ("double", "nan", None),
        ("double", '"1.5"', None),
        ("string", '"\\u0000\\ud83d\\ude00"', "\x00\U0001f600"),
        ("string", '"\\ud800"', None),
        ("string", '"a\tb"', None),
        ("string", "1", None),
        ("string", "{}", None),
        ("string", '["a"]', None),
        ("boolean", "true", "True"),
        ("boolean", "1", None),
        ("boolean", '"true"', None),
        ("timestamp", '"2024-01-02T03:04:05Z"', "2024-01-02 03:04:05+00:00"),
        ("timestamp", '"2024-01-02T03:04:05"', "2024-01-02 03:04:05+00:00"),
        ("timestamp", '"2024-01-02 03:04:05.000001+02:00"', "2024-01-02 01:04:05.000001+00:00"),
        ("timestamp", '"2024-01-02"', "2024-01-02 00:00:00+00:00"),
        ("timestamp", '"2024-01-02T03:04:05.0000001Z"', None),
        ("timestamp", '"2024-01-02T24:00:00Z"', None),
        ("timestamp", "1704164645", None),
        ("timestamp", '"soon"', None),
    ],
)
def test_a_value_is_of_its_columns_type_or_none(kind, written, read):
    texts = pa.array(['{"a": null}', f'{{"a": {written}}}', "{}"])
    rows, errors = decoded(texts, [pa.field("a", arrow_type(kind))])
    assert rows[0] == rows[2] == {"a": None}
    if read is None:
        assert errors.keys() == {1}
        assert "column 'a'" in errors[1] or "; the text is" in errors[1]
    else:
        assert errors == {}
        assert str(rows[1]["a"]) == read


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("null", NO_OBJECT),
        ("", NO_OBJECT),
        ("  \n", NO_OBJECT),
        ("[1]", NO_OBJECT),
        ("5", NO_OBJECT),
        ("\ufeff{}", NO_OBJECT),
        ('{"a": 1} x', NO_OBJECT),
        ('{"a": 1} {"a": 2}', "the text holds more than one JSON value"),
        ('{"a": 1}null{"a": 2}', "the text holds more than one JSON value"),
        ('{"a": 1,}', "Missing a name for object member"),
        ('{"a": 1, "a": 1}', "column 'a' stands twice in it"),
        ('{"z": {"a": 1}', "Missing a comma or '}'"),
        ("{'a': 1}", "Missing a name for object member"),
        ('{"a": 01}', "Missing a comma or '}'"),
        ('{"a": 1 /* one */}', "Missing a comma or '}'"),
        ('{"a": "b\nc"}', "Invalid encoding in string"),
    ],
)
def test_a_text_that_is_no_object_is_refused_alone(text, told):
    """Also as the first one of all, where Arrow's parser would end the process on ``null``."""
    for texts in ([text], [text, '{"a": 1}'], ['{"a": 1}', text, '{"a": 2}']):
        rows, errors = decoded(pa.array(texts), [pa.field("a", pa.int64())])
        assert errors.keys() == {texts.index(text)}
        assert told in errors[texts.index(text)]
        good = [row for at, row in enumerate(rows) if at not in errors]
        assert good == [json.loads(t) for t in texts if t != text]


@pytest.mark.parametrize("depth", [100, 1_000_000])
@pytest.mark.parametrize("bomb", ['{"z": %s, "a": 1}', '{"a": %s}', "{%s}"])
def test_depth_harms_nobody(depth, bomb):
    """It is skipped where nothing of it is read, and refused where a column should be."""
    texts = [
        '{"a": 0}',
        bomb % ("[" * depth + "]" * depth),
        bomb % ('{"z":' * depth + "1" + "}" * depth),
        bomb % ("[" * depth),
        '{"a": 2}',
    ]
    rows, errors = decoded(pa.array(texts), [pa.field("a", pa.int64())])
    assert (rows[0], rows[4]) == ({"a": 0}, {"a": 2})
    skipped = set() if '"z": %s' not in bomb else {1, 2}
    assert errors.keys() == {1, 2, 3} - skipped
    assert all(rows[at] == {"a": 1} for at in skipped)
    assert all(len(text) < 400 for text in errors.values())


def test_invalid_utf8_fails_its_text_alone():
    column = pa.array([b'{"a": "x"}', b'{"a": "\xff"}', b'{"z\xff": 1}', b'{"a": "\xc3\xa9"}'])
    rows, errors = decoded(column, [pa.field("a", pa.string())])
    assert errors.keys() == {1, 2}
    assert "not valid UTF-8" in errors[1]
    assert (rows[0]["a"], rows[3]["a"]) == ("x", "\u00e9")


def test_a_number_that_is_too_large_is_refused_alike_however_it_is_written():
    texts = [f'{{"x": 1, "a": {n}}}' for n in ("1e400", "1" + 309 * "0", "Infinity", "2")]
    _, errors = decoded(pa.array(texts), [pa.field("a", pa.float64()), pa.field("x", pa.int64())])
    assert errors.keys() == {0, 1, 2}
    assert {text.partition(";")[0] for text in errors.values()} == {"column 'a': inf is no double"}


def test_a_number_that_is_too_large_is_refused_in_a_field_that_is_not_read():
    """As the page says; of the ways to write one Arrow minds that with an exponent alone."""
    texts = [f'{{"a": 1, "x": {n}}}' for n in ("1e400", "[-1e400]", "1" + 309 * "0", "1e308")]
    rows, errors = decoded(pa.array(texts), [pa.field("a", pa.int64())])
    assert errors.keys() == {0, 1}
    assert all("Number too big" in text for text in errors.values())
    assert [row["a"] for row in rows[2:]] == [1, 1]


MANY = [pa.field(f"c{n}", pa.int64()) for n in range(20)]
FIRST_BAD = {
    "the last": lambda n: f'{{"c0": 1, "c19": "x{n}"}}',
    "each another": lambda n: f'{{"c{n % 20}": "x{n}", "c19": "y"}}',
    "no column": lambda n: f'{{"c0": 1, "z": "x{n}',
}


@pytest.mark.parametrize("first", FIRST_BAD)
def test_bad_columns_are_found_in_few_parses_and_by_decoders_made_once(monkeypatch, first):
    """Parses: two of each bad text among others that are bad, and as few for one column."""
    parses, made = [], []
    parse, make = JsonDecoder.parse, JsonDecoder.__init__

    def counted(self, lines):
        parses.append(len(lines))
        return parse(self, lines)

    def making(self, *given, **named):
        made.append(self)
        make(self, *given, **named)

    monkeypatch.setattr(JsonDecoder, "parse", counted)
    monkeypatch.setattr(JsonDecoder, "__init__", making)
    decoder = JsonDecoder(pa.schema(MANY), progress=lambda: parses.append(0))
    texts = [FIRST_BAD[first](n) for n in range(256)]
    for _ in range(2):
        parses.clear()
        errors = dict(decoder.decode(lines_of(pa.array(texts)), None).errors)
        assert errors.keys() == set(range(256))
        assert parses.count(0) == len(parses) / 2  # each shows that it goes on
        halvings = math.log2(20) if first == "each another" else 0
        assert len(parses) / 2 <= 256 * (4 + 2 * halvings) + 21
        assert len(made) <= 22
    if first != "no column":
        column = 19 if first == "the last" else 7
        assert errors[7].startswith(f"column 'c{column}': 'x7' is no long; the line is")


def test_a_path_leads_through_objects_alone():
    texts = ['{"o": {"a": 1}}', '{"o": {}}', '{"o": null}', "{}", '{"o": 5}', '{"o": {"a": "x"}}']
    field = pa.field("n", pa.int64())
    rows, errors = decoded(pa.array(texts), [field], {"n": ("o", "a")})
    assert [row["n"] for row in rows[:4]] == [1, None, None, None]
    assert errors == {
        4: "column 'n': 5 is no long; the text is '{\"o\": 5}'",
        5: "column 'n': 'x' is no long; the text is '{\"o\": {\"a\": \"x\"}}'",
    }


# -- in windows

BAD = [b"null", b'{"a": "x"}', b'{"a": 1', b"", b'{"a": 1, "a": 1}', b'{"a": 1e400}']


@pytest.mark.parametrize("whole", [True, False])
def test_what_cannot_be_read_fails_its_own_root_for_good(windows, tmp_path, whole):
    """As where a source cannot decode it: nothing of it goes anywhere, so one run is enough."""
    lines = [b'{"a": %d}' % n for n in range(60)]
    places = {0, 7, 8, 31, 58, 59}
    for place, bad in zip(sorted(places), BAD, strict=True):
        lines[place] = bad
    feed(tmp_path, lines)
    outcome = windows(spec(AN_INT), whole).go()
    failed = failures(outcome)
    assert failed.keys() == places
    assert {(f.processor, f.unreadable) for f in failed.values()} == {("read", True)}
    assert outcome.verdict.incomplete == places
    assert not outcome.verdict.window
    assert [row["a"] for row in outcome.rows["rows"]] == sorted(set(range(60)) - places)


def test_a_worker_says_what_it_reads_and_that_it_goes_on(windows, tmp_path, monkeypatch):
    """By which one that stands still is ended, and its window split."""
    told = []
    for name in ("begin", "progress", "end"):
        monkeypatch.setattr(Box, name, lambda box, *note, _n=name, **more: told.append((_n, *note)))
    feed(tmp_path, [b'{"a": 1}'] * 8 + [b'{"a": "x"}'] * 8)
    outcome = windows(spec(AN_INT)).go()
    assert failures(outcome).keys() == set(range(8, 16))
    begun = [at for at, (name, *note) in enumerate(told) if (name, *note[:1]) == ("begin", "read")]
    assert begun
    seen = 0
    for at in begun:
        end = told.index(("end",), at)
        assert set(told[at + 1 : end]) == {("progress",)}
        seen += end - at - 1
    assert seen > 16


ELSEWHERE = {
    "a branch": """
  - {name: other, inputs: [{from: lines}], split: {column: value, into: w}}
  - {name: n, inputs: [{from: other, key: [w]}], aggregate: {columns: [{name: c, function: count}]}}
""",
    "a step before": "",
}


@pytest.mark.parametrize("where", ELSEWHERE)
def test_where_something_went_elsewhere_the_window_runs_again(windows, tmp_path, where):
    feed(tmp_path, [b'{"a": 1}', b"bad", b'{"a": 2}'])
    text = spec(AN_INT, more=ELSEWHERE[where])
    if where == "a step before":
        cut = """  - {name: cut, inputs: [{from: lines}],
     split: {column: value, into: value, delimiter: ";"}}
"""
        text = text.replace("processors:\n", f"processors:\n{cut}").replace(
            "read, inputs: [{from: lines}]", "read, inputs: [{from: cut}]"
        )
    else:
        text += (
            "  - {name: counts, inputs: [{from: n}], files: {path: counts, format: jsonLines}}\n"
        )
    run = windows(text)
    intent = run.plan()
    (failed,) = failures(run.attempt(intent)).values()
    assert (failed.sequence, failed.unreadable, failed.lasting) == (1, False, True)
    again = run.attempt(intent, excluded={1})
    assert again.verdict.complete
    assert [row["a"] for row in again.rows["rows"]] == [1, 2]


def test_columns_are_kept_and_required_ones_are_there(windows, tmp_path):
    rows = [
        {"t": '{"user": {"id": 1}}', "v": 10},
        {"t": '{"user": {"id": null}}', "v": 11},
        {"t": '{"x": 1}', "v": 12},
        {"t": None, "v": 13},
        {"t": '{"user": {"id": 2}, "note": "n"}', "v": None},
    ]
    feed(tmp_path, [json.dumps(row).encode() for row in rows])
    settings = (
        "{column: t, keep: [v], columns: [{name: id, type: long, path: user.id, required: true},"
        " {name: note, type: string}]}"
    )
    outcome = windows(spec(settings, 'jsonLines, schema: "t string, v long"')).go()
    assert outcome.rows["rows"] == [
        {"id": 1, "note": None, "v": 10},
        {"id": 2, "note": "n", "v": None},
    ]
    assert {n: f.error for n, f in failures(outcome).items()} == {
        1: "column 'id' is missing or null; the text is '{\"user\": {\"id\": null}}'",
        2: "column 'id' is missing or null; the text is '{\"x\": 1}'",
        3: "column 'id' is missing or null; the text is '{}'",
    }


@pytest.mark.parametrize("whole", [True, False])
def test_what_is_read_is_combined_in_the_same_pass(windows, tmp_path, whole):
    lines = [b'{"k": "k%d", "n": %d}' % (n % 7, n) for n in range(200)]
    lines[50] = b"bad"
    feed(tmp_path, lines)
    settings = "{column: value, columns: [{name: k, type: string}, {name: n, type: long}]}"
    more = """  - name: s
    inputs: [{from: read, key: [k]}]
    aggregate: {columns: [{name: s, function: sum, of: n}]}
"""
    text = spec(settings, more=more) + (
        "  - {name: totals, inputs: [{from: s}], files: {path: totals, format: jsonLines}}\n"
    )
    outcome = windows(text, whole).go()
    totals: dict[str, int] = defaultdict(int)
    for line in lines:
        if line != b"bad":
            found = json.loads(line)
            totals[found["k"]] += found["n"]
    assert {row["k"]: row["s"] for row in outcome.rows["totals"]} == totals
    assert failures(outcome).keys() == outcome.verdict.incomplete == {50}


def test_what_is_read_from_a_total_blames_the_roots_behind_it(windows, tmp_path):
    """A combined text has no root of its own; run apart, the roots of that key are found."""
    feed(tmp_path, [b"5 {}", b"5 {}", b'{"a": 1}'])
    text = spec("{column: last, columns: [{name: a, type: long}]}").replace(
        "processors:\n",
        "processors:\n  - {name: m, inputs: [{from: lines, key: [value]}], "
        "aggregate: {columns: [{name: last, function: max, of: value}]}}\n",
    )
    run = windows(text.replace("read, inputs: [{from: lines}]", "read, inputs: [{from: m}]"))
    intent = run.plan()
    first = run.attempt(intent)
    (mask,) = first.combined.values()
    assert first.failed == {}
    second = run.attempt(intent, uncombined={"m": mask})
    assert {n: f.lasting for n, f in failures(second).items()} == {0: True, 1: True}


def test_a_column_of_another_type_is_refused(windows, tmp_path):
    feed(tmp_path, [b"{}"])
    with pytest.raises(
        TopologyError, match=r"column.*has the type long, and JSON is read from text"
    ):
        windows(spec(AN_INT, 'jsonLines, schema: "value long"'))


def test_the_pages_topology_makes_what_the_page_says(windows, tmp_path):
    text = (Path(__file__).parents[3] / "docs" / "native.md").read_text()
    whole = yaml.safe_load(re.findall(r"```yaml\n(apiV.*?)```", text, re.S)[0])
    lines = re.findall(r"```json\n(.*?)```", text, re.S)[0]
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "a.txt").write_text(lines)
    outcome = windows(yaml.safe_dump(whole["spec"])).go()
    assert f"make `{json.dumps(outcome.rows['out'][0])}`" in text
    assert len(outcome.rows["out"]) == 1
    (failed,) = failures(outcome).values()
    assert (failed.sequence, failed.processor, failed.unreadable) == (2, "orders", True)
