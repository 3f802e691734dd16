"""Settings of sources and sinks whose value stands in a Secret: ``{secretRef: {name, key}}``.

The reference is what a topology holds, wherever it is kept, sent or shown. It becomes the value in
the process that makes the source or sink (``millrace.connector``), and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import Field, ValidationError

from millrace.topology.parts import Part
from millrace.topology.problems import FieldPath
from millrace.topology.scalars import DataKey, ObjectName

FIELD = "secretRef"


class SecretRef(Part):
    """A key of a Secret."""

    name: ObjectName = Field(description="Name of the Secret, in the topology's namespace.")
    key: DataKey = Field(description="Key of the Secret whose value it is.")


class SecretText(Part):
    """A text that stands in a Secret."""

    secret_ref: SecretRef = Field(description="Where the value stands.")


def variable_of(ref: SecretRef) -> str:
    """The environment variable that holds the value on one machine."""
    name, key = (re.sub(r"[-.]", "_", part).upper() for part in (ref.name, ref.key))
    return f"MILLRACE_SECRET_{name}__{key}"


def is_reference(value: Any) -> bool:
    """Whether a value of a document is meant as a reference."""
    return isinstance(value, Mapping) and set(value) == {FIELD}


def references(document: Any, path: FieldPath = ()) -> Iterator[tuple[FieldPath, SecretRef | None]]:
    """References in a document, with their paths; None for one that is malformed."""
    if is_reference(document):
        try:
            yield path, SecretText.model_validate(document).secret_ref
        except ValidationError:
            yield path, None
    elif isinstance(document, Mapping):
        for name, inner in document.items():
            yield from references(inner, (*path, str(name)))
    elif isinstance(document, list | tuple):
        for index, inner in enumerate(document):
            yield from references(inner, (*path, index))


def resolved(document: Any, value_of: Callable[[FieldPath, SecretRef], str]) -> Any:
    """The document with values in place of references, which are well formed."""
    return _resolved(document, value_of, ())


def _resolved(
    document: Any, value_of: Callable[[FieldPath, SecretRef], str], path: FieldPath
) -> Any:
    if is_reference(document):
        return value_of(path, SecretText.model_validate(document).secret_ref)
    if isinstance(document, Mapping):
        return {n: _resolved(inner, value_of, (*path, str(n))) for n, inner in document.items()}
    if isinstance(document, list | tuple):
        return [_resolved(inner, value_of, (*path, i)) for i, inner in enumerate(document)]
    return document
