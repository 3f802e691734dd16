"""What the checks look at: the topology, its graph, its user code and its columns."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.errors import TopologyError
from millrace.functions import FunctionSpec, spec_of
from millrace.topology.columns import columns_of, columns_on
from millrace.topology.graph import Component, Edge, Graph, graph_of
from millrace.topology.kinds.base import Columns
from millrace.topology.model import Processor, Sink, Source, StreamTopology
from millrace.topology.parts import Role
from millrace.topology.problems import FieldPath, Problem, format_path
from millrace.topology.usercode import UnusableCodeError, check_class, code_on_path, find_object


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything known about a topology before it runs.

    ``functions`` and ``classes`` hold user code by component name; ``code_problems`` says why one
    is missing. ``columns`` is empty for a graph with a cycle. ``folder`` is that of the file.
    """

    topology: StreamTopology
    graph: Graph
    cycles: tuple[tuple[str, ...], ...]
    functions: Mapping[str, FunctionSpec]
    classes: Mapping[str, type]
    code_problems: tuple[Problem, ...]
    columns: Mapping[str, Columns | None]
    folder: Path | None = None

    def consumers(self) -> Iterator[tuple[Component, Processor | Sink]]:
        """Processors and sinks with their place in the graph."""
        spec = self.topology.spec
        for component in self.graph.components:
            match component.role.value:
                case "processor":
                    yield component, spec.processors[component.index]
                case "sink":
                    yield component, spec.sinks[component.index]

    def sources(self) -> Iterator[tuple[Component, Source]]:
        """Sources with their place in the graph."""
        for component in self.graph.components:
            if component.role.value == "source":
                yield component, self.topology.spec.sources[component.index]

    def components(self) -> Iterator[tuple[Component, Source | Processor | Sink]]:
        """All of them, with their place in the graph."""
        spec = self.topology.spec
        sections: Mapping[Role, Sequence[Source | Processor | Sink]] = {
            Role.SOURCE: spec.sources,
            Role.PROCESSOR: spec.processors,
            Role.SINK: spec.sinks,
        }
        for component in self.graph.components:
            yield component, sections[component.role][component.index]

    def in_python(self, component: Component) -> bool:
        """Whether it is a processor that runs in Python, and not in the JVM."""
        if component.role is not Role.PROCESSOR:
            return False
        part = self.topology.spec.processors[component.index]
        return not any(kind.runs_in_jvm(settings) for kind, settings in part.declared()[:1])

    def edges_of(self, component: Component) -> tuple[Edge, ...]:
        """Edges into a component; none for the second one of a name, which is wrong anyway."""
        if self.graph.by_name[component.name] is not component:
            return ()
        return self.graph.inputs(component.name)

    def columns_on(self, edge: Edge) -> Columns | None:
        """What the consumer of an edge sees; None where that is not known."""
        return columns_on(edge, self.columns.get(edge.producer))


def gather(
    topology: StreamTopology,
    folder: Path | None,
    found: Mapping[str, Columns] | None = None,
    *,
    import_code: bool = True,
) -> Facts:
    """Collects the facts; user code is imported where ``folder``, the file's folder, is given.

    ``found`` are columns by component that are known from elsewhere.
    """
    graph = graph_of(topology)
    cycles = graph.cycles()
    code = _UserCode()
    spec = topology.spec
    if folder is not None and import_code and _is_here(topology, folder, code):
        code_folder = (folder / (spec.code.path or ".")).resolve()
        if os.path.isdir(code_folder):
            code.load(topology, code_folder)
        elif code.targets(topology):
            code.problems.append(
                Problem(
                    "spec.code.path",
                    spec.code.path,
                    f"is no folder ({code_folder})",
                    "name the folder that holds the modules",
                )
            )
    return Facts(
        topology=topology,
        graph=graph,
        cycles=cycles,
        functions=code.functions,
        classes=code.classes,
        code_problems=tuple(code.problems),
        columns={} if cycles else columns_of(topology, graph, code.functions, found or {}),
        folder=folder,
    )


def _is_here(topology: StreamTopology, folder: Path, code: _UserCode) -> bool:
    """Whether code can be looked at: that of a ConfigMap, where the modules lie beside the file, as
    a run on this machine has them."""
    place = topology.spec.code
    if place.config_map is None:
        return place.image is None
    modules = {target.partition(":")[0] for _, _, target, _ in code.targets(topology)}
    names = {module.partition(".")[0] for module in modules}
    return all((folder / f"{one}.py").is_file() or (folder / one).is_dir() for one in names)


class _UserCode:
    def __init__(self) -> None:
        self.functions: dict[str, FunctionSpec] = {}
        self.classes: dict[str, type] = {}
        self.problems: list[Problem] = []

    def targets(self, topology: StreamTopology) -> list[tuple[FieldPath, str, str, str]]:
        """Path, component, target and base class (empty for functions) of all user code."""
        found: list[tuple[FieldPath, str, str, str]] = []
        spec = topology.spec
        for section in ("sources", "processors", "sinks"):
            for i, part in enumerate(getattr(spec, section)):
                for kind, settings in part.declared():
                    code = kind.user_code(settings)
                    if code is not None:
                        path: FieldPath = ("spec", section, i, kind.name, *code.field)
                        found.append((path, part.name, code.target, code.base))
        return found

    def load(self, topology: StreamTopology, folder: Path) -> None:
        with code_on_path(folder):
            for path, name, target, base in self.targets(topology):
                try:
                    self._load_one(name, find_object(target, folder), base)
                except UnusableCodeError as error:
                    self.problems.append(
                        Problem(format_path(path), target, str(error), error.remedy)
                    )
                except TopologyError as error:
                    message, _, remedy = str(error).partition("; ")
                    self.problems.append(
                        Problem(
                            format_path(path),
                            target,
                            f"cannot be used: {message}",
                            remedy or "change its declaration",
                        )
                    )

    def _load_one(self, name: str, found: Any, base: str) -> None:
        if base:
            check_class(found, base)
            self.classes.setdefault(name, found)
        else:
            self.functions.setdefault(name, spec_of(found))
