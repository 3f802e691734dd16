"""How the kinds of processors become steps of a task: one function a kind.

The kind's declaration names it (``step``), and its compiled component carries the name to workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, assert_never

from millrace.engine.program.program import Component, Matching
from millrace.engine.task.context import Task, getting_ready
from millrace.engine.task.state import TaskState
from millrace.engine.task.steps.aggregate import MergeStep
from millrace.engine.task.steps.base import Outlet, Step
from millrace.engine.task.steps.classes import ClassStep
from millrace.engine.task.steps.decoding import JsonStep
from millrace.engine.task.steps.ends import Intake
from millrace.engine.task.steps.functions import RowStep, VectorStep, WhereStep
from millrace.engine.task.steps.grouped import GroupedStep
from millrace.engine.task.steps.keyed import KeyedClassStep, StatefulStep
from millrace.engine.task.steps.matching import LookupStep, TableIndex
from millrace.engine.task.steps.splitting import SplitStep
from millrace.engine.task.steps.sqlstep import SqlOutcome
from millrace.functions import FunctionKind, FunctionSpec
from millrace.sinks.base import Sink
from millrace.sources.base import Source


class Toolbox(Protocol):
    """User code, sources, sinks and tables of this process, made on first use, and how
    sources are read here."""

    @property
    def intake(self) -> Intake: ...

    def function(self, component: Component) -> FunctionSpec: ...

    def source(self, component: Component) -> Source: ...

    def sink(self, component: Component) -> Sink: ...

    def table(self, name: str) -> TableIndex: ...


@dataclass(frozen=True, slots=True)
class Site:
    """Where a step goes: it delivers to the outlet and keeps what it keeps in the state."""

    task: Task
    component: Component
    outlet: Outlet
    toolbox: Toolbox
    state: TaskState


MakeStep = Callable[[Site], Step]


def aggregate(site: Site) -> Step:
    """Merges what was combined before the exchange into the state of each key."""
    return MergeStep(site.task, site.component, site.outlet, site.state)


def split(site: Site) -> Step:
    """Cuts a text column into pieces."""
    return SplitStep(site.task, site.component, site.outlet)


def json(site: Site) -> Step:
    """Reads objects of JSON into columns."""
    return JsonStep(site.task, site.component, site.outlet)


def lookup(site: Site) -> Step:
    """Adds columns of the row of a table that has a tuple's key."""
    matching = site.component.settings
    assert isinstance(matching, Matching)
    return LookupStep(site.task, site.component, site.outlet, site.toolbox.table(matching.table))


def sql(site: Site) -> Step:
    """Takes what the JVM made of each row, or has DuckDB evaluate it here."""
    if site.component.in_jvm:
        return SqlOutcome(site.task, site.component, site.outlet)
    # Workers of topologies without such a step are spared its 40 MB.
    from millrace.engine.task.steps.ducksql import DuckStep

    return DuckStep(site.task, site.component, site.outlet)


def function(site: Site) -> Step:
    """Calls user code in the way that its decorator or class asks for."""
    task, component, outlet = site.task, site.component, site.outlet
    found = site.toolbox.function(component)
    match found.kind:
        case FunctionKind.ROW:
            return RowStep(task, component, outlet, found.target)
        case FunctionKind.VECTORIZED:
            return VectorStep(task, component, outlet, found.target)
        case FunctionKind.WHERE:
            return WhereStep(task, component, outlet, found.target)
        case FunctionKind.STATEFUL:
            return StatefulStep(task, component, outlet, found.target, site.state, found.migrations)
        case FunctionKind.GROUPED:
            return GroupedStep(task, component, outlet, found.target, site.state, found.migrations)
        case FunctionKind.CLASS:
            with getting_ready(component.name):
                instance = found.target()
            if component.keyed:
                return KeyedClassStep(
                    task, component, outlet, instance, site.state, found.migrations
                )
            return ClassStep(task, component, outlet, instance)
        case _:
            assert_never(found.kind)
