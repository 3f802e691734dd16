"""The state of a declared aggregate, for those who merge into it and those who ask its types."""

from __future__ import annotations

from millrace.engine.program.program import Component
from millrace.state.keyed.aggregatestate import AggregateState


def state_of(component: Component, groups: int, ttl_ms: int = 0) -> AggregateState:
    """An empty state of an aggregate whose columns are known; what lives no longer than a task
    needs no ``ttl_ms``."""
    assert component.rows is not None
    return AggregateState(component.rows, component.key, component.columns, groups, ttl_ms)
