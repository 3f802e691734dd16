"""Makes sources from a topology's declarations, on the driver and, once per process, in workers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from millrace.connector import ConnectorSpec, class_of, options_of
from millrace.errors import SourceError
from millrace.sources.base import Source, check_replayable


@dataclass(frozen=True, slots=True)
class SourceSpec(ConnectorSpec):
    """A source as plain values."""


def source_class(spec: SourceSpec) -> type[Source]:
    """The class of a source, imported. Raises ``SourceError``."""
    return class_of(spec, "source", Source, SourceError)  # type: ignore[type-abstract]


def make_source(spec: SourceSpec) -> Source:
    """A new source. A custom class must be importable already (see ``spec.code``).

    Raises ``SourceError``.
    """
    options = options_of(spec, "source", SourceError)
    source = source_class(spec)(spec.name, options, Path(spec.folder))
    check_replayable(source)
    return source


@lru_cache(maxsize=256)
def open_source(spec: SourceSpec) -> Source:
    """This process's source of a spec, made when first asked for."""
    return make_source(spec)
