from __future__ import annotations

from typing import Any

import pytest
from topology_texts import WORDCOUNT, WORDS_MODULE, at, changed, problems_in

LINES = {"name": "lines", "files": {"path": "texts", "watch": False}}
EVENTS = {
    "name": "events",
    "files": {"path": "e", "format": "jsonLines", "schema": "user string, n long, tags array<int>"},
}
GENERATED = {"name": "made", "generator": {}}


@pytest.fixture
def code(tmp_path):
    (tmp_path / "words.py").write_text(WORDS_MODULE)
    return tmp_path


def step(name: str, source: Any, **what: Any) -> dict[str, Any]:
    """A processor; ``source`` is the name of a producer, an input or a list of inputs."""
    inputs = source if isinstance(source, list) else [source]
    return {
        "name": name,
        "inputs": [{"from": i} if isinstance(i, str) else i for i in inputs],
        **(what or {"function": "words:split"}),
    }


def out(*producers: Any, name: str = "out", **what: Any) -> dict[str, Any]:
    return step(name, list(producers), **(what or {"files": {"path": name}}))


def keyed(producer: str, *columns: str) -> dict[str, Any]:
    return {"from": producer, "key": list(columns)}


def total(function: str = "count", of: str | None = None, name: str = "n") -> dict[str, Any]:
    column = {"name": name, "function": function}
    return {"aggregate": {"columns": [column if of is None else {**column, "of": of}]}}


def found(processors=(), sources=(LINES,), sinks=None, folder=None, **spec: Any):
    last = processors[-1]["name"] if processors else sources[0]["name"]
    sinks = [out(last)] if sinks is None else sinks
    data = changed(sources=list(sources), processors=list(processors), sinks=sinks, **spec)
    return problems_in(data, folder=folder)


# The graph


def test_a_source_may_lead_straight_into_a_sink():
    assert found() == []


def test_an_unknown_producer_is_one_problem_with_a_guess():
    problems = found([step("split", "lins")])
    assert len(problems) == 1
    problem = at(problems, "spec.processors[0].inputs[0].from")
    assert problem.value == "lins"
    assert problem.remedy == "did you mean 'lines'?"


def test_without_a_close_name_all_are_offered():
    problem = at(
        found([step("split", "xyz")], sinks=[out("lines", "split")]),
        "spec.processors[0].inputs[0].from",
    )
    assert problem.remedy == "use one of lines"


def test_an_edge_out_of_a_sink_is_refused():
    problems = found([step("split", "lines")], sinks=[out("split"), out("out", name="more")])
    assert "no edge leads out of a sink" in at(problems, "spec.sinks[1].inputs[0].from").message
    assert len(problems) == 1


def test_names_are_unique_across_roles():
    problems = found([step("lines", "lines")], sinks=[out("lines")])
    assert "already names spec.sources[0]" in at(problems, "spec.processors[0].name").message


def test_two_inputs_from_one_producer_are_refused():
    problems = found([step("split", ["lines", "lines"])])
    assert (
        "is an input of this component already"
        in at(problems, "spec.processors[0].inputs[1].from").message
    )


def test_a_cycle_is_named():
    problems = found([step("a", ["lines", "b"]), step("b", "a")])
    assert "a → b → a" in at(problems, "spec.processors[0].inputs[1].from").message


def test_what_reaches_no_sink_is_refused():
    problems = found([step("split", "lines"), step("idle", "lines")], sinks=[out("split")])
    assert "reaches no sink" in at(problems, "spec.processors[1]").message
    problems = found([step("split", "lines")], sources=[LINES, GENERATED])
    assert at(problems, "spec.sources[1]").value == "made"


def test_what_no_source_reaches_is_refused():
    problems = found(
        [step("split", "lines"), step("a", "b"), step("b", "a")],
        sinks=[out("split"), out("b", name="more")],
    )
    unreached = {p.path for p in problems if "reached from no source" in p.message}
    assert unreached == {"spec.processors[1]", "spec.processors[2]", "spec.sinks[1]"}


# Parts and settings


def test_each_part_declares_exactly_one_kind():
    problems = found(
        [
            {"name": "a", "inputs": [{"from": "lines"}]},
            step("b", "a", function="words:split", sql={"select": ["1 AS one"]}),
        ],
        sources=[{**LINES, "generator": {}}],
        sinks=[{"name": "out", "inputs": [{"from": "b"}]}],
    )
    assert at(problems, "spec.sources[0]").message == "declares files and generator"
    assert at(problems, "spec.processors[0]").message == "declares no kind"
    assert at(problems, "spec.processors[1]").message == "declares function and sql"
    assert at(problems, "spec.sinks[0]").remedy == (
        "give it exactly one of files, redis, console, custom"
    )


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"format": "csv"}, "is missing"),
        ({"format": "jsonLines", "schema": "a strng"}, "type 'strng' is not known"),
        ({"format": "csv", "schema": "a string, a long"}, "twice"),
        ({"format": "text", "schema": "a string"}, "does not apply"),
        ({"format": "parquet", "schema": "a string"}, "does not apply"),
    ],
)
def test_the_schema_of_files_fits_the_format(files, message):
    problems = found(sources=[{"name": "lines", "files": {"path": "x", **files}}])
    assert message in at(problems, "spec.sources[0].files.schema").message


def test_a_format_that_is_not_known_says_nothing_of_the_schema():
    files = {"path": "x", "format": "json", "schema": "a string"}
    problems = found(sources=[{"name": "lines", "files": files}])
    assert [problem.path for problem in problems] == ["spec.sources[0].files.format"]


def test_a_schema_that_cannot_be_read_is_shown_once():
    files = {"path": "x", "format": "csv", "schema": "id long user string"}
    problem = at(found(sources=[{"name": "lines", "files": files}]), "spec.sources[0].files.schema")
    assert problem.message == "is no schema: column 'id': type 'long user string' is not known"


@pytest.mark.parametrize(
    ("redis", "field", "message"),
    [
        ({"url": "localhost:6379", "key": "{word}"}, "url", "no Redis address"),
        ({"url": "redis://h"}, "key", "is missing in mode hash"),
        ({"url": "redis://h", "key": "all"}, "key", "same for all rows"),
        ({"url": "redis://h", "key": "w:{wort}"}, "key", "no column of 'counts'"),
        ({"url": "redis://h", "mode": "stream"}, "stream", "is missing in mode stream"),
        (
            {"url": "redis://h", "mode": "stream", "stream": "s", "key": "{word}"},
            "key",
            "not apply",
        ),
        ({"url": "redis://h", "key": "w:{word}", "stream": "s"}, "stream", "does not apply"),
    ],
)
def test_a_redis_sink_fits_its_mode(redis, field, message):
    processors = WORDCOUNT["spec"]["processors"]
    problems = found(processors, sinks=[out("counts", redis=redis)])
    assert message in at(problems, f"spec.sinks[0].redis.{field}").message


def test_a_complete_redis_sink_is_valid():
    processors = WORDCOUNT["spec"]["processors"]
    for redis in ({"key": "w:{word}"}, {"mode": "stream", "stream": "words"}):
        assert found(processors, sinks=[out("counts", redis={"url": "redis://h", **redis})]) == []


def test_a_console_cannot_give_exactly_once():
    problem = at(found(sinks=[out("lines", console={})]), "spec.sinks[0].console")
    assert "AtLeastOnce" in problem.remedy
    assert found(sinks=[out("lines", console={})], guarantee="AtLeastOnce") == []


def test_folders_are_not_shared():
    problems = found(
        sinks=[
            out("lines", files={"path": "./texts"}),
            out("lines", name="b", files={"path": "o"}),
            out("lines", name="c", files={"path": "o/"}),
        ]
    )
    assert "source 'lines' reads" in at(problems, "spec.sinks[0].files.path").message
    assert "sink 'b' too" in at(problems, "spec.sinks[2].files.path").message


def test_tracking_needs_an_acker():
    assert at(found(ackers={"replicas": 0}), "spec.ackers.replicas")
    assert found(ackers={"replicas": 0}, tracking="Off") == []
    assert found(ackers={"replicas": 0}, guarantee="AtMostOnce") == []


def test_the_least_and_the_most_ackers_come_together_and_in_order():
    assert found(ackers={"min": 2, "max": 2}) == []
    assert "says nothing without max" in at(found(ackers={"min": 2}), "spec.ackers.min").message
    assert "without min" in at(found(ackers={"max": 2}), "spec.ackers.max").message
    assert "(2)" in at(found(ackers={"min": 3, "max": 2}), "spec.ackers.min").message


def test_executors_begin_between_the_least_and_the_most():
    def asked(**executors):
        return found(spark={"executors": executors})

    path = "spec.spark.executors"
    assert asked(instances=2, min=1, max=2) == []
    assert "says nothing without max" in at(asked(instances=2, min=2), f"{path}.min").message
    assert "without min" in at(asked(instances=2, max=2), f"{path}.max").message
    for instances in (0, 1, 5):
        wrong = at(asked(instances=instances, min=2, max=4), f"{path}.instances")
        assert "is not from spec.spark.executors.min (2)" in wrong.message
    assert asked(instances=3, min=4, max=2), "no number lies between them"


def test_copies_need_servers():
    problems = found(stateServers={"replicas": 2, "copies": 3})
    assert at(problems, "spec.stateServers.copies").value == 3
    problems = found(stateServers={"replicas": 2, "url": "host:1"})
    assert at(problems, "spec.stateServers.url")
    assert at(problems, "spec.stateServers.replicas")


def test_a_limit_of_memory_is_for_servers_that_millrace_starts():
    assert found(stateServers={"memory": "8m"}) == []
    path = "spec.stateServers.memory"
    assert "too little" in at(found(stateServers={"memory": "7m"}), path).message
    own = found(stateServers={"memory": "64m", "url": "redis://h:1"})
    assert "a server of your own" in at(own, path).message


def test_a_password_by_reference_is_for_a_server_of_ones_own_and_stands_in_one_place():
    ref = {"secretRef": {"name": "cache", "key": "password"}}
    assert found(stateServers={"url": "rediss://user@h:1", "password": ref}) == []
    path = "spec.stateServers.password"
    assert "Millrace starts" in at(found(stateServers={"password": ref}), path).message
    twice = found(stateServers={"url": "redis://:sesame@h:1", "password": ref})
    problem = at(twice, "spec.stateServers.url")
    assert "beside the one that is declared apart" in problem.message
    assert "sesame" not in str(problem)


def test_two_secrets_of_one_variable_are_told_apart_for_the_state_server_too():
    ref = {"secretRef": {"name": "cache", "key": "pass.word"}}
    other = {"secretRef": {"name": "cache", "key": "pass-word"}}
    store = {"url": "redis://h:1", "mode": "stream", "stream": "s", "password": other}
    sinks = [out("lines", redis=store)]
    problems = found(sinks=sinks, stateServers={"url": "redis://h:1", "password": ref})
    path = "spec.sinks[0].redis.password"
    assert "MILLRACE_SECRET_CACHE__PASS_WORD" in at(problems, path).message


def test_only_what_keeps_state_has_a_ttl(code):
    counts = step("counts", [keyed("lines", "value")], ttl="1h", **total())
    own = step("own", [keyed("lines", "value")], function="words:count", ttl="1h")
    assert found([counts]) == found([own], folder=code) == []
    plain = step("plain", "lines", function="words:split", ttl="1h")
    assert "keeps no state" in at(found([plain], folder=code), "spec.processors[0].ttl").message
    sql = step("sql", "lines", sql={"select": ["value"]}, ttl="1h")
    assert "keeps no state" in at(found([sql]), "spec.processors[0].ttl").message
    # Without the code nobody knows.
    assert found([plain]) == []


def test_code_has_one_place():
    assert at(found(code={"path": ".", "image": "x"}), "spec.code").message == (
        "declares path and image"
    )


def test_pull_secrets_are_those_of_an_image():
    path = "spec.code.imagePullSecrets"
    code = {"image": "mills:1", "imagePullSecrets": ["registry", "more.secrets"]}
    assert found(code=code) == []
    for other in ({}, {"path": "."}, {"configMap": "words"}):
        problem = at(found(code={**other, "imagePullSecrets": []}), path)
        assert problem.message == "says nothing without an image to pull"
    twice = {**code, "imagePullSecrets": ["a", "b", "a"]}
    assert at(found(code=twice), f"{path}[2]").message == "stands there twice"


@pytest.mark.parametrize("source", [GENERATED, {"name": "made", "files": {"path": "x"}}])
def test_final_totals_need_sources_with_an_end(source):
    final = {"aggregate": {**total()["aggregate"], "emit": "final"}}
    problems = found([step("n", keyed("made", "value"), **final)], sources=[source])
    assert "source made has no end" in at(problems, "spec.processors[0].aggregate.emit").message


def test_final_totals_of_bounded_sources_are_valid():
    final = {"aggregate": {**total()["aggregate"], "emit": "final"}}
    bounded = {"name": "made", "generator": {"count": 10}}
    assert found([step("n", keyed("made", "key"), **final)], sources=[bounded]) == []
    # A source that does not lead to the aggregate does not matter.
    assert (
        found(
            [step("n", keyed("made", "key"), **final)],
            sources=[bounded, {"name": "endless", "generator": {}}],
            sinks=[out("n"), out("endless", name="more")],
        )
        == []
    )


# Keys and columns


def test_an_aggregate_needs_a_key():
    problem = at(found([step("n", "lines", **total())]), "spec.processors[0].inputs[0].key")
    assert problem.remedy.endswith("e.g. key: [value]")


def test_a_stateful_function_needs_a_key(code):
    split = step("split", "lines")
    problems = found([split, step("n", "split", function="words:count")], folder=code)
    assert "keeps state" in at(problems, "spec.processors[1].inputs[0].key").message
    good = step("n", keyed("split", "word"), function="words:count")
    assert found([split, good], folder=code) == []


def test_broadcast_excludes_keys_state_and_sinks():
    both = {"from": "lines", "key": ["value"], "broadcast": True}
    assert (
        "or to one"
        in at(found([step("split", both)]), "spec.processors[0].inputs[0].broadcast").message
    )
    spread = {"from": "lines", "broadcast": True}
    assert (
        "an aggregate"
        in at(
            found([step("n", spread, **total())]), "spec.processors[0].inputs[0].broadcast"
        ).message
    )
    assert (
        "each partition"
        in at(found(sinks=[out(spread)]), "spec.sinks[0].inputs[0].broadcast").message
    )
    assert found([step("split", spread)]) == []


@pytest.mark.parametrize(
    ("source", "column", "remedy"),
    [
        (LINES, "vale", "did you mean 'value'?"),
        (GENERATED, "name", "use one of id, key, value"),
        (EVENTS, "usr", "did you mean 'user'?"),
        (EVENTS, "tags", "simple type"),
    ],
)
def test_key_columns_exist_where_columns_are_known(source, column, remedy):
    processors = [step("n", keyed(source["name"], column), **total())]
    problem = at(found(processors, sources=[source]), "spec.processors[0].inputs[0].key[0]")
    assert remedy in problem.remedy


def test_key_columns_are_checked_behind_functions(code):
    bad = [step("split", "lines"), step("n", keyed("split", "wort"), **total())]
    assert at(found(bad, folder=code), "spec.processors[1].inputs[0].key[0]").value == "wort"
    # Without the code nothing is known about its columns.
    assert found(bad) == []


def test_a_filter_passes_columns_on(code):
    steps = [
        step("long", "lines", function="words:long_only"),
        step("n", keyed("long", "word"), **total()),
    ]
    assert (
        "no column of 'long'"
        in at(found(steps, folder=code), "spec.processors[1].inputs[0].key[0]").message
    )


@pytest.mark.parametrize(
    ("select", "known"),
    [
        (["upper(value) AS word"], True),
        (["*", "length(value) AS `word`"], True),
        (["value as word"], True),
        (["upper(value)"], True),  # a name that only Spark knows: nothing is refused
        (["value"], False),
        (["*"], False),
    ],
)
def test_columns_of_sql_are_known_by_name(select, known):
    steps = [
        step("sql", "lines", sql={"select": select}),
        step("n", keyed("sql", "word"), **total()),
    ]
    assert (found(steps) == []) is known


def test_a_key_names_a_column_once():
    problems = found([step("n", keyed("lines", "value", "value"), **total())])
    assert "stands twice" in at(problems, "spec.processors[0].inputs[0].key").message


def test_merged_inputs_of_an_aggregate_have_one_key():
    steps = [step("n", [keyed("lines", "value"), keyed("made", "key")], **total())]
    problems = found(steps, sources=[LINES, GENERATED])
    assert "differs from the key" in at(problems, "spec.processors[0].inputs[1].key").message


def test_merged_inputs_have_equal_columns():
    problems = found([step("split", ["lines", "made"])], sources=[LINES, GENERATED])
    problem = at(problems, "spec.processors[0].inputs[1].from")
    assert "id long, key string, value double" in problem.message
    same = {"name": "more", "files": {"path": "more"}}
    assert found([step("split", ["lines", "more"])], sources=[LINES, same]) == []


def test_sql_stands_behind_a_source_or_sql():
    sql = {"sql": {"select": ["upper(value) AS value"]}}
    assert found([step("a", "lines", **sql), step("b", "a", **sql)]) == []
    problems = found([step("split", "lines"), step("a", "split", **sql)])
    assert "directly behind a source" in at(problems, "spec.processors[1].inputs[0].from").message
    problems = found([step("a", keyed("lines", "value"), **sql)])
    assert "before any exchange" in at(problems, "spec.processors[0].inputs[0].key").message
    more = {"name": "more", "files": {"path": "more"}}
    problems = found([step("a", ["lines", "more"], **sql)], sources=[LINES, more])
    assert at(problems, "spec.processors[0].inputs")


def test_sql_in_the_worker_stands_anywhere():
    sql = {"sql": {"engine": "duckdb", "select": ["upper(value) AS value"]}}
    passing = {"sql": {"engine": "duckdb", "where": "w <> ''"}}
    more = {"name": "more", "files": {"path": "more"}}
    steps = [
        step("a", ["lines", "more"], **sql),
        step("split", "a"),
        step("b", {**keyed("split", "w"), "columns": {"w": "word"}}, **passing),
    ]
    assert found(steps, sources=[LINES, more]) == []
    jvm = step("c", "b", sql={"select": ["w"]})
    problem = at(found([*steps, jvm], sources=[LINES, more]), "spec.processors[3].inputs[0].from")
    assert "runs in Python" in problem.message
    assert problem.remedy == "move the SQL step there, or set engine: duckdb"
    assert "another step of Spark's SQL" in problem.message
    problem = at(found([step("a", "lines", sql={"engine": "duckdb"})]), "spec.processors[0].sql")
    assert "neither select nor where" in problem.message
    problems = found([step("a", "lines", sql={"engine": "polars"})])
    assert at(problems, "spec.processors[0].sql.engine").remedy == "use one of spark, duckdb"


@pytest.mark.parametrize(
    ("what", "field", "message"),
    [
        (total("sum"), "of", "is missing"),
        (total("count", "n"), "of", "count counts"),
        (total("avg", "m"), "of", "no column of 'events'"),
        (total("sum", "user", "m"), "of", "sum needs numbers"),
        (total("count", name="user"), "name", "is a column of the output already"),
    ],
)
def test_aggregate_columns_fit(what, field, message):
    problems = found([step("t", keyed("events", "user"), **what)], sources=[EVENTS])
    path = f"spec.processors[0].aggregate.columns[0].{field}"
    assert message in at(problems, path).message


def totals_behind(function, between=(), emit="changes"):
    """Totals of the totals of each user."""
    first = {**total("sum", "n")["aggregate"], "emit": emit}
    steps = [step("first", keyed("events", "user"), aggregate=first)]
    steps += [step(name, steps[-1]["name"], **what) for name, what in between]
    of = None if function == "count" else "n"
    return [*steps, step("all", keyed(steps[-1]["name"], "user"), **total(function, of, "of_all"))]


ROW_WISE = [("where", {"sql": {"engine": "duckdb", "where": "n > 1"}})]


@pytest.mark.parametrize("function", ["count", "sum", "avg"])
@pytest.mark.parametrize("between", [[], ROW_WISE])
def test_totals_that_change_are_not_added_up(function, between):
    steps = totals_behind(function, between)
    path = f"spec.processors[{len(steps) - 1}].aggregate.columns[0].function"
    problem = at(found(steps, sources=[EVENTS]), path)
    assert "'first' in front of it emits changes" in problem.message
    assert problem.remedy == "compute it from what 'first' reads, or let that emit: final"


@pytest.mark.parametrize("function", ["min", "max"])
def test_extremes_of_totals_that_change_are_taken(function):
    assert found(totals_behind(function), sources=[EVENTS]) == []


def test_totals_at_the_end_may_be_added_up():
    events = {**EVENTS, "files": {**EVENTS["files"], "watch": False}}
    assert found(totals_behind("sum", ROW_WISE, "final"), sources=[events]) == []


@pytest.mark.parametrize(
    ("code", "problems"), [("", 0), ("state = 'n long'", 0), ("state = None", 1)]
)
def test_code_with_state_may_take_differences(tmp_path, code, problems):
    lines = [
        "from millrace import Processor",
        "class Differences(Processor):",
        "    output = 'user string, n long'",
        f"    {code or 'pass'}",
        "    def process(self, row, out): pass",
    ]
    (tmp_path / "steps.py").write_text("\n".join(lines))
    between = [("mine", {"function": "steps:Differences"})]
    steps = totals_behind("sum", between)
    if "n long" in code:
        steps[1]["inputs"] = [keyed("first", "user")]
    folder = tmp_path if code else None  # without it nothing is known of the code
    assert len(found(steps, sources=[EVENTS], folder=folder)) == problems


def test_fitting_aggregate_columns_are_valid():
    columns = [{"name": f"{f}_n", "function": f, "of": "n"} for f in ("sum", "min", "max", "avg")]
    steps = [step("t", keyed("events", "user"), aggregate={"columns": columns})]
    assert found(steps, sources=[EVENTS]) == []


@pytest.mark.parametrize(
    ("settings", "field", "message"),
    [
        ({"column": "usr", "into": "w"}, "column", "no column of 'events'"),
        ({"column": "n", "into": "w"}, "column", "only text is cut"),
        ({"column": "user", "into": "w", "keep": ["m"]}, "keep[0]", "no column of 'events'"),
        ({"column": "user", "into": "n", "keep": ["n"]}, "keep[0]", "is a column of the output"),
        ({"column": "user", "into": "w", "keep": ["n", "n"]}, "keep[1]", "is a column of the out"),
        (
            {"column": "user", "into": "w", "delimiter": ",", "pattern": ";"},
            "pattern",
            "does not go with a delimiter",
        ),
        ({"column": "user", "into": "w", "dropEmpty": True}, "dropEmpty", "does not apply"),
    ],
)
def test_what_is_wrong_with_a_split(settings, field, message):
    problems = found([step("w", "events", split=settings)], sources=[EVENTS])
    assert message in at(problems, f"spec.processors[0].split.{field}").message


def split_at(pattern):
    settings = {"column": "user", "into": "w", "pattern": pattern}
    return found([step("w", "events", split=settings)], sources=[EVENTS])


@pytest.mark.parametrize(
    ("pattern", "part", "remedy"),
    [
        ("^", "(^)", r"write \^ for the character, or cut in a function"),
        ("(?m)^,", "(^)", r"write \^"),
        (r"a|(?:b|^\s)", "(^)", r"write \^"),
        (r"\Ax", r"(\A)", "leave it out, or cut in a function"),
        (r"x\b", r"(\b)", "leave it out"),
        (r"\\\Bx", r"(\B)", "leave it out"),
        (r"\Q^\E^", "(^)", r"write \^"),
        ("[]^]^", "(^)", r"write \^"),
        ("[[:^alpha:]]^", "(^)", r"write \^"),
        (r"\p{^Greek}\b", r"(\b)", "leave it out"),
        (r"[\]x]\b", r"(\b)", "leave it out"),
        (r"\C+", r"a byte (\C)", "write . for a character"),
    ],
)
def test_a_split_does_not_ask_what_is_in_front_of_a_match(pattern, part, remedy):
    (problem,) = split_at(pattern)
    assert (problem.path, problem.value) == ("spec.processors[0].split.pattern", pattern)
    assert part in problem.message
    assert problem.remedy.startswith(remedy)


@pytest.mark.parametrize(
    "pattern",
    [
        *("[^a-z]+", r"\^", r"\\b", r"\\A", "[a^]", "[]^]", "[^]^]", r"[\]^]", "[[:^word:]^]"),
        *(r"\Q^\b\E,", r"\Q\\E,", r"\p{^Greek}", r"[\P{^Greek}^]", "x$", r"x\z", "(?m)x$", "b,A,B"),
    ],
)
def test_what_a_split_may_ask_for_is_taken(pattern):
    assert split_at(pattern) == []


A = {"name": "a", "type": "long"}


@pytest.mark.parametrize(
    ("settings", "field", "message"),
    [
        ({"column": "usr"}, "column", "no column of 'events'"),
        ({"column": "n"}, "column", "has the type long, and JSON is read from text"),
        ({"keep": ["m"]}, "keep[0]", "no column of 'events'"),
        ({"keep": ["n", "n"]}, "keep[1]", "is a column of the output"),
        ({"columns": [A, A]}, "columns[1].name", "is a column of the output already"),
        ({"columns": [{**A, "name": "n"}], "keep": ["n"]}, "keep[0]", "is a column of the out"),
        ({"columns": [{**A, "type": "int64"}]}, "columns[0].type", "is not known"),
        ({"columns": [{**A, "name": "__mr_a"}]}, "columns[0].name", "reserved"),
        ({"columns": [{**A, "path": "o..a"}]}, "columns[0].path", "has an empty name in it"),
        ({"columns": [{**A, "path": "$.o.a"}]}, "columns[0].path", "lead from the object itself"),
        ({"columns": [{**A, "path": "$"}]}, "columns[0].path", "lead from the object itself"),
        ({"columns": [{**A, "path": "o[0].a"}]}, "columns[0].path", "an element of an array"),
        ({"columns": [{**A, "path": "o.a[*]"}]}, "columns[0].path", "an element of an array"),
        (
            {"columns": [A, {**A, "name": "b", "path": "a"}]},
            "columns[1].path",
            "is read into the column 'a' already",
        ),
        (
            {"columns": [{**A, "path": "o.a"}, {**A, "name": "o"}]},
            "columns[1].name",
            "and the field of 'a' are one inside the other",
        ),
    ],
)
def test_what_is_wrong_with_a_json(settings, field, message):
    settings = {"column": "user", "columns": [A], **settings}
    problems = found([step("w", "events", json=settings)], sources=[EVENTS])
    problem = at(problems, f"spec.processors[0].json.{field}")
    assert message in problem.message
    assert problem.remedy


def test_paths_of_other_languages_are_refused_with_what_to_write():
    columns = [{**A, "path": "$.o.a"}, {**A, "name": "b", "path": "l[0]"}]
    columns += [{**A, "name": "c", "path": "_id.$oid"}, {**A, "name": "d[0]"}]
    read = step("w", "events", json={"column": "user", "columns": columns})
    problems = found([read], sources=[EVENTS])
    base = "spec.processors[0].json.columns"
    assert at(problems, f"{base}[0].path").remedy == 'write "o.a"'
    remedy = "read the array, as array<type>, or use a function"
    assert at(problems, f"{base}[1].path").remedy == remedy
    assert len(problems) == 2


def test_columns_of_a_json_are_known():
    columns = [A, {"name": "at", "type": "timestamp", "path": "meta.at"}]
    settings = {"column": "user", "columns": columns, "keep": ["n"]}
    read = step("w", "events", json=settings)
    assert (
        found([read, step("t", keyed("w", "n"), **total("sum", "a", "s"))], sources=[EVENTS]) == []
    )
    bad = [read, step("t", keyed("w", "n"), **total("sum", "at", "m"))]
    (problem,) = found(bad, sources=[EVENTS])
    assert "is timestamp" in problem.message


USERS = {"path": "users.csv", "schema": "id string, age int, tags array<int>"}


@pytest.mark.parametrize(
    ("settings", "field", "message"),
    [
        ({"key": [{"column": "usr", "of": "id"}]}, "key[0].column", "no column of 'events'"),
        ({"key": [{"column": "user"}]}, "key[0].column", "is no column of users.csv"),
        ({"key": [{"column": "user", "of": "ident"}]}, "key[0].of", "is no column of users.csv"),
        ({"key": [{"column": "user", "of": "age"}]}, "key[0].column", "and 'age' of the table int"),
        ({"key": [{"column": "tags", "of": "id"}]}, "key[0].column", "which cannot be a key"),
        ({"key": [{"column": "user", "of": "tags"}]}, "key[0].of", "which cannot be a key"),
        ({"key": 2 * [{"column": "user", "of": "id"}]}, "key[1].column", "stands twice in the key"),
        ({"columns": [{"name": "aged"}]}, "columns[0].name", "is no column of users.csv"),
        ({"columns": [{"name": "a", "of": "b"}]}, "columns[0].of", "is no column of users.csv"),
        ({"columns": 2 * [{"name": "age"}]}, "columns[1].name", "is a column of the output alrea"),
        ({"columns": [{"name": "n", "of": "age"}]}, "columns[0].name", "is a column of 'events'"),
        ({"columns": [{"name": "__mr_a", "of": "age"}]}, "columns[0].name", "which is reserved"),
        ({"columns": []}, "columns", "every tuple would come out as it went in"),
        ({"table": {**USERS, "path": "users"}}, "table.format", "does not end as any format"),
        ({"table": {"path": "users.csv"}}, "table.schema", "csv does not say which types"),
        ({"table": {"path": "u.x", "format": "jsonLines"}}, "table.schema", "jsonLines does not"),
        ({"table": {**USERS, "format": "parquet"}}, "table.schema", "does not apply: parquet has"),
        ({"table": {**USERS, "schema": "id strng"}}, "table.schema", "type 'strng' is not known"),
    ],
)
def test_what_is_wrong_with_a_lookup(settings, field, message):
    given = {"key": [{"column": "user", "of": "id"}], "columns": [{"name": "age"}], **settings}
    problems = found([step("w", "events", lookup={"table": USERS, **given})], sources=[EVENTS])
    problem = at(problems, f"spec.processors[0].lookup.{field}")
    assert message in problem.message
    assert problem.remedy
    assert len(problems) == 1


@pytest.mark.parametrize("name", ["u.CSV", "u.jsonl", "u.ndjson", "u.parquet", "u.feather"])
def test_the_end_of_a_path_says_how_a_table_is_read(name):
    typed = {} if name.endswith(("parquet", "feather")) else {"schema": USERS["schema"]}
    settings = {
        "table": {"path": name, **typed},
        "key": [{"column": "n", "of": "age"}],
        "missing": "Drop",
    }
    assert found([step("w", "events", lookup=settings)], sources=[EVENTS]) == []


def test_columns_of_a_lookup_are_known():
    """Those of the tuple come out in front; whole numbers of any width are compared."""
    settings = {
        "table": USERS,
        "key": [{"column": "n", "of": "age"}],
        "columns": [{"name": "who", "of": "id"}, {"name": "years", "of": "age"}],
    }
    seen = step("w", "events", lookup=settings)
    assert found([seen, step("t", keyed("w", "who", "user"), **total("sum", "years"))]) != []
    assert (
        found(
            [seen, step("t", keyed("w", "who", "user"), **total("sum", "years"))], sources=[EVENTS]
        )
        == []
    )
    bad = [seen, step("t", keyed("w", "years"), **total("sum", "who"))]
    (problem,) = found(bad, sources=[EVENTS])
    assert "is string" in problem.message
    # Of a Parquet file the types are known only to who reads it.
    typed = {**settings, "table": {"path": "users.parquet"}}
    unread = [step("w", "events", lookup=typed), step("t", keyed("w", "who"), **total())]
    assert found(unread, sources=[EVENTS]) == []


def test_columns_of_a_split_are_known():
    cut = step("w", "events", split={"column": "user", "into": "word", "keep": ["n"]})
    assert found([cut, step("t", keyed("w", "word"), **total("sum", "n"))], sources=[EVENTS]) == []
    bad = [cut, step("t", keyed("w", "user"), **total("sum", "n"))]
    assert at(found(bad, sources=[EVENTS]), "spec.processors[1].inputs[0].key[0]").value == "user"


# User code


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("words:spilt", "did you mean 'split'?"),
        ("word:split", "did you mean 'words'?"),
        ("words:two_arguments", "wrong signature"),
        ("words:undecorated", "decorate the function"),
        ("words:number", "not user code"),
    ],
)
def test_a_function_that_cannot_be_used_says_why(code, target, words):
    problem = at(
        found([step("a", "lines", function=target)], folder=code), "spec.processors[0].function"
    )
    assert words in str(problem)
    assert problem.value == target


def test_a_code_folder_that_does_not_exist_is_one_problem(tmp_path):
    problems = found([step("a", "lines"), step("b", "a")], folder=tmp_path, code={"path": "no"})
    assert [p.path for p in problems] == ["spec.code.path"]


def test_code_in_an_image_is_not_imported(tmp_path):
    assert found([step("a", "lines")], folder=tmp_path, code={"image": "mills:1"}) == []


def test_code_of_a_config_map_is_looked_at_where_it_lies_beside_the_file(code, tmp_path):
    wrong = [step("a", "lines", function="words:spilt")]
    given = {"configMap": "words-code"}
    problem = at(found(wrong, folder=code, code=given), "spec.processors[0].function")
    assert "did you mean 'split'?" in str(problem)
    (empty := tmp_path / "elsewhere").mkdir()
    assert found(wrong, folder=empty, code=given) == []


def test_a_custom_source_derives_from_the_base_class(tmp_path):
    (tmp_path / "feeds.py").write_text("class Ticks:\n    pass\ntick = 1\n")
    for target, words in (
        ("feeds:Ticks", "derive it from millrace.sources.base.Source"),
        ("feeds:tick", "is no class"),
    ):
        problems = found(sources=[{"name": "t", "custom": {"class": target}}], folder=tmp_path)
        assert words in str(at(problems, "spec.sources[0].custom.class"))
