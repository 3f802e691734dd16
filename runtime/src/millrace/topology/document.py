"""A topology file as plain data: YAML read without its traps, and ``--set`` overrides.

Beyond what a YAML parser gives: keys that appear twice are refused, keys must be text, the line
of every value is known, and an empty value (``window:``) counts as left out, as it does in a
cluster.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from millrace.topology.limits import (
    MOST_DEPTH,
    MOST_OVERRIDES,
    MOST_PROBLEMS,
    too_many_parts,
    too_much,
    unprintable,
)
from millrace.topology.problems import (
    NOTHING,
    FieldPath,
    InvalidTopologyError,
    Problem,
    did_you_mean,
    format_path,
)

_STEP = re.compile(r"\.?([A-Za-z_][\w-]*)|\[([^\]]+)\]")
_PATH_SHOWN = 80
_LONGEST_INDEX = 10
_PLAIN = re.compile(r"(?:[\w.-]|\[[\w.-]+\])*")
"""What of an override may be shown: the rest may be a value, with a password in it."""
_NAMED = re.compile(r"(alias|anchor|tag|tag handle|directive)\s+['\"].*['\"]", re.DOTALL)
_NAMED_LISTS = ("sources", "processors", "sinks")


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data and, for each path in it, the line (from 1) where it begins."""

    data: Any
    lines: dict[FieldPath, int] = field(default_factory=dict)

    def line(self, path: FieldPath) -> int | None:
        """The line of the nearest thing at or above ``path``; None for what an override put in."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]] or None
        return None


def read_document(text: str, overrides: Sequence[str] = ()) -> Document:
    """Reads a file's text and applies overrides such as ``spec.window.maxRecords=10``.

    Raises ``InvalidTopologyError`` for YAML that cannot be read and overrides that fit nowhere.
    """
    document = _parse(text)
    problems = []
    if len(overrides) > MOST_OVERRIDES:
        message = f"is given {len(overrides):,} times; {MOST_OVERRIDES} are possible"
        raise InvalidTopologyError([Problem("--set", NOTHING, message, "edit the file")])
    for override in overrides:
        problem = _override(document, override)
        if problem is not None:
            problems.append(problem)
    if not problems:
        many = too_many_parts(document.data)
        problems += [many] if many is not None else []
    if problems:
        raise InvalidTopologyError(problems)
    return Document(_without_nulls(document.data, ()), document.lines)


def read_name(text: str) -> str:
    """The name in a topology that may otherwise be invalid. Raises ``InvalidTopologyError``."""
    data = _parse(text).data
    metadata = data.get("metadata") if isinstance(data, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str):
        problem = Problem("metadata.name", NOTHING, "cannot be read", "give the topology a name")
        raise InvalidTopologyError([problem])
    return name


def _parse(text: str) -> Document:
    problem = too_much(text)
    if problem is not None:
        raise InvalidTopologyError([problem])
    if yaml.__with_libyaml__:
        try:
            return _parse_with(yaml.CSafeLoader, text)
        except (yaml.YAMLError, ValueError):
            pass  # the other one says better what is wrong, and reads some texts that this cannot
    return _parse_explained(text)


def _parse_with(loader_type: type[Any], text: str) -> Document:
    loader = loader_type(text)
    try:
        node = loader.get_single_node()
        if node is None:
            problem = Problem("file", NOTHING, "is empty", "write a topology in it")
            raise InvalidTopologyError([problem])
        reader = _Reader()
        reader.read(node, ())
        if reader.problems:
            raise InvalidTopologyError(reader.problems[:MOST_PROBLEMS])
        return Document(_unshared(loader.construct_document(node)), reader.lines)
    finally:
        loader.dispose()


def _unshared(data: Any) -> Any:
    """The same with a copy for each alias: an override changes the one place that it names."""
    if isinstance(data, dict):
        return {name: _unshared(value) for name, value in data.items()}
    return [_unshared(value) for value in data] if isinstance(data, list) else data


def _parse_explained(text: str) -> Document:
    try:
        return _parse_with(yaml.SafeLoader, text)
    except yaml.MarkedYAMLError as error:
        problem = _malformed(error)
    except yaml.reader.ReaderError as error:
        message = f"holds U+{error.character:04X}, which YAML does not allow"
        problem = Problem(f"character {error.position + 1}", NOTHING, message, "remove it")
    except ValueError as error:
        # Dates such as 2024-02-31 look like a date to YAML and are none.
        message = f"holds a bad value: {str(error)[:_PATH_SHOWN]}"
        problem = Problem("file", NOTHING, message, "put the value in quotes")
    raise InvalidTopologyError([problem])


def _malformed(error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    where = "file" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}"
    # The name of an alias or a tag may be the beginning of a password without quotes.
    reason = _NAMED.sub(r"\1 ***", error.problem or error.context or "cannot be parsed")
    remedy = "check the indentation, quotes and brackets there"
    if "single document" in f"{error.context} {reason}" or "expected a single" in reason:
        remedy = "keep one topology in one file"
    elif "found character '\\t'" in reason:
        remedy = "indent with spaces instead of tabs"
    return Problem(where, NOTHING, f"is malformed YAML: {reason}", remedy)


class _Reader:
    """Notes the line of every value and what YAML would let pass."""

    def __init__(self) -> None:
        self.lines: dict[FieldPath, int] = {}
        self.problems: list[Problem] = []
        self._open: set[int] = set()

    def read(self, node: yaml.Node, path: FieldPath) -> None:
        if id(node) in self._open:
            self._refuse(path, NOTHING, "holds itself by an alias", "write it out", node)
            return
        self._open.add(id(node))
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            self._check_text(node, path)
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.read(item, (*path, index))
        elif isinstance(node, yaml.MappingNode):
            self._read_fields(node, path)
        self._open.discard(id(node))

    def _read_fields(self, node: yaml.MappingNode, path: FieldPath) -> None:
        first: dict[str, int] = {}
        for key, item in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                self.read(item, (*path, "<<"))
                continue
            name = key.value if isinstance(key, yaml.ScalarNode) else "…"
            self._check_text(key, path)
            if key.tag != "tag:yaml.org,2002:str":
                message = "is a field name that YAML does not read as text"
                self._refuse(path, name, message, f'put it in quotes: "{name}"', key)
            elif name in first:
                message = f"stands twice, first in line {first[name]}"
                self._refuse((*path, name), NOTHING, message, "remove one of them", key)
            else:
                first[name] = self.lines[(*path, name)] = key.start_mark.line + 1
                self.read(item, (*path, name))

    def _check_text(self, node: yaml.Node, path: FieldPath) -> None:
        problem = unprintable(node.value, path)
        if problem is not None:
            self.problems.append(replace(problem, line=node.start_mark.line + 1))

    def _refuse(
        self, path: FieldPath, value: Any, message: str, remedy: str, node: yaml.Node
    ) -> None:
        line = node.start_mark.line + 1
        self.problems.append(Problem(format_path(path) or "file", value, message, remedy, line))


def _without_nulls(data: Any, path: FieldPath) -> Any:
    if path[-1:] == ("options",):
        return data  # belongs to user code
    if isinstance(data, list):
        return [_without_nulls(item, (*path, index)) for index, item in enumerate(data)]
    if not isinstance(data, dict):
        return data
    kept = {}
    for name, value in data.items():
        if value is None and len(path) == 3 and path[1] in _NAMED_LISTS:
            value = {}  # `console:` names the kind all the same
        if value is not None:
            kept[name] = _without_nulls(value, (*path, name))
    return kept


_NOTHING = object()
"""The value of ``--set path=null``: the field is taken away, and its default counts."""


def _override(document: Document, text: str) -> Problem | None:
    """Puts one override into the data, in place; answers what is wrong with it."""
    path_text, equals, value_text = text.partition("=")
    plain = _PLAIN.match(path_text)
    shown = f"--set {plain[0][:_PATH_SHOWN] if plain else ''}"
    if not equals:
        return Problem(shown, NOTHING, "has no value", "write --set spec.path=value")
    path = _parse_path(path_text)
    if len(path) > MOST_DEPTH:
        return Problem(shown, NOTHING, f"has more than {MOST_DEPTH} steps", "shorten the path")
    if not path or path[0] not in ("spec", "metadata") or len(path) < 2:
        return Problem(
            shown,
            NOTHING,
            "is no path in a topology",
            "write it like spec.window.maxRecords or spec.sources[lines].files.path",
        )
    try:
        value_document = _parse(value_text) if value_text.strip() else Document(None)
    except InvalidTopologyError as error:
        problem = error.problems[0]
        if "malformed" in problem.message or problem.path == "file":
            what = problem.message if "malformed" not in problem.message else "is malformed YAML"
            return Problem(shown, value_text, what, "put the value in quotes")
        return Problem(shown, value_text, problem.message, problem.remedy)
    value = value_document.data
    if value is None and value_text.strip() and "options" not in path[:-1]:
        value = _NOTHING  # in options it is a value of the user's own
    return _put(document, path, value, shown)


def _put(document: Document, path: list[str], value: Any, shown: str) -> Problem | None:
    at = document.data
    above: FieldPath = ()
    for position, step in enumerate(path):
        place: str | int = step
        if isinstance(at, list):
            index = _index(at, step)
            if index is None:
                known = [str(i["name"]) for i in at if isinstance(i, dict) and "name" in i]
                message = f"is neither a name nor an index in {format_path(above)}"
                return Problem(shown, step, message, did_you_mean(step, known))
            place = index
        elif not isinstance(at, dict):
            message = f"stands in {format_path(above) or 'the file'} and holds no fields"
            return Problem(shown, at, message, "shorten the path")
        above = (*above, place)
        if position == len(path) - 1 and value is _NOTHING and isinstance(at, dict):
            at.pop(step, None)
        elif position == len(path) - 1:
            at[place] = None if value is _NOTHING else value
        elif isinstance(at, dict) and at.get(step) is None and value is _NOTHING:
            return None  # nothing stands there that could be taken away
        elif isinstance(at, dict) and at.get(step) is None:
            at[step] = {}
            at = at[step]
        else:
            at = at[place]
    for known_path in list(document.lines):
        if known_path[: len(above)] == above:
            del document.lines[known_path]
    document.lines[above] = 0  # what stands there does not come from the file
    return None


def _index(items: list[Any], step: str) -> int | None:
    for index, item in enumerate(items):
        if isinstance(item, dict) and item.get("name") == step:
            return index
    short = step.isdecimal() and len(step) < _LONGEST_INDEX
    return int(step) if short and int(step) < len(items) else None


def _parse_path(text: str) -> list[str]:
    """Steps of ``spec.sources[lines].files.path``; empty where it is malformed."""
    steps, position = [], 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            return []
        steps.append(match[1] or match[2])
        position = match.end()
    return steps
