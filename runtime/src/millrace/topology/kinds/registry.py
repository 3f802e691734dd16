"""The kinds that there are: those that ship with Millrace and those that other packages bring.

What a package brings stands in its entry points. One that cannot be used is known by its name all
the same: a topology that names it gets one error that says which package it is and what to do, and
topologies that do not name it never notice.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, create_model
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from millrace.topology.kinds.base import Connector, Kind, ProcessorKind, SinkKind, SourceKind
from millrace.topology.kinds.processor_aggregate import AGGREGATE
from millrace.topology.kinds.processor_function import FUNCTION
from millrace.topology.kinds.processor_json import JSON
from millrace.topology.kinds.processor_lookup import LOOKUP
from millrace.topology.kinds.processor_split import SPLIT
from millrace.topology.kinds.processor_sql import SQL
from millrace.topology.kinds.sink_console import CONSOLE_SINK
from millrace.topology.kinds.sink_custom import CUSTOM_SINK
from millrace.topology.kinds.sink_files import FILES_SINK
from millrace.topology.kinds.sink_redis import REDIS_SINK
from millrace.topology.kinds.source_custom import CUSTOM_SOURCE
from millrace.topology.kinds.source_files import FILES_SOURCE
from millrace.topology.kinds.source_generator import GENERATOR_SOURCE
from millrace.topology.parts import Part

SOURCE_GROUP = "millrace.sources"
PROCESSOR_GROUP = "millrace.processors"
SINK_GROUP = "millrace.sinks"

_NAME = re.compile(r"[a-z][A-Za-z0-9]*")
_TAKEN = frozenset({"name", "inputs", "registry", "kinds", "kind", "declared", "settings"})
"""Other fields and attributes of sources and sinks."""

K = TypeVar("K", bound=Kind[Any])
P = TypeVar("P", bound=Part)


class Registry(Generic[K]):
    """The kinds of one role by name, in the order in which they stand in the schema.

    ``packages`` says where those that did not ship come from; ``faults`` are (what is wrong,
    remedy) of entry points that are of no use, by the name that they have.
    """

    def __init__(
        self,
        shipped: Sequence[K],
        added: Mapping[str, K] | None = None,
        packages: Mapping[str, str] | None = None,
        faults: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        self._kinds: dict[str, K] = {kind.name: kind for kind in shipped} | dict(added or {})
        self.packages = dict(packages or {})
        self.faults = dict(faults or {})

    def __iter__(self) -> Iterator[K]:
        return iter(self._kinds.values())

    def __getitem__(self, name: str) -> K:
        return self._kinds[name]

    def __contains__(self, name: object) -> bool:
        return name in self._kinds

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the kinds that can be used."""
        return tuple(self._kinds)

    def fields(self) -> dict[str, Any]:
        """The fields of a model that declares one of the kinds, for ``create_model``.

        What cannot be used is a field too, out of the schema, that nothing fits.
        """
        fields: dict[str, Any] = {
            kind.name: (kind.settings | None, Field(None, description=kind.meaning))
            for kind in self
        }
        for name, (message, remedy) in self.faults.items():
            if name not in fields and _can_name(name):
                refused = Annotated[SkipJsonSchema[Any], BeforeValidator(_refusal(message, remedy))]
                fields[name] = (refused, None)
        return fields


def declaring(registry: Registry[Any]) -> Callable[[type[P]], type[P]]:
    """Adds a field for each kind to a model, which stays what it is for whoever reads it."""

    def declared(bare: type[P]) -> type[P]:
        fields = registry.fields()
        with warnings.catch_warnings():
            # The kind json stands where a method of old versions of pydantic is, which goes.
            warnings.filterwarnings("ignore", 'Field name "json" .* shadows an attribute')
            made = create_model(
                bare.__name__,
                __base__=bare,
                __module__=bare.__module__,
                __doc__=bare.__doc__,
                **fields,
            )
        made.__qualname__ = bare.__qualname__
        return made

    return declared


def with_packages(shipped: Sequence[K], base: type[K], found: Iterable[EntryPoint]) -> Registry[K]:
    """The kinds that ship and those that entry points name.

    Nothing is raised: what an entry point does wrong is a fault of the registry.
    """
    added: dict[str, K] = {}
    packages: dict[str, str] = {}
    faults: dict[str, tuple[str, str]] = {}
    known = {kind.name for kind in shipped}
    for entry in sorted(found, key=lambda e: (e.name, _package(e))):
        package, name = _package(entry), entry.name
        try:
            if name in known:
                raise _FaultError("is a kind that Millrace has itself", "uninstall the package")
            if name in added or name in faults:
                other = packages.get(name, "another package")
                raise _FaultError(f"is a kind of {other} too", "uninstall one of the two packages")
            packages[name] = package
            added[name] = _loaded(entry, base)
        except _FaultError as fault:
            added.pop(name, None)
            message = f"cannot be used: {entry.group} of package {package}: {name!r} {fault}"
            faults[name] = (message, fault.remedy)
    used = {name: packages[name] for name in added}
    return Registry([*shipped], added, used, faults)


class _FaultError(Exception):
    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


def _loaded(entry: EntryPoint, base: type[K]) -> K:
    mend = f"mend or uninstall the package {_package(entry)}"
    if not _can_name(entry.name):
        raise _FaultError("cannot name a kind: that takes letters and digits, and is taken", mend)
    try:
        kind: Any = entry.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001
        # The boundary to another package: importing may raise anything, SystemExit too.
        said = " ".join(str(error).split())
        raise _FaultError(
            f"cannot be imported from {entry.value}: {type(error).__name__}: {said}", mend
        ) from None
    if not isinstance(kind, base):
        text = f"is {type(kind).__name__} in {entry.value}, not an instance of a class derived from"
        raise _FaultError(f"{text} {base.__module__}.{base.__name__}", mend)
    try:
        wrong = _lacking(kind)
        if getattr(kind, "name", None) != entry.name:
            wrong = f"calls itself {getattr(kind, 'name', None)!r}"
    except Exception as error:  # noqa: BLE001 the boundary to another package, as above
        wrong = f"cannot say what it is: {type(error).__name__}: {' '.join(str(error).split())}"
    if wrong:
        raise _FaultError(wrong, mend)
    return kind


def _can_name(name: str) -> bool:
    taken = name in _TAKEN or hasattr(BaseModel, name)
    return _NAME.fullmatch(name) is not None and not taken


def _lacking(kind: Kind[Any]) -> str:
    """What a kind of another package does not declare as it should."""
    settings = getattr(kind, "settings", None)
    if not (isinstance(settings, type) and issubclass(settings, Part)):
        return "declares no settings derived from millrace.topology.parts.Part"
    try:
        settings.model_json_schema()
    except Exception as error:  # noqa: BLE001 the boundary to another package, as above
        return f"declares settings that have no schema: {' '.join(str(error).split())}"
    if not isinstance(getattr(kind, "meaning", None), str):
        return "declares no meaning, a sentence for the schema"
    if isinstance(kind, Connector):
        return "" if _names(kind.runs) else f"runs {kind.runs!r}, which is no 'module:Class'"
    for field in ("compiler", "step"):
        target = getattr(kind, field, None)
        if not _names(target):
            return f"has the {field} {target!r}, which is no 'module:function'"
    return ""


def _names(target: object) -> bool:
    return isinstance(target, str) and target.count(":") == 1


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "(unknown)"


def _refusal(message: str, remedy: str) -> Callable[[Any], Any]:
    def refuse(_: Any) -> Any:
        raise PydanticCustomError("kind", "{reason}", {"reason": message, "remedy": remedy})

    return refuse


SOURCES: Registry[SourceKind[Any]] = with_packages(
    (FILES_SOURCE, GENERATOR_SOURCE, CUSTOM_SOURCE),
    SourceKind,  # type: ignore[type-abstract]
    entry_points(group=SOURCE_GROUP),
)
PROCESSORS: Registry[ProcessorKind[Any]] = with_packages(
    (FUNCTION, SPLIT, JSON, LOOKUP, SQL, AGGREGATE),
    ProcessorKind,  # type: ignore[type-abstract]
    entry_points(group=PROCESSOR_GROUP),
)
SINKS: Registry[SinkKind[Any]] = with_packages(
    (FILES_SINK, REDIS_SINK, CONSOLE_SINK, CUSTOM_SINK),
    SinkKind,  # type: ignore[type-abstract]
    entry_points(group=SINK_GROUP),
)


def complaints() -> list[str]:
    """Sentences about the entry points that cannot be used, named in a topology or not."""
    faults = [fault for role in (SOURCES, PROCESSORS, SINKS) for fault in role.faults.values()]
    return [f"a kind {message}; {remedy}" for message, remedy in faults]
