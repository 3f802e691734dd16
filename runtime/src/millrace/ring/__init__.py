"""Consistent hashing with virtual nodes and bounded load: pure functions, immutable values."""

from millrace.ring.hashing import (
    DEFAULT_STRATEGY,
    POSITIONS,
    Strategy,
    number_position,
    paper_hash,
    position,
)
from millrace.ring.movement import Difference, diff, largest_share
from millrace.ring.placement import assign, owners
from millrace.ring.ring import DEFAULT_VIRTUAL_NODES, Ring

__all__ = [
    "DEFAULT_STRATEGY",
    "DEFAULT_VIRTUAL_NODES",
    "POSITIONS",
    "Difference",
    "Ring",
    "Strategy",
    "assign",
    "diff",
    "largest_share",
    "number_position",
    "owners",
    "paper_hash",
    "position",
]
