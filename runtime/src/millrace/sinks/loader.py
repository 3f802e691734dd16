"""Makes sinks from a topology's declarations, on the driver and, once per process, in workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from millrace.connector import ConnectorSpec, class_of, options_of
from millrace.errors import SinkError
from millrace.sinks.base import Sink


@dataclass(frozen=True, slots=True)
class SinkSpec(ConnectorSpec):
    """A sink as plain values."""


def kept_sink(declaration: Mapping[str, Any], folder: Path) -> Sink:
    """A new sink of a declaration that was kept when the topology's file lost it. Raises
    ``SinkError``."""
    # Workers, who open sinks too, do without the model of topologies.
    from pydantic import ValidationError

    from millrace.topology import model

    try:
        declared = model.Sink.model_validate(declaration)
    except ValidationError as error:
        name = declaration["name"]
        raise SinkError(f"sink {name!r}: this release cannot read its declaration") from error
    return make_sink(SinkSpec.of(declared, folder))


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
