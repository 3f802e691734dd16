"""Makes sinks from a topology's declarations, on the driver and, once per process, in workers."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from millrace.errors import MillraceError, SinkError
from millrace.sinks.base import Sink
from millrace.sinks.console import ConsoleSink
from millrace.sinks.files import FileSink
from millrace.sinks.redis import RedisSink
from millrace.topology import model

_KINDS: Mapping[str, Callable[[str, Mapping[str, Any], Path], Sink]] = {
    "files": FileSink,
    "redis": RedisSink,
    "console": ConsoleSink,
}


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """A sink as plain values, which cross process boundaries.

    ``kind`` is files, redis, console or ``module:Class``; ``options`` is their JSON text;
    ``folder`` is where the topology file lies.
    """

    name: str
    kind: str
    options: str
    folder: str

    @classmethod
    def of(cls, declared: model.Sink, folder: Path) -> SinkSpec:
        """The spec of a valid declaration of a topology file in ``folder``."""
        if declared.custom is not None:
            custom = declared.custom
            return cls(declared.name, custom.target, json.dumps(custom.options), str(folder))
        kind = next(k for k in _KINDS if getattr(declared, k) is not None)
        part: Any = getattr(declared, kind)
        return cls(declared.name, kind, part.model_dump_json(by_alias=True), str(folder))


def make_sink(spec: SinkSpec) -> Sink:
    """A new sink. A custom class must be importable already (see ``spec.code``).

    Raises ``SinkError``.
    """
    options = json.loads(spec.options)
    if spec.kind in _KINDS:
        return _KINDS[spec.kind](spec.name, options, Path(spec.folder))
    return _custom_class(spec)(spec.name, options, Path(spec.folder))


@lru_cache(maxsize=256)
def open_sink(spec: SinkSpec) -> Sink:
    """This process's sink of a spec, made when first asked for."""
    return make_sink(spec)


def _custom_class(spec: SinkSpec) -> type[Sink]:
    module_name, _, name = spec.kind.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except MillraceError:
        raise
    except Exception as error:  # importing runs the user's module, which may raise anything
        raise SinkError(
            f"sink {spec.name!r}: custom.class {spec.kind!r} cannot be loaded: "
            f"{type(error).__name__}: {error}; mend it or correct spec.code.path"
        ) from error
    if not (isinstance(found, type) and issubclass(found, Sink)):
        raise SinkError(
            f"sink {spec.name!r}: custom.class {spec.kind!r} is no class derived from "
            "millrace.sinks.base.Sink; derive it from that"
        )
    return found
