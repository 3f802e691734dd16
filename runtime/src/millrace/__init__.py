"""Millrace: streaming with fault tolerance on Spark.

This module is what user code imports; the rest of the package is the runtime.
"""

from __future__ import annotations

from millrace.functions import (
    Context,
    Emitter,
    FunctionKind,
    FunctionSpec,
    GroupedBatch,
    Processor,
    Row,
    grouped,
    makes,
    migrates,
    restores,
    row,
    spec_of,
    stateful,
    vectorized,
    where,
)

__version__ = "0.1.0"

__all__ = [
    "Context",
    "Emitter",
    "FunctionKind",
    "FunctionSpec",
    "GroupedBatch",
    "Processor",
    "Row",
    "__version__",
    "grouped",
    "makes",
    "migrates",
    "restores",
    "row",
    "spec_of",
    "stateful",
    "vectorized",
    "where",
]
