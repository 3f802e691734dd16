"""A declared source or sink as plain values, and the class that runs it.

Values cross process boundaries; the class is imported where it runs, by its name alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from millrace.errors import MillraceError, error_text
from millrace.loading import LoadError, load_named
from millrace.modes import SECRETS_VARIABLE
from millrace.topology.problems import FieldPath, format_path
from millrace.topology.secretrefs import SecretRef, resolved, variable_of

if TYPE_CHECKING:
    from millrace.topology.kinds.base import Connector


class Declared(Protocol):
    """A valid source or sink of a topology."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> Connector[Any]: ...
    @property
    def settings(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class ConnectorSpec:
    """``kind`` is the name of a kind, or ``module:Class`` of the user's own code; ``options`` are
    the class's as JSON; ``folder`` is where the topology file lies; ``target`` is the class of a
    kind, as ``module:Class``.
    """

    name: str
    kind: str
    options: str
    folder: str
    target: str = ""

    @classmethod
    def of(cls, declared: Declared, folder: Path) -> Self:
        """The spec of a valid declaration of a topology file in ``folder``."""
        kind, settings = declared.kind, declared.settings
        target, options = kind.target(settings), kind.options(settings)
        if kind.user_code(settings) is not None:
            return cls(declared.name, target, options, str(folder))
        return cls(declared.name, kind.name, options, str(folder), target)


B = TypeVar("B")


def class_of(
    spec: ConnectorSpec, role: str, base: type[B], failure: type[MillraceError]
) -> type[B]:
    """The class of a ``role`` (source or sink), derived from ``base``; the user's own must be
    importable already. Raises ``failure``."""
    try:
        found = load_named(spec.target or spec.kind)
    except LoadError as error:
        cause = error.cause
        if isinstance(cause, MillraceError):
            raise cause from None
        what, remedy = _blamed(spec, role)
        raise failure(f"{what} cannot be loaded: {error_text(cause)}; {remedy}") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        what, remedy = _blamed(spec, role)
        whole = f"{base.__module__}.{base.__name__}"
        derive = "derive it from that" if not spec.target else remedy
        raise failure(f"{what} is no class derived from {whole}; {derive}")
    return found


def _blamed(spec: ConnectorSpec, role: str) -> tuple[str, str]:
    """(What a class that is of no use is called, what to do.)"""
    if not spec.target:
        what = f"{role} {spec.name!r}: custom.class {spec.kind!r}"
        return what, "mend it or correct spec.code.path"
    # Workers, who make sources and sinks too, do without all kinds and their models.
    from millrace.topology.kinds.registry import SINKS, SOURCES

    packages = (SOURCES if role == "source" else SINKS).packages
    package = packages.get(spec.kind, "millrace[engine]")
    what = f"{role} {spec.name!r}: {spec.kind} runs {spec.target!r} of package {package}, which"
    return what, f"mend, install or uninstall the package {package}"


def options_of(
    spec: ConnectorSpec,
    role: str,
    failure: type[MillraceError],
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The options of its class, with the values of Secrets, which are read now.

    They are for the source or sink alone: never log or keep them. Raises ``failure``, without a
    word of a value, where one cannot be read.
    """

    def value_of(path: FieldPath, ref: SecretRef) -> str:
        return secret_value(ref, f"{role} {spec.name!r}: {format_path(path)}", failure, environment)

    options: dict[str, Any] = resolved(json.loads(spec.options), value_of)
    return options


def secret_value(
    ref: SecretRef,
    of: str,
    failure: type[MillraceError],
    environment: Mapping[str, str] | None = None,
) -> str:
    """What a reference stands for, read now; ``of`` says in errors what refers to it. Raises
    ``failure``, without a word of a value."""
    given = os.environ if environment is None else environment
    what = f"{of}: key {ref.key!r} of Secret {ref.name!r}"
    folder = given.get(SECRETS_VARIABLE)
    if folder is None:
        return _from_environment(given, ref, what, failure)
    return _from_folder(Path(folder), ref, what, failure)


def _from_environment(
    given: Mapping[str, str], ref: SecretRef, what: str, failure: type[MillraceError]
) -> str:
    variable = variable_of(ref)
    value = given.get(variable, "")
    if not value:
        raise failure(
            f"{what} is read from the environment variable {variable} on one machine, which is "
            "missing or empty; set it"
        )
    return value


def _from_folder(folder: Path, ref: SecretRef, what: str, failure: type[MillraceError]) -> str:
    file = folder / ref.name / ref.key
    mend = "create it in the topology's namespace, then change spec.restartNonce"
    try:
        # What is written with echo ends a line, and no password does.
        value = file.read_text(encoding="utf-8").removesuffix("\n")
    except FileNotFoundError:
        raise failure(f"{what} does not exist ({file}); {mend}") from None
    except OSError as error:
        raise failure(f"{what} cannot be read ({file}: {error.strerror}); {mend}") from None
    except UnicodeDecodeError:
        # The error would hold the bytes.
        raise failure(f"{what} is no UTF-8 text; write a text into it") from None
    if not value:
        raise failure(f"{what} is empty; write a value into it")
    return value
