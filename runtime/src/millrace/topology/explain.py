"""From pydantic's errors to problems with a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from millrace.topology.document import Document
from millrace.topology.model import Source, StreamTopology
from millrace.topology.problems import (
    NOTHING,
    FieldPath,
    Problem,
    closest,
    did_you_mean,
    format_path,
)

_SIMPLE: dict[str, tuple[str, str]] = {
    "int_type": ("is no whole number", "write digits without quotes"),
    "int_parsing": ("is no whole number", "write digits without quotes"),
    "bool_type": ("is neither true nor false", "write true or false without quotes"),
    "string_too_short": ("is empty", "write a text or remove the field"),
    "tuple_type": ("is no list", "write a list: one '- ' line for each element, or [a, b]"),
    "dict_type": ("is no mapping", "write 'name: value' lines below it"),
    "model_type": ("is no mapping", "write 'field: value' lines below it"),
    "too_short": ("is an empty list", "add at least one element"),
}


def explain(error: ErrorDetails, document: Document) -> Problem:
    """The problem behind one error of ``StreamTopology.model_validate``."""
    path: FieldPath = tuple(error["loc"])
    kind, value = error["type"], error["input"]
    context = error.get("ctx", {})
    if kind == "missing":
        message, remedy, value = "is missing", _missing_remedy(path), NOTHING
    elif kind == "extra_forbidden":
        message, remedy = _unknown_field(path)
        value = NOTHING
    elif kind in ("enum", "literal_error"):
        message, remedy = "is not known here", _choice_remedy(value, str(context["expected"]))
    elif kind == "string_type":
        message, remedy = _not_text(value)
    elif kind in ("greater_than_equal", "less_than_equal"):
        limit = context.get("ge", context.get("le"))
        word = "small" if kind == "greater_than_equal" else "large"
        bound = "at least" if word == "small" else "at most"
        message, remedy = f"is too {word}", f"use {bound} {limit}"
    elif kind == "string_too_long":
        message, remedy = "is too long", f"use at most {context['max_length']} characters"
    elif kind in _SIMPLE:
        message, remedy = _SIMPLE[kind]
    else:
        message = error["msg"]
        value = NOTHING if kind == "kind" else value
        remedy = str(context.get("remedy", "see `millrace schema` for what can stand here"))
    return Problem(format_path(path) or "file", value, message, remedy, document.line(path))


def _missing_remedy(path: FieldPath) -> str:
    model = model_at(path[:-1])
    if path == ("apiVersion",):
        return "add apiVersion: millrace.dev/v1alpha1"
    if path == ("kind",):
        return "add kind: StreamTopology"
    for name, field in (model.model_fields if model else {}).items():
        if path[-1] in (name, field.alias) and field.description:
            return f"add it: {field.description}"
    return "add it"


def _unknown_field(path: FieldPath) -> tuple[str, str]:
    name = str(path[-1])
    model = model_at(path[:-1])
    if model is Source and name == "inputs":
        return "leads into a source, which has no inputs", "make it a processor or remove the edge"
    message = "is an unknown field"
    fields = field_names(model) if model else []
    if closest(name, fields) is None:
        places = [place for place, known in _all_fields(StreamTopology, "") if known == name]
        if places:
            return message, f"it belongs to {places[0]}"
    return message, did_you_mean(name, fields)


def _choice_remedy(value: Any, expected: str) -> str:
    choices = [part.strip("' ") for part in expected.replace(" or ", ",").split(",")]
    if len(choices) == 1:
        return f"write {choices[0]}"
    guess = closest(value, choices) if isinstance(value, str) else None
    hint = f"did you mean {guess}? " if guess else ""
    return f"{hint}use one of {', '.join(choices)}"


def _not_text(value: Any) -> tuple[str, str]:
    if isinstance(value, bool):
        return "is read as a boolean by YAML, not as text", 'put the word in quotes, e.g. "on"'
    if isinstance(value, dict | list):
        return "is no text", "write a single value"
    return "is no text", f'put it in quotes: "{value}"'


def model_at(path: FieldPath) -> type[BaseModel] | None:
    """The model that describes what stands at ``path``, where there is one.

    A list is described like its elements.
    """
    model: type[BaseModel] | None = StreamTopology
    for step in path:
        if isinstance(step, int):
            continue
        found = None
        for name, field in (model.model_fields if model else {}).items():
            if step in (name, field.alias):
                found = _model_in(field.annotation)
        model = found
    return model


def field_names(model: type[BaseModel]) -> list[str]:
    """The fields of a model as they are written in a file."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, UnionType, tuple):
        for argument in get_args(annotation):
            if (model := _model_in(argument)) is not None:
                return model
    return None


def _all_fields(model: type[BaseModel], place: str) -> Iterator[tuple[str, str]]:
    for name, field in model.model_fields.items():
        alias = field.alias or name
        yield place or "the top level", alias
        inner = _model_in(field.annotation)
        if inner is not None:
            many = "[]" if get_origin(field.annotation) is tuple else ""
            yield from _all_fields(inner, f"{place}.{alias}{many}".lstrip("."))
