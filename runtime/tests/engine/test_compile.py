"""From a topology to passes, and what a topology says that cannot be compiled."""

from __future__ import annotations

import pytest
from engine_support import CODE, HEAD, compiled, write_lines

from millrace.ddl import SIMPLE_TYPES
from millrace.engine.program.compile import compile_topology
from millrace.engine.program.draft import CompileOptions
from millrace.engine.program.kit import Kit, load, store
from millrace.engine.program.program import Route
from millrace.errors import TopologyError
from millrace.sources.arrow_types import arrow_schema, type_name
from millrace.state.keyed.aggregates import Aggregate, partial_columns
from millrace.state.keyed.aggregatestate import AggregateState
from millrace.topology.graph import graph_of
from millrace.topology.kinds.processor_aggregate import (
    AggregateFunction,
    computable_types,
    result_type,
)
from millrace.topology.load import parse
from millrace.topology.model import StreamTopology
from millrace.topology.parts import Role

DEEP = """
sources:
  - {name: lines, files: {path: texts}}
  - {name: gen, generator: {count: 5}}
processors:
  - {name: split, function: "wordsteps:split", inputs: [{from: lines}]}
  - name: counts
    inputs: [{from: split, key: [word]}]
    aggregate: {columns: [{name: n, function: count}]}
  - {name: sized, function: "wordsteps:sized", inputs: [{from: split}]}
  - {name: both, function: "wordsteps:tag", inputs: [{from: counts}, {from: sized}]}
  - name: sums
    inputs: [{from: both, key: [word]}, {from: sized, key: [word]}]
    aggregate: {columns: [{name: n, function: count}]}
  - {name: all, function: "wordsteps:no_a", inputs: [{from: split, broadcast: true}]}
  - {name: running, function: "wordsteps:running_count", inputs: [{from: all, key: [word]}]}
sinks:
  - {name: a, inputs: [{from: sums}], files: {path: a}}
  - {name: b, inputs: [{from: running}], files: {path: b}}
  - {name: c, inputs: [{from: gen}], files: {path: c}}
"""


@pytest.fixture
def program(tmp_path):
    write_lines(tmp_path, ["a b"])
    return compiled(DEEP, tmp_path, "uid")


def test_passes_are_those_that_the_topology_describes(program, tmp_path):
    indented = "\n".join("  " + line for line in DEEP.strip("\n").splitlines())
    topology = parse(HEAD + indented, folder=tmp_path, import_code=False)
    described = graph_of(topology).passes()
    assert [p.components for p in program.passes] == [
        tuple(c.name for c in p.components) for p in described
    ]
    for boundary, found in enumerate(described[1:]):
        arriving = {e.name for e in program.crossing(boundary)} - set(
            program.passes[boundary + 1].relays
        )
        assert arriving == {f"{e.producer}>{e.consumer}" for e in found.crossing}


def test_edges_know_their_route(program):
    routes = {name: edge.route for name, edge in program.edges.items()}
    assert routes == {
        "lines>split": Route.LOCAL,
        "split>counts": Route.COMBINED,
        "split>sized": Route.LOCAL,
        "counts>both": Route.LOCAL,
        "sized>both": Route.FORWARD,
        "both>sums": Route.COMBINED,
        "sized>sums": Route.COMBINED,
        "split>all": Route.BROADCAST,
        "all>running": Route.KEYED,
        "sums>a": Route.LOCAL,
        "running>b": Route.LOCAL,
        "gen>c": Route.LOCAL,
    }


def test_order_is_kept_only_where_something_depends_on_it(program):
    ordered = {name for name, edge in program.edges.items() if edge.ordered}
    assert ordered == {"lines>split", "split>all", "all>running"}


def test_an_edge_over_two_boundaries_is_relayed(program):
    assert [p.relays for p in program.passes] == [(), ("sized>sums",), ()]


def test_schemas_follow_the_edges(program):
    schemas = {
        name: [(f.name, type_name(f.type)) for f in component.output]
        for name, component in program.components.items()
        if component.role is not Role.SINK
    }
    assert schemas["gen"] == [("id", "long"), ("key", "string"), ("value", "double")]
    assert schemas["sums"] == [("word", "string"), ("n", "long")]
    assert schemas["all"] == schemas["split"] == [("word", "string")]
    assert program.components["running"].state == (("n", "long"),)


def test_the_acks_edges_begin_with_the_sources_own(program):
    assert program.tracked_edges[:2] == (">lines", ">gen")
    assert set(program.tracked_edges[2:]) == set(program.edges)


def test_a_program_is_small_and_the_same_each_time(program, tmp_path):
    path = store(Kit(program), tmp_path / "kits")
    assert path.stat().st_size < 16_384
    assert load(path).program.edges == program.edges
    assert store(Kit(compiled(DEEP, tmp_path, "uid")), tmp_path / "kits") == path


def with_step(text):
    return f"""
sources:
  - {{name: lines, files: {{path: texts}}}}
  - {{name: gen, generator: {{count: 5}}}}
processors:
{text}
sinks: [{{name: out, inputs: [{{from: last}}], files: {{path: out}}}}]
"""


SPLIT = '  - {name: split, function: "wordsteps:split", inputs: [{from: lines}]}\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            '  - {name: last, function: "wordsteps:no_a", inputs: [{from: lines}, {from: gen}]}',
            "merges inputs of different columns",
        ),
        (
            (
                '  - {name: last, function: "wordsteps:running_count", inputs: '
                "[{from: lines, key: [word]}]}"
            ),
            "no column of it; there are value",
        ),
        (
            '  - {name: last, function: "wordsteps:running_count", inputs: [{from: lines}]}',
            "needs a key",
        ),
        (
            (
                "  - {name: last, inputs: [{from: lines, key: [value]}, {from: gen, key: [id]}],"
                " aggregate: {columns: [{name: n, function: count}]}}"
            ),
            "the key of the input from 'gen' has the types long",
        ),
        (
            (
                "  - {name: last, inputs: [{from: gen, key: [key]}, {from: lines, key: [value]}],"
                " aggregate: {columns: [{name: n, function: min, of: value}]}}"
            ),
            "another type",
        ),
        (
            (
                "  - {name: last, inputs: [{from: gen, key: [key]}],"
                " aggregate: {columns: [{name: n, function: sum, of: key}]}}"
            ),
            "sum cannot be taken of column key",
        ),
        (
            (
                "  - {name: last, inputs: [{from: gen, key: [key]}], aggregate: {columns: "
                '[{name: a, function: avg, of: id}, {name: "a.sum", function: count}]}}'
            ),
            "keeps a column twice: key, a.sum",
        ),
        (
            SPLIT + '  - {name: last, inputs: [{from: split}], sql: {select: ["word"]}}',
            "directly behind a source or another step of Spark's SQL",
        ),
        (
            '  - {name: last, function: "wordsteps:nothing", inputs: [{from: lines}]}',
            "has no 'nothing'",
        ),
        (
            '  - {name: last, function: "nosuchmodule:x", inputs: [{from: lines}]}',
            "cannot be imported",
        ),
    ],
)
def test_what_cannot_be_compiled_is_told(tmp_path, text, told):
    write_lines(tmp_path, ["a"])
    spec = with_step(text)
    indented = "\n".join("  " + line for line in spec.strip("\n").splitlines())
    topology = unchecked(HEAD + indented)
    with pytest.raises(TopologyError) as caught:
        compile_topology(topology, CompileOptions("uid", tmp_path, CODE))
    assert told in str(caught.value)


def unchecked(text):
    """The model without the checks between its fields, which find most of these first."""
    import yaml

    return StreamTopology.model_validate(yaml.safe_load(text))


@pytest.mark.parametrize("function", list(AggregateFunction))
@pytest.mark.parametrize("kind", [*SIMPLE_TYPES, "array<int>"])
def test_what_a_check_says_of_aggregates_is_what_workers_do(function, kind):
    inputs = arrow_schema([("v", kind)])
    if function is not AggregateFunction.COUNT and kind not in computable_types(function):
        with pytest.raises(TopologyError, match="cannot be taken"):
            partial_columns(Aggregate("a", function.value, "v"), inputs)
        return
    key = arrow_schema([("k", "long"), ("v", kind)])
    state = AggregateState(key, ["k"], [Aggregate("a", function.value, "v")], 8)
    assert type_name(state.output_schema.field("a").type) == result_type(function, kind)
