"""``millrace describe``: the graph of a topology and the passes that it runs in."""

from __future__ import annotations

from collections.abc import Mapping

import typer
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text
from rich.tree import Tree

from millrace.cli.analysis import facts_of
from millrace.cli.cluster.options import Context, Namespace, cluster_topology
from millrace.cli.options import (
    Overrides,
    SkipCode,
    SkipSql,
    TopologyFile,
    TopologyOption,
    needed_file,
    one_file,
)
from millrace.cli.output import console
from millrace.topology.checks.facts import gather
from millrace.topology.graph import Component, Edge, Graph, Pass
from millrace.topology.kinds.base import Columns
from millrace.topology.load import load
from millrace.topology.model import Processor, Sink, Source, StreamTopology
from millrace.topology.parts import Role

Parts = dict[str, Source | Processor | Sink]


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @app.command()
    def describe(
        file: TopologyFile = None,
        topology: TopologyOption = None,
        namespace: Namespace = None,
        context: Context = None,
        override: Overrides = None,
        no_code: SkipCode = False,
        no_sql: SkipSql = False,
    ) -> None:
        """Draw the graph of a topology, with columns and types, and the passes that it runs in.

        A pass is the components that run fused over each partition; between two passes every
        keyed or broadcast tuple goes through one exchange. Types of SQL come from its engine,
        where it is installed: from DuckDB at once, from Spark after the seconds that it takes to
        start.

        Of a topology on a cluster it is the resource that is drawn. Its code and its sources are
        where its pods are, so that columns which only these tell stay unknown.
        """
        remote = cluster_topology(one_file(file, topology), None, namespace, context)
        if remote is not None:
            if override:
                raise typer.BadParameter(
                    "--set changes a file; the resource is not one: leave it out"
                )
            facts = gather(remote.model, None, import_code=False)
            console().print(drawing(remote.model, facts.graph, facts.columns))
            return
        loaded = load(needed_file(file, topology), override or (), import_code=not no_code)
        facts = facts_of(loaded, import_code=not no_code, ask_spark=not no_sql, every_source=True)
        console().print(drawing(loaded.topology, facts.graph, facts.columns))


def drawing(
    topology: StreamTopology, graph: Graph, columns: Mapping[str, Columns | None]
) -> RenderableType:
    """Headline, graph and passes of a valid topology."""
    spec = topology.spec
    parts: Parts = {}
    for section in (spec.sources, spec.processors, spec.sinks):
        parts |= {part.name: part for part in section}
    drawn: list[RenderableType] = [
        Text.assemble(
            (topology.name, "bold"),
            f": {spec.guarantee.value}, {'tracked' if spec.tracked else 'not tracked'}, "
            f"windows of at most {spec.window.max_records} roots or {spec.window.max_interval}, "
            f"{spec.parallelism} partitions, {spec.key_groups} key groups"
            f"{', a driver that stands by' if spec.standbys else ''}",
        ),
        Text(),
    ]
    shown: set[str] = set()
    for component in graph.components:
        if component.role is Role.SOURCE:
            tree = Tree(_node(parts[component.name], columns, None))
            _grow(tree, component.name, graph, parts, columns, shown)
            drawn += [tree, Text()]
    for number in graph.passes():
        drawn += _pass(number)
    return Group(*drawn)


def _grow(
    tree: Tree,
    name: str,
    graph: Graph,
    parts: Parts,
    columns: Mapping[str, Columns | None],
    shown: set[str],
) -> None:
    """Depth first without recursion, since a chain may be as long as a topology is large."""
    waiting = [(tree, iter(graph.outputs(name)))]
    while waiting:
        branch, edges = waiting[-1]
        edge = next(edges, None)
        if edge is None:
            waiting.pop()
        elif edge.consumer in shown:
            branch.add(Text.assemble(_arrow(edge), (edge.consumer, "bold"), " (above)"))
        else:
            shown.add(edge.consumer)
            node = branch.add(_node(parts[edge.consumer], columns, edge))
            waiting.append((node, iter(graph.outputs(edge.consumer))))


def _node(
    part: Source | Processor | Sink, columns: Mapping[str, Columns | None], edge: Edge | None
) -> Text:
    text = Text.assemble(
        _arrow(edge) if edge else "", (part.name, "bold"), "  ", (summary(part), "cyan")
    )
    if not isinstance(part, Sink):
        known = columns.get(part.name)
        listed = "columns not known before it runs"
        if known is not None:
            listed = ", ".join(f"{name} {kind or '?'}" for name, kind in known)
        text.append(f"  ({listed})", "dim")
    return text


def _arrow(edge: Edge) -> str:
    taken = ", ".join(f"{name} = {of}" for name, of in edge.columns)
    how = [*([route(edge)] if edge.exchanged else []), *([f"({taken})"] if taken else []), "→ "]
    return " ".join(how)


def route(edge: Edge) -> str:
    """How tuples travel along an edge: ``by word``, ``broadcast`` or ``as they are``."""
    if edge.key:
        return f"by {', '.join(edge.key)}"
    return "broadcast" if edge.broadcast else "as they are"


def summary(part: Source | Processor | Sink) -> str:
    """What a part is, in a few words: ``files texts (text)``."""
    return part.kind.summary(part.settings)


def _pass(number: Pass) -> list[RenderableType]:
    drawn: list[RenderableType] = [
        Text(f"  ⇊ exchange: {edge.producer} → {edge.consumer}, {route(edge)}")
        for edge in number.crossing
    ]
    names = Text("  ").join(_chip(component) for component in number.components)
    title = f"pass {number.depth}"
    drawn.append(Panel(names, title=title, title_align="left", expand=False))
    return drawn


def _chip(component: Component) -> Text:
    style = {Role.SOURCE: "green", Role.PROCESSOR: "cyan", Role.SINK: "magenta"}[component.role]
    return Text(component.name, style)
