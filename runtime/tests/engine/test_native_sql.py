"""SQL steps that DuckDB evaluates in the worker: behind any step, each tuple by itself."""

from __future__ import annotations

import json
import re
from collections import Counter
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from engine_support import write_lines
from pyspark.errors import PySparkException

from millrace.engine.jobs.session import SessionSettings, build_session
from millrace.engine.program import duck, duckfunctions
from millrace.engine.program.duck import DuckAnalyser
from millrace.engine.program.plainrows import plain_rows
from millrace.engine.program.program import SqlExpressions
from millrace.engine.program.schema import conform
from millrace.engine.task.faults import TaskError
from millrace.errors import EngineError, TopologyError

SPEC = """
parallelism: 2
sources:
  - {name: rows, files: {path: texts, format: jsonLines, schema: "k string, n long, s string"}}
processors:
  - {name: step, inputs: [{from: rows}], sql: {engine: duckdb, %s}}
%s
sinks:
  - {name: out, inputs: [{from: step}], files: {path: out, format: jsonLines}}
"""
ROWS = [{"k": f"k{n % 7}", "n": n, "s": str(n)} for n in range(120)]


def feed(tmp_path, rows) -> None:
    write_lines(tmp_path, [json.dumps(row) for row in rows])


def spec(sql: str, more: str = "") -> str:
    return SPEC % (sql, more)


def failures(outcome):
    return {f.sequence: f for report in outcome.reports.values() for f in report.failed}


@pytest.mark.parametrize("whole", [True, False])
def test_rows_that_do_not_pass_are_processed_all_the_same(windows, tmp_path, whole):
    """A root of which nothing is left is complete."""
    feed(tmp_path, ROWS)
    select = 'select: ["upper(k) AS k", "*", "n * 2 AS twice"], where: "n % 3 = 0 AND k <> \'k1\'"'
    outcome = windows(spec(select.replace('*", ', 'n", ', 1)), whole).go()
    kept = [row for row in ROWS if row["n"] % 3 == 0 and row["k"] != "k1"]
    expected = [{"k": r["k"].upper(), "n": r["n"], "twice": r["n"] * 2} for r in kept]
    assert sorted(outcome.rows["out"], key=lambda row: row["n"]) == expected
    assert outcome.verdict.complete
    assert failures(outcome) == {}


def test_where_nothing_passes_the_window_is_complete(windows, tmp_path):
    feed(tmp_path, ROWS)
    outcome = windows(spec('where: "n < 0"')).go()
    assert outcome.rows["out"] == []
    assert outcome.verdict.complete


@pytest.mark.parametrize("whole", [True, False])
def test_it_stands_behind_functions_aggregates_and_keys_and_merges(windows, tmp_path, whole):
    write_lines(tmp_path, [f"w{n % 5} w{n % 3}" for n in range(60)])
    text = """
parallelism: 2
sources: [{name: lines, files: {path: texts}}]
processors:
  - {name: words, inputs: [{from: lines}], split: {column: value, into: word}}
  - {name: code, inputs: [{from: lines}], function: "wordsteps:split"}
  - name: loud
    inputs: [{from: words, key: [word]}, {from: code, key: [word]}]
    sql: {engine: duckdb, select: ["upper(word) AS word"], where: "word <> 'w0'"}
  - name: counts
    inputs: [{from: loud, key: [word]}]
    aggregate: {columns: [{name: n, function: count}]}
  - name: many
    inputs: [{from: counts}]
    sql: {engine: duckdb, select: ["word", "n // 2 AS half"], where: "n > 30"}
sinks:
  - {name: out, inputs: [{from: many}], files: {path: out, format: jsonLines}}
"""
    outcome = windows(text, whole).go()
    counted = Counter(w for n in range(60) for w in (f"W{n % 5}", f"W{n % 3}") * 2)
    expected = {w: n // 2 for w, n in counted.items() if w != "W0" and n > 30}
    assert {row["word"]: row["half"] for row in outcome.rows["out"]} == expected
    assert expected
    assert outcome.verdict.complete


FAULTS = {
    "cast": ("CAST(s AS bigint) AS v", "x", "Could not convert string 'x' to INT64"),
    "overflow": ("n + 9223372036854775000 AS v", 10_000, "Overflow in addition of INT64"),
    "division": ("100 // n AS v", 0, "Division by zero"),
    "cast of a number": ("CAST(n AS tinyint) AS v", 300, "out of range for the destination type"),
    "part of a date": (
        "date_trunc(if(s = 'timezone', s, 'day'), DATE '2024-01-31') AS v",
        "timezone",
        "Specifier type not implemented",
    ),
    "raised": ("CASE WHEN s = 'x' THEN error('no ' || s) ELSE s END AS v", "x", "no x"),
}


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_row_that_cannot_be_evaluated_fails_its_own_root_for_good(
    windows, tmp_path, fault, whole
):
    expression, value, told = FAULTS[fault]
    column = "s" if isinstance(value, str) else "n"
    rows = [{"k": "k", "n": 1 + n, "s": str(n)} for n in range(60)]
    places = {0, 7, 8, 41, 59}
    for place in places:
        rows[place][column] = value
    feed(tmp_path, rows)
    outcome = windows(spec(f'select: ["n", "{expression}"]'), whole).go()
    failed = failures(outcome)
    assert failed.keys() == places
    assert all(told in f.error and "LINE" not in f.error for f in failed.values())
    assert {(f.processor, f.unreadable) for f in failed.values()} == {("step", True)}
    assert outcome.verdict.incomplete == places
    assert not outcome.verdict.window
    assert len(outcome.rows["out"]) == 55


def test_what_where_leaves_out_is_not_evaluated(windows, tmp_path):
    feed(tmp_path, [{"k": "k", "n": 0, "s": "x"}, {"k": "k", "n": 1, "s": "5"}])
    outcome = windows(spec('select: ["CAST(s AS bigint) AS v"], where: "n = 1"')).go()
    assert outcome.rows["out"] == [{"v": 5}]
    assert failures(outcome) == {}


def test_behind_a_branch_the_window_runs_again_without_the_root(windows, tmp_path):
    feed(tmp_path, [{"k": "k", "n": 1, "s": "x"}, {"k": "k", "n": 2, "s": "5"}])
    more = "  - {name: other, inputs: [{from: rows}], split: {column: s, into: w}}\n"
    text = spec('select: ["CAST(s AS bigint) AS v"]', more) + (
        "  - {name: others, inputs: [{from: other}], files: {path: others}}\n"
    )
    run = windows(text)
    intent = run.plan()
    (failed,) = failures(run.attempt(intent)).values()
    assert (failed.sequence, failed.unreadable, failed.lasting) == (0, False, True)
    again = run.attempt(intent, excluded={0})
    assert again.verdict.complete
    assert again.rows["out"] == [{"v": 5}]


@pytest.mark.parametrize(
    "error",
    [
        duckdb.InternalException,
        duckdb.BinderException,
        duckdb.NotImplementedException,
        duckdb.FatalException,
        duckdb.IOException,
    ],
)
def test_what_fails_in_duckdb_itself_blames_nobody(windows, tmp_path, monkeypatch, error):
    feed(tmp_path, ROWS)
    run = windows(spec('where: "n > 100"'))
    real = duck.evaluate

    def failing(query, data):
        raise error("it broke")

    monkeypatch.setattr(duck, "evaluate", failing)
    with pytest.raises(TaskError) as caught:
        run.attempt(run.plan())
    found = run.error_in(caught.value)
    assert isinstance(found, EngineError)
    assert "SQL step 'step': DuckDB failed: it broke" in str(found)
    monkeypatch.setattr(duck, "evaluate", real)


def test_a_cast_that_does_not_exist_blames_nobody_either(windows, tmp_path):
    """DuckDB says so when it gets there, as if it were the value's fault."""
    feed(tmp_path, [{"k": "k", "n": n, "s": "x"} for n in (1, 2000)])
    run = windows(spec('select: ["CASE WHEN n > 1000 THEN CAST(n AS timestamp) END AS t"]'))
    with pytest.raises(TaskError) as caught:
        run.attempt(run.plan())
    found = run.error_in(caught.value)
    assert isinstance(found, EngineError)
    assert "Unimplemented type for cast" in str(found)


@pytest.fixture
def little_memory(monkeypatch):
    duck.renew()
    monkeypatch.setitem(duck._SETTINGS, "memory_limit", "20MB")
    yield
    duck.renew()


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("whole", [True, False])
def test_a_row_that_needs_too_much_memory_fails_its_own_root(windows, tmp_path, whole):
    """As in a function of the user's; rows that need too much together do not fail."""
    huge = {9: 30_000_000, 77: 40_000_000}
    rows = [{"k": "k", "n": huge.get(n, 300_000), "s": "x"} for n in range(100)]
    feed(tmp_path, rows)
    run = windows(spec('select: ["n", "repeat(s, n) AS r"]'), whole)
    outcome = run.attempt(run.plan())
    failed = failures(outcome)
    assert failed.keys() == set(huge)
    for failure in failed.values():
        assert "MemoryError: failed to allocate" in failure.error
        assert "temp" not in failure.error
        assert not failure.unreadable
        assert not failure.lasting
    assert [row["n"] for row in outcome.rows["out"]] == [300_000] * 98


@pytest.mark.parametrize(
    "damage",
    [
        lambda found: found.slice(1),
        lambda found: pa.concat_tables([found, found.slice(0, 1)]),
        lambda found: found.take(list(range(found.num_rows))[::-1]),
    ],
    ids=["drop", "double", "order"],
)
def test_rows_that_are_not_those_that_went_in_are_refused(windows, tmp_path, monkeypatch, damage):
    feed(tmp_path, ROWS)
    run = windows(spec('select: ["n + 1 AS n"]'))
    real = duck.evaluate
    monkeypatch.setattr(duck, "evaluate", lambda query, data: damage(real(query, data)))
    with pytest.raises(TaskError) as caught:
        run.attempt(run.plan())
    assert "are not those that it was given" in str(run.error_in(caught.value))


INCOMING = pa.schema(
    [
        ("a", pa.int64()),
        ("s", pa.string()),
        ("when", pa.timestamp("us", "UTC")),
        ("l", pa.list_(pa.string())),
        ("at", pa.int64()),
    ]
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("sum(a)", "more than one row at a time (sum)"),
        ("count(*)", "more than one row at a time (count)"),
        ("a - avg(a)", "more than one row at a time (avg)"),
        ("row_number() OVER ()", "more than one row at a time (window)"),
        ("(SELECT 1)", "more than one row at a time (subquery); use a function"),
        ("EXISTS (FROM read_text('/etc/passwd'))", "more than one row at a time (subquery)"),
        ("unnest([1, 2])", "makes several rows of one (unnest); use a function"),
        ("weighted_avg(a, a)", "none of the functions of a step (weighted_avg)"),
        ("random()", "another value each time it is asked (random)"),
        ("now()", "(now)"),
        ("CURRENT_TIMESTAMP", "(current_timestamp)"),
        ("current_date", "(current_date)"),
        ("ago(INTERVAL 1 DAY)", "(ago)"),
        ('age("when")', "(age)"),
        ("uuid()", "(uuid)"),
        ("nextval('x')", "(nextval)"),
        ("current_setting('threads')", "(current_setting)"),
        ("pg_sleep(1)", "(pg_sleep)"),
        ("list_transform([a], lambda x: x + random())", "(random)"),
        ("get_block_size('memory')", "(get_block_size)"),
        ("COLUMNS('a')", 'write "*" as an element of its own'),
        ("* EXCLUDE (a)", 'write "*" as an element of its own'),
        ("__mr_row", "reserved"),
        ("__mr_input.a", "reserved"),
        ("$1", "has a parameter"),
        ("nothing", "names 'nothing', which is no column of its input"),
        ("read_text('/etc/passwd')", "none of the functions of a step (read_text)"),
        ("a FROM s", "is more than expressions"),
        ("a; DROP TABLE x", "DuckDB refuses it"),
        ("1; SELECT 2", "is more than expressions"),
        ("a ORDER BY a", "is more than expressions"),
        ("a WHERE a > 1", "is more than expressions"),
        ("a) AS b, (a", "syntax error"),
        ("a +", "syntax error"),
        ("a /* open", "DuckDB refuses it"),
        ("a + when", "when is a word of SQL: in double quotes it names the column"),
        ("a + at", "at is a word of SQL: in double quotes it names the column"),
        ("rowid", "the place of a row (rowid), which is not kept; use a function"),
        ("#1", "names a column by its place"),
        ("current_localtimestamp()", "another value each time it is asked"),
        ("system.main.current_localtime()", "another value each time it is asked"),
        ("current_date -> 'x'", "another value each time it is asked"),
        ("list_transform(l, lambda version: version())", "session or its settings (version)"),
        ("CURRENT_USER", "session or its settings (current_user), which are not reachable here"),
        ("getenv('HOME')", "none of the functions of a step (getenv)"),
        ("list_aggr(l, 'reservoir_quantile', 0.5)", "does not say in letters what it computes"),
        ("list_aggr(l, 'reservoir' || '_quantile', 0.5)", "does not say in letters"),
        ("list_aggr(l, s)", "does not say in letters"),
        ("a + 'x' + l", "DuckDB refuses it"),
        ("a::timestamp", "Unimplemented type for cast (BIGINT -> TIMESTAMP)"),
        ("CAST(a AS date)", "Unimplemented type for cast (BIGINT -> DATE)"),
        ("format('{:d}', s)", "fails on every row: Invalid Input Error: Invalid type specifier"),
        ("printf('%d', s)", "fails on every row"),
        ("CAST('abc' AS int)", "fails on every row: Conversion Error: Could not convert string"),
        ("'today or so'::timestamp", "fails on every row"),
        ("map([1, 1], [2, 3])", "fails on every row: Invalid Input Error: Map keys must be unique"),
        ("a // 0", "fails on every row"),
        ("date_trunc('fortnight', \"when\")", "fails on every row"),
        ("a::ubigint", "UBIGINT; CAST it AS VARCHAR or AS DECIMAL(20, 0)"),
        ("[a::ubigint]", "has the type UBIGINT[], and no column holds every UBIGINT"),
        ("{'p': a::ubigint}", "holds every UBIGINT"),
        ("map([a::ubigint], [1])", "holds every UBIGINT"),
        ("a::hugeint", "HUGEINT; CAST it AS VARCHAR or AS DECIMAL(38, 0)"),
        ("a::uhugeint", "UHUGEINT; CAST it AS VARCHAR or AS DECIMAL(38, 0)"),
    ],
)
def test_what_no_step_may_evaluate_is_refused_with_its_reason(text, told):
    (fault,) = DuckAnalyser().faults(SqlExpressions(("s", text)), INCOMING)
    assert (fault.field, fault.text) == ("select[1]", text)
    assert told in fault.message
    assert "__mr_row" not in fault.message.replace(text, "")


def test_functions_that_a_step_may_call_are_listed_and_consistent():
    """Of all that DuckDB has; a release that has others makes this fail, and somebody look."""
    every = duck.functions()
    there = {name for name, _, _, _ in every}
    listed = duckfunctions.FUNCTIONS | duckfunctions.OPERATORS
    assert listed <= there
    assert duck.allowed() == listed
    assert len(listed) == 483
    kinds: dict[str, set[tuple[str, str]]] = {}
    for name, kind, stability, _ in every:
        kinds.setdefault(name, set()).add((kind, stability))
    # A macro has none of its own; what DuckDB calls volatile in "error" is that it raises.
    told = {("scalar", "CONSISTENT"), ("macro", "")}
    odd = {name: kinds[name] - told for name in listed if kinds[name] - told}
    tables = {name: {("table", "")} for name in ("generate_series", "range", "repeat")}
    assert odd == {"error": {("scalar", "VOLATILE")}, **tables}


def test_macros_that_a_step_may_call_are_made_of_what_it_may_call():
    duck_ = duck.connection()
    macros = [(n, text) for n, kind, _, text in duck.functions() if kind == "macro"]
    looked_at = [(name, text) for name, text in macros if name in duck.allowed()]
    assert len(looked_at) > 40
    for name, text in looked_at:
        (answer,) = duck_.execute("SELECT json_serialize_sql(?)", [f"SELECT {text}"]).fetchall()
        called = set(re.findall(r'"function_name":"([^"]*)"', answer[0]))
        assert called <= duck.allowed(), name


def test_every_other_function_is_refused_with_and_without_brackets():
    """By its name alone, before DuckDB looks at the arguments."""
    names = {name for name, _, _, _ in duck.functions()}
    words = {name for name in names if name.isidentifier()}
    refused = words - duck.allowed() - {"count_star"}  # which is count
    assert {"random", "now", "today", "version", "current_localtimestamp", "getvariable"} < refused
    assert {"txid_current", "setseed", "nextval", "get_current_time", "uuidv7", "sum"} < refused
    for name in sorted(refused):
        for text in (f'"{name}"(a)', f'"{name}"()'):
            (fault,) = DuckAnalyser().faults(SqlExpressions((text,)), INCOMING)
            assert f"({name})" in fault.message
    for name in sorted(words - set(INCOMING.names)):
        (fault,) = DuckAnalyser().faults(SqlExpressions((f'"{name}"',)), INCOMING)
        assert f"({name})" in fault.message or "which is no column" in fault.message


@pytest.mark.parametrize(
    "text",
    [
        "[x || 'a' for x in l if x > 'b']",
        "list_aggr(l, 'max')",
        'age("when", "when")',
        "l[1]",
        'a::varchar || "at"',
        'TRY(a // "at")',
        'extract(year FROM "when")',
        "s SIMILAR TO 'x' AND s LIKE 'y' AND s IN ('x', s) AND a BETWEEN 1 AND 2",
        "{'a': a, 'b': [a]}",
        "to_json(s) ->> '$.a'",
        "s -> 'a'",
        '"when" + INTERVAL 1 DAY',
        "CASE WHEN a IS NULL THEN error('none') ELSE s END COLLATE de",
        "split_part(s, 'a', 1)",
        "a AS b, b + 1 AS c",
    ],
)
def test_what_a_row_gives_by_itself_is_taken(text):
    assert DuckAnalyser().faults(SqlExpressions((text,)), INCOMING) == []


@pytest.mark.parametrize(
    "text",
    [
        "CAST(s AS int)",
        "CAST(s AS date)",
        "CAST(s AS timestamp)",
        "CAST(s AS uuid)",
        "CAST(coalesce(s, '') AS int)",
        "CAST(a AS tinyint)",
        "CAST(a AS uinteger)",
        "CAST(CAST(a AS ubigint) AS decimal(20, 0))",
        "{'hugeint': a}",
        "CAST(l AS varchar[3])",
        "100 // a",
        "ln(a)",
        "ln(-a)",
        "strptime(s, '%Y-%m')",
        'date_trunc(s, "when")',
        "make_date(a, a, a)",
        "json_extract(s, '$.a')",
        "error('never')",
        "CASE WHEN s IS NULL THEN error('no s') ELSE s END",
        "CASE WHEN s IN ('x', 'y') THEN 1 ELSE CAST('another kind' AS int) END",
    ],
)
def test_what_fails_for_some_values_is_not_refused(text):
    assert DuckAnalyser().faults(SqlExpressions((text,)), INCOMING) == []


def test_plain_rows_have_values_of_every_type():
    kinds = [
        *(pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string()),
        *(pa.binary(), pa.timestamp("us", "UTC"), pa.date32(), pa.time64("us")),
        *(pa.decimal128(10, 2), pa.list_(pa.list_(pa.int64())), pa.map_(pa.string(), pa.int64())),
        pa.struct([("p", pa.int64())]),
    ]
    rows = plain_rows(pa.schema([(f"c{n}", kind) for n, kind in enumerate(kinds)]))
    assert len(rows) > 3
    for column in pa.Table.from_batches(rows).columns:
        assert column.null_count == 0
        different = 2 if column.type == pa.bool_() else len(rows)
        assert len({repr(value) for value in column.to_pylist()}) == different
    (nothing, *_) = plain_rows(pa.schema([("x", pa.decimal128(2, 2)), ("y", pa.null())]))
    assert nothing.to_pylist() == [{"x": None, "y": None}]


@pytest.mark.parametrize("text", ["a", "a + 1", "'x'", "1, 2", "a > 1) OR (sum(a) > 1"])
def test_a_condition_is_true_or_false(text):
    (fault,) = DuckAnalyser().faults(SqlExpressions(("s",), text), INCOMING)
    assert fault.field == "where"
    assert "is no condition" in fault.message or "more than one row" in fault.message


def test_comments_brackets_and_names_stay_where_they_are():
    step = SqlExpressions(
        ("a -- , s", 's AS "a b""c" /* d */', "*", "list_transform(l, lambda x: upper(x)) AS u"),
        "a > 1 -- OR true",
    )
    found = DuckAnalyser()("x", SqlExpressions(step.select[1:], step.where), INCOMING)
    assert found.names == ['a b"c', "a", "s", "when", "l", "at", "u"]
    with pytest.raises(TopologyError, match="selects a column twice"):
        DuckAnalyser()("x", step, INCOMING)


def test_columns_that_differ_in_case_alone_are_refused():
    incoming = pa.schema([("a", pa.int64()), ("A", pa.int64())])
    with pytest.raises(TopologyError, match="a, A, which DuckDB cannot tell apart"):
        DuckAnalyser()("x", SqlExpressions(("a",)), incoming)


@pytest.mark.parametrize(
    "statement",
    [
        "SET threads = 4",
        "SET enable_external_access = true",
        "ATTACH '/tmp/millrace-none.db'",
        "COPY (SELECT 1) TO '/tmp/millrace-none.csv'",
        "FROM '/etc/passwd'",
        "FROM read_text('/etc/passwd')",
        "INSTALL httpfs",
        "LOAD httpfs",
    ],
)
def test_the_connection_reaches_nothing_outside_itself(statement):
    with pytest.raises(duckdb.Error):
        duck.connection().execute(statement).fetchall()
    assert duck.connection().execute("SELECT current_setting('TimeZone')").fetchall() == [("UTC",)]


def test_the_connection_has_what_the_page_says():
    """One thread, its own bound of memory, and nothing outside, whatever the machine has."""
    rows = duck.connection().execute("SELECT name, value FROM duckdb_settings()").fetchall()
    assert {name: value for name, value in rows if name in SETTINGS} == SETTINGS
    assert duck.MEMORY == "256MiB"
    told = " ".join(PAGE.split())
    assert "one thread and 256 MiB of its own" in told


SETTINGS = {
    "threads": "1",
    "memory_limit": "256.0 MiB",
    "temp_directory": "",
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "lock_configuration": "true",
    "TimeZone": "UTC",
}


def test_rows_that_need_more_memory_together_are_evaluated_in_halves(windows, tmp_path):
    """A row that does not fit by itself fails its own root."""
    feed(tmp_path, [{"k": "k", "n": n, "s": "x" * 20} for n in range(8)])
    select = "length(to_json(repeat(s, %s))) AS size"
    rows = pa.record_batch({"s": ["x" * 20] * 8})
    query = duck.query_of(SqlExpressions((select % "1_000_000",)), ["s"])
    with pytest.raises(duckdb.OutOfMemoryException):
        duck.evaluate(query, duck.numbered(rows))
    duck.renew()
    outcome = windows(spec(f'select: ["{select % "1_000_000"}"]')).go()
    assert outcome.rows["out"] == [{"size": 20_000_002}] * 8
    assert failures(outcome) == {}
    feed(tmp_path, [{"k": "k", "n": n, "s": "x" * (20 if n == 3 else 1)} for n in range(8)])
    outcome = windows(spec(f'select: ["{select % "4_000_000"}"]')).go()
    assert len(outcome.rows["out"]) == 7
    ((_, failed),) = failures(outcome).items()
    assert "MemoryError: failed to allocate" in failed.error
    assert not failed.lasting


PAGE = (Path(__file__).parents[3] / "docs" / "native.md").read_text()
SQL_PAGE = PAGE[PAGE.index("## SQL in the worker") :]


def test_the_pages_topology_makes_what_the_page_says(windows, tmp_path):
    whole = yaml.safe_load(re.findall(r"```yaml\n(apiV.*?)```", SQL_PAGE, re.S)[0])
    lines = re.findall(r"```json\n(.*?)```", SQL_PAGE, re.S)[0]
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "a.txt").write_text(lines)
    outcome = windows(yaml.safe_dump(whole["spec"])).go()
    (row,) = outcome.rows["out"]
    assert f"makes `{json.dumps(row)}`" in PAGE
    (failed,) = failures(outcome).values()
    assert (failed.sequence, failed.processor) == (2, "large")


def shown(cells: list[str]) -> list[str]:
    return [cell.strip().strip("`").replace("\\|", "|") for cell in cells]


def rows_of_page(heading: str) -> list[list[str]]:
    """The cells of the rows of the table with this heading."""
    table = PAGE.partition(f"{heading} |\n")[2].partition("\n\n")[0].splitlines()[1:]
    return [shown(re.split(r"(?<!\\)\|", row)[1:-1]) for row in table]


DIFFERENT = rows_of_page("| `engine: spark` | `engine: duckdb`")
ALIKE = [[e, both, both] for e, both in rows_of_page("| expression | both")]


@pytest.mark.parametrize(("expression", "spark", "here"), DIFFERENT + ALIKE)
def test_duckdb_answers_as_the_page_says(expression, spark, here):
    """What a step gives for one row, or an error of that row."""
    incoming = pa.schema([("d", pa.float64()), ("z", pa.float64())])
    step = SqlExpressions((f"{expression} AS y",))
    query = duck.query_of(step, incoming.names)
    row = pa.record_batch([[2.5], [0.0]], schema=incoming)
    try:
        found = repr(duck.evaluate(query, duck.numbered(row)).column(0).to_pylist()[0])
    except duckdb.Error:
        found = "error"
    assert found == here


def test_numbers_become_whole_as_the_page_says():
    """Of columns: a double by its nearest, halves to even; a decimal with halves away from zero."""
    values = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 2.4999, 2.5001]
    exact = pa.array([Decimal(str(v)) for v in values], pa.decimal128(9, 4))
    columns = [pa.array(values), exact]
    schema = pa.schema([("d", columns[0].type), ("m", columns[1].type)])
    data = duck.numbered(pa.record_batch(columns, schema=schema))
    step = SqlExpressions(("CAST(d AS int) AS d", "CAST(m AS int) AS m"))
    found = duck.evaluate(duck.query_of(step, schema.names), data)
    assert found["d"].to_pylist() == [0, 2, 2, 0, -2, -2, 2, 3]
    assert found["m"].to_pylist() == [1, 2, 3, -1, -2, -3, 2, 3]


def test_a_literal_makes_of_a_whole_number_what_sum_does_not_take():
    incoming = pa.schema([("n", pa.int64()), ("d", pa.float64())])
    texts = ("n * 1.2 AS a", "CAST(n * 1.2 AS double) AS b", "d * 1.2 AS c")
    kinds = DuckAnalyser()("x", SqlExpressions(texts), incoming).types
    assert pa.types.is_decimal(kinds[0])
    assert kinds[1:] == [pa.float64(), pa.float64()]


def test_the_page_counts_the_functions_that_may_be_called():
    assert f"{len(duck.allowed())} of DuckDB's [functions](" in " ".join(PAGE.split())


def test_spark_answers_as_the_page_says(spark):
    assert len(DIFFERENT) > 10
    assert len(ALIKE) > 10
    row = spark.range(1).selectExpr("2.5D AS d", "0D AS z")
    found = {}
    for expression, _, _ in DIFFERENT + ALIKE:
        try:
            answer = row.selectExpr(f"{expression} AS y").toArrow()
            found[expression] = repr(answer.column(0).to_pylist()[0])
        except PySparkException:
            found[expression] = "error"
    assert found == {expression: there for expression, there, _ in DIFFERENT + ALIKE}
    assert all(there != here for _, there, here in DIFFERENT)


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    session = build_session(SessionSettings("answers", tmp_path_factory.mktemp("spark"), threads=1))
    yield session
    session.stop()


TYPES = """
sources: [{name: rows, files: {path: in, format: parquet}}]
processors:
  - {name: same, inputs: [{from: rows}], sql: {engine: duckdb, select: ["*"], where: "id >= 0"}}
sinks: [{name: out, inputs: [{from: same}], files: {path: out, format: jsonLines}}]
"""


def test_values_of_every_type_come_out_as_they_went_in(windows, tmp_path):
    columns = {
        "id": pa.array([0, 1, 2], pa.int64()),
        "t": pa.array([0, -1, None], pa.timestamp("us", "UTC")),
        "y": pa.array([0, 19_000, None], pa.date32()),
        "b": pa.array([True, False, None]),
        "f": pa.array([0.1, float("inf"), None], pa.float32()),
        "d": pa.array([0.1, float("nan"), None], pa.float64()),
        "i": pa.array([-(2**31), 2**31 - 1, None], pa.int32()),
        "s": pa.array(["\u00e9\x00", "", None]),
        "x": pa.array([b"\xff\x00", b"", None], pa.binary()),
        "l": pa.array([["a", None], [], None], pa.list_(pa.string())),
        "n": pa.array([[[1], None], [], None], pa.list_(pa.list_(pa.int64()))),
        "m": pa.array([Decimal("1.50"), Decimal("-9.99"), None], pa.decimal128(10, 2)),
        "o": pa.array([{"p": 1}, {"p": None}, None], pa.struct([("p", pa.int64())])),
    }
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "in" / "a.parquet")
    run = windows(TYPES)
    source, step = (run.program.components[name] for name in ("rows", "same"))
    assert step.output.equals(source.output)
    outcome = run.go()
    assert len(outcome.rows["out"]) == 3
    data = pa.record_batch(list(columns.values()), schema=source.output)
    query = duck.query_of(SqlExpressions(("*",), "id >= 0"), data.schema.names)
    found = duck.evaluate(query, duck.numbered(data))
    back = conform(dict(zip(data.schema.names, found.columns[:-1], strict=True)), step.output, "x")
    assert repr(back.to_pylist()) == repr(data.to_pylist())
