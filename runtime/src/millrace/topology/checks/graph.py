"""Rules about the graph: names, edges, cycles and reach."""

from __future__ import annotations

from collections.abc import Iterator

from millrace.topology.checks.facts import Facts
from millrace.topology.edges import input_path
from millrace.topology.limits import MOST_PROBLEMS
from millrace.topology.parts import Role
from millrace.topology.problems import Problem, closest, did_you_mean, format_path


def duplicate_names(facts: Facts) -> Iterator[Problem]:
    """Two components of one name."""
    for component in facts.graph.components:
        first = facts.graph.by_name[component.name]
        if first is not component:
            yield Problem(
                format_path((*component.path, "name")),
                component.name,
                f"already names {format_path(first.path)}",
                "rename one of them",
            )


def bad_producers(facts: Facts) -> Iterator[Problem]:
    """Inputs from names that are unknown, from sinks, and twice from one producer."""
    graph = facts.graph
    producers = [c.name for c in graph.components if c.role is not Role.SINK]
    for component in graph.components:
        seen: set[str] = set()
        for edge in facts.edges_of(component):
            path = input_path(component, edge, "from")
            found = graph.by_name.get(edge.producer)
            if found is None:
                known = [name for name in producers if name != component.name]
                remedy = did_you_mean(edge.producer, known)
                yield Problem(path, edge.producer, "names no source or processor", remedy)
            elif found.role is Role.SINK:
                yield Problem(
                    path,
                    edge.producer,
                    "is a sink, and no edge leads out of a sink",
                    "take what leads into it as the input instead",
                )
            elif edge.producer in seen:
                # The ids of two edges between the same components would cancel each other.
                yield Problem(
                    path,
                    edge.producer,
                    "is an input of this component already",
                    "remove one, or put a processor between them",
                )
            seen.add(edge.producer)


def cycles(facts: Facts) -> Iterator[Problem]:
    """Edges that close a cycle."""
    for cycle in facts.cycles:
        consumer = facts.graph.by_name[cycle[0]]
        edge = next(e for e in facts.graph.inputs(cycle[0]) if e.producer == cycle[-1])
        yield Problem(
            input_path(consumer, edge, "from"),
            edge.producer,
            f"closes the cycle {' → '.join((*cycle, cycle[0]))}",
            "remove one of its edges",
        )


def unreachable(facts: Facts) -> Iterator[Problem]:
    """Sources and processors whose tuples reach no sink; what no source reaches."""
    graph = facts.graph
    sinks = {c.name for c in graph.components if c.role is Role.SINK}
    sources = {c.name for c in graph.components if c.role is Role.SOURCE}
    lost, meant = _misnamed(facts)
    shown, fed = graph.leading_to(sinks | meant), graph.reached_from(sources | lost)
    for component in graph.components:
        if graph.by_name[component.name] is not component:
            continue
        name = component.name
        if component.role is not Role.SINK and name not in shown:
            yield Problem(
                format_path(component.path),
                name,
                "reaches no sink, so nothing it does is ever seen",
                "name it in the inputs of a sink or of a processor that leads to one, or remove it",
            )
        if component.role is not Role.SOURCE and name not in fed:
            yield Problem(
                format_path(component.path),
                name,
                "is reached from no source",
                "take a source, or a processor behind one, as its input",
            )


def _misnamed(facts: Facts) -> tuple[set[str], set[str]]:
    """Consumers with a wrong input, and the producers that may have been meant.

    A misspelt name is one problem; that something is cut off by it would only say so again.
    """
    graph = facts.graph
    lost: set[str] = set()
    meant: set[str] = set()
    guesses = MOST_PROBLEMS
    for edge in graph.edges:
        found = graph.by_name.get(edge.producer)
        if found is None and guesses:
            guesses -= 1
            others = {name for name in graph.by_name if name != edge.consumer}
            guess = closest(edge.producer, others)
            meant |= others if guess is None else {guess}
        if found is None or found.role is Role.SINK:
            lost.add(edge.consumer)
    return lost, meant


RULES = (duplicate_names, bad_producers, cycles, unreachable)
