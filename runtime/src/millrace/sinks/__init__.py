"""Sinks that show sealed windows once: files, Redis, the console, and classes of your own."""

from millrace.sinks.base import (
    RowsRefusedError,
    Sink,
    SinkFullError,
    SinkUnavailableError,
    StagingArea,
    StepHook,
)
from millrace.sinks.loader import SinkSpec, kept_sink, make_sink, open_sink

__all__ = [
    "RowsRefusedError",
    "Sink",
    "SinkFullError",
    "SinkSpec",
    "SinkUnavailableError",
    "StagingArea",
    "StepHook",
    "kept_sink",
    "make_sink",
    "open_sink",
]
