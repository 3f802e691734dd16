"""The columns that each component puts out, as far as they are known before anything runs."""

from __future__ import annotations

from collections.abc import Mapping

from millrace.functions import FunctionSpec
from millrace.topology.graph import Edge, Graph
from millrace.topology.kinds.base import Columns, Incoming
from millrace.topology.model import StreamTopology
from millrace.topology.parts import Role


def columns_of(
    topology: StreamTopology,
    graph: Graph,
    functions: Mapping[str, FunctionSpec],
    found: Mapping[str, Columns],
) -> dict[str, Columns | None]:
    """Output columns of every source and processor; ``None`` where they cannot be known.

    ``functions`` holds the user code of processors, by processor name, as far as it could be
    imported; ``found`` holds what Spark and the sources say. The graph must be
    acyclic. Wrong declarations count as unknown; they are reported elsewhere.
    """
    known: dict[str, Columns | None] = {}
    for component in graph.order():
        name = component.name
        if name in found:
            known[name] = found[name]
        elif component.role is Role.SOURCE:
            source = topology.spec.sources[component.index]
            known[name] = next((k.columns(s) for k, s in source.declared()), None)
        elif component.role is Role.PROCESSOR:
            edges = graph.inputs(name)
            columns = columns_on(edges[0], known.get(edges[0].producer)) if edges else None
            processor = topology.spec.processors[component.index]
            incoming = Incoming(processor.inputs, columns, functions.get(name))
            known[name] = next((k.columns(s, incoming) for k, s in processor.declared()), None)
    return known


def columns_on(edge: Edge, columns: Columns | None) -> Columns | None:
    """What a consumer sees of its producer's columns."""
    if not edge.columns:
        return columns
    types = dict(columns or ())
    return tuple((name, types.get(of)) for name, of in edge.columns)
