"""The graph that a topology declares, and how it falls into passes; pure queries.

A graph can be built of anything that was declared, cycles and unknown names included, so that
``topology.check`` can report on it; the queries that need an acyclic graph say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from millrace.topology.model import Processor, Sink, StreamTopology
from millrace.topology.parts import Role
from millrace.topology.problems import FieldPath

_CYCLES_TOLD = 20


@dataclass(frozen=True, slots=True)
class Component:
    """A source, processor or sink.

    ``kind`` is the kind it declares (``files``, ``function``, …), the first one where it wrongly
    declares several, and empty where it declares none. ``index`` is its place in its list.
    """

    name: str
    role: Role
    kind: str
    index: int

    @property
    def path(self) -> FieldPath:
        """Where it stands in the topology."""
        return ("spec", f"{self.role.value}s", self.index)


@dataclass(frozen=True, slots=True)
class Edge:
    """An input of ``consumer``; ``index`` is its place among the consumer's inputs.

    ``columns`` are (name at the consumer, name at the producer); empty: all as they are.
    """

    producer: str
    consumer: str
    key: tuple[str, ...]
    broadcast: bool
    index: int
    columns: tuple[tuple[str, str], ...] = ()

    @property
    def exchanged(self) -> bool:
        """Whether its tuples are brought together by key or copied to every partition."""
        return bool(self.key) or self.broadcast


@dataclass(frozen=True, slots=True)
class Pass:
    """The components of one depth, fused into one run over each partition.

    ``components`` are in topological order. ``crossing`` are the edges that arrive through the
    exchange in front of the pass.
    """

    depth: int
    components: tuple[Component, ...]
    crossing: tuple[Edge, ...]


@dataclass(frozen=True)
class Graph:
    """Components and edges, in the order of the file."""

    components: tuple[Component, ...]
    edges: tuple[Edge, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Component]:
        """Components by name; the first one where a name is used twice."""
        first: dict[str, Component] = {}
        for component in self.components:
            first.setdefault(component.name, component)
        return first

    def inputs(self, name: str) -> tuple[Edge, ...]:
        """Edges into a component, in the order of its inputs."""
        return self._inputs.get(name, ())

    def outputs(self, name: str) -> tuple[Edge, ...]:
        """Edges out of a component, in the order of their consumers."""
        return self._outputs.get(name, ())

    def cycles(self) -> tuple[tuple[str, ...], ...]:
        """Cycles as names along the edges, first name not repeated; one for each closing edge.

        Empty exactly where the graph is acyclic; where there are many, not all of them.
        """
        found: list[tuple[str, ...]] = []
        done: set[str] = set()
        for start in self.by_name:
            if len(found) >= _CYCLES_TOLD:
                break
            trail: list[str] = []
            stack = [(start, False)]
            while stack:
                name, leave = stack.pop()
                if leave:
                    done.add(trail.pop())
                    continue
                if name in done or name in trail:
                    continue
                trail.append(name)
                stack.append((name, True))
                for edge in reversed(self.outputs(name)):
                    if edge.consumer in trail and len(found) < _CYCLES_TOLD:
                        found.append(tuple(trail[trail.index(edge.consumer) :]))
                    elif edge.consumer not in trail and edge.consumer not in done:
                        stack.append((edge.consumer, False))
        return tuple(found)

    def order(self) -> tuple[Component, ...]:
        """Components so that producers come before their consumers, otherwise as in the file.

        Raises ``ValueError`` for a graph with a cycle.
        """
        missing = {
            name: {e.producer for e in self.inputs(name) if e.producer in self.by_name}
            for name in self.by_name
        }
        ordered: list[Component] = []
        while missing:
            ready = next((name for name, producers in missing.items() if not producers), None)
            if ready is None:
                raise ValueError(f"the graph has a cycle among {', '.join(missing)}")
            del missing[ready]
            ordered.append(self.by_name[ready])
            for producers in missing.values():
                producers.discard(ready)
        return tuple(ordered)

    def depths(self) -> dict[str, int]:
        """The pass of each component: how many exchanges lie in front of it, at most.

        Sources have depth 0; depth increases by one across a keyed or broadcast edge. Raises
        ``ValueError`` for a graph with a cycle.
        """
        depths: dict[str, int] = {}
        for component in self.order():
            depths[component.name] = max(
                (
                    depths[edge.producer] + edge.exchanged
                    for edge in self.inputs(component.name)
                    if edge.producer in depths
                ),
                default=0,
            )
        return depths

    def passes(self) -> tuple[Pass, ...]:
        """The passes in the order in which they run; there is one exchange between two.

        An edge that is not exchanged crosses too where its consumer lies deeper for another
        reason. Raises ``ValueError`` for a graph with a cycle.
        """
        depths = self.depths()
        components: dict[int, list[Component]] = {}
        crossing: dict[int, list[Edge]] = {}
        for component in self.order():
            components.setdefault(depths[component.name], []).append(component)
        for edge in self.edges:
            depth = depths.get(edge.consumer, -1)
            if depths.get(edge.producer, depth) < depth:
                crossing.setdefault(depth, []).append(edge)
        return tuple(
            Pass(depth, tuple(components[depth]), tuple(crossing.get(depth, ())))
            for depth in range(max(depths.values(), default=-1) + 1)
        )

    def upstream(self, name: str) -> frozenset[str]:
        """Every component whose tuples can lead to ``name``, without itself."""
        return self.leading_to((name,)) - {name}

    def leading_to(self, names: Iterable[str]) -> frozenset[str]:
        """Every component whose tuples can lead to one of ``names``, and these themselves."""
        return self._reach(names, lambda n: [e.producer for e in self.inputs(n)])

    def reached_from(self, names: Iterable[str]) -> frozenset[str]:
        """Every component that tuples of one of ``names`` can lead to, and these themselves."""
        return self._reach(names, lambda n: [e.consumer for e in self.outputs(n)])

    def _reach(self, names: Iterable[str], step: Callable[[str], list[str]]) -> frozenset[str]:
        seen: set[str] = set()
        pending = list(names)
        while pending:
            at = pending.pop()
            if at not in seen and at in self.by_name:
                seen.add(at)
                pending.extend(step(at))
        return frozenset(seen)

    @cached_property
    def _inputs(self) -> dict[str, tuple[Edge, ...]]:
        grouped: dict[str, list[Edge]] = {}
        for edge in self.edges:
            grouped.setdefault(edge.consumer, []).append(edge)
        return {name: tuple(edges) for name, edges in grouped.items()}

    @cached_property
    def _outputs(self) -> dict[str, tuple[Edge, ...]]:
        grouped: dict[str, list[Edge]] = {}
        for edge in self.edges:
            grouped.setdefault(edge.producer, []).append(edge)
        return {name: tuple(edges) for name, edges in grouped.items()}


def graph_of(topology: StreamTopology) -> Graph:
    """The graph that a topology declares."""
    spec = topology.spec
    components: list[Component] = []
    edges: list[Edge] = []
    for role, parts in (
        (Role.SOURCE, spec.sources),
        (Role.PROCESSOR, spec.processors),
        (Role.SINK, spec.sinks),
    ):
        for index, part in enumerate(parts):
            kind = next((kind.name for kind, _ in part.declared()), "")
            components.append(Component(part.name, role, kind, index))
            if isinstance(part, Processor | Sink):
                edges += [
                    Edge(e.producer, part.name, e.key, e.broadcast, i, tuple(e.columns.items()))
                    for i, e in enumerate(part.inputs)
                ]
    return Graph(tuple(components), tuple(edges))
