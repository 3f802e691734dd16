from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from topology_texts import WORDCOUNT, model

from millrace.topology.graph import Component, Edge, Graph, graph_of
from millrace.topology.parts import Role


def graph(sources: str, sinks: str, *edges: str) -> Graph:
    """``"a>b"`` is a plain edge, ``"a=b"`` keyed, ``"a*b"`` broadcast."""
    declared, counts = [], {}
    for edge in edges:
        mark = next(c for c in edge if c in ">=*")
        producer, consumer = edge.split(mark)
        index = counts[consumer] = counts.get(consumer, -1) + 1
        declared.append(Edge(producer, consumer, ("k",) if mark == "=" else (), mark == "*", index))
    names = dict.fromkeys(n for e in declared for n in (e.producer, e.consumer))
    roles = {
        n: Role.SOURCE if n in sources else Role.SINK if n in sinks else Role.PROCESSOR
        for n in names
    }
    return Graph(
        tuple(Component(n, roles[n], "x", i) for i, n in enumerate(names)), tuple(declared)
    )


def shape(g: Graph) -> list[str]:
    return ["".join(c.name for c in p.components) for p in g.passes()]


def test_the_graph_of_word_count():
    g = graph_of(model(WORDCOUNT))
    assert [(c.name, c.role, c.kind) for c in g.components] == [
        ("lines", Role.SOURCE, "files"),
        ("split", Role.PROCESSOR, "function"),
        ("counts", Role.PROCESSOR, "aggregate"),
        ("out", Role.SINK, "files"),
    ]
    assert g.edges[1] == Edge("split", "counts", ("word",), False, 0)
    assert g.by_name["counts"].path == ("spec", "processors", 1)
    assert [[c.name for c in p.components] for p in g.passes()] == [
        ["lines", "split"],
        ["counts", "out"],
    ]
    assert [e.consumer for e in g.passes()[1].crossing] == ["counts"]


@pytest.mark.parametrize(
    ("edges", "passes"),
    [
        (["s>a", "a>t"], ["sat"]),
        (["s=a", "a=b", "b>t"], ["s", "a", "bt"]),
        (["s*a", "a>t"], ["s", "at"]),
        # A branch that needs no exchange stays in the first pass.
        (["s=a", "a>t", "s>u"], ["su", "at"]),
        # A merge runs as deep as its deepest input.
        (["s=a", "s>b", "a>m", "b>m", "m>t"], ["sb", "amt"]),
        (["s=a", "a=m", "s>m", "m>t"], ["s", "a", "mt"]),
    ],
)
def test_depth_grows_across_keyed_and_broadcast_edges(edges, passes):
    assert shape(graph("s", "tu", *edges)) == passes


def test_a_plain_edge_crosses_where_its_consumer_lies_deeper():
    passes = graph("s", "t", "s=a", "a=m", "s>m", "m>t").passes()
    assert [(e.producer, e.consumer) for e in passes[2].crossing] == [("a", "m"), ("s", "m")]


def test_order_puts_producers_first_and_keeps_the_file_s_order_otherwise():
    g = graph("s", "t", "b>t", "a>b", "s>a")
    assert [c.name for c in g.order()] == ["s", "a", "b", "t"]


@pytest.mark.parametrize(
    ("edges", "cycles"),
    [
        (["s>a", "a>t"], []),
        (["s>a", "a>b", "b>a", "b>t"], [("a", "b")]),
        (["s>a", "a>a", "a>t"], [("a",)]),
        (["s>a", "a>b", "b>c", "c>b", "c>a", "a>t"], [("b", "c"), ("a", "b", "c")]),
        # Two ways to one component are no cycle.
        (["s>a", "s>b", "a>m", "b>m", "m>t"], []),
    ],
)
def test_cycles_are_named_along_their_edges(edges, cycles):
    assert sorted(graph("s", "t", *edges).cycles()) == sorted(cycles)


def test_a_cyclic_graph_has_no_order():
    with pytest.raises(ValueError, match="cycle among a, b"):
        graph("s", "", "s>a", "a>b", "b>a").order()


def test_reach_follows_edges_in_both_directions():
    g = graph("s", "t", "s>a", "a>b", "b>t", "s>c")
    assert g.reached_from("a") == {"a", "b", "t"}
    assert g.upstream("b") == {"a", "s"}
    assert g.reached_from("t") == {"t"}


def test_unknown_producers_are_left_out_of_the_queries():
    g = Graph((Component("a", Role.PROCESSOR, "x", 0),), (Edge("nobody", "a", ("k",), False, 0),))
    assert g.depths() == {"a": 0}
    assert g.upstream("a") == frozenset()
    assert g.passes()[0].crossing == ()


@st.composite
def any_graph(draw):
    size = draw(st.integers(1, 7))
    names = [f"n{i}" for i in range(size)]
    pairs = draw(
        st.lists(
            st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=14, unique=True
        )
    )
    edges = tuple(
        Edge(a, b, ("k",) if draw(st.booleans()) else (), False, i)
        for i, (a, b) in enumerate(pairs)
    )
    return Graph(tuple(Component(n, Role.PROCESSOR, "x", i) for i, n in enumerate(names)), edges)


@settings(deadline=None)
@given(any_graph())
def test_a_graph_has_an_order_exactly_where_it_has_no_cycle(g):
    if g.cycles():
        edges = {(e.producer, e.consumer) for e in g.edges}
        for cycle in g.cycles():
            assert len(set(cycle)) == len(cycle)
            assert all(pair in edges for pair in zip(cycle, (*cycle[1:], cycle[0]), strict=True))
        with pytest.raises(ValueError, match="cycle"):
            g.order()
    else:
        place = {c.name: i for i, c in enumerate(g.order())}
        depths = g.depths()
        assert len(place) == len(g.components)
        for e in g.edges:
            assert place[e.producer] < place[e.consumer]
            assert depths[e.consumer] >= depths[e.producer] + bool(e.key)
        assert sum(len(p.components) for p in g.passes()) == len(g.components)
