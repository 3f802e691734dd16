"""Makes sources from a topology's declarations, on the driver and, once per process, in workers."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from millrace.errors import MillraceError, SourceError
from millrace.sources.base import Source, check_replayable
from millrace.sources.files import FileSource
from millrace.sources.generator import GeneratorSource
from millrace.topology import model

_KINDS: Mapping[str, Callable[[str, Mapping[str, Any], Path], Source]] = {
    "files": FileSource,
    "generator": GeneratorSource,
}


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """A source as plain values, which cross process boundaries.

    ``kind`` is files, generator or ``module:Class``; ``options`` is their JSON text; ``folder`` is
    where the topology file lies.
    """

    name: str
    kind: str
    options: str
    folder: str

    @classmethod
    def of(cls, declared: model.Source, folder: Path) -> SourceSpec:
        """The spec of a valid declaration of a topology file in ``folder``."""
        if declared.custom is not None:
            custom = declared.custom
            return cls(declared.name, custom.target, json.dumps(custom.options), str(folder))
        kind = "files" if declared.files is not None else "generator"
        part: Any = getattr(declared, kind)
        return cls(declared.name, kind, part.model_dump_json(by_alias=True), str(folder))


def make_source(spec: SourceSpec) -> Source:
    """A new source. A custom class must be importable already (see ``spec.code``).

    Raises ``SourceError``.
    """
    options = json.loads(spec.options)
    if spec.kind in _KINDS:
        return _KINDS[spec.kind](spec.name, options, Path(spec.folder))
    source = _custom_class(spec)(spec.name, options, Path(spec.folder))
    check_replayable(source)
    return source


@lru_cache(maxsize=256)
def open_source(spec: SourceSpec) -> Source:
    """This process's source of a spec, made when first asked for."""
    return make_source(spec)


def _custom_class(spec: SourceSpec) -> type[Source]:
    module_name, _, name = spec.kind.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except MillraceError:
        raise
    except Exception as error:  # importing runs the user's module, which may raise anything
        raise SourceError(
            f"source {spec.name!r}: custom.class {spec.kind!r} cannot be loaded: "
            f"{type(error).__name__}: {error}; mend it or correct spec.code.path"
        ) from error
    if not (isinstance(found, type) and issubclass(found, Source)):
        raise SourceError(
            f"source {spec.name!r}: custom.class {spec.kind!r} is no class derived from "
            "millrace.sources.base.Source; derive it from that"
        )
    return found
