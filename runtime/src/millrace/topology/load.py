"""From a file to a checked topology, with every problem reported at once."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from millrace.topology.checks.check import check
from millrace.topology.document import Document, read_document
from millrace.topology.document import read_name as _name_in
from millrace.topology.explain import explain, model_at
from millrace.topology.kinds.registry import PROCESSORS, SINKS, SOURCES
from millrace.topology.limits import MOST_CHARS, MOST_PROBLEMS
from millrace.topology.model import API_VERSION, KIND, StreamTopology
from millrace.topology.problems import (
    NOTHING,
    FieldPath,
    InvalidTopologyError,
    Problem,
    format_path,
)


@dataclass(frozen=True, slots=True)
class LoadedTopology:
    """A checked topology, the file it comes from, and the folder that its paths start from.

    ``text`` and ``overrides`` are what it was read from.
    """

    topology: StreamTopology
    file: Path
    folder: Path
    text: str = ""
    overrides: tuple[str, ...] = ()

    @property
    def code_path(self) -> Path:
        """The folder of the user code, resolved."""
        return (self.folder / (self.topology.spec.code.path or ".")).resolve()

    def refused(self, problems: Sequence[Problem]) -> InvalidTopologyError:
        """The error of problems that were found later, with their lines in the file."""
        return _refused(problems, read_document(self.text, self.overrides))


def load(file: Path, overrides: Sequence[str] = (), *, import_code: bool = True) -> LoadedTopology:
    """Reads and checks a topology file.

    ``overrides`` are ``spec.path=value`` texts. Without ``import_code`` user code is not looked
    at. Raises ``InvalidTopologyError`` with every problem.
    """
    file, folder = locate(Path(file))
    text = _read(file)
    topology = parse(text, overrides, folder, import_code)
    return LoadedTopology(topology, file, folder, text, tuple(overrides))


def locate(file: Path) -> tuple[Path, Path]:
    """The topology file behind all links, and its folder.

    A pipe, such as ``/dev/stdin`` may be, lies nowhere: the current folder stands in.
    """
    try:
        is_pipe = file.is_fifo()
    except (OSError, ValueError):
        is_pipe = False  # what is wrong with it shows when it is read
    if is_pipe:
        return file.absolute(), Path.cwd()
    # Not resolve(), which takes a loop of links for an error of the program.
    file = Path(os.path.realpath(file))
    return file, file.parent


def parse(
    text: str,
    overrides: Sequence[str] = (),
    folder: Path | None = None,
    import_code: bool = True,
) -> StreamTopology:
    """Reads and checks the text of a topology; ``folder`` is what its paths are relative to.

    User code is imported only where ``folder`` is known. Raises ``InvalidTopologyError``.
    """
    document = read_document(text, overrides)
    try:
        topology = StreamTopology.model_validate(document.data)
    except ValidationError as error:
        details = _errors(error)
        problems = [explain(detail, document) for detail in details[:MOST_PROBLEMS]]
        if len(details) < MOST_PROBLEMS:
            problems += _checked_without(document, folder, import_code)
    else:
        problems = check(topology, folder, import_code)
        if not problems:
            return topology
    raise _refused(problems, document)


def _refused(problems: Sequence[Problem], document: Document) -> InvalidTopologyError:
    known = {format_path(path): path for path in document.lines}
    located = [_located(problem, document, known) for problem in problems[:MOST_PROBLEMS]]
    return InvalidTopologyError(sorted(located, key=lambda p: p.line or sys.maxsize))


def read_name(file: Path) -> str:
    """The name in a topology file that may otherwise be invalid by now.

    Raises ``InvalidTopologyError``, which says which file it is: commands that need no more than
    the name have several ways to be told of one.
    """
    text = _read(file)
    try:
        return _name_in(text)
    except InvalidTopologyError as error:
        named = [replace(problem, path=f"{file}: {problem.path}") for problem in error.problems]
        raise InvalidTopologyError(named) from None


def _read(file: Path) -> str:
    try:
        with file.open(encoding="utf-8") as text:
            return text.read(MOST_CHARS + 1)
    except FileNotFoundError:
        message, remedy = "does not exist", "name an existing topology file"
    except IsADirectoryError:
        message, remedy = "is a folder", "name the topology file in it"
    except UnicodeDecodeError as error:
        message, remedy = (
            f"is no UTF-8 text: {error.reason}, byte {error.start}",
            "save it as UTF-8",
        )
    except OSError as error:
        message, remedy = f"cannot be read: {error.strerror}", "check its permissions"
    raise InvalidTopologyError([Problem(str(file), NOTHING, message, remedy)])


def _errors(error: ValidationError) -> list[ErrorDetails]:
    details = error.errors(include_url=False)
    paths = [detail["loc"] for detail in details]
    # A list whose elements are bad is reported as too short as well.
    above = {path[:length] for path in paths for length in range(len(path))}
    return [
        detail
        for detail, path in zip(details, paths, strict=True)
        if detail["type"] != "too_short" or path not in above
    ]


def _checked_without(document: Document, folder: Path | None, import_code: bool) -> list[Problem]:
    """Problems between fields that show even if the bad values are left out.

    What is bad is removed, so that defaults stand in, and what then is missing gets a filler. A
    problem at, above or below such a place would only repeat it in other words and is dropped.
    """
    data = copy.deepcopy(document.data)
    mended: set[FieldPath] = set()
    for _ in range(_MENDING_ROUNDS):
        try:
            topology = StreamTopology.model_validate(data)
        except ValidationError as error:
            for detail in _errors(error):
                path = detail["loc"]
                # Which other fields fit a part depends on a choice such as its format.
                choice = detail["type"] == "enum" and len(path) > len(_COMPONENT_PART)
                mended.add(path[:-1] if choice else path)
                _mend(data, path, missing=detail["type"] == "missing")
        else:
            texts = [format_path(path) for path in mended]
            return [
                problem
                for problem in check(topology, folder, import_code)
                if not any(_related(problem.path, text) for text in texts)
            ]
    return []


_COMPONENT_PART = ("spec", "sources", 0, "files")
"""A path as long as that of a part of a component; what is deeper is one of the part's fields."""

_MENDING_ROUNDS = 4
"""A bad name is removed, then missing, then filled in; a bad element adds a round."""

_FILLERS: dict[str, Any] = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "metadata": {"name": "unnamed"},
    "name": "unnamed",
    "from": "unnamed",
    "inputs": [{"from": "unnamed"}],
}
for _kind in (*SOURCES, *PROCESSORS, *SINKS):
    _FILLERS |= _kind.fillers


def _mend(data: Any, path: FieldPath, *, missing: bool) -> None:
    for step in path[:-1]:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return  # an earlier error of this round removed it
    if not path:
        return
    step = path[-1]
    if isinstance(data, dict) and isinstance(step, str):
        data.pop(step, None)
        if missing and step in _FILLERS:
            data[step] = copy.deepcopy(_FILLERS[step])
    elif isinstance(data, list) and isinstance(step, int) and step < len(data):
        data[step] = {} if model_at(path) else "unnamed"


def _related(a: str, b: str) -> bool:
    shorter, longer = sorted((a, b), key=len)
    return longer.startswith(shorter) and longer[len(shorter) : len(shorter) + 1] in ("", ".", "[")


def _located(problem: Problem, document: Document, known: Mapping[str, FieldPath]) -> Problem:
    if problem.line is not None:
        return problem
    text = problem.path
    while text and text not in known:
        text = text[: max(text.rfind("."), text.rfind("["), 0)]
    line = document.line(known[text]) if text else None
    return replace(problem, line=line)
