"""Makes sinks from a topology's declarations, on the driver and, once per process, in workers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from millrace.connector import ConnectorSpec, class_of, options_of
from millrace.errors import SinkError
from millrace.sinks.base import Sink


@dataclass(frozen=True, slots=True)
class SinkSpec(ConnectorSpec):
    """A sink as plain values."""


def sink_class(spec: SinkSpec) -> type[Sink]:
    """The class of a sink, imported. Raises ``SinkError``."""
    return class_of(spec, "sink", Sink, SinkError)  # type: ignore[type-abstract]


def make_sink(spec: SinkSpec) -> Sink:
    """A new sink. A custom class must be importable already (see ``spec.code``).

    Raises ``SinkError``.
    """
    return sink_class(spec)(spec.name, options_of(spec, "sink", SinkError), Path(spec.folder))


@lru_cache(maxsize=256)
def open_sink(spec: SinkSpec) -> Sink:
    """This process's sink of a spec, made when first asked for."""
    return make_sink(spec)
