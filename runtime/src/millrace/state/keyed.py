"""Keyed state as tasks use it: the two kinds of state, and the cache that keeps them."""

from __future__ import annotations

from millrace.state.aggregates import Aggregate, AggregateOverflowError
from millrace.state.aggregatestate import AggregateState, combine
from millrace.state.cache import (
    Load,
    OpenState,
    State,
    StateCache,
    StateKey,
    links,
    should_compact,
)
from millrace.state.dictstate import DictState, StateValueError

__all__ = [
    "Aggregate",
    "AggregateOverflowError",
    "AggregateState",
    "DictState",
    "Load",
    "OpenState",
    "State",
    "StateCache",
    "StateKey",
    "StateValueError",
    "combine",
    "links",
    "should_compact",
]
